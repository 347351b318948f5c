"""The programs under test: two replicas, each with a dispatcher, a lease, a reflector and a load of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from kubernetes_asyncio import client

from asyncdispatch import AdaptiveLimit, Dispatcher, DispatcherConfig, ObjectRef, RetryPolicy
from asyncdispatch._core.invariants import check_invariants
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.errors import DispatchError, StaleContext
from asyncdispatch.kubernetes import Cluster, Lease, Reflector
from asyncdispatch.testing import ControlPlane, FaultProxy
from tests.e2e.soak.ledger import DiskLedger
from tests.e2e.soak.load import PASSING, Load, expected, led

WIDTH = 32
"""Lives that a replica leads beside each other."""
TIMING = {"lease_duration": 3.0, "renew_deadline": 2.0, "retry_period": 0.4}
WATCHED: dict[str, Any] = {"namespace": PASSING, "idle_limit": 5.0}
"""Watches whose answers are swallowed are noticed before the next rest."""
# One call may meet all connections whose answers are lost, one read after the other. A step that seems to hold the
# event loop may wait for a processor, which other programs have too: only what takes a second is surely its own doing.
CONFIG = DispatcherConfig(
    attempt_timeout=3,
    blocking_threshold=1,
    max_in_flight=AdaptiveLimit(initial=16, maximum=24),
    retry=RetryPolicy(max_reconciles=200),
)


class Replica:
    """Lives as several processes would, one after another: `restart` ends one by draining and begins the next.

    It works while `going` is set. Its requests pass through `proxy`, for faults of the network.
    """

    def __init__(self, plane: ControlPlane, name: str, folder: Path, seed: int, going: asyncio.Event) -> None:
        self.plane = plane
        self.name = name
        self.ledgers: list[DiskLedger] = []
        self.terms = 0
        self.blocked = 0
        self.dispatcher: Dispatcher
        self.lease: Lease
        self.proxy = FaultProxy(plane.url)
        self._folder = folder
        self._random = Random(f"{seed} {name}")
        self._going = going
        self._busy = 0
        self._ready = asyncio.Event()
        self._leaving = asyncio.Event()
        self._reflectors: list[Reflector] = []
        self._led: list[ObjectRef] = []
        self._task: asyncio.Task[None] | None = None

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._ready.clear()
        self._leaving.clear()
        self._task = asyncio.create_task(self._generation(), name=f"replica {self.name}")
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.is_set():
            ready.cancel()
            await self._task

    async def stop(self) -> None:
        assert self._task is not None
        self._leaving.set()
        await self._task

    async def abandon(self) -> None:
        """The soak has failed: leave nothing behind."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def _generation(self) -> None:
        name = f"{self.name}{len(self.ledgers) + 1}"
        ledger = DiskLedger(self._folder / f"{name}.pickle", f"soak/{name}", expected)
        self.ledgers.append(ledger)
        try:
            async with (
                soak_cluster(self.plane, self.name, ledger.agent, self.proxy.url) as cluster,
                cluster.lease("soak", PASSING, name, **TIMING) as self.lease,
                Dispatcher(CONFIG, observers=[ledger]) as self.dispatcher,
                cluster.reflector("v1", "Pod", dispatcher=self.dispatcher, **WATCHED) as pods,
                cluster.reflector("v1", "ConfigMap", dispatcher=self.dispatcher, **WATCHED) as config_maps,
            ):
                self._reflectors = [pods, config_maps]
                self._ready.set()
                await self._work(Load(self.dispatcher, cluster, name, self._random))
        finally:
            await ledger.close()
            self.terms += self.lease.statistics().terms
            self.blocked += self.dispatcher.statistics().blocked

    async def _work(self, load: Load) -> None:
        tasks = [asyncio.create_task(self._live(load)) for _ in range(WIDTH)]
        tasks.append(leader := asyncio.create_task(self._lead(load)))
        try:
            leaving = asyncio.create_task(self._leaving.wait())
            await asyncio.wait({leaving, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            leader.cancel()
            for task in tasks:
                if task is not leader:
                    await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if self._going.is_set():
            self._leave_some(load)

    async def _live(self, load: Load) -> None:
        while not self._leaving.is_set():
            if not self._going.is_set():
                await self._either(self._going, self._leaving)
                continue
            self._busy += 1
            try:
                await load.live()
            finally:
                self._busy -= 1

    def _leave_some(self, load: Load) -> None:
        """For the end to drain."""
        for number in range(30):
            try:
                obj = led(f"{load.name}-last", number, "nobody", 0)
                del obj["metadata"]["labels"]
                load.dispatcher.submit(load.cluster.create(obj, idempotency_key=obj["metadata"]["name"]))
            except DispatchError:  # in another mode
                return

    async def _either(self, *events: asyncio.Event) -> None:
        waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    async def _lead(self, load: Load) -> None:
        number = 0
        while True:
            async with self.lease.leadership(load.dispatcher) as leading:
                while True:
                    await self._going.wait()
                    self._busy += 1
                    try:
                        await self._write(load, leading, number := number + 1)
                    finally:
                        self._busy -= 1
                    await asyncio.sleep(0.02)

    async def _write(self, load: Load, leading: SchedulingContext, number: int) -> None:
        obj = led(load.name, number, self.lease.identity, leading.epoch)
        call = load.cluster.create(obj, idempotency_key=obj["metadata"]["name"], context=leading)
        self._led.append(call.target)
        try:
            handle = await load.ask(call)
        except StaleContext:
            return
        await handle.outcome()

    # -- at rest -----------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        return sum(ledger.counts.total() for ledger in self.ledgers)

    @property
    def resting(self) -> bool:
        """Nothing is asked, and every call has its outcome."""
        statistics = self.dispatcher.statistics()
        return not (self._busy or statistics.depth or statistics.joined or statistics.in_flight)

    def remains(self) -> list[str]:
        """What a dispatcher at rest should not hold (law L19)."""
        # Here, since a write may be cancelled with its leader, who then learns nothing of it.
        for ref in self._led:
            self.dispatcher.forget(ref, "it stays as it is")
        self._led.clear()
        statistics = self.dispatcher.statistics()
        core = self.dispatcher._core
        check_invariants(core, self.dispatcher._now())
        found = {
            "unobserved writes": statistics.unobserved,
            "contexts besides a term": statistics.contexts - self.lease.is_leader,
            "known objects": len(core.objects.table) - sum(len(reflector) for reflector in self._reflectors),
            "keys": len(core.keys),
            "lanes": len(core.lanes.table),
        }
        left = [f"{self.name}: {count} {what}" for what, count in found.items() if count > 0]
        unseen = [write for known in core.objects.table.values() for write in known.writes]
        return left + [f"{self.name}: not seen: {write.call!r} (ticket {write.ticket})" for write in unseen]

    def agrees(self, number: int, versions: dict[str, str]) -> bool:
        """Whether a reflector holds just these objects."""
        reflector = self._reflectors[number]
        return versions == {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in reflector}


@asynccontextmanager
async def soak_cluster(plane: ControlPlane, role: str, agent: str, server: str) -> AsyncIterator[Cluster]:
    """A cluster with a client that is closed with it, whose requests are known by `agent`."""
    settings: Any = client.Configuration(host=server)
    settings.ssl_ca_cert = str(plane.ca_file)
    settings.api_key = {"BearerToken": f"Bearer {plane.token(role)}"}
    async with client.ApiClient(settings) as api_client:
        api_client.user_agent = agent
        yield Cluster(api_client)
