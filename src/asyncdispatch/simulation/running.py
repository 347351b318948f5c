"""Runs from their seeds: one with its findings, many over processes, and a failing one made small."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice
from multiprocessing import get_context
from typing import Any

from asyncdispatch.simulation.checking import check
from asyncdispatch.simulation.history import History
from asyncdispatch.simulation.rules import Violation
from asyncdispatch.simulation.scenario import FAULTS, SCENARIOS, TROUBLES, Scenario
from asyncdispatch.simulation.world import Simulation

__all__ = ["Report", "Run", "play", "play_many", "shrink", "simulate"]

THE_CORE = "the core's own"
"""The rule of what the core itself finds: an invariant that does not hold, or an error of its own."""

Make = Callable[[Scenario, int], Simulation]


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what happened in it, in numbers, and what was found."""

    scenario: Scenario
    seed: int
    history: History
    checks: Counter[str]
    violations: list[Violation]
    cpu: float
    """Seconds of CPU, the checks included."""

    @property
    def calls(self) -> int:
        return len(self.history.calls)


@dataclass(slots=True)
class Report:
    """Many runs in numbers."""

    runs: int = 0
    calls: int = 0
    virtual: float = 0.0
    cpu: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    failing: list[tuple[str, int, int, Violation]] = field(default_factory=list)
    """Runs that broke a rule: scenario, seed, calls, and what was found first."""

    def add(self, other: Report) -> None:
        self.runs += other.runs
        self.calls += other.calls
        self.virtual += other.virtual
        self.cpu += other.cpu
        self.faults += other.faults
        self.outcomes += other.outcomes
        self.checks += other.checks
        self.failing += other.failing


def simulate(scenario: Scenario, seed: int, make: Make = Simulation) -> Run:
    """Play one run to its end and check its history. `make` may make a `Simulation` with a fault planted in it.

    The same scenario and seed give the same history, in any process. What the core itself objects to is a violation.
    """
    began = time.process_time()
    simulation = make(scenario, seed)
    broken: list[Violation] = []
    try:
        simulation.run()
    except Exception as error:  # whatever it raises, it is a finding, with the seed that it came from
        broken.append(Violation(THE_CORE, f"{type(error).__name__}: {error}", "", simulation.clock.now))
    found = check(simulation.history, scenario) if not broken else None
    checks = found.checks if found is not None else Counter[str]()
    violations = found.violations if found is not None else broken
    return Run(scenario, seed, simulation.history, checks, violations, time.process_time() - began)


def play(name: str, seed: int, calls: int) -> Report:
    """One run of a named scenario, in numbers. For a process of its own: it does without the garbage collector."""
    enabled = gc.isenabled()
    gc.disable()  # a history only grows, and is gone in one piece
    try:
        run = simulate(SCENARIOS[name].but(calls=calls), seed)
    finally:
        if enabled:
            gc.enable()
    history = run.history
    virtual = (history.ended - history.began) / 1e9
    outcomes = Counter(record.how or "crashed" for record in history.calls)
    first = [(name, seed, calls, run.violations[0])] if run.violations else []
    report = Report(1, run.calls, virtual, run.cpu, history.faults, outcomes, run.checks, first)
    history.forget()
    del run, history
    gc.collect()
    return report


def play_many(
    calls: int, names: Sequence[str], *, seed: int = 1, processes: int = 2, each: int | None = None
) -> Iterator[Report]:
    """Runs of the named scenarios in turn, seed after seed, until `calls` are accepted; their reports as they end."""
    plan = islice(_plan(names, seed, each), 1_000_000)
    if processes == 1:
        left = calls
        while left > 0:
            name, number, most = next(plan)
            report = play(name, number, min(most, left))
            left -= report.calls
            yield report
        return
    # What is there before the first run is not looked at again after each.
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=gc.freeze) as pool:
        waiting: list[Any] = []
        left = calls
        while left > 0 or waiting:
            while left > 0 and len(waiting) < processes * 2:
                name, number, most = next(plan)
                waiting.append(pool.submit(play, name, number, min(most, left)))
                left -= min(most, left)
            yield waiting.pop(0).result()


def _plan(names: Sequence[str], seed: int, each: int | None) -> Iterator[tuple[str, int, int]]:
    for number in count():
        name = names[number % len(names)]
        yield name, seed + number, each or SCENARIOS[name].calls


# -- making it small --------------------------------------------------------------------------------------------------

OTHER_SEEDS = 2


def shrink(run: Run, make: Make = Simulation, *, tries: int = 100) -> Run:
    """A smaller run that breaks the same rule: fewer calls, objects, replicas, faults and troubles, while that lasts.

    Greedy, and by running again: with other numbers the dice fall otherwise, so some other seeds are tried as well.
    `tries` bounds how many smaller ones are tried.
    """
    rule = run.violations[0].rule
    for reduce in _REDUCTIONS:
        while tries > 0 and (changes := reduce(run)) is not None:
            tries -= 1
            smaller = _breaks(run.scenario.but(**changes), run.seed, rule, make)
            if smaller is None or smaller.calls > run.calls:
                break
            run = smaller
    return run


def _breaks(scenario: Scenario, seed: int, rule: str, make: Make) -> Run | None:
    for other in range(seed, seed + 1 + OTHER_SEEDS):
        run = simulate(scenario, other, make)
        same = [violation for violation in run.violations if violation.rule == rule]
        if same:
            run.violations[:] = same
            return run
    return None


Changes = dict[str, Any] | None
Reduction = Callable[[Run], Changes]


def _prefix(run: Run) -> Changes:
    """No more calls than were accepted when it was seen."""
    at = run.violations[0].at
    until = sum(record.accepted <= at for record in run.history.calls)
    return {"calls": until} if 0 < until < run.scenario.calls else None


def _divide(name: str, by: int) -> Reduction:
    def reduce(run: Run) -> Changes:
        value = getattr(run.scenario, name)
        return {name: max(1, value // by)} if value > 1 else None

    return reduce


def _less(name: str) -> Reduction:
    def reduce(run: Run) -> Changes:
        value = getattr(run.scenario, name)
        return {name: value - 1} if value > 1 else None

    return reduce


def _nothing(name: str, nothing: Any) -> Reduction:
    def reduce(run: Run) -> Changes:
        return {name: nothing} if getattr(run.scenario, name) else None

    return reduce


def _without(table: str, name: str) -> Reduction:
    def reduce(run: Run) -> Changes:
        now = getattr(run.scenario, table)
        return {table: {each: value for each, value in now.items() if each != name}} if name in now else None

    return reduce


_MAY_BE_NONE = (
    *("crash_every", "pause_every", "node_loss_every"),
    *("claims", "preemptions", "reads", "cancels", "hurried", "unschedulable"),
)
_REDUCTIONS: tuple[Reduction, ...] = (
    _prefix,
    _nothing("troubles", {}),
    _nothing("faults", {}),
    *(_divide(name, by) for by in (4, 2) for name in ("calls", "pods", "notes")),
    *(_without("troubles", name) for name in TROUBLES),
    *(_without("faults", name) for name in FAULTS),
    *(_nothing(name, 0.0) for name in _MAY_BE_NONE),
    *(_less("replicas"), _divide("nodes", 4), _divide("wave", 2), _prefix, _divide("calls", 2), _divide("pods", 2)),
)
"""What could be less, the most promising first; each is repeated while it helps."""
