"""The three acts: the same loop in each, and a count at the end of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from kubernetes_asyncio.client import CoreV1Api

from asyncdispatch import Dispatcher, DispatcherConfig, DispatcherStatistics, Mode
from asyncdispatch._demo.ledger import Count, Ledger, count
from asyncdispatch._demo.scheduler import Scheduler
from asyncdispatch._demo.world import NAMESPACE, Settings, Trouble, placed, populate
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import EmbeddedAPIServer

__all__ = ["ACTS", "Act", "Result", "play"]

LOOK_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class Act:
    """What differs between the acts."""

    title: str
    heading: str
    mode: Mode = Mode.ASYNC
    trouble: bool = False

    @property
    def calls_in_cycle(self) -> bool:
        """The loop waits for each call's outcome before it goes on."""
        return self.mode is Mode.SYNC

    def pods(self, settings: Settings) -> int:
        return settings.pods_in_cycle if self.calls_in_cycle else settings.pods


ACTS = (
    Act("Calling the API in the cycle", "in the cycle", mode=Mode.SYNC),
    Act("Through the dispatcher", "dispatched"),
    Act("The same, server misbehaving", "under faults", trouble=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an act came to. Seconds."""

    act: Act
    pods: int
    placed: int
    cycles: int
    cycles_per_second: float
    cycle_p99: float
    placed_after: float
    statistics: DispatcherStatistics
    count: Count
    refused_answers: int
    lost_answers: int
    recreated: int
    preempted: int
    refused_calls: int

    @property
    def pods_per_second(self) -> float:
        """Placed per second of the whole act, up to the last one."""
        return self.placed / self.placed_after if self.placed_after else 0.0


Watch = Callable[[int, int], None]
"""Told now and then how many Pods are placed, of how many."""


async def play(act: Act, settings: Settings, watch: Watch) -> Result:
    """Run one act from an empty cluster to the last Pod placed, or to the time limit."""
    pods = act.pods(settings)
    ledger = Ledger()
    async with EmbeddedAPIServer(latency=settings.latency, seed=settings.seed) as server:
        trouble = Trouble(server, settings) if act.trouble else None
        ready = settings.nodes // 2 if trouble else settings.nodes
        populate(server, pods, settings.nodes, ready=ready, late=trouble.urgent if trouble else 0)
        scheduler, statistics = await _schedule(act, settings, server, ledger, trouble, lambda n: watch(n, pods), pods)
        await _until_quiet(server)
        began = server.audit[0].time
        landed = [record.applied_at for record in server.audit if record.verb == "bind" and record.applied_at]
        return Result(
            act=act,
            pods=pods,
            placed=placed(server),
            cycles=len(scheduler.pace.cycles),
            cycles_per_second=scheduler.pace.per_second,
            cycle_p99=scheduler.pace.p99,
            placed_after=max(landed, default=began) - began,
            statistics=statistics,
            count=count(ledger.calls, server.audit, server.objects.of("Pod", NAMESPACE), pods),
            refused_answers=sum(record.status == 429 for record in server.audit),
            lost_answers=sum(record.fault == "answer lost" for record in server.audit),
            recreated=trouble.recreated if trouble else 0,
            preempted=scheduler.preemptions,
            refused_calls=scheduler.refused,
        )


async def _schedule(
    act: Act,
    settings: Settings,
    server: EmbeddedAPIServer,
    ledger: Ledger,
    trouble: Trouble | None,
    watch: Callable[[int], None],
    pods: int,
) -> tuple[Scheduler, DispatcherStatistics]:
    api_client = server.api_client()
    config = DispatcherConfig(capacity=settings.capacity)
    async with Dispatcher(config, observers=[ledger]) as dispatcher:
        await dispatcher.switch(act.mode, "the act asks for it")
        cluster = Cluster(api_client)
        scheduler = Scheduler(dispatcher, cluster, CoreV1Api(api_client), NAMESPACE, seed=settings.seed)
        running = [asyncio.create_task(scheduler.run())]
        if trouble is not None:
            running.append(asyncio.create_task(trouble.run()))
        try:
            await _until_placed(server, dispatcher, running, watch, pods, settings.limit)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return scheduler, dispatcher.statistics()


async def _until_placed(
    server: EmbeddedAPIServer,
    dispatcher: Dispatcher,
    running: list[asyncio.Task[None]],
    watch: Callable[[int], None],
    pods: int,
    limit: float,
) -> None:
    """Return when every Pod is on a node and all trouble is over, or when the time is. Raises what the loop raises."""
    loop = asyncio.get_running_loop()
    until = loop.time() + limit
    _, *trouble = running
    while loop.time() < until:
        for task in running:
            if task.done():
                task.result()
        there = placed(server)
        watch(there)
        if there == pods and all(task.done() for task in trouble) and not dispatcher.statistics().depth:
            return
        await asyncio.sleep(LOOK_EVERY)


async def _until_quiet(server: EmbeddedAPIServer) -> None:
    """Wait for requests that nobody waits for any more: what they write counts too."""
    for _ in range(100):
        if all(record.finished is not None for record in server.audit):
            return
        await asyncio.sleep(0.02)
