"""Shards over HTTP: who owns what, how it changes hands, and what of it ends when."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig, ObjectRef, StaleContext
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import Cluster, ShardSet
from asyncdispatch.outcomes import Cancelled, Succeeded
from tests.cases.support import config_map, now


class Replica:
    """A member with a dispatcher, a client and a life of its own."""

    def __init__(self, server, name, total=4, **options):
        self.shards = Cluster(server.api_client()).shards("set", "ns", name, total=total, **options)
        self.dispatcher = Dispatcher(DispatcherConfig(max_in_flight=50))
        self._stack = AsyncExitStack()

    async def __aenter__(self):
        await self._stack.enter_async_context(self.shards)
        await self._stack.enter_async_context(self.dispatcher)
        self.shards.join(self.dispatcher)
        return self

    async def __aexit__(self, *exc):
        return await self._stack.__aexit__(*exc)

    @property
    def owned(self):
        return self.shards.owned


def in_shard(shards: ShardSet, number: int, count: int = 1) -> list[dict]:
    """ConfigMaps that are in one shard."""
    found = []
    for index in range(10_000):
        if shards.shard_of(candidate := config_map(f"c{index}")) == number:
            found.append(candidate)
            if len(found) == count:
                return found
    raise AssertionError(number)


async def owning(replica: Replica, count: int) -> frozenset[int]:
    async with asyncio.timeout(120):
        while len(replica.owned) != count:
            await replica.shards.changed(replica.owned)
    return replica.owned


async def test_one_has_all_and_gives_them_back(server):
    """A single replica owns every shard soon; leaving, it releases them all, and its slot."""
    async with Replica(server, "a") as replica:
        assert replica.owned == frozenset()
        assert await owning(replica, 4) == {0, 1, 2, 3}
        assert now() < 6
        statistics = replica.shards.statistics()
        assert (statistics.members, statistics.total, statistics.handing_over) == (1, 4, frozenset())
        await asyncio.sleep(60)
        assert replica.owned == {0, 1, 2, 3}
    leases = server.objects.of("Lease", "ns")
    assert len(leases) == 5
    assert {lease["metadata"]["labels"]["asyncdispatch.dev/shards"] for lease in leases} == {"set"}
    assert not [lease for lease in leases if lease["spec"].get("holderIdentity")]


async def test_a_newcomer_gets_half(server):
    """What was begun in a shard comes to its end before another has it; nobody ever shares one."""
    server.delay(6, when=lambda record: record.kind == "ConfigMap")
    async with Replica(server, "a") as first:
        await owning(first, 4)
        handles = {}
        for number in range(4):
            obj = in_shard(first.shards, number)[0]
            call = Cluster(server.api_client()).create(obj, context=first.shards.context_of(obj))
            handles[number] = first.dispatcher.submit(call)
        async with Replica(server, "b") as second:
            gained = await owning(second, 2)
            assert len(first.owned) == 2
            assert not first.owned & gained
            assert all(isinstance(handles[number].settled, Succeeded) for number in gained)
            obj = in_shard(first.shards, next(iter(gained)))[0]
            assert second.shards.owns(obj)
            assert not first.shards.owns(obj)
            with pytest.raises(StaleContext, match="not ours"):
                first.shards.context_of(obj)
        assert await owning(first, 4) == {0, 1, 2, 3}


async def test_a_handover_is_bounded(server):
    """Calls that don't end are ended; since they may yet land, the shard is left to run out before it goes over."""
    server.fail(status=503, times=None, path="*/configmaps")
    async with Replica(server, "a", total=2, handover_timeout=5) as first:
        await owning(first, 2)
        cluster = Cluster(server.api_client())
        handles = []
        for number in range(2):
            obj = in_shard(first.shards, number)[0]
            handles.append(first.dispatcher.submit(cluster.create(obj, context=first.shards.context_of(obj))))
        begun = now()
        async with Replica(server, "b", total=2) as second:
            gained = await owning(second, 1)
            assert now() >= begun + 5 + 10
            handle = handles[next(iter(gained))]
            assert isinstance(handle.settled, Cancelled)
            assert first.owned == {0, 1} - gained
        for handle in handles:
            handle.cancel("enough")


async def test_a_crashed_member_is_replaced(server):
    """Its shards and its share go to the others once its Leases have run out."""
    async with Replica(server, "a") as first:
        doomed = Replica(server, "b")
        await doomed.__aenter__()
        await owning(doomed, 2)
        await owning(first, 2)
        crashed = now()
        server.fail(status=503, times=None, when=lambda record: '"b"' in json.dumps(record.body))
        lost = doomed.shards._contexts.copy()
        assert await owning(first, 4) == {0, 1, 2, 3}
        assert crashed + 12 < now() < crashed + 30
        assert doomed.owned == frozenset()
        assert all(context.ended for context in lost.values())
        await doomed.__aexit__(None, None, None)


async def test_a_lost_shard_ends_its_context_alone(server):
    """One Lease is taken by somebody else: that shard's context ends with its Pods' contexts, the others go on."""
    async with Replica(server, "a") as replica:
        await owning(replica, 4)
        obj, other = in_shard(replica.shards, 1)[0], in_shard(replica.shards, 2)[0]
        below = replica.dispatcher.contexts.begin(obj, parent=replica.shards.context_of(obj))
        server.patch_object("Lease", {"spec": {"holderIdentity": "thief"}}, "set-1", namespace="ns")
        assert await replica.shards.changed(frozenset(range(4))) == {0, 2, 3}
        assert below.ended
        assert replica.shards.context_of(other).ended is None
        assert await replica.shards.changed(frozenset({0, 2, 3})) == {0, 1, 2, 3}


async def test_a_context_ended_by_hand(server):
    """That shard is dropped, runs out, and comes back as any free one."""
    async with Replica(server, "a", total=2) as replica:
        await owning(replica, 2)
        replica.shards.context_of(in_shard(replica.shards, 0)[0]).end("enough")
        assert await replica.shards.changed(frozenset({0, 1})) == {1}
        assert await owning(replica, 2) == {0, 1}


async def test_an_outage(server):
    """Nothing is owned when it could not be renewed; everything comes back, and few requests were made meanwhile."""
    async with Replica(server, "a") as replica:
        await owning(replica, 4)
        fault = server.fail(status=503, times=None, path="*/leases*")
        await asyncio.sleep(11)
        assert replica.owned == frozenset()
        before = len(server.audit)
        await asyncio.sleep(60)
        assert len(server.audit) - before < 60 / 2 * 2
        assert replica.shards.statistics().last_error
        fault.remove()
        await owning(replica, 4)


async def test_no_new_shards_while_it_drains(server):
    """A replica on its way out keeps what it has until its calls have ended, and takes nothing more."""
    server.delay(7, when=lambda record: record.kind == "ConfigMap")
    async with Replica(server, "b") as second:
        await owning(second, 4)
        async with Replica(server, "a") as first:
            await owning(first, 2)
            owned = first.owned
            obj = in_shard(first.shards, min(owned))[0]
            call = Cluster(server.api_client()).create(obj, context=first.shards.context_of(obj))
            handle = first.dispatcher.submit(call)
            await asyncio.sleep(1)
        assert isinstance(handle.settled, Succeeded)
        await owning(second, 4)


async def test_a_shard_lost_while_it_drains(server):
    """It is free again at once, and is left to others: there will be nobody to work on it here."""
    server.delay(9, when=lambda record: record.kind == "ConfigMap")
    replica = await Replica(server, "a", total=2).__aenter__()
    await owning(replica, 2)
    obj = in_shard(replica.shards, 0)[0]
    call = Cluster(server.api_client()).create(obj, context=replica.shards.context_of(obj))
    replica.dispatcher.submit(call)
    leaving = asyncio.create_task(replica.__aexit__(None, None, None))
    await asyncio.sleep(0.5)
    server.patch_object("Lease", {"spec": {"holderIdentity": None}}, "set-1", namespace="ns")
    assert await replica.shards.changed(frozenset({0, 1})) == {0}
    lost = now()
    await asyncio.sleep(6 - 0.5)
    assert replica.owned == {0}
    assert not [record for record in server.audit if record.name == "set-1" and record.time > lost]
    await leaving


async def test_the_shard_of_an_object(server):
    """By namespace and name, however the object is given; or by what the key says."""
    shards = Cluster(server.api_client()).shards("set", "ns", total=16)
    pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}
    number = shards.shard_of(pod)
    assert number == Cluster(server.api_client()).shards("set", "ns", "me", 16).shard_of(pod), "in this order, too"
    assert number == shards.shard_of({**pod, "kind": "Pod", "apiVersion": "v1"})
    assert number == shards.shard_of(ObjectRef("v1", "Pod", "ns", "p", "other"))
    assert not shards.owns(pod)
    by_uid = Cluster(server.api_client()).shards("set", "ns", total=16, key=lambda obj: obj["metadata"]["uid"])
    assert by_uid.shard_of(pod) != number
    with pytest.raises(ConfigurationError, match="name"):
        shards.shard_of({"metadata": {}})
    with pytest.raises(ConfigurationError, match="key"):
        Cluster(server.api_client()).shards("set", "ns", total=16, key=len).shard_of(pod)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("set", {}, "total"),
        ("set", {"total": 0}, "total"),
        ("set", {"total": True}, "total"),
        ("set", {"total": 2, "key": 3}, "key"),
        ("set", {"total": 2, "handover_timeout": -1}, "handover_timeout"),
        ("set", {"total": 2, "renew_deadline": 20}, "lease_duration"),
        ("set", {"total": 2, "renewal": 20}, "renewal"),
        ("Set", {"total": 2}, "name"),
        ("s" * 64, {"total": 2}, "name"),
    ],
)
async def test_sets_that_can_not_be_meant(server, name, options, field):
    """Refused at once, before anything is sent."""
    with pytest.raises(ConfigurationError) as caught:
        Cluster(server.api_client()).shards(name, "ns", **options)
    assert caught.value.field == field


async def test_joined_once(server):
    """After it was entered, with a dispatcher, and never again."""
    shards = Cluster(server.api_client()).shards("set", "ns", total=1)
    async with Dispatcher() as dispatcher:
        with pytest.raises(ConfigurationError, match="not entered"):
            shards.join(dispatcher)
        async with shards:
            with pytest.raises(ConfigurationError, match="dispatcher"):
                shards.join(None)  # type: ignore[arg-type]
            shards.join(dispatcher)
            with pytest.raises(ConfigurationError, match="once"):
                shards.join(dispatcher)
            waiting = asyncio.create_task(shards.changed(frozenset({0})))
            await shards.changed()
        with pytest.raises(ConfigurationError, match="once"):
            async with shards:
                pass
        assert await waiting == frozenset()
        with pytest.raises(StaleContext, match="left"):
            await shards.changed()
    assert "set" in repr(shards)


async def test_nothing_is_left_behind(server):
    """No task after a member was cancelled, even twice, with a server that does not answer."""

    async def program():
        async with Replica(server, "a") as replica:
            await owning(replica, 4)
            server.delay(3600, path="*/leases*")
            await asyncio.sleep(3600)

    before = asyncio.all_tasks()
    task = asyncio.create_task(program())
    await asyncio.sleep(20)
    task.cancel()
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() < 26
    await asyncio.sleep(5)
    assert not {other for other in asyncio.all_tasks() - before if "asyncdispatch" in other.get_name()}
