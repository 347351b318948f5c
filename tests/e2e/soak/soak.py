"""A soak: load and trouble in rounds, with a rest between them at which memory is looked at; then the audit."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote

from asyncdispatch.outcomes import Succeeded
from asyncdispatch.testing import ControlPlane
from asyncdispatch.testing.controlplane import Role
from tests.e2e.audit import AuditLog, Carried, Ledger, Violation, violations
from tests.e2e.soak.faults import GROUP, Trouble
from tests.e2e.soak.gauges import Belongings, Heartbeat, Sample
from tests.e2e.soak.ledger import DiskLedger
from tests.e2e.soak.load import KEPT, LED, PASSING
from tests.e2e.soak.replicas import Replica, soak_cluster
from tests.e2e.soak.report import WARM_UP, Report
from tests.e2e.waiting import eventually

RBAC = "/apis/rbac.authorization.k8s.io/v1"
RULES = [
    {
        "apiGroups": [""],
        "resources": ["pods", "configmaps"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods/binding", "pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
]
"""What a replica may do, and no more: its user is none that is exempt from roles, or from Priority and Fairness."""
ROUND = 7.0
"""Seconds of load and trouble until a rest."""
ENOUGH = WARM_UP + 3
"""Rests that are needed to say anything about memory."""
REST = 90.0
"""Seconds within which everything accepted has to end once the trouble is over."""


async def soak(seconds: float, seed: int, folder: Path) -> Report:
    """Soak for about so long, on a control plane of its own. `folder` takes what is written down."""
    before = Belongings.now()
    log = AuditLog(folder)
    roles = {name: Role(f"soak-{name}", (GROUP,)) for name in ("one", "two")}
    async with ControlPlane(flags={"kube-apiserver": log.flags}, roles=roles, logs=folder / "logs") as plane:
        gc.freeze()  # what the other tests have left is looked through by no collection that falls into the soak
        try:
            report = await _Soak(plane, log, folder, seed).run(seconds)
        finally:
            gc.unfreeze()
    report.left = await _left(before)
    return report


async def _left(before: Belongings) -> list[str]:
    """What is left, after a while: a TLS connection says goodbye in the background."""
    left: list[str] = []

    async def nothing() -> bool:
        left[:] = Belongings.now().since(before)
        return not left

    try:
        await eventually(nothing, timeout=5)
    except TimeoutError:
        pass
    return left


class _Soak:
    def __init__(self, plane: ControlPlane, log: AuditLog, folder: Path, seed: int) -> None:
        self.plane = plane
        self.report = Report(seed, plane.version)
        self._log = log
        self._going = asyncio.Event()
        self._replicas = [Replica(plane, name, folder, seed, self._going) for name in ("one", "two")]
        self._trouble = Trouble(plane, self._replicas, seed)
        self._heartbeat = Heartbeat()

    async def run(self, seconds: float) -> Report:
        report, plane = self.report, self.plane
        for namespace in (KEPT, PASSING):
            await plane.add_namespace(namespace)
        await self._grant()
        one, two = self._replicas
        async with one.proxy, two.proxy:
            began = monotonic()
            try:
                async with self._heartbeat:
                    for replica in self._replicas:
                        await replica.start()
                    await self._rounds(began + seconds)
                    for replica in self._replicas:
                        await replica.stop()
            finally:
                for replica in self._replicas:
                    await replica.abandon()
            report.seconds = monotonic() - began
        report.block, report.late = self._heartbeat.worst, self._heartbeat.late
        report.held_by = self._heartbeat.held_by
        report.collection = self._heartbeat.collection
        report.faults = self._trouble.counts
        for replica in self._replicas:
            report.terms += replica.terms
            report.blocked += replica.blocked
            for ledger in replica.ledgers:
                report.outcomes += ledger.counts
                report.violations += [Violation("unexpected", text) for text in ledger.unexpected]
        await self._audit()
        return report

    async def _grant(self) -> None:
        """A role, bound in both namespaces. Returns when both replicas have it: the server reads its roles by watch."""
        await self.plane.ask("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "soak"}, "rules": RULES})
        group = "rbac.authorization.k8s.io"
        body = {
            "metadata": {"name": "soak"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "soak"},
            "subjects": [{"apiGroup": group, "kind": "Group", "name": GROUP}],
        }
        for namespace in (KEPT, PASSING):
            await self.plane.ask("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", body)

            async def allowed(path: str = f"/api/v1/namespaces/{namespace}/pods") -> bool:
                return (await self.plane.request("GET", path, role=self._replicas[0].name)).status == 200

            await eventually(allowed)

    async def _rounds(self, until: float) -> None:
        """The first is without trouble."""
        clock = asyncio.get_running_loop().time
        end = clock() + until - monotonic()
        while (now := clock()) < end or len(self.report.samples) < ENOUGH:
            self._going.set()
            try:
                if self.report.samples:
                    await self._trouble.until(now + ROUND)
                else:
                    await asyncio.sleep(ROUND / 2)
            finally:
                self._going.clear()
            await self._rest()

    async def _rest(self) -> None:
        async def resting() -> bool:
            return all(replica.resting for replica in self._replicas)

        await self._soon(resting, "calls without an outcome")
        for number, plural in enumerate(("pods", "configmaps")):
            versions = {
                obj["metadata"]["name"]: obj["metadata"]["resourceVersion"]
                for obj in await self._items(f"/api/v1/namespaces/{PASSING}/{plural}")
            }

            async def agree(number: int = number, versions: dict[str, str] = versions) -> bool:
                return all(replica.agrees(number, versions) for replica in self._replicas)

            await self._soon(agree, f"a reflector of {plural} that does not agree with the server")
        for replica in self._replicas:
            self.report.remains += replica.remains()
        for replica in self._replicas:
            replica.proxy.cut()  # how many connections the pools hold now is an accident
        await asyncio.sleep(0.5)
        with self._heartbeat.ignoring():
            self.report.samples.append(Sample.take(sum(replica.calls for replica in self._replicas)))

    async def _soon(self, condition: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        try:
            await eventually(condition, timeout=REST)
        except TimeoutError:
            states = "\n".join(f"{replica.name}: {replica.dispatcher.statistics()}" for replica in self._replicas)
            raise AssertionError(f"{REST:g} s after all trouble there are {otherwise}\n{states}") from None

    # -- the audit ---------------------------------------------------------------------------------------------------

    async def _audit(self) -> None:
        writes: dict[str, list[Carried]] = {}
        for namespace in (KEPT, PASSING):
            for write in await asyncio.to_thread(self._log.carried, namespace):
                writes.setdefault(write.agent, []).append(write)
        lists: dict[str, list[Any]] = {}

        async def items(path: str) -> list[Any]:
            if path not in lists:
                lists[path] = await self._items(path)
            return lists[path]

        unlogged: list[str] = []
        async with soak_cluster(self.plane, "one", "audit", self.plane.url) as cluster:
            for disk in self._ledgers():
                ledger = disk.load(cluster)
                carried = writes.get(disk.agent, [])
                self.report.violations += await violations(ledger, items, carried)
                unlogged += _unlogged(ledger, carried)
        if len(unlogged) > 2 * self._trouble.kills:  # one that is killed as it answers may owe its log a line
            self.report.violations += [Violation("lost", f"succeeded, and is in no log: {one}") for one in unlogged]
        led = await items(f"/api/v1/namespaces/{KEPT}/configmaps")
        self.report.violations += _late_writes([obj for obj in led if LED in obj["metadata"].get("labels", {})])

    def _ledgers(self) -> Iterator[DiskLedger]:
        for replica in self._replicas:
            yield from replica.ledgers

    async def _items(self, path: str) -> list[Any]:
        """In pages."""
        found: list[Any] = []
        following = ""
        while True:
            page = await self.plane.ask("GET", f"{path}?limit=500&continue={quote(following)}")
            found += page["items"]
            following = page["metadata"].get("continue", "")
            if not following:
                return found


def _unlogged(ledger: Ledger, carried: list[Carried]) -> list[str]:
    """The writes that have succeeded at once and are not among those that the server says it has carried out.

    It is the evidence for what was done to objects that are gone. One that met an error first may have been settled by
    a read, and one that had no attempt was a no-op; a deletion whose object had gone already was told so by a 404.
    """
    logged = {write.ticket for write in carried}
    return [
        f"{ledger.calls[ticket]!r} (ticket {ticket}): {ends[0]!r}"
        for ticket, ends in ledger.outcomes.items()
        if ends and ledger.calls[ticket].call_type not in ("read", "event", "delete", "evict")
        if isinstance(ends[0], Succeeded) and ends[0].cause is None and ends[0].attempts > 0 and ticket not in logged
    ]


def _late_writes(led: list[Any]) -> list[Violation]:
    """What was written under the lease in a term that was over: another's first write had been stored by then."""
    led.sort(key=lambda obj: int(obj["metadata"]["resourceVersion"]))
    terms = [obj["data"]["term"] for obj in led]
    found, over = [], set()
    for before, term in pairwise(terms):
        if term != before:
            over.add(before)
            if term in over:
                found.append(Violation("late", f"a write of {term} was stored after one of {before}"))
    return found
