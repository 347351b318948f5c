"""Leaving, draining, closing: every handle is resolved, no task is left, cancellation is passed on (laws L15, L19)."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from asyncdispatch import (
    APICall,
    Applied,
    Attempt,
    CallState,
    Cancelled,
    Dispatcher,
    DispatcherClosed,
    DispatcherConfig,
    DrainReport,
    Effect,
    Expired,
    Failed,
    RetryPolicy,
    Succeeded,
)
from asyncdispatch.calls import Reconciled
from tests.shell import StatusError, after, at_once, call, for_ever, now, pod, raising, running, stubborn, turns


async def test_leaving_drains():
    """What was accepted finishes; nothing more is accepted meanwhile."""
    async with running(max_in_flight=1) as dispatcher:
        handles = [dispatcher.submit(call(after(1.0, i), f"p{i}")) for i in range(3)]
    assert now() == 3.0
    assert [handle.result() for handle in handles] == [0, 1, 2]


async def test_leaving_an_idle_dispatcher_takes_no_time():
    async with running() as dispatcher:
        await dispatcher.run(call())
    assert now() == 0.0


async def test_leaving_expires_what_is_left_after_the_drain_time_out():
    async with running(max_in_flight=1, drain_timeout=5.0) as dispatcher:
        flying = dispatcher.submit(call(for_ever, "a"))
        waiting = dispatcher.submit(call(name="b"))
    assert isinstance(waiting.settled, Expired)
    assert isinstance(flying.settled, Expired)
    assert flying.settled.where == "in_flight"
    assert 5.0 <= now() <= 5.2


async def test_an_exception_inside_closes_at_once():
    """And is not hidden; the reason names it."""
    handles: list[Any] = []

    async def use() -> None:
        async with Dispatcher() as dispatcher:
            handles.append(dispatcher.submit(call(for_ever, "a")))
            handles.append(dispatcher.submit(call(name="b", not_before=60.0)))
            await turns()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use()
    flying, delayed = handles
    assert isinstance(flying.settled, Cancelled)
    assert flying.settled.reason == "left by ZeroDivisionError"
    assert delayed.settled == Cancelled("left by ZeroDivisionError")
    assert now() == 0.0


async def test_drain_is_final():
    """Submit, dispatch and run raise DispatcherClosed while it lasts and ever after (law L15)."""
    async with running() as dispatcher:
        handle = dispatcher.submit(call(after(2.0)))
        draining = asyncio.create_task(dispatcher.drain())
        await asyncio.sleep(1.0)
        with pytest.raises(DispatcherClosed, match="draining for good"):
            dispatcher.submit(call())
        with pytest.raises(DispatcherClosed, match="draining for good"):
            await dispatcher.dispatch(call())
        with pytest.raises(DispatcherClosed, match="draining for good"):
            await dispatcher.run(call())
        with pytest.raises(DispatcherClosed, match="draining for good"):
            dispatcher.submit_threadsafe(call())
        assert "draining for good" in repr(dispatcher)
        report = await draining
        assert await handle == "done"
        assert report.clean
        assert (report.reason, report.finished, report.seconds) == ("drained", 1, 2.0)
        with pytest.raises(DispatcherClosed):
            dispatcher.submit(call())
        assert await dispatcher.drain() is report, "a second drain gives the same report"


async def test_drain_with_a_time_out_of_its_own():
    async with running() as dispatcher:
        waiting = dispatcher.submit(call(name="b", not_before=60.0))
        report = await dispatcher.drain(3.0)
        assert 3.0 <= now() <= 3.2
        assert isinstance(waiting.settled, Expired)
        assert waiting.settled.where == "delayed"
        assert report.never_started == (waiting,)
        assert not report.clean


async def test_drain_finishes_retries_too():
    errors: list[Exception] = [OSError("reset"), OSError("reset")]

    async def execute(attempt: Attempt) -> str:
        if errors:
            raise errors.pop()
        return "at last"

    async with running(retry=RetryPolicy(wait=lambda _: 2.0)) as dispatcher:
        handle = dispatcher.submit(call(execute))
    assert handle.result() == "at last"
    assert now() == 4.0


@dataclass(frozen=True, kw_only=True)
class Delete(APICall[None]):
    call_type: str = "delete"
    deletes = True

    async def execute(self, attempt: Attempt) -> None:
        await asyncio.sleep(60)


async def test_the_report_lists_what_may_exist_what_never_started_and_what_was_not_deleted():
    """Rule R16."""
    async with running(max_in_flight=2) as dispatcher:
        good = dispatcher.submit(call(name="good"))
        await good
        create = dispatcher.submit(call(for_ever, "a", effect=Effect.CREATE))
        delete = dispatcher.submit(Delete(target=pod("d")))
        read = dispatcher.submit(call(for_ever, "r", effect=Effect.READ))
        waiting = dispatcher.submit(call(name="w"))
        await turns()
        report = await dispatcher.aclose("shutdown")
        assert report.reason == "shutdown"
        assert set(report.may_exist) == {create, delete}
        assert set(report.never_started) == {read, waiting}
        assert report.not_deleted == (delete,)
        assert report.still_running == ()
        assert report.finished == 0
        assert not report.clean


async def test_a_report_of_nothing_is_clean():
    async with running() as dispatcher:
        report = await dispatcher.aclose()
    assert report == DrainReport("closed", 0.0, 0, (), (), (), ())
    assert report.clean


async def test_a_deaf_call_does_not_hold_up_closing_for_longer_than_it_may():
    """Case D9 (c), rule R20: reported by name; its caller is told, in doubt; the worker ends when the call does."""
    tasks = asyncio.all_tasks()
    async with Dispatcher() as dispatcher:
        deaf = dispatcher.submit(call(stubborn(100.0), "deaf"))
        await turns()
        report = await dispatcher.aclose("shutdown", 3.0)
        assert now() == 3.0
        assert report.still_running == ("<Attempt 1-1 of write Pod ns/deaf>",)
        assert isinstance(deaf.settled, Cancelled)
        assert deaf.settled.ambiguous
        assert report.may_exist == (deaf,)
    assert now() == 3.0
    assert len(asyncio.all_tasks() - tasks) == 1
    await asyncio.sleep(100.0)
    await turns()
    assert asyncio.all_tasks() == tasks


async def test_a_deaf_call_holds_up_leaving_for_the_drain_time_out_and_the_give_up():
    async with Dispatcher(DispatcherConfig(drain_timeout=4.0, give_up=2.0)) as dispatcher:
        deaf = dispatcher.submit(call(stubborn(50.0)))
    assert 6.0 <= now() <= 6.2
    assert isinstance(deaf.settled, Expired)
    await asyncio.sleep(60.0)
    await turns()


async def test_what_lands_while_closing_is_told_as_late():
    async with running() as dispatcher:
        handle = dispatcher.submit(call(stubborn(2.0, "bound")))
        await asyncio.sleep(1.0)
        report = await dispatcher.aclose("shutdown")
        assert now() == 2.0
        assert handle.settled is not None
        assert handle.settled.late_success == "bound"
        assert report.may_exist == ()


async def test_closing_hurries_a_drain():
    async with running() as dispatcher:
        handle = dispatcher.submit(call(after(20.0)))
        draining = asyncio.create_task(dispatcher.drain())
        await asyncio.sleep(1.0)
        report = await dispatcher.aclose("now")
        assert now() == 1.0
        assert await draining is report
        assert isinstance(handle.settled, Cancelled)


async def test_closing_ends_contexts_and_calls_in_backoff_in_the_same_turn():
    """Case H13: no timer and no further request remains."""
    requests: list[float] = []

    async def execute(attempt: Attempt) -> None:
        requests.append(now())
        raise StatusError(503, Retry_After="60")

    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod("c"))
        inside = dispatcher.submit(call(execute, "c", context=context))
        outside = dispatcher.submit(call(execute, "o"))
        await asyncio.sleep(1.0)
        assert inside.state is outside.state is CallState.BACKOFF
        context.end("preempted")
        assert inside.settled is not None
        assert isinstance(inside.settled, Cancelled)
        assert inside.settled.reason == "preempted"
        other = dispatcher.contexts.begin(pod("x"))
        await dispatcher.aclose("shutdown")
        assert now() == 1.0
        assert isinstance(outside.settled, Cancelled)
        assert other.ended == "shutdown"
    await asyncio.sleep(200.0)
    assert requests == [0.0, 0.0]


async def test_waiters_for_room_are_told_that_it_is_closed():
    async with running(capacity=1, reserve=0.0) as dispatcher:
        dispatcher.submit(call(for_ever))
        waiting = asyncio.create_task(dispatcher.run(call(name="q")))
        await turns()
        await dispatcher.aclose("shutdown")
        with pytest.raises(DispatcherClosed, match="shutdown"):
            await waiting


# -- cancellation from outside ----------------------------------------------------------------------------------------


async def _hold(started: list[Any], fn: Any = for_ever) -> None:
    async with Dispatcher() as dispatcher:
        started.extend(dispatcher.submit(call(fn, f"p{i}")) for i in range(3))
        started.append(dispatcher.submit(call(name="later", not_before=60.0)))
        await asyncio.sleep(1_000.0)


async def test_cancelling_the_task_inside_closes_and_is_passed_on():
    tasks, handles = asyncio.all_tasks(), list[Any]()
    task = asyncio.create_task(_hold(handles))
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() == 1.0
    assert all(isinstance(handle.settled, Cancelled) for handle in handles)
    await turns()
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize("again", [1, 2, 5])
async def test_a_second_cancellation_inside_leaving_leaves_nothing_behind(again: int):
    """Case H11: the attempts take two seconds to stop; the task is cancelled while it waits for them."""

    async def execute(attempt: Attempt) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(2.0)

    tasks, handles = asyncio.all_tasks(), list[Any]()
    task = asyncio.create_task(_hold(handles, execute))
    await asyncio.sleep(1.0)
    for _ in range(again + 1):
        task.cancel()
        await asyncio.sleep(0.1)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() == 3.0
    assert all(handle.done() for handle in handles)
    await turns()
    assert asyncio.all_tasks() == tasks


async def test_cancelling_a_drain_closes_and_is_passed_on():
    """Leaving well, then cancelled while it drains."""
    tasks, handles = asyncio.all_tasks(), list[Any]()

    async def use() -> None:
        async with Dispatcher() as dispatcher:
            handles.append(dispatcher.submit(call(after(20.0))))

    task = asyncio.create_task(use())
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() == 1.0
    assert isinstance(handles[0].settled, Cancelled)
    await turns()
    assert asyncio.all_tasks() == tasks


async def test_a_time_out_around_a_dispatcher_is_honoured():
    """`asyncio.timeout` tells its own cancellation by its count: leaving does not disturb it."""
    handles: list[Any] = []

    async def use() -> None:
        async with asyncio.timeout(2.0):
            await _hold(handles)

    with pytest.raises(TimeoutError):
        await use()
    assert now() == 2.0
    assert all(isinstance(handle.settled, Cancelled) for handle in handles)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_task_group_around_a_dispatcher_is_honoured():
    handles: list[Any] = []

    async def fail() -> None:
        await asyncio.sleep(1.0)
        raise ValueError("elsewhere")

    async def use() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_hold(handles))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await use()
    assert now() == 1.0
    assert all(handle.done() for handle in handles)


async def test_workers_cancelled_from_outside_end_and_others_take_their_place():
    """Somebody cancels every task there is: no call is lost, and the dispatcher goes on."""
    async with running(max_in_flight=2) as dispatcher:
        handles = [dispatcher.submit(call(after(2.0), f"p{i}")) for i in range(4)]
        await asyncio.sleep(1.0)
        workers = [task for task in asyncio.all_tasks() if task.get_name().startswith("asyncdispatch-worker")]
        assert len(workers) == 2
        for task in workers:
            task.cancel()
        await turns()
        assert all(task.cancelled() for task in workers)
        handles.append(dispatcher.submit(call(name="next")))
        outcomes = await asyncio.gather(*(handle.outcome() for handle in handles))
        assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
        assert [outcome.attempts for outcome in outcomes] == [2, 2, 1, 1, 1]


async def test_a_call_that_cancels_its_own_task_ends_and_the_others_go_on():
    """Law L14, with one seat: after its second try it is clear whose doing it is."""

    async def execute(attempt: Attempt) -> None:
        tries.append(now())
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1.0)

    tries: list[float] = []
    async with running(max_in_flight=1) as dispatcher:
        culprit, other = dispatcher.submit(call(execute, "c")), dispatcher.submit(call(name="o"))
        assert await other == "done"
        assert now() < 1.0
        outcome = await culprit.outcome()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, asyncio.CancelledError)
        assert len(tries) == 2


async def test_a_create_whose_worker_is_cancelled_is_looked_for_by_another():
    """Law L10: it may have been sent; what became of it is found out, not waited for until its time is over."""
    looked: list[float] = []

    class Create(APICall[str]):
        call_type = "create"
        effect = Effect.CREATE

        async def execute(self, attempt: Attempt) -> str:
            await asyncio.sleep(60.0)
            return "done"

        async def reconcile(self, attempt: Attempt, error: BaseException) -> Reconciled[str]:
            looked.append(now())
            if len(looked) < 3:
                await asyncio.sleep(1.0)
            return Applied("found")

    async with running(max_in_flight=1) as dispatcher:
        handle = dispatcher.submit(Create(target=pod()))
        for _ in range(3):
            await asyncio.sleep(0.5)
            for task in asyncio.all_tasks():
                if task.get_name().startswith("asyncdispatch-worker"):
                    task.cancel()
        assert await handle == "found"
        assert len(looked) == 3
        assert now() < 5.0


async def test_workers_cancelled_before_their_first_step_are_replaced():
    async with running(max_in_flight=1) as dispatcher:
        first = dispatcher.submit(call(name="a"))
        for task in asyncio.all_tasks():
            if task.get_name().startswith("asyncdispatch-worker"):
                task.cancel()
        await turns()
        second = dispatcher.submit(call(name="b"))
        assert await asyncio.wait_for(first.outcome(), 5.0) == Succeeded("done", attempts=1)
        assert isinstance(await second.outcome(), Succeeded)


async def test_cancelling_everything_at_once_is_honoured():
    """The task inside, and the workers, as the end of a loop does it: nobody waits for anybody."""
    tasks, handles = asyncio.all_tasks(), list[Any]()
    inside = asyncio.create_task(_hold(handles))
    await asyncio.sleep(1.0)
    for task in asyncio.all_tasks() - tasks:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await inside
    assert now() == 1.0
    assert all(isinstance(handle.settled, Cancelled) for handle in handles)
    await turns()
    assert asyncio.all_tasks() == tasks


def test_the_end_of_asyncio_run_is_honoured(caplog: pytest.LogCaptureFixture):
    """A dispatcher in a background task, its loop ends: it closes, its calls are resolved, nothing is complained of."""
    handles: list[Any] = []

    async def main() -> None:
        background = asyncio.create_task(_hold(handles))
        await asyncio.sleep(0.01)
        assert not background.done()

    asyncio.run(main())
    asyncio.set_event_loop(None)
    assert len(handles) == 4
    assert all(isinstance(handle.settled, Cancelled) for handle in handles)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# -- our own defects --------------------------------------------------------------------------------------------------


async def test_a_defect_of_ours_closes_the_dispatcher_and_resolves_every_handle(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A worker that dies takes nothing with it in silence."""
    async with Dispatcher(DispatcherConfig(max_in_flight=2)) as dispatcher:
        monkeypatch.setattr(dispatcher._core, "succeed", lambda *args: 1 / 0)
        handles = [dispatcher.submit(call(after(1.0) if i else at_once, f"p{i}")) for i in range(4)]
        outcomes = await asyncio.wait_for(asyncio.gather(*(handle.outcome() for handle in handles)), 20.0)
        assert all(isinstance(outcome, Cancelled) for outcome in outcomes)
        assert all("ZeroDivisionError" in outcome.reason for outcome in outcomes if isinstance(outcome, Cancelled))
        with pytest.raises(DispatcherClosed, match="internal error"):
            dispatcher.submit(call(raising(ValueError())))
    assert any(record.levelno == logging.CRITICAL for record in caplog.records)
