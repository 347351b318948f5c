"""A plugin that taints nodes, as its author wrote it. Its bug: a lost update."""

from dataclasses import dataclass, replace
from typing import Any

from asyncdispatch import Again, APICall, Attempt
from asyncdispatch.kubernetes import Cluster

MERGE = "application/merge-patch+json"


def tainted(node: Any, key: str) -> list[Any]:
    taints = node["spec"].get("taints", [])
    return taints if any(taint["key"] == key for taint in taints) else [*taints, {"key": key, "effect": "NoSchedule"}]


@dataclass(frozen=True, kw_only=True)
class AddTaint(APICall[Any]):
    call_type: str = "add_taint"
    cluster: Cluster
    key: str

    async def execute(self, attempt: Attempt) -> Any:
        path = f"/api/v1/nodes/{self.target.name}"
        node = await self.cluster.transport.request("GET", path, attempt)
        body = self.patch(node)
        return await self.cluster.transport.request("PATCH", path, attempt, body=body, content_type=MERGE)

    def patch(self, node: Any) -> Any:
        return {"spec": {"taints": tainted(node, self.key)}}  # a list replaces whatever is there by now

    def apply(self, obj: Any) -> Any:
        return {**obj, "spec": {**obj["spec"], "taints": tainted(obj, self.key)}}


@dataclass(frozen=True, kw_only=True)
class MendedAddTaint(AddTaint):
    def patch(self, node: Any) -> Any:
        return {**super().patch(node), "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}}

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Any:
        return Again(replace(self))  # somebody has written in between: read and decide anew
