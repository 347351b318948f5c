"""P9: how long a light flow's call takes beside a flow that floods, in virtual time.

One flow submits all of its calls at once; nine others submit one call every thirty service times or so, at random.
One seat, so that a service time is what the server takes for one call.
"""

from __future__ import annotations

import random

from asyncdispatch import FunctionCall, ObjectRef
from benchmarks.harness import Figure, Goal, Scale
from benchmarks.virtual import SERVICE, Arrival, latencies, percentile
from benchmarks.workloads import CALL_TYPE, bare, config_for, objects

FLOWS = 10
EVERY = 30


def p9(scale: Scale) -> list[Figure]:
    took = latencies(config_for(scale.flood, 1), _arrivals(scale.flood))
    light = [value for flow, values in took.items() if flow != "flood" for value in values]
    note = f"{len(light)} light calls; worst {max(light):.2f}; flood P99 {percentile(took['flood'], 0.99):.0f}"
    what = f"P99 of {FLOWS - 1} light flows beside a flood of {scale.flood}, submit to completion"
    return [Figure(what, "service_times", percentile(light, 0.99), Goal(FLOWS), note)]


def _arrivals(flood: int) -> list[Arrival]:
    rng = random.Random(9)
    arrivals = [(SERVICE, _call(ref, "flood")) for ref in objects(flood)]
    for flow in range(FLOWS - 1):
        for index in range(flood // EVERY):
            when = 2 * SERVICE + index * EVERY * SERVICE + rng.randrange(EVERY * SERVICE)
            arrivals.append((when, _call(ObjectRef("v1", "Pod", f"light-{flow}", f"pod-{index}"), f"light-{flow}")))
    return sorted(arrivals, key=lambda arrival: arrival[0])


def _call(ref: ObjectRef, flow: str) -> FunctionCall[int]:
    return FunctionCall(bare, call_type=CALL_TYPE, target=ref, flow=flow)
