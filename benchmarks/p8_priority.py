"""P8: how long a high-priority call takes behind a hundred thousand low ones, in virtual time.

Sixteen seats, all busy with low calls that end at different moments; a high call comes every fifty service times.
"""

from __future__ import annotations

import random

from asyncdispatch import FunctionCall, ObjectRef
from benchmarks.harness import Figure, Goal, Scale
from benchmarks.virtual import SERVICE, Arrival, latencies, percentile
from benchmarks.workloads import CALL_TYPE, bare, config_for, objects

SEATS = 16
HIGH = 1_000_000


def p8(scale: Scale) -> list[Figure]:
    took = latencies(config_for(scale.low, SEATS), _arrivals(scale.low))
    high = took["high"]
    note = f"{len(high)} high calls; worst {max(high):.2f}; low ones P99 {percentile(took['low'], 0.99):.0f}"
    what = f"P99 of a high call behind {scale.low} low ones, submit to completion, {SEATS} at once"
    return [Figure(what, "service_times", percentile(high, 0.99), Goal(3), note)]


def _arrivals(low: int) -> list[Arrival]:
    rng = random.Random(8)
    start = SERVICE
    arrivals = [
        (start + index * SERVICE // SEATS if index < SEATS else start + SERVICE, _call(ref, 0, "low"))
        for index, ref in enumerate(objects(low))
    ]
    busy = low * SERVICE // SEATS
    highs = max(1, busy // (50 * SERVICE))
    for index in range(highs):
        when = start + 2 * SERVICE + rng.randrange(max(1, busy))
        arrivals.append((when, _call(ObjectRef("v1", "Pod", "urgent", f"pod-{index}"), HIGH, "high")))
    return sorted(arrivals, key=lambda arrival: arrival[0])


def _call(ref: ObjectRef, priority: int, flow: str) -> FunctionCall[int]:
    return FunctionCall(bare, call_type=CALL_TYPE, target=ref, priority=priority, flow=flow)
