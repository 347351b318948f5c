"""Scheduling contexts: epochs, parents, validity, requirements (laws L5, L11, L21)."""

import asyncio
from typing import Any

import pytest

from asyncdispatch import (
    CallState,
    Cancelled,
    Completion,
    ConfigurationError,
    Expired,
    Failed,
    PrerequisiteFailed,
    RetryPolicy,
    SchedulingContext,
    StaleContext,
    Succeeded,
)
from tests.shell import (
    Script,
    StatusError,
    after,
    call,
    for_ever,
    now,
    pod,
    pod_dict,
    raising,
    running,
    stubborn,
    turns,
)


def loop_time() -> float:
    return asyncio.get_running_loop().time()


async def test_a_context_is_an_epoch_of_its_object():
    """Counted per dispatcher and never used twice."""
    async with running() as dispatcher:
        contexts = [dispatcher.contexts.begin(pod(f"p{i}")) for i in range(3)]
        for context in contexts:
            context.end("done")
        contexts.append(dispatcher.contexts.begin(pod_dict("p0")))
        epochs = [context.epoch for context in contexts]
        assert epochs == sorted(set(epochs))
        assert contexts[-1].ref == pod("p0", "u1")
        assert isinstance(contexts[-1], SchedulingContext)
        assert contexts[-1].ended is None
        assert repr(contexts[-1]) == f"<SchedulingContext {epochs[-1]} of Pod ns/p0 (u1) live>"
        assert repr(contexts[0]) == f"<SchedulingContext {epochs[0]} of Pod ns/p0 ended: done>"


async def test_a_new_context_ends_the_older_one_of_its_object():
    """What it had waiting is cancelled; what it has in flight is asked to stop."""
    async with running() as dispatcher:
        old = dispatcher.contexts.begin(pod())
        flying = dispatcher.submit(call(for_ever, context=old))
        waiting = dispatcher.submit(call(name="q", context=old, not_before=9.0))
        await turns()
        new = dispatcher.contexts.begin(pod())
        assert old.ended == "a newer context began"
        assert waiting.settled == Cancelled("a newer context began")
        assert flying.state is CallState.STOPPING
        assert isinstance(await flying.outcome(), Cancelled)
        assert await dispatcher.run(call(context=new)) == "done"
        assert dispatcher.statistics().contexts == 1


async def test_a_success_after_the_end_of_its_context_binds_nothing():
    """Law L11: it reaches no handle as a result, is told as late, and counted as stale."""
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod())
        handle = dispatcher.submit(call(stubborn(3.0, "bound"), context=context))
        await asyncio.sleep(1.0)
        context.end("preempted")
        outcome = await handle.outcome()
        assert now() == 3.0
        assert isinstance(outcome, Cancelled)
        assert (outcome.reason, outcome.late_success, outcome.ambiguous) == ("preempted", "bound", False)
        assert dispatcher.statistics().stale == 1


async def test_the_end_of_a_parent_ends_its_children():
    """Lost leadership, for one: a lease's context above its Pods'."""
    async with running() as dispatcher:
        lease = dispatcher.contexts.begin(pod("lease"))
        child = dispatcher.contexts.begin(pod("a"), parent=lease)
        grandchild = dispatcher.contexts.begin(pod("b"), parent=child)
        stranger = dispatcher.contexts.begin(pod("c"))
        handle = dispatcher.submit(call(context=grandchild, not_before=9.0))
        assert grandchild.parent is child
        lease.end("lost")
        assert (child.ended, grandchild.ended, stranger.ended) == ("lost", "lost", None)
        assert handle.settled == Cancelled("lost")
        with pytest.raises(StaleContext, match="lost"):
            dispatcher.contexts.begin(pod("d"), parent=lease)
        lease.end("again")
        assert lease.ended == "lost", "a context ends once"


async def test_a_context_may_not_be_begun_under_its_own_object():
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod())
        with pytest.raises(ConfigurationError, match="parent="):
            dispatcher.contexts.begin(pod(), parent=context)
        assert context.ended is None


async def test_validity_ends_a_context_by_itself():
    """Nothing starts after it, what waits is told within a tenth of a second."""
    async with running(max_in_flight=1) as dispatcher:
        context = dispatcher.contexts.begin(pod(), valid_until=loop_time() + 2.0)
        dispatcher.submit(call(after(9.0), "blocker"))
        handle = dispatcher.submit(call(context=context))
        outcome = await handle.outcome()
        assert 2.0 <= now() <= 2.1
        assert isinstance(outcome, (Cancelled, Expired))
        assert outcome.attempts == 0
        await asyncio.sleep(0.2)
        assert context.ended == "its validity is over"


@pytest.mark.parametrize("ago", [0.0, 5.0])
async def test_a_context_that_is_over_as_it_begins_is_stale(ago: float):
    """Rule R7: a leader whose loop has stalled learns that its time is over, not that it has made a mistake."""
    async with running() as dispatcher:
        await asyncio.sleep(10.0)
        with pytest.raises(StaleContext, match="is over already"):
            dispatcher.contexts.begin(pod(), valid_until=loop_time() - ago)
        assert dispatcher.statistics().contexts == 0


async def test_extend_moves_the_end():
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod(), valid_until=loop_time() + 2.0)
        handle = dispatcher.submit(call(after(6.0), context=context))
        await asyncio.sleep(1.0)
        context.extend(loop_time() + 9.0)
        assert context.valid_until == loop_time() + 9.0
        assert await handle == "done", "the attempt in flight goes on beyond the old end"
        assert now() == 6.0
        assert context.ended is None


async def test_a_context_without_an_end_may_be_given_one():
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod())
        handle = dispatcher.submit(call(for_ever, context=context))
        await turns()
        context.extend(loop_time() + 2.0)
        await handle.outcome()
        assert now() == pytest.approx(2.0, abs=0.1)


async def test_extend_after_the_end_raises_stale_context():
    async with running() as dispatcher:
        until = loop_time() + 2.0
        context = dispatcher.contexts.begin(pod(), valid_until=until)
        await asyncio.sleep(3.0)
        with pytest.raises(StaleContext, match="its validity is over"):
            context.extend(loop_time() + 10.0)
        ended = dispatcher.contexts.begin(pod())
        ended.end("preempted")
        with pytest.raises(StaleContext, match="preempted"):
            ended.extend(loop_time() + 10.0)


async def test_after_a_stall_the_clock_is_looked_at_first(monkeypatch: pytest.MonkeyPatch):
    """Case H3: the loop was blocked beyond the lease's end. Nothing starts, and extending is too late."""
    script = Script("written")
    async with running() as dispatcher:
        lease = dispatcher.contexts.begin(pod("lease"), valid_until=loop_time() + 10.0)
        dispatcher.submit(call(after(60.0), timeout=2.0))
        handle = dispatcher.submit(call(script, context=lease))
        loop = asyncio.get_running_loop()
        stalled = loop.time() + 19.0
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: max(stalled, real()))
        await turns()
        assert script.times == []
        assert lease.ended == "its validity is over"
        with pytest.raises(StaleContext):
            lease.extend(stalled + 10.0)
        outcome = await handle.outcome()
        assert not isinstance(outcome, Succeeded)


async def test_no_write_starts_or_lands_after_the_end_of_the_lease():
    """Case H1: 200 writes of four seconds each, a lease until second ten, and something that blocks the shutdown."""
    starts: list[float] = []
    ends: list[float] = []

    async def write(attempt: Any) -> None:
        starts.append(now())
        try:
            await asyncio.sleep(4.0)
        finally:
            ends.append(now())

    async with running(max_in_flight=10) as dispatcher:
        lease = dispatcher.contexts.begin(pod("lease"), valid_until=loop_time() + 10.0)
        handles = [dispatcher.submit(call(write, f"p{i}", context=lease)) for i in range(200)]
        hook = dispatcher.submit(call(stubborn(60.0), "hook"))
        await asyncio.gather(*(handle.outcome() for handle in handles))
        assert now() < 11.0
        assert max(starts) < 10.0
        assert max(ends) <= 10.01
        assert lease.ended is not None
        await hook.outcome()
    assert len(starts) == len(ends) < 200


async def test_a_context_that_ends_while_its_call_is_in_backoff_ends_the_call_at_once():
    """Case H13."""
    async with running(retry=RetryPolicy(wait=lambda _: 60.0)) as dispatcher:
        context = dispatcher.contexts.begin(pod())
        handle = dispatcher.submit(call(Script(StatusError(503)), context=context))
        await asyncio.sleep(1.0)
        assert handle.state is CallState.BACKOFF
        context.end("preempted")
        assert isinstance(handle.settled, Cancelled)
        assert isinstance(handle.settled.cause, StatusError)


# -- requirements -----------------------------------------------------------------------------------------------------


async def test_requirements_are_pending_confirmed_or_failed():
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod(), requires=("volume", "claim", "quota"))
        assert context.requirements == {"volume": None, "claim": None, "quota": None}
        assert context.missing() == ["volume", "claim", "quota"]
        error = ValueError("none left")
        context.confirm("claim")
        context.fail("quota", error)
        assert context.requirements == {"volume": None, "claim": True, "quota": error}
        assert context.missing() == ["volume", "quota"]


async def test_a_call_that_awaits_its_prerequisites_starts_when_all_are_confirmed():
    """By calls that are prerequisites, or from outside."""
    script = Script("bound")
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod(), requires=("volume", "claim"))
        bind = dispatcher.submit(call(script, context=context, awaits_prerequisites=True))
        await turns()
        assert bind.state is CallState.REQUIREMENTS
        dispatcher.submit(call(after(2.0), "pv", context=context, prerequisite="volume"))
        await asyncio.sleep(3.0)
        assert bind.state is CallState.REQUIREMENTS
        context.confirm("claim")
        assert await bind == "bound"
        assert script.times == [3.0]


async def test_what_was_confirmed_before_the_call_came_counts():
    """Case I5: the condition is evaluated when asked, not only when an event comes."""
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod(), requires=("volume",))
        await dispatcher.run(call(name="pv", context=context, prerequisite="volume"))
        assert await dispatcher.run(call(context=context, awaits_prerequisites=True)) == "done"


@pytest.mark.parametrize("late", [False, True])
async def test_a_prerequisite_that_ends_in_any_other_way_fails_the_call(late: bool):
    """Case I5: its object was gone; asked early or late."""
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod(), requires=("volume", "claim"))
        binds = [] if late else [dispatcher.submit(call(context=context, awaits_prerequisites=True))]
        volume = call(raising(LookupError("gone")), "pv", context=context, prerequisite="volume")
        await dispatcher.submit(volume).outcome()
        if late:
            binds.append(dispatcher.submit(call(context=context, awaits_prerequisites=True)))
        outcome = await binds[0].outcome()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, PrerequisiteFailed)
        assert outcome.error.name == "volume"
        assert now() == 0.0


async def test_a_cancelled_prerequisite_fails_the_call_too():
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod(), requires=("volume",))
        bind = dispatcher.submit(call(context=context, awaits_prerequisites=True))
        volume = dispatcher.submit(call(name="pv", context=context, prerequisite="volume", not_before=5.0))
        volume.cancel("changed my mind")
        with pytest.raises(PrerequisiteFailed, match="changed my mind"):
            await bind


async def test_a_call_that_waits_for_a_requirement_has_a_deadline():
    """Nothing lives on an event alone (law L19)."""
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod(), requires=("never",))
        outcome = await dispatcher.submit(call(context=context, awaits_prerequisites=True, timeout=3.0)).outcome()
        assert isinstance(outcome, Expired)
        assert outcome.where == "requirements"


async def test_a_new_context_starts_from_nothing_confirmed():
    async with running() as dispatcher:
        old = dispatcher.contexts.begin(pod(), requires=("volume",))
        old.confirm("volume")
        new = dispatcher.contexts.begin(pod(), requires=("volume",))
        assert new.missing() == ["volume"]
        with pytest.raises(StaleContext):
            old.confirm("volume")
        with pytest.raises(StaleContext):
            old.fail("volume", ValueError())


async def test_without_requirements_nothing_is_awaited():
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod())
        assert await dispatcher.run(call(context=context, awaits_prerequisites=True)) == "done"
        assert await dispatcher.run(call(awaits_prerequisites=True)) == "done"


async def test_a_completion_carries_the_epoch_in_which_it_was_decided():
    """Case F9: a late event of an old generation can be told by it."""
    async with running() as dispatcher, dispatcher.completions() as stream:
        context = dispatcher.contexts.begin(pod())
        await dispatcher.run(call(context=context))
        completion = await anext(stream)
        assert isinstance(completion, Completion)
        assert completion.epoch == context.epoch
        newer = dispatcher.contexts.begin(pod())
        assert newer.epoch != completion.epoch
