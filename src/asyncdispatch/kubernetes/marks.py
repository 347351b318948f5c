"""Our mark on what we create: how a create recognises its own object after a lost answer or a restart (rule R5). Pure.

The annotation `asyncdispatch.dev/idempotency-key` holds the call's key. An object whose name the server chooses can
only be found again by listing, so it carries a label of the same name as well: the key itself where that makes a legal
label value, else a digest of it (the annotation then says for certain).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.objects import Json, field_of

__all__ = ["MARK", "checked_key", "is_dying", "is_marked", "label_of", "marked", "ours", "selector"]

MARK = "asyncdispatch.dev/idempotency-key"

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def checked_key(key: Any) -> str | None:
    """The key as it is written into objects; `ConfigurationError` unless it is None or a string that is not empty."""
    if key is None or (isinstance(key, str) and key):
        return key
    raise ConfigurationError("idempotency_key", key, "of a create must be a string: it is written into the object")


def label_of(key: str) -> str:
    """`key` as a label value."""
    return key if _LABEL_VALUE.fullmatch(key) else f"sha256-{hashlib.sha256(key.encode()).hexdigest()[:56]}"


def selector(key: str) -> str:
    """The label selector that finds the objects created with `key` under names that the server chose."""
    return f"{MARK}={label_of(key)}"


def marked(obj: Json, key: str, *, label: bool) -> Json:
    """A copy of `obj` with the annotation, and with the label if asked for."""
    meta = dict(obj.get("metadata") or {})
    meta["annotations"] = {**(meta.get("annotations") or {}), MARK: key}
    if label:
        meta["labels"] = {**(meta.get("labels") or {}), MARK: label_of(key)}
    return {**obj, "metadata": meta}


def is_marked(obj: Any, key: str) -> bool:
    """`obj` was created by a call with this key."""
    return bool(field_of(obj, "metadata", "annotations", MARK) == key)


def is_dying(obj: Any) -> bool:
    """`obj` is being deleted, and only still there because something holds it."""
    return field_of(obj, "metadata", "deletionTimestamp") is not None


def ours(objects: Iterable[Json], key: str) -> Json | None:
    """Of a list, the object created with `key`: the oldest one that lives, else the oldest that is being deleted."""
    found = [obj for obj in objects if is_marked(obj, key)]
    return min(found, key=_age, default=None)


def _age(obj: Json) -> tuple[bool, str]:
    return is_dying(obj), str(field_of(obj, "metadata", "creationTimestamp"))
