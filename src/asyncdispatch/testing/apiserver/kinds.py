"""What single kinds do beyond the common rules: defaults, checks, and what an update may not touch.

Objects are values: every function takes JSON dicts that it must not change and returns new ones, sharing what is the
same. Checks return causes; the caller turns them into an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from asyncdispatch.testing.apiserver.status import Cause, Json

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUBDOMAIN_RULE = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
_LABEL_RULE = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'"


def name_fault(name: str, *, label: bool = False) -> str | None:
    """Why `name` cannot name an object, or None."""
    limit, pattern, rule = (63, LABEL, _LABEL_RULE) if label else (253, SUBDOMAIN, _SUBDOMAIN_RULE)
    if len(name) > limit:
        return f"must be no more than {limit} characters"
    return None if pattern.fullmatch(name) else rule


def child(obj: Mapping[str, Any], *path: str) -> Any:
    """The value at `path`, or None where any part of it is missing or is no mapping."""
    value: Any = obj
    for part in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def mapping(obj: Mapping[str, Any], *path: str) -> Json:
    """The mapping at `path`, or an empty one."""
    value = child(obj, *path)
    return value if isinstance(value, dict) else {}


def with_condition(conditions: Iterable[Json] | None, condition: Json) -> list[Json]:
    """`conditions` with the one of the same type replaced; lastTransitionTime is kept while its status is the same."""
    result: list[Json] = []
    found = False
    for old in conditions or ():
        if old.get("type") != condition["type"]:
            result.append(old)
            continue
        found = True
        same = old.get("status") == condition["status"] and "lastTransitionTime" in old
        result.append({**condition, "lastTransitionTime": old["lastTransitionTime"]} if same else condition)
    return result if found else [*result, condition]


def is_ready(pod: Mapping[str, Any]) -> bool:
    """The Pod's condition Ready says True."""
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in child(pod, "status", "conditions") or ())


class Behaviour:
    """The common rules of a built-in kind; subclasses say what is different."""

    label_names = False
    """Names are DNS labels, not subdomains."""

    def prepare_create(self, obj: Json, now: str) -> Json:
        """`obj` with defaults; its status is already gone where the kind's status belongs to the server."""
        return obj

    def check_create(self, obj: Json) -> list[Cause]:
        return []

    def prepare_update(self, new: Json, old: Json) -> Json:
        """`new` without changes that the main resource ignores (its status is already reset)."""
        return new

    def check_update(self, new: Json, old: Json) -> list[Cause]:
        return []

    def prepare_status(self, new: Json, old: Json) -> Json:
        """`new` without changes that `/status` ignores: all but status and metadata."""
        kept = {key: value for key, value in old.items() if key not in ("status", "metadata")}
        taken = {key: value for key, value in new.items() if key in ("metadata", "status")}
        return {**kept, **taken}

    def check_status(self, new: Json, old: Json) -> list[Cause]:
        return []

    def prepare_finalize(self, new: Json, old: Json) -> Json:
        """`new` without changes that `/finalize` ignores: all but spec.finalizers and metadata."""
        spec = {**mapping(old, "spec"), "finalizers": mapping(new, "spec").get("finalizers") or []}
        return {**old, "metadata": new["metadata"], "spec": spec}

    def grace(self, obj: Json, asked: int | None) -> int | None:
        """Seconds until an object that is deleted now ends; None: this kind has no graceful deletion."""
        return None

    def dying(self, obj: Json) -> Json:
        """`obj` as it looks once its deletion has begun."""
        return obj

    def held(self, obj: Json) -> bool:
        """Something besides metadata.finalizers keeps a dying object."""
        return False


class CustomBehaviour(Behaviour):
    """A custom resource: `/status` takes nothing but the status, no change of labels or annotations."""

    def prepare_status(self, new: Json, old: Json) -> Json:
        result = {key: value for key, value in old.items() if key != "status"}
        # The caller compares these two with the stored object, so a fence in the body still holds.
        fences = {key: new["metadata"][key] for key in ("resourceVersion", "uid") if key in mapping(new, "metadata")}
        result["metadata"] = {**old["metadata"], **fences}
        if "status" in new:
            result["status"] = new["status"]
        return result


class NamespaceBehaviour(Behaviour):
    label_names = True

    def prepare_create(self, obj: Json, now: str) -> Json:
        labels = {**(child(obj, "metadata", "labels") or {}), "kubernetes.io/metadata.name": obj["metadata"]["name"]}
        spec = {**mapping(obj, "spec"), "finalizers": ["kubernetes"]}
        status = {"phase": "Terminating" if "deletionTimestamp" in obj["metadata"] else "Active"}
        return {**obj, "metadata": {**obj["metadata"], "labels": labels}, "spec": spec, "status": status}

    def prepare_update(self, new: Json, old: Json) -> Json:
        return {**new, "spec": old.get("spec", {})}

    def dying(self, obj: Json) -> Json:
        metadata = {key: value for key, value in obj["metadata"].items() if key != "deletionGracePeriodSeconds"}
        return {**obj, "metadata": metadata, "status": {**mapping(obj, "status"), "phase": "Terminating"}}

    def held(self, obj: Json) -> bool:
        return bool(child(obj, "spec", "finalizers"))


class PhaseBehaviour(Behaviour):
    """A kind whose status begins with phase Pending."""

    def prepare_create(self, obj: Json, now: str) -> Json:
        return {**obj, "status": {"phase": "Pending"}}


class BudgetBehaviour(Behaviour):
    """A PodDisruptionBudget: one of two numbers, and a status of zeros until a controller has counted."""

    def prepare_create(self, obj: Json, now: str) -> Json:
        counts = ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods")
        return {**obj, "status": dict.fromkeys(counts, 0)}

    def check_create(self, obj: Json) -> list[Cause]:
        spec = mapping(obj, "spec")
        if "minAvailable" in spec and "maxUnavailable" in spec:
            why = "minAvailable and maxUnavailable cannot be both set"
            return [Cause.invalid("spec", "", why)]
        return []

    def check_update(self, new: Json, old: Json) -> list[Cause]:
        return self.check_create(new)


_POD_DEFAULTS: Mapping[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
    "securityContext": {},
}
_POD_FREE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
_POD_FREE_WHILE_GATED = ("nodeSelector", "affinity")
_POD_RULE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


class PodBehaviour(Behaviour):
    def prepare_create(self, obj: Json, now: str) -> Json:
        spec = {**_POD_DEFAULTS, **mapping(obj, "spec")}
        status: Json = {"phase": "Pending", "qosClass": _quality(spec)}
        if spec.get("schedulingGates"):
            gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
            gated["message"] = "Scheduling is blocked due to non-empty scheduling gates"
            status["conditions"] = [{**gated, "lastProbeTime": None, "lastTransitionTime": now}]
        return {**obj, "spec": spec, "status": status}

    def check_create(self, obj: Json) -> list[Cause]:
        spec = mapping(obj, "spec")
        containers = spec.get("containers")
        if not isinstance(containers, list) or not containers:
            return [Cause.required("spec.containers")]
        causes = []
        for index, container in enumerate(containers):
            for field in ("name", "image"):
                if not (isinstance(container, dict) and container.get(field)):
                    causes.append(Cause.required(f"spec.containers[{index}].{field}"))
        node = spec.get("nodeName")
        if node and spec.get("schedulingGates"):
            causes.append(Cause.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
        if node and (fault := name_fault(node)):
            causes.append(Cause.invalid("spec.nodeName", node, fault))
        return causes

    def prepare_update(self, new: Json, old: Json) -> Json:
        # Defaults are set whenever a body is read: what a PUT leaves out has not changed.
        return {**new, "spec": {**_POD_DEFAULTS, **mapping(new, "spec")}}

    def check_update(self, new: Json, old: Json) -> list[Cause]:
        fresh, stored = mapping(new, "spec"), mapping(old, "spec")
        if fresh == stored:
            return []
        causes = _gate_causes(fresh, stored) + _toleration_causes(fresh, stored)
        free = _POD_FREE + (_POD_FREE_WHILE_GATED if stored.get("schedulingGates") else ())
        if _fixed_part(fresh, free) != _fixed_part(stored, free):
            causes.append(Cause.forbidden("spec", _POD_RULE))
        return causes

    def prepare_status(self, new: Json, old: Json) -> Json:
        result = super().prepare_status(new, old)
        metadata = {k: v for k, v in result["metadata"].items() if k not in ("deletionTimestamp", "ownerReferences")}
        for key in ("deletionTimestamp", "ownerReferences"):
            if key in old["metadata"]:
                metadata[key] = old["metadata"][key]
        return {**result, "metadata": metadata}

    def check_status(self, new: Json, old: Json) -> list[Cause]:
        field = "status.nominatedNodeName"
        node = child(new, "status", "nominatedNodeName")
        if not node or node == child(old, "status", "nominatedNodeName"):
            return []
        if fault := name_fault(str(node)):
            return [Cause.invalid(field, node, fault)]
        if child(old, "spec", "nodeName"):
            return [Cause.forbidden(field, "may not be set on pods that are already bound to a node")]
        return []

    def grace(self, obj: Json, asked: int | None) -> int | None:
        if not child(obj, "spec", "nodeName") or child(obj, "status", "phase") in ("Failed", "Succeeded"):
            return 0
        period = child(obj, "spec", "terminationGracePeriodSeconds") if asked is None else asked
        seconds = 30 if period is None else int(period)
        return 1 if seconds < 0 else seconds


def _quality(spec: Json) -> str:
    """The quality of service, by what the containers ask for and are limited to."""
    containers = [one for one in spec.get("containers") or () if isinstance(one, dict)]
    limits = [mapping(one, "resources", "limits") for one in containers]
    requests = [
        {**limit, **mapping(one, "resources", "requests")} for one, limit in zip(containers, limits, strict=True)
    ]
    if not any(requests):
        return "BestEffort"
    exact = all(
        limit.keys() >= {"cpu", "memory"} and asked == limit for asked, limit in zip(requests, limits, strict=True)
    )
    return "Guaranteed" if exact else "Burstable"


def _fixed_part(spec: Json, free: tuple[str, ...]) -> Json:
    """`spec` without what an update may change."""
    fixed = {key: value for key, value in spec.items() if key not in free}
    for key in ("containers", "initContainers"):
        if isinstance(fixed.get(key), list):
            fixed[key] = [{k: v for k, v in item.items() if k != "image"} for item in fixed[key]]
    return fixed


def _gate_causes(new: Json, old: Json) -> list[Cause]:
    before = old.get("schedulingGates") or []
    added = [gate for gate in new.get("schedulingGates") or [] if gate not in before]
    if not added:
        return []
    return [Cause.forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate")]


def _toleration_causes(new: Json, old: Json) -> list[Cause]:
    after = new.get("tolerations") or []
    if all(toleration in after for toleration in old.get("tolerations") or []):
        return []
    return [Cause.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")]
