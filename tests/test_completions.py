"""Completion events: bounded, told what was lost, ended by closing; they ask to look again."""

import asyncio
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from asyncdispatch import Completion, Effect, Expired, Failed, RetryPolicy, Succeeded
from tests.shell import after, call, for_ever, now, pod, pod_dict, raising, running, turns
from tests.test_user_hooks import Hooked


async def test_every_outcome_is_told():
    async with running() as dispatcher, dispatcher.completions() as stream:
        good = dispatcher.submit(call(target=pod("a", "u1")))
        bad = dispatcher.submit(call(raising(ValueError()), "b", call_type="patch"))
        await asyncio.gather(good.outcome(), bad.outcome())
        first, second = await anext(stream), await anext(stream)
        assert first == Completion(pod("a", "u1"), None, good.ticket, "write", Succeeded("done", attempts=1))
        assert (second.ref, second.call_type, second.needs_read, second.lost) == (pod("b"), "patch", False, 0)
        assert isinstance(second.outcome, Failed)
        with pytest.raises(FrozenInstanceError):
            first.ticket = 3  # type: ignore[misc]


async def test_a_write_in_doubt_asks_for_a_read():
    async with running(retry=RetryPolicy(stop=lambda _: True)) as dispatcher, dispatcher.completions() as stream:
        for effect, wanted in ((Effect.CREATE, True), (Effect.READ, False)):
            await dispatcher.submit(call(raising(OSError("reset")), effect=effect)).outcome()
            assert (await anext(stream)).needs_read is wanted


async def test_a_doubtful_success_that_came_late_asks_for_nothing_more():
    async with running() as dispatcher, dispatcher.completions() as stream:
        handle = dispatcher.submit(call(for_ever, timeout=1.0))
        outcome = await handle.outcome()
        assert isinstance(outcome, Expired)
        assert (await anext(stream)).needs_read


async def test_an_own_write_that_is_not_seen_for_too_long_asks_for_a_read():
    """Rule R3: at the bound ask for a fresh read, never forget in silence. No outcome comes with it."""
    async with running(unobserved_age=20.0) as dispatcher, dispatcher.completions() as stream:
        await dispatcher.run(Hooked(target=pod(), on_apply=lambda call, obj: {**obj, "mine": True}))
        assert (await anext(stream)).outcome is not None
        asked = await anext(stream)
        assert now() == pytest.approx(20.0, abs=0.1)
        assert (asked.ref.lane, asked.outcome, asked.needs_read) == (pod().lane, None, True)
        assert dispatcher.observe(pod_dict(), fresh=True) == pod_dict()
        assert dispatcher.statistics().unobserved == 0


async def test_a_slow_subscriber_loses_the_oldest_and_is_told_how_many():
    """Before the next one it gets, and in all; then the counting starts anew."""
    async with running() as dispatcher, dispatcher.completions(maxsize=3) as stream:
        handles = [dispatcher.submit(call(name=f"p{i}")) for i in range(10)]
        await asyncio.gather(*handles)
        got = [await anext(stream) for _ in range(3)]
        assert [c.ticket for c in got] == [8, 9, 10]
        assert [c.lost for c in got] == [7, 0, 0]
        assert stream.lost == 7
        await asyncio.gather(*(dispatcher.run(call(name=f"q{i}")) for i in range(5)))
        assert (await anext(stream)).lost == 2
        assert (await anext(stream)).lost == 0
        assert stream.lost == 9


async def test_subscribers_do_not_take_from_one_another():
    async with running() as dispatcher, dispatcher.completions() as one, dispatcher.completions(maxsize=1) as two:
        await asyncio.gather(*(dispatcher.run(call(name=f"p{i}")) for i in range(3)))
        assert [(await anext(one)).ticket for _ in range(3)] == [1, 2, 3]
        assert (await anext(two)).ticket == 3
        assert (one.lost, two.lost) == (0, 2)


async def test_an_iterator_waits_for_the_next_one():
    async with running() as dispatcher, dispatcher.completions() as stream:
        waiting = asyncio.create_task(anext(stream))
        await turns()
        assert not waiting.done()
        dispatcher.submit(call(after(2.0)))
        assert (await waiting).ticket == 1
        assert now() == 2.0


async def test_the_iteration_ends_when_the_dispatcher_is_closed():
    """What is in the buffer is told before."""
    seen: list[int] = []
    async with running() as dispatcher:

        async def follow() -> None:
            async with dispatcher.completions() as stream:
                async for completion in stream:
                    seen.append(completion.ticket)
                    await asyncio.sleep(1.0)

        task = asyncio.create_task(follow())
        await turns()
        for i in range(3):
            dispatcher.submit(call(name=f"p{i}"))
        await asyncio.sleep(0.5)
        await dispatcher.drain()
        await task
    assert seen == [1, 2, 3]
    assert now() == 3.0


async def test_a_subscription_of_a_closed_dispatcher_ends_at_once():
    async with running() as dispatcher:
        await dispatcher.aclose()
        async with dispatcher.completions() as stream:
            assert [completion async for completion in stream] == []


async def test_who_has_left_gets_nothing_more():
    async with running() as dispatcher:
        async with dispatcher.completions() as stream:
            pass
        await dispatcher.run(call())
        assert dispatcher._completions.streams == []
        assert len(stream._buffer) == 0


async def test_cancelling_who_waits_for_the_next_loses_nothing():
    async with running() as dispatcher, dispatcher.completions() as stream:
        waiting: Any = asyncio.create_task(anext(stream))
        await turns()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await dispatcher.run(call())
        assert (await anext(stream)).ticket == 1


async def test_a_wake_up_and_a_cancellation_in_the_same_turn_lose_nothing():
    async with running() as dispatcher, dispatcher.completions() as stream:
        handle = dispatcher.submit(call(name="q", not_before=5.0))
        waiting: Any = asyncio.create_task(anext(stream))
        await turns()
        handle.cancel()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await anext(stream)).ticket == handle.ticket
