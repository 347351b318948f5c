"""Completions into the scheduler's own queue: look again, with the epoch; what was lost asks for a list."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncdispatch import ConfigurationError, RetryPolicy
from asyncdispatch.requeue import LookAgain, Requeue
from tests.shell import Script, StatusError, after, call, for_ever, now, pod, raising, running, turns
from tests.test_user_hooks import Hooked


class Queue:
    """A user's queue, that may refuse, and its list again."""

    def __init__(self) -> None:
        self.looks: list[LookAgain] = []
        self.lists: list[int] = []
        self.refuses = 0
        self.broken = 0

    def put(self, look: LookAgain) -> None:
        if self.refuses:
            self.refuses -= 1
            raise asyncio.QueueFull
        self.looks.append(look)

    async def relist(self, lost: int) -> None:
        await asyncio.sleep(0)
        if self.broken:
            self.broken -= 1
            raise OSError("list failed")
        self.lists.append(lost)


async def test_what_did_not_succeed_is_looked_at_again():
    """With the epoch in which it was decided, and why; a plain success is not."""
    queue = Queue()
    once = RetryPolicy(stop=lambda _: True)
    async with running(retry=once) as dispatcher, Requeue(dispatcher, queue.put, relist=queue.relist) as requeue:
        context = dispatcher.contexts.begin(pod("a"))
        dispatcher.submit(call(raising(StatusError(422)), "a", call_type="bind", context=context))
        dispatcher.submit(call(name="b"))
        dispatcher.submit(call(raising(OSError()), "c"))
        dispatcher.submit(call(for_ever, "d", timeout=2.0))
        await asyncio.sleep(3.0)
        assert queue.looks == [
            LookAgain(pod("a"), context.epoch, "bind", "failed", False),
            LookAgain(pod("c"), None, "write", "failed", True),
            LookAgain(pod("d"), None, "write", "expired", True),
        ]
        assert requeue.scheduling_retries == {"failed": 2, "expired": 1}
    assert (queue.lists, requeue.lost) == ([], 0)


async def test_it_never_binds():
    """What is put is a reference and an epoch: it has no call, no handle and no value."""
    assert set(LookAgain.__slots__) == {"ref", "epoch", "call_type", "why", "needs_read"}


async def test_api_retries_are_counted_apart():
    """Three attempts of one call are two API retries and no scheduling retry."""
    queue = Queue()
    policy = RetryPolicy(wait=lambda _: 1.0)
    async with running(retry=policy) as dispatcher, Requeue(dispatcher, queue.put, relist=queue.relist) as requeue:
        await dispatcher.submit(call(Script(OSError(), OSError(), "done")))
        await dispatcher.submit(call(raising(ValueError()), "b")).outcome()
        await turns()
        assert dispatcher.statistics().retried == 2
        assert requeue.scheduling_retries == {"failed": 1}
        assert dispatcher.statistics().scheduling_retries == {"failed": 1}


async def test_an_unseen_write_asks_for_a_read():
    queue = Queue()
    async with running(unobserved_age=20.0) as dispatcher:
        async with Requeue(dispatcher, queue.put, relist=queue.relist):
            await dispatcher.run(Hooked(target=pod(), on_apply=lambda call, obj: {**obj, "mine": True}))
            await asyncio.sleep(30.0)
            (look,) = queue.looks
            assert (look.why, look.needs_read, look.ref.lane) == ("unobserved", True, pod().lane)
        dispatcher.observe(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}, fresh=True
        )


async def test_the_user_chooses():
    queue = Queue()
    async with running() as dispatcher:
        async with Requeue(
            dispatcher, queue.put, relist=queue.relist, wanted=lambda completion: completion.call_type == "bind"
        ):
            await dispatcher.run(call(call_type="bind"))
            await dispatcher.run(call(name="b"))
            await turns()
        assert [(look.call_type, look.why) for look in queue.looks] == [("bind", "succeeded")]


async def test_lost_completions_ask_for_a_list():
    """Because it was too slow, or because the queue refused: how many, once for each gap."""
    queue = Queue()
    async with running() as dispatcher, Requeue(dispatcher, queue.put, relist=queue.relist, maxsize=3) as requeue:
        for name in range(10):
            dispatcher.submit(call(raising(ValueError()), f"p{name}", not_before=1.0))
        queue.refuses = 1
        await asyncio.sleep(2.0)
        assert [look.ref.name for look in queue.looks] == ["p8", "p9"]
        assert queue.lists == [8]
        assert (requeue.lost, requeue.relists) == (8, 1)


async def test_a_list_that_fails_is_asked_for_again(caplog: pytest.LogCaptureFixture):
    """With the next completion, at the latest on leaving: nothing that was lost is forgotten."""
    queue = Queue()
    queue.refuses, queue.broken = 2, 3
    async with running() as dispatcher:
        async with Requeue(dispatcher, queue.put, relist=queue.relist) as requeue:
            with caplog.at_level(logging.CRITICAL, "asyncdispatch"):
                for name in ("a", "b", "c"):
                    await dispatcher.submit(call(raising(ValueError()), name)).outcome()
                    await turns()
            assert (queue.lists, requeue.lost) == ([], 2)
        assert (queue.lists, requeue.relists) == ([2], 1)


async def test_leaving_delivers_what_was_told_before():
    """And no more; a slow queue is waited for."""
    looks: list[str] = []

    async def slow(look: LookAgain) -> None:
        await asyncio.sleep(1.0)
        looks.append(look.ref.name)

    async with running() as dispatcher:
        async with Requeue(dispatcher, slow, relist=lambda lost: None):
            for name in ("a", "b", "c"):
                await dispatcher.submit(call(raising(ValueError()), name)).outcome()
        assert (looks, now()) == (["a", "b", "c"], 3.0)
        await dispatcher.submit(call(raising(ValueError()), "d")).outcome()
    assert looks == ["a", "b", "c"]


async def test_it_ends_with_the_dispatcher():
    queue = Queue()
    async with running() as dispatcher:
        async with Requeue(dispatcher, queue.put, relist=queue.relist):
            handle = dispatcher.submit(call(after(9.0)))
            await dispatcher.aclose("shutdown")
        assert [look.why for look in queue.looks] == ["cancelled"]
        assert handle.done()


async def test_cancelling_it_while_it_leaves_leaves_nothing():
    """Also if the queue holds it up for ever."""

    async def held(look: LookAgain) -> None:
        await asyncio.get_running_loop().create_future()

    async with running() as dispatcher:

        async def use() -> None:
            async with Requeue(dispatcher, held, relist=lambda lost: None):
                await dispatcher.submit(call(raising(ValueError()))).outcome()

        task = asyncio.create_task(use())
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_bad_input_is_named():
    async with running() as dispatcher:
        with pytest.raises(ConfigurationError, match="put=None: must be callable"):
            Requeue(dispatcher, None, relist=print)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="maxsize=0"):
            Requeue(dispatcher, print, relist=print, maxsize=0)
        requeue = Requeue(dispatcher, print, relist=print)
        async with requeue:
            with pytest.raises(ConfigurationError, match="entered twice"):
                await requeue.__aenter__()
