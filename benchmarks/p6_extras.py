"""P6: what a deadline costs that does not fire, and a retry that is not needed. Metrics come with a later version.

Both are always on, so each is measured by its absence: the same core, driven without an event loop, with the part
taken out, in the same interleaved rounds. What stands in for the deadlines costs two empty method calls where they did
work; those are measured too and added to the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenacity import stop_after_attempt, wait_exponential_jitter

from asyncdispatch import RetryPolicy
from asyncdispatch._core.machine import DispatchCore
from asyncdispatch._core.states import NEVER, SECOND
from benchmarks.harness import MICRO, Figure, Goal, Rounds, Scale, interleave
from benchmarks.workloads import ONE, Row, Work, config_for, yields


class NoDeadlines:
    """Stands in for the table of deadlines."""

    due = NEVER

    def add(self, entry: object) -> None:
        pass

    def remove(self, entry: object) -> None:
        pass

    def trim(self) -> None:
        pass


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


VARIANTS = {
    "all": Variant({}, {}),
    "no deadlines": Variant({}, {"deadlines": NoDeadlines()}),
    "own time-outs": Variant({}, {}, timeouts=True),
    "own time-outs, no deadlines": Variant({}, {"deadlines": NoDeadlines()}, timeouts=True),
    "retry given": Variant({"retry": RetryPolicy(wait=wait_exponential_jitter(), stop=stop_after_attempt(5))}, {}),
    "no retry": Variant({"breaker": None}, {"budget": NoBudget()}),
}


def p6(scale: Scale) -> list[Figure]:
    rows = ONE.rows(scale.pending)
    rounds = interleave(
        {name: _sample(variant, rows, scale.waves) for name, variant in VARIANTS.items()}, scale.core_rounds
    )
    empty = _empty_call()
    deadline, retry = "a deadline that does not fire", "a retry that is not needed"
    return [
        _extra(rounds, f"{deadline}, the config's", "all", "no deadlines", 2 * empty, Goal(0.4)),
        _extra(
            rounds, f"{deadline}, the call's own", "own time-outs", "own time-outs, no deadlines", 2 * empty, Goal(0.4)
        ),
        _extra(rounds, f"{retry}, default policy and breaker", "all", "no retry", 0.0, Goal(0.1)),
        _extra(rounds, f"{retry}, tenacity's wait and stop", "retry given", "no retry", 0.0, Goal(0.1)),
    ]


def _extra(rounds: Rounds, what: str, name: str, without: str, stand_in: float, goal: Goal) -> Figure:
    extra = (rounds.difference(name, without) + stand_in) * MICRO
    core = f"of {rounds.median(name) * MICRO:.2f} us in the core, which drifted {rounds.drift(name):.2f}x"
    return Figure(what, "us", extra, goal, core)


def _sample(variant: Variant, rows: list[Row], waves: int) -> Callable[[], float]:
    def sample() -> float:
        core = DispatchCore(config_for(len(rows), **variant.config))
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
    now, submit, following, succeed = SECOND, core.submit, core.next, core.succeed
    began = time.process_time()
    for _ in range(waves):
        for call in calls:
            now += 1_000
            submit(call, now)
        while (entry := following(now)) is not None:
            now += 1_000
            succeed(entry, None, now)
            core.settled.clear()
    return (time.process_time() - began) / (waves * len(calls))


def _empty_call() -> float:
    """CPU seconds of one method call that does nothing, above those of an empty loop."""
    count, add = 100_000, NoDeadlines().add
    began = time.process_time()
    for _ in range(count):
        pass
    middle = time.process_time()
    for _ in range(count):
        add(None)
    return max(0.0, (time.process_time() - middle) - (middle - began)) / count
