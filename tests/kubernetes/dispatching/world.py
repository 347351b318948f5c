"""Both generated clients under one roof: what differs between them, and a server with a client of one of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import DispatchingApiClient
from asyncdispatch.testing import EmbeddedAPIServer

SPEC = {"containers": [{"name": "main", "image": "app"}]}
LABEL = {"metadata": {"labels": {"a": "b"}}}
WIDGETS = ("example.com", "v1", "default", "widgets")


@dataclass(frozen=True)
class Flavour:
    """One client library: its modules, and its ways of asking for more or less than a model."""

    name: str

    @property
    def client(self) -> Any:
        return importlib.import_module(f"{self.name}.client")

    @property
    def watch(self) -> Any:
        return importlib.import_module(f"{self.name}.watch")

    @property
    def stream(self) -> Any:
        return importlib.import_module(f"{self.name}.stream")

    async def raw(self, api: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """The HTTP client's own response."""
        if self.name == "kubernetes_asyncio":
            return await getattr(api, method)(*args, _preload_content=False, **kwargs)
        return await getattr(api, f"{method}_without_preload_content")(*args, **kwargs)

    async def info(self, api: Any, method: str, *args: Any, **kwargs: Any) -> tuple[Any, int, Any]:
        """Model, status and headers."""
        found = await getattr(api, f"{method}_with_http_info")(*args, **kwargs)
        return found if isinstance(found, tuple) else (found.data, found.status_code, found.headers)


class Seen:
    """An observer that keeps the calls that were accepted."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def accepted(self, handle: Any) -> None:
        self.calls.append(handle.call)

    @property
    def types(self) -> list[str]:
        return [call.call_type for call in self.calls]

    @property
    def last(self) -> Any:
        return self.calls[-1]


class World:
    """A server, a client of one flavour, and that client dispatched."""

    def __init__(self, flavour: Flavour, server: EmbeddedAPIServer, api_client: Any, dispatcher: Dispatcher) -> None:
        self.flavour, self.server, self.api_client, self.dispatcher = flavour, server, api_client, dispatcher
        self.client = DispatchingApiClient(dispatcher, api_client)
        self.module = flavour.client
        self.v1 = self.module.CoreV1Api(self.client)
        self.custom = self.module.CustomObjectsApi(self.client)
        self.bare = self.module.CoreV1Api(api_client)

    def pod(self, name: str = "p", **spec: Any) -> dict[str, Any]:
        meta = {"name": name, "namespace": "default"}
        return self.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**SPEC, **spec}})

    def binding(self, name: str = "p", node: str = "n1", **meta: Any) -> Any:
        target = {"kind": "Node", "name": node}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **meta}, "target": target}

    async def bind(self, name: str = "p", node: str = "n1", **meta: Any) -> Any:
        api, body = self.v1, self.binding(name, node, **meta)
        if self.flavour.name == "kubernetes.aio":
            body = self.module.V1Binding.from_dict(body)
        return await self.flavour.raw(api, "create_namespaced_pod_binding", name, "default", body)

    def model(self, name: str = "p") -> Any:
        m = self.module
        spec = m.V1PodSpec(containers=[m.V1Container(name="main", image="app")])
        return m.V1Pod(metadata=m.V1ObjectMeta(name=name), spec=spec)

    def written(self, verb: str) -> int:
        return sum(record.applied for record in self.server.audit if record.verb == verb)
