"""The verbs that write: create, replace, patch, delete and bind, without HTTP.

Each takes a target and decoded input, runs in one go (nothing else happens between its read and its write) and returns
what was written; a refusal is a StatusError and leaves storage as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from asyncdispatch.testing.apiserver import metadata as meta
from asyncdispatch.testing.apiserver import patches, quotas
from asyncdispatch.testing.apiserver.admission import Admission, AdmissionStep, admit, namespace_exists
from asyncdispatch.testing.apiserver.kinds import mapping, with_condition
from asyncdispatch.testing.apiserver.resources import Resource
from asyncdispatch.testing.apiserver.status import (
    Cause,
    Json,
    StatusError,
    already_exists,
    bad_request,
    bare,
    conflict,
    invalid,
    modified,
    not_found,
    success,
    unknown_patch,
)
from asyncdispatch.testing.apiserver.store import Store, Stored, format_time

_UNFENCED = (None, "", "0")
"""Values of resourceVersion by which an update asks for no version in particular."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    resource: Resource
    namespace: str
    name: str
    subresource: str = ""

    @property
    def about(self) -> tuple[str, str, str]:
        """Group, plural and name, as answers name the object."""
        return self.resource.group, self.resource.plural, self.name


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did: the answer, and whether storage changed."""

    code: int
    answer: Stored | Json
    applied: bool
    stored: Stored | None = None
    """The object as it is (or was last) in storage, if storage changed."""


class Writer:
    """The verbs over one store."""

    def __init__(self, store: Store, steps: list[AdmissionStep]) -> None:
        self.store = store
        self.steps = steps

    # -- create ------------------------------------------------------------------------------------------------------

    def create(self, target: Target, body: Any, *, dry_run: bool = False, agent: str = "") -> Written:
        """POST on a collection."""
        resource = target.resource
        given = meta.check_body(resource, body)
        if not resource.custom:
            given = patches.without_nulls(given)
        metadata, causes = meta.new_metadata(resource, mapping(given, "metadata"), target.namespace, self.store)
        name = str(metadata.get("name", ""))
        head = {"kind": resource.kind, "apiVersion": resource.api_version}
        obj = {**head, **{k: v for k, v in given.items() if k not in head}, "metadata": metadata}
        if resource.status and not resource.status_on_create:
            obj.pop("status", None)
        if not causes:
            obj = resource.behaviour.prepare_create(obj, metadata["creationTimestamp"])
        step = Admission("CREATE", resource, "", target.namespace, name, obj, None, self.store, dry_run, agent)
        admit(self.steps, step)
        obj = step.obj or obj
        causes += resource.behaviour.check_create(obj)
        if causes:
            raise invalid(resource.group, resource.kind, name, causes)
        quotas.check(self.store, resource, name, obj)
        existing = self.store.get(resource, target.namespace, name)
        if existing is not None:
            dying = "deletionTimestamp" in existing.obj["metadata"]
            raise already_exists(resource.group, resource.plural, name, dying=dying)
        if dry_run:
            return Written(201, Stored(resource, (target.namespace, name), obj, 0), False)
        stored = self.store.put(resource, obj)
        quotas.charge(self.store, resource, obj)
        return Written(201, stored, True, stored)

    # -- update ------------------------------------------------------------------------------------------------------

    def replace(self, target: Target, body: Any, *, dry_run: bool = False, agent: str = "") -> Written:
        """PUT. Here the uid is compared before the resourceVersion, and both answer 409."""
        new = meta.check_body(target.resource, body)
        if not target.resource.custom:
            new = patches.without_nulls(new)
        given = mapping(new, "metadata")
        _check_place(target, given)
        old = self.store.get(target.resource, target.namespace, target.name)
        if old is None:
            return self._replace_nothing(target, new, dry_run, agent)
        if given.get("uid") not in (None, "", old.uid):
            raise precondition_failed(target, "UID", str(given["uid"]), old.uid)
        if given.get("resourceVersion") in _UNFENCED and not target.resource.unconditional_update:
            cause = Cause.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(target.resource.group, target.resource.kind, target.name, [cause])
        return self._update(target, old, new, dry_run, agent)

    def _replace_nothing(self, target: Target, new: Json, dry_run: bool, agent: str) -> Written:
        if not target.resource.create_on_update or target.subresource:
            raise not_found(*target.about)
        given = mapping(new, "metadata")
        if given.get("uid"):
            raise precondition_failed(target, "UID", str(given["uid"]), "")
        kept = {key: value for key, value in given.items() if key != "resourceVersion"}
        body = {**new, "metadata": {**kept, "name": target.name}}
        return self.create(target, body, dry_run=dry_run, agent=agent)

    def patch(
        self, target: Target, content_type: str, patch: Any, *, dry_run: bool = False, agent: str = ""
    ) -> Written:
        """PATCH in one of the kinds that the resource accepts; last writer wins unless the patch carries a version."""
        if content_type not in patches.accepted(target.resource.custom):
            raise unknown_patch(target.resource.custom)
        old = self.store.get(target.resource, target.namespace, target.name)
        if old is None:
            raise not_found(*target.about)
        new = patches.apply(content_type, old.obj, patch)
        if fault := meta.shape_fault(new):
            raise invalid("", "", "", [Cause.invalid("patch", "", fault)])
        _check_place(target, mapping(new, "metadata"))
        return self._update(target, old, new, dry_run, agent)

    def _update(self, target: Target, old: Stored, new: Json, dry_run: bool, agent: str) -> Written:
        resource, behaviour = target.resource, target.resource.behaviour
        given = mapping(new, "metadata")
        if given.get("resourceVersion") not in (*_UNFENCED, old.obj["metadata"]["resourceVersion"]):
            raise modified(*target.about)
        head = {"kind": resource.kind, "apiVersion": resource.api_version}
        new = {**new, **head, "metadata": given}
        if target.subresource == "status":
            new = behaviour.prepare_status(new, old.obj)
        elif target.subresource == "finalize":
            new = behaviour.prepare_finalize(new, old.obj)
        else:
            new = behaviour.prepare_update(_with_status_of(resource, new, old.obj), old.obj)
        new["metadata"] = meta.settled(mapping(new, "metadata"), old.obj["metadata"])
        new = meta.generation_of(resource, new, old.obj)
        step = Admission(
            *("UPDATE", resource, target.subresource, target.namespace, target.name),
            *(new, old.obj, self.store, dry_run, agent),
        )
        admit(self.steps, step)
        new = step.obj or new
        causes = meta.update_causes(new["metadata"], old.obj["metadata"])
        check = behaviour.check_status if target.subresource == "status" else behaviour.check_update
        causes += check(new, old.obj)
        if causes:
            raise invalid(resource.group, resource.kind, target.name, causes)
        return self._write(old, new, dry_run)

    def _write(self, old: Stored, new: Json, dry_run: bool) -> Written:
        """Store `new`, unless it is what is stored; end a dying object that nothing holds any more."""
        if new == old.obj:
            return Written(200, old, False)
        ended = _may_end(old.resource, new)
        if dry_run:
            return Written(200, Stored(old.resource, old.key, new, old.version), False)
        stored = self.store.remove(old, new) if ended else self.store.put(old.resource, new)
        return Written(200, stored, True, stored)

    # -- delete ------------------------------------------------------------------------------------------------------

    def delete(self, target: Target, options: Mapping[str, Any], *, dry_run: bool = False, agent: str = "") -> Written:
        """DELETE with the DeleteOptions `gracePeriodSeconds` and `preconditions`."""
        resource = target.resource
        old = self.store.get(resource, target.namespace, target.name)
        if old is None:
            raise not_found(*target.about)
        check_preconditions(old, options.get("preconditions") or {})
        step = Admission(
            *("DELETE", resource, "", target.namespace, target.name),
            *(None, old.obj, self.store, dry_run, agent),
        )
        admit(self.steps, step)
        asked = options.get("gracePeriodSeconds")
        grace = resource.behaviour.grace(old.obj, None if asked is None else int(asked))
        dying = self._dying(old, grace or 0)
        if _may_end(resource, dying) and not dry_run:
            # Whatever ends gracefully is seen to be dying first, even if it ends at once.
            seen = old if grace is None or dying is old.obj else self.store.put(resource, dying)
            ended = self.store.remove(seen)
            answer = ended if resource.returns_deleted else success(_deleted_details(ended))
            return Written(200, answer, True, ended)
        if _may_end(resource, dying):
            return Written(200, old if resource.returns_deleted else success(_deleted_details(old)), False)
        return self._write(old, dying, dry_run)

    def _dying(self, old: Stored, grace: int) -> Json:
        """`old` with its deletion begun, or brought forward; a later end than the present one changes nothing."""
        metadata = old.obj["metadata"]
        begun = "deletionTimestamp" in metadata
        if begun and int(metadata.get("deletionGracePeriodSeconds") or 0) <= grace:
            return old.obj
        changed = {**metadata, "deletionGracePeriodSeconds": grace}
        changed["deletionTimestamp"] = format_time(self.store.moment() + timedelta(seconds=grace))
        if not begun and "generation" in metadata:
            changed["generation"] = int(metadata["generation"]) + 1
        return old.resource.behaviour.dying({**old.obj, "metadata": changed})

    # -- bind --------------------------------------------------------------------------------------------------------

    def bind(self, target: Target, body: Any, *, dry_run: bool = False, agent: str = "") -> Written:
        """POST pods/NAME/binding. metadata.uid and metadata.resourceVersion of the body are preconditions."""
        if not isinstance(body, dict) or meta.shape_fault(body) or body.get("kind", "Binding") != "Binding":
            raise bad_request("the object provided is unrecognized (must be of type Binding)")
        given, node = mapping(body, "metadata"), mapping(body, "target").get("name")
        if given.get("name") != target.name:
            raise bad_request("name in URL does not match name in Binding object")
        if given.get("namespace", target.namespace) not in ("", target.namespace):
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if mapping(body, "target").get("kind", "Node") not in ("", "Node"):
            raise bare('target.kind: Unsupported value: supported values: "Node", "<empty>"')
        if not node:
            raise bare("target.name: Required value")
        self.enter(target, dry_run=dry_run, agent=agent)
        old = self.store.get(target.resource, target.namespace, target.name)
        if old is None:
            raise not_found(*target.about)
        wanted = {field: given.get(field) for field in ("uid", "resourceVersion")}
        for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            stored_value = str(old.obj["metadata"][field])
            if wanted[field] and wanted[field] != stored_value:
                raise precondition_failed(target, label, str(wanted[field]), stored_value)
        if why := _unbindable(old):
            raise conflict("", "pods/binding", target.name, why)
        new = self._bound(old, str(node), given)
        step = Admission(
            *("CREATE", target.resource, "binding", target.namespace, target.name),
            *(new, old.obj, self.store, dry_run, agent),
        )
        admit(self.steps, step)
        written = self._write(old, new, dry_run)
        return Written(201, success(code=201), written.applied, written.stored)

    def enter(self, target: Target, *, dry_run: bool, agent: str) -> None:
        """What admission says of the namespace: binds and evictions are creates, refused unread."""
        request = Admission(
            *("CREATE", target.resource, "", target.namespace, target.name),
            *(None, None, self.store, dry_run, agent),
        )
        admit(self.steps[: self.steps.index(namespace_exists) + 1], request)

    def _bound(self, old: Stored, node: str, given: Json) -> Json:
        """The Pod on its node, with the binding's labels and annotations; its generation stays."""
        metadata = old.obj["metadata"]
        for field in ("labels", "annotations"):
            if given.get(field):
                metadata = {**metadata, field: {**mapping(metadata, field), **given[field]}}
        status = {key: value for key, value in mapping(old.obj, "status").items() if key != "nominatedNodeName"}
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        scheduled["lastTransitionTime"] = self.store.timestamp()
        status["conditions"] = with_condition(status.get("conditions"), scheduled)
        spec = {**mapping(old.obj, "spec"), "nodeName": node}
        return {**old.obj, "metadata": metadata, "spec": spec, "status": status}


def _check_place(target: Target, given: Json) -> None:
    """400 for a body that is for another object than the path."""
    if given.get("name", target.name) != target.name:
        message = f"the name of the object ({given['name']}) does not match the name on the URL ({target.name})"
        raise bad_request(message)
    if target.resource.namespaced and given.get("namespace", target.namespace) != target.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")


def _with_status_of(resource: Resource, new: Json, old: Json) -> Json:
    """`new` with `old`'s status, where the main resource ignores changes of it."""
    if not resource.status:
        return dict(new)
    result = {key: value for key, value in new.items() if key != "status"}
    if "status" in old:
        result["status"] = old["status"]
    return result


def _may_end(resource: Resource, obj: Json) -> bool:
    """A dying object ends as soon as its grace period is 0 and nothing holds it."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("deletionGracePeriodSeconds"):
        return False
    return not metadata.get("finalizers") and not resource.behaviour.held(obj)


def _unbindable(pod: Stored) -> str | None:
    """Why a Pod can't be bound, or None."""
    name = pod.key[1]
    if "deletionTimestamp" in pod.obj["metadata"]:
        return f"pod {name} is being deleted, cannot be assigned to a host"
    spec = mapping(pod.obj, "spec")
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return None


def precondition_failed(target: Target, what: str, wanted: str, stored: str) -> StatusError:
    """409 as storage says it, for a PUT or a bind that is meant for another object or version."""
    resource = target.resource
    prefix = f"/registry/{resource.group}/" if resource.group else "/registry/"
    key = prefix + "/".join(part for part in (resource.plural, target.namespace, target.name) if part)
    why = (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {stored}"
    )
    return conflict(*target.about, why)


def check_preconditions(old: Stored, wanted: Mapping[str, Any]) -> None:
    """409, which names the kind and not its plural, if the object is another one than a deletion is meant for."""
    resource = old.resource
    for field, label, why in (
        ("uid", "UID", "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "modified"),
    ):
        given, stored = wanted.get(field), old.obj["metadata"][field]
        if given and given != stored:
            fault = f"the {label} in the precondition ({given}) does not match the {label} in record ({stored})."
            raise conflict(resource.group, resource.kind, old.key[1], f"{fault} The object might have been {why}")


def _deleted_details(stored: Stored) -> Json:
    resource = stored.resource
    details: Json = {"name": stored.key[1]}
    if resource.group:
        details["group"] = resource.group
    return {**details, "kind": resource.plural, "uid": stored.uid}
