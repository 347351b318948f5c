"""The proofs for which something breaks: each starts a control plane, or a proxy, of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig, RetryPolicy
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.outcomes import Failed, Succeeded
from asyncdispatch.testing import ControlPlane, FaultProxy
from asyncdispatch.testing.controlplane import Role
from tests.e2e.audit import AuditLog, Ledger, audit
from tests.e2e.waiting import eventually
from tests.proofs.plays import first_of


@dataclass
class Broken:
    """A namespace of a control plane, whose calls are audited."""

    plane: ControlPlane
    log: AuditLog
    namespace: str
    ledger: Ledger = field(default_factory=Ledger)

    async def items(self, path: str) -> list[Any]:
        return list((await self.plane.ask("GET", path))["items"])

    async def audit(self) -> None:
        await audit(self.ledger, self.items, self.log.carried(self.namespace))

    async def pods(self, count: int) -> list[Any]:
        """New Pods without a node, made past the dispatcher."""
        few = asyncio.Semaphore(20)

        async def one(n: int) -> Any:
            async with few:
                return await self.plane.add_pod(f"p{n}", self.namespace, scheduler="nobody")

        return await asyncio.gather(*(one(n) for n in range(count)))

    def config_map(self, name: str) -> dict[str, Any]:
        named = {"generateName": name} if name.endswith("-") else {"name": name}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**named, "namespace": self.namespace}}

    def mixed(self, cluster: Cluster, pods: list[Any]) -> list[Any]:
        """For each Pod a bind, a patch, a create by name and one whose name the server chooses."""
        calls: list[Any] = []
        for n, pod in enumerate(pods):
            calls.append(cluster.bind(pod, f"n{n}"))
            calls.append(cluster.patch(pod, {"metadata": {"annotations": {"n": str(n)}}}))
            calls.append(cluster.create(self.config_map(f"c{n}"), idempotency_key=f"named-{n}"))
            calls.append(cluster.create(self.config_map("g-"), idempotency_key=f"generated-{n}"))
        return calls


@asynccontextmanager
async def broken(folder: Path, **options: Any) -> AsyncIterator[Broken]:
    """A control plane to be broken."""
    log = AuditLog(folder)
    async with ControlPlane(flags={"kube-apiserver": log.flags}, **options) as plane:
        await plane.add_namespace("broken")
        yield Broken(plane, log, "broken")


async def ends(handles: list[Any]) -> None:
    """All succeed, but for creates whose name the server chooses: with no mark found, they may be ambiguous."""
    for handle in handles:
        outcome = await handle.outcome()
        doubtful = isinstance(outcome, Failed) and outcome.ambiguous and handle.call.target.generated
        assert isinstance(outcome, Succeeded) or doubtful, f"{handle}: {outcome}"


async def test_kill_9_with_two_thousand_calls_under_way(tmp_path):
    """kube-apiserver is killed while calls are in flight and queued, and comes back: each is done, and done once."""
    async with broken(tmp_path) as at:
        pods = await at.pods(500)
        cluster = Cluster(at.plane.api_client())
        async with Dispatcher(observers=[at.ledger]) as dispatcher:
            handles = [dispatcher.submit(call) for call in at.mixed(cluster, pods)]
            assert len(handles) == 2000
            await first_of(handles, 300)
            assert dispatcher.statistics().in_flight > 0
            at.plane.apiserver.kill()
            await at.plane.apiserver.start()
            await ends(handles)
        await at.audit()


@pytest.mark.parametrize("how", ["cut", "swallowed and cut", "swallowed", "delayed"])
async def test_a_proxy_in_between(plane, audit_log, namespace, how):
    """Connections reset over and over, answers lost after the write, answers that never come, and a slow network."""
    at = Broken(plane, audit_log, namespace)
    async with FaultProxy(plane.url) as proxy:
        pods = await at.pods(60)
        cluster = Cluster(at.plane.api_client(server=proxy.url))
        # One call may meet all connections whose answers are lost, one read after the other.
        config = DispatcherConfig(attempt_timeout=3, retry=RetryPolicy(max_reconciles=200))
        async with Dispatcher(config, observers=[at.ledger]) as dispatcher:
            handles = [dispatcher.submit(call) for call in at.mixed(cluster, pods)]
            if how == "delayed":
                proxy.delay = 0.2
            for count in (30, 90, 150):
                await first_of(handles, count)
                if how == "cut":
                    assert proxy.cut() > 0
                elif how != "delayed":
                    swallowed = proxy.swallow(then_cut=how == "swallowed and cut")
                    await swallowed.wait()
            await ends(handles)
        await at.audit()


async def test_a_token_that_is_revoked(tmp_path):
    """Calls that meet 401 are held, not failed; with the new token in its file all are done, and nothing is lost."""
    roles = {"bot": Role("bot", ("system:masters",))}
    async with broken(tmp_path, roles=roles) as at:
        pods = await at.pods(20)
        token = tmp_path / "token"
        token.write_text(at.plane.token("bot"))
        kubeconfig = json.loads(at.plane.kubeconfig("bot").read_text())
        kubeconfig["users"][0]["user"] = {"tokenFile": str(token)}
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(kubeconfig))
        async with Cluster.connect(path) as cluster, Dispatcher(observers=[at.ledger]) as dispatcher:
            await dispatcher.run(cluster.create(at.config_map("before"), idempotency_key="before"))
            at.plane.revoke("bot")
            at.plane.add_role("bot", Role("bot", ("system:masters",)))
            at.plane.apiserver.kill()
            await at.plane.apiserver.start()
            handles = [dispatcher.submit(call) for call in at.mixed(cluster, pods)]

            async def held() -> bool:
                return dispatcher.statistics().unauthenticated_since is not None

            await eventually(held)
            assert not any(handle.done() for handle in handles)
            token.write_text(at.plane.token("bot"))
            outcomes = [await handle.outcome() for handle in handles]
            assert dispatcher.statistics().unauthenticated_since is None
        assert all(isinstance(outcome, Succeeded) for outcome in outcomes), outcomes
        await at.audit()


def versions(objects: Iterable[Any]) -> dict[str, str]:
    return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in objects}


async def test_a_reflector_over_compaction_and_410(tmp_path):
    """Cut off while objects change, etcd forgets and the API server restarts: it lists anew, and misses no deletion."""
    async with broken(tmp_path) as at, FaultProxy(at.plane.url) as proxy:
        cluster = Cluster(at.plane.api_client(server=proxy.url))
        direct = Cluster(at.plane.api_client())
        async with (
            Dispatcher(observers=[at.ledger]) as dispatcher,
            cluster.reflector("v1", "ConfigMap", namespace=at.namespace) as reflector,
        ):
            made = [await dispatcher.run(direct.create(at.config_map(f"c{n}"))) for n in range(10)]
            proxy.refuse()
            proxy.cut()
            for obj in made[:5]:
                await dispatcher.run(direct.delete(obj))
            for n, obj in enumerate(made[5:]):
                await dispatcher.run(direct.patch(obj, {"data": {"n": str(n)}}))
            for n in range(5):
                await dispatcher.run(direct.create(at.config_map(f"new{n}")))
            await at.plane.compact()
            at.plane.apiserver.kill()
            await at.plane.apiserver.start()
            proxy.restore()

            async def agrees() -> bool:
                there = await at.items(f"/api/v1/namespaces/{at.namespace}/configmaps")
                return versions(there) == versions(reflector)

            await eventually(agrees)
            assert reflector.statistics().lists > 1, "it resumed: nothing was compacted"
        await at.audit()
