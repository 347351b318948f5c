"""What the tests of the embedded API server share."""

import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from asyncdispatch.testing import EmbeddedAPIServer
from tests.facts.world import APPLY as APPLY
from tests.facts.world import JSON_PATCH as JSON_PATCH
from tests.facts.world import MERGE as MERGE
from tests.facts.world import STRATEGIC as STRATEGIC
from tests.facts.world import Reply as Reply

PODS = "/api/v1/namespaces/default/pods"
POD = f"{PODS}/web"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


def pod(name: str = "web", *, labels: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A Pod that the API server accepts."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default"}
    if labels:
        metadata["labels"] = dict(labels)
    spec = {"containers": [{"name": "main", "image": "app:1"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"pods": "9"}}}


def binding(name: str = "web", to: str = "n1", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, **metadata},
        "target": {"kind": "Node", "name": to},
    }


class Http:
    """A plain HTTP client for one server."""

    def __init__(self, server: EmbeddedAPIServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Reply:
        sent = dict(headers or {})
        data = None
        if body is not None:
            text = body if isinstance(body, str) else json.dumps(body)
            data = io.BytesIO(text.encode())
            sent["Content-Type"] = content_type or "application/json"
        url = self.server.url + path
        async with self.session.request(method, url, data=data, headers=sent, params=query) as response:
            return Reply(response.status, response.headers, await response.text())

    async def get(self, path: str, **query: str) -> Reply:
        return await self("GET", path, query=query)

    async def post(self, path: str, body: Any, **query: str) -> Reply:
        return await self("POST", path, body, query=query)

    async def put(self, path: str, body: Any, **query: str) -> Reply:
        return await self("PUT", path, body, query=query)

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **query: str) -> Reply:
        return await self("PATCH", path, body, content_type=content_type, query=query)

    async def delete(self, path: str, body: Any = None, **query: str) -> Reply:
        return await self("DELETE", path, body, query=query)

    async def bind(self, body: Any, path: str = POD, **query: str) -> Reply:
        return await self("POST", f"{path}/binding", body, query=query)

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator["Events"]:
        """A watch whose events are read one at a time."""
        async with self.session.get(self.server.url + path, params={"watch": "true", **query}) as response:
            yield Events(response)


class Events:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.status = response.status

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next event as (type, object); EOFError at the stream's end."""
        line = await self.response.content.readline()
        if not line:
            raise EOFError
        event = json.loads(line)
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        """The next events as (type, name)."""
        found = []
        for _ in range(count):
            kind, obj = await self.next()
            found.append((kind, obj["metadata"].get("name", "")))
        return found

    async def rest(self) -> list[tuple[str, dict[str, Any]]]:
        """Everything until the stream's end."""
        found = []
        while True:
            try:
                found.append(await self.next())
            except EOFError:
                return found
