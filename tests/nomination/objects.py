"""Pods and nodes for the tests of nomination."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def node(
    name: str, *, cpu: str = "4", pods: str = "10", ready: bool = True, cordoned: bool = False, **labels: str
) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "allocatable": {"cpu": cpu, "pods": pods},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def pod(
    name: str,
    *,
    cpu: str = "1",
    on: str | None = None,
    priority: int = 0,
    gates: tuple[str, ...] = (),
    namespace: str = "ns",
    **spec: Any,
) -> Json:
    """A Pod that can be created, or with `on` one that runs there."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "schedulerName": "default-scheduler",
            "priority": priority,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
            **({"nodeName": on} if on else {}),
            **({"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}),
            **spec,
        },
        "status": {"phase": "Running" if on else "Pending"},
    }


VICTIM = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
