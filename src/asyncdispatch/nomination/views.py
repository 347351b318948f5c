"""What of Pods and nodes matters for a hint, read from their JSON. Pure; nothing is changed."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from asyncdispatch._core.overlay import integer_version
from asyncdispatch.kubernetes.objects import field_of

__all__ = [
    "Amounts",
    "Grounds",
    "NodeView",
    "PodView",
    "add",
    "amount",
    "is_older",
    "requests_of",
    "selects",
    "untolerated",
]

Json = dict[str, Any]
Amounts = dict[str, int]
"""Resources by name, in thousandths."""
Grounds = dict[str, Any]
"""What a decision rests on: equal grounds, equal decision."""

_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkKMGTPE]?i?)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
PREEMPTED = "PreemptionByScheduler"
"""The reason of a victim's DisruptionTarget condition."""
DEFAULT_GRACE = 30.0


# -- quantities -------------------------------------------------------------------------------------------------------


@functools.lru_cache(10_000)
def amount(quantity: str) -> int:
    """A quantity, such as 250m or 1Gi, in thousandths, rounded up. ValueError for what is none."""
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity")
    number, unit = found.groups()
    size = 1024 ** (_DECIMAL[unit[0]] // 3) if unit.endswith("i") else 10.0 ** _DECIMAL[unit]
    return math.ceil(float(number) * size * 1000 - 1e-6)


def amounts(resources: Any) -> Amounts:
    """A mapping of quantities."""
    found = resources if isinstance(resources, Mapping) else {}
    return {name: amount(str(quantity)) for name, quantity in found.items()}


def add(total: Amounts, more: Amounts) -> None:
    """Add to `total` in place."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def requests_of(pod: Json) -> Amounts:
    """What the Pod takes of its node, as kube-scheduler counts it.

    All containers and sidecars together, or the greediest moment before they all run; what is asked for the Pod as a
    whole replaces that; its overhead; and one of the node's places for Pods.
    """
    spec = field_of(pod, "spec") or {}
    running: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        asked = amounts(field_of(container, "resources", "requests"))
        moment = dict(running)
        add(moment, asked)
        if container.get("restartPolicy") == "Always":
            running = moment
        peak = {name: max(peak.get(name, 0), moment.get(name, 0)) for name in {**peak, **moment}}
    for container in spec.get("containers") or ():
        add(running, amounts(field_of(container, "resources", "requests")))
    total = {name: max(peak.get(name, 0), running.get(name, 0)) for name in {**peak, **running}}
    total.update(amounts(field_of(spec, "resources", "requests")))
    add(total, amounts(spec.get("overhead")))
    total["pods"] = 1000
    return total


def is_older(version: str | None, than: str) -> bool:
    """Of two resourceVersions, which are integers that grow (KEP-5504). False where that can't be told."""
    one, other = integer_version(version), integer_version(than)
    return one is not None and other is not None and one < other


# -- Pods -------------------------------------------------------------------------------------------------------------

_DECIDING = (
    *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "resourceClaims", "overhead"),
    *("priority", "priorityClassName", "preemptionPolicy", "schedulerName", "hostNetwork", "resources"),
)
"""Fields of a Pod's spec that decide where it may go, and when. Not its gates: lifting one is what a hint is for."""


class PodView:
    """A Pod as the guards, the ledger and the judging of hints see it. `prefix` is that of our annotations."""

    __slots__ = (
        *("deleting", "finished", "gated", "grace", "key", "mark", "mark_node", "node", "nominated", "obj", "owners"),
        *("pending", "preempted", "priority", "prefix", "requests", "uid", "version"),
    )

    def __init__(self, obj: Json, prefix: str) -> None:
        meta, spec, status = obj.get("metadata") or {}, obj.get("spec") or {}, obj.get("status") or {}
        self.obj = obj
        self.prefix = prefix
        self.key: tuple[str, str] = (meta.get("namespace") or "", meta.get("name") or "")
        self.uid: str = meta.get("uid") or ""
        self.version: str = meta.get("resourceVersion") or ""
        self.deleting = meta.get("deletionTimestamp") is not None
        grace = meta.get("deletionGracePeriodSeconds")
        self.grace = float(grace) if isinstance(grace, (int, float)) else DEFAULT_GRACE
        self.node: str = spec.get("nodeName") or ""
        self.gated = bool(spec.get("schedulingGates"))
        priority = spec.get("priority")
        self.priority: int = priority if isinstance(priority, int) else 0
        self.finished = status.get("phase") in ("Succeeded", "Failed")
        self.pending = status.get("phase") in (None, "", "Pending")
        self.nominated: str = status.get("nominatedNodeName") or ""
        self.preempted = any(
            c.get("type") == "DisruptionTarget" and c.get("status") == "True" and c.get("reason") == PREEMPTED
            for c in status.get("conditions") or ()
        )
        self.mark = self.annotation("decision-id")
        self.mark_node = self.annotation("node")
        self.owners = _owners(meta.get("managedFields"))
        self.requests = requests_of(obj)

    def annotation(self, name: str) -> str | None:
        """One of our annotations."""
        value = field_of(self.obj, "metadata", "annotations", f"{self.prefix}/{name}")
        return value if isinstance(value, str) else None

    def shows(self, decision_id: str, node: str) -> bool:
        """The hint of this decision was written: its annotations are there, whatever became of the field since."""
        return self.mark == decision_id and self.mark_node == node

    def is_ours(self, decision_id: str, node: str) -> bool:
        """The value in the field is the one that this decision wrote.

        Annotations of ours may outlive our value. Where the object tells who wrote its fields (what a watch has kept
        does not), somebody else's equal value is told from ours.
        """
        ours = self.nominated == node and self.shows(decision_id, node)
        return ours and (not self.owners or self.prefix in self.owners)

    @property
    def grounds(self) -> Grounds:
        spec = self.obj.get("spec") or {}
        found = {name: spec[name] for name in _DECIDING if spec.get(name)}
        return {**found, "requests": self.requests}


def _owners(managed: Any) -> frozenset[str]:
    """Who wrote `status.nominatedNodeName` last, by the object itself. Empty if it does not tell."""
    entries: Iterable[Any] = managed if isinstance(managed, list) else ()
    return frozenset(
        str(entry.get("manager"))
        for entry in entries
        if isinstance(field_of(entry, "fieldsV1", "f:status", "f:nominatedNodeName"), dict)
    )


# -- nodes ------------------------------------------------------------------------------------------------------------


class NodeView:
    """A node as the guards see it."""

    __slots__ = ("allocatable", "deleting", "grounds", "name", "ready", "schedulable", "version")

    def __init__(self, obj: Json) -> None:
        meta, spec, status = obj.get("metadata") or {}, obj.get("spec") or {}, obj.get("status") or {}
        self.name: str = meta.get("name") or ""
        self.version: str = meta.get("resourceVersion") or ""
        self.deleting = meta.get("deletionTimestamp") is not None
        self.schedulable = not spec.get("unschedulable")
        self.ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
        self.allocatable = amounts(status.get("allocatable"))
        self.grounds: Grounds = {
            "allocatable": self.allocatable,
            "labels": meta.get("labels") or {},
            "taints": spec.get("taints") or [],
            "schedulable": self.schedulable,
            "ready": self.ready,
        }

    @property
    def unfit(self) -> str | None:
        """Why no Pod should be sent here, or None."""
        if self.deleting:
            return "is being deleted"
        if not self.schedulable:
            return "is cordoned"
        return None if self.ready else "is not ready"


def untolerated(pod: PodView, node: NodeView) -> str | None:
    """The key of a taint that keeps the Pod off the node; None if it tolerates all that do."""
    tolerations = field_of(pod.obj, "spec", "tolerations") or ()
    for taint in node.grounds["taints"]:
        strict = taint.get("effect") in ("NoSchedule", "NoExecute")
        if strict and not any(_tolerates(toleration, taint) for toleration in tolerations):
            return str(taint.get("key"))
    return None


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    # Of an operator that we do not know the benefit of the doubt: Lt and Gt are upstream's newest.
    equal = str(toleration.get("value") or "") == str(taint.get("value") or "")
    return equal or str(toleration.get("operator") or "Equal") != "Equal"


def selects(pod: PodView, node: NodeView) -> bool:
    """The node has the labels that the Pod's nodeSelector asks for."""
    wanted: Json = field_of(pod.obj, "spec", "nodeSelector") or {}
    labels: Json = node.grounds["labels"]
    return wanted.items() <= labels.items()
