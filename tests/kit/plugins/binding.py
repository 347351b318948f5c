"""A plugin that binds Pods, as its author wrote it. Its bug: a double bind, of one decision to two Pods."""

from dataclasses import dataclass
from typing import Any

from asyncdispatch import APICall, Attempt
from asyncdispatch.kubernetes import Cluster


@dataclass(frozen=True, kw_only=True)
class Bind(APICall[Any]):
    call_type: str = "bind"
    cluster: Cluster
    node: str

    async def execute(self, attempt: Attempt) -> Any:
        pod, node = self.target, {"apiVersion": "v1", "kind": "Node", "name": self.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": self.metadata(), "target": node}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding"
        return await self.cluster.transport.request("POST", path, attempt, body=body)

    def metadata(self) -> dict[str, Any]:
        return {"name": self.target.name}  # whichever Pod has that name by now


@dataclass(frozen=True, kw_only=True)
class MendedBind(Bind):
    def metadata(self) -> dict[str, Any]:
        return {**super().metadata(), "uid": self.target.uid}
