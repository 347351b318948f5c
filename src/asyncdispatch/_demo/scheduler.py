"""A small scheduler: one loop, which is the same whether the API is called in the cycle or through the dispatcher.

It learns of Pods and nodes by listing them now and then, and of the fate of its own calls by completion events. Both
only ask it to look again: nothing but a Pod as the server has it, or as our own writes leave it, says where it runs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from asyncdispatch import (
    Backpressure,
    Completion,
    Dispatcher,
    DispatchError,
    ObjectRef,
    SchedulingContext,
    StaleContext,
    Succeeded,
)
from asyncdispatch.kubernetes import Cluster

__all__ = ["Pace", "Scheduler", "Slots"]

Json = dict[str, Any]

BIND = "pod_binding"
NOTE = "pod_status_patch"
PAGE = 100
NOTE_PRIORITY = -1
"""Notes on Pods that wait are less urgent than any bind, and may be shed: they can be written again."""


class Slots:
    """Who holds which node's room, as far as the scheduler knows: by uid, so that a recreated Pod is another one."""

    def __init__(self, rng: random.Random, sample: int) -> None:
        self._rng = rng
        self._sample = sample
        self._room: dict[str, int] = {}
        self._used: Counter[str] = Counter()
        self.holders: dict[str, str] = {}

    def update(self, nodes: list[Json]) -> None:
        """Nodes as listed or read; one that is not ready has no room."""
        for node in nodes:
            status = node.get("status", {})
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
            self._room[node["metadata"]["name"]] = int(status["allocatable"]["pods"]) if ready else 0

    def hold(self, uid: str, node: str) -> None:
        if self.holders.get(uid) != node:
            self.release(uid)
            self.holders[uid] = node
            self._used[node] += 1

    def release(self, uid: str) -> None:
        node = self.holders.pop(uid, None)
        if node is not None:
            self._used[node] -= 1

    def choose(self, nominated: str | None) -> tuple[str | None, list[str]]:
        """The fullest node with room among a few drawn ones, and which were looked at. A nominated node goes first."""
        looked_at = self._rng.sample(sorted(self._room), min(self._sample, len(self._room)))
        if nominated in self._room and nominated not in looked_at:
            looked_at.append(nominated)
        roomy = [name for name in looked_at if self._used[name] < self._room[name]]
        if nominated in roomy:
            return nominated, looked_at
        return max(roomy, key=lambda name: (self._used[name], name), default=None), looked_at

    def unready(self, looked_at: list[str]) -> list[str]:
        return [name for name in looked_at if not self._room[name]]

    def verdict(self, looked_at: list[str]) -> str:
        """Why none of these nodes would do, in the manner of kube-scheduler."""
        unready = len(self.unready(looked_at))
        full = len(looked_at) - unready
        return f"0/{len(looked_at)} nodes are available: {full} too many pods, {unready} node(s) were not ready."


@dataclass(slots=True)
class Assumed:
    """A bind that has no outcome yet."""

    node: str
    priority: int
    context: SchedulingContext


@dataclass(slots=True)
class Pace:
    """How fast the loop was. Seconds of real time, by a clock that nobody sets."""

    cycles: list[float] = field(default_factory=list)
    idle: float = 0.0
    began: float = 0.0
    ended: float = 0.0

    def took(self, began: float) -> None:
        self.ended = perf_counter()
        self.began = self.began or began
        self.cycles.append(self.ended - began)

    @property
    def per_second(self) -> float:
        """Cycles per second from the first to the last, but for the time in which there was no Pod to look at."""
        busy = self.ended - self.began - self.idle
        return len(self.cycles) / busy if busy > 0 else 0.0

    @property
    def p99(self) -> float:
        ordered = sorted(self.cycles)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] if ordered else 0.0


class Scheduler:
    """Places the Pods of one namespace. `run` goes on until it is cancelled."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        cluster: Cluster,
        core_v1: Any,
        namespace: str,
        *,
        seed: int = 0,
        sample: int = 3,
        relist: float = 0.5,
        backoff: float = 0.05,
    ) -> None:
        self.dispatcher = dispatcher
        self.cluster = cluster
        self.pace = Pace()
        self.preemptions = 0
        self.refused = 0
        self._api = core_v1
        self._namespace = namespace
        self._relist_every = relist
        self._backoff = backoff
        self._rng = random.Random(f"scheduler {seed}")
        self._slots = Slots(self._rng, sample)
        self._pods: dict[str, Json] = {}
        self._assumed: dict[str, Assumed] = {}
        self._tries: Counter[str] = Counter()
        self._queue: asyncio.PriorityQueue[tuple[int, int, str]] = asyncio.PriorityQueue()
        self._queued: set[str] = set()
        self._numbers = itertools.count()
        self._tasks: asyncio.TaskGroup

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Schedule. What listing and completions find out is fed into the queue meanwhile."""
        async with self.dispatcher.completions(maxsize=10_000) as stream, asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._list_now_and_then())
            self._tasks.create_task(self._look_again(stream))
            while True:
                name = await self._next()
                began = perf_counter()
                if await self.cycle(name):
                    self.pace.took(began)
                await asyncio.sleep(0)  # let the rest of the program have its turn

    async def cycle(self, name: str) -> bool:
        """Decide on one Pod and send the decision on its way. False if there was nothing to decide."""
        pod = self.dispatcher.observe(self._pods[name])  # as it is with our own writes
        if pod["metadata"]["uid"] in self._slots.holders or pod["spec"].get("nodeName"):
            return False
        try:
            context = self.dispatcher.contexts.begin(pod)
            node, looked_at = self._slots.choose(pod["status"].get("nominatedNodeName"))
            if node is not None:
                await self._bind(pod, node, context)
            else:
                await self._put_off(pod, looked_at)
        except Backpressure as full:
            self.refused += 1
            self._later(name, full.retry_after)
        except StaleContext:
            self._read(ObjectRef.of(pod))  # another Pod has its name by now
        return True

    async def _bind(self, pod: Json, node: str, context: SchedulingContext) -> None:
        uid = pod["metadata"]["uid"]
        self._slots.hold(uid, node)
        self._assumed[uid] = Assumed(node, pod["spec"].get("priority", 0), context)
        try:
            await self.dispatcher.dispatch(self.cluster.bind(pod, node, context=context))
        except DispatchError:
            del self._assumed[uid]
            self._slots.release(uid)
            raise

    async def _put_off(self, pod: Json, looked_at: list[str]) -> None:
        """No room: make some if the Pod is urgent, say so in its status, try again later."""
        name = pod["metadata"]["name"]
        self._tries[name] += 1
        self._later(name, self._backoff * min(2 ** self._tries[name], 16) * self._rng.uniform(0.5, 1.0))
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        said = [{**condition, "message": self._slots.verdict(looked_at)}]
        # Without a context: what it says holds until something newer is said (merged), or a bind supersedes it.
        note = self.cluster.patch_status(pod, conditions=said, priority=NOTE_PRIORITY, sheddable=True)
        await self.dispatcher.dispatch(note)
        if self._tries[name] == 1:
            for node in self._slots.unready(looked_at)[:1]:
                self._tasks.create_task(self._reread_node(node))
        victim = self._victim(pod["spec"].get("priority", 0))
        if victim is not None:
            self.preemptions += 1
            victim.context.end(f"preempted by {name}")
            nomination = self.cluster.patch_status(pod, nominated_node=victim.node, priority=NOTE_PRIORITY)
            await self.dispatcher.dispatch(nomination)

    def _victim(self, priority: int) -> Assumed | None:
        """A less urgent Pod on its way to a node, waiting or mid-flight: the one that set out first."""
        for assumed in self._assumed.values():
            if assumed.priority < priority and assumed.context.ended is None:
                return assumed
        return None

    # -- what comes back ---------------------------------------------------------------------------------------------

    async def _look_again(self, completions: Any) -> None:
        """Completion events say which Pod to look at. They are never a licence to bind."""
        completion: Completion
        async for completion in completions:
            ref, outcome, binding = completion.ref, completion.outcome, completion.call_type == BIND
            if binding and outcome is not None and ref.uid is not None:
                self._assumed.pop(ref.uid, None)
            if completion.needs_read or (binding and not isinstance(outcome, Succeeded)):
                self._read(ref)
            elif completion.call_type == NOTE and isinstance(outcome, Succeeded) and outcome.attempts:
                self._keep(outcome.value)  # the server's answer is the newest copy that there is

    def _read(self, ref: ObjectRef) -> None:
        self._tasks.create_task(self._reread(dataclasses.replace(ref, uid=None)))

    async def _reread(self, ref: ObjectRef) -> None:
        """See the Pod of this name as it is after all that we have written so far."""
        try:
            pod = await self.dispatcher.run(self.cluster.read(ref, ordered=True))
        except DispatchError:
            return  # the next list will tell
        self._see(pod, fresh=True)

    async def _reread_node(self, name: str) -> None:
        """Is it ready by now? Many Pods ask this at a time; one request answers all who ask about the same node."""
        ref = ObjectRef("v1", "Node", None, name)
        try:
            node = await self.dispatcher.run(self.cluster.read(ref, priority=NOTE_PRIORITY, sheddable=True))
        except DispatchError:
            return  # the next list will tell
        self._slots.update([node])

    def _see(self, pod: Json, *, fresh: bool = False) -> None:
        """A Pod was read or listed: note where it is, and queue it if it is nowhere."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if not self._keep(pod):
            return
        node = self.dispatcher.observe(pod, fresh=fresh)["spec"].get("nodeName")
        if node:
            self._slots.hold(uid, node)
        elif uid not in self._assumed:
            self._slots.release(uid)
            self._push(name)

    def _keep(self, pod: Json) -> bool:
        """Keep the newest copy. False if this is an older one."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        known = self._pods.get(name)
        if known is not None and int(known["metadata"]["resourceVersion"]) > int(pod["metadata"]["resourceVersion"]):
            return False
        if known is not None and known["metadata"]["uid"] != uid:
            self._forget(known)
        self._pods[name] = pod
        return True

    def _forget(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        self._slots.release(uid)
        self._assumed.pop(uid, None)
        self._tries.pop(pod["metadata"]["name"], None)
        self.dispatcher.forget(ObjectRef.of(pod), "it was deleted")

    async def _list_now_and_then(self) -> None:
        while True:
            async for nodes in self._list(self._api.list_node):
                self._slots.update(nodes)
            async for pods in self._list(self._api.list_namespaced_pod, self._namespace):
                for pod in pods:
                    self._see({"apiVersion": "v1", "kind": "Pod", **pod})
            await asyncio.sleep(self._relist_every)

    @staticmethod
    async def _list(method: Any, *args: Any) -> AsyncIterator[list[Json]]:
        """The pages of a list, as JSON; what a refusal leaves out will come with the next list."""
        token = ""
        while True:
            answer = await method(*args, limit=PAGE, _continue=token, _preload_content=False)
            page = await answer.json(content_type=None) if answer.status == 200 else {}
            yield page.get("items", [])
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return

    # -- the queue ---------------------------------------------------------------------------------------------------

    async def _next(self) -> str:
        if self._queue.empty():
            began = perf_counter()
            *_, name = await self._queue.get()
            if self.pace.began:
                self.pace.idle += perf_counter() - began
        else:
            *_, name = self._queue.get_nowait()
        self._queued.discard(name)
        return name

    def _push(self, name: str) -> None:
        if name not in self._queued:
            self._queued.add(name)
            self._queue.put_nowait((-self._pods[name]["spec"].get("priority", 0), next(self._numbers), name))

    def _later(self, name: str, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._push, name)
