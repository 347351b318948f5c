"""What a scenario is given: a raw client, a namespace of its own, and (on the embedded server only) the server."""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from asyncdispatch.testing import EmbeddedAPIServer

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Reply:
    """An answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    """Of which case does not matter."""
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def causes(self) -> list[tuple[str | None, str | None]]:
        """(field, reason) of each cause."""
        found = self.json.get("details", {}).get("causes", [])
        return [(cause.get("field"), cause.get("reason")) for cause in found]


class Client(Protocol):
    """One HTTP request; a dict or a list is sent as JSON, a str as it is."""

    def __call__(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Awaitable[Reply]: ...


def raw_client(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None) -> Client:
    """Requests as they are to the server at `url`."""

    async def client(method: str, path: str, body: Any = None, content_type: str = "application/json") -> Reply:
        sent: dict[str, Any] = {"headers": {**(headers or {})}}
        if body is not None:
            text = body if isinstance(body, str) else json.dumps(body)
            sent["data"] = io.BytesIO(text.encode())
            sent["headers"]["Content-Type"] = content_type
        async with session.request(method, url + path, **sent) as response:
            return Reply(response.status, response.headers, await response.text())

    return client


@dataclass(frozen=True)
class World:
    """Where a scenario happens. Its namespace is empty, active and nobody else's; so are the custom Widgets there."""

    client: Client
    namespace: str
    embedded: EmbeddedAPIServer | None = None

    @property
    def server(self) -> EmbeddedAPIServer:
        assert self.embedded is not None, "a scenario of the embedded server alone"
        return self.embedded

    def path(self, plural: str, name: str = "", subresource: str = "", *, group: str = "") -> str:
        """The path of a resource in the namespace; `group` is "group/version"."""
        base = f"/apis/{group}" if group else "/api/v1"
        parts = (base, "namespaces", self.namespace, plural, name, subresource)
        return "/".join(part for part in parts if part)

    def pods(self, name: str = "", subresource: str = "") -> str:
        return self.path("pods", name, subresource)

    async def get(self, path: str) -> Reply:
        return await self.client("GET", path)

    async def post(self, path: str, body: Any) -> Reply:
        return await self.client("POST", path, body)

    async def put(self, path: str, body: Any) -> Reply:
        return await self.client("PUT", path, body)

    async def patch(self, path: str, body: Any, content_type: str = MERGE) -> Reply:
        return await self.client("PATCH", path, body, content_type)

    async def delete(self, path: str, body: Any = None) -> Reply:
        return await self.client("DELETE", path, body)

    async def pod(self, name: str = "web", *, labels: Json | None = None, **spec: Any) -> Json:
        """A new Pod as it was created."""
        made = await self.post(self.pods(), pod(name, labels=labels, **spec))
        assert made.status == 201, made.text
        return dict(made.json)

    async def bound(self, name: str = "web", *, labels: Json | None = None) -> Json:
        """A new Pod on a node, running and ready as far as its status says."""
        await self.pod(name, labels=labels)
        assert (await self.bind(name)).status == 201
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        reply = await self.patch(self.pods(name, "status"), {"status": status}, STRATEGIC)
        assert reply.status == 200, reply.text
        return dict(reply.json)

    async def bind(self, name: str = "web", node: str = "n1", **metadata: Any) -> Reply:
        return await self.post(self.pods(name, "binding"), binding(name, node, **metadata))

    async def hint(self, node: str, name: str = "web", **metadata: Any) -> Reply:
        body = {"metadata": metadata, "status": {"nominatedNodeName": node}}
        return await self.patch(self.pods(name, "status"), body)


def pod(name: str = "web", *, labels: Json | None = None, **spec: Any) -> Json:
    """A Pod that no scheduler takes before the test does."""
    metadata: Json = {"name": name} | ({"labels": labels} if labels else {})
    containers = [{"name": "main", "image": "app:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"schedulerName": "nobody", "containers": containers, **spec},
    }


def binding(name: str, node: str, **metadata: Any) -> Json:
    head = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}}
    return {**head, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}


Play = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """One row of the table: `play` asserts it. `embedded_only`: a real server can't be made to answer so at will."""

    name: str
    play: Play
    embedded_only: bool = False

    @property
    def row(self) -> str:
        """The row in words."""
        return (self.play.__doc__ or "").strip()


SCENARIOS: list[Scenario] = []


def scenario(play: Play) -> Play:
    """Register a scenario that runs on the embedded server and on a real control plane."""
    SCENARIOS.append(Scenario(play.__name__, play))
    return play


def embedded_only(play: Play) -> Play:
    """Register a scenario for the embedded server alone."""
    SCENARIOS.append(Scenario(play.__name__, play, embedded_only=True))
    return play


def refused(reply: Reply, code: int, reason: str | None = None, says: str = "") -> Json:
    """The Status of a refusal, which has this code, reason (None: none at all) and message."""
    assert reply.status == code, reply.text
    status = reply.json
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", code)
    assert status.get("reason") == reason, status
    assert says in status["message"], status["message"]
    return dict(status)


WIDGETS = "example.com/v1"
WIDGET_CRD: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}
"""What a real server needs before the scenarios run."""
