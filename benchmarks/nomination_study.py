"""Does nomination help? The same Pods on a real kube-scheduler, with hints and without, and what came of it: a table.

    python -m benchmarks.nomination_study                       # 500 nodes, 2,000 Pods, gangs of ten
    python -m benchmarks.nomination_study --gang 1              # each Pod for itself: what a hint alone does
    python -m benchmarks.nomination_study --nodes 20 --pods 60 --rounds 1

Half of the Pods are jobs: gated, of high priority, in gangs whose members arrive within twenty seconds. A planner lifts
the gates of a gang once it is complete. With hints, it nominates each member as it arrives, and confirms before it
lifts the gate. The other half are bystanders of low priority without gates, which arrive meanwhile and take what is
free. All together ask for more than is free, so that jobs preempt. Both ways have the same nodes, Pods and times of
arrival, by the seed; they take turns, each with a scheduler that was started anew, whose limit of 50 requests a second
is lifted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from asyncdispatch import Dispatcher, DispatchError, ObjectRef
from asyncdispatch.kubernetes import Cluster, WatchEvent
from asyncdispatch.nomination import Decision, NominationHandle, NominationPolicy, Nominator
from asyncdispatch.nomination.scraped import FILTER_SECONDS, Page
from asyncdispatch.testing import ControlPlane
from benchmarks.harness import NotHere, in_turn
from benchmarks.nomination_workload import Arrival, Size, Workload, workload
from benchmarks.p16_scheduler import FAST
from benchmarks.plane import control_plane, in_parallel, remove_pods

PODS = "/api/v1/namespaces/default/pods"
ARMS = ("without hints", "with hints")
GRACE = 1.0
"""Seconds that a victim takes to end."""
PATIENCE = 180.0
"""Seconds for one sample, once the last Pod has arrived."""
LEDGER = 0.5
"""Seconds after which the planner counts anew what is free."""
TRIES = 3
"""Nodes that the planner tries for a Pod."""


# -- one sample -------------------------------------------------------------------------------------------------------


@dataclass
class Gang:
    """Jobs that are let go together."""

    missing: int
    members: list[tuple[Any, NominationHandle | None]] = field(default_factory=list)
    complete_at: float = 0.0


class Sample:
    """All Pods once, in one arm: their creator, the planner, and the kubelet for victims."""

    def __init__(self, plane: ControlPlane, load: Workload, nominator: Nominator | None) -> None:
        self.plane, self.load, self.nominator = plane, load, nominator
        self.loop = asyncio.get_running_loop()
        self.gangs: dict[int, Gang] = {}
        for arrival in load.arrivals:
            if arrival.gang is not None:
                self.gangs.setdefault(arrival.gang, Gang(0)).missing += 1
        self.created: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self.victims: set[str] = set()
        self.unhinted = 0
        self.cpu = {arrival.name: arrival.cpu for arrival in load.arrivals}
        self.picked: dict[str, str] = {}
        self.free: dict[str, int] = {}
        self.counted_at = -LEDGER
        self.waiting = {arrival.name for arrival in load.arrivals if arrival.gang is not None}
        self.done = asyncio.Event()
        self.tasks: asyncio.TaskGroup

    def saw(self, event: WatchEvent) -> None:
        """A Pod has changed."""
        meta, spec = event.object["metadata"], event.object["spec"]
        name = meta["name"]
        if not spec.get("nodeName") or event.type == "DELETED":
            return
        if name in self.cpu:
            self.bound.setdefault(name, self.loop.time())
            self.waiting.discard(name)
            if not self.waiting:
                self.done.set()
        if "deletionTimestamp" in meta and name not in self.victims and not self.done.is_set():
            self.victims.add(name)
            self.loop.call_later(GRACE, lambda: self.tasks.create_task(self.plane.end_pod(name)))

    async def run(self) -> None:
        """Until all jobs are bound."""
        begun = self.loop.time()
        async with asyncio.timeout(self.load.arrivals[-1].at + PATIENCE), asyncio.TaskGroup() as self.tasks:
            for arrival in self.load.arrivals:
                await asyncio.sleep(begun + arrival.at - self.loop.time())
                self.tasks.create_task(self._arrive(arrival))
            await self.done.wait()
            await asyncio.sleep(GRACE)  # the victims that are on their way

    async def _arrive(self, arrival: Arrival) -> None:
        options: dict[str, Any] = {"requests": {"cpu": f"{arrival.cpu}m"}}
        if arrival.gang is not None:
            options |= {"priorityClassName": "job", "gates": ("example.com/gang",)}
        pod = await self.plane.add_pod(arrival.name, **options)
        self.created[arrival.name] = self.loop.time()
        if arrival.gang is None:
            return
        gang = self.gangs[arrival.gang]
        gang.members.append((pod, await self._hint(pod)))
        gang.missing -= 1
        if not gang.missing:
            gang.complete_at = max(self.created[name_of(member)] for member, _ in gang.members)
            for pod, handle in gang.members:
                self.tasks.create_task(self._let_go(pod, handle))

    async def _let_go(self, pod: Any, handle: NominationHandle | None) -> None:
        """Nominate, confirm, ungate; where there is no hint, ungate."""
        name = name_of(pod)
        stands = await self._confirmed(handle)
        if not stands and handle is not None:
            stands = await self._confirmed(await self._hint(pod))
        self.unhinted += not stands
        steps = [{"op": "remove", "path": "/spec/schedulingGates"}]
        await self.plane.ask("PATCH", f"{PODS}/{name}", steps, content_type="application/json-patch+json")

    # -- the planner --------------------------------------------------------------------------------------------------

    async def _hint(self, pod: Any) -> NominationHandle | None:
        """Best fit: of the nodes with room, the one with the least room left; another, if the guards refuse it."""
        name = name_of(pod)
        for _ in range(TRIES if self.nominator is not None else 0):
            assert self.nominator is not None
            self._count(self.nominator)
            fits = {node: free - self.cpu[name] for node, free in self.free.items() if free >= self.cpu[name]}
            if not fits:
                return None
            node = min(fits, key=fits.__getitem__)
            self.free[node] -= self.cpu[name]
            self.picked[name] = node
            ref = ObjectRef.of(pod)  # not the whole Pod: its version has moved on by the second try
            handle = await self.nominator.nominate(
                Decision(pod=ref, node=node, algorithm_version="best-fit", reason="best fit", ttl=60)
            )
            if await handle.written():
                return handle
        return None

    async def _confirmed(self, handle: NominationHandle | None) -> bool:
        if handle is None or self.nominator is None:
            return False
        try:
            return await self.nominator.confirm(handle.decision_id)
        except DispatchError:
            return False

    def _count(self, nominator: Nominator) -> None:
        """What is free, by what the nominator sees, and what was picked and is not seen yet."""
        if self.loop.time() < self.counted_at + LEDGER:
            return
        free = {node["metadata"]["name"]: self.load.node_cpu for node in nominator.nodes}
        for pod in nominator.pods:
            name = name_of(pod)
            place = pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName") or self.picked.get(name)
            if place in free:
                cpu = pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
                free[place] -= int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu)
        self.free, self.counted_at = free, self.loop.time()


# -- what came of it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pages:
    """What the control plane tells of itself, and the processor time of this process."""

    scheduler: Page
    apiserver: Page
    own: float

    @classmethod
    async def read(cls, plane: ControlPlane) -> Pages:
        return cls(Page(await plane.metrics("kube-scheduler")), Page(await plane.metrics()), time.process_time())


def figures(sample: Sample, before: Pages, after: Pages) -> dict[str, float]:
    """The rows of one sample, by their names."""
    found: dict[str, float] = {}

    def times(label: str, seconds: list[float]) -> None:
        for q in (0.5, 0.99):
            found[f"{label}, P{q * 100:g} (s)"] = _quantile(seconds, q)

    ready = {name_of(pod): gang.complete_at for gang in sample.gangs.values() for pod, _ in gang.members}
    times("job: may go, to its binding", [sample.bound[name] - at for name, at in ready.items()])
    gangs = sample.gangs.values()
    if any(len(gang.members) > 1 for gang in gangs):
        times(
            "gang: complete, to all bound",
            [max(sample.bound[name_of(pod)] for pod, _ in gang.members) - gang.complete_at for gang in gangs],
        )
    others = [name for name in sample.created if name.startswith("other-")]
    times("bystander: made, to its binding", [sample.bound[o] - sample.created[o] for o in others if o in sample.bound])
    found["bystanders bound"] = sum(name in sample.bound for name in others)
    if sample.nominator is not None:
        report = sample.nominator.report()
        hinted = len(ready) - sample.unhinted
        found["jobs let go with a hint that stands"] = hinted
        found["hit rate"] = report.hit_rate or 0.0
        found |= {f"hints that ended as {state}": count for state, count in sorted(report.outcomes.items())}
    found["evicted: bystanders"] = sum(name.startswith("other-") for name in sample.victims)
    found["evicted: what was there before"] = sum(name.startswith("was-") for name in sample.victims)
    found |= _told(before, after)
    found["the machine: load, five minutes' average at the end"] = os.getloadavg()[1]
    return found


def _told(before: Pages, after: Pages) -> dict[str, float]:
    """By the scheduler's own account, which begins with its start, and by the API server's."""
    told = after.scheduler
    attempts = told.spread("scheduler_scheduling_attempt_duration_seconds")
    filtering = told.spread(FILTER_SECONDS, extension_point="Filter")
    writes = ("POST", "PATCH", "PUT", "DELETE")

    def written(pages: Pages) -> float:
        return sum(pages.apiserver.total("apiserver_request_total", resource="pods", verb=verb) for verb in writes)

    def cpu(now: Page, then: Page) -> float:
        return now.total("process_cpu_seconds_total") - then.total("process_cpu_seconds_total")

    return {
        "scheduler: preemption attempts": told.total("scheduler_preemption_attempts_total"),
        "scheduler: victims": told.spread("scheduler_preemption_victims").seconds,
        "scheduler: attempts": attempts.count,
        "scheduler: seconds in attempts": attempts.seconds,
        "scheduler: an attempt, mean (ms)": 1000 * (attempts.mean or 0.0),
        "scheduler: an attempt, P99 (ms)": 1000 * (attempts.quantile(0.99) or 0.0),
        "scheduler: filtering for a Pod, mean (ms)": 1000 * (filtering.mean or 0.0),
        "scheduler: processor (s)": cpu(after.scheduler, before.scheduler),
        "API server: writes to Pods": written(after) - written(before),
        "API server: processor (s)": cpu(after.apiserver, before.apiserver),
        "planner, nominator and this program: processor (s)": after.own - before.own,
    }


def name_of(pod: Any) -> str:
    return str(pod["metadata"]["name"])


def _quantile(seconds: list[float], q: float) -> float:
    """By nearest rank."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


# -- the study --------------------------------------------------------------------------------------------------------


async def study(size: Size) -> dict[str, list[dict[str, float]]]:
    """For each arm, the figures of each round. Raises `NotHere` where there are no programs of a control plane."""
    load = workload(size)
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    async with control_plane() as plane:
        plane.scheduler.flags[:] = FAST
        job = {"metadata": {"name": "job"}, "value": 1000}
        await plane.ask("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", job)
        cpu = f"{load.node_cpu}m"
        await in_parallel(plane.add_node(f"node-{n}", cpu=cpu, memory="64Gi") for n in range(size.nodes))
        for number in range(size.rounds):
            for arm in in_turn(list(ARMS), number):
                say(f"# round {number + 1}, {arm}: load {os.getloadavg()[0]:.2f} before")
                found[arm].append(await _sample(plane, load, arm))
    return found


async def _sample(plane: ControlPlane, load: Workload, arm: str) -> dict[str, float]:
    parts = [(f"was-{n}-{half}", f"node-{n}", cpu // 2) for n, cpu in enumerate(load.taken) for half in (0, 1)]
    await in_parallel(
        plane.add_pod(name, requests={"cpu": f"{cpu}m"}, nodeName=node) for name, node, cpu in parts if cpu
    )
    await plane.scheduler.start()
    try:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(plane.api_client())
            cluster = Cluster(client)
            nominator = None
            if arm == "with hints":
                dispatcher = await stack.enter_async_context(Dispatcher())
                policy = NominationPolicy(writes_per_second=500, burst=500)
                nominator = await stack.enter_async_context(Nominator(dispatcher, cluster, policy, rule=None))
            sample = Sample(plane, load, nominator)
            watch = cluster.reflector("v1", "Pod", namespace="default", handlers=(sample.saw,))
            await (await stack.enter_async_context(watch)).synced()
            before = await Pages.read(plane)
            await sample.run()
            found = figures(sample, before, await Pages.read(plane))
    finally:
        await plane.scheduler.stop()
        await remove_pods(plane)
    return found


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """In Markdown: the median of the rounds, and their least and most."""
    rows = list(dict.fromkeys(row for rounds in found.values() for figures in rounds for row in figures))
    lines = ["| | " + " | ".join(ARMS) + " |", "|---|" + "---:|" * len(ARMS)]
    for row in rows:
        cells = []
        for arm in ARMS:
            told = any(row in figures for figures in found[arm])
            cells.append(_cell([figures.get(row, 0) for figures in found[arm]]) if told else "–")
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    low, high = min(values), max(values)
    digits = 0 if all(value == int(value) for value in values) else 2
    middle = f"{median(values):,.{digits}f}"
    return middle if low == high else f"{middle} ({low:,.{digits}f} to {high:,.{digits}f})"


def say(text: str) -> None:
    print(text, flush=True)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("nodes", 500), ("pods", 2_000), ("gang", 10), ("rounds", 2), ("seed", 1)):
        parser.add_argument(f"--{name}", type=_positive, default=default)
    parser.add_argument("--rate", type=_positive, default=10, help="Pods that arrive in a second")
    size = Size(**vars(parser.parse_args(arguments)))
    say(f"# {size}, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    try:
        found = asyncio.run(study(size))
    except NotHere as error:
        say(f"# not measured: {error}")
        return 1
    say(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
