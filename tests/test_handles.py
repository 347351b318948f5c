"""The caller's side of an accepted call: awaiting, asking, cancelling, and being told."""

import asyncio
import logging
from typing import Any

import pytest

from asyncdispatch import (
    AmbiguousOutcome,
    CallCancelled,
    CallFailed,
    CallOverwritten,
    CallShed,
    CallSkipped,
    CallState,
    CallTypePolicy,
    Cancelled,
    DeadlineExpired,
    Effect,
    Expired,
    Failed,
    Overwritten,
    PrerequisiteFailed,
    Shed,
    Skipped,
    Succeeded,
    VerdictKind,
)
from tests.shell import after, call, just_after, now, pod, raising, running, stubborn, turns


async def test_awaiting_a_handle_gives_the_value():
    async with running() as dispatcher:
        handle = dispatcher.submit(call(after(1.0, {"a": 1})))
        assert await handle == {"a": 1}
        assert now() == 1.0
        assert await handle == {"a": 1}, "a second await gives it again"


async def test_outcome_tells_the_story():
    """Attempts, and the seconds of waiting and of all."""
    async with running(max_in_flight=1) as dispatcher:
        dispatcher.submit(call(after(2.0), "a"))
        outcome = await dispatcher.submit(call(after(3.0, "b"), "b")).outcome()
    assert outcome == Succeeded("b", attempts=1, queued_seconds=2.0, elapsed_seconds=5.0)


async def test_a_handle_says_where_its_call_is():
    """`state` is that of the execution, `settled` None until the outcome is there."""
    async with running(max_in_flight=1) as dispatcher:
        first = dispatcher.submit(call(after(1.0), "a"))
        second = dispatcher.submit(call(after(1.0), "b"))
        behind = dispatcher.submit(call(after(1.0), "a"))
        delayed = dispatcher.submit(call(after(1.0), "c", not_before=9.0))
        assert (first.state, second.state, behind.state) == (CallState.QUEUED, CallState.QUEUED, CallState.LINE)
        assert delayed.state is CallState.DELAYED
        await turns()
        assert (first.state, second.state) == (CallState.IN_FLIGHT, CallState.QUEUED)
        assert first.settled is None
        assert not first.done()
        await first
        assert first.done()
        assert first.state is CallState.SUCCEEDED
        assert first.settled == Succeeded("done", attempts=1, elapsed_seconds=1.0)


async def test_tickets_count_the_accepted_calls():
    async with running() as dispatcher:
        handles = [dispatcher.submit(call(name=f"p{i}")) for i in range(4)]
        assert [handle.ticket for handle in handles] == [1, 2, 3, 4]


async def test_the_repr_says_ticket_type_object_and_state():
    async with running() as dispatcher:
        handle = dispatcher.submit(call(target=pod("p", "u1")))
        assert repr(handle) == "<CallHandle 1 write of Pod ns/p (u1) queued>"
        await handle
        assert repr(handle) == "<CallHandle 1 write of Pod ns/p (u1) succeeded>"


async def test_result_is_for_those_who_do_not_wait():
    async with running() as dispatcher:
        good, bad = dispatcher.submit(call(name="a")), dispatcher.submit(call(raising(ValueError("no")), "b"))
        for handle in (good, bad):
            with pytest.raises(asyncio.InvalidStateError, match=r"call \d is queued: it has no outcome yet"):
                handle.result()
        await asyncio.gather(good.outcome(), bad.outcome())
        assert good.result() == "done"
        with pytest.raises(CallFailed):
            bad.result()


async def test_a_success_may_have_the_value_none_or_be_an_exception():
    """A value is a value, whatever it is."""
    error = ValueError("a value")
    async with running() as dispatcher:
        assert await dispatcher.submit(call(after(0.0, None))) is None
        assert await dispatcher.submit(call(after(0.0, error))) is error
        outcome = Cancelled[Any]("as a value")
        assert await dispatcher.submit(call(after(0.0, outcome))) is outcome


# -- one error for each outcome ---------------------------------------------------------------------------------------


async def test_failed_raises_call_failed_from_the_original_error():
    original = ValueError("no such thing")
    async with running() as dispatcher:
        handle = dispatcher.submit(call(raising(original)))
        with pytest.raises(CallFailed, match=r"call 1 \(write of Pod ns/p\) failed \(permanent\)") as caught:
            await handle
    assert type(caught.value) is CallFailed
    assert caught.value.__cause__ is original
    outcome = caught.value.outcome
    assert isinstance(outcome, Failed)
    assert (outcome.error, outcome.verdict.kind, outcome.ambiguous) == (original, VerdictKind.PERMANENT, False)
    assert outcome.cause is original


async def test_a_failed_write_that_may_be_there_raises_ambiguous_outcome():
    async with running() as dispatcher:
        handle = dispatcher.submit(call(raising(OSError("reset")), effect=Effect.CREATE))
        with pytest.raises(AmbiguousOutcome, match="may have been applied") as caught:
            await handle
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.outcome.ambiguous


async def test_expired_raises_deadline_expired():
    async with running(max_in_flight=1) as dispatcher:
        dispatcher.submit(call(after(5.0), "a"))
        with pytest.raises(DeadlineExpired, match=r"ran out of time \(queued\)") as caught:
            await dispatcher.submit(call(name="b", timeout=2.0))
        assert just_after(2.0)
    outcome = caught.value.outcome
    assert isinstance(outcome, Expired)
    assert (outcome.where, outcome.attempts, outcome.queued_seconds) == ("queued", 0, outcome.elapsed_seconds)


async def test_cancelled_raises_call_cancelled_and_not_cancelled_error():
    """A task that awaits a cancelled call is not cancelled itself."""
    async with running(max_in_flight=1) as dispatcher:
        dispatcher.submit(call(after(5.0), "a"))
        handle = dispatcher.submit(call(name="b"))
        assert handle.cancel("not wanted") is True
        with pytest.raises(CallCancelled, match="was cancelled: not wanted") as caught:
            await handle
    assert not isinstance(caught.value, asyncio.CancelledError)
    assert caught.value.outcome == Cancelled("not wanted")


async def test_overwritten_and_skipped_name_the_other_call():
    """The success of a bind settles the waiting patches that it supersedes, before and after it (law L12)."""
    async with running() as dispatcher:
        blocker = dispatcher.submit(call(after(1.0), call_type="other"))
        before = dispatcher.submit(call(call_type="pod_status_patch"))
        bind = dispatcher.submit(call(after(1.0), call_type="pod_binding"))
        await blocker
        await turns()
        behind = dispatcher.submit(call(call_type="pod_status_patch"))
        await bind
        with pytest.raises(CallOverwritten, match=f"overwritten by call {bind.ticket}"):
            await before
        with pytest.raises(CallSkipped, match=f"call {bind.ticket} has succeeded and supersedes it"):
            await behind
        assert isinstance(before.settled, Overwritten)
        assert before.settled.by == bind.ticket
        assert isinstance(behind.settled, Skipped)
        assert behind.settled.by == bind.ticket


async def test_shed_names_the_call_that_took_the_room():
    async with running(capacity=2, reserve=0.0, max_in_flight=1) as dispatcher:
        dispatcher.submit(call(after(1.0), "a"))
        await turns()
        victim = dispatcher.submit(call(name="b", sheddable=True, priority=-5000))
        urgent = dispatcher.submit(call(name="c", priority=1000))
        with pytest.raises(CallShed, match=f"made room for call {urgent.ticket}"):
            await victim
        assert isinstance(victim.settled, Shed)
        assert await urgent == "done"


async def test_prerequisite_failed_names_the_requirement_and_its_error():
    error = ValueError("no volume")
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod(), requires=("volume",))
        bind = dispatcher.submit(call(context=context, awaits_prerequisites=True))
        volume = dispatcher.submit(call(raising(error), "pvc", context=context, prerequisite="volume"))
        with pytest.raises(PrerequisiteFailed, match="requirement 'volume' failed") as caught:
            await bind
        assert caught.value.name == "volume"
        assert caught.value.__cause__ is error
        assert isinstance(caught.value.outcome, Failed)
        assert isinstance(volume.settled, Failed)


# -- cancelling -------------------------------------------------------------------------------------------------------


async def test_cancel_says_whether_it_did_anything():
    async with running(max_in_flight=1) as dispatcher:
        first, second = dispatcher.submit(call(after(1.0), "a")), dispatcher.submit(call(name="b"))
        assert second.cancel() is True
        assert second.cancel() is False
        assert second.settled == Cancelled("cancelled by its caller")
        await first
        assert first.cancel() is False
        assert first.state is CallState.SUCCEEDED


async def test_a_call_in_flight_is_cancelled_once_its_attempt_has_ended():
    """Its outcome is told then, and ambiguous: the request was on its way (laws L10, L11)."""
    seen: list[str] = []

    async def execute(attempt: Any) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(2)
            seen.append("ended")
            raise

    async with running() as dispatcher:
        handle = dispatcher.submit(call(execute))
        await asyncio.sleep(1)
        assert handle.cancel("enough") is True
        assert handle.state is CallState.STOPPING
        assert handle.cancel("again") is False
        outcome = await handle.outcome()
        assert seen == ["ended"]
        assert now() == 3.0
    assert isinstance(outcome, Cancelled)
    assert (outcome.reason, outcome.ambiguous, outcome.attempts) == ("enough", True, 1)


async def test_a_success_that_comes_after_the_cancellation_is_told_as_late():
    """Law L11: Cancelled, with what the attempt has brought."""
    async with running() as dispatcher:
        handle = dispatcher.submit(call(stubborn(3.0, "bound")))
        await asyncio.sleep(1)
        handle.cancel("enough")
        outcome = await handle.outcome()
        assert now() == 3.0
    assert outcome == Cancelled("enough", attempts=1, elapsed_seconds=3.0, late_success="bound")
    assert outcome.ambiguous is False


async def test_cancelling_a_task_that_awaits_a_handle_leaves_the_call():
    """The call goes on, others who await it get the value, and the handle forgets the cancelled one."""
    async with running() as dispatcher:
        handle = dispatcher.submit(call(after(3.0)))

        async def wait() -> Any:
            return await handle

        async def wait_for_outcome() -> Any:
            return await handle.outcome()

        tasks = [asyncio.create_task(wait()), asyncio.create_task(wait_for_outcome())]
        other = asyncio.create_task(wait())
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
        assert handle.state is CallState.IN_FLIGHT
        assert len(handle.waiter) == 1
        assert await other == "done"
        assert now() == 3.0


async def test_a_time_out_around_a_handle_leaves_the_call():
    async with running() as dispatcher:
        handle = dispatcher.submit(call(after(3.0)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await handle
        assert await handle == "done"


async def test_the_waiter_of_a_cancelled_call_can_be_cancelled_in_the_same_turn():
    """The outcome and the cancellation of who awaits it may meet: neither is lost."""
    async with running(max_in_flight=1) as dispatcher:
        dispatcher.submit(call(after(5.0), "a"))
        handle = dispatcher.submit(call(name="b"))
        task = asyncio.create_task(handle.outcome())
        await turns()
        handle.cancel("both")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert handle.settled == Cancelled("both")


# -- callbacks --------------------------------------------------------------------------------------------------------


async def test_a_done_callback_gets_the_handle_in_a_later_turn():
    """Never from inside another's step; soon, if the outcome is there already."""
    async with running(max_in_flight=1) as dispatcher:
        told: list[Any] = []
        dispatcher.submit(call(after(1.0), "a"))
        handle = dispatcher.submit(call(name="b"))
        handle.add_done_callback(told.append)
        handle.add_done_callback(told.append)
        handle.cancel()
        assert told == []
        await turns(2)
        assert told == [handle, handle]
        handle.add_done_callback(told.append)
        assert len(told) == 2
        await turns(2)
        assert told == [handle] * 3


async def test_callbacks_and_waiters_of_one_handle_are_told_in_order():
    async with running() as dispatcher:
        handle = dispatcher.submit(call(after(1.0)))
        told: list[str] = []
        handle.add_done_callback(lambda _: told.append("first"))
        handle.add_done_callback(lambda _: told.append("second"))
        await handle
        await turns(2)
        assert told == ["first", "second"]


async def test_an_error_of_a_callback_is_logged_and_counted_and_nothing_else(caplog: pytest.LogCaptureFixture):
    """Law L14."""

    def fail(_: Any) -> None:
        raise ValueError("in a callback")

    async with running() as dispatcher:
        handle = dispatcher.submit(call())
        told: list[Any] = []
        handle.add_done_callback(fail)
        handle.add_done_callback(told.append)
        with caplog.at_level(logging.ERROR):
            assert await handle == "done"
            await turns(3)
        assert told == [handle]
        assert dispatcher.statistics().observer_errors == 1
    (record,) = caplog.records
    assert "done callback of call 1 raised" in record.getMessage()
    assert record.__dict__["ticket"] == 1
    assert record.exc_info is not None


async def test_a_callback_may_submit_the_next_call():
    async with running() as dispatcher:
        following: list[Any] = []
        first = dispatcher.submit(call(name="a"))
        first.add_done_callback(lambda _: following.append(dispatcher.submit(call(name="b"))))
        await first
        await turns(2)
        assert await following[0] == "done"


# -- joining ----------------------------------------------------------------------------------------------------------


async def test_a_joiner_has_a_handle_of_its_own_and_the_same_outcome():
    """Law L8: one execution; each handle keeps its own deadline and cancellation."""
    starts: list[int] = []

    async def execute(attempt: Any) -> str:
        starts.append(attempt.ticket)
        await asyncio.sleep(5)
        return "once"

    async with running() as dispatcher:
        one, two, three = (dispatcher.submit(call(execute, idempotency_key="k")) for _ in range(3))
        hasty = dispatcher.submit(call(execute, idempotency_key="k", timeout=2.0))
        assert len({one.ticket, two.ticket, three.ticket, hasty.ticket}) == 4
        await turns()
        assert two.state is CallState.IN_FLIGHT
        assert three.cancel("not me") is True
        assert await three.outcome() == Cancelled("not me", attempts=1, ambiguous=True)  # its request may yet land
        assert isinstance(await hasty.outcome(), Expired)
        assert just_after(2.0)
        assert (await one, await two) == ("once", "once")
        assert starts == [one.ticket]


async def test_handles_of_one_execution_share_its_error():
    async with running() as dispatcher:
        one, two = (dispatcher.submit(call(raising(ValueError("no")), idempotency_key="k")) for _ in range(2))
        for handle in (one, two):
            with pytest.raises(CallFailed):
                await handle
        assert one.settled is not None
        assert two.settled is not None
        assert one.settled.cause is two.settled.cause


async def test_superseding_follows_the_configuration():
    """The default pair is binding over status patch; another is a line of configuration."""
    async with running(call_types={"big": CallTypePolicy(supersedes=("small",))}) as dispatcher:
        dispatcher.submit(call(after(1.0), call_type="other"))
        small = dispatcher.submit(call(call_type="small"))
        dispatcher.submit(call(call_type="big"))
        assert isinstance(await small.outcome(), Overwritten)


def test_the_names_of_the_states_are_those_of_expired_where():
    waiting = {"queued", "delayed", "line", "requirements", "backoff", "held", "in_flight"}
    assert waiting <= {state.value for state in CallState}
