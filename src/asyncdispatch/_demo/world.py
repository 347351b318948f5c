"""The cluster that the scheduler meets: an embedded API server with nodes and Pods, and all that goes wrong in it."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from asyncdispatch.testing import AuditRecord, EmbeddedAPIServer

__all__ = ["NAMESPACE", "Event", "Settings", "SlowSpell", "Trouble", "placed", "populate"]

Json = dict[str, Any]

NAMESPACE = "demo"
URGENT = "urgent"
SLACK = 1.1
"""Room for so many times the Pods that there are: enough in the end, but a few nodes drawn may all be full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How large the demo is. `pods_in_cycle` are for the first act, which is slow; `limit` ends an act that hangs."""

    pods: int = 1000
    pods_in_cycle: int = 200
    nodes: int = 50
    latency: float = 0.05
    seed: int = 5229
    capacity: int = 400
    limit: float = 40.0


def populate(server: EmbeddedAPIServer, pods: int, nodes: int, *, ready: int, late: int = 0) -> None:
    """Nodes with room for all Pods, of which the first `ready` are ready; and the Pods, but for the `late` ones."""
    server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": URGENT}}
    server.create({**head, "value": 1_000_000})
    for number in range(nodes):
        server.put(_node(f"node-{number:02}", math.ceil(pods * SLACK / nodes), ready=number < ready))
    for number in range(pods - late):
        server.create(_pod(f"pod-{number:04}"))


def placed(server: EmbeddedAPIServer) -> int:
    """How many Pods are on a node, as the server has them."""
    return sum("nodeName" in pod["spec"] for pod in server.objects.of("Pod", NAMESPACE))


def _node(name: str, room: int, *, ready: bool) -> Json:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    status = {"allocatable": {"pods": str(room)}, "capacity": {"pods": str(room)}, "conditions": [condition]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def _pod(name: str, **spec: Any) -> Json:
    containers = [{"name": "main", "image": "registry.example/app:1"}]
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}


class Event(Protocol):
    """What happens to the cluster in the course of an act."""

    recreated: int

    @property
    def late(self) -> int:
        """How many of the Pods are not there at first."""
        ...

    async def run(self) -> None:
        """Make it happen; over when the last of it has."""


class SlowSpell:
    """What happens in the fourth act: Pods come by and by, and for a spell the server is slow."""

    SECONDS = 9.0
    """From the first Pod to the last."""
    BEGINS, ENDS = 0.2, 0.5
    """The spell, as shares of it."""
    SLOWER = 12

    recreated = 0

    def __init__(self, server: EmbeddedAPIServer, settings: Settings, pods: int) -> None:
        self._server = server
        self._latency = settings.latency
        self._pods = pods

    @property
    def late(self) -> int:
        return self._pods

    async def run(self) -> None:
        server, usual, loop = self._server, self._latency, asyncio.get_running_loop()
        began = loop.time()
        for number in range(self._pods):
            share = number / self._pods
            await asyncio.sleep(began + share * self.SECONDS - loop.time())
            server.latency = self.SLOWER * usual if self.BEGINS <= share < self.ENDS else usual
            server.create(_pod(f"pod-{number:04}"))


class Trouble:
    """What goes wrong in the third act. `run` is over when the worst is; lost answers go on to the end.

    Answers are lost after the write has landed. For three spells every request is answered 429. Pods are deleted and
    recreated under the same name, some of them right before their bind arrives. Half of the nodes get ready late, and
    urgent Pods come when there is no room for them.
    """

    def __init__(self, server: EmbeddedAPIServer, settings: Settings) -> None:
        self._server = server
        self._settings = settings
        self._rng = random.Random(f"trouble {settings.seed}")
        self.recreated = 0

    @property
    def late(self) -> int:
        """How many urgent Pods will come."""
        return max(1, self._settings.pods // 25)

    async def run(self) -> None:
        server, pods = self._server, self._settings.pods
        for verb, method in (("bind", "POST"), ("patch", "PATCH")):
            server.drop(times=None, applied=True, verb=verb, method=method, when=_every(25), name="answer lost")
        server.hook(self._recreate_target, times=max(1, pods // 50), verb="bind", when=_every(20))
        await asyncio.sleep(0.3)
        for spell in range(3):
            server.fail(status=429, retry_after=1, times=max(5, pods // 20), when=_by_dispatcher, name="429")
            if spell == 0:
                self._call_urgent_pods()
            await asyncio.sleep(0.7)
            await self._recreate_some(max(1, pods // 100))
            if spell == 1:
                self._ready_all_nodes()

    def _recreate_target(self, record: AuditRecord) -> None:
        if self._server.find("Pod", record.name, namespace=NAMESPACE) is not None:
            self._recreate(record.name)

    def _recreate(self, name: str) -> None:
        self._server.recreate("Pod", name, namespace=NAMESPACE)
        self.recreated += 1

    async def _recreate_some(self, count: int) -> None:
        names = [pod["metadata"]["name"] for pod in self._server.objects.of("Pod", NAMESPACE)]
        for name in self._rng.sample(names, min(count, len(names))):
            self._recreate(name)
            await asyncio.sleep(0.02)

    def _ready_all_nodes(self) -> None:
        for node in self._server.objects.of("Node"):
            status = {"conditions": [{"type": "Ready", "status": "True"}]}
            self._server.patch_object(node, {"status": status})

    def _call_urgent_pods(self) -> None:
        for number in range(self.late):
            self._server.create(_pod(f"urgent-{number:04}", priorityClassName=URGENT))


def _every(nth: int) -> Callable[[AuditRecord], bool]:
    """Meets one request of so many, the first of them halfway."""
    numbers = itertools.count(nth // 2)
    return lambda record: next(numbers) % nth == nth - 1


def _by_dispatcher(record: AuditRecord) -> bool:
    return record.audit_id is not None
