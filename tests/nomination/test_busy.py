"""Taking hints back while the dispatcher is busy with other things: within a bound all the same (N8, N10)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig, FunctionCall, ObjectRef
from asyncdispatch.errors import Backpressure
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.nomination import NominationHandle, NominationState, Nominator
from asyncdispatch.testing import EmbeddedAPIServer
from tests.nomination.objects import pod
from tests.nomination.support import decide, nominated, passes, patches

S = NominationState
FOUR_SEATS = DispatcherConfig(max_in_flight=4, capacity=2_000)


def others(count: int, seconds: float) -> list[FunctionCall[None]]:
    """Calls of other flows, at the priority of ordinary Pods."""

    async def slow(attempt: object) -> None:
        await asyncio.sleep(seconds)

    refs = [ObjectRef("v1", "ConfigMap", "ns", f"c{index}") for index in range(count)]
    return [FunctionCall(slow, call_type="slow", target=ref, flow="tenant", timeout=5_000) for ref in refs]


@contextlib.asynccontextmanager
async def flooded(
    server: EmbeddedAPIServer, cluster: Cluster, config: DispatcherConfig, calls: list[FunctionCall[None]]
) -> AsyncIterator[tuple[Nominator, NominationHandle]]:
    """A hint of 30 s stands, and then as many of the others come as find room."""
    async with Dispatcher(config) as dispatcher, Nominator(dispatcher, cluster) as nominator:
        handle = await nominator.nominate(decide(server.create(pod("p"))))
        assert await handle.written()
        with contextlib.suppress(Backpressure):
            for call in calls:
                dispatcher.submit(call)
        try:
            async with asyncio.timeout(600):
                yield nominator, handle
        finally:
            dispatcher.cancel_flow("tenant", "the test is over")


@pytest.mark.parametrize("count", [1_500, 2_500])
async def test_the_ttl_holds_behind_a_long_queue(server, cluster, count):
    """Six minutes of other calls wait, or more than there is room for: the hint goes at its TTL."""
    async with flooded(server, cluster, FOUR_SEATS, others(count, 1.0)) as (_, handle):
        assert (await handle.outcome()).state is S.EXPIRED
        assert asyncio.get_running_loop().time() < 34
        assert nominated(server) is None


async def test_the_kill_switch_holds_behind_a_long_queue(server, cluster):
    async with flooded(server, cluster, FOUR_SEATS, others(1_500, 1.0)) as (nominator, _):
        assert [outcome.state for outcome in await nominator.rollback("an alarm")] == [S.ROLLED_BACK]
        assert asyncio.get_running_loop().time() < 5
        assert nominated(server) is None


@pytest.mark.parametrize("how", ["rollback", "leaving"])
async def test_the_kill_switch_stops_what_waits_to_be_sent(server, cluster, how):
    """A hint that was in line behind others by then is not written after all (N10)."""
    busy = DispatcherConfig(max_in_flight=1)
    async with Dispatcher(busy) as dispatcher:
        async with Nominator(dispatcher, cluster) as nominator:

            def hold(record: object) -> None:
                """The seat is taken again as the second read, that of the node, comes in."""
                dispatcher.submit(others(1, 5.0)[0])

            server.hook(hold, times=1, method="GET", path="*/nodes/n1")
            handle = await nominator.nominate(decide(server.put(pod("p", priority=-1))))
            await passes(2)
            assert (handle.state, patches(server)) == (S.WRITING, [])
            if how == "rollback":
                assert [outcome.state for outcome in await nominator.rollback("an alarm")] == [S.ROLLED_BACK]
        assert handle.state is (S.ROLLED_BACK if how == "rollback" else S.WITHDRAWN)
    assert patches(server) == []


async def test_slow_seats(server, cluster):
    """Each seat is held for longer than `call_timeout`: a release keeps its place, and takes the next seat for each of
    its two steps."""
    async with flooded(server, cluster, FOUR_SEATS, others(1_500, 15.0)) as (_, handle):
        assert (await handle.outcome()).state is S.EXPIRED
        assert asyncio.get_running_loop().time() < 30 + 2 * 15 + 1
        assert nominated(server) is None


async def test_a_dispatcher_that_is_never_free(server, cluster):
    """Whoever has a call takes each place that comes free, every moment: a release waits in its turn."""
    full = DispatcherConfig(max_in_flight=2, capacity=20, reserve=0)
    async with flooded(server, cluster, full, others(20, 1.0)) as (nominator, handle):

        async def press() -> None:
            while True:
                for call in others(20, 1.0):
                    with contextlib.suppress(Backpressure):
                        nominator.dispatcher.submit(call)
                await passes(0.3)

        async with asyncio.TaskGroup() as tasks:
            pressing = tasks.create_task(press())
            assert (await handle.outcome()).state is S.EXPIRED
            assert asyncio.get_running_loop().time() < 34
            pressing.cancel()
        assert nominated(server) is None


async def test_behind_others_who_wait_for_room(server, cluster):
    """More than a minute of others wait for room in a dispatcher that is full: the release is let in before them."""
    full = DispatcherConfig(max_in_flight=4, capacity=20)
    async with flooded(server, cluster, full, others(20, 1.0)) as (nominator, handle), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(nominator.dispatcher.run(call)) for call in others(300, 1.0)[20:]]
        assert (await handle.outcome()).state is S.EXPIRED
        assert asyncio.get_running_loop().time() < 34
        assert nominated(server) is None
        for task in waiting:
            task.cancel()


@pytest.mark.parametrize("given", [None, 7])
async def test_reads_before_a_write_are_as_urgent_as_the_pod(server, cluster, given):
    """Also where only a ref was given; what takes back is at the highest level of all."""
    seen = []

    class Watcher:
        def accepted(self, handle):
            if handle.call.flow == "nomination" and handle.call.call_type != "event":
                seen.append((handle.call.call_type, handle.call.target.kind, handle.call.priority))

    async with Dispatcher(observers=(Watcher(),)) as dispatcher, Nominator(dispatcher, cluster) as nominator:
        made = ObjectRef.of(server.put(pod("p", priority=5)))
        await passes(1)
        handle = await nominator.nominate(decide(made, priority=given))
        assert await handle.written()
        await nominator.confirm(handle.decision_id)
        assert (await nominator.withdraw(handle.decision_id)).state is S.WITHDRAWN
    own, top = (5 if given is None else given), 2**31 - 1
    look = [("read", "Pod", own), ("read", "Node", own)]
    assert seen == [*look, ("pod_nomination", "Pod", own), *look, ("read", "Pod", top), ("pod_nomination", "Pod", top)]
