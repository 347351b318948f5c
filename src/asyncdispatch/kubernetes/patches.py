"""Patch documents as values: checking them, and what they do to an object. Pure.

Three kinds, by what the caller hands in: a mapping is a JSON merge patch (RFC 7386), or a strategic merge patch on
request; a list is a JSON Patch (RFC 6902). What replaces a whole list, or names a place in one, is decided on the
object as it was seen: `hazard` tells where, and such a patch needs a version (rule R21).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import jsonpatch
from jsonpointer import JsonPointer, JsonPointerException  # type: ignore[import-untyped,unused-ignore]

from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.objects import Json, to_json
from asyncdispatch.kubernetes.resources import builtin
from asyncdispatch.kubernetes.transport import MERGE_PATCH, STRATEGIC_MERGE_PATCH

__all__ = ["JSON_PATCH", "MERGED_LISTS", "Change", "JsonPatch", "MergePatch", "StrategicPatch", "change_of", "merge"]

JSON_PATCH = "application/json-patch+json"


def merge(obj: Any, patch: Any) -> Any:
    """`obj` after the merge patch: mappings are merged, null removes, everything else replaces (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(obj) if isinstance(obj, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def composed(earlier: Json, later: Json) -> Json | None:
    """One merge patch that does what `earlier`, then `later`, does to any object; None if there is none.

    There is none where `earlier` removes or replaces what `later` merges into: a merge patch can't say "from nothing".
    """
    result = dict(earlier)
    for key, value in later.items():
        if key not in earlier or not isinstance(value, dict):
            result[key] = value
        elif not isinstance(earlier[key], dict) or (both := composed(earlier[key], value)) is None:
            return None
        else:
            result[key] = both
    return result


@dataclass(frozen=True, slots=True, repr=False)
class Change:
    """One patch document: how it is sent, and what it does. See `change_of`."""

    document: Any
    content_type: ClassVar[str] = ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"  # and nothing of the document: there may be a secret in it

    def fenced(self, uid: str | None, version: str | None) -> Any:
        """The body to send: the document with its preconditions. A stale version answers 409, another uid 422."""
        raise NotImplementedError

    def hazard(self, ref: ObjectRef) -> str | None:
        """The first path at which it replaces a list, or names a place in one: what others put there is at risk."""
        raise NotImplementedError

    def fields(self) -> Iterator[str]:
        """The top-level fields of the object that it writes to."""
        raise NotImplementedError

    def own_fence(self, ref: ObjectRef, call_fields: dict[str, Any]) -> ObjectRef:
        """The preconditions that the document itself states, taken for the call's: the ref to use, and its version."""
        return ref

    def apply(self, obj: Json) -> Json | None:
        """A copy of `obj` with the change; None if that can't be told here."""
        return None

    def shown_by(self, obj: Json) -> bool:
        """`obj`, which is whole, shows all that the change would do."""
        return self.apply(obj) == obj

    def then(self, later: Change) -> Change | None:
        """One change that does what this one, then `later`, does to any object; None if there is none."""
        return None


class MergePatch(Change):
    """A JSON merge patch."""

    __slots__ = ()
    content_type: ClassVar[str] = MERGE_PATCH

    def fenced(self, uid: str | None, version: str | None) -> Json:
        given = {"uid": uid, "resourceVersion": version}
        metadata = {**self.document.get("metadata", {}), **{key: value for key, value in given.items() if value}}
        return {**self.document, "metadata": metadata} if metadata else dict(self.document)

    def hazard(self, ref: ObjectRef) -> str | None:
        return next((".".join(path) for path, _ in _lists(self.document, ())), None)

    def fields(self) -> Iterator[str]:
        return iter(self.document)

    def own_fence(self, ref: ObjectRef, call_fields: dict[str, Any]) -> ObjectRef:
        metadata = self.document.get("metadata", {})
        uid, version = metadata.get("uid"), metadata.get("resourceVersion")
        if version and call_fields.setdefault("version", version) not in (None, version):
            raise ConfigurationError("patch.metadata.resourceVersion", version, "differs from the call's version")
        if uid and ref.uid not in (None, uid):
            raise ConfigurationError("patch.metadata.uid", uid, f"differs from that of the object, {ref.uid}")
        return dataclasses.replace(ref, uid=uid) if uid and ref.uid is None else ref

    def apply(self, obj: Json) -> Json | None:
        result: Json = merge(obj, self.document)
        return result

    def then(self, later: Change) -> Change | None:
        if type(later) is not type(self):
            return None
        both = composed(self.document, later.document)
        return None if both is None else type(self)(both)


class StrategicPatch(MergePatch):
    """A strategic merge patch: as a merge patch, but the server merges some lists item by item.

    What the server makes of lists and of `$` directives is not computed here: such a patch is shown by nothing.
    """

    __slots__ = ()
    content_type: ClassVar[str] = STRATEGIC_MERGE_PATCH

    def hazard(self, ref: ObjectRef) -> str | None:
        known = MERGED_LISTS if ref.api_version in _TAGGED else _METADATA_LISTS
        return next((".".join(path) for path, _ in _lists(self.document, (), known)), None)

    def apply(self, obj: Json) -> Json | None:
        return super().apply(obj) if self._plain else None

    def then(self, later: Change) -> Change | None:
        return super().then(later) if self._plain and isinstance(later, StrategicPatch) and later._plain else None

    @property
    def _plain(self) -> bool:
        return not _directive(self.document) and next(_lists(self.document, ()), None) is None


class JsonPatch(Change):
    """A JSON Patch: a list of operations, all or none of them."""

    __slots__ = ()
    content_type: ClassVar[str] = JSON_PATCH

    def fenced(self, uid: str | None, version: str | None) -> list[Json]:
        # Written, not tested: a failed test is a 422 like any other, a fence in the metadata says which it was.
        given = {"uid": uid, "resourceVersion": version}
        fences = [{"op": "add", "path": f"/metadata/{key}", "value": value} for key, value in given.items() if value]
        return [*fences, *self.document]

    def hazard(self, ref: ObjectRef) -> str | None:
        for index, step in enumerate(self.document):
            if step["op"] == "test":
                continue
            named = [*_segments(step["path"]), *_segments(step.get("from", ""))]
            if step["op"] == "move" or any(part == "-" or part.isdecimal() for part in named):
                return f"{index}.path"
            if next(_lists(step.get("value"), ()), None) is not None:
                return f"{index}.value"
        return None

    def fields(self) -> Iterator[str]:
        return (_segments(step["path"])[0] for step in self.document if step["op"] != "test")

    def apply(self, obj: Json) -> Json | None:
        return _patched(self.document, obj)

    def shown_by(self, obj: Json) -> bool:
        """Tests aside, which were about the object before; what was removed may be gone already."""
        steps = [step for step in self.document if step["op"] != "test"]
        left = [step for step in steps if step["op"] != "remove" or _present(obj, step["path"])]
        return _patched(left, obj) == obj


def change_of(patch: Any, ref: ObjectRef, *, strategic: bool = False, subresource: str = "") -> Change:
    """`patch` (a mapping, a client model, or a list of operations) as a change of the object `ref`.

    `ConfigurationError` for what is no patch, can't be written as JSON, is of a kind that the server refuses (415), or
    writes to what the server ignores there. No message tells a value: there may be a secret in it.
    """
    document = to_json(patch, "patch")
    if not isinstance(document, (dict, list)):
        kind, remedy = type(patch).__name__, "must be a mapping (merge patch), or a list of operations (JSON Patch)"
        raise ConfigurationError("patch", kind, remedy)
    if not document:
        raise ConfigurationError("patch", document, "there is nothing to patch: give what is to change")
    if isinstance(document, list):
        if strategic:
            raise ConfigurationError("strategic", True, "a list of operations is a JSON Patch: give a mapping")
        change: Change = JsonPatch([_checked_step(step, index) for index, step in enumerate(document)])
    else:
        if strategic and builtin(ref) is None:
            remedy = "is for built-in kinds: the server refuses it for custom resources (415); use a merge patch"
            raise ConfigurationError("strategic", True, remedy)
        if not isinstance(document.get("metadata", {}), dict):
            raise ConfigurationError("patch.metadata", type(document["metadata"]).__name__, "must be a mapping")
        change = (StrategicPatch if strategic else MergePatch)(document)
    _check_fields(change, ref, subresource)
    return change


def _check_fields(change: Change, ref: ObjectRef, subresource: str) -> None:
    """The server drops these in silence: a status that is sent to the object, and all else that is sent to `status`."""
    for name in change.fields():
        if subresource == "status" and name not in ("status", "metadata", "apiVersion", "kind"):
            raise ConfigurationError(f"patch.{name}", "…", "is ignored under subresource='status': leave it out")
        if not subresource and name == "status" and builtin(ref) is not None:
            raise ConfigurationError("patch.status", "…", "is ignored there: patch with subresource='status'")


_OPERANDS = {"add": "value", "replace": "value", "test": "value", "remove": "path", "move": "from", "copy": "from"}


def _checked_step(step: Any, index: int) -> Json:
    place = f"patch[{index}]"
    if not isinstance(step, dict):
        raise ConfigurationError(place, type(step).__name__, "must be an operation: a mapping with op and path")
    name = step.get("op")
    if not isinstance(name, str) or name not in _OPERANDS:
        raise ConfigurationError(f"{place}.op", name, f"must be one of {', '.join(_OPERANDS)}")
    if _OPERANDS[name] not in step:
        raise ConfigurationError(f"{place}.{_OPERANDS[name]}", None, f"an operation {name!r} needs it")
    for key in ("path", "from"):
        pointer = step.get(key, "/" if key == "from" else None)
        if not isinstance(pointer, str) or not pointer.startswith("/"):
            remedy = "must be a JSON pointer below the object itself: '/metadata/labels/x'"
            raise ConfigurationError(f"{place}.{key}", pointer, remedy)
        try:
            JsonPointer(pointer)
        except JsonPointerException as error:
            raise ConfigurationError(f"{place}.{key}", pointer, f"must be a JSON pointer: {error}") from error
    return step


# -- lists --------------------------------------------------------------------------------------------------------

_METADATA_LISTS = frozenset({("metadata", "finalizers"), ("metadata", "ownerReferences")})
MERGED_LISTS = _METADATA_LISTS | {
    *(("status", name) for name in ("conditions", "addresses", "podIPs", "hostIPs", "resourceClaimStatuses")),
    *(("spec", name) for name in ("containers", "initContainers", "ephemeralContainers", "volumes")),
    *(("spec", name) for name in ("imagePullSecrets", "hostAliases", "schedulingGates", "topologySpreadConstraints")),
    *(("spec", name) for name in ("resourceClaims", "podCIDRs", "ports")),
    *(("containers", name) for name in ("ports", "env", "volumeMounts", "volumeDevices")),
    *(("initContainers", name) for name in ("ports", "env", "volumeMounts", "volumeDevices")),
}
"""(parent field, field) of lists that the server merges item by item in a strategic merge patch."""

_TAGGED = frozenset({"v1", "apps/v1", "batch/v1", "policy/v1"})
"""The groups whose types say so for more than their metadata."""


def _lists(
    value: Any, path: tuple[str, ...], merged: frozenset[tuple[str, ...]] = frozenset()
) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Every list in `value` with its path, but for those in `merged`, which are looked into."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _lists(item, (*path, key), merged)
    elif isinstance(value, list):
        if path[-2:] not in merged:
            yield path, value
            return
        for item in value:
            if isinstance(item, dict):
                yield from _lists(item, path, merged)


def _directive(value: Any) -> bool:
    return isinstance(value, dict) and any(key.startswith("$") or _directive(item) for key, item in value.items())


# -- JSON Patch ---------------------------------------------------------------------------------------------------


def _segments(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _patched(steps: list[Json], obj: Json) -> Json | None:
    """`obj` after the operations; None if one of them can't be done on it."""
    try:
        result = jsonpatch.apply_patch(obj, steps)
    except (jsonpatch.JsonPatchException, JsonPointerException, KeyError, TypeError, IndexError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def _present(obj: Json, pointer: str) -> bool:
    missing = object()
    try:
        return JsonPointer(pointer).resolve(obj, missing) is not missing
    except (JsonPointerException, TypeError):
        return False
