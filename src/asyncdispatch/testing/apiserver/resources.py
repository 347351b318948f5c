"""Which resources the server serves: one table, open for more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from asyncdispatch.testing.apiserver.kinds import (
    Behaviour,
    BudgetBehaviour,
    CustomBehaviour,
    NamespaceBehaviour,
    PhaseBehaviour,
    PodBehaviour,
)
from asyncdispatch.testing.apiserver.status import Json

Path = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Resource:
    """One resource, as the API server describes it. Compared by identity; a registry never holds two of a kind."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    status: bool = False
    """It has a `/status` subresource, and its main resource ignores changes of the status."""
    custom: bool = False
    """Defined by a CustomResourceDefinition: no strategic merge patch, items of lists keep apiVersion and kind."""
    generation: bool = False
    """metadata.generation counts changes of what is neither metadata nor status."""
    status_on_create: bool = False
    """A status given at creation is kept."""
    unconditional_update: bool = True
    """A PUT without a resourceVersion overwrites."""
    create_on_update: bool = False
    """A PUT on a name that is not there creates."""
    returns_deleted: bool = False
    """An immediate DELETE answers with the object, not with a Status."""
    selectable: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Field selectors besides metadata.name and metadata.namespace, and where their values are."""
    behaviour: Behaviour = Behaviour()
    subresources: tuple[str, ...] = ()
    view_of: tuple[str, str, str] | None = None
    """Group, version and plural of another resource whose objects this one shows as its own: they are the same."""
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fields that are called otherwise there, and how."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def json_head(self) -> bytes:
        """How the JSON text of an object begins."""
        return f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'.encode()

    @property
    def base(self) -> str:
        """The path of the resource's group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def __repr__(self) -> str:
        return f"<Resource {self.api_version} {self.kind}>"


_POD_FIELDS: Mapping[str, Path] = {
    "spec.nodeName": ("spec", "nodeName"),
    "spec.restartPolicy": ("spec", "restartPolicy"),
    "spec.schedulerName": ("spec", "schedulerName"),
    "spec.serviceAccountName": ("spec", "serviceAccountName"),
    "spec.hostNetwork": ("spec", "hostNetwork"),
    "status.phase": ("status", "phase"),
    "status.podIP": ("status", "podIP"),
    "status.nominatedNodeName": ("status", "nominatedNodeName"),
}
_EVENT_FIELDS: Mapping[str, Path] = {
    **{
        f"involvedObject.{part}": ("involvedObject", part)
        for part in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": ("reason",),
    "reportingComponent": ("reportingComponent",),
    "source": ("source", "component"),
    "type": ("type",),
}
_NEW_EVENT_NAMES: Mapping[str, str] = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_NEW_EVENT_FIELDS: Mapping[str, Path] = {
    **{
        f"regarding.{part}": ("regarding", part)
        for part in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": ("reason",),
    "reportingController": ("reportingController",),
    "type": ("type",),
}


def builtin() -> tuple[Resource, ...]:
    """The resources that every server has."""
    pending = PhaseBehaviour()
    return (
        Resource(
            *("", "v1", "Pod", "pods"),
            status=True,
            generation=True,
            returns_deleted=True,
            selectable=_POD_FIELDS,
            behaviour=PodBehaviour(),
            subresources=("binding", "eviction"),
        ),
        Resource(
            *("", "v1", "Node", "nodes"),
            namespaced=False,
            status=True,
            status_on_create=True,
            selectable={"spec.unschedulable": ("spec", "unschedulable")},
        ),
        Resource(
            *("", "v1", "Namespace", "namespaces"),
            namespaced=False,
            status=True,
            selectable={"status.phase": ("status", "phase")},
            behaviour=NamespaceBehaviour(),
            subresources=("finalize",),
        ),
        Resource("", "v1", "Event", "events", create_on_update=True, selectable=_EVENT_FIELDS),
        Resource("", "v1", "ConfigMap", "configmaps"),
        Resource("", "v1", "Secret", "secrets", selectable={"type": ("type",)}),
        Resource("", "v1", "Service", "services", status=True, status_on_create=True, returns_deleted=True),
        Resource("", "v1", "ServiceAccount", "serviceaccounts", returns_deleted=True),
        Resource(
            *("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
            status=True,
            returns_deleted=True,
            behaviour=pending,
        ),
        Resource("", "v1", "ResourceQuota", "resourcequotas", status=True, returns_deleted=True),
        Resource(
            *("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
            status=True,
            generation=True,
            behaviour=BudgetBehaviour(),
        ),
        Resource(*("coordination.k8s.io", "v1", "Lease", "leases"), create_on_update=True, unconditional_update=False),
        Resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False, generation=True),
        Resource("batch", "v1", "Job", "jobs", status=True, generation=True),
        Resource("apps", "v1", "Deployment", "deployments", status=True, generation=True),
        Resource(
            *("events.k8s.io", "v1", "Event", "events"),
            create_on_update=True,
            selectable=_NEW_EVENT_FIELDS,
            view_of=("", "v1", "events"),
            renamed=_NEW_EVENT_NAMES,
        ),
    )


class Registry:
    """The resources served, found by path or by kind."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        self._by_kind: dict[str, list[Resource]] = {}
        self._others: dict[Resource, tuple[Resource, Mapping[str, str]]] = {}
        for resource in builtin():
            self.add(resource)

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._by_path.values())

    def add(self, resource: Resource) -> None:
        key = (resource.group, resource.version, resource.plural)
        if key in self._by_path:
            raise ValueError(
                f"plural: {resource.plural!r} of {resource.api_version!r} is already served; register it once"
            )
        self._by_path[key] = resource
        self._by_kind.setdefault(resource.kind, []).append(resource)
        if resource.view_of is not None:
            other = self._by_path[resource.view_of]
            self._others[resource] = other, resource.renamed
            self._others[other] = resource, {theirs: own for own, theirs in resource.renamed.items()}

    def at(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_path.get((group, version, plural))

    def other_view(self, resource: Resource, obj: Json) -> tuple[Resource, Json] | None:
        """The resource that shows the same objects, and `obj` as it does; None for nearly all."""
        if (found := self._others.get(resource)) is None:
            return None
        other, names = found
        return other, {names.get(key, key): value for key, value in obj.items()} | {"apiVersion": other.api_version}

    def named(self, kind: str, api_version: str | None = None) -> Resource:
        """The resource of a kind (`Pod`, or `Job.batch` where two groups share a kind).

        Raises ValueError for a kind that the server has not been told of.
        """
        short, _, group = kind.partition(".")
        found = self._by_kind.get(short, [])
        if group:
            found = [resource for resource in found if resource.group == group]
        if api_version is not None:
            found = [resource for resource in found if resource.api_version == api_version]
        if not found:
            where = f" of {api_version}" if api_version else ""
            raise ValueError(f"kind: {kind!r}{where} is not served; call server.register(api_version, kind, plural)")
        return found[0]  # the core group comes first in the table


def custom(api_version: str, kind: str, plural: str, *, namespaced: bool, status_subresource: bool) -> Resource:
    """A resource as a CustomResourceDefinition would add it; ValueError says which argument is wrong."""
    group, _, version = api_version.rpartition("/")
    if not (group and version) or "/" in group:
        raise ValueError(f"api_version: {api_version!r} is not 'group/version'; give e.g. 'example.com/v1'")
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", kind):
        raise ValueError(f"kind: {kind!r} is not CamelCase; give e.g. 'Widget'")
    if not re.fullmatch(r"[a-z][a-z0-9]*", plural):
        raise ValueError(f"plural: {plural!r} is not lower case; give e.g. 'widgets'")
    return Resource(
        *(group, version, kind, plural),
        namespaced=namespaced,
        status=status_subresource,
        custom=True,
        generation=True,
        unconditional_update=False,
        behaviour=CustomBehaviour(),
    )
