"""Nodes, Pods and namespaces: what a test needs, straight to the API server and past any dispatcher."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from asyncdispatch.testing.controlplane.access import ADMIN
from asyncdispatch.testing.controlplane.binaries import ControlPlaneError

__all__ = ["Answer", "ObjectHelpers"]

_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class Answer:
    """What the API server answered. `body` is the parsed JSON, or the text of what is none."""

    status: int
    body: Any
    headers: Mapping[str, str]


class ObjectHelpers(ABC):
    """Requests as they are, and helpers on top. Those raise `ControlPlaneError` for any answer of 400 or more."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The API server's address."""

    @abstractmethod
    def _session(self) -> aiohttp.ClientSession: ...

    @abstractmethod
    def _headers(self, role: str) -> dict[str, str]: ...

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        role: str = ADMIN,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request (`path` may have a query) and return the answer, whatever its status is."""
        given = {**self._headers(role), "Content-Type": content_type, **(headers or {})}
        data = None if body is None else json.dumps(body)
        async with self._session().request(method, self.url + path, data=data, headers=given) as response:
            text = await response.text(errors="replace")
            try:
                parsed = json.loads(text)
            except ValueError:
                parsed = text
            return Answer(response.status, parsed, response.headers)

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """As `request`, but returns the body. Raises `ControlPlaneError` for an answer of 400 or more."""
        answer = await self.request(method, path, body, **options)
        if answer.status >= 400:
            said = answer.body.get("message") if isinstance(answer.body, dict) else answer.body
            raise ControlPlaneError(f"{method} {path}: {answer.status} {said}")
        return answer.body

    async def until(
        self, path: str, condition: Callable[[dict[str, Any]], bool], *, timeout: float = 20.0
    ) -> dict[str, Any]:
        """The object at `path`, as soon as it exists and `condition` holds for it; found out by a watch.

        Raises `ControlPlaneError` with what it last looked like if that takes more than `timeout` seconds.
        """
        collection, _, name = path.rpartition("/")
        last: Any = None
        try:
            async with asyncio.timeout(timeout):
                while True:  # a watch ends when its server does
                    async for kind, obj in self._watch(collection, name):
                        last = None if kind == "DELETED" else obj
                        if last is not None and condition(obj):
                            return obj
        except TimeoutError:
            told = "is not there" if last is None else f"is still {json.dumps(last)}"
            raise ControlPlaneError(f"{path} {told} after {timeout:g} s") from None

    async def until_gone(self, path: str, *, timeout: float = 20.0) -> None:
        """Return once nothing is at `path`. Raises `ControlPlaneError` if that takes more than `timeout` seconds."""
        collection, _, name = path.rpartition("/")
        try:
            async with asyncio.timeout(timeout):
                while (answer := await self.request("GET", path)).status != 404:
                    version = answer.body.get("metadata", {}).get("resourceVersion", "")
                    async for kind, _ in self._watch(collection, name, version):
                        if kind == "DELETED":
                            return
        except TimeoutError:
            raise ControlPlaneError(f"{path} is still there after {timeout:g} s") from None

    async def _watch(self, collection: str, name: str, version: str = "") -> AsyncIterator[tuple[str, dict[str, Any]]]:
        query = f"?watch=1&fieldSelector=metadata.name%3D{name}&resourceVersion={version}"
        try:
            async with self._session().get(self.url + collection + query, headers=self._headers(ADMIN)) as response:
                async for line in response.content:
                    event = json.loads(line)
                    if response.status >= 400 or event["type"] == "ERROR":
                        break
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, OSError):
            pass
        await asyncio.sleep(0.05)

    # -- namespaces, nodes, Pods -------------------------------------------------------------------------------------

    async def add_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Create a namespace, with the `default` service account that a controller would add."""
        metadata = {"name": name, "labels": dict(labels or {})}
        made: dict[str, Any] = await self.ask("POST", "/api/v1/namespaces", {"metadata": metadata})
        account = {"metadata": {"name": "default"}}
        await self.ask("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
        return made

    async def add_node(
        self,
        name: str,
        *,
        cpu: str = "8",
        memory: str = "16Gi",
        pods: int = 110,
        labels: Mapping[str, str] | None = None,
        taints: Iterable[Mapping[str, str]] = (),
        ready: bool = True,
    ) -> dict[str, Any]:
        """A node with that much to give, ready unless said otherwise, and with no taints but these."""
        all_labels = {"kubernetes.io/hostname": name, **(labels or {})}
        await self.ask("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": all_labels}})
        room = {"cpu": cpu, "memory": memory, "pods": str(pods)}
        condition = {"type": "Ready", "status": "True" if ready else "False", "reason": "Test", "message": ""}
        status = {"capacity": room, "allocatable": room, "conditions": [condition]}
        await self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, content_type=_STRATEGIC_PATCH)
        # The API server taints a new node as not ready; a controller would take that away.
        spec = {"taints": [dict(taint) for taint in taints]}
        made: dict[str, Any] = await self.ask(
            "PATCH", f"/api/v1/nodes/{name}", {"spec": spec}, content_type=_MERGE_PATCH
        )
        return made

    async def add_nodes(self, count: int, *, prefix: str = "node", **options: Any) -> list[dict[str, Any]]:
        """`count` nodes, named PREFIX-0 and so on; the options are those of `add_node`."""
        return await asyncio.gather(*(self.add_node(f"{prefix}-{index}", **options) for index in range(count)))

    async def add_pod(self, name: str, namespace: str = "default", **options: Any) -> dict[str, Any]:
        """Create a Pod; the options are those of `pod_body`."""
        body = self.pod_body(name, namespace, **options)
        made: dict[str, Any] = await self.ask("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        return made

    @staticmethod
    def pod_body(
        name: str,
        namespace: str = "default",
        *,
        scheduler: str | None = None,
        requests: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        gates: Iterable[str] = (),
        **spec: Any,
    ) -> dict[str, Any]:
        """A Pod that asks for `requests`, held by scheduling `gates`; more fields of its spec by keyword.

        `scheduler` is its schedulerName: "asyncdispatch", say, so that a kube-scheduler leaves it alone.
        """
        container = {"name": "main", "image": "none", "resources": {"requests": dict(requests or {})}}
        # With a grace period the Pod would wait for its kubelet, which is the point: end_pod plays it.
        body: dict[str, Any] = {"containers": [container], **spec}
        if scheduler is not None:
            body["schedulerName"] = scheduler
        if gates := list(gates):
            body["schedulingGates"] = [{"name": gate} for gate in gates]
        metadata = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
        metadata["annotations"] = dict(annotations or {})
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}

    async def pod(self, name: str, namespace: str = "default") -> dict[str, Any]:
        """The Pod as it is now."""
        found: dict[str, Any] = await self.ask("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return found

    async def end_pod(self, name: str, namespace: str = "default") -> None:
        """What a kubelet does for a Pod that was deleted or is done: it goes away for good."""
        body = {"gracePeriodSeconds": 0}
        await self.ask("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body)
