"""Pure helpers on objects as JSON dicts: reading what callers hand in, and checking it. Nothing is changed in place.

A client model is accepted wherever a dict is: anything with an `attribute_map` of attribute names to JSON keys.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any, TypeVar, cast

from asyncdispatch.calls import ObjectRef, metadata_of
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.resources import check_segment

__all__ = [
    "DNS_SUBDOMAIN",
    "annotations_of",
    "checked_ref",
    "field_of",
    "node_name",
    "on_json",
    "pod_ref",
    "priority_of",
    "timestamp",
    "to_json",
]

Json = dict[str, Any]

Method = TypeVar("Method", bound=Callable[[Any, Any], Any])

DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def to_json(value: Any, label: str) -> Any:
    """A copy of `value` as plain JSON. `ConfigurationError` names `label` if it can't be written as JSON."""
    try:
        return json.loads(json.dumps(value, default=_plain, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(label, type(value).__name__, f"must be JSON or a client model: {error}") from error


def on_json(method: Method) -> Method:
    """An `apply` or `rebase_onto` for client models too: it is given their JSON.

    A model that `apply` does not change stays as it is; one that it changes becomes JSON.
    """

    @functools.wraps(method)
    def either(self: Any, obj: Any) -> Any:
        if obj is None or isinstance(obj, dict) or not isinstance(getattr(obj, "attribute_map", None), Mapping):
            return method(self, obj)
        ref = ObjectRef.of(obj)  # items of a typed list do not say their kind
        given = {"apiVersion": ref.api_version, "kind": ref.kind, **to_json(obj, "obj")}
        after = method(self, given)
        return obj if after == given else after

    return cast("Method", either)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, date):
        return value.isoformat()
    keys = getattr(value, "attribute_map", None)
    if isinstance(keys, Mapping):
        return {key: found for name, key in keys.items() if (found := getattr(value, name)) is not None}
    raise TypeError(f"it holds a {type(value).__name__}")


def timestamp(moment: datetime) -> str:
    """`moment` as the API server writes times: whole seconds of UTC. A moment without a zone is taken for UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def field_of(obj: Any, *path: str) -> Any:
    """What stands at `path` (JSON keys) in a dict or a client model, or None where any part of it is missing."""
    value = obj
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        else:
            value = getattr(value, _SNAKE.sub("_", key).lower(), None)
    return value


_SNAKE = re.compile(r"(?<=[a-z])(?=[A-Z])")


def pod_ref(pod: Any) -> ObjectRef:
    """The ref of a Pod with its uid. A Pod out of a list need not carry kind and version: what else could it be?

    Raises `ConfigurationError` for another kind, and for a Pod without name, namespace or uid.
    """
    if isinstance(pod, ObjectRef):
        ref = pod
    else:
        kind, meta = field_of(pod, "kind"), metadata_of(pod)
        if kind not in (None, "Pod"):
            raise ConfigurationError("pod.kind", kind, "must be a Pod")
        if not (name := field_of(meta, "name")):
            raise ConfigurationError("pod.metadata.name", name, f"a {type(pod).__name__} without it is no Pod: set it")
        namespace, uid = field_of(meta, "namespace") or None, field_of(meta, "uid") or None
        ref = ObjectRef("v1", "Pod", namespace, name, uid)
    if (ref.api_version, ref.kind) != ("v1", "Pod"):
        raise ConfigurationError("pod.kind", ref.kind, "must be a Pod of v1")
    if ref.namespace is None:
        raise ConfigurationError("pod.metadata.namespace", None, "set it: every Pod is in one")
    if ref.uid is None:
        remedy = "pass the Pod as the API server sent it: the uid keeps the call off a Pod recreated under its name"
        raise ConfigurationError("pod.metadata.uid", None, remedy)
    check_segment(ref.name, "pod.metadata.name")
    check_segment(ref.namespace, "pod.metadata.namespace")
    return ref


def checked_ref(obj: Any) -> ObjectRef:
    """The ref of an object whose name and namespace can stand in a path. Raises `ConfigurationError` for any other."""
    for key in () if isinstance(obj, ObjectRef) else ("name", "generateName"):
        if not isinstance(given := field_of(metadata_of(obj), key), str | None):
            raise ConfigurationError(f"metadata.{key}", given, "must be a string: put it in quotes")
    ref = ObjectRef.of(obj)
    check_segment(ref.name, "metadata.name")
    if ref.namespace is not None:
        check_segment(ref.namespace, "metadata.namespace")
    return ref


def node_name(node: Any, label: str = "node") -> str:
    """The name of a node given by name, as an object or as a ref; `ConfigurationError` if none could have it."""
    if isinstance(node, ObjectRef):
        name: Any = node.name
    elif isinstance(node, str):
        name = node
    else:
        name = field_of(metadata_of(node), "name")
    if not isinstance(name, str) or len(name) > 253 or not DNS_SUBDOMAIN.fullmatch(name):
        shown = name if isinstance(name, str) else type(node).__name__
        remedy = "must be a node's name: lower-case letters, digits, '-' and '.', at most 253 of them"
        raise ConfigurationError(label, shown, remedy)
    return name


def priority_of(obj: Any) -> int:
    """A Pod's priority, which admission has written into its spec; 0 for everything that has none."""
    priority = field_of(obj, "spec", "priority")
    return priority if isinstance(priority, int) and not isinstance(priority, bool) else 0


def annotations_of(annotations: Any, label: str = "annotations") -> dict[str, str]:
    """A copy of `annotations`; `ConfigurationError` unless it is a mapping of strings to strings, or None."""
    if annotations is None:
        return {}
    if not isinstance(annotations, Mapping):
        raise ConfigurationError(label, annotations, "must be a mapping of strings to strings")
    for key, value in annotations.items():
        if not isinstance(key, str) or not key or not isinstance(value, str):
            raise ConfigurationError(f"{label}[{key!r}]", value, "keys and values must be strings")
    return dict(annotations)
