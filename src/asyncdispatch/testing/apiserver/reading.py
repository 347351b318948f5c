"""The verbs that read: get and list, without HTTP."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from asyncdispatch.testing.apiserver.query import count
from asyncdispatch.testing.apiserver.resources import Resource
from asyncdispatch.testing.apiserver.selectors import selection
from asyncdispatch.testing.apiserver.status import bad_request, expired, not_found, version_too_large
from asyncdispatch.testing.apiserver.store import Key, Store, Stored, dumps
from asyncdispatch.testing.apiserver.writing import Target

_SNAPSHOTS = 128
"""Lists in pages that are remembered at once; the oldest expires first."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    resource: Resource
    version: int
    items: list[Stored]


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list: `version` is the whole list's, `following` the token for the next part."""

    items: list[Stored]
    version: int
    following: str = ""
    remaining: int | None = None


class Reader:
    """Gets and lists over one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._snapshots: OrderedDict[int, _Snapshot] = OrderedDict()
        self._numbers = itertools.count(1)

    def get(self, target: Target, query: Mapping[str, str]) -> Stored:
        version = self.check_version(query)
        stored = self._objects(target.resource, version).get((target.namespace, target.name))
        if stored is None:
            raise not_found(*target.about)
        return stored

    def page(self, resource: Resource, namespace: str, query: Mapping[str, str]) -> Page:
        """A list, or the next part of one. 410 for a continue token whose list is forgotten."""
        limit = count(query, "limit")
        if token := query.get("continue", ""):
            return self._following(resource, namespace, query, token, limit)
        version = self._check_exact(query)
        items = self.matching(resource, namespace, query, version)
        return self._page(_Snapshot(resource, self.visible(resource, version), items), 0, limit, query)

    def matching(
        self, resource: Resource, namespace: str, query: Mapping[str, str], version: int | None = None
    ) -> list[Stored]:
        """Everything that is asked for, in order of namespace and name."""
        predicate = selection(resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        objects = self._objects(resource, version)
        found = (stored for key, stored in objects.items() if not namespace or key[0] == namespace)
        chosen = (stored for stored in found if predicate is None or predicate(stored.obj))
        return sorted(chosen, key=_by_key)

    def visible(self, resource: Resource, version: int | None) -> int:
        """The version that a read shows which asks for `version`: the cache's if that is new enough, else the last."""
        cached = self.store.cached(resource)[1]
        return self.store.version if version is None or cached < version else cached

    def _objects(self, resource: Resource, version: int | None) -> Mapping[Key, Stored]:
        objects, cached = self.store.cached(resource)
        return self.store.table(resource).objects if version is None or cached < version else objects

    def check_version(self, query: Mapping[str, str]) -> int | None:
        """The resourceVersion asked for: None if unset; 400 if it is no number, 504 if it is still to come."""
        if not query.get("resourceVersion"):
            return None
        version = count(query, "resourceVersion")
        if version > self.store.version:
            raise version_too_large(version, self.store.version)
        return version

    def forget(self) -> None:
        """Every continue token given out so far is answered 410."""
        self._snapshots.clear()

    def body(self, resource: Resource, page: Page) -> bytes:
        """The JSON text of a list."""
        metadata: dict[str, object] = {"resourceVersion": str(page.version)}
        if page.following:
            metadata["continue"] = page.following
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
        head = dumps({"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata})
        return head[:-1] + b',"items":[' + b",".join(stored.item() for stored in page.items) + b"]}"

    def _check_exact(self, query: Mapping[str, str]) -> int | None:
        """The version from which on the list may be, None for the newest."""
        version = self.check_version(query)
        match = query.get("resourceVersionMatch", "")
        if match and version is None:
            raise bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided")
        if match == "Exact" and version != self.store.version:
            raise expired(f"The resourceVersion for the provided list is too old: {version}")
        return None if match == "Exact" else version

    def _following(self, resource: Resource, namespace: str, query: Mapping[str, str], token: str, limit: int) -> Page:
        number, start = _decode(token)
        if number == 0:
            # The token of an expired list: go on after its last name, on what is there now.
            items = [s for s in self.matching(resource, namespace, query) if "/".join(s.key) > str(start)]
            return self._page(_Snapshot(resource, self.store.version, items), 0, limit, query)
        snapshot = self._snapshots.get(number)
        if snapshot is None or snapshot.version < self.store.table(resource).compacted:
            message = "The provided continue parameter is too old to display a consistent list result."
            raise expired(message, metadata={"continue": _encode(0, _decode_name(token))})
        return self._page(snapshot, int(start), limit, query, number)

    def _page(self, whole: _Snapshot, start: int, limit: int, query: Mapping[str, str], number: int = 0) -> Page:
        end = start + limit if limit else len(whole.items)
        items = whole.items[start:end]
        left = len(whole.items) - end
        if left <= 0:
            return Page(items, whole.version)
        if not number:
            number = next(self._numbers)
            self._snapshots[number] = whole
            if len(self._snapshots) > _SNAPSHOTS:
                self._snapshots.popitem(last=False)
        selected = query.get("labelSelector") or query.get("fieldSelector")
        token = _encode(number, "/".join(items[-1].key), end)
        return Page(items, whole.version, token, None if selected else left)


def _by_key(stored: Stored) -> Key:
    return stored.key


def _encode(number: int, name: str, start: int = 0) -> str:
    return base64.urlsafe_b64encode(dumps([number, start, name])).decode().rstrip("=")


def _fields(token: str) -> tuple[int, int, str]:
    try:
        number, start, name = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(number), int(start), str(name)
    except (ValueError, TypeError, binascii.Error) as error:
        raise bad_request("continue key is not valid") from error


def _decode(token: str) -> tuple[int, int | str]:
    number, start, name = _fields(token)
    return number, start if number else name


def _decode_name(token: str) -> str:
    return _fields(token)[2]
