"""P6: what a deadline costs that does not fire, a retry that is not needed, and metrics.

Deadlines and retries are always on. A deadline is measured by what setting and clearing it costs; a retry by its
absence, and metrics by their presence: the same core, driven without an event loop, with and without the part, in the
same interleaved rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from tenacity import stop_after_attempt, wait_exponential_jitter

from asyncdispatch import RetryPolicy
from asyncdispatch._core.metering import Meter
from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import SECOND
from benchmarks.harness import MICRO, Figure, Goal, Rounds, Scale, interleave
from benchmarks.workloads import ONE, Row, Work, config_for, yields


class NoBudget:
    """Stands in for the retry budget: full, so that nothing is to be earned, and nobody waits for it."""

    full = True
    waiting = ()

    def earn(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Variant:
    """A core: its config, what is taken out of it, and the time-outs that its calls carry."""

    config: dict[str, Any]
    without: dict[str, object]
    timeouts: bool = False
    metered: bool = False


VARIANTS = {
    "all": Variant({}, {}),
    "own time-outs": Variant({}, {}, timeouts=True),
    "metrics": Variant({}, {}, metered=True),
    "retry given": Variant({"retry": RetryPolicy(wait=wait_exponential_jitter(), stop=stop_after_attempt(5))}, {}),
    "no retry": Variant({"breaker": None}, {"budget": NoBudget()}),
}


def p6(scale: Scale) -> list[Figure]:
    rows = ONE.rows(scale.pending)
    rounds = interleave(
        {name: _sample(variant, rows, scale.waves) for name, variant in VARIANTS.items()}, scale.core_rounds
    )
    retry = "a retry that is not needed"
    return [
        Figure("a deadline that does not fire, set and cleared", "us", _deadline(scale) * MICRO, Goal(0.4)),
        _extra(rounds, "a deadline of the call's own, against the config's", "own time-outs", "all", Goal(0.4)),
        _extra(rounds, "metrics: attempt and wait of each call", "metrics", "all", Goal(0.3)),
        _extra(rounds, f"{retry}, default policy and breaker", "all", "no retry", Goal(0.1)),
        _extra(rounds, f"{retry}, tenacity's wait and stop", "retry given", "no retry", Goal(0.1)),
    ]


def _extra(rounds: Rounds, what: str, name: str, without: str, goal: Goal) -> Figure:
    extra = rounds.difference(name, without) * MICRO
    core = f"of {rounds.median(name) * MICRO:.2f} us in the core, which drifted {rounds.drift(name):.2f}x"
    return Figure(what, "us", extra, goal, core)


def _sample(variant: Variant, rows: list[Row], waves: int) -> Callable[[], float]:
    def sample() -> float:
        config = config_for(len(rows), **variant.config)
        meter = Meter(len(config.levels.levels), tuple(config.call_types), 100) if variant.metered else None
        core = DispatchCore(config, meter=meter)
        for name, part in variant.without.items():
            setattr(core, name, part)
        work = Work(yields, ONE, rows)
        calls = [work.call(row) for row in rows]
        if variant.timeouts:
            for index, call in enumerate(calls):
                call.__dict__["timeout"] = 30.0 + index % 60  # as if it had been made with it
        return drive(core, calls, waves)

    return sample


def drive(core: DispatchCore, calls: list[Any], waves: int) -> float:
    """Fill and drain the core, without loop or workers. CPU seconds per call."""
    now, submit, turn = SECOND, core.submit, core.turn
    began = time.process_time()
    for _ in range(waves):
        for call in calls:
            now += 1_000
            submit(call, now)
        entry = core.next(now)
        while entry is not None:
            now += 1_000
            following = turn(entry, None, now)
            if following is None:
                core.succeed(entry, None, now)
                core.settled.clear()
                following = core.next(now)
            entry = following
    return (time.process_time() - began) / (waves * len(calls))


def _deadline(scale: Scale) -> float:
    """CPU seconds of setting a deadline in the table and clearing it, above those of an empty loop."""
    core = DispatchCore(config_for(len(ONE.rows(scale.pending))))
    work = Work(yields, ONE, ONE.rows(scale.pending))
    entries = [core.submit(work.call(row), SECOND) for row in work.rows]
    add, remove = core.deadlines.add, core.deadlines.remove
    taken = []
    for _ in range(scale.core_rounds):
        began = time.process_time()
        for _ in entries:
            pass
        middle = time.process_time()
        for entry in entries:
            remove(entry)
        for entry in entries:
            add(entry)
        taken.append((time.process_time() - middle - 2 * (middle - began)) / len(entries))
    return max(0.0, median(taken))
