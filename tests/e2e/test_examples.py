"""The schedulers of examples/ on a real control plane, the extender beside a real kube-scheduler."""

import asyncio
import dataclasses
import json
from contextlib import asynccontextmanager
from functools import partial

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import ControlPlane
from tests.e2e.audit import AuditLog, Ledger, audit
from tests.e2e.waiting import eventually
from tests.test_examples import load

PODS = "/api/v1/namespaces/default/pods"


@asynccontextmanager
async def audited(tmp_path, *, of=("pod_binding", "evict"), **options):
    """A control plane, a cluster, a dispatcher, and its calls: in the end, those `of` these types are audited."""
    log, ledger = AuditLog(tmp_path), Ledger()
    async with ControlPlane(flags={"kube-apiserver": log.flags}, **options) as plane:
        async with plane.api_client() as api_client, Dispatcher(observers=[ledger]) as dispatcher:
            yield plane, Cluster(api_client), dispatcher, ledger
        assert all(len(ledger.outcomes[ticket]) == 1 for ticket in ledger.calls)
        written = dataclasses.replace(ledger, calls={t: c for t, c in ledger.calls.items() if c.call_type in of})

        async def items(path):
            return (await plane.ask("GET", path))["items"]

        await audit(written, items, log.carried("default"))


@asynccontextmanager
async def running(work):
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def add_classes(plane, **values):
    for name, value in values.items():
        body = {"metadata": {"name": name}, "value": value}
        await plane.ask("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)


def add_pod(plane, name, cpu="500m", **spec):
    return plane.add_pod(name, scheduler="asyncdispatch", requests={"cpu": cpu}, **spec)


def is_bound(pod):
    return "nodeName" in pod["spec"]


def is_put_off(pod):
    return any(c["reason"] == "Unschedulable" for c in pod["status"].get("conditions", ()) if c["status"] == "False")


async def pods_of(plane):
    return {pod["metadata"]["name"]: pod for pod in (await plane.ask("GET", PODS))["items"]}


async def test_scheduler_places_the_urgent_first_and_makes_room_for_more(tmp_path):
    """Twenty Pods for sixteen places: the eight urgent ones have theirs. A taint is respected. One that is more urgent
    still has the least important go, by eviction, waits for their end, and takes their room."""
    gpu = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    async with audited(tmp_path) as (plane, cluster, dispatcher, _):
        await add_classes(plane, top=1000, high=100, low=1)
        await asyncio.gather(*(plane.add_node(name, cpu="4") for name in ("a", "b")))
        await plane.add_node("gpu", cpu="4", taints=[gpu])
        for n in range(20):
            await add_pod(plane, f"p{n}", priorityClassName="high" if n % 5 > 2 else "low")
        await add_pod(
            plane,
            "tolerant",
            tolerations=[{"key": "gpu", "operator": "Exists"}],
            nodeSelector={"kubernetes.io/hostname": "gpu"},
        )
        async with running(load("scheduler").Scheduler(cluster, dispatcher).run()):
            settled = await eventually(partial(_all_decided, plane, 21))
            nodes = {name: pod["spec"].get("nodeName") for name, pod in settled.items()}
            assert nodes.pop("tolerant") == "gpu"
            assert all(nodes[f"p{n}"] for n in range(20) if n % 5 > 2)
            assert sorted(filter(None, nodes.values())) == ["a"] * 8 + ["b"] * 8

            await add_pod(plane, "top", cpu="1", priorityClassName="top")
            nominated = await plane.until(f"{PODS}/top", lambda pod: "nominatedNodeName" in pod["status"])
            victims = await eventually(partial(_dying, plane, 2))
            for victim in victims:
                assert (victim["spec"]["priority"], victim["spec"]["nodeName"]) == (
                    1,
                    nominated["status"]["nominatedNodeName"],
                )
                assert "DisruptionTarget" in [c["type"] for c in victim["status"]["conditions"]]
            assert not is_bound(await plane.pod("top"))  # it waits for their end
            for victim in victims:
                await plane.end_pod(victim["metadata"]["name"])
            top = await plane.until(f"{PODS}/top", is_bound)
            assert top["spec"]["nodeName"] == nominated["status"]["nominatedNodeName"]
            assert not await _dying(plane, 1)  # and nobody else had to go


async def _all_decided(plane, count):
    pods = await pods_of(plane)
    decided = [is_bound(pod) or is_put_off(pod) for pod in pods.values()]
    return pods if len(decided) == count and all(decided) else None


async def _dying(plane, count):
    dying = [pod for pod in (await pods_of(plane)).values() if "deletionTimestamp" in pod["metadata"]]
    return dying if len(dying) >= count else None


async def test_scheduler_looks_again_when_there_is_room(tmp_path):
    """A Pod that fits nowhere says so, and is bound once a Pod has ended; one with a closed gate is left alone."""
    async with audited(tmp_path) as (plane, cluster, dispatcher, _):
        await plane.add_node("a", cpu="1")
        await add_pod(plane, "first", cpu="1")
        async with running(load("scheduler").Scheduler(cluster, dispatcher).run()):
            await plane.until(f"{PODS}/first", is_bound)
            await add_pod(plane, "gated", cpu="10m", gates=["example.com/wait"])
            await add_pod(plane, "second", cpu="1")
            await plane.until(f"{PODS}/second", is_put_off)
            ended = {"status": {"phase": "Succeeded"}}
            await plane.ask("PATCH", f"{PODS}/first/status", ended, content_type="application/merge-patch+json")
            await plane.until(f"{PODS}/second", is_bound)
            assert not is_bound(await plane.pod("gated"))


async def test_extender_binds_for_kube_scheduler(tmp_path):
    """kube-scheduler asks it to filter, decides, and has it bind: all Pods, on none of the retiring nodes."""
    async with audited(tmp_path) as (plane, cluster, dispatcher, ledger):
        extender = load("extender")
        await plane.add_node("a")
        await plane.add_node("b", labels={extender.RETIRING: "soon"})
        async with extender.serving(cluster, dispatcher, 0) as url:
            await _start_kube_scheduler(plane, tmp_path, url)
            names = [f"p{n}" for n in range(30)]
            await asyncio.gather(*(plane.add_pod(name, requests={"cpu": "100m"}) for name in names))
            bound = await asyncio.gather(*(plane.until(f"{PODS}/{name}", is_bound) for name in names))
            assert {pod["spec"]["nodeName"] for pod in bound} == {"a"}
        assert sorted(call.target.name for call in ledger.calls.values()) == sorted(names)  # none of its own


async def _start_kube_scheduler(plane, folder, url):
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig("scheduler"))},
        "leaderElection": {"leaderElect": False},
        "extenders": [
            {
                "urlPrefix": url,
                "filterVerb": "filter",
                "bindVerb": "bind",
                "nodeCacheCapable": True,
                "httpTimeout": "30s",
            }
        ],
    }
    path = folder / "scheduler.json"
    path.write_text(json.dumps(config))
    plane.scheduler.flags.append(f"--config={path}")
    await plane.scheduler.start()
