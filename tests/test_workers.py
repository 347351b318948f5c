"""Attempts: their time-outs, their retries, and whose cancellation is whose."""

import asyncio
from typing import Any

import pytest

from asyncdispatch import (
    AdaptiveLimit,
    Attempt,
    CallState,
    Cancelled,
    Dispatcher,
    Expired,
    Failed,
    RetryPolicy,
    Succeeded,
)
from asyncdispatch._core.timers import BUCKET_BITS
from asyncdispatch._workers import YIELD_EVERY
from tests.shell import Script, after, call, for_ever, just_after, now, pod, running, turns

FAST = RetryPolicy(wait=lambda state: 1.0)


# -- time-outs --------------------------------------------------------------------------------------------------------


async def test_an_attempt_is_cut_off_at_its_time_out_and_tried_again():
    """Case D9 (a): the seat is freed, and the error is a TimeoutError that says which attempt."""
    script = Script("done", seconds=60.0)
    async with running(attempt_timeout=3.0, max_in_flight=1, retry=FAST) as dispatcher:
        slow = dispatcher.submit(call(script, timeout=10.0))
        quick = dispatcher.submit(call(name="q"))
        assert await quick == "done"
        assert now() == 3.0
        outcome = await slow.outcome()
        assert just_after(10.0)
    assert isinstance(outcome, Expired)
    assert (outcome.where, outcome.attempts, outcome.ambiguous) == ("in_flight", 3, True)
    assert script.times == [0.0, 4.0, 8.0]
    assert isinstance(outcome.cause, TimeoutError)
    last = script.attempts[1].last_error
    assert isinstance(last, TimeoutError)
    assert "did not end in time (1 of call 1)" in str(last)


async def test_an_attempt_is_clipped_to_the_deadline_of_its_call():
    """Law L5: `deadline` and `remaining` say so, and nothing goes on after it."""
    script = Script("done", seconds=60.0)
    async with running(attempt_timeout=30.0) as dispatcher:
        handle = dispatcher.submit(call(script, timeout=2.5))
        await asyncio.sleep(1.0)
        (attempt,) = script.attempts
        assert attempt.remaining == pytest.approx(1.5)
        outcome = await handle.outcome()
        assert now() == pytest.approx(2.5, abs=0.1)
    assert isinstance(outcome, Expired)
    assert (outcome.where, outcome.ambiguous) == ("in_flight", True)


async def test_an_attempt_is_clipped_to_the_validity_of_its_context():
    """Case H1: leadership is a time. What flies is cut off at its end, whatever the call's own time-out is."""
    async with running() as dispatcher:
        until = asyncio.get_running_loop().time() + 4.0
        context = dispatcher.contexts.begin(pod(), valid_until=until)
        script = Script("done", seconds=60.0)
        handle = dispatcher.submit(call(script, context=context))
        outcome = await handle.outcome()
        assert now() == pytest.approx(4.0, abs=0.01)
        assert script.attempts[0].deadline == until
        assert not isinstance(outcome, Succeeded)
        assert outcome.ambiguous


async def test_a_success_at_the_very_deadline_reaches_its_caller_or_is_late():
    """In flight at the deadline: told when the attempt has ended, with `late_success` if there was one (case G1)."""

    async def execute(attempt: Attempt) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)
        return "bound"

    async with running() as dispatcher:
        handle = dispatcher.submit(call(execute, timeout=3.0))
        outcome = await handle.outcome()
        assert now() == pytest.approx(4.0, abs=0.1)
    assert isinstance(outcome, Expired)
    assert (outcome.where, outcome.late_success, outcome.ambiguous) == ("in_flight", "bound", False)


async def test_a_later_joiner_extends_the_attempt():
    """Law L5: the time-out is clipped to the latest limit among living handles, later joiners included."""
    async with running() as dispatcher:
        first = dispatcher.submit(call(after(5.0), idempotency_key="k", timeout=2.0))
        await asyncio.sleep(1.0)
        second = dispatcher.submit(call(after(5.0), idempotency_key="k", timeout=30.0))
        assert isinstance(await first.outcome(), Expired)
        assert just_after(2.0)
        assert await second == "done"
        assert now() == 5.0


async def test_a_time_out_of_its_own_inside_execute_is_an_error_of_the_call():
    """`asyncio.timeout` around user code: its cancellation is its own business."""
    seen: list[str] = []

    async def execute(attempt: Attempt) -> None:
        seen.append("attempt")
        async with asyncio.timeout(1.0):
            await asyncio.sleep(60)

    async with running(retry=RetryPolicy(stop=lambda state: state.attempt_number >= 2, wait=FAST.wait)) as dispatcher:
        outcome = await dispatcher.submit(call(execute)).outcome()
        assert now() == 3.0
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, TimeoutError)
        assert len(seen) == 2
        assert await dispatcher.run(call(name="q")) == "done"


async def test_our_time_out_passes_through_a_time_out_of_the_users():
    """The attempt's end comes first: it is not mistaken for the inner one, which would be over later."""

    async def execute(attempt: Attempt) -> None:
        async with asyncio.timeout(50.0):
            await asyncio.sleep(60)

    async with running(attempt_timeout=2.0, retry=FAST) as dispatcher:
        outcome = await dispatcher.submit(call(execute, timeout=2.5)).outcome()
        assert isinstance(outcome, Expired)
        assert isinstance(outcome.cause, TimeoutError)
        assert "did not end in time" in str(outcome.cause)


@pytest.mark.parametrize("ending", ["success", "error", "time-out", "cancelled"])
async def test_a_task_group_inside_execute_is_left_in_order(ending: str):
    """Its children are gone when the attempt has ended, however that came about."""
    children: list[str] = []

    async def child(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            if ending == "error":
                raise ValueError(name)
            children.append(f"{name} done")
        except asyncio.CancelledError:
            children.append(f"{name} cancelled")
            raise

    async def execute(attempt: Attempt) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(child("a", 1.0))
            group.create_task(child("b", 5.0))
        return "both"

    async with running(attempt_timeout=3.0 if ending == "time-out" else 30.0, retry=FAST) as dispatcher:
        handle = dispatcher.submit(call(execute, timeout=3.5 if ending == "time-out" else 30.0))
        if ending == "cancelled":
            await asyncio.sleep(2.0)
            handle.cancel("enough")
        outcome = await handle.outcome()
        if ending == "success":
            assert outcome == Succeeded("both", attempts=1, elapsed_seconds=5.0)
        elif ending == "error":
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, ExceptionGroup)
        else:
            assert isinstance(outcome, Expired if ending == "time-out" else Cancelled)
        assert await dispatcher.run(call(name="q")) == "done"
    assert (
        sorted(children)
        == {
            "success": ["a done", "b done"],
            "error": ["b cancelled"],
            "time-out": ["a done", "b cancelled"],
            "cancelled": ["a done", "b cancelled"],
        }[ending]
    )


async def test_the_worker_is_as_good_as_new_after_a_cancellation():
    """`asyncio.timeout` and `TaskGroup` work in the next call of the same worker: its cancellations are counted off."""

    async def careful(attempt: Attempt) -> int:
        async with asyncio.timeout(10.0), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1.0))
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async with running(max_in_flight=1, attempt_timeout=1.0, retry=FAST) as dispatcher:
        expired = dispatcher.submit(call(for_ever, timeout=2.5))
        await expired.outcome()
        cancelled = dispatcher.submit(call(for_ever))
        await turns()
        cancelled.cancel()
        await cancelled.outcome()
    async with running(max_in_flight=1) as dispatcher:
        for _ in range(3):
            cancelled = dispatcher.submit(call(for_ever))
            await turns()
            cancelled.cancel()
            await cancelled.outcome()
            assert await dispatcher.run(call(careful)) == 0


async def test_a_cancellation_swallowed_at_the_last_moment_is_counted_off_too():
    """The attempt ends well in the same turn in which it is asked to stop."""
    gate: list[asyncio.Future[None]] = []

    async def execute(attempt: Attempt) -> str:
        gate.append(asyncio.get_running_loop().create_future())
        await gate[-1]
        return "done"

    async def count(attempt: Attempt) -> int:
        await asyncio.sleep(1.0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async with running(max_in_flight=1) as dispatcher:
        handle = dispatcher.submit(call(execute))
        await turns()
        gate[0].set_result(None)
        handle.cancel("too late")
        outcome = await handle.outcome()
        assert isinstance(outcome, Cancelled)
        assert await dispatcher.run(call(count)) == 0


async def test_only_the_servers_own_time_outs_cut_the_seats():
    """A caller that gave it no time says nothing about the server; an attempt's time-out does."""
    async with running(attempt_timeout=5.0, max_in_flight=AdaptiveLimit(initial=50)) as dispatcher:
        await dispatcher.submit(call(for_ever, timeout=1.0)).outcome()
        assert dispatcher.statistics().seats == 50
        await dispatcher.submit(call(for_ever, timeout=5.01)).outcome()
        assert dispatcher.statistics().seats == 35


def test_a_worker_whose_loop_is_gone_is_closed_without_a_complaint():
    """User code is left through its `finally`; nothing is decided any more."""
    left: list[str] = []

    async def execute(attempt: Attempt) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            left.append("left")

    async def enter() -> Any:
        dispatcher = await Dispatcher().__aenter__()
        handle = dispatcher.submit(call(execute))
        await turns()
        return dispatcher, handle

    loop = asyncio.new_event_loop()
    dispatcher, handle = loop.run_until_complete(enter())
    loop.close()
    (worker,) = dispatcher._pool.tasks
    worker._log_destroy_pending = False
    worker.get_coro().close()
    assert left == ["left"]
    assert handle.state is CallState.IN_FLIGHT


# -- what an attempt knows --------------------------------------------------------------------------------------------


async def test_an_attempt_knows_its_call():
    script = Script(OSError("reset"), "done")
    async with running(retry=FAST) as dispatcher:
        context = dispatcher.contexts.begin(pod())
        handle = dispatcher.submit(call(script, context=context, idempotency_key="k", timeout=20.0))
        await handle
        first, second = script.attempts
        assert (first.ticket, first.number, second.number) == (handle.ticket, 1, 2)
        assert first.context is context
        assert first.idempotency_key == "k"
        assert first.last_error is None
        assert isinstance(second.last_error, OSError)
        assert first.deadline == pytest.approx(1_020.0)


async def test_a_write_that_was_never_sent_is_not_in_doubt():
    """Law L10: `attempt.sent` set to False until the bytes leave."""

    async def unsent(attempt: Attempt) -> None:
        attempt.sent = False
        raise OSError("no connection")

    async def sent(attempt: Attempt) -> None:
        attempt.sent = False
        await asyncio.sleep(0.5)
        attempt.sent = True
        raise OSError("reset")

    once = RetryPolicy(stop=lambda state: True)
    async with running(retry=once) as dispatcher:
        for execute, ambiguous in ((unsent, False), (sent, True)):
            outcome = await dispatcher.submit(call(execute)).outcome()
            assert isinstance(outcome, Failed)
            assert outcome.ambiguous is ambiguous
        waiting = dispatcher.submit(call(lambda attempt: _never_sent(attempt)))
        await turns()
        waiting.cancel()
        assert (await waiting.outcome()).ambiguous is False


async def _never_sent(attempt: Attempt) -> None:
    attempt.sent = False
    await asyncio.sleep(60)


# -- workers ----------------------------------------------------------------------------------------------------------


async def test_workers_live_long_and_no_task_is_made_for_a_call():
    tasks: set[Any] = set()

    async def execute(attempt: Attempt) -> None:
        tasks.add(asyncio.current_task())
        await asyncio.sleep(0.1)

    async with running(max_in_flight=3) as dispatcher:
        await asyncio.gather(*(dispatcher.run(call(execute, f"p{i}")) for i in range(60)))
        assert len(tasks) == 3
        assert all(task.get_name().startswith("asyncdispatch-worker-") for task in tasks)


async def test_calls_that_never_suspend_let_others_run():
    """Rule R20: a worker gives way now and then."""
    beats: list[int] = []

    async def heart() -> None:
        while True:
            await asyncio.sleep(0)
            beats.append(1)

    async with running(max_in_flight=1) as dispatcher:
        handles = [dispatcher.submit(call(name=f"p{i}")) for i in range(640)]
        task = asyncio.create_task(heart())
        await handles[-1]
        task.cancel()
    assert 9 <= len(beats) <= 30


async def test_a_worker_gives_way_between_two_calls_not_inside_one():
    """Who runs then finds no call that is in flight but was not entered: cancelling it would be too late."""
    entered: set[int] = set()
    between: list[int] = []

    async def execute(attempt: Attempt) -> None:
        entered.add(attempt.ticket)

    async def look() -> None:
        while True:
            await asyncio.sleep(0)
            flying = [handle for handle in handles if handle.state is CallState.IN_FLIGHT]
            between.extend(handle.ticket for handle in flying if handle.ticket not in entered)

    async with running(max_in_flight=1) as dispatcher:
        handles = [dispatcher.submit(call(execute, f"p{i}")) for i in range(300)]
        task = asyncio.create_task(look())
        await handles[-1]
        task.cancel()
    assert between == []


async def test_nobody_is_woken_for_a_worker_that_gives_way():
    """It comes back for what waits. To look for another one, with each call that is submitted, costs half a call."""
    async with running(max_in_flight=1) as dispatcher:
        handles = [dispatcher.submit(call(name=f"p{i}")) for i in range(YIELD_EVERY + 1)]
        await turns(1)
        assert [handle.done() for handle in handles[-2:]] == [True, False]
        assert dispatcher._pool.waking == 1
        await handles[-1]
        assert dispatcher._pool.waking == 0


@pytest.mark.parametrize("when", range(1, 8))
@pytest.mark.parametrize("another", [True, False])
async def test_a_worker_cancelled_between_two_calls_loses_none(when: int, another: bool):
    """From outside, at any of its turns: the calls are done by its successor."""
    async with running(max_in_flight=1) as dispatcher:
        handles = [dispatcher.submit(call(name=f"p{i}")) for i in range(300)]
        await turns(when)
        for task in asyncio.all_tasks():
            if task.get_name().startswith("asyncdispatch-worker"):
                task.cancel()
        await turns()
        if another:
            handles.append(dispatcher.submit(call(name="next")))
        outcomes = await asyncio.gather(*(handle.outcome() for handle in handles))
        assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
        assert now() <= (0.0 if another else 0.11)


@pytest.mark.parametrize("expires", [False, True])
async def test_a_call_cancelled_as_the_one_before_it_ends_is_not_sent(expires: bool):
    """L5, L11: an observer cancels it before its first step, waiting still, or with its seat passed on already."""
    sent: list[str] = []
    states: list[CallState] = []

    class Canceller:
        def settled(self, handle: Any, outcome: Any) -> None:
            if handle is before:
                states.append(following.state)
                following.cancel("no longer wanted")

    # Its deadline is looked at as its turn comes, just before the table of deadlines would tell.
    deadline = round((asyncio.get_running_loop().time() + 1) * 10**9)
    told = ((deadline >> BUCKET_BITS) + 1) << BUCKET_BITS
    seconds = 1 + (told - deadline) / 2 / 10**9

    async def send(attempt: Any) -> None:
        sent.append(attempt.call.target.name)
        await asyncio.sleep(seconds)

    async with running(observers=(Canceller(),), max_in_flight=1) as dispatcher:
        first = dispatcher.submit(call(send, "first"))
        before = dispatcher.submit(call(send, "expires", timeout=1)) if expires else first
        following = dispatcher.submit(call(send, "following"))
        outcome = await following.outcome()
        assert isinstance(outcome, Cancelled)
        assert not outcome.ambiguous
        assert outcome.attempts == 0
    assert states == [CallState.IN_FLIGHT if expires else CallState.QUEUED]
    assert sent == ["first"]
