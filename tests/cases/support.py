"""What the tests of cases, of upstream faults and of the laws over HTTP share."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import aiohttp

from asyncdispatch.testing import EmbeddedAPIServer

Json = dict[str, Any]
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
ETCD = "etcdserver: request timed out"


def new_pod(name: str = "p", *, namespace: str = "ns", **spec: Any) -> Json:
    """A Pod that can be created; without a name the server chooses one."""
    named = {"name": name} if name[-1:] != "-" else {"generateName": name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**named, "namespace": namespace},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def config_map(name: str = "c", *, namespace: str = "ns", **data: str) -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def sent(server: EmbeddedAPIServer, *methods: str, path: str = "") -> list[Any]:
    """The audit's requests of these methods (all if none) whose path ends with `path`."""
    return [r for r in server.audit if (not methods or r.method in methods) and r.path.endswith(path)]


def applied(server: EmbeddedAPIServer, verb: str) -> list[Any]:
    return [record for record in server.audit if record.verb == verb and record.applied]


def condition(pod: Json, kind: str) -> str | None:
    """The status of one condition of a Pod."""
    found = pod.get("status", {}).get("conditions", [])
    return next((item["status"] for item in found if item["type"] == kind), None)


def hold_loop(seconds: float) -> None:
    """Hold the event loop for so long: virtual time passes and nothing else runs."""
    loop: Any = asyncio.get_running_loop()
    loop.setup_looptime(start=loop.time() + seconds)


def now() -> float:
    return asyncio.get_running_loop().time()


def breaks_off(server: EmbeddedAPIServer, how: str, *, times: int = 1, **match: Any) -> None:
    """One of the ways in which a write lands and its answer does not."""
    if how == "dropped":
        server.drop(times=times, applied=True, **match)
    elif how == "reset":
        server.reset(times=times, applied=True, **match)
    elif how == "500":
        server.fail(times=times, applied=True, status=500, reason="", message=ETCD, **match)
    elif how == "504":
        server.fail(times=times, applied=True, status=504, body="upstream request timeout", **match)
    elif how == "slow answer":
        server.delay(20, times=times, applied=True, **match)
    elif how == "slow write":
        server.delay(20, times=times, **match)
    else:
        raise AssertionError(how)


class Watcher:
    """A plain watch over HTTP, as an informer has it: `objects` by name, as its events have told."""

    def __init__(self, server: EmbeddedAPIServer, path: str) -> None:
        self.objects: dict[str, Json] = {}
        self._url = f"{server.url}{path}?watch=1&resourceVersion={server.resource_version}"
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Watcher:
        opened = asyncio.Event()
        self._task = asyncio.create_task(self._follow(opened))
        await opened.wait()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _follow(self, opened: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(self._url) as answer:
            opened.set()
            async for line in answer.content:
                event = json.loads(line)
                name = event["object"]["metadata"]["name"]
                if event["type"] == "DELETED":
                    self.objects.pop(name, None)
                else:
                    self.objects[name] = event["object"]


class Log:
    """An observer that keeps what it is told: starts and ends by ticket, with their times."""

    def __init__(self) -> None:
        self.started_at: dict[int, list[float]] = {}
        self.ended_at: dict[int, float] = {}
        self.outcomes: dict[int, Any] = {}
        self.settlements: Counter[int] = Counter()
        self.order: list[Any] = []
        """The calls, in the order of their starts."""

    def started(self, handle: Any, number: int) -> None:
        self.started_at.setdefault(handle.ticket, []).append(now())
        self.order.append(handle.call)

    def settled(self, handle: Any, outcome: Any) -> None:
        self.ended_at[handle.ticket] = now()
        self.outcomes[handle.ticket] = outcome
        self.settlements[handle.ticket] += 1

    @property
    def starts(self) -> list[float]:
        return sorted(when for times in self.started_at.values() for when in times)
