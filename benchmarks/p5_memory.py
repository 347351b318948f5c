"""P5: what one pending call costs in memory, its result not yet awaited, the call itself and its ref aside."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable

from asyncdispatch import Dispatcher
from benchmarks.harness import Figure, Goal, Scale
from benchmarks.workloads import FLOWS, ONE, Shape, Work, config_for, yields

WARM = 200


def p5(scale: Scale) -> list[Figure]:
    figures = []
    for shape in (ONE, FLOWS):
        for count in (scale.cancelled_of, scale.burst):
            held = asyncio.run(_marginal(shape, count, _traced))
            figures.append(
                Figure(f"bytes of the library per pending call, {shape}, {count} pending", "bytes", held, Goal(400))
            )
    objects = asyncio.run(_marginal(ONE, scale.cancelled_of, _tracked))
    what = f"objects tracked by the collector per pending call, {scale.cancelled_of} pending"
    return [*figures, Figure(what, "objects", objects, Goal(1))]


def _traced() -> float:
    return float(tracemalloc.get_traced_memory()[0])


def _tracked() -> float:
    gc.collect()
    return float(len(gc.get_objects()))


async def _marginal(shape: Shape, count: int, measure: Callable[[], float]) -> float:
    """Submit `count` calls without ever giving way to a worker, and measure before and after.

    A few calls go first, so that what exists once (workers, queues, timers) is not divided among the many.
    """
    work = Work(yields, shape, shape.rows(count + WARM))
    calls = [work.call(row) for row in work.rows]
    handles: list[object] = [None] * len(calls)
    async with Dispatcher(config_for(len(calls))) as ours:
        submit = ours.submit
        gc.collect()
        tracemalloc.start()
        for index in range(WARM):
            handles[index] = submit(calls[index])
        before = measure()
        for index in range(WARM, len(calls)):
            handles[index] = submit(calls[index])
        after = measure()
        tracemalloc.stop()
        return (after - before) / count
