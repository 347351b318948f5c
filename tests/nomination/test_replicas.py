"""Several replicas, each with its shards, over real leases."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.nomination import NominationState, Nominator
from tests.nomination.objects import pod
from tests.nomination.support import decide, nominated

S = NominationState


async def replica(stack: AsyncExitStack, server: Any, name: str, total: int = 4) -> tuple[Any, Nominator]:
    cluster = Cluster(server.api_client())
    shards = await stack.enter_async_context(cluster.shards("set", "ns", name, total=total))
    dispatcher = await stack.enter_async_context(Dispatcher())
    shards.join(dispatcher)
    return shards, await stack.enter_async_context(Nominator(dispatcher, cluster, shards=shards))


async def test_a_shard_changes_hands(server):
    """Who has a shard keeps its hints: they are left by one and taken up by the other, and stand meanwhile."""
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        shards, nominator = await replica(first, server, "a")
        while len(shards.owned) < 4:
            await shards.changed(shards.owned)
        made = [server.create(pod(f"p{index}", cpu="100m")) for index in range(8)]
        handles = [await nominator.nominate(decide(obj, ttl=250)) for obj in made]
        for handle in handles:
            assert await handle.written()
        others, rival = await replica(second, server, "b")
        while len(others.owned) < 2:
            await others.changed(others.owned)
        await asyncio.sleep(20)
        left = {handle.decision_id for handle in handles if handle.state is S.LEFT}
        kept = {handle.decision_id for handle in handles if handle.state is S.NOMINATED}
        assert left
        assert kept
        assert len(left) + len(kept) == 8
        assert {handle.decision_id for handle in rival.live} == left
        assert all(nominated(server, f"p{index}") == "n1" for index in range(8))
        stranger = next(handle for handle in handles if handle.decision_id in left).decision
        again = decide(stranger.pod)
        assert "another replica's" in (await (await nominator.nominate(again)).outcome()).reason
        await rival.rollback("a drill")
        await nominator.rollback("a drill")
        assert not any(nominated(server, f"p{index}") for index in range(8))
