"""P11: CPU of a status patch by the adapter, to bare aiohttp sending the same JSON.

The API server runs in a process of its own, so that only the client's side of each request is counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from kubernetes_asyncio.client import ApiClient, Configuration

from asyncdispatch import Dispatcher
from asyncdispatch.calls import Attempt
from asyncdispatch.kubernetes import Cluster
from benchmarks.harness import Figure, Goal, Rounds, Scale, in_turn, micro

Json = dict[str, Any]
Patching = Callable[[Json], Awaitable[Any]]

SERVER = """\
import asyncio
from asyncdispatch.testing import EmbeddedAPIServer

async def main():
    async with EmbeddedAPIServer() as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
CONTENT_TYPE = "application/strategic-merge-patch+json"


def p11(scale: Scale) -> list[Figure]:
    rounds = asyncio.run(_measure(scale.patches, scale.rounds))
    bare = micro(rounds.median("bare aiohttp"))
    return [
        Figure(
            "client CPU of a status patch, one after another, to bare aiohttp",
            "ratio",
            rounds.ratio("adapter", "bare aiohttp"),
            Goal(1.3),
            f"{micro(rounds.median('adapter'))} against {bare}, which drifted {rounds.drift('bare aiohttp'):.2f}x",
        ),
        Figure(
            "the same, through a dispatcher",
            "ratio",
            rounds.ratio("dispatched", "bare aiohttp"),
            None,
            f"{micro(rounds.median('dispatched'))} against {bare}",
        ),
    ]


async def _measure(count: int, rounds: int) -> Rounds:
    """CPU seconds of this process for each patch."""
    async with _server() as url, ApiClient(Configuration(host=url)) as api_client, aiohttp.ClientSession() as session:
        pod = await _pod(session, url)
        candidates: dict[str, Callable[[], Awaitable[None]]] = {
            "bare aiohttp": lambda: _bare(session, url, pod, count),
            "adapter": lambda: _adapter(Cluster(api_client), pod, count),
            "dispatched": lambda: _dispatched(Cluster(api_client), pod, count),
        }
        taken: dict[str, list[float]] = {name: [] for name in candidates}
        for candidate in candidates.values():
            await candidate()
        for number in range(rounds):
            for name in in_turn(list(candidates), number):
                began = time.process_time()
                await candidates[name]()
                taken[name].append((time.process_time() - began) / count)
    return Rounds(taken)


@asynccontextmanager
async def _server() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def _pod(session: aiohttp.ClientSession, url: str) -> Json:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "registry.example/app:1"}]},
    }
    async with session.post(f"{url}/api/v1/namespaces/default/pods", json=body) as answer:
        answer.raise_for_status()
        found: Json = await answer.json()
        return found


def _conditions(number: int) -> list[Json]:
    return [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": f"0/{number} nodes are available: insufficient cpu.",
            "lastTransitionTime": "2026-11-30T05:00:00Z",
        }
    ]


async def _bare(session: aiohttp.ClientSession, url: str, pod: Json, count: int) -> None:
    path = f"{url}/api/v1/namespaces/default/pods/p/status"
    headers = {"Content-Type": CONTENT_TYPE, "Accept": "application/json"}
    uid = pod["metadata"]["uid"]
    for number in range(count):
        body = {"metadata": {"uid": uid}, "status": {"conditions": _conditions(number)}}
        async with session.patch(path, data=json.dumps(body).encode(), headers=headers) as answer:
            assert answer.status == 200
            assert (await answer.json())["metadata"]["uid"] == uid


async def _adapter(cluster: Cluster, pod: Json, count: int) -> None:
    clock, uid = asyncio.get_running_loop().time, pod["metadata"]["uid"]
    for number in range(count):
        call = cluster.patch_status(pod, conditions=_conditions(number), fence="uid")
        patched = await call.execute(Attempt(clock, call, number, 1, clock() + 30, None))
        assert patched["metadata"]["uid"] == uid


async def _dispatched(cluster: Cluster, pod: Json, count: int) -> None:
    async with Dispatcher() as dispatcher:
        for number in range(count):
            await dispatcher.run(cluster.patch_status(pod, conditions=_conditions(number), fence="uid"))
