"""Faults that are planted in the server or the core are found, under the name of the rule that they break."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from asyncdispatch._core.short import DispatchCore
from asyncdispatch.simulation import SCENARIOS, Run, Server, Simulation, checking, shrink, simulate, story
from asyncdispatch.simulation.calls import Status
from asyncdispatch.simulation.running import THE_CORE
from tests.simulation import planted

CALLS = 1_500


def broken_rules(run: Run) -> set[str]:
    return {violation.rule for violation in run.violations}


@pytest.mark.parametrize(
    ("fault", "scenario", "rule"),
    [
        (planted.ForgetsVersions, "rivals", "fenced"),
        (planted.BindsAgain, "rivals", "once"),
        (planted.CreatesAgain, "rivals", "once"),
        (planted.ReadsFromTheCache, "churn", "legal"),
        (planted.LosesWrites, "steady", "success has its effect"),
        (planted.GoesBackInTime, "steady", "legal"),
    ],
)
def test_a_fault_of_the_server_is_found(fault: type[Server], scenario: str, rule: str) -> None:
    run = simulate(SCENARIOS[scenario].but(calls=CALLS), 1, partial(Simulation, server=fault))
    assert rule in broken_rules(run)


@pytest.mark.parametrize(
    ("fault", "scenario", "rule"),
    [
        (planted.TellsTwice, "steady", "one outcome"),
        (planted.TellsNobody, "steady", "one outcome"),
        (planted.NeverDoubts, "doubt", "no success, no effect"),
        (planted.KeepsNoLanes, "steady", "one in flight"),
        (planted.ForgetsContexts, "churn", "nothing of an ended context"),
        (planted.PassesInLine, "tight", "in line"),
        (planted.TellsEachItsOwn, "churn", "joined"),
        (planted.NamesNobody, "churn", "superseded"),
        (planted.ForgetsOwnWrites, "churn", "own writes are seen"),
    ],
)
def test_a_fault_of_the_core_is_found(fault: type[DispatchCore], scenario: str, rule: str) -> None:
    """By rules that know nothing of the core, with its own invariants left out."""
    for seed in (1, 2, 3):
        wanted = SCENARIOS[scenario].but(calls=CALLS, check_every=0, notes=120)
        run = simulate(wanted, seed, partial(Simulation, core=fault))
        if rule in broken_rules(run):
            return
    pytest.fail(f"not found; only {broken_rules(run)}")


@pytest.mark.parametrize("server", [Server, planted.LosesWrites, planted.BindsAgain])
def test_one_look_at_a_plain_call_says_what_all_rules_say(
    server: type[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker looks at most calls once instead of rule by rule: the findings and the counts are the same."""

    def rule_by_rule(checker: Any) -> None:
        for record in checker.history.calls:
            if record.lead is not None:
                checker.joiners[record.lead].append(record)
        for record in checker.history.calls:
            checker._call(record)

    run = simulate(SCENARIOS["churn"].but(calls=CALLS), 1, partial(Simulation, server=server))
    assert (run.violations != []) == (server is not Server)
    monkeypatch.setattr(checking._Checker, "_calls", rule_by_rule)
    again = checking.check(run.history, run.scenario)
    assert again.checks == run.checks
    assert sorted(again.violations) == sorted(run.violations)


def test_a_merge_that_forgets_a_condition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: Status, pending: Any) -> Status:
        return Status(self.fields, target=self.target, version=self.version)

    monkeypatch.setattr(Status, "merge", forgets)
    run = simulate(SCENARIOS["churn"].but(calls=CALLS, unschedulable=0.5), 1)
    assert broken_rules(run) == {"merged"}


def test_what_the_core_objects_to_is_a_violation() -> None:
    """Its invariants are looked at now and then, and whatever it raises is told with the seed."""

    class Miscounts(DispatchCore):
        def close(self, reason: str, now: int) -> None: ...

        def _give_seat(self, entry: Any) -> None:
            super()._give_seat(entry)
            if entry.ticket % 100 == 0:
                self.seats.taken += 1

    run = simulate(SCENARIOS["steady"].but(calls=1_000, check_every=100), 1, partial(Simulation, core=Miscounts))
    assert broken_rules(run) == {THE_CORE}
    assert "L3" in run.violations[0].what


def test_a_failing_run_is_made_small_and_told() -> None:
    """The same rule is broken by far fewer calls, and the story of the object says how."""
    make = partial(Simulation, server=planted.BindsAgain)
    run = simulate(SCENARIOS["rivals"].but(calls=CALLS), 1, make)
    assert run.violations
    small = shrink(run, make, tries=80)
    assert small.violations[0].rule == run.violations[0].rule
    assert small.calls < run.calls / 5
    assert len(small.scenario.faults) < len(run.scenario.faults)
    told = story(small.history, small.violations[0].lane)
    assert sum("bind" in line and "is sent" in line for line in told) >= 2
    again = simulate(small.scenario, small.seed, make)
    assert small.violations[0] in again.violations
