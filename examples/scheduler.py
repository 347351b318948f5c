"""A scheduler: Pods with `schedulerName: asyncdispatch`, the urgent first, each to a node with room; preempts politely.

In a small world of its own, or on your cluster until it is interrupted:
python examples/scheduler.py [--kubeconfig PATH] [--context NAME] [--leader-elect]
"""

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import heapq
import itertools
import logging
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from asyncdispatch import Backpressure, Dispatcher, DispatchError, StaleContext, Succeeded
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.requeue import Requeue
from asyncdispatch.testing import EmbeddedAPIServer

NAME = "asyncdispatch"
BACKOFF, MAX_BACKOFF = 1.0, 10.0  # seconds until a Pod that fits nowhere is tried again, if nothing changes before
UNITS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
log = logging.getLogger("scheduler")


# -- what Pods want and nodes have ------------------------------------------------------------------------------------


@functools.lru_cache(10_000)
def amount(quantity):
    """A quantity, such as 250m or 1Gi, in thousandths."""
    number = quantity.rstrip("numkMGTPEi")
    unit = quantity[len(number) :]
    size = 1024 ** (UNITS[unit[0]] // 3) if unit.endswith("i") else 10.0 ** UNITS[unit]
    return round(float(number) * size * 1000)


def requests_of(pod):
    """What the Pod takes of its node: all its containers together, or the greediest that runs before them."""
    spec = pod["spec"]
    total: Counter[str] = Counter()
    for container in spec.get("containers", ()):
        total.update(amounts(container.get("resources", {}).get("requests")))
    for container in spec.get("initContainers", ()):
        total |= amounts(container.get("resources", {}).get("requests"))
    total.update(amounts(spec.get("overhead")))
    total["pods"] = amount("1")
    return +total  # but for what is zero


def amounts(resources):
    return Counter({name: amount(quantity) for name, quantity in (resources or {}).items()})


def tolerates(pod, taint):
    """True if one of the Pod's tolerations is for that taint."""
    return any(
        t.get("effect") in (None, "", taint["effect"])
        and t.get("key") in (None, "", taint["key"])
        and (t.get("operator") == "Exists" or (t.get("key") and t.get("value", "") == taint.get("value", "")))
        for t in pod["spec"].get("tolerations", ())
    )


@dataclass(slots=True)
class Seat:
    """A Pod and what it takes."""

    pod: dict
    takes: Counter

    @property
    def priority(self):
        return self.pod["spec"].get("priority", 0)

    @property
    def dying(self):
        return "deletionTimestamp" in self.pod["metadata"]


@dataclass(slots=True)
class Node:
    """A node, who is on it or on the way to it, and for whom room is kept there until victims have gone."""

    labels: dict = field(default_factory=dict)
    taints: list = field(default_factory=list)
    room: Counter = field(default_factory=Counter)
    free: Counter = field(default_factory=Counter)
    seats: dict = field(default_factory=dict)
    nominated: dict = field(default_factory=dict)

    def add(self, key, seat):
        if node_of(seat.pod):
            self.seats[key] = seat
            self.free.subtract(seat.takes)
        else:
            self.nominated[key] = seat

    def remove(self, key):
        self.nominated.pop(key, None)
        if key in self.seats:
            self.free.update(self.seats.pop(key).takes)

    def unsuitable(self, pod):
        """Why this node is none for the Pod, whoever else is on it; None if it is one."""
        for taint in self.taints:
            if taint["effect"] != "PreferNoSchedule" and not tolerates(pod, taint):
                return f"node(s) had untolerated taint {taint['key']}"
        selector = pod["spec"].get("nodeSelector")
        if selector and not selector.items() <= self.labels.items():
            return "node(s) didn't match Pod's node selector"
        return None

    def lacks(self, seat, key, without=()):
        """What there is not enough of for `seat`, once `without` have gone; None if it fits."""
        free = self.free
        if self.nominated or without:
            free = free.copy()
            for other, rival in self.nominated.items():  # room that is kept for the more urgent
                if other != key and rival.priority >= seat.priority:
                    free.subtract(rival.takes)
            for other in without:
                free.update(other.takes)
        for name, takes in seat.takes.items():
            if takes > free[name]:
                return "Too many pods" if name == "pods" else f"Insufficient {name}"
        return None

    def score(self, seat):
        """How much would be left, as shares: the emptiest node is best."""
        return sum((self.free[name] - takes) / self.room[name] for name, takes in seat.takes.items())

    def victims(self, seat, key):
        """The less urgent Pods that would have to go, as few and as unimportant as can be; none if that won't do."""
        lower = sorted((s for s in self.seats.values() if s.priority < seat.priority), key=lambda s: s.priority)
        if self.unsuitable(seat.pod) or self.lacks(seat, key, lower):
            return []
        for spared in reversed(lower):  # spare whoever can be spared, the most important first
            rest = [s for s in lower if s is not spared]
            if not self.lacks(seat, key, rest):
                lower = rest
        return lower


# -- the scheduler ----------------------------------------------------------------------------------------------------


class Scheduler:
    """One loop that decides, and never waits for what it has decided. `run` goes on until it is cancelled.

    All that it goes by are Pods and nodes as the API server has them, with its own writes on top, as
    `dispatcher.observe` shows them: a Pod whose bind is on its way stands on its node, one being evicted is dying. When
    a call ends badly, its object is looked at again. `leading` is the context of a term of leadership.
    """

    def __init__(self, cluster, dispatcher, leading=None):
        self.cluster, self.dispatcher, self.leading = cluster, dispatcher, leading
        self.known = {}  # Pods, the newest that was seen of each
        self.seats = {}  # the same with our own writes, and where they count
        self.nodes = defaultdict(Node)
        self.queue, self.queued, self.numbers = [], set(), itertools.count()
        self.parked, self.fits_nowhere = {}, set()  # those tried again later; of them, those that wait for room
        self.tries: Counter[tuple[str, str]] = Counter()
        self.wake = asyncio.Event()

    async def run(self):
        feed = {"dispatcher": self.dispatcher}
        async with (
            asyncio.TaskGroup() as self.tasks,
            Requeue(self.dispatcher, self.look_again, relist=self.look_at_all),
            self.cluster.reflector("v1", "Node", handlers=(self.see_node,), **feed) as nodes,
            self.cluster.reflector("v1", "Pod", handlers=(self.see_pod,), **feed) as self.pods,
        ):
            await nodes.synced()
            await self.pods.synced()
            while True:
                while self.queue:
                    await self.cycle(self.pop())
                    await asyncio.sleep(0)  # let the rest of the program have its turn
                self.wake.clear()
                await self.wake.wait()

    # -- deciding -----------------------------------------------------------------------------------------------------

    async def cycle(self, key):
        """Decide on one Pod and send the decision on its way."""
        seat = self.seats.get(key)
        if seat is None or not waits(seat.pod):
            return
        reasons: Counter[str] = Counter()
        feasible = []
        for name, node in self.nodes.items():
            why = node.unsuitable(seat.pod) or node.lacks(seat, key)
            if why:
                reasons[why] += bool(node.room)  # without any, it is gone
            else:
                feasible.append(name)
        try:
            if feasible:
                nominated = nominated_of(seat.pod)
                best = max(feasible, key=lambda name: (name == nominated, self.nodes[name].score(seat)))
                await self.bind(seat.pod, best)
            else:
                await self.put_off(key, seat, reasons)
        except Backpressure as full:  # too much is on its way already
            self.park(key, full.retry_after)
        except StaleContext:
            pass  # it is gone or we lead no more, of which we shall hear

    async def bind(self, pod, node):
        context = self.dispatcher.contexts.begin(pod, parent=self.leading)  # ends what was decided on it before
        handle = await self.dispatcher.dispatch(self.cluster.bind(pod, node, context=context))
        handle.add_done_callback(functools.partial(self.bound, pod, node))
        self.see(self.known[key_of(pod)])  # it takes its room from now on

    def bound(self, pod, node, handle):
        if isinstance(handle.settled, Succeeded):
            namespace, name = key_of(pod)
            self.tell(pod, "Scheduled", f"Successfully assigned {namespace}/{name} to {node}", action="Binding")

    async def put_off(self, key, seat, reasons):
        """It fits nowhere: make room if it is urgent, say so in its status, and try again later."""
        self.park(key, self.backoff(key))
        self.fits_nowhere.add(key)
        said = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()) if count)
        message = f"0/{reasons.total()} nodes are available: {said or 'there are none'}."
        nominated = nominated_of(seat.pod)
        if not self.makes_room(nominated, seat):
            nominated = await self.preempt(key, seat)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        note = self.cluster.patch_status(
            seat.pod, conditions=[condition], nominated_node=nominated, context=self.leading, sheddable=True
        )
        await self.dispatcher.dispatch(note)
        self.see(self.known[key])  # room is kept for it where it is nominated
        if self.tries[key] == 1:
            self.tell(seat.pod, "FailedScheduling", message, type="Warning", action="Scheduling")

    def makes_room(self, node, seat):
        """Victims are on their way out of there already."""
        seats = self.nodes[node].seats.values() if node in self.nodes else ()
        return any(other.dying and other.priority < seat.priority for other in seats)

    async def preempt(self, key, seat):
        """Ask the least important Pods that stand in the way to go. Returns the node on which they are, or None."""
        if seat.pod["spec"].get("preemptionPolicy") == "Never":
            return None
        found = [(name, node.victims(seat, key)) for name, node in self.nodes.items()]
        options = [(victims[-1].priority, len(victims), name, victims) for name, victims in found if victims]
        if not options:
            return None
        *_, node, victims = min(options, key=lambda option: option[:3])
        context = self.dispatcher.contexts.begin(seat.pod, parent=self.leading)
        for victim in victims:
            log.info("%s makes room for %s on %s", "/".join(key_of(victim.pod)), "/".join(key), node)
            known = self.known[key_of(victim.pod)]
            if known["spec"].get("nodeName"):
                # By eviction: budgets are asked, it gets its grace period, and the server says DisruptionTarget.
                evict = self.cluster.evict(known, priority=seat.priority, context=context)
                await self.dispatcher.dispatch(evict)
                self.tell(known, "Preempted", f"Preempted by {'/'.join(key)} on {node}", action="Preempting")
            else:  # it is only on its way there: its bind is called back
                self.dispatcher.contexts.begin(known).end(f"preempted by {'/'.join(key)}")
            self.see(known)
        return node

    def tell(self, pod, reason, message, **fields):
        """An Event for people, at best effort."""
        log.info("%s: %s", "/".join(key_of(pod)), message)
        with contextlib.suppress(DispatchError):
            event = self.cluster.event(pod, reason=reason, message=message, reporter=NAME, **fields)
            self.dispatcher.submit(event)

    # -- seeing -------------------------------------------------------------------------------------------------------

    def see_node(self, event):
        """A node has come, changed or gone. One that is gone has no room, and Pods on it until they are gone."""
        meta, spec = event.object["metadata"], event.object["spec"]
        taints = spec.get("taints", [])
        if spec.get("unschedulable"):
            taints = [*taints, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
        room = amounts(event.object["status"].get("allocatable")) if event.type != "DELETED" else Counter()
        node = self.nodes[meta["name"]]
        if (meta.get("labels", {}), taints, room) != (node.labels, node.taints, node.room):
            node.free.update(room)
            node.free.subtract(node.room)
            node.labels, node.taints, node.room = meta.get("labels", {}), taints, room
            self.there_is_room()

    def see_pod(self, event):
        if event.type != "DELETED":
            self.see(event.object)
        else:
            key = key_of(event.object)
            self.known.pop(key, None)
            self.tries.pop(key, None)
            self.count(key, None)

    def see(self, pod, *, fresh=False):
        """A Pod was seen, perhaps again or late: count it where it is, and queue it if it is nowhere."""
        key = key_of(pod)
        known = self.known.get(key)
        if known is not None and version_of(known) > version_of(pod):
            pod = known
        self.known[key] = pod
        shown = self.dispatcher.observe(pod, fresh=fresh)  # with our own writes; None once we have deleted it
        self.count(key, shown)
        if shown is not None and waits(shown) and key not in self.parked:
            self.push(key)

    def count(self, key, pod):
        """Let the Pod count where it is now, and nowhere else."""
        before = self.seats.pop(key, None)
        if before is not None and (place := place_of(before.pod)):
            self.nodes[place].remove(key)
        if pod is not None and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            same = before is not None and before.pod["spec"]["containers"] == pod["spec"]["containers"]
            self.seats[key] = seat = Seat(pod, before.takes if same else requests_of(pod))
            if place := place_of(pod):
                self.nodes[place].add(key, seat)
        if before is not None and node_of(before.pod) and (key not in self.seats or not node_of(pod)):
            self.there_is_room()

    async def look_again(self, look):
        """A call has ended, and not simply well. That says which Pod to look at, and is no licence to bind it."""
        key = (look.ref.namespace, look.ref.name)
        if look.ref.kind != "Pod" or key not in self.known:
            return
        if look.call_type == "pod_binding":
            self.park(key, self.backoff(key))
        if look.needs_read:
            self.tasks.create_task(self.read(key, look.ref))
        else:
            self.see(self.known[key])

    async def read(self, key, ref):
        """See a Pod as it is after all that was written: a write is in doubt."""
        with contextlib.suppress(DispatchError):  # it is gone, of which we shall hear; else we are asked again
            pod = await self.dispatcher.run(self.cluster.read(dataclasses.replace(ref, uid=None), ordered=True))
            if self.pods.get(*key) is not None:
                self.see(pod, fresh=True)

    def look_at_all(self, lost):
        for pod in list(self.known.values()):
            self.see(pod)

    # -- the queue ----------------------------------------------------------------------------------------------------

    def push(self, key):
        if key in self.parked:
            self.parked.pop(key).cancel()
            self.fits_nowhere.discard(key)
        if key not in self.queued and key in self.seats:
            self.queued.add(key)
            heapq.heappush(self.queue, (-self.seats[key].priority, next(self.numbers), key))
            self.wake.set()

    def pop(self):
        *_, key = heapq.heappop(self.queue)
        self.queued.discard(key)
        return key

    def park(self, key, seconds):
        if key in self.parked:
            self.parked[key].cancel()
        self.parked[key] = asyncio.get_running_loop().call_later(seconds, self.push, key)

    def backoff(self, key):
        self.tries[key] += 1
        return min(BACKOFF * 2 ** min(self.tries[key] - 1, 10), MAX_BACKOFF)

    def there_is_room(self):
        for key in list(self.fits_nowhere):
            self.push(key)


def key_of(pod):
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def version_of(pod):
    return int(pod["metadata"]["resourceVersion"])


def node_of(pod):
    return pod["spec"].get("nodeName")


def nominated_of(pod):
    return pod["status"].get("nominatedNodeName")


def place_of(pod):
    """The node on which it is, or will be once there is room."""
    return node_of(pod) or nominated_of(pod)


def waits(pod):
    """It is ours to schedule, and it can be."""
    spec, phase = pod["spec"], pod["status"].get("phase", "Pending")
    ours = spec.get("schedulerName") == NAME and phase == "Pending" and "deletionTimestamp" not in pod["metadata"]
    return ours and not spec.get("nodeName") and not spec.get("schedulingGates")


# -- running it -------------------------------------------------------------------------------------------------------


async def until(stop, work):
    """Do `work` until `stop` is set. What it has dispatched by then is carried out when the dispatcher is left."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        await stop.wait()
        task.cancel()


async def serve(cluster, stop, leader_elect=False):
    """Schedule until `stop` is set; with `leader_elect`, while no other replica does."""
    if not leader_elect:
        async with Dispatcher() as dispatcher:
            await until(stop, Scheduler(cluster, dispatcher).run())
        return
    # The lease is entered first and left last: what is on its way is carried out before another may lead.
    async with cluster.lease(f"{NAME}-scheduler", "kube-system") as lease, Dispatcher() as dispatcher:
        await until(stop, lead(cluster, lease, dispatcher))


async def lead(cluster, lease, dispatcher):
    while True:
        async with lease.leadership(dispatcher) as leading:  # left when the lease is lost
            await Scheduler(cluster, dispatcher, leading).run()  # begins with a new list of the world


async def small_world(server):
    """Two nodes and a tainted one; six small Pods, one for the taint, one for nowhere; then one that is urgent."""
    for name, taints in (("a", []), ("b", []), ("gpu", [{"key": "gpu", "effect": "NoSchedule"}])):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"name": name}}}
        room = {"cpu": "2", "memory": "4Gi", "pods": "10"}
        server.create({**node, "spec": {"taints": taints}, "status": {"allocatable": room}})
    for number in range(6):
        server.create(small_pod(f"small-{number}", "500m"))
    on_gpu = {"tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"name": "gpu"}}
    server.create(small_pod("tolerant", "2", **on_gpu))
    server.create(small_pod("huge", "64"))
    server.fail(times=3, status=503)  # a bad day, too
    await placed(server, 7)
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    server.create({**head, "metadata": {"name": "urgent"}, "value": 1000})
    server.create(small_pod("urgent", "1", priorityClassName="urgent"))
    await placed(server, 7)  # one small Pod had to go
    for pod in sorted(server.objects.of("Pod"), key=key_of):
        print(f"{pod['metadata']['name']:10} {node_of(pod) or pod['status']['conditions'][0]['message']}")
    return len([pod for pod in server.objects.of("Pod") if not node_of(pod)]) - 1  # "huge" must stay


async def placed(server, count):
    """Wait until so many Pods have a node and "urgent", once it is there, is one of them. Meanwhile be the kubelet."""
    async with asyncio.timeout(20):
        while True:
            await asyncio.sleep(0.1)
            pods = server.objects.of("Pod")
            for pod in pods:
                if "deletionTimestamp" in pod["metadata"]:
                    server.finish(pod)
            missing = [pod for pod in pods if not node_of(pod) and pod["metadata"]["name"] != "huge"]
            if not missing and sum(node_of(pod) is not None for pod in pods) == count:
                return


def small_pod(name, cpu, **spec):
    container = {"name": "main", "image": "app", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    spec = {"schedulerName": NAME, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def main(kubeconfig, context, leader_elect):
    """Returns how many Pods of the small world are not where they should be."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if kubeconfig or context:
        async with Cluster.connect(kubeconfig, context) as cluster:
            await serve(cluster, stop, leader_elect)
        return 0
    async with EmbeddedAPIServer(latency=0.02) as server, server.api_client() as api_client:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(Cluster(api_client), stop, leader_elect))
            left = await small_world(server)
            stop.set()
        return left


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig")
    parser.add_argument("--context")
    parser.add_argument("--leader-elect", action="store_true", help="only one of several replicas schedules at a time")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    left = asyncio.run(main(**vars(parser.parse_args())))
    print(f"done, {left} Pods are not where they should be" if left else "done, all is as it should be")
    raise SystemExit(left > 0)
