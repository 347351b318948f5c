"""Steps that see a write before it is stored: an ordered list, open for more.

A step may replace the object, or refuse by raising StatusError. It runs after the object was prepared and before it is
checked, as the API server's admission does. It must not change the dicts that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asyncdispatch.testing.apiserver.answers import no_service_account
from asyncdispatch.testing.apiserver.kinds import child, mapping
from asyncdispatch.testing.apiserver.resources import Resource
from asyncdispatch.testing.apiserver.status import Cause, Json, forbidden, not_found
from asyncdispatch.testing.apiserver.store import Store


@dataclass(slots=True)
class Admission:
    """A write on its way to storage."""

    operation: str
    """CREATE, UPDATE, DELETE or CONNECT."""
    resource: Resource
    subresource: str
    namespace: str
    name: str
    obj: Json | None
    """What would be stored; None for a DELETE."""
    old: Json | None
    """What is stored, as it is; None for an object that is new."""
    store: Store
    dry_run: bool
    user_agent: str = ""


AdmissionStep = Callable[[Admission], None]

SYSTEM_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def admit(steps: Sequence[AdmissionStep], request: Admission) -> None:
    """Run all steps in order; the first refusal ends the request."""
    for step in steps:
        step(request)


def namespace_exists(request: Admission) -> None:
    """Creates need a namespace that is there and not being deleted; updates and deletions do not."""
    resource, namespace = request.resource, request.namespace
    if request.operation != "CREATE" or not resource.namespaced or request.subresource:
        return
    found = request.store.get(request.store.registry.named("Namespace", "v1"), "", namespace)
    if found is None:
        raise not_found("", "namespaces", namespace)
    if child(found.obj, "metadata", "deletionTimestamp") or child(found.obj, "status", "phase") == "Terminating":
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        cause = Cause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
        raise forbidden(resource.group, resource.plural, request.name, why, [cause])


def pod_priority(request: Admission) -> None:
    """A new Pod gets the value of its PriorityClass, or of the default one, or 0."""
    if request.operation != "CREATE" or request.resource.kind != "Pod" or request.subresource or request.obj is None:
        return
    spec = mapping(request.obj, "spec")
    classes = request.store.registry.named("PriorityClass")
    wanted = spec.get("priorityClassName")
    if wanted:
        found = request.store.get(classes, "", str(wanted))
        chosen = found.obj if found else None
        if chosen is None:
            why = f"no PriorityClass with name {wanted} was found"
            raise forbidden("", "pods", request.name, why)
    else:
        defaults = [s.obj for s in request.store.table(classes).objects.values() if s.obj.get("globalDefault")]
        chosen = defaults[0] if defaults else None
    value = chosen.get("value", 0) if chosen else 0
    if spec.get("priority") not in (None, value):
        why = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec"
        raise forbidden("", "pods", request.name, why)
    policy = (chosen or {}).get("preemptionPolicy", "PreemptLowerPriority")
    named = {"priorityClassName": chosen["metadata"]["name"]} if chosen else {}
    request.obj = {**request.obj, "spec": {**spec, **named, "priority": value, "preemptionPolicy": policy}}


def service_account(request: Admission) -> None:
    """A new Pod needs its service account. Not among the steps of a new server: append it to `server.admission`."""
    if request.operation != "CREATE" or request.resource.kind != "Pod" or request.subresource or request.obj is None:
        return
    name = str(child(request.obj, "spec", "serviceAccountName") or "default")
    accounts = request.store.registry.named("ServiceAccount")
    if request.store.get(accounts, request.namespace, name) is None:
        raise no_service_account(request.name, request.namespace, name)
    request.obj = {**request.obj, "spec": {**mapping(request.obj, "spec"), "serviceAccountName": name}}


def default_steps() -> list[AdmissionStep]:
    return [namespace_exists, pod_priority]
