"""What a reflector holds: the objects of one kind, and which of the events it is told are news. Pure.

Versions are integers that grow (KEP-5504), so that an event that comes late, twice or out of order is told by its
number. A deletion leaves its version behind for a while: a change of before it must not bring the object back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from asyncdispatch._core.overlay import integer_version

__all__ = ["Listing", "Store", "WatchEvent"]

Json = dict[str, Any]
Key = tuple[str, str]
"""(namespace or "", name)"""

MAX_TOMBSTONES = 4096


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """An object came, changed or went.

    `object` is what it is now; of one that is DELETED, the last state known. `old` is what it was before, None for one
    that is ADDED. `lost`: so many events were dropped just before this one, because this subscriber was too slow; look
    through the whole store again.
    """

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Json
    old: Json | None = None
    lost: int = 0


class Listing:
    """A list that is under way, beside the store that it will replace.

    An object that has not changed stays the one that is held already, so that a new list of much the same costs hardly
    any memory, and the garbage collector has nothing new to look through.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.objects: dict[Key, Json] = {}
        self.changes: list[WatchEvent] = []

    def add(self, items: Iterable[Json]) -> None:
        """A page more."""
        for obj in items:
            key = self._store.prepare(obj)
            old = self._store.objects.get(key)
            if old is None or _uid(old) != _uid(obj):
                self.changes.append(WatchEvent("ADDED", obj))
            elif _version(old) != _version(obj):
                self.changes.append(WatchEvent("MODIFIED", obj, old))
            else:
                obj = old
            self.objects[key] = obj


class Store:
    """The objects of one kind by namespace and name. Those in it are shared with whoever reads: nobody changes them."""

    def __init__(self, api_version: str, kind: str) -> None:
        self._head = {"apiVersion": api_version, "kind": kind}
        self.objects: dict[Key, Json] = {}
        self.version = ""
        """Up to which version everything is known: a watch goes on from there."""
        self.late = 0
        """Events that told nothing new: doubled, or overtaken by a later one."""
        self._floor = -1  # the version of the last list: nothing up to it is news
        self._gone: dict[Key, int] = {}

    @property
    def number(self) -> int | None:
        """`version` as a number, or None if it is none."""
        return integer_version(self.version)

    def prepare(self, obj: Json) -> Key:
        """The key of an object out of a list or an event. Raises ValueError for what is no object of this kind.

        Items of a list leave out their kind, and get it here. `managedFields` are dropped: they are a third of an
        object, and nobody who decides needs them.
        """
        meta = obj.get("metadata") if isinstance(obj, dict) else None
        if not isinstance(meta, dict):
            raise ValueError("it is no object: it has no metadata")
        name, namespace = meta.get("name"), meta.get("namespace") or ""
        if not isinstance(name, str) or not name or not isinstance(namespace, str):
            raise ValueError("it is no object: it has no name")
        meta.pop("managedFields", None)
        for field, value in self._head.items():
            obj.setdefault(field, value)
        return namespace, name

    def replace(self, listing: Listing, version: str) -> list[WatchEvent]:
        """The list is whole: it is the store from now on, whatever was known before. Returns the differences."""
        gone: list[WatchEvent] = []
        for key, old in self.objects.items():
            new = listing.objects.get(key)
            if new is None or _uid(new) != _uid(old):
                gone.append(WatchEvent("DELETED", old, old))
        self.objects = listing.objects
        self.version = version
        self._floor = -1 if self.number is None else self.number
        self._gone.clear()
        return [*gone, *listing.changes]

    def take(self, kind: str, obj: Json) -> list[WatchEvent]:
        """An event of a watch. Returns what is news in it, which may be nothing."""
        key = self.prepare(obj)
        number = integer_version(_version(obj))
        events = self._delete(key, obj, number) if kind == "DELETED" else self._put(key, obj, number)
        if not events:
            self.late += 1
        self.reach(_version(obj))
        return events

    def absent(self, key: Key, version: str) -> list[WatchEvent]:
        """A fresh read at `version` did not find it. Later events of the stream up to there are no news any more."""
        number = integer_version(version)
        old = self.objects.get(key)
        if old is None or self._is_late(old, number):
            self._bury(key, number)
            return []
        self._bury(key, number)
        del self.objects[key]
        return [WatchEvent("DELETED", old, old)]

    def reach(self, version: str | None) -> None:
        """Everything up to `version` is known. It never goes back, but by a new list."""
        number, known = integer_version(version), self.number
        if version and (number is None or known is None or number > known):
            self.version = version

    # -- inside ------------------------------------------------------------------------------------------------------

    def _put(self, key: Key, obj: Json, number: int | None) -> list[WatchEvent]:
        old = self.objects.get(key)
        if self._is_past(key, number) or (old is not None and self._is_late(old, number, _version(obj))):
            return []
        self._gone.pop(key, None)
        self.objects[key] = obj
        if old is None:
            return [WatchEvent("ADDED", obj)]
        if _uid(old) != _uid(obj):
            return [WatchEvent("DELETED", old, old), WatchEvent("ADDED", obj)]
        return [WatchEvent("MODIFIED", obj, old)]

    def _delete(self, key: Key, obj: Json, number: int | None) -> list[WatchEvent]:
        old = self.objects.get(key)
        if self._is_past(key, number) or (old is not None and self._is_late(old, number)):
            return []
        self._bury(key, number)
        if old is None:
            return [WatchEvent("DELETED", obj)]
        del self.objects[key]
        if _uid(old) != _uid(obj):  # one that we never saw held the name in between
            return [WatchEvent("DELETED", old, old), WatchEvent("DELETED", obj)]
        return [WatchEvent("DELETED", obj, old)]

    def _is_past(self, key: Key, number: int | None) -> bool:
        """The last list, or a deletion, is at least as new."""
        return number is not None and number <= max(self._floor, self._gone.get(key, -1))

    def _is_late(self, old: Json, number: int | None, version: str | None = None) -> bool:
        """The object held is newer; or, where `version` is given, the same."""
        held = _version(old)
        known = integer_version(held)
        if number is None or known is None:
            return version is not None and version == held
        return number < known or (version is not None and number == known)

    def _bury(self, key: Key, number: int | None) -> None:
        if number is None:
            return
        self._gone[key] = max(number, self._gone.pop(key, -1))
        if len(self._gone) > MAX_TOMBSTONES:
            del self._gone[next(iter(self._gone))]


def _uid(obj: Json) -> Any:
    return obj["metadata"].get("uid")


def _version(obj: Json) -> str | None:
    version = obj["metadata"].get("resourceVersion")
    return version if isinstance(version, str) else None
