"""A plugin that reports conditions of nodes, as its author wrote it. Its bug: a merge forgets one."""

from dataclasses import dataclass, replace
from typing import Any, Self

from asyncdispatch import APICall, Attempt
from asyncdispatch.kubernetes import Cluster

STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True, kw_only=True)
class Report(APICall[Any]):
    call_type: str = "report"
    cluster: Cluster
    conditions: dict[str, str]  # status by type

    async def execute(self, attempt: Attempt) -> Any:
        path = f"/api/v1/nodes/{self.target.name}/status"
        conditions = [{"type": name, "status": status} for name, status in self.conditions.items()]
        body = {"status": {"conditions": conditions}}
        return await self.cluster.transport.request("PATCH", path, attempt, body=body, content_type=STRATEGIC)

    def merge(self, pending: Self) -> Self:
        return self  # what was reported last is what counts

    def apply(self, obj: Any) -> Any:
        status = obj.get("status", {})
        others = [each for each in status.get("conditions", []) if each["type"] not in self.conditions]
        own = [{"type": name, "status": value} for name, value in self.conditions.items()]
        return {**obj, "status": {**status, "conditions": others + own}}


@dataclass(frozen=True, kw_only=True)
class MendedReport(Report):
    def merge(self, pending: Self) -> Self:
        return replace(self, conditions={**pending.conditions, **self.conditions})
