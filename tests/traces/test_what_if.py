"""What another configuration would have done: held against dispatchers that really had it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncdispatch import (
    Backpressure,
    ConfigurationError,
    Dispatcher,
    DispatcherConfig,
    FlowQuota,
    RateLimit,
    RetryPolicy,
)
from asyncdispatch.traces import Trace, TraceRecorder, read_trace, replay, what_if
from tests.shell import START, Script, StatusError, after, call
from tests.test_laws_shell import Program, play
from tests.traces.worlds import Kept, recorded

Load = Callable[[Dispatcher], Any]


async def run(path: Path, load: Load, config: DispatcherConfig) -> Trace:
    with TraceRecorder(path) as recorder:
        async with Dispatcher(config, observers=(recorder,)) as dispatcher:
            await load(dispatcher)
    assert recorder.ended is None
    return read_trace(path)


async def bursts(dispatcher: Dispatcher) -> None:
    """Levels, flows and service times by lot; some fail and are retried, some have little time."""
    dice = Random(7)
    for number in range(300):
        seconds = dice.choice([0.05, 0.2, 1.0])
        steps = [StatusError(503)] * dice.choice([0, 0, 0, 1, 2]) + ["ok"]
        fields: dict[str, Any] = {
            "priority": dice.choice([-5_000, 0, 0, 1_000, 2_000_000_000]),
            "flow": dice.choice(["a", "b"]),
            "timeout": dice.choice([None, 2.0, 20.0]),
            "call_type": dice.choice(["write", "other"]),
        }
        try:
            dispatcher.submit(call(Script(*steps, seconds=seconds), f"p{number}", **fields))
        except Backpressure:
            pass
        if dice.random() < 0.1:
            await asyncio.sleep(dice.random() * 2)


BASE = DispatcherConfig(
    max_in_flight=8,
    capacity=200,
    flows={"a": FlowQuota(weight=2.0)},
    retry=RetryPolicy(wait=lambda state: 0.3),
    breaker=None,
    drain_timeout=200.0,
)


@pytest.mark.looptime(start=START)
async def test_the_same_configuration_changes_nothing(tmp_path: Path) -> None:
    """Then the simulation does what the dispatcher did, call by call."""
    trace = await run(tmp_path / "trace", bursts, BASE)
    found = what_if(trace, trace.config)
    for change in (found.all, *found.by_level.values(), *found.by_flow.values()):
        for name in ("calls", "mean", "p50", "p99"):
            assert getattr(change.after, name) == pytest.approx(getattr(change.before, name), abs=1e-4)
    assert found.outcomes_before == found.outcomes_after
    assert found.all.before.calls > 100
    assert found.guessed < found.attempts / 20


@pytest.mark.parametrize(
    "other",
    [
        {"max_in_flight": 16},
        {"max_in_flight": 4},
        {"aging": 1.0},
        {"flows": {"a": FlowQuota(max_in_flight=2)}},
        {"rate": RateLimit(10.0, 5)},
    ],
    ids=["more seats", "fewer seats", "faster aging", "a quota", "a rate limit"],
)
@pytest.mark.looptime(start=START)
async def test_another_configuration_does_what_a_dispatcher_with_it_does(tmp_path: Path, other: dict[str, Any]) -> None:
    """The same calls through a real dispatcher of the other configuration: the means agree within some percent."""
    trace = await run(tmp_path / "trace", bursts, BASE)
    found = what_if(trace, replace(trace.config, **other))
    real = await run(tmp_path / "other", bursts, replace(BASE, **other))
    expected = what_if(real, real.config)
    for level, change in found.by_level.items():
        after, really = change.after, expected.by_level[level].before
        assert after.mean == pytest.approx(really.mean, rel=0.1, abs=0.02), level
        assert after.p99 == pytest.approx(really.p99, rel=0.2, abs=0.1), level
    assert found.by_level != {name: replace(each, after=each.before) for name, each in found.by_level.items()}


@pytest.mark.looptime(start=START)
async def test_calls_that_were_refused_may_be_accepted(tmp_path: Path) -> None:
    """A larger capacity takes them in; how long they would have taken is guessed, and said to be."""

    async def load(dispatcher: Dispatcher) -> None:
        for number in range(20):
            try:
                dispatcher.submit(call(after(1.0), f"p{number}"))
            except Backpressure:
                pass

    trace = await run(tmp_path / "trace", load, DispatcherConfig(capacity=10, max_in_flight=2, reserve=0.0))
    found = what_if(trace, replace(trace.config, capacity=20))
    assert found.outcomes_before == {"succeeded": 10, "refused": 10}
    assert found.outcomes_after == {"succeeded": 20}
    assert (found.attempts, found.guessed) == (20, 10)
    assert found.all.after.p99 == pytest.approx(9.0, abs=0.01)


@pytest.mark.looptime(start=START)
async def test_who_runs_waits_for_room(tmp_path: Path) -> None:
    """`run` tries again by itself: its call comes once, when it was first tried."""

    async def load(dispatcher: Dispatcher) -> None:
        await asyncio.gather(*(dispatcher.run(call(after(1.0), f"p{number}")) for number in range(8)))

    trace = await run(tmp_path / "trace", load, DispatcherConfig(capacity=2, max_in_flight=2, reserve=0.0))
    more = what_if(trace, replace(trace.config, capacity=8, max_in_flight=8))
    assert (more.outcomes_after, more.guessed) == ({"succeeded": 8}, 0)
    assert more.all.after.p99 == pytest.approx(0.0, abs=0.01)
    same = what_if(trace, trace.config)
    assert same.outcomes_after == {"succeeded": 8}


@pytest.mark.looptime(start=START)
async def test_the_table_for_people(tmp_path: Path) -> None:
    trace = await run(tmp_path / "trace", bursts, BASE)
    lines = what_if(trace, replace(trace.config, max_in_flight=16)).lines()
    assert lines[1].startswith("all calls")
    assert any(line.startswith("level system-cluster-critical") for line in lines)
    assert any(line.startswith("flow a") for line in lines)
    assert "succeeded" in lines[-2]


@pytest.mark.looptime(start=START)
async def test_bad_arguments(tmp_path: Path) -> None:
    trace = await run(tmp_path / "trace", bursts, BASE)
    with pytest.raises(ConfigurationError, match="must be a DispatcherConfig"):
        what_if(trace, None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="read_trace"):
        what_if("trace", BASE)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="read_trace"):
        replay("trace")  # type: ignore[arg-type]


OTHERS: list[dict[str, Any]] = [
    {},
    {"max_in_flight": 1, "capacity": 4},
    {"max_in_flight": 50, "capacity": 1_000, "max_joined": 1_000, "flows": {}, "lane_capacity": 100},
    {"timeout": 3.0, "attempt_timeout": 0.5, "rate": RateLimit(5.0, 1)},
]


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(5, 80), other=st.sampled_from(OTHERS))
@settings(max_examples=max(10, settings().max_examples // 4))
def test_any_trace_under_any_configuration(seed: int, steps: int, other: dict[str, Any]) -> None:
    """Random programs, with all that can happen in them: the simulation ends, and every call with an outcome."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace")
        with recorded("tests.test_laws_shell", path, Kept()):
            play(Program(Random(seed)), steps)
        trace = read_trace(path)
    found = what_if(trace, replace(trace.config, **other))
    assert "unfinished" not in found.outcomes_after
    calls, refused = found.all.after.calls, found.outcomes_after.get("refused", 0)
    tried = [step for step in trace.steps if step.name == "submit"]
    assert calls + refused >= len(tried)
    assert sum(found.outcomes_after.values()) == calls + refused
