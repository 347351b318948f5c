"""H: leadership by a real Lease, over HTTP: lost, stalled, in doubt, in an outage, and left in peace."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiClient, Configuration

from asyncdispatch import CallHandle, Dispatcher, DispatcherConfig, StaleContext
from asyncdispatch.kubernetes import Cluster, LeaseState
from asyncdispatch.outcomes import Cancelled, Expired, Succeeded
from asyncdispatch.testing import EmbeddedAPIServer
from tests.cases.support import Log, breaks_off, config_map, hold_loop, new_pod, now, sent

LEASES = "*/leases*"


def holder(server: EmbeddedAPIServer) -> str:
    return server.get("Lease", "leader", namespace="ns")["spec"].get("holderIdentity", "")


def writes(server: EmbeddedAPIServer) -> list[Any]:
    """The audit's requests that are no lease's."""
    return [record for record in server.audit if record.kind != "Lease"]


async def test_h1_lease_not_renewed(server, cluster):
    """Parts of the operator went on writing after the lease was lost, while an orderly shutdown was blocked.

    Right: no write starts 10 s after the last renewal was sent, none lands 15 s after it, whatever is blocked.
    """
    pods = [server.create(new_pod(f"p{number}")) for number in range(200)]
    server.delay(4, when=lambda record: record.kind != "Lease")
    hook_blocked = asyncio.Event()
    config = DispatcherConfig(max_in_flight=8, attempt_timeout=60)
    async with cluster.lease("leader", "ns") as lease, Dispatcher(config) as dispatcher:
        handles: list[CallHandle[Any]] = []
        async with lease.leadership(dispatcher) as leading:
            acquired = next(record.time for record in server.audit if record.method == "POST")
            server.fail(status=503, times=None, path=LEASES)
            for index, pod in enumerate(pods):
                context = leading if index % 2 else dispatcher.contexts.begin(pod, parent=leading)
                handles.append(dispatcher.submit(cluster.bind(pod, "n1", context=context)))
            try:
                await asyncio.sleep(600)
            finally:
                blocked = asyncio.create_task(hook_blocked.wait())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(30):
                        await asyncio.shield(blocked)
        assert now() > 30
        assert all(handle.done() for handle in handles)
        with pytest.raises(StaleContext):
            dispatcher.submit(cluster.create(config_map(), context=leading))
        hook_blocked.set()
        await blocked
    assert writes(server)
    assert max(record.time for record in writes(server)) <= acquired + 10
    assert max(record.applied_at for record in writes(server) if record.applied) <= acquired + 15
    assert any(isinstance(handle.settled, Succeeded) for handle in handles)
    assert any(isinstance(handle.settled, (Cancelled, Expired)) for handle in handles)


async def test_h3_stalled_holder(server, cluster):
    """CPU starvation held the process up; when it ran on, it and its successor both acted.

    Right: after the stall the clock is the first thing compared: nothing starts, the term is over, the rival's stands.
    """
    server.delay(4, when=lambda record: record.kind != "Lease")
    log = Log()
    config = DispatcherConfig(max_in_flight=2, attempt_timeout=60)
    async with cluster.lease("leader", "ns") as lease, Dispatcher(config, observers=[log]) as dispatcher:
        async with lease.leadership(dispatcher) as leading:
            handles = [dispatcher.submit(cluster.create(config_map(f"c{n}"), context=leading)) for n in range(20)]
            await asyncio.sleep(1)
            started = len(writes(server))
            hold_loop(19)
            server.patch_object("Lease", {"spec": {"holderIdentity": "rival"}}, "leader", namespace="ns")
            with pytest.raises(StaleContext):
                dispatcher.submit(cluster.create(config_map("late"), context=leading))
            await asyncio.sleep(600)
        assert now() < 20.2
        assert leading.ended
        assert lease.state is LeaseState.IDLE
        for handle in handles:
            assert not isinstance(await handle.outcome(), Succeeded)
        await asyncio.sleep(10)
    assert len(writes(server)) == started
    assert all(when < 2 for when in log.starts)
    assert holder(server) == "rival"
    assert not [record for record in sent(server, "PUT") if record.time >= 20 and record.applied]


@pytest.mark.parametrize("how", ["dropped", "reset", "500", "504", "slow answer", "slow write"])
async def test_h5_conflict_with_oneself(server, cluster, how):
    """A renewal was applied and its answer lost; the next one conflicted with it, and the holder let go.

    Right: it reads, finds itself the holder, and goes on with the new version: one term, no callback storm.
    """
    async with cluster.lease("leader", "ns") as lease, Dispatcher() as dispatcher:
        async with lease.leadership(dispatcher) as leading:
            for _ in range(3):
                await asyncio.sleep(10)
                breaks_off(server, how, method="PUT", path=LEASES)
            await asyncio.sleep(30)
            assert leading.ended is None
        assert lease.statistics().terms == 1
        assert len([record for record in server.audit if record.method == "GET"]) <= 1 + 3
    assert holder(server) == ""


@pytest.mark.parametrize("lands_before", [True, False])
async def test_h5_conflict_with_another(server, cluster, lands_before):
    """The same 409, and it is another who holds it: lost at once, not at the deadline."""
    async with cluster.lease("leader", "ns") as lease, Dispatcher() as dispatcher:
        async with lease.leadership(dispatcher):
            await asyncio.sleep(5)
            if not lands_before:
                breaks_off(server, "dropped", method="PUT", path=LEASES)
            server.patch_object("Lease", {"spec": {"holderIdentity": "other"}}, "leader", namespace="ns")
            await asyncio.sleep(600)
        assert now() < 5 + 2.5
        assert lease.holder == "other"


async def test_h7_outage(server):
    """After a short outage both replicas neither led nor exited, and burned a full core.

    Right: both know that they don't lead, ask seldom, and one leads within one lease duration after the outage.
    """
    terms: list[tuple[str, float]] = []
    leases = {}
    handles: list[CallHandle[Any]] = []

    async def replica(name: str) -> None:
        async with ApiClient(Configuration(host=server.url)) as client:
            cluster = Cluster(client)
            async with cluster.lease("leader", "ns", name) as lease, Dispatcher() as dispatcher:
                leases[name] = lease
                while True:
                    async with lease.leadership(dispatcher) as leading:
                        terms.append((name, now()))
                        for number in range(100):
                            call = cluster.create(config_map(f"c{number}-{len(terms)}"), context=leading, timeout=3600)
                            handles.append(dispatcher.submit(call))
                            await asyncio.sleep(1)
                        await asyncio.sleep(3600)

    replicas = [asyncio.create_task(replica(name)) for name in ("a", "b")]
    await asyncio.sleep(20)
    assert len(terms) == 1
    before = {name: lease.statistics().requests for name, lease in leases.items()}
    async with _refusing(server):
        await asyncio.sleep(30)
        assert {lease.state for lease in leases.values()} == {LeaseState.CANDIDATE}
        assert not any(lease.is_leader for lease in leases.values())
        assert all(handle.done() for handle in handles)
        await asyncio.sleep(30)
        for name, lease in leases.items():
            assert 10 <= lease.statistics().requests - before[name] <= 40
            assert lease.statistics().last_error
    back = now()
    await asyncio.sleep(20)
    assert len(terms) == 2
    assert terms[1][1] <= back + 15
    assert sorted(lease.state.value for lease in leases.values()) == ["candidate", "leading"]
    assert isinstance(handles[-2].settled, Succeeded)
    for task in replicas:
        task.cancel()
    await asyncio.wait(replicas)


@contextlib.asynccontextmanager
async def _refusing(server: EmbeddedAPIServer) -> AsyncIterator[None]:
    """Connections are refused: the server is stopped, and started again on the same port."""
    await server.__aexit__(None, None, None)
    yield
    await server.__aenter__()


async def test_h9_left_in_peace(server, cluster):
    """The work in flight was killed at SIGTERM, since the lease went first.

    Right: `async with lease, dispatcher` drains first, with the lease renewed all the while, and gives it back last.
    """
    server.delay(5, when=lambda record: record.kind == "ConfigMap")
    rival_since: list[float] = []

    async def rival() -> None:
        other = Cluster(server.api_client())
        rivals = other.lease("leader", "ns", "rival")
        async with rivals, Dispatcher() as dispatcher, rivals.leadership(dispatcher) as leading:
            rival_since.append(now())
            await dispatcher.run(other.create(config_map("rivals"), context=leading))

    handles: list[CallHandle[Any]] = []
    config = DispatcherConfig(max_in_flight=1)
    lease = cluster.lease("leader", "ns", "first")
    async with lease, Dispatcher(config) as dispatcher, lease.leadership(dispatcher) as leading:
        task = asyncio.create_task(rival())
        handles.extend(dispatcher.submit(cluster.create(config_map(f"c{n}"), context=leading)) for n in range(5))
        await asyncio.sleep(1)
    assert all(isinstance(handle.settled, Succeeded) for handle in handles)
    assert 25 <= now() <= 26
    assert holder(server) == ""
    await task
    assert rival_since[0] <= now()
    last = max(record.applied_at for record in server.audit if record.kind == "ConfigMap" and record.name != "rivals")
    assert last < rival_since[0] < last + 4.5
    assert lease.statistics().terms == 1


async def test_h9_lost_while_draining(server, cluster):
    """The lease is lost meanwhile: no drain for what was done under it; nothing starts, what flies is cut."""
    server.delay(5, when=lambda record: record.kind == "ConfigMap")
    handles: list[CallHandle[Any]] = []
    lease, config = cluster.lease("leader", "ns"), DispatcherConfig(max_in_flight=1)
    async with lease, Dispatcher(config) as dispatcher, lease.leadership(dispatcher) as leading:
        handles.extend(dispatcher.submit(cluster.create(config_map(f"c{n}"), context=leading)) for n in range(5))
        await asyncio.sleep(1)
        server.fail(status=503, times=None, path=LEASES)
    assert now() <= 11
    starts = [record.time for record in server.audit if record.kind == "ConfigMap"]
    assert 2 <= len(starts) <= 3
    assert max(starts) < 10.5
    assert sum(isinstance(handle.settled, Succeeded) for handle in handles) in (1, 2)
    assert all(isinstance(handle.settled, (Succeeded, Cancelled, Expired)) for handle in handles)
    assert holder(server) == lease.identity  # never given back: others wait it out
