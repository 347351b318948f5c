"""The rules for `metadata` that hold for every kind."""

from __future__ import annotations

from typing import Any

from asyncdispatch.testing.apiserver.kinds import mapping, name_fault
from asyncdispatch.testing.apiserver.resources import Resource
from asyncdispatch.testing.apiserver.status import Cause, Json, bad_request, bare
from asyncdispatch.testing.apiserver.store import Store

_SERVER_OWNED = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "selfLink",
)


def check_body(resource: Resource, body: Any) -> Json:
    """`body` as an object of `resource`; 400 for anything that could not be decoded into it."""
    if not isinstance(body, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind})")
    for field, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        if body.get(field, wanted) != wanted:
            message = f"the {field} in the data ({body[field]}) does not match the expected {field} ({wanted})"
            raise bad_request(message)
    if fault := shape_fault(body):
        raise bad_request(f"{resource.kind} in version {resource.version!r} cannot be handled: {fault}")
    return body


def shape_fault(obj: Json) -> str | None:
    """Why the API server could not decode the object's common parts, or None."""
    metadata = obj.get("metadata")
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        return "json: cannot unmarshal into field metadata of type ObjectMeta"
    for field in ("labels", "annotations"):
        values = metadata.get(field)
        if values is None:
            continue
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            return f"json: cannot unmarshal into field ObjectMeta.metadata.{field} of type string"
    for field in ("name", "namespace", "uid", "resourceVersion", "generateName"):
        if not isinstance(metadata.get(field, ""), str):
            return f"json: cannot unmarshal into field ObjectMeta.metadata.{field} of type string"
    return None


def new_metadata(resource: Resource, given: Json, namespace: str, store: Store) -> tuple[Json, list[Cause]]:
    """The metadata of an object that is created, and what is wrong with it."""
    if given.get("resourceVersion") not in (None, "", "0"):
        raise bare("resourceVersion should not be set on objects to be created")
    metadata = {key: value for key, value in given.items() if key not in _SERVER_OWNED}
    if resource.namespaced:
        if metadata.get("namespace", namespace) not in ("", namespace):
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["namespace"] = namespace
    else:
        metadata.pop("namespace", None)
    prefix = metadata.get("generateName")
    if prefix and not metadata.get("name"):
        metadata["name"] = _generated(resource, namespace, str(prefix), store)
    causes = _name_causes(resource, metadata)
    metadata["uid"] = store.uid()
    metadata["creationTimestamp"] = store.timestamp()
    if resource.generation:
        metadata["generation"] = 1
    return metadata, causes


def _generated(resource: Resource, namespace: str, prefix: str, store: Store) -> str:
    """A free name that begins with `prefix`; after eight that are taken, a taken one, which the create then refuses."""
    name = ""
    for _ in range(8):
        name = f"{prefix[:58]}{store.suffix()}"
        if store.get(resource, namespace, name) is None:
            break
    return name


def _name_causes(resource: Resource, metadata: Json) -> list[Cause]:
    name = metadata.get("name")
    if not name:
        return [Cause.required("metadata.name", "name or generateName is required")]
    fault = name_fault(str(name), label=resource.behaviour.label_names)
    return [Cause.invalid("metadata.name", name, fault)] if fault else []


def settled(new: Json, old: Json) -> Json:
    """`new`'s metadata with what the client left out and may leave out taken from `old`."""
    result = {key: value for key, value in new.items() if key not in ("managedFields", "selfLink")}
    for field in ("uid", "namespace", "name"):
        if not result.get(field) and field in old:
            result[field] = old[field]
    for field in ("creationTimestamp", "generation", "resourceVersion"):
        _copy(field, old, result)
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        if field in old:
            result[field] = old[field]
    return result


def update_causes(new: Json, old: Json) -> list[Cause]:
    """Changes of metadata that no update may make."""
    causes = [
        Cause.invalid(f"metadata.{field}", new.get(field), "field is immutable")
        for field in ("name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds")
        if new.get(field) != old.get(field)
    ]
    added = [item for item in new.get("finalizers") or [] if item not in (old.get("finalizers") or [])]
    if added and old.get("deletionTimestamp"):
        why = f"no new finalizers can be added if the object is being deleted, found new finalizers {added}"
        causes.append(Cause.forbidden("metadata.finalizers", why))
    return causes


def generation_of(resource: Resource, new: Json, old: Json) -> Json:
    """`new` with its generation raised if it changes what is neither metadata nor status."""
    if not resource.generation:
        return new
    ignored = ("metadata", "status")
    if {k: v for k, v in new.items() if k not in ignored} == {k: v for k, v in old.items() if k not in ignored}:
        return new
    metadata = mapping(new, "metadata")
    return {**new, "metadata": {**metadata, "generation": int(metadata.get("generation", 1)) + 1}}


def _copy(field: str, source: Json, target: Json) -> None:
    target.pop(field, None)
    if field in source:
        target[field] = source[field]
