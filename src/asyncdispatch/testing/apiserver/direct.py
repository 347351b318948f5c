"""The objects as a test reaches them: in Python, without HTTP, latency, faults or audit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from asyncdispatch.testing.apiserver import controllers, patches
from asyncdispatch.testing.apiserver.kinds import child, mapping, with_condition
from asyncdispatch.testing.apiserver.reading import Reader
from asyncdispatch.testing.apiserver.resources import Registry, Resource, custom
from asyncdispatch.testing.apiserver.status import Json
from asyncdispatch.testing.apiserver.store import Store, Stored
from asyncdispatch.testing.apiserver.writing import Target, Writer, Written

ObjectKey = tuple[str, str, str]
"""(kind, namespace or "", name); the kind is `Kind.group` where two groups have a kind of the same name."""


@runtime_checkable
class Reference(Protocol):
    """Anything that names an object."""

    @property
    def kind(self) -> str: ...
    @property
    def namespace(self) -> str | None: ...
    @property
    def name(self) -> str: ...


Named = str | Mapping[str, Any] | Reference
"""A kind (with name and namespace beside it), an object as a dict, or a reference."""


class ObjectsView(Mapping[ObjectKey, Json]):
    """What is stored, by (kind, namespace, name). The dicts are the stored ones: read, don't change."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getitem__(self, key: ObjectKey) -> Json:
        kind, namespace, name = key
        try:
            resource = self._store.registry.named(kind)
        except ValueError as error:
            raise KeyError(str(error)) from None
        stored = self._store.get(resource, namespace if resource.namespaced else "", name)
        if stored is None:
            raise KeyError(f"no {kind} {name!r} in namespace {namespace!r}")
        return stored.obj

    def __iter__(self) -> Iterator[ObjectKey]:
        for stored in self._store.all():
            resource = stored.resource
            unique = self._store.registry.named(resource.kind) is resource
            yield (resource.kind if unique else f"{resource.kind}.{resource.group}", *stored.key)

    def __len__(self) -> int:
        return sum(1 for _ in self._store.all())

    def of(self, kind: str, namespace: str | None = None) -> list[Json]:
        """All objects of a kind, in one namespace or in all, in order of creation."""
        table = self._store.table(self._store.registry.named(kind))
        return [stored.obj for key, stored in table.objects.items() if namespace in (None, key[0])]


class DirectAccess:
    """The server's objects for tests: what comes in and goes out is copied, so nothing is shared by accident."""

    def __init__(self, registry: Registry, store: Store, reader: Reader, writer: Writer) -> None:
        self._registry = registry
        self._store = store
        self._reader = reader
        self._writer = writer
        self._objects = ObjectsView(store)

    @property
    def objects(self) -> ObjectsView:
        """A live view of what is stored."""
        return self._objects

    @property
    def resource_version(self) -> str:
        """The version of the last write to any object."""
        return str(self._store.version)

    def register(
        self,
        api_version: str,
        kind: str,
        plural: str,
        *,
        namespaced: bool = True,
        status_subresource: bool = True,
    ) -> None:
        """Serve one more (custom) resource; ValueError names an argument that can't be."""
        self._registry.add(
            custom(api_version, kind, plural, namespaced=namespaced, status_subresource=status_subresource)
        )

    def put(self, obj: Mapping[str, Any]) -> Json:
        """Store `obj` as it is, with its status and without checks, over what has its name; the way to set a scene.

        What it lacks of its kind's defaults is added, as by a create; a status that is given is taken as a whole. uid,
        creationTimestamp and resourceVersion are the server's; an existing object keeps its uid. A namespace that is
        missing is made. An object with a deletionTimestamp stays until it is deleted with grace period 0.
        """
        target = self._target(obj)
        self._ensure_namespace(target.resource, target.namespace)
        old = self._store.get(target.resource, target.namespace, target.name)
        given = mapping(obj, "metadata")
        stamped = {"uid": self._store.uid(), "creationTimestamp": self._store.timestamp()} if old is None else {}
        if old is not None:
            stamped = {key: old.obj["metadata"][key] for key in ("uid", "creationTimestamp")}
        elif target.resource.generation:
            stamped["generation"] = given.get("generation", 1)
        head = {"kind": target.resource.kind, "apiVersion": target.resource.api_version}
        metadata = {**copy.deepcopy(given), **stamped}
        if target.resource.namespaced:
            metadata["namespace"] = target.namespace
        new = {**copy.deepcopy(dict(obj)), **head, "metadata": metadata}
        created = target.resource.behaviour.prepare_create(new, self._store.timestamp())
        return _copy(self._store.put(target.resource, _lingering(_over(created, new))))

    def create(self, obj: Mapping[str, Any]) -> Json:
        """As a POST would: defaults, admission and checks. StatusError if it is refused."""
        target = self._target(obj, named=False)
        return _answer(self._writer.create(target, copy.deepcopy(dict(obj))))

    def get(self, target: Named, name: str | None = None, *, namespace: str | None = None) -> Json:
        """A copy of an object; KeyError if it is not there."""
        found = self.find(target, name, namespace=namespace)
        if found is None:
            at = self._target(target, name, namespace)
            raise KeyError(f"no {at.resource.kind} {at.name!r} in namespace {at.namespace!r}")
        return found

    def find(self, target: Named, name: str | None = None, *, namespace: str | None = None) -> Json | None:
        """A copy of an object, or None."""
        at = self._target(target, name, namespace)
        stored = self._store.get(at.resource, at.namespace, at.name)
        return None if stored is None else _copy(stored)

    def patch_object(
        self,
        target: Named,
        patch: Mapping[str, Any],
        name: str | None = None,
        *,
        namespace: str | None = None,
        strategic: bool = False,
    ) -> Json:
        """Change any part of an object by a merge patch (or a strategic one), without checks: another writer's hand.

        KeyError if it is not there. A patch that changes nothing keeps the resourceVersion.
        """
        at = self._target(target, name, namespace)
        old = self._existing(at)
        change = patches.strategic if strategic else patches.merge
        new = _lingering(change(old.obj, copy.deepcopy(dict(patch))))
        return _copy(old if new == old.obj else self._store.put(at.resource, new))

    def delete(
        self,
        target: Named,
        name: str | None = None,
        *,
        namespace: str | None = None,
        grace_period: int | None = None,
    ) -> Json | None:
        """As a DELETE would. Returns the object if it lives on, dying, and None if it is gone.

        `grace_period` is in seconds; None: the object's own. KeyError if the object was not there.
        """
        at = self._target(target, name, namespace)
        self._existing(at)
        options = {} if grace_period is None else {"gracePeriodSeconds": grace_period}
        self._writer.delete(at, options)
        return self.find(target, name, namespace=namespace)

    def finish(self, target: Named, name: str | None = None, *, namespace: str | None = None) -> None:
        """End an object for good, as a kubelet ends a dying Pod: grace period 0, and no finalizer holds it."""
        at = self._target(target, name, namespace)
        self._store.remove(self._existing(at))

    def run_pod(self, target: Named, name: str | None = None, *, namespace: str | None = None) -> Json:
        """A Pod starts, as by the kubelet of its node: phase Running, condition Ready."""
        if isinstance(target, str) and not name:
            target, name = "Pod", target
        at = self._target(target, name, namespace)
        pod = self._existing(at).obj
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": self._store.timestamp()}
        conditions = with_condition(child(pod, "status", "conditions"), ready)
        status = {**mapping(pod, "status"), "phase": "Running", "conditions": conditions}
        return _copy(self._store.put(at.resource, {**pod, "status": status}))

    def run_controllers(self) -> None:
        """One round of what controllers do: budgets and quotas get their status, dying namespaces lose what is in them
        and then end, new ones get their service account."""
        controllers.run(self._writer)

    def recreate(self, target: Named, name: str | None = None, *, namespace: str | None = None) -> Json:
        """End an object and create it again under the same name, with a new uid, unbound and with a fresh status."""
        at = self._target(target, name, namespace)
        old = self._existing(at)
        spec = {key: value for key, value in mapping(old.obj, "spec").items() if key not in ("nodeName", "priority")}
        kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
        metadata = {key: value for key, value in old.obj["metadata"].items() if key in kept}
        body = {key: value for key, value in old.obj.items() if key != "status"}
        body["metadata"] = metadata
        if "spec" in old.obj:
            body["spec"] = spec
        self._store.remove(old)
        return _answer(self._writer.create(at, copy.deepcopy(body)))

    def bind(self, pod: Named, node: str, name: str | None = None, *, namespace: str | None = None) -> Json:
        """Bind a Pod as a rival scheduler would; StatusError if it is refused."""
        at = self._target(pod, name, namespace) if not isinstance(pod, str) or name else self._target("Pod", pod)
        body = {"metadata": {"name": at.name}, "target": {"kind": "Node", "name": node}}
        self._writer.bind(at, body)
        return _copy(self._existing(at))

    def compact(self) -> None:
        """Forget the past: watches from older versions and continue tokens are answered 410 from now on."""
        self._store.compact()
        self._reader.forget()

    def expire_pages(self) -> None:
        """Continue tokens are answered 410 from now on; watches are not touched."""
        self._reader.forget()

    def _existing(self, at: Target) -> Stored:
        stored = self._store.get(at.resource, at.namespace, at.name)
        if stored is None:
            raise KeyError(f"no {at.resource.kind} {at.name!r} in namespace {at.namespace!r}")
        return stored

    def _ensure_namespace(self, resource: Resource, name: str) -> None:
        namespaces = self._registry.named("Namespace", "v1")
        if resource.namespaced and self._store.get(namespaces, "", name) is None:
            self._writer.create(Target(namespaces, "", ""), {"metadata": {"name": name}})

    def _target(
        self, target: Named, name: str | None = None, namespace: str | None = None, *, named: bool = True
    ) -> Target:
        """Where an object is stored; ValueError if `target` does not say."""
        if isinstance(target, str):
            resource, given, found = self._registry.named(target), namespace, name
        elif isinstance(target, Mapping):
            metadata = mapping(target, "metadata")
            resource = self._registry.named(str(target.get("kind", "")), target.get("apiVersion"))
            given, found = metadata.get("namespace"), metadata.get("name")
        elif isinstance(target, Reference):
            resource = self._registry.named(target.kind, getattr(target, "api_version", None))
            given, found = target.namespace, target.name
        else:
            raise ValueError(f"target: {target!r} names no object; give a kind and a name, an object, or a reference")
        if named and not found:
            raise ValueError(f"name: missing for {resource.kind}; give the object's name")
        return Target(resource, _namespace(resource, given), found or "")


def _namespace(resource: Resource, given: str | None) -> str:
    return (given or "default") if resource.namespaced else ""


def _over(created: Json, given: Json) -> Json:
    """An object as a create would store it, but with the fields of its spec, and the status, that were given."""
    said = {"status": given["status"]} if given.get("status") is not None else {}
    if "spec" in created:
        said["spec"] = {**created["spec"], **mapping(given, "spec")}
    return {**created, **said}


def _lingering(obj: Json) -> Json:
    """`obj` such that, if it is dying, it does not end with the next write to it."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or "deletionGracePeriodSeconds" in metadata:
        return obj
    return {**obj, "metadata": {**metadata, "deletionGracePeriodSeconds": 30}}


def _copy(stored: Stored) -> Json:
    return copy.deepcopy(stored.obj)


def _answer(written: Written) -> Json:
    assert isinstance(written.answer, Stored)
    return _copy(written.answer)
