"""What a request of a generated client means: read from its method, path, query and body. Pure.

A path names an object or a collection; the body and the query add fences. Together they say what a call needs: its
type, target, effect and version, and whether it may be sent a second time when nobody knows what became of the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from asyncdispatch.calls import Effect, ObjectRef
from asyncdispatch.kubernetes.objects import field_of
from asyncdispatch.kubernetes.resources import builtin_kind

__all__ = ["Operation", "Place", "is_stream", "kind_known", "operation_of", "place_of", "server_operation"]

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """What a path names. `name` is None for a collection, `subresource` is empty for the object itself."""

    api_version: str
    plural: str
    namespace: str | None
    name: str | None
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a request does. `repeatable`: it may be sent again when it may have been applied already.

    `removes`: it deletes or evicts one object. `node` is where a binding binds to; None for everything else.
    """

    call_type: str
    target: ObjectRef
    effect: Effect
    version: str | None = None
    repeatable: bool = True
    plural: str | None = None
    removes: bool = False
    node: str | None = None


def place_of(path: str) -> Place | None:
    """The place that `path` (quoted, without host and query) names; None for paths that are no resource's."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= 3:
        api_version, rest = parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        api_version, rest = f"{parts[1]}/{parts[2]}", parts[3:]
    else:
        return None
    namespace = None
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if not all(rest):
        return None
    name = rest[1] if len(rest) > 1 else None
    return Place(api_version, rest[0], namespace, name, "/".join(rest[2:]))


# -- what passes straight through -------------------------------------------------------------------------------------

_STREAMS = frozenset({"attach", "exec", "portforward", "proxy"})


def is_stream(path: str, place: Place | None, query: Query) -> bool:
    """True for what has no single answer to wait for: watches, followed logs, exec, attach, port-forward, proxies."""
    if _flag(query, "watch") or _flag(query, "follow"):
        return True
    if path.startswith("/logs"):
        return True  # files of the server, of any size
    return place is not None and place.subresource.partition("/")[0] in _STREAMS


def _flag(query: Query, name: str) -> bool:
    return query.get(name, "").lower() in ("1", "t", "true")


# -- kinds ------------------------------------------------------------------------------------------------------------

# Answered, never stored: such an object has no name, and asking twice does no harm.
_REVIEWS = {
    "localsubjectaccessreviews": "LocalSubjectAccessReview",
    "selfsubjectaccessreviews": "SelfSubjectAccessReview",
    "selfsubjectreviews": "SelfSubjectReview",
    "selfsubjectrulesreviews": "SelfSubjectRulesReview",
    "subjectaccessreviews": "SubjectAccessReview",
    "tokenreviews": "TokenReview",
}
_REVIEW_GROUPS = ("authentication.k8s.io", "authorization.k8s.io")


def kind_known(place: Place, body: Any) -> str | None:
    """The kind of the object at `place`, from the table of built-in kinds or from the body; None: ask the server."""
    if (kind := builtin_kind(place.api_version, place.plural)) is not None:
        return kind
    if _is_review(place):
        return _REVIEWS.get(place.plural)
    if _binds(place):
        return "Pod"
    if not place.subresource and field_of(body, "apiVersion") == place.api_version:
        kind = field_of(body, "kind")
        if isinstance(kind, str) and kind and kind != "DeleteOptions":
            return kind
    return None


def _is_review(place: Place) -> bool:
    return place.name is None and place.api_version.rpartition("/")[0] in _REVIEW_GROUPS


def _binds(place: Place) -> bool:
    """A POST here binds a Pod: its subresource, or the collection of bindings."""
    where = (place.plural, place.subresource)
    return place.api_version == "v1" and (where == ("pods", "binding") or where == ("bindings", ""))


# -- operations -------------------------------------------------------------------------------------------------------


def server_operation(method: str, path: str) -> Operation:
    """A question to the server itself: its version, health, discovery."""
    effect = Effect.READ if method in _READS else Effect.IDEMPOTENT_WRITE
    return Operation("server_read", ObjectRef("v1", "Server", None, path), effect, repeatable=effect is Effect.READ)


def operation_of(method: str, place: Place, kind: str, query: Query, body: Any) -> Operation:
    """What the request means for the object, or the collection, at `place`."""
    binds = method == "POST" and _binds(place)
    named = place.name or (field_of(body, "metadata", "name") if method == "POST" else None)
    if not isinstance(named, str) or not named:
        prefix = field_of(body, "metadata", "generateName") if method == "POST" else None
        named = f"{prefix if isinstance(prefix, str) else ''}*"
    uid, version = _fences(method, place, binds, query, body)
    return Operation(
        _call_type(method, place, kind, binds),
        ObjectRef(place.api_version, kind, place.namespace, named, uid),
        _effect(method, place, binds, query),
        version,
        _repeatable(method, place, uid, version, body),
        place.plural,
        _removes(method, place),
        _text(field_of(body, "target", "name")) if binds else None,
    )


_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_VERBS = {"POST": "create", "PUT": "replace", "PATCH": "patch", "DELETE": "delete"}


def _call_type(method: str, place: Place, kind: str, binds: bool) -> str:
    noun = snake(kind)
    if binds:
        return f"{noun}_binding"
    subresource = place.subresource.replace("/", "_")
    if method == "POST" and subresource:
        return f"{noun}_{subresource}"
    verb = _VERBS.get(method, "read")
    if place.name is None:
        verb = {"read": "list", "delete": "delete_collection"}.get(verb, verb)
    return f"{noun}_{subresource}_{verb}" if subresource else f"{noun}_{verb}"


_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def snake(kind: str) -> str:
    """PersistentVolumeClaim → persistent_volume_claim, CSINode → csi_node."""
    return _WORDS.sub("_", kind).lower()


def _effect(method: str, place: Place, binds: bool, query: Query) -> Effect:
    """A dry run changes nothing, so it neither waits for other writes nor supersedes them."""
    if method in _READS or query.get("dryRun"):
        return Effect.READ
    if method != "POST" or binds or place.subresource or place.name or _is_review(place):
        return Effect.IDEMPOTENT_WRITE
    return Effect.CREATE


def _fences(method: str, place: Place, binds: bool, query: Query, body: Any) -> tuple[str | None, str | None]:
    """Uid and resourceVersion that the request asks for (a read) or requires (a write)."""
    if method in _READS:
        return None, query.get("resourceVersion") or None
    if method == "DELETE":
        found = field_of(body, "preconditions")
    elif method == "POST" and place.subresource == "eviction":
        found = field_of(body, "deleteOptions", "preconditions")
    elif method == "PATCH" and isinstance(body, list):
        tests = {op.get("path"): op.get("value") for op in body if isinstance(op, dict) and op.get("op") == "test"}
        return _text(tests.get("/metadata/uid")), _text(tests.get("/metadata/resourceVersion"))
    elif method != "POST" or binds:
        found = field_of(body, "metadata")
    else:
        return None, None
    return _text(field_of(found, "uid")), _text(field_of(found, "resourceVersion"))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# Subresources of which a PUT or PATCH says what is to be. Elsewhere it may as well say what is to happen (a restart).
_STATES = frozenset({"", "approval", "ephemeralcontainers", "finalize", "resize", "scale", "status"})


def _repeatable(method: str, place: Place, uid: str | None, version: str | None, body: Any) -> bool:
    """May it be sent again when the first one may have been applied?

    Not what removes an object by its name alone: by the time of the second request, another may have the name. Not a
    JSON patch that moves what it points at. A fence makes either safe.
    """
    if method in _READS:
        return True
    if method == "DELETE" or _removes(method, place):
        return uid is not None or version is not None
    if method == "POST":
        return not place.subresource or place.subresource in ("binding", "token")
    if place.subresource not in _STATES:
        return False
    if method == "PATCH" and isinstance(body, list):
        return version is not None or not any(_moves(op) for op in body)
    return True


def _removes(method: str, place: Place) -> bool:
    what = "" if method == "DELETE" else "eviction" if method == "POST" else None
    return place.name is not None and place.subresource == what


_POSITION = re.compile(r".*/(-|\d+)")


def _moves(op: Any) -> bool:
    if not isinstance(op, dict) or op.get("op") in ("test", "replace"):
        return False
    return op.get("op") not in ("add", "remove") or _POSITION.fullmatch(str(op.get("path"))) is not None
