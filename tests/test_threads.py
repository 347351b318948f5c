"""`submit_threadsafe`: the one door for other threads."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from asyncdispatch import (
    Backpressure,
    CallCancelled,
    CallFailed,
    ConfigurationError,
    DispatcherClosed,
    StaleContext,
)
from tests.shell import after, call, for_ever, now, pod, raising, running, turns


async def in_thread(function: Callable[[], Any]) -> Any:
    """The answer of another thread. The clock of the loop stands still meanwhile."""
    done: list[Any] = []

    def work() -> None:
        try:
            done.append(function())
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


async def test_another_thread_gets_the_value_through_a_future():
    async with running() as dispatcher:
        future = await in_thread(lambda: dispatcher.submit_threadsafe(call(after(2.0, 7))))
        assert isinstance(future, concurrent.futures.Future)
        assert await asyncio.wrap_future(future) == 7
        assert now() == 2.0
        assert await in_thread(lambda: future.result(timeout=0)) == 7


async def test_the_future_gets_the_error_that_awaiting_the_handle_raises():
    async with running() as dispatcher:
        future = await in_thread(lambda: dispatcher.submit_threadsafe(call(raising(ValueError("no")))))
        with pytest.raises(CallFailed) as caught:
            await asyncio.wrap_future(future)
        assert isinstance(caught.value.__cause__, ValueError)


async def test_the_future_gets_the_error_that_submit_raises():
    async with running(capacity=1, reserve=0.0) as dispatcher:
        context = dispatcher.contexts.begin(pod())
        context.end("preempted")
        wrong, stale = call(priority="high"), call(context=context)
        for given, error in ((wrong, ConfigurationError), (stale, StaleContext)):
            future = dispatcher.submit_threadsafe(given)
            with pytest.raises(error):
                await asyncio.wrap_future(future)
        dispatcher.submit(call(after(1.0)))
        with pytest.raises(Backpressure):
            await asyncio.wrap_future(dispatcher.submit_threadsafe(call(name="q")))


async def test_it_may_be_used_from_the_loop_itself():
    async with running() as dispatcher:
        assert await asyncio.wrap_future(dispatcher.submit_threadsafe(call())) == "done"


async def test_calls_of_one_thread_are_taken_in_in_their_order():
    order: list[str] = []

    def note(name: str) -> Any:
        async def execute(attempt: Any) -> None:
            order.append(name)

        return execute

    async with running(max_in_flight=1) as dispatcher:
        names = [f"p{i}" for i in range(20)]
        futures = await in_thread(lambda: [dispatcher.submit_threadsafe(call(note(n), n)) for n in names])
        await asyncio.gather(*map(asyncio.wrap_future, futures))
    assert order == names


async def test_many_threads_lose_nothing():
    """Each of the calls is executed once and each future resolved."""
    counts: list[int] = []

    async def execute(attempt: Any) -> int:
        counts.append(attempt.ticket)
        return int(attempt.ticket)

    async with running(max_in_flight=4) as dispatcher:
        futures: list[Any] = []

        def work(thread: int) -> None:
            futures.extend(dispatcher.submit_threadsafe(call(execute, f"p{thread}-{i}")) for i in range(50))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        values = await asyncio.gather(*map(asyncio.wrap_future, futures))
    assert sorted(values) == sorted(counts) == list(range(1, 401))


async def test_cancelling_the_future_before_it_is_taken_in_forgets_the_call():
    async with running() as dispatcher:
        future = dispatcher.submit_threadsafe(call())
        assert future.cancel()
        await turns()
        assert dispatcher.statistics().accepted == 0


@pytest.mark.parametrize("where", ["waiting", "in flight"])
async def test_cancelling_the_future_cancels_the_call(where: str):
    """As its docstring promises, from whatever thread."""
    async with running() as dispatcher:
        fields: dict[str, Any] = {"fn": for_ever} if where == "in flight" else {"not_before": 10.0}
        future = await in_thread(lambda: dispatcher.submit_threadsafe(call(**fields)))
        await turns()
        assert dispatcher.statistics().depth == 1
        assert await in_thread(future.cancel)
        await turns()
        assert dispatcher.statistics().depth == 0
        assert dispatcher.statistics().outcomes["cancelled"] == 1
        assert now() == 0.0


async def test_cancelling_who_awaits_the_wrapped_future_cancels_the_call():
    async with running() as dispatcher:
        task = asyncio.ensure_future(asyncio.wrap_future(dispatcher.submit_threadsafe(call(for_ever))))
        await asyncio.sleep(1.0)
        task.cancel()
        await turns()
        assert dispatcher.statistics().depth == 0


async def test_a_future_whose_call_was_cancelled_elsewhere_gets_the_error():
    async with running() as dispatcher:
        future = dispatcher.submit_threadsafe(call(for_ever, flow="plugin"))
        await turns()
        dispatcher.cancel_flow("plugin", "unloaded")
        with pytest.raises(CallCancelled, match="unloaded"):
            await asyncio.wrap_future(future)


async def test_the_inbox_is_bounded():
    """Backpressure at once, in the thread, if as many as the capacity wait to be taken in."""
    async with running(capacity=3, reserve=0.0) as dispatcher:
        futures = [dispatcher.submit_threadsafe(call(name=f"p{i}")) for i in range(3)]
        with pytest.raises(Backpressure) as caught:
            await in_thread(lambda: dispatcher.submit_threadsafe(call(name="more")))
        assert (caught.value.scope, caught.value.depth, caught.value.capacity) == ("total", 3, 3)
        await asyncio.gather(*map(asyncio.wrap_future, futures))


async def test_what_is_in_the_inbox_when_it_closes_gets_the_error():
    async with running() as dispatcher:
        closing = asyncio.create_task(dispatcher.aclose("shutdown"))
        future = dispatcher.submit_threadsafe(call())
        cancelled = dispatcher.submit_threadsafe(call())
        cancelled.cancel()
        await closing
        with pytest.raises((DispatcherClosed, CallCancelled)):
            await asyncio.wrap_future(future)
        with pytest.raises(DispatcherClosed):
            await in_thread(lambda: dispatcher.submit_threadsafe(call()))


async def test_the_future_of_a_call_in_flight_is_resolved_by_closing():
    async with running() as dispatcher:
        future = dispatcher.submit_threadsafe(call(for_ever))
        await turns()
        await dispatcher.aclose("shutdown")
    with pytest.raises(CallCancelled):
        await in_thread(lambda: future.result(timeout=0))
