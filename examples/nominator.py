"""A planner beside the scheduler: best fit for gated and for unschedulable Pods, as hints that the scheduler may take.

It has two accounts. The nominator's may write hints, and no Pod's spec. The gates are lifted by another, the gate's
owner's, which may read and patch the Pods that it gates.

In a small world of its own, with a small scheduler in it; or on your cluster until it is interrupted:
python examples/nominator.py [--kubeconfig PATH] [--context NAME] [--gate-kubeconfig PATH] [--gate-context NAME]
"""

import argparse
import asyncio
import contextlib
import logging
import signal

from asyncdispatch import Dispatcher, DispatchError
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.nomination import Decision, NominationPolicy, Nominator
from asyncdispatch.nomination.views import amounts, requests_of
from asyncdispatch.testing import EmbeddedAPIServer

GATE = "example.com/planned"  # lifted by the second account: the first has no right to
VERSION = "best-fit-1"
log = logging.getLogger("planner")


class Planner:
    """Goes through the Pods that wait, and nominates for each the node on which the least would be left."""

    def __init__(self, cluster, gates, dispatcher):
        self.cluster, self.dispatcher = cluster, dispatcher
        self.gates = gates  # the same cluster, as whoever may lift them
        self.tried = {}  # by uid, the state of the world in which it was tried last

    async def run(self):
        policy = NominationPolicy(max_ttl=60)
        async with Nominator(self.dispatcher, self.cluster, policy, recompute=self.decide) as self.nominator:
            try:
                async with asyncio.TaskGroup() as self.tasks:
                    while True:
                        await self.look()
                        await asyncio.sleep(0.2)
            finally:
                print(self.nominator.report())

    async def look(self):
        """Decide on each Pod that waits and that is not on its way already."""
        under_way = {handle.decision.ref.uid for handle in self.nominator.live}
        for pod in sorted(self.nominator.pods, key=lambda pod: -(pod["spec"].get("priority") or 0)):
            gated, uid = has_our_gate(pod), pod["metadata"]["uid"]
            if uid in under_way or not (gated or is_unschedulable(pod)):
                continue
            decision = self.decide(pod)
            if decision is not None and self.tried.get(uid) != decision.node:
                self.tried[uid] = decision.node
                handle = await self.nominator.nominate(decision)
                self.tasks.create_task(self.see_through(pod, handle, gated))

    def decide(self, pod):
        """Best fit: of the nodes with room, the one with the least room left. Also asked when others were faster."""
        asked, fits = requests_of(pod), {}
        for name, free in self.free().items():
            if all(free.get(resource, 0) >= amount for resource, amount in asked.items()):
                fits[name] = free.get("cpu", 0) - asked.get("cpu", 0)
        if not fits:
            return None
        best = min(fits, key=fits.__getitem__)
        reason = f"best fit of {len(fits)}, leaves {fits[best] / 1000:g} cpu"
        return Decision(pod=pod, node=best, algorithm_version=VERSION, reason=reason, ttl=30)

    def free(self):
        """By node, what is left once all that is on it, or hinted to it, is counted."""
        free = {node["metadata"]["name"]: amounts(node["status"].get("allocatable")) for node in self.nominator.nodes}
        for pod in self.nominator.pods:
            place = pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName")
            if place in free and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                for resource, amount in requests_of(pod).items():
                    free[place][resource] = free[place].get(resource, 0) - amount
        for handle in self.nominator.live:
            if not handle.done() and handle.state.value in ("planned", "writing"):
                for resource, amount in requests_of(handle.decision.pod).items():
                    free[handle.decision.node][resource] -= amount
        return free

    async def see_through(self, pod, handle, gated):
        """Nominate, confirm, ungate: in this order the Pod is never let go to a place that it can't use."""
        name = pod["metadata"]["name"]
        try:
            if gated and await handle.written() and await self.nominator.confirm(handle.decision_id):
                await self.dispatcher.run(self.gates.patch(pod, without_our_gate))
        except DispatchError as error:
            log.warning("%s stays gated: %s", name, error)
        outcome = await handle.outcome()
        self.tried.pop(pod["metadata"]["uid"], None)
        log.info("%-8s -> %s: %s, %s", name, outcome.decision.node, outcome.state.value, outcome.reason)


def has_our_gate(pod):
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())


def is_unschedulable(pod):
    conditions = pod["status"].get("conditions") or ()
    said = any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)
    return said and not pod["spec"].get("nodeName") and not pod["status"].get("nominatedNodeName")


def without_our_gate(pod):
    """A patch made from the Pod: our gate goes, whatever others are there."""
    gates = pod["spec"].get("schedulingGates") or []
    return {"spec": {"schedulingGates": [gate for gate in gates if gate["name"] != GATE] or None}}


# -- a small world ----------------------------------------------------------------------------------------------------


def small_scheduler(server):
    """One pass of a scheduler that honours hints: the nominated node first, then any with room."""
    for pod in list(server.objects.of("Pod")):
        if pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates"):
            continue
        hinted = pod["status"].get("nominatedNodeName")
        names = [node["metadata"]["name"] for node in server.objects.of("Node")]
        for name in sorted(names, key=lambda name: name != hinted):
            if room_on(server, name, pod):
                server.bind(pod, name)
                break
        else:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            server.patch_object(pod, {"status": {"conditions": [condition]}})


def room_on(server, name, pod):
    free = amounts(server.get("Node", name)["status"]["allocatable"])
    for other in server.objects.of("Pod"):
        if other["spec"].get("nodeName") == name:
            for resource, amount in requests_of(other).items():
                free[resource] = free.get(resource, 0) - amount
    return all(free.get(resource, 0) >= amount for resource, amount in requests_of(pod).items())


def add_node(server, name, cpu):
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "20"}, "conditions": ready}
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status})


def add_pod(server, name, cpu, *, gated=True):
    container = {"name": "main", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    spec = {"containers": [container], **({"schedulingGates": [{"name": GATE}]} if gated else {})}
    server.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


async def small_world(server):
    """Three nodes of different size, six gated Pods, and one that fits nowhere until a node comes."""
    for name, cpu in (("small", "1"), ("middle", "2"), ("large", "4")):
        add_node(server, name, cpu)
    for number, cpu in enumerate(("1", "2", "500m", "500m", "1", "1")):
        add_pod(server, f"job-{number}", cpu)
    add_pod(server, "late", "6", gated=False)
    pods = server.objects
    async with asyncio.timeout(60):
        while any(not pod["spec"].get("nodeName") for pod in pods.of("Pod")):
            await asyncio.sleep(0.1)
            small_scheduler(server)
            if sum(bool(pod["spec"].get("nodeName")) for pod in pods.of("Pod")) == 6:
                with contextlib.suppress(KeyError):
                    server.get("Node", "new")
                    continue
                add_node(server, "new", "8")
        await asyncio.sleep(0.5)  # the nominator hears of it
    left = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods.of("Pod")}
    print(", ".join(f"{name} on {place}" for name, place in sorted(left.items())))
    return sum(place is None for place in left.values())


async def plan(cluster, gates, stop):
    async with Dispatcher() as dispatcher, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(Planner(cluster, gates, dispatcher).run())
        await stop.wait()
        task.cancel()


async def main(kubeconfig=None, context=None, gate_kubeconfig=None, gate_context=None):
    """Returns how many Pods of the small world were left without a node."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if kubeconfig or context:
        async with (
            Cluster.connect(kubeconfig, context) as cluster,
            Cluster.connect(
                gate_kubeconfig or kubeconfig, gate_context or (None if gate_kubeconfig else context)
            ) as gates,
        ):
            await plan(cluster, gates, stop)
        return 0
    async with (
        EmbeddedAPIServer(latency=0.01) as server,
        server.api_client("a") as api_client,
        server.api_client("b") as gate_client,
        asyncio.TaskGroup() as tasks,
    ):
        server.tokens = {"a": "nominator", "b": "gate-owner"}
        tasks.create_task(plan(Cluster(api_client), Cluster(gate_client), stop))
        left = await small_world(server)
        stop.set()
        written = {(r.user, r.kind, r.subresource) for r in server.audit if r.method != "GET" and r.kind != "Event"}
    for user, kind, subresource in sorted(written):
        print(f"{user} wrote {kind}{subresource and '/'}{subresource}")
    return left


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig")
    parser.add_argument("--context")
    parser.add_argument("--gate-kubeconfig", help="of the account that may lift the gate; else the same")
    parser.add_argument("--gate-context")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("asyncdispatch").setLevel(logging.WARNING)
    raise SystemExit(asyncio.run(main(**vars(parser.parse_args()))) > 0)
