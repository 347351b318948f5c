"""Runs of the named scenarios: no rule is broken, everything happens that shall, and one seed is one history."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from weakref import ref

import pytest

from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.simulation import (
    FAULTS,
    SCENARIOS,
    TROUBLES,
    History,
    Scenario,
    Simulation,
    play_many,
    simulate,
    story,
)
from asyncdispatch.simulation.calls import Note, SimulatedCall

ROOT = Path(__file__).parents[2]


def digest() -> str:
    """One hash of a run of each scenario: every line of every history."""
    whole = hashlib.sha256()
    for name in SCENARIOS:
        history = simulate(SCENARIOS[name].but(calls=120), 7).history
        whole.update("\n".join(story(history, most=1 << 30)).encode())
    return whole.hexdigest()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_breaks_no_rule(name: str) -> None:
    run = simulate(SCENARIOS[name].but(calls=1_200, check_every=500), 11)
    assert run.violations == []
    assert run.calls >= 1_200
    untold = [record for record in run.history.calls if not record.tellings]
    assert all(record.replica in run.history.crashed for record in untold)


def everything() -> History:
    """Each fault and trouble is likely, for a while."""
    faults = {**dict.fromkeys(FAULTS, 0.02), "quota": 0.1}
    troubles = dict.fromkeys(TROUBLES, (4.0, 0.7))
    scenario = Scenario(
        calls=3_000,
        replicas=3,
        notes=20,
        claims=0.5,
        reads=0.5,
        cancels=0.1,
        stubborn=0.6,
        preemptions=0.2,
        faults=faults,
        troubles=troubles,
        crash_every=8.0,
        pause_every=6.0,
        pause=2.0,
        node_loss_every=2.0,
        lease_duration=1.5,
        renew_deadline=1.0,
        renew_every=0.3,
    )
    run = simulate(scenario, 9)
    assert run.violations == []
    return run.history


def test_everything_that_can_happen_happens() -> None:
    history = everything()
    assert set(history.faults) >= {*FAULTS, *TROUBLES, "crash", "pause", "node lost", "stalled"}
    assert {record.how for record in history.calls} >= {"succeeded", "failed", "cancelled", "expired", "overwritten"}
    kinds = Counter(record.call.call_type for record in history.calls)
    assert set(kinds) == {"note", "pod_binding", "pod_status_patch", "create", "read", "eviction"}
    assert len(history.terms) > 1
    assert any(record.lead is not None for record in history.calls)
    assert any(record.late for record in history.calls)
    assert any(record.ambiguous for record in history.calls)


def test_one_seed_is_one_history() -> None:
    """Twice in one process, and in another with other hashes (law L16)."""
    first = digest()
    assert digest() == first
    result = subprocess.run(
        [sys.executable, "-c", "from tests.simulation.test_runs import digest; print(digest())"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == first


@pytest.mark.parametrize("name", ["steady", "leaders"])
def test_what_has_been_played_is_gone_at_once(name: str) -> None:
    """`play` does without the garbage collector: what a run leaves to it is looked at after each run."""
    simulation = Simulation(SCENARIOS[name].but(calls=500), 5)
    history = simulation.run()
    whole, server, scheduler = ref(simulation), ref(simulation.server), ref(simulation.schedulers[0])
    succeeded = [record for record in history.calls if record.how == "succeeded"]
    assert succeeded
    assert all(record.entry is None for record in succeeded)
    records = [ref(record) for record in history.calls]
    gc.disable()
    try:
        del simulation, succeeded
        assert (whole(), server(), scheduler()) == (None, None, None)
        history.forget()
        assert sum(record() is not None for record in records) < len(records) * 0.05  # who have joined each other
    finally:
        gc.enable()


def test_another_seed_is_another_history() -> None:
    scenario = SCENARIOS["steady"].but(calls=200)
    assert story(simulate(scenario, 1).history) != story(simulate(scenario, 2).history)


@pytest.mark.parametrize(("name", "seed", "calls"), [("churn", 67, 7_400)])
def test_a_seed_that_failed_once(name: str, seed: int, calls: int) -> None:
    """Each found a fault of the core, which has a test of its own there."""
    assert simulate(SCENARIOS[name].but(calls=calls), seed).violations == []


def test_a_note_is_what_the_base_class_would_have_made() -> None:
    """It is made the short way, and is a common call all the same."""
    ref = ObjectRef("v1", "Event", "ns", "n")
    made = NoteByTheBook(target=ref, flow="audit", priority=7)
    assert vars(Note(3, ref, "audit", 7)) == {**vars(made), "fields": {"note": 3}}
    assert made._common


class NoteByTheBook(SimulatedCall):
    call_type = "note"


def test_many_runs_take_the_scenarios_in_turn() -> None:
    reports = list(play_many(1_500, ["steady", "churn"], processes=1, each=500))
    assert len(reports) in (2, 3)  # a burst may go beyond the 500
    assert sum(report.calls for report in reports) >= 1_500
    assert all(report.failing == [] and report.cpu > 0 and report.virtual > 0 for report in reports)


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"calls": 0}, "Scenario.calls"),
        ({"claims": 1.5}, "Scenario.claims"),
        ({"latency": 0.0}, "Scenario.latency"),
        ({"faults": {"lots": 0.1}}, "Scenario.faults"),
        ({"faults": {"lost": 0.6, "slow": 0.6}}, "Scenario.faults"),
        ({"troubles": {"war": (1.0, 1.0)}}, "Scenario.troubles"),
        ({"troubles": {"storm": 3.0}}, "Scenario.troubles['storm']"),
        ({"renew_deadline": 9.0}, "Scenario.renew_deadline"),
        ({"config": None}, "Scenario.config"),
        ({"cats": 3}, "Scenario"),
    ],
)
def test_a_scenario_that_cant_be_meant_is_refused(changes: dict[str, object], label: str) -> None:
    with pytest.raises(ConfigurationError, match=label.replace("[", r"\[")):
        Scenario().but(**changes)
