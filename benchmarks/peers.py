"""The candidates. Each takes the same `Work`, hands every result to a waiter, and returns CPU seconds per call.

A candidate sets itself up and runs a few calls outside the clock first, so that its workers exist and are warm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import aiojobs
import aiometer

from asyncdispatch import APICall, CallHandle, Dispatcher, DispatcherConfig, FunctionCall
from benchmarks.workloads import CALL_TYPE, Function, Work, config_for

Peer = Callable[[Work], Coroutine[Any, Any, float]]


class LostResult(AssertionError):
    """A candidate did not deliver every result: its time means nothing."""


def _per_call(work: Work, seconds: float, total: int) -> float:
    if total != work.count:
        raise LostResult(f"{total} results of {work.count}")
    return seconds / work.count


# -- this library -------------------------------------------------------------------------------------------------


async def dispatcher(work: Work, config: DispatcherConfig | None = None) -> float:
    """This library, all features on."""
    async with Dispatcher(config or config_for(len(work.rows), work.at_once)) as ours:
        submit, clock, total = ours.submit, work.clock, 0
        for handle in [submit(work.call(row)) for row in work.rows[: 2 * work.at_once]]:
            await handle
        calls = [] if work.inside else [work.call(row) for row in work.rows]
        began = clock()
        for _ in range(work.waves):
            handles = _submit_made_inside(submit, work) if work.inside else [submit(call) for call in calls]
            for handle in handles:
                total += await handle
        return _per_call(work, clock() - began, total)


def _submit_made_inside(submit: Callable[[APICall[int]], CallHandle[int]], work: Work) -> list[CallHandle[int]]:
    """`work.call`, written out: a function call for each call would be ours to pay, and is not the library's."""
    fn = work.function
    if work.shape.flows > 1:
        return [
            submit(FunctionCall(fn, call_type=CALL_TYPE, target=ref, priority=priority, flow=flow))
            for ref, priority, flow in work.rows
        ]
    if work.shape.levels > 1:
        return [
            submit(FunctionCall(fn, call_type=CALL_TYPE, target=ref, priority=priority))
            for ref, priority, _ in work.rows
        ]
    return [submit(FunctionCall(fn, call_type=CALL_TYPE, target=ref)) for ref, _, _ in work.rows]


# -- peers --------------------------------------------------------------------------------------------------------

Item = tuple[int, int, Function, "asyncio.Future[int]"]


async def _queue_worker(queue: asyncio.PriorityQueue[Item]) -> None:
    while True:
        _, _, function, future = await queue.get()
        try:
            value = await function()
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(value)


async def queue_and_workers(work: Work) -> float:
    """PQ+W: `asyncio.PriorityQueue` and N worker tasks, what a careful user would write by hand."""
    queue: asyncio.PriorityQueue[Item] = asyncio.PriorityQueue()
    loop, numbers, clock, fn, total = asyncio.get_running_loop(), count(), work.clock, work.function, 0
    workers = [loop.create_task(_queue_worker(queue)) for _ in range(work.at_once)]

    def submit(priority: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = loop.create_future()
        queue.put_nowait((-priority, next(numbers), fn, future))
        return future

    for future in [submit(0) for _ in range(2 * work.at_once)]:
        await future
    began = clock()
    for _ in range(work.waves):
        for future in [submit(priority) for _, priority, _ in work.rows]:
            total += await future
    took = clock() - began
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return _per_call(work, took, total)


async def tasks_and_semaphore(work: Work) -> float:
    """`create_task` for each call, held back by a semaphore: no priorities."""
    semaphore, create, clock, total = asyncio.Semaphore(work.at_once), asyncio.create_task, work.clock, 0
    fn = work.function

    async def guarded() -> int:
        async with semaphore:
            return await fn()

    for task in [create(guarded()) for _ in range(2 * work.at_once)]:
        await task
    began = clock()
    for _ in range(work.waves):
        for task in [create(guarded()) for _ in work.rows]:
            total += await task
    return _per_call(work, clock() - began, total)


async def aiojobs_scheduler(work: Work) -> float:
    """aiojobs with a limit and no bound on what waits: no priorities."""
    async with aiojobs.Scheduler(limit=work.at_once, pending_limit=0) as scheduler:
        spawn, fn, clock, total = scheduler.spawn, work.function, work.clock, 0
        for job in [await spawn(fn()) for _ in range(2 * work.at_once)]:
            await job.wait()
        began = clock()
        for _ in range(work.waves):
            for job in [await spawn(fn()) for _ in work.rows]:
                total += await job.wait()
        return _per_call(work, clock() - began, total)


async def aiometer_run_all(work: Work) -> float:
    """aiometer's `run_all`: no priorities."""
    fn, clock, total = work.function, work.clock, 0
    await aiometer.run_all([fn] * 2 * work.at_once, max_at_once=work.at_once)
    began = clock()
    for _ in range(work.waves):
        for value in await aiometer.run_all([fn] * len(work.rows), max_at_once=work.at_once):
            total += value
    return _per_call(work, clock() - began, total)
