"""P4: how the cost of a call grows with what is pending: filled to the brim, then drained, through the dispatcher.

The near end repeats waves of a thousand until as many calls as in a burst have passed; the far end is one fill of a
million. Calls yield once and are made inside the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from benchmarks.harness import Figure, Goal, Rounds, Sample, Scale, in_loop, interleave, micro
from benchmarks.peers import dispatcher, queue_and_workers
from benchmarks.workloads import EIGHT_LEVELS, ONE, Shape, Work, forget_objects, yields

Run = Callable[[Work], Coroutine[None, None, float]]


def p4(scale: Scale) -> list[Figure]:
    candidates: dict[str, Sample] = {}
    for name, run, shape in (
        ("1 level", dispatcher, ONE),
        ("8 levels", dispatcher, EIGHT_LEVELS),
        ("PQ+W, 8 levels", queue_and_workers, EIGHT_LEVELS),
    ):
        candidates |= _ends(name, run, shape, scale)
    rounds = interleave(candidates, scale.growth_rounds, seconds=60, least=2)
    what = f"{scale.pending} to {scale.many} pending"
    figures = [
        _growth(rounds, f"{what}, 1 level", "1 level", Goal(1.3)),
        _growth(rounds, f"{what}, 8 levels", "8 levels", Goal(1.3)),
        _growth(rounds, f"{what}, 8 levels, PQ+W itself", "PQ+W, 8 levels", None),
    ]
    forget_objects()
    return figures


def _ends(name: str, run: Run, shape: Shape, scale: Scale) -> dict[str, Sample]:
    waves = max(1, scale.burst // scale.pending)
    return {
        f"{name}, near": in_loop(run, Work(yields, shape, shape.rows(scale.pending), waves)),
        f"{name}, far": in_loop(run, Work(yields, shape, shape.rows(scale.many))),
    }


def _growth(rounds: Rounds, what: str, name: str, goal: Goal | None) -> Figure:
    near, far = f"{name}, near", f"{name}, far"
    note = f"{micro(rounds.median(near))} to {micro(rounds.median(far))}, {rounds.count} rounds"
    return Figure(what, "ratio", rounds.ratio(far, near), goal, note)
