"""A storm of 429 on a real API server: its Priority and Fairness leaves a user or group few seats and no queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncdispatch.testing import ControlPlane
from tests.e2e.waiting import eventually

FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1"


@asynccontextmanager
async def storm(plane: ControlPlane, role: str, subject: dict[str, Any], probe: str) -> AsyncIterator[None]:
    """While it lasts, most of what `subject` (of a FlowSchema) asks is turned away.

    `role` is one of them, and `probe` a path that it may read: the storm begins when that is counted by the new rule.
    """
    limited = {
        "nominalConcurrencyShares": 1,
        "lendablePercent": 0,
        "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Reject"},
    }
    level = {"metadata": {"name": "storm"}, "spec": {"type": "Limited", "limited": limited}}
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}
    rule = {"subjects": [subject], "resourceRules": [everything]}
    spec = {"matchingPrecedence": 2, "priorityLevelConfiguration": {"name": "storm"}, "rules": [rule]}
    try:
        await plane.ask("POST", f"{FLOWS}/prioritylevelconfigurations", level)
        made = await plane.ask("POST", f"{FLOWS}/flowschemas", {"metadata": {"name": "storm"}, "spec": spec})

        async def counts() -> bool:
            answer = await plane.request("GET", probe, role=role)
            return answer.headers.get("X-Kubernetes-PF-FlowSchema-UID") == made["metadata"]["uid"]

        await eventually(counts)
        yield
    finally:
        for path in ("flowschemas", "prioritylevelconfigurations"):
            await plane.request("DELETE", f"{FLOWS}/{path}/storm")
