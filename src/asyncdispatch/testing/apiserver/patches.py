"""The three kinds of patch, as functions from (object, patch) to a new object that shares what is the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jsonpatch
from jsonpointer import JsonPointerException  # type: ignore[import-untyped,unused-ignore]

from asyncdispatch.testing.apiserver.status import Json, bad_request, bare, patch_refused

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
APPLY_TYPES = (APPLY, "application/apply-patch+cbor")

PRIMITIVE = ""
"""The merge key of a list of plain values: the patch's values are added to it."""

MERGE_KEYS: Mapping[tuple[str, ...], str] = {
    ("metadata", "ownerReferences"): "uid",
    ("metadata", "finalizers"): PRIMITIVE,
    ("status", "conditions"): "type",
    ("status", "addresses"): "type",
    ("status", "podIPs"): "ip",
    ("status", "hostIPs"): "ip",
    ("status", "resourceClaimStatuses"): "name",
    ("spec", "containers"): "name",
    ("spec", "initContainers"): "name",
    ("spec", "ephemeralContainers"): "name",
    ("spec", "volumes"): "name",
    ("spec", "imagePullSecrets"): "name",
    ("spec", "hostAliases"): "ip",
    ("spec", "schedulingGates"): "name",
    ("spec", "topologySpreadConstraints"): "topologyKey",
    ("spec", "resourceClaims"): "name",
    ("spec", "podCIDRs"): PRIMITIVE,
    ("spec", "ports"): "port",
    ("containers", "ports"): "containerPort",
    ("containers", "env"): "name",
    ("containers", "volumeMounts"): "mountPath",
    ("containers", "volumeDevices"): "devicePath",
    ("initContainers", "ports"): "containerPort",
    ("initContainers", "env"): "name",
    ("initContainers", "volumeMounts"): "mountPath",
    ("initContainers", "volumeDevices"): "devicePath",
}
"""By what the items of a list are matched, for (parent field, field). A list that is not here is replaced whole;
tolerations and taints are among those, in the real server too."""

_DIRECTIVES = ("$patch", "$retainKeys")
_DELETE_VALUES = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def apply(content_type: str, obj: Json, patch: Any) -> Json:
    """`obj` changed by `patch`. StatusError 400 for a patch of the wrong shape, 422 for one that cannot be applied."""
    return _APPLY[content_type](obj, patch)


def accepted(custom: bool) -> tuple[str, ...]:
    """The content types that a PATCH may have. Server-side apply is not among them."""
    return (JSON_PATCH, MERGE) if custom else (JSON_PATCH, MERGE, STRATEGIC)


def merge(obj: Json, patch: Any) -> Json:
    """JSON merge patch: mappings are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: a merge patch must be a JSON object")
    return _merged(obj, patch)


def _merged(old: Json, patch: Json) -> Json:
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = _merged(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result


def strategic(obj: Json, patch: Any) -> Json:
    """Strategic merge patch: like a merge patch, but lists named in MERGE_KEYS are merged item by item."""
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: a strategic merge patch must be a JSON object")
    return _merge_mapping(obj, patch, ())


def _merge_mapping(old: Json, patch: Json, path: tuple[str, ...]) -> Json:
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    retain = patch.get("$retainKeys")
    if directive == "replace":
        old = {}
    result = dict(old) if retain is None else {key: value for key, value in old.items() if key in retain}
    for key, value in patch.items():
        if key in _DIRECTIVES or key.startswith(_ORDER):
            continue
        if key.startswith(_DELETE_VALUES):
            field = key.removeprefix(_DELETE_VALUES)
            result[field] = [item for item in result.get(field) or [] if item not in value]
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = _merge_mapping(before if isinstance(before, dict) else {}, value, (*path, key))
        elif isinstance(value, list):
            result[key] = _merge_list(result.get(key), value, (*path, key))
        else:
            result[key] = value
    return result


def _merge_list(old: Any, patch: list[Any], path: tuple[str, ...]) -> list[Any]:
    key = MERGE_KEYS.get(path[-2:])
    before = list(old) if isinstance(old, list) else []
    if key is None:
        return patch
    if key == PRIMITIVE:
        merged = before + [item for item in patch if item not in before]
        return _in_order(merged, before, patch, lambda item: item)
    if any(isinstance(item, dict) and item == {"$patch": "replace"} for item in patch):
        before, patch = [], [item for item in patch if item != {"$patch": "replace"}]
    merged = before
    for item in patch:
        merged = _merge_item(merged, item, key, path)
    return _in_order(merged, before, patch, lambda item: item.get(key))


def _in_order(merged: list[Any], before: list[Any], patch: list[Any], key: Callable[[Any], Any]) -> list[Any]:
    """`merged` as two rows made one: what the patch names, in its order, and the rest; what is new goes ahead.

    A row's next item goes first if it was there before the other row's next one.
    """
    wanted = {key(item): index for index, item in reversed(list(enumerate(patch)))}
    place = {key(item): index for index, item in reversed(list(enumerate(before)))}
    named = sorted((item for item in merged if key(item) in wanted), key=lambda item: wanted[key(item)])
    rest = [item for item in merged if key(item) not in wanted]
    result: list[Any] = []
    while named and rest:
        result.append(named.pop(0) if place.get(key(named[0]), -1) < place[key(rest[0])] else rest.pop(0))
    return [*result, *named, *rest]


def _merge_item(items: list[Any], patch: Any, key: str, path: tuple[str, ...]) -> list[Any]:
    if not isinstance(patch, dict) or key not in patch:
        raise bare(f"map: {patch} does not contain declared merge key: {key}")
    if patch.get("$patch") == "delete":
        return [item for item in items if item.get(key) != patch[key]]
    for index, item in enumerate(items):
        if item.get(key) == patch[key]:
            return [*items[:index], _merge_mapping(item, patch, path), *items[index + 1 :]]
    return [*items, _merge_mapping({}, patch, path)]


def json_patch(obj: Json, patch: Any) -> Json:
    """JSON Patch. A failed `test` looks like any other patch that cannot be applied: 422 with no cause."""
    if not isinstance(patch, list) or not all(isinstance(step, dict) for step in patch):
        raise bad_request("error decoding patch: a JSON Patch must be a JSON array of objects")
    try:
        result = jsonpatch.JsonPatch(patch).apply(obj)
    except (
        jsonpatch.InvalidJsonPatch,
        jsonpatch.JsonPatchException,
        JsonPointerException,
        KeyError,
        TypeError,
        IndexError,
    ) as error:
        raise patch_refused() from error
    if not isinstance(result, dict):
        raise patch_refused()
    return result


_APPLY: Mapping[str, Callable[[Json, Any], Json]] = {MERGE: merge, STRATEGIC: strategic, JSON_PATCH: json_patch}


def without_nulls(value: Any) -> Any:
    """`value` as a typed server reads it: a null is the same as an absent field."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
