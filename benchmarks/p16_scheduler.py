"""P16: Pods per second of `examples/scheduler.py`, to kube-scheduler's on the same control plane, in the same run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from asyncdispatch.kubernetes import Cluster, WatchEvent
from asyncdispatch.testing import ControlPlane
from benchmarks.harness import Figure, Goal, Rounds, Scale, in_turn
from benchmarks.plane import control_plane, in_parallel, remove_pods

EXAMPLE = Path(__file__).parent.parent / "examples" / "scheduler.py"
NODES = 50
FAST = ("--kube-api-qps=5000", "--kube-api-burst=5000")
PATIENCE = 180.0
"""Seconds for all Pods of one sample."""

Running = Callable[[ControlPlane], AbstractAsyncContextManager[None]]


def p16(scale: Scale) -> list[Figure]:
    rounds = asyncio.run(_measure(scale.pods, scale.plane_rounds))
    return [
        _figure(rounds, "kube-scheduler with its defaults", "defaults", Goal(1.0, least=True)),
        _figure(rounds, "kube-scheduler with --kube-api-qps=5000", "fast", Goal(0.5, least=True)),
    ]


def _figure(rounds: Rounds, peer: str, name: str, goal: Goal) -> Figure:
    note = f"ours {1 / rounds.median('ours'):.0f} Pods/s, theirs {1 / rounds.median(name):.0f} Pods/s"
    drift = f"drifted {rounds.drift('ours'):.2f}x and {rounds.drift(name):.2f}x in {rounds.count} rounds"
    return Figure(f"Pods per second to {peer}", "ratio", rounds.ratio(name, "ours"), goal, f"{note}; {drift}")


async def _measure(pods: int, rounds: int) -> Rounds:
    candidates: dict[str, tuple[str, Running]] = {
        "ours": ("asyncdispatch", _ours),
        "defaults": ("default-scheduler", _kube_scheduler()),
        "fast": ("default-scheduler", _kube_scheduler(*FAST)),
    }
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    async with control_plane() as plane:
        await in_parallel(plane.add_node(f"node-{n}", cpu="64", memory="128Gi") for n in range(NODES))
        for number in range(rounds):
            for name in in_turn(list(candidates), number):
                taken[name].append(await _seconds_per_pod(plane, pods, *candidates[name]))
    return Rounds(taken)


async def _seconds_per_pod(plane: ControlPlane, pods: int, scheduler: str, running: Running) -> float:
    """All Pods are there before the scheduler starts. The time is from the first that has a node to the last."""
    requests = {"cpu": "100m", "memory": "64Mi"}
    await in_parallel(plane.add_pod(f"p-{n}", scheduler=scheduler, requests=requests) for n in range(pods))
    loop = asyncio.get_running_loop()
    times: list[float] = []
    done = asyncio.Event()

    def bound(event: WatchEvent) -> None:
        if event.type == "ADDED":
            times.append(loop.time())
            if len(times) == pods:
                done.set()

    async with plane.api_client() as api_client:
        cluster = Cluster(api_client)
        async with cluster.reflector("v1", "Pod", fields="spec.nodeName!=", handlers=(bound,)) as reflector:
            await reflector.synced()
            async with running(plane), asyncio.timeout(PATIENCE):
                await done.wait()
    await remove_pods(plane)
    return (times[-1] - times[0]) / (pods - 1)


@asynccontextmanager
async def _ours(plane: ControlPlane) -> AsyncIterator[None]:
    arguments = (str(EXAMPLE), "--kubeconfig", str(plane.kubeconfig("scheduler")))
    silent = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=silent, stderr=silent)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _kube_scheduler(*flags: str) -> Running:
    @asynccontextmanager
    async def running(plane: ControlPlane) -> AsyncIterator[None]:
        plane.scheduler.flags[:] = flags
        await plane.scheduler.start()
        try:
            yield
        finally:
            await plane.scheduler.stop()

    return running
