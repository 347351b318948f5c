"""What the server says about itself: versions, groups, resources, health."""

from __future__ import annotations

from collections.abc import Iterable

from asyncdispatch.testing.apiserver.resources import Registry, Resource
from asyncdispatch.testing.apiserver.status import Json

VERSION: Json = {"major": "1", "minor": "35", "gitVersion": "v1.35.4", "platform": "linux/amd64"}
HEALTH = ("/healthz", "/livez", "/readyz")
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def describe(registry: Registry, path: str) -> Json | str | None:
    """The document (a str as plain text) at `path`; None if there is none."""
    path = path.rstrip("/")
    if path in HEALTH:
        return "ok"
    if path == "/version":
        return VERSION
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return _groups(registry)
    found = [resource for resource in registry if resource.base == path]
    return _resources(found) if found else None


def _groups(registry: Registry) -> Json:
    versions: dict[str, list[Json]] = {}
    for resource in registry:
        entry = {"groupVersion": resource.api_version, "version": resource.version}
        known = versions.setdefault(resource.group, [])
        if entry not in known:
            known.append(entry)
    groups = [
        {"name": group, "versions": known, "preferredVersion": known[0]} for group, known in versions.items() if group
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _resources(found: Iterable[Resource]) -> Json:
    entries: list[Json] = []
    api_version = ""
    for resource in found:
        api_version = resource.api_version
        entry: Json = {
            "name": resource.plural,
            "singularName": resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
        }
        entries.append({**entry, "verbs": _VERBS})
        if resource.status:
            entries.append({**entry, "name": f"{resource.plural}/status", "verbs": ["get", "patch", "update"]})
        for subresource in resource.subresources:
            kind = subresource.capitalize()
            verb = "update" if subresource == "finalize" else "create"
            entries.append({**entry, "name": f"{resource.plural}/{subresource}", "kind": kind, "verbs": [verb]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": entries}
