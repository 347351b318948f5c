"""P3: calls that take real time: what the queue adds to them, and how busy the workers are kept."""

from __future__ import annotations

import time

from benchmarks.harness import Figure, Goal, Scale, in_loop, interleave, micro
from benchmarks.peers import dispatcher, queue_and_workers
from benchmarks.workloads import ONE, Work, sleeps_1_ms, sleeps_50_ms

FEW, MANY = 16, 64
LATENCY = 0.05


def p3(scale: Scale) -> list[Figure]:
    short = Work(sleeps_1_ms, ONE, ONE.rows(scale.sleeps * MANY), at_once=MANY, clock=time.perf_counter)
    long = Work(sleeps_50_ms, ONE, ONE.rows(max(1, scale.sleeps // 5) * FEW), at_once=FEW, clock=time.perf_counter)
    rounds = interleave(
        {
            "PQ+W short": in_loop(queue_and_workers, short),
            "short": in_loop(dispatcher, short),
            "PQ+W long": in_loop(queue_and_workers, long),
            "long": in_loop(dispatcher, long),
        },
        min(scale.rounds, 5),
    )
    wall = f"{micro(rounds.median('short'))} of wall time a call against {micro(rounds.median('PQ+W short'))}"
    drift = f"which drifted {rounds.drift('PQ+W short'):.2f}x"
    share = {name: LATENCY / FEW / rounds.median(name) for name in ("long", "PQ+W long")}
    note = f"PQ+W {share['PQ+W long']:.3f}"
    return [
        Figure(
            f"1 ms calls, {MANY} at once, wall time, to PQ+W",
            "ratio",
            rounds.ratio("short", "PQ+W short"),
            Goal(1.08),
            f"{wall}, {drift}",
        ),
        Figure(f"50 ms calls, {FEW} at once, of workers/latency", "share", share["long"], Goal(0.95, least=True), note),
    ]
