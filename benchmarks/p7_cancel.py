"""P7: cancelling pending calls, and how much of what was cancelled stays in memory."""

from __future__ import annotations

import asyncio
import gc
import random
import time

from asyncdispatch import CallHandle, Dispatcher
from benchmarks.harness import MICRO, Figure, Goal, Scale, in_loop, interleave
from benchmarks.workloads import FLOWS, ONE, Shape, Work, config_for, yields

SHARES = (0.1, 0.25, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9)


def p7(scale: Scale) -> list[Figure]:
    count = scale.cancelled_of
    rounds = interleave(
        {str(shape): in_loop(_cancel_some, shape, count) for shape in (ONE, FLOWS)}, min(scale.rounds, 7)
    )
    figures = [
        Figure(
            f"cancel one of {count} pending, {shape}",
            "us",
            rounds.median(str(shape)) * MICRO,
            Goal(1.0),
            f"drifted {rounds.drift(str(shape)):.2f}x",
        )
        for shape in (ONE, FLOWS)
    ]
    left = max(asyncio.run(_left_in_memory(shape, count)) for shape in (ONE, FLOWS))
    what = f"cancelled calls among those in memory, most while 90 % of {count} are cancelled"
    return [*figures, Figure(what, "share", left, Goal(0.5))]


async def _submitted(ours: Dispatcher, shape: Shape, count: int) -> list[CallHandle[int]]:
    work = Work(yields, shape, shape.rows(count))
    handles = [ours.submit(work.call(row)) for row in work.rows]
    random.Random(7).shuffle(handles)
    return handles


async def _cancel_some(shape: Shape, count: int) -> float:
    """Cancel a tenth of all, in random order, so that about `count` are pending all the time."""
    async with Dispatcher(config_for(count)) as ours:
        handles = await _submitted(ours, shape, count)
        chosen = handles[: max(1, count // 10)]
        began = time.process_time()
        for handle in chosen:
            handle.cancel("no longer needed")
        took = time.process_time() - began
        for handle in handles:
            await handle.outcome()
        return took / len(chosen)


async def _left_in_memory(shape: Shape, count: int) -> float:
    """The largest share of cancelled handles in memory, once their caller has dropped them."""
    async with Dispatcher(config_for(count)) as ours:
        handles = await _submitted(ours, shape, count)
        most = 0.0
        for share in SHARES:
            pending = count - round(count * share)
            while len(handles) > pending:
                handles.pop().cancel("no longer needed")
            gc.collect()
            alive = sum(isinstance(thing, CallHandle) for thing in gc.get_objects())
            most = max(most, 1 - pending / alive)
        return most
