"""P12: what submitting from another thread costs that thread, per call, its own CPU time alone."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future

from asyncdispatch import Dispatcher
from benchmarks.harness import MICRO, Figure, Goal, Rounds, Scale, in_loop, interleave
from benchmarks.peers import LostResult
from benchmarks.workloads import ONE, Work, bare, config_for

Submit = Callable[[], list["Future[int]"]]


def p12(scale: Scale) -> list[Figure]:
    count = scale.from_thread
    rounds = interleave(
        {
            "ours": in_loop(_through_the_dispatcher, count),
            "Future": in_loop(_only_futures, count),
            "run_coroutine_threadsafe": in_loop(_coroutines, count),
        },
        min(scale.rounds, 5),
    )
    what = f"submit of {count} calls from another thread"
    return [
        _figure(rounds, f"{what}, submit_threadsafe", "ours", Goal(1.0)),
        _figure(rounds, "making a concurrent.futures.Future and nothing else", "Future", None),
        _figure(rounds, f"{what}, run_coroutine_threadsafe", "run_coroutine_threadsafe", None),
    ]


def _figure(rounds: Rounds, what: str, name: str, goal: Goal | None) -> Figure:
    return Figure(what, "us", rounds.median(name) * MICRO, goal, f"drifted {rounds.drift(name):.2f}x")


async def _through_the_dispatcher(count: int) -> float:
    work = Work(bare, ONE, ONE.rows(count))
    calls = [work.call(row) for row in work.rows]
    async with Dispatcher(config_for(count)) as ours:
        return await _timed(lambda: [ours.submit_threadsafe(call) for call in calls], count)


async def _only_futures(count: int) -> float:
    inbox: queue.SimpleQueue[Future[int]] = queue.SimpleQueue()

    def submit() -> list[Future[int]]:
        futures: list[Future[int]] = [Future() for _ in range(count)]
        for future in futures:
            inbox.put(future)
        return futures

    def settle() -> None:
        while not inbox.empty():
            inbox.get().set_result(1)

    return await _timed(submit, count, settle)


async def _coroutines(count: int) -> float:
    loop = asyncio.get_running_loop()
    return await _timed(lambda: [asyncio.run_coroutine_threadsafe(bare(), loop) for _ in range(count)], count)


async def _timed(submit: Submit, count: int, settle: Callable[[], None] = lambda: None) -> float:
    """Run `submit` in a thread beside the running loop and await what it submitted."""

    def in_thread() -> tuple[list[Future[int]], float]:
        began = time.thread_time()
        futures = submit()
        return futures, time.thread_time() - began

    futures, took = await asyncio.to_thread(in_thread)
    settle()
    total = 0
    for future in futures:
        total += await asyncio.wrap_future(future)
    if total != count:
        raise LostResult(f"{total} results of {count}")
    return took / count
