"""What controllers would do, one round at a time: budgets, quotas, ending namespaces, service accounts.

An API server alone does none of it: a new budget or quota has no status, a dying namespace stays. So it is here, until
a test asks for a round.
"""

from __future__ import annotations

import math
from decimal import Decimal

from asyncdispatch.testing.apiserver import quotas
from asyncdispatch.testing.apiserver.kinds import child, is_ready, mapping
from asyncdispatch.testing.apiserver.selectors import chooses
from asyncdispatch.testing.apiserver.status import Json
from asyncdispatch.testing.apiserver.store import Stored
from asyncdispatch.testing.apiserver.writing import Target, Writer


def run(writer: Writer) -> None:
    """One round of all controllers; one that finds nothing to do writes nothing."""
    for stored in _all(writer, "Namespace"):
        if "deletionTimestamp" in stored.obj["metadata"]:
            _end_namespace(writer, stored)
        else:
            _give_account(writer, stored.key[1])
    for stored in _all(writer, "PodDisruptionBudget"):
        _set_status(writer, stored, _budget_status(writer, stored))
    for stored in _all(writer, "ResourceQuota"):
        _set_status(writer, stored, _quota_status(writer, stored))


def _all(writer: Writer, kind: str) -> list[Stored]:
    return list(writer.store.table(writer.store.registry.named(kind)).objects.values())


def _set_status(writer: Writer, stored: Stored, status: Json) -> None:
    if status != stored.obj.get("status"):
        writer.store.put(stored.resource, {**stored.obj, "status": status})


def _budget_status(writer: Writer, stored: Stored) -> Json:
    """Counted from the Pods that it covers; percentages are of those, where a controller would ask their owner."""
    spec = mapping(stored.obj, "spec")
    covered = [
        pod.obj
        for pod in _all(writer, "Pod")
        if pod.key[0] == stored.key[0]
        and chooses(spec.get("selector"), pod.obj)
        and child(pod.obj, "status", "phase") not in ("Succeeded", "Failed")
    ]
    disrupted = {
        name: when
        for name, when in mapping(stored.obj, "status", "disruptedPods").items()
        if any(pod["metadata"]["name"] == name and "deletionTimestamp" not in pod["metadata"] for pod in covered)
    }
    healthy = sum(
        is_ready(pod) and "deletionTimestamp" not in pod["metadata"] and pod["metadata"]["name"] not in disrupted
        for pod in covered
    )
    expected = len(covered)
    if "minAvailable" in spec:
        desired = _share(spec["minAvailable"], expected)
    else:
        desired = max(0, expected - _share(spec.get("maxUnavailable", 0), expected))
    status: Json = {"observedGeneration": stored.obj["metadata"].get("generation", 1)}
    status |= {"expectedPods": expected, "currentHealthy": healthy, "desiredHealthy": desired}
    status["disruptionsAllowed"] = max(0, healthy - desired) if expected else 0
    return status | ({"disruptedPods": disrupted} if disrupted else {})


def _share(value: int | str, whole: int) -> int:
    """A number, or so many percent of the whole, rounded up."""
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(int(value[:-1]) * whole / 100)
    return int(value)


def _quota_status(writer: Writer, stored: Stored) -> Json:
    hard = mapping(stored.obj, "spec", "hard")
    used = dict.fromkeys(hard, Decimal(0))
    for other in writer.store.all():
        if other.key[0] == stored.key[0]:
            for key, value in quotas.usage(other.resource, other.obj).items():
                if key in used:
                    used[key] += value
    return {"hard": hard, "used": {key: quotas.written(value, key) for key, value in used.items()}}


def _end_namespace(writer: Writer, namespace: Stored) -> None:
    """Delete what is in it; once it is empty, it ends. Pods with a grace period hold it until they are finished."""
    inside = [stored for stored in writer.store.all() if stored.key[0] == namespace.key[1]]
    for stored in inside:
        if "deletionTimestamp" not in stored.obj["metadata"]:
            writer.delete(Target(stored.resource, *stored.key), {})
    if not any(stored.key[0] == namespace.key[1] for stored in writer.store.all()):
        writer.store.remove(namespace)


def _give_account(writer: Writer, namespace: str) -> None:
    accounts = writer.store.registry.named("ServiceAccount")
    if writer.store.get(accounts, namespace, "default") is None:
        writer.create(Target(accounts, namespace, ""), {"metadata": {"name": "default"}})
