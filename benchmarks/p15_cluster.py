"""P15: binds and status patches on a real API server, to kubernetes-asyncio's typed calls under a semaphore."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Coroutine
from typing import Any

from kubernetes_asyncio import client

from asyncdispatch import AdaptiveLimit, Dispatcher, DispatcherConfig
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import ControlPlane
from benchmarks.harness import Figure, Goal, Rounds, Scale, in_turn
from benchmarks.peers import LostResult
from benchmarks.plane import AT_ONCE, control_plane, in_parallel, remove_pods

Json = dict[str, Any]
Work = Callable[[Any, list[Json]], Coroutine[Any, Any, None]]
Taken = dict[str, list[float]]


def p15(scale: Scale) -> list[Figure]:
    walls, cpus = asyncio.run(_measure(scale.writes, scale.plane_rounds))
    return [
        _speed(walls, "binds", Goal(1.3, least=True)),
        _speed(walls, "status patches", Goal(1.5, least=True)),
        _cpu(cpus, "binds"),
        _cpu(cpus, "status patches"),
    ]


def _speed(walls: Rounds, what: str, goal: Goal) -> Figure:
    ours, theirs = f"our {what}", f"their {what}"
    note = f"ours {1 / walls.median(ours):.0f}/s, theirs {1 / walls.median(theirs):.0f}/s"
    drift = f"drifted {walls.drift(ours):.2f}x and {walls.drift(theirs):.2f}x in {walls.count} rounds"
    return Figure(f"{what} per second, {AT_ONCE} at once", "ratio", walls.ratio(theirs, ours), goal, f"{note}; {drift}")


def _cpu(cpus: Rounds, what: str) -> Figure:
    ours, theirs = f"our {what}", f"their {what}"
    note = f"ours {cpus.median(ours) * 1e6:.0f} us, theirs {cpus.median(theirs) * 1e6:.0f} us"
    return Figure(f"client CPU of {what}", "ratio", cpus.ratio(ours, theirs), Goal(0.5), note)


async def _measure(writes: int, rounds: int) -> tuple[Rounds, Rounds]:
    """Seconds for each write: of the clock, and of this process's CPU."""
    candidates: dict[str, Work] = {
        "our binds": _our_binds,
        "their binds": _their_binds,
        "our status patches": _our_patches,
        "their status patches": _their_patches,
    }
    walls: Taken = {name: [] for name in candidates}
    cpus: Taken = {name: [] for name in candidates}
    async with control_plane() as plane:
        for number in range(rounds):
            for name in in_turn(list(candidates), number):
                wall, cpu = await _sample(plane, candidates[name], writes)
                walls[name].append(wall / writes)
                cpus[name].append(cpu / writes)
    return Rounds(walls), Rounds(cpus)


async def _sample(plane: ControlPlane, work: Work, writes: int) -> tuple[float, float]:
    """A candidate with new Pods and new connections, of which it makes its first ones outside the clock."""
    pods = await in_parallel(plane.add_pod(f"p-{n}", requests={"cpu": "1"}) for n in range(writes + AT_ONCE))
    async with plane.api_client() as api_client:
        await work(api_client, pods[:AT_ONCE])
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        await work(api_client, pods[AT_ONCE:])
        taken = time.perf_counter() - wall, time.process_time() - cpu
    await remove_pods(plane)
    return taken


def _condition(pod: Json) -> Json:
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": pod["metadata"]["name"]}


# -- this library -------------------------------------------------------------------------------------------------


async def _our_binds(api_client: Any, pods: list[Json]) -> None:
    cluster = Cluster(api_client)
    async with _dispatcher() as dispatcher:
        handles = [dispatcher.submit(cluster.bind(pod, "node-1")) for pod in pods]
        if {await handle for handle in handles} != {"node-1"}:
            raise LostResult("a Pod was not bound")


async def _our_patches(api_client: Any, pods: list[Json]) -> None:
    cluster = Cluster(api_client)
    async with _dispatcher() as dispatcher:
        calls = [cluster.patch_status(pod, conditions=[_condition(pod)]) for pod in pods]
        handles = [dispatcher.submit(call) for call in calls]
        _check(pods, [(await handle)["metadata"]["name"] for handle in handles])


def _dispatcher() -> Dispatcher:
    return Dispatcher(DispatcherConfig(max_in_flight=AdaptiveLimit(initial=AT_ONCE, minimum=4, maximum=AT_ONCE)))


# -- kubernetes-asyncio, typed ------------------------------------------------------------------------------------


async def _their_binds(api_client: Any, pods: list[Json]) -> None:
    core, room = client.CoreV1Api(api_client), asyncio.Semaphore(AT_ONCE)

    async def bind(pod: Json) -> None:
        meta = client.V1ObjectMeta(name=pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        target = client.V1ObjectReference(api_version="v1", kind="Node", name="node-1")
        # The server answers a Status, which the typed client takes for a Binding without a target.
        async with room:
            with contextlib.suppress(ValueError):
                await core.create_namespaced_pod_binding(
                    meta.name, pod["metadata"]["namespace"], client.V1Binding(metadata=meta, target=target)
                )

    await asyncio.gather(*map(bind, pods))


async def _their_patches(api_client: Any, pods: list[Json]) -> None:
    core, room = client.CoreV1Api(api_client), asyncio.Semaphore(AT_ONCE)

    async def patch(pod: Json) -> str:
        meta = pod["metadata"]
        body = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": [_condition(pod)]}}
        async with room:
            patched = await core.patch_namespaced_pod_status(meta["name"], meta["namespace"], body)
        return str(patched.metadata.name)

    _check(pods, await asyncio.gather(*map(patch, pods)))


def _check(pods: list[Json], names: list[str]) -> None:
    if names != [pod["metadata"]["name"] for pod in pods]:
        raise LostResult("an answer is not that of its Pod")
