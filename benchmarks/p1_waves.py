"""P1: submit → complete with a thousand calls pending, and P2: a burst of a hundred thousand."""

from __future__ import annotations

from benchmarks.harness import Figure, Goal, Rounds, Sample, Scale, in_loop, interleave, micro
from benchmarks.peers import (
    aiojobs_scheduler,
    aiometer_run_all,
    dispatcher,
    queue_and_workers,
    tasks_and_semaphore,
)
from benchmarks.workloads import ONE, SHAPES, Shape, Work, bare, yields


def p1(scale: Scale) -> list[Figure]:
    """Calls that yield once; each shape, made before and inside the clock; bare calls beside them."""
    candidates: dict[str, Sample] = {}
    for shape in SHAPES:
        rows = shape.rows(scale.pending)
        candidates[f"PQ+W {shape}"] = in_loop(queue_and_workers, Work(yields, shape, rows, scale.waves))
        for inside in (False, True):
            work = Work(yields, shape, rows, scale.waves, inside=inside)
            candidates[f"{shape} {_made(inside)}"] = in_loop(dispatcher, work)
    no_op = Work(bare, ONE, ONE.rows(scale.pending), scale.waves)
    candidates["PQ+W bare"] = in_loop(queue_and_workers, no_op)
    candidates["bare"] = in_loop(dispatcher, no_op)
    rounds = interleave(candidates, scale.rounds)
    what = f"yields once, {scale.pending} pending"
    figures = []
    for shape in SHAPES:
        for inside in (False, True):
            goal = None
            if shape == ONE:
                goal = Goal(1.65 if inside else 1.5)
            elif inside:
                goal = Goal(2.0)
            figures.append(
                _against(rounds, f"{what}, {shape}, made {_made(inside)}", f"{shape} {_made(inside)}", shape, goal)
            )
    note = f"{micro(rounds.median('bare'))} against {micro(rounds.median('PQ+W bare'))}"
    label = f"bare no-op, {scale.pending} pending, 1x1, made inside"
    figures.append(Figure(label, "ratio", rounds.ratio("bare", "PQ+W bare"), None, note))
    return figures


def p2(scale: Scale) -> list[Figure]:
    """All at once, made inside the clock, against all peers."""
    candidates: dict[str, Sample] = {}
    for shape in SHAPES:
        work = Work(yields, shape, shape.rows(scale.burst))
        candidates[f"PQ+W {shape}"] = in_loop(queue_and_workers, work)
        candidates[str(shape)] = in_loop(dispatcher, work)
    work = Work(yields, ONE, ONE.rows(scale.burst))
    peers = {
        "create_task+Semaphore": (tasks_and_semaphore, Goal(0.4)),
        "aiojobs": (aiojobs_scheduler, Goal(0.55)),
        "aiometer": (aiometer_run_all, Goal(0.3)),
    }
    for name, (peer, _) in peers.items():
        candidates[name] = in_loop(peer, work)
    rounds = interleave(candidates, min(scale.rounds, 5), seconds=60)
    what = f"burst of {scale.burst}"
    figures = [
        _against(rounds, f"{what}, {shape}", str(shape), shape, Goal(1.6 if shape == ONE else 1.8)) for shape in SHAPES
    ]
    for name, (_, goal) in peers.items():
        note = f"{micro(rounds.median(str(ONE)))} against {micro(rounds.median(name))}"
        figures.append(Figure(f"{what}, 1x1, to {name}", "ratio", rounds.ratio(str(ONE), name), goal, note))
    return figures


def _made(inside: bool) -> str:
    return "inside" if inside else "before"


def _against(rounds: Rounds, what: str, name: str, shape: Shape, goal: Goal | None) -> Figure:
    peer = f"PQ+W {shape}"
    note = f"{micro(rounds.median(name))} against {micro(rounds.median(peer))}, which drifted {rounds.drift(peer):.2f}x"
    return Figure(f"{what}, to PQ+W", "ratio", rounds.ratio(name, peer), goal, note)
