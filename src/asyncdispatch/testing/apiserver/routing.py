"""From method and path to what is asked: a verb and its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asyncdispatch.testing.apiserver.query import flag
from asyncdispatch.testing.apiserver.resources import Registry, Resource
from asyncdispatch.testing.apiserver.status import method_not_allowed, no_such_resource
from asyncdispatch.testing.apiserver.writing import Target


@dataclass(frozen=True, slots=True)
class Route:
    """A verb of the API and what it is about."""

    verb: str
    target: Target


_COLLECTION = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_ITEM = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SUBRESOURCE = {"GET": "get", "PUT": "update", "PATCH": "patch"}
_OF_NAMESPACES = ("status", "finalize")
_ACTIONS = {"binding": "bind", "eviction": "evict"}
"""Subresources that are only posted to, and their verbs."""


def locate(registry: Registry, path: str) -> Target | None:
    """The target of a path; None for a path that is not served."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in _OF_NAMESPACES:
        namespace, rest = rest[1], rest[2:]
    if not all(rest) or len(rest) > 3:
        return None
    if group == "" and rest == ["bindings"] and namespace:
        rest = ["pods", "", "binding"]
    resource = registry.at(group, version, rest[0])
    if resource is None or not _scope_fits(resource, namespace, len(rest)):
        return None
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(resource, namespace, name, subresource)


def _scope_fits(resource: Resource, namespace: str, depth: int) -> bool:
    """Namespaced objects stand below a namespace; their collections may be asked for across all."""
    if resource.namespaced:
        return bool(namespace) or depth == 1
    return not namespace


def route(method: str, target: Target, query: Mapping[str, str]) -> Route:
    """The verb for a target; StatusError 404 or 405 for what the resource does not offer."""
    resource, subresource = target.resource, target.subresource
    if subresource in resource.subresources:
        verb = _ACTIONS.get(subresource, "update")
        if method != ("POST" if subresource in _ACTIONS else "PUT"):
            raise method_not_allowed()
        return Route(verb, target)
    if subresource and not (subresource == "status" and resource.status):
        raise no_such_resource()
    verbs = _SUBRESOURCE if subresource else _ITEM if target.name else _COLLECTION
    found = verbs.get(method)
    across = resource.namespaced and not target.namespace
    if found is None or (across and found != "list"):
        raise method_not_allowed()
    if found == "list" and flag(query, "watch"):
        found = "watch"
    return Route(found, target)
