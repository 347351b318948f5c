"""What the tests of the nominator share."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncdispatch.nomination import Decision
from asyncdispatch.nomination.decisions import PREFIX
from asyncdispatch.testing import EmbeddedAPIServer

Json = dict[str, Any]


def decide(pod: Any, node: str = "n1", **fields: Any) -> Decision:
    return Decision(
        **{"pod": pod, "node": node, "algorithm_version": "v3", "reason": "best fit", "ttl": 30.0, **fields}
    )


def nominated(server: EmbeddedAPIServer, name: str = "p") -> str | None:
    found: str | None = server.get("Pod", name, namespace="ns").get("status", {}).get("nominatedNodeName")
    return found


def notes(server: EmbeddedAPIServer, name: str = "p") -> dict[str, str]:
    """Our annotations of a Pod, without their prefix."""
    found = server.get("Pod", name, namespace="ns")["metadata"].get("annotations", {})
    return {key.removeprefix(f"{PREFIX}/"): value for key, value in found.items() if key.startswith(PREFIX)}


def patches(server: EmbeddedAPIServer) -> list[Any]:
    return [record for record in server.audit if record.method == "PATCH"]


def checked_wire(server: EmbeddedAPIServer, prefix: str = PREFIX) -> int:
    """There is no way to `spec.nodeName`, `pods/binding` or a Pod's spec: the wire says so. Returns how many writes."""
    count = 0
    for record in server.audit:
        if record.method == "GET" or (record.kind == "Event" and record.method == "POST"):
            continue
        count += 1
        assert (record.method, record.kind, record.subresource) == ("PATCH", "Pod", "status"), record
        assert record.content_type == "application/merge-patch+json"
        assert set(record.body) == {"metadata", "status"}
        assert set(record.body["status"]) == {"nominatedNodeName"}
        assert set(record.body["metadata"]) == {"uid", "resourceVersion", "annotations"}
        assert record.body["metadata"]["uid"]
        assert record.body["metadata"]["resourceVersion"]
        assert all(key.startswith(f"{prefix}/") for key in record.body["metadata"]["annotations"])
        assert "nodeName" not in str(record.body).replace("nominatedNodeName", "")
    return count


async def passes(seconds: float) -> None:
    """Virtual time passes."""
    await asyncio.sleep(seconds)
