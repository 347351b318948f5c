"""Q: nomination."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from asyncdispatch import Dispatcher
from asyncdispatch.nomination import NominationPolicy, NominationState, Nominator
from tests.cases.support import now
from tests.nomination.objects import VICTIM, node, pod
from tests.nomination.support import checked_wire, decide, nominated

S = NominationState


@pytest.fixture
def world(server):
    for name in ("n1", "n2"):
        server.put(node(name))
    return server


@asynccontextmanager
async def nominating(cluster, **options):
    async with Dispatcher() as dispatcher, Nominator(dispatcher, cluster, **options) as nominator:
        yield nominator


async def test_q1_the_node_disappears(world, cluster):
    """The nominated node went, the field stayed, and an autoscaler waited for a node that did not exist.

    Right: the hint goes with the node, within one observed change.
    """
    async with nominating(cluster) as nominator:
        handle = await nominator.nominate(decide(world.create(pod("p")), ttl=30))
        assert await handle.written()
        await asyncio.sleep(1)
        world.delete("Node", "n1")
        outcome = await handle.outcome()
        assert outcome.state is S.STALE
        assert outcome.reason == "there is no node n1"
        assert now() < 2
        assert nominated(world) is None
    checked_wire(world)


async def test_q1_the_node_disappears_behind_a_dead_watch(world, cluster):
    """With a watch of nodes that tells nothing, the TTL is the bound."""
    async with nominating(cluster) as nominator:
        handle = await nominator.nominate(decide(world.create(pod("p")), ttl=30))
        assert await handle.written()
        world.silence(after=0, times=None, path="*/nodes")
        world.silence_watches()
        await asyncio.sleep(1)
        world.delete("Node", "n1")
        assert not await nominator.confirm(handle.decision_id)  # a fresh read sees it, whoever asks
        second = await nominator.nominate(decide(world.create(pod("q")), ttl=30))
        assert (await second.outcome()).reason == "there is no node n1"
        assert (await handle.outcome()).state is S.STALE
        assert nominated(world) is None

    world.put(node("n1"))
    async with nominating(cluster) as nominator:
        begun = now()
        handle = await nominator.nominate(decide(world.get("Pod", "p", namespace="ns"), ttl=30))
        assert await handle.written()
        world.delete("Node", "n1")
        outcome = await handle.outcome()
        assert outcome.state in (S.STALE, S.EXPIRED)
        assert now() - begun < 31
        assert nominated(world) is None


async def test_q3_a_victim_that_never_terminates(world, cluster):
    """A victim on a node whose runtime was down kept the nominee from being considered elsewhere.

    Right: the TTL's sleep is bounded by the grace period and a little; then an outcome of its own and an alert; no
    write, since the value is the scheduler's.
    """
    low = world.put(pod("low", on="n1", priority=-5))
    async with nominating(cluster) as nominator:
        handle = await nominator.nominate(decide(world.put(pod("p", priority=10)), ttl=60))
        assert await handle.written()
        begun = now()
        dying = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
        world.patch_object(low, {"metadata": dying, "status": {"conditions": [VICTIM]}})
        await asyncio.sleep(1)
        assert handle.state is S.ADOPTED
        outcome = await handle.outcome()
        assert outcome.state is S.ADOPTION_ENDED
        assert now() - begun == pytest.approx(30 + NominationPolicy().adoption_slack, abs=1)
        await asyncio.sleep(1800)
        assert nominated(world) == "n1"
        assert checked_wire(world) == 1
        told = [event for event in world.objects.of("Event.events.k8s.io") if event["type"] == "Warning"]
        assert "adoption_ended" in told[0]["note"]


async def test_q5_room_that_is_not_free_yet(world, cluster):
    """A Pod was nominated to room that another, with a ten-minute grace period, was still holding.

    Right: refused by the guard. Whoever has deleted it, a Pod that terminates occupies its room.
    """
    full = world.put(pod("a", cpu="4", on="n1"))
    dying = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 600}
    world.patch_object(full, {"metadata": dying})
    async with nominating(cluster) as nominator:
        handle = await nominator.nominate(decide(world.create(pod("b"))))
        outcome = await handle.outcome()
        assert (outcome.state, outcome.reason) == (S.REJECTED, "n1 has not enough cpu free")
        assert checked_wire(world) == 0
        world.finish(full)
        await asyncio.sleep(0.1)
        assert await (await nominator.nominate(decide(world.get("Pod", "b", namespace="ns")))).written()


@pytest.mark.parametrize("lag", [0.0, 5.0])
async def test_q7_the_node_goes_before_the_gate_is_lifted(world, cluster, lag):
    """The node went NotReady between assignment and ungating; the Pods were let go to a place they could not use.

    Right: confirm, then ungate. One call tells by fresh reads, however late the watches are; what does not stand any
    more is taken back.
    """
    async with nominating(cluster) as nominator:
        handle = await nominator.nominate(decide(world.create(pod("p", gates=("quota",)))))
        assert await handle.written()
        assert await nominator.confirm(handle.decision_id)
        world.watch_lag = lag
        world.put(node("n1", ready=False))
        await asyncio.sleep(0.05)
        assert not await nominator.confirm(handle.decision_id)
        outcome = await handle.outcome()
        assert (outcome.state, outcome.reason) == (S.STALE, "n1 is not ready")
        assert nominated(world) is None
    checked_wire(world)
