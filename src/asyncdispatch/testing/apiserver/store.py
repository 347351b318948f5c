"""What is stored: objects by name, one counter of versions for all, and a window of past changes per resource.

Stored objects are values. A write makes a new object, so that a list, a watch event and an answer may share one dict
and its JSON text without copying. Nobody who reads a stored object may change it.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from asyncdispatch.testing.apiserver.resources import Registry, Resource
from asyncdispatch.testing.apiserver.status import Json

Key = tuple[str, str]
"""(namespace or "", name)"""


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


def dumps(value: Any) -> bytes:
    """Compact JSON. A lone surrogate, which has no place in UTF-8, becomes a question mark."""
    return _encode(value).encode(errors="replace")


class Stored:
    """One version of one object, with its JSON text once somebody asked for it."""

    __slots__ = ("_fields", "key", "obj", "resource", "version")

    def __init__(self, resource: Resource, key: Key, obj: Json, version: int) -> None:
        self.resource = resource
        self.key = key
        self.obj = obj
        self.version = version
        self._fields: bytes | None = None

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"]["uid"])

    def json(self) -> bytes:
        """The object as it is sent alone."""
        return self.resource.json_head + self._inner() + b"}"

    def item(self) -> bytes:
        """The object as an item of a list: without apiVersion and kind, unless it is custom."""
        return self.json() if self.resource.custom else b"{" + self._inner() + b"}"

    def _inner(self) -> bytes:
        if self._fields is None:
            fields = {key: value for key, value in self.obj.items() if key not in ("kind", "apiVersion")}
            self._fields = dumps(fields)[1:-1]
        return self._fields

    def __repr__(self) -> str:
        return f"<Stored {self.resource.kind} {'/'.join(filter(None, self.key))} @{self.version}>"


@dataclass(frozen=True, slots=True)
class Change:
    """One write: `before` is None for a create, `deleted` says that `after` is the object's last state."""

    version: int
    before: Stored | None
    after: Stored
    deleted: bool
    time: float
    """When it happened, on the server's monotonic clock."""


@dataclass(slots=True)
class Table:
    """The objects of one resource and its recent changes. `first` is the running number of `changes[0]`."""

    objects: dict[Key, Stored] = field(default_factory=dict[Key, Stored])
    changes: list[Change] = field(default_factory=list[Change])
    first: int = 0
    compacted: int = 0
    """Changes up to this version are forgotten: a watch from an older one is answered 410."""
    listeners: set[Callable[[], None]] = field(default_factory=set[Callable[[], None]])

    def position(self, version: int) -> int:
        """The running number of the first change after `version`."""
        low, high = 0, len(self.changes)
        while low < high:
            middle = (low + high) // 2
            if self.changes[middle].version <= version:
                low = middle + 1
            else:
                high = middle
        return self.first + low

    def forget(self, count: int) -> None:
        """Forget the oldest `count` changes."""
        if count > 0:
            self.compacted = max(self.compacted, self.changes[count - 1].version)
            del self.changes[:count]
            self.first += count


class Store:
    """All tables. Deterministic: the same writes give the same uids and versions."""

    def __init__(
        self,
        registry: Registry,
        *,
        seed: int,
        window: int,
        now: Callable[[], datetime],
        time: Callable[[], float],
    ) -> None:
        self.registry = registry
        self.version = 0
        self.lag = 0.0
        """Seconds by which the watch cache is behind: watches, and reads that are content with it, see the past."""
        self.written: Callable[[], None] = lambda: None
        """Called after every write."""
        self._tables: dict[Resource, Table] = {}
        self._random = random.Random(f"uids {seed}")
        self._window = window
        self._now = now
        self._time = time

    def table(self, resource: Resource) -> Table:
        table = self._tables.get(resource)
        if table is None:
            table = self._tables[resource] = Table()
        return table

    def get(self, resource: Resource, namespace: str, name: str) -> Stored | None:
        table = self._tables.get(resource)
        return table.objects.get((namespace, name)) if table else None

    def all(self) -> Iterator[Stored]:
        """Every object of every resource, once, in order of creation within a resource."""
        for resource, table in self._tables.items():
            if resource.view_of is None:
                yield from table.objects.values()

    def uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def suffix(self) -> str:
        """The random end of a generated name."""
        return "".join(self._random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))

    def moment(self) -> datetime:
        return self._now().astimezone(UTC)

    def timestamp(self) -> str:
        return format_time(self.moment())

    def put(self, resource: Resource, obj: Json) -> Stored:
        """Write `obj` under a new version, whatever was there before."""
        metadata = obj["metadata"]
        key = (str(metadata.get("namespace", "")) if resource.namespaced else "", str(metadata["name"]))
        stored = self._next(resource, key, obj)
        self._record(stored, deleted=False)
        return stored

    def remove(self, stored: Stored, last: Json | None = None) -> Stored:
        """End an object; its last state (`last`, or as it was) carries the version of the deletion."""
        before = self.table(stored.resource).objects[stored.key]
        ended = self._next(stored.resource, stored.key, before.obj if last is None else last)
        self._record(ended, deleted=True)
        return ended

    def unseen(self, change: Change, now: float) -> bool:
        """The watch cache does not know yet of a change."""
        return change.time + self.lag > now

    def cached(self, resource: Resource) -> tuple[dict[Key, Stored], int]:
        """The objects as the watch cache knows them, and the version up to which it does."""
        table, version, now = self.table(resource), self.version, self._time()
        if not self.lag:
            return table.objects, version
        objects = dict(table.objects)
        for change in reversed(table.changes):
            if not self.unseen(change, now):
                break
            version = change.version - 1
            if change.before is None:
                del objects[change.after.key]
            else:
                objects[change.after.key] = change.before
        return objects, version

    def compact(self) -> None:
        """Forget all past changes: every watch or continue token from before is answered 410."""
        for table in self._tables.values():
            table.forget(len(table.changes))
            table.compacted = self.version

    def _next(self, resource: Resource, key: Key, obj: Json) -> Stored:
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        return Stored(resource, key, {**obj, "metadata": metadata}, self.version)

    def _record(self, stored: Stored, *, deleted: bool) -> None:
        """Note a write for its resource, and for the one that shows the same objects, under the same version."""
        self._note(stored, deleted)
        if (other := self.registry.other_view(stored.resource, stored.obj)) is not None:
            resource, obj = other
            self._note(Stored(resource, stored.key, obj, stored.version), deleted)
        self.written()

    def _note(self, stored: Stored, deleted: bool) -> None:
        table = self.table(stored.resource)
        before = table.objects.get(stored.key)
        if deleted:
            del table.objects[stored.key]
        else:
            table.objects[stored.key] = stored
        table.changes.append(Change(stored.version, before, stored, deleted, self._time()))
        table.forget(len(table.changes) - self._window)
        for listener in tuple(table.listeners):
            listener()


def format_time(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes its timestamps."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
