"""A recorded trace replays to the same outcomes and the same order of starts (law L16), delays included."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncdispatch import DispatcherConfig
from asyncdispatch._core.short import DispatchCore
from asyncdispatch.traces import read_trace, replay, what_if
from asyncdispatch.traces.recording import record
from asyncdispatch.traces.tape import Tape
from tests.core.driver import Driver
from tests.core.operations import play as play_core
from tests.test_laws_http import run as run_over_http
from tests.test_laws_shell import Program, play
from tests.traces.worlds import Kept, Quiet, check_same, recorded, told

PROGRAMS = max(20, settings().max_examples // 3)
EXAMPLES = max(5, settings().max_examples // 20)


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(5, 80), switching=st.booleans())
@settings(max_examples=PROGRAMS)
def test_random_programs_replay_to_the_same(seed: int, steps: int, switching: bool) -> None:
    """Through the real dispatcher in virtual time: faults, cancellations, contexts, modes, an end in three ways."""
    with TemporaryDirectory() as folder:
        path, kept = Path(folder, "trace.gz"), Kept()
        with recorded("tests.test_laws_shell", path, kept):
            play(Program(Random(seed), switching=switching), steps)
        check_same(path, kept)


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(5, 80))
@settings(max_examples=PROGRAMS)
def test_so_do_the_short_ways(seed: int, steps: int) -> None:
    """The same where nobody watches the workers, so that they pass on their seats."""
    with TemporaryDirectory() as folder:
        path, kept = Path(folder, "trace"), Quiet()
        with recorded("tests.test_laws_shell", path, kept):
            play(Program(Random(seed), watched=False), steps)
        check_same(path, kept)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=EXAMPLES)
def test_over_http_with_faults(seed: int) -> None:
    """Our own calls against an API server that fails, drops and delays: conflicts, reconciles, lost answers."""
    with TemporaryDirectory() as folder:
        path, kept = Path(folder, "trace.gz"), Kept()
        with recorded("tests.test_laws_http", path, kept):
            run_over_http(seed)
        check_same(path, kept)
        found = what_if(read_trace(path), DispatcherConfig(max_in_flight=2))
    assert "unfinished" not in found.outcomes_after  # though nobody reads what own writes have done


@pytest.mark.parametrize("seed", range(60))
def test_every_step_of_the_core(seed: int, tmp_path: Path) -> None:
    """Random steps of every kind on the bare core: what no shell would do in this order, it replays as well."""
    path = tmp_path / "trace"
    tape = Tape(path, 1 << 30)
    drivers: list[Driver] = []

    def make(config: DispatcherConfig, **options: Any) -> Driver:
        driver = Driver(config, **options)
        assert isinstance(driver.core, DispatchCore)
        record(driver.core, tape, driver.now)
        drivers.append(driver)
        return driver

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.core.operations.Driver", make)
        play_core(seed, 150)
    tape.close()
    assert tape.ended is None
    again = replay(read_trace(path))
    seen = {ticket: told(handle.settled) for ticket, handle in drivers[0].handles.items()}
    assert {ticket: told(call.outcome) for ticket, call in again.calls.items()} == seen
