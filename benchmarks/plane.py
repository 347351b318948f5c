"""A real control plane for the benchmarks that need one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from asyncdispatch.testing import ControlPlane
from asyncdispatch.testing.controlplane import ControlPlaneError
from asyncdispatch.testing.controlplane.binaries import find_programs
from benchmarks.harness import NotHere

AT_ONCE = 16


@asynccontextmanager
async def control_plane() -> AsyncIterator[ControlPlane]:
    """etcd and kube-apiserver run, kube-scheduler may. Raises `NotHere`, with the remedy, where they are not built."""
    try:
        find_programs()
    except ControlPlaneError as error:
        raise NotHere(str(error)) from error
    async with ControlPlane() as plane:
        yield plane


async def in_parallel(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results of all of it, some of it at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(coroutine: Coroutine[Any, Any, Any]) -> Any:
        async with room:
            return await coroutine

    return await asyncio.gather(*map(one, work))


async def remove_pods(plane: ControlPlane, namespace: str = "default") -> None:
    """All Pods of the namespace, for good."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    await plane.ask("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
    while (await plane.ask("GET", f"{path}?limit=1"))["items"]:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.1)
