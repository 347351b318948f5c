"""Switching off and on while running: ASYNC, DRAINING, SYNC (promise 5)."""

import asyncio
import logging
from typing import Any

import pytest

from asyncdispatch import (
    AsyncDisabled,
    CallFailed,
    CallState,
    Cancelled,
    DeadlineExpired,
    DispatcherClosed,
    DispatchError,
    Expired,
    Mode,
)
from tests.shell import Recorder, after, call, for_ever, now, pod, raising, running, turns


async def test_it_begins_asynchronous():
    async with running() as dispatcher:
        assert dispatcher.mode is Mode.ASYNC
        assert dispatcher.statistics().mode is Mode.ASYNC
        assert set(Mode.__members__) == {"ASYNC", "DRAINING", "SYNC"}


async def test_switching_to_sync_goes_through_draining_until_the_accepted_calls_have_ended():
    recorder = Recorder()
    async with running(observers=(recorder,), max_in_flight=1) as dispatcher:
        handles = [dispatcher.submit(call(after(1.0), f"p{i}")) for i in range(3)]
        switching = asyncio.create_task(dispatcher.switch(Mode.SYNC, "queue too deep"))
        await asyncio.sleep(0.5)
        assert dispatcher.mode is Mode.DRAINING
        assert repr(dispatcher).startswith("<Dispatcher draining")
        await switching
        assert now() == 3.0
        assert dispatcher.statistics().mode is Mode.SYNC
        assert all(handle.state is CallState.SUCCEEDED for handle in handles)
    assert recorder.of("mode_changed") == [
        ("mode_changed", "async", "draining", "queue too deep"),
        ("mode_changed", "draining", "sync", "queue too deep"),
    ]


async def test_switching_to_sync_waits_no_longer_than_the_drain_time_out():
    """What is left keeps its course."""
    async with running(drain_timeout=5.0) as dispatcher:
        handle = dispatcher.submit(call(after(8.0)))
        await dispatcher.switch(Mode.SYNC, "now")
        assert now() == 5.0
        assert dispatcher.mode is Mode.SYNC
        assert await handle == "done"
        assert now() == 8.0


async def test_switching_an_idle_dispatcher_takes_no_time():
    async with running() as dispatcher:
        for mode in (Mode.SYNC, Mode.ASYNC, Mode.DRAINING, Mode.SYNC, Mode.DRAINING, Mode.ASYNC, Mode.ASYNC):
            await dispatcher.switch(mode, "test")
            assert dispatcher.mode is mode
        assert now() == 0.0


async def test_submit_raises_in_draining_and_in_sync():
    async with running() as dispatcher:
        for mode in (Mode.DRAINING, Mode.SYNC):
            await dispatcher.switch(mode, "test")
            with pytest.raises(AsyncDisabled, match=f"mode is {mode.value}: use dispatch or run"):
                dispatcher.submit(call())
            future = dispatcher.submit_threadsafe(call())
            with pytest.raises(AsyncDisabled):
                await asyncio.wrap_future(future)
        await dispatcher.switch(Mode.ASYNC, "back")
        assert await dispatcher.submit(call()) == "done"


async def test_dispatch_in_sync_returns_once_the_outcome_is_there():
    """As a handle that is done, whatever the outcome is."""
    async with running() as dispatcher:
        await dispatcher.switch(Mode.SYNC, "test")
        handle = await dispatcher.dispatch(call(after(2.0)))
        assert now() == 2.0
        assert handle.done()
        assert handle.result() == "done"
        failed = await dispatcher.dispatch(call(raising(ValueError("no"))))
        with pytest.raises(CallFailed):
            failed.result()
        expired = await dispatcher.dispatch(call(for_ever, timeout=1.0))
        assert isinstance(expired.settled, Expired)


async def test_run_in_sync_is_as_ever():
    async with running() as dispatcher:
        await dispatcher.switch(Mode.SYNC, "test")
        assert await dispatcher.run(call(after(2.0, 7))) == 7


async def test_dispatch_and_run_wait_while_it_drains():
    """Then they go on in the new mode, with the same code."""
    async with running() as dispatcher:
        first = dispatcher.submit(call(after(3.0), "a"))
        switching = asyncio.create_task(dispatcher.switch(Mode.SYNC, "test"))
        await turns()
        dispatching = asyncio.create_task(dispatcher.dispatch(call(after(1.0), "b")))
        running_ = asyncio.create_task(dispatcher.run(call(after(1.0), "c")))
        await asyncio.sleep(1.0)
        assert dispatcher.statistics().depth == 1
        await switching
        assert now() == 3.0
        assert first.done()
        handle = await dispatching
        assert handle.done()
        assert await running_ == "done"
        assert now() == 4.0


async def test_back_to_async_while_it_drains_lets_the_waiting_go_on_at_once():
    """Who switches last is obeyed; the earlier switch gives up."""
    async with running() as dispatcher:
        dispatcher.submit(call(after(10.0), "a"))
        switching = asyncio.create_task(dispatcher.switch(Mode.SYNC, "breach"))
        await turns()
        dispatching = asyncio.create_task(dispatcher.dispatch(call(after(5.0), "b")))
        await asyncio.sleep(1.0)
        await dispatcher.switch(Mode.ASYNC, "by hand")
        await switching
        assert dispatcher.mode is Mode.ASYNC
        handle = await dispatching
        assert now() == 1.0
        assert not handle.done()
        assert await handle == "done"
        assert dispatcher.mode is Mode.ASYNC


async def test_two_switches_to_sync_end_together():
    async with running() as dispatcher:
        dispatcher.submit(call(after(2.0), "a"))
        both = [asyncio.create_task(dispatcher.switch(Mode.SYNC, f"{i}")) for i in range(2)]
        await asyncio.gather(*both)
        assert (dispatcher.mode, now()) == (Mode.SYNC, 2.0)


async def test_waiting_for_the_mode_is_bounded_by_the_time_out_of_the_call():
    async with running() as dispatcher:
        await dispatcher.switch(Mode.DRAINING, "for long")
        for way in (dispatcher.dispatch, dispatcher.run):
            began = now()
            with pytest.raises(DispatchError):
                await way(call(timeout=2.0))
            assert now() - began == pytest.approx(2.0, abs=0.1)
        assert dispatcher.statistics().accepted == 0


async def test_who_waits_for_room_waits_while_it_drains():
    """`run` had no room; when there is some the dispatcher is draining, and takes nothing new."""
    async with running(capacity=1, reserve=0.0) as dispatcher:
        dispatcher.submit(call(after(2.0), "a"))
        waiting = asyncio.create_task(dispatcher.run(call(name="b")))
        await asyncio.sleep(1.0)
        await dispatcher.switch(Mode.DRAINING, "test")
        await asyncio.sleep(4.0)
        assert dispatcher.statistics().depth == 0
        assert not waiting.done()
        await dispatcher.switch(Mode.ASYNC, "back")
        assert await waiting == "done"


async def test_cancelling_dispatch_in_sync_cancels_its_call():
    ended: list[Any] = []
    recorder = Recorder()
    recorder.settled = lambda handle, outcome: ended.append(outcome)  # type: ignore[method-assign]
    async with running(observers=(recorder,)) as dispatcher:
        await dispatcher.switch(Mode.SYNC, "test")
        for fields in ({"fn": for_ever}, {"not_before": 10.0}):
            task = asyncio.create_task(dispatcher.dispatch(call(**fields)))
            await asyncio.sleep(1.0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await turns()
    assert [(type(outcome), outcome.reason) for outcome in ended] == [(Cancelled, "dispatch was cancelled")] * 2


async def test_cancelling_dispatch_while_it_drains_leaves_nothing():
    async with running() as dispatcher:
        await dispatcher.switch(Mode.DRAINING, "test")
        tasks = [asyncio.create_task(way(call())) for way in (dispatcher.dispatch, dispatcher.run)]
        await turns()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert dispatcher.statistics().accepted == 0


@pytest.mark.parametrize("ends", [3.0, 60.0])
async def test_a_switch_that_is_cancelled_goes_on_by_itself(ends: float):
    """Rule R23: it does not stay DRAINING for ever, in which `submit` refuses and `dispatch` waits."""
    async with running(drain_timeout=10.0) as dispatcher:
        dispatcher.submit(call(after(ends)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(dispatcher.switch(Mode.SYNC, "test"), 1.0)
        assert dispatcher.mode is Mode.DRAINING
        handle = await dispatcher.dispatch(call(name="q"))
        assert (dispatcher.mode, handle.result(), now()) == (Mode.SYNC, "done", min(ends, 10.0))


async def test_a_switch_that_is_cancelled_ends_with_the_dispatcher():
    async with running() as dispatcher:
        dispatcher.submit(call(after(5.0)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(dispatcher.switch(Mode.SYNC, "test"), 1.0)
        await dispatcher.aclose("enough")
        assert len(asyncio.all_tasks()) == 1
        assert dispatcher.mode is Mode.DRAINING


async def test_another_switch_counts_more_than_one_that_was_cancelled():
    """Nothing is half done: the mode is one of the three, and another switch goes on."""
    async with running() as dispatcher:
        dispatcher.submit(call(after(5.0)))
        switching = asyncio.create_task(dispatcher.switch(Mode.SYNC, "test"))
        await asyncio.sleep(1.0)
        switching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await switching
        assert dispatcher.mode is Mode.DRAINING
        await dispatcher.switch(Mode.ASYNC, "back")
        assert await dispatcher.run(call(name="q")) == "done"


async def test_closing_while_it_drains_ends_who_waits():
    async with running() as dispatcher:
        await dispatcher.switch(Mode.DRAINING, "test")
        tasks = [asyncio.create_task(way(call())) for way in (dispatcher.dispatch, dispatcher.run)]
        await turns()
        await dispatcher.aclose("shutdown")
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, DispatcherClosed) for result in results)


async def test_leaving_in_sync_is_leaving():
    async with running() as dispatcher:
        await dispatcher.switch(Mode.SYNC, "test")
        task = asyncio.create_task(dispatcher.dispatch(call(after(2.0))))
        await turns()
    assert now() == 2.0
    assert (await task).result() == "done"


async def test_requirements_and_joining_work_in_sync():
    """The same core and workers."""
    async with running() as dispatcher:
        await dispatcher.switch(Mode.SYNC, "test")
        context = dispatcher.contexts.begin(pod(), requires=("volume",))
        bind = asyncio.create_task(dispatcher.dispatch(call(context=context, awaits_prerequisites=True)))
        await turns()
        assert not bind.done()
        await dispatcher.dispatch(call(name="pvc", context=context, prerequisite="volume"))
        assert (await bind).result() == "done"


async def test_a_switch_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "asyncdispatch"):
        async with running() as dispatcher:
            await dispatcher.switch(Mode.DRAINING, "error rate 7 %")
    (record,) = caplog.records
    assert record.getMessage() == "mode async -> draining: error rate 7 %"
    assert (record.__dict__["mode"], record.__dict__["reason"]) == ("draining", "error rate 7 %")


@pytest.mark.parametrize("way", ["dispatch", "run"])
async def test_who_waits_for_the_mode_for_longer_than_the_call_has_time_is_told_so(way: str):
    """Nothing was accepted, and the caller learns it when the call's time is over: not before, not never."""
    async with running() as dispatcher:
        await dispatcher.switch(Mode.DRAINING, "test")
        with pytest.raises(DeadlineExpired, match="until its time was over") as caught:
            await getattr(dispatcher, way)(call(timeout=3.0))
        assert caught.value.outcome.elapsed_seconds == 3.0
        assert dispatcher.statistics().accepted == 0
        await dispatcher.switch(Mode.ASYNC, "back")
