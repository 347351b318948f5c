"""The four acts: the same loop in each, and a count at the end of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from kubernetes_asyncio.client import CoreV1Api

from asyncdispatch import Dispatcher, DispatcherConfig, DispatcherStatistics, Mode
from asyncdispatch._demo.ledger import Count, Ledger, count
from asyncdispatch._demo.scheduler import Scheduler
from asyncdispatch._demo.world import NAMESPACE, Event, Settings, SlowSpell, Trouble, placed, populate
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.rollout import Decision, Guard, GuardPolicy, GuardState, HalfOpen, Rollout, Rule, Threshold
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
    guarded: bool = False
    """The server is slow for a spell, and a guard watches."""

    @property
    def calls_in_cycle(self) -> bool:
        """The loop waits for each call's outcome before it goes on."""
        return self.mode is Mode.SYNC

    @property
    def plain(self) -> bool:
        """Through the dispatcher, and nothing goes wrong."""
        return not (self.calls_in_cycle or self.trouble or self.guarded)

    def pods(self, settings: Settings) -> int:
        if self.guarded:
            return max(1, settings.pods * 6 // 10)
        return settings.pods_in_cycle if self.calls_in_cycle else settings.pods


ACTS = (
    Act("Calling the API in the cycle", "in the cycle", mode=Mode.SYNC),
    Act("Through the dispatcher", "dispatched"),
    Act("The same, server misbehaving", "under faults", trouble=True),
    Act("With a guard, server slow", "guarded", guarded=True),
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
    rollbacks: tuple[Decision, ...] = ()
    back_again: int = 0
    """How often the guard went asynchronous again after a rollback, for all Pods."""
    synchronous: float | None = None
    """Seconds in which calls were synchronous, by the guard's doing; None without one."""

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
        event: Event | None = None
        if act.trouble:
            event = Trouble(server, settings)
        elif act.guarded:
            event = SlowSpell(server, settings, pods)
        ready = settings.nodes // 2 if act.trouble else settings.nodes
        populate(server, pods, settings.nodes, ready=ready, late=event.late if event else 0)
        watched = Watched(settings, pods) if act.guarded else None
        scheduler, statistics = await _schedule(
            act, settings, server, ledger, event, watched, lambda n: watch(n, pods), pods
        )
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
            recreated=event.recreated if event else 0,
            preempted=scheduler.preemptions,
            refused_calls=scheduler.refused,
            rollbacks=tuple(watched.rollbacks) if watched else (),
            back_again=watched.back_again if watched else 0,
            synchronous=watched.synchronous if watched else None,
        )


class Watched:
    """A guard, and what became of it. An observer: it adds up the time in which calls were not asynchronous."""

    def __init__(self, settings: Settings, pods: int) -> None:
        policy = GuardPolicy(
            scheduling_p99=None,
            queue_depth=None,
            queue_wait_p99=None,
            api_latency_p99=Threshold(absolute=4 * settings.latency),
            failure_rate=None,
            duplicate_rate=None,
            binding_errors=None,
            unschedulable_retries=None,
            window=1.0,
            slices=4,
            interval=0.1,
            min_samples=max(3, pods // 30),
            hold_off=1.5,
            half_open=HalfOpen(percentage=50, seconds=0.5, samples=max(3, pods // 30)),
        )
        self.rollout = Rollout([Rule(name="every Pod")])
        self.rollbacks: list[Decision] = []
        self.back_again = 0
        self.synchronous = 0.0
        self._since: float | None = None
        self.guard = Guard(policy, rollout=self.rollout, on_rollback=self.rollbacks.append, on_step=self._step)

    def _step(self, decision: Decision) -> None:
        self.back_again += bool(self.rollbacks) and decision.state is GuardState.ARMED

    def mode_changed(self, old: Mode, new: Mode, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if new is Mode.ASYNC and self._since is not None:
            self.synchronous += now - self._since
            self._since = None
        elif new is not Mode.ASYNC and self._since is None:
            self._since = now


async def _schedule(
    act: Act,
    settings: Settings,
    server: EmbeddedAPIServer,
    ledger: Ledger,
    event: Event | None,
    watched: Watched | None,
    watch: Callable[[int], None],
    pods: int,
) -> tuple[Scheduler, DispatcherStatistics]:
    api_client = server.api_client()
    config = DispatcherConfig(capacity=settings.capacity)
    observers = [ledger, watched, watched.guard] if watched else [ledger]
    async with AsyncExitStack() as stack:
        rollout = watched.rollout if watched else None
        dispatcher = await stack.enter_async_context(Dispatcher(config, rollout=rollout, observers=observers))
        if watched is not None:
            await stack.enter_async_context(watched.guard.watch(dispatcher))
        await dispatcher.switch(act.mode, "the act asks for it")
        cluster = Cluster(api_client)
        scheduler = Scheduler(dispatcher, cluster, CoreV1Api(api_client), NAMESPACE, seed=settings.seed)
        running = [asyncio.create_task(scheduler.run())]
        if event is not None:
            running.append(asyncio.create_task(event.run()))
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
    """Return when every Pod is on a node and all events are over, or when the time is. Raises what the loop raises."""
    loop = asyncio.get_running_loop()
    until = loop.time() + limit
    _, *events = running
    while loop.time() < until:
        for task in running:
            if task.done():
                task.result()
        there = placed(server)
        watch(there)
        if there == pods and all(task.done() for task in events) and not dispatcher.statistics().depth:
            return
        await asyncio.sleep(LOOK_EVERY)


async def _until_quiet(server: EmbeddedAPIServer) -> None:
    """Wait for requests that nobody waits for any more: what they write counts too."""
    for _ in range(100):
        if all(record.finished is not None for record in server.audit):
            return
        await asyncio.sleep(0.02)
