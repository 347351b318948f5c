"""Evictions: a deletion of a Pod that disruption budgets may hold back. As the API server does it, step by step."""

from __future__ import annotations

from typing import Any

from asyncdispatch.testing.apiserver import metadata as meta
from asyncdispatch.testing.apiserver.kinds import child, is_ready, mapping, with_condition
from asyncdispatch.testing.apiserver.selectors import chooses
from asyncdispatch.testing.apiserver.status import (
    Json,
    StatusError,
    bad_request,
    bare,
    forbidden,
    not_found,
    success,
    too_many_requests,
)
from asyncdispatch.testing.apiserver.store import Stored
from asyncdispatch.testing.apiserver.writing import Target, Writer, Written, check_preconditions

_EVICTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}


def evict(writer: Writer, target: Target, body: Any, *, dry_run: bool = False, agent: str = "") -> Written:
    """POST pods/NAME/eviction. The preconditions of its deleteOptions are compared after the budget was charged."""
    if not isinstance(body, dict) or meta.shape_fault(body) or body.get("kind", "Eviction") != "Eviction":
        raise bad_request("the object provided is unrecognized (must be of type Eviction)")
    if mapping(body, "metadata").get("name") != target.name:
        raise bad_request("name in URL does not match name in Eviction object")
    writer.enter(target, dry_run=dry_run, agent=agent)
    pod = writer.store.get(target.resource, target.namespace, target.name)
    if pod is None:
        raise not_found(*target.about)
    dry_run = dry_run or "All" in (child(body, "deleteOptions", "dryRun") or ())
    if not _needs_no_budget(pod.obj):
        _charge(writer, pod, dry_run)
    options = {key: value for key, value in mapping(body, "deleteOptions").items() if key != "dryRun"}
    check_preconditions(pod, mapping(options, "preconditions"))
    if not dry_run:
        _mark(writer, pod)
    # What was compared above would not fit the Pod any more, now that it is marked.
    options.pop("preconditions", None)
    written = writer.delete(target, options, dry_run=dry_run, agent=agent)
    return Written(201, success(code=201), written.applied, written.stored)


def budgets_of(writer: Writer, pod: Json) -> list[Stored]:
    """The budgets that cover a Pod."""
    namespace = str(child(pod, "metadata", "namespace"))
    table = writer.store.table(writer.store.registry.named("PodDisruptionBudget"))
    return [
        stored
        for key, stored in table.objects.items()
        if key[0] == namespace and chooses(child(stored.obj, "spec", "selector"), pod)
    ]


def _needs_no_budget(pod: Json) -> bool:
    """Finished, unstarted and dying Pods disrupt nothing by going."""
    return "deletionTimestamp" in pod["metadata"] or child(pod, "status", "phase") in ("Pending", "Succeeded", "Failed")


def _charge(writer: Writer, pod: Stored, dry_run: bool) -> None:
    """Take one disruption from the Pod's budget, or refuse."""
    budgets = budgets_of(writer, pod.obj)
    if len(budgets) > 1:
        raise bare("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
    if not budgets:
        return
    (budget,) = budgets
    status, name = mapping(budget.obj, "status"), budget.key[1]
    if not is_ready(pod.obj) and _spares_unready(budget.obj):
        return
    if int(status.get("observedGeneration", 0)) < int(budget.obj["metadata"].get("generation", 1)):
        raise _blocked(f"The disruption budget {name} is still being processed by the server.", 10)
    allowed = int(status.get("disruptionsAllowed", 0))
    if allowed < 0:
        raise forbidden("policy", "poddisruptionbudget", name, "pdb disruptions allowed is negative")
    if allowed == 0:
        wanted, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        why = f"needs {wanted} healthy pods and has {healthy} currently"
        if int(healthy) > int(wanted):
            why = "does not allow evicting pods currently"
        raise _blocked(f"The disruption budget {name} {why}")
    if not dry_run:
        disrupted = {**mapping(status, "disruptedPods"), pod.key[1]: writer.store.timestamp()}
        new = {**status, "disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}
        writer.store.put(budget.resource, {**budget.obj, "status": new})


def _spares_unready(budget: Json) -> bool:
    """A Pod that is not ready may go without being counted."""
    if child(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = mapping(budget, "status")
    desired = int(status.get("desiredHealthy", 0))
    return int(status.get("currentHealthy", 0)) >= desired > 0


def _blocked(why: str, retry_after: int = 0) -> StatusError:
    error = too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", retry_after)
    error.status["details"]["causes"] = [{"reason": "DisruptionBudget", "message": why}]
    return error


def _mark(writer: Writer, pod: Stored) -> None:
    """Say on the Pod why it goes."""
    status = mapping(pod.obj, "status")
    condition = {**_EVICTED, "lastProbeTime": None, "lastTransitionTime": writer.store.timestamp()}
    conditions = with_condition(status.get("conditions"), condition)
    writer.store.put(pod.resource, {**pod.obj, "status": {**status, "conditions": conditions}})
