"""List, watch, and what belongs to both: one request at a time, each giving its errors to whoever asked (rule R15)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from asyncdispatch.apierrors import ApiError, TransportTimeout
from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import DispatchError
from asyncdispatch.kubernetes._store import Json, Key, Listing, Store, WatchEvent
from asyncdispatch.kubernetes._stream import Lines, StreamTransport
from asyncdispatch.kubernetes.resources import builtin, collection_path
from asyncdispatch.kubernetes.transport import Transport

__all__ = ["Counts", "ListAgain", "ListWatch", "ReflectorError", "Settings", "Target"]

log = logging.getLogger("asyncdispatch")

OPEN_TIMEOUT = 30.0
"""Seconds for a page, for a single object, or for the beginning of a watch's answer."""
WATCH_SECONDS = (240, 300)
"""For how long a watch is asked for: drawn, so that the watches of many replicas don't end at once."""
LONGEST_LINE = 32 * 1024 * 1024
"""Bytes. etcd holds objects to a tenth of it."""
SETTLED = 10.0
"""Seconds. A watch that has lasted so long has shown what had been written when it began, and counts as healthy."""
BREATH = 50
"""Lines or events after which the loop gets its turn."""


class ReflectorError(DispatchError):
    """The reflector can't be what it is for: there are more objects than its store may hold, or it was closed."""


class ListAgain(Exception):
    """What is known can't be trusted: a new list has to say. Never seen by users."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is listed and watched."""

    api_version: str
    kind: str
    namespace: str | None
    labels: str
    fields: str
    plural: str | None

    @property
    def ref(self) -> ObjectRef:
        """A ref of the kind, for what asks about kinds."""
        return ObjectRef(self.api_version, self.kind, self.namespace, "*")

    @property
    def selective(self) -> bool:
        return bool(self.labels or self.fields)

    def query(self, *fields: str, **query: str) -> dict[str, str]:
        """The parameters of a request, with the selectors (and more `fields`) in them."""
        selected = ",".join(part for part in (self.fields, *fields) if part)
        given = {"labelSelector": self.labels, "fieldSelector": selected, **query}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds and times of one reflector; seconds."""

    page_size: int
    max_objects: int
    idle_limit: float
    check_interval: float


@dataclass(slots=True)
class Counts:
    """What has been counted since the reflector was made."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    unreadable: int = 0
    drifts: int = 0
    handler_errors: int = 0


class ListWatch:
    """The requests of one reflector, and the store that they fill. `tell` is given what is news, in order."""

    def __init__(
        self,
        transport: Transport,
        target: Target,
        settings: Settings,
        tell: Callable[[list[WatchEvent]], Awaitable[None]],
    ) -> None:
        self.store = Store(target.api_version, target.kind)
        self.counts = Counts()
        self.opened: float | None = None
        """When the present watch was answered; None while there is none."""
        self.fresh_at = float("-inf")
        """When the store was last known to be as the server has it."""
        self._target = target
        self._settings = settings
        self._tell = tell
        self._transport = StreamTransport(transport, target.ref)
        self._checked_at = float("-inf")
        self._expected: tuple[int, int] | None = None  # so many objects at this version, said the server
        self._page_size = settings.page_size
        if (known := builtin(target.ref)) is not None and target.plural is None and target.namespace is not None:
            collection_path(target.ref, known)

    async def aclose(self) -> None:
        await self._transport.close()

    # -- list --------------------------------------------------------------------------------------------------------

    async def list(self) -> None:
        """A whole list, in pages, beside the store; then it is the store, and the differences are told.

        The store stays as it is until then. A list whose pages expire is begun anew by the next call, in larger ones.
        """
        begun = self._checked_at = _now()
        self._expected = None
        self.counts.lists += 1
        listing = Listing(self.store)
        path = await self._path()
        token = ""
        while True:
            query = self._target.query(limit=str(self._page_size), **{"continue": token})
            try:
                page = await self._transport.get(path, query, OPEN_TIMEOUT)
            except ApiError as error:
                if error.status == 410 and token:
                    self._page_size = min(4 * self._page_size, max(self._page_size, 10_000))
                raise
            meta = self._add(page, listing, path)
            await asyncio.sleep(0)
            if not (token := meta.get("continue") or ""):
                break
        self._page_size = self._settings.page_size
        events = self.store.replace(listing, str(meta.get("resourceVersion") or ""))
        self.fresh_at = begun
        await self._tell(events)

    def _add(self, page: Json, listing: Listing, path: str) -> Json:
        items = page.get("items")
        meta = page.get("metadata")
        try:
            if not isinstance(meta, dict):
                raise ValueError("it is no list: it has no metadata")
            listing.add(items or [])
        except (ValueError, TypeError) as error:
            raise ApiError(200, "Unreadable", str(error), request=f"GET {path}") from error
        left = meta.get("remainingItemCount")
        self._check_room(len(listing.objects) + (left if isinstance(left, int) else 0))
        return meta

    def _check_room(self, count: int) -> None:
        if count > (most := self._settings.max_objects):
            raise ReflectorError(
                f"{count:,} objects of {self._target.kind} are more than the store may hold (max_objects={most:,}): "
                "raise it, or reflect one namespace or fewer labels"
            )

    async def _path(self, namespace: str | None = None) -> str:
        """Where the objects are listed; in one namespace, if that is given."""
        ref = self._target.ref
        resource = await self._transport.locate(ref, self._target.plural, self._transport.attempt(OPEN_TIMEOUT))
        if namespace:
            return collection_path(
                dataclasses.replace(ref, namespace=namespace), dataclasses.replace(resource, namespaced=True)
            )
        everywhere = resource.namespaced and ref.namespace is None
        return collection_path(ref, dataclasses.replace(resource, namespaced=False) if everywhere else resource)

    # -- count -------------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Now and then, ask how many objects there are: an event that was lost on the way is found by nothing else.

        The answer is compared once the watch has come to its version. Where the server does not say (it does not for
        selectors), `ListAgain`. A check that fails is left for later.
        """
        if _now() - self._checked_at < self._settings.check_interval:
            return
        self._checked_at = _now()
        try:
            page = await self._transport.get(await self._path(), self._target.query(limit="1"), OPEN_TIMEOUT)
        except DispatchError as error:
            log.debug("%s was not counted: %s", self._target.kind, error)
            return
        meta, items = page.get("metadata") or {}, page.get("items") or []
        left = meta.get("remainingItemCount", None if meta.get("continue") else 0)
        version = str(meta.get("resourceVersion") or "")
        if not isinstance(left, int) or not version.isdecimal():
            raise ListAgain("the server does not say how many there are")
        self._expected = len(items) + left, int(version)

    def _compare(self) -> None:
        """The watch is where the count was taken."""
        expected, self._expected = self._expected, None
        if expected is not None and expected[0] != len(self.store.objects):
            self.counts.drifts += 1
            log.warning(
                "the store holds %d objects of %s where the server has %d: events were lost; listing again",
                len(self.store.objects), self._target.kind, expected[0],
                extra={"kind": self._target.kind, "held": len(self.store.objects), "expected": expected[0]},
            )  # fmt: skip
            raise ListAgain("events were lost")

    # -- watch -------------------------------------------------------------------------------------------------------

    async def watch(self, answered: Callable[[], None]) -> None:
        """Follow the changes from the store's version on, until the server ends the watch. Says when it is `answered`.

        Raises what ended it otherwise: `ApiError` (also for an ERROR event), `TransportError`, `ListAgain`.
        """
        self.opened = None
        self.counts.watches += 1
        seconds = random.randint(*WATCH_SECONDS)
        query = self._target.query(
            watch="1", allowWatchBookmarks="true", resourceVersion=self.store.version, timeoutSeconds=str(seconds)
        )
        async with self._transport.stream(await self._path(), query, OPEN_TIMEOUT) as content:
            self.opened = _now()
            answered()
            await self._follow(content)
        if _now() - self.opened >= SETTLED:
            self._compare()

    async def _follow(self, content: aiohttp.StreamReader) -> None:
        lines, idle, count = Lines(LONGEST_LINE), self._settings.idle_limit, 0
        limit = asyncio.timeout(idle)
        try:
            async with limit:
                while chunk := await content.readany():
                    for line in lines.feed(chunk):
                        await self._line(line)
                        count += 1
                        self.fresh_at = _now()
                        if not count % BREATH:
                            await asyncio.sleep(0)
                    if self.fresh_at + idle > (limit.when() or 0):
                        limit.reschedule(self.fresh_at + idle)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"neither event nor bookmark for {idle:g} s: the peer is dead"
            raise TransportTimeout(message, sent=True, request="GET watch") from None

    async def _line(self, line: bytes) -> None:
        event, sound = _decoded(line)
        kind, obj = (event.get("type"), event.get("object")) if isinstance(event, dict) else (None, None)
        if kind == "ERROR" and isinstance(obj, dict):
            code = obj.get("code")
            raise ApiError(code if isinstance(code, int) else 500, body=json.dumps(obj), request="GET watch")
        if kind == "BOOKMARK" and isinstance(obj, dict):
            self._reach((obj.get("metadata") or {}).get("resourceVersion"))
            return
        try:
            if kind not in ("ADDED", "MODIFIED", "DELETED") or not isinstance(obj, dict):
                raise ValueError("it is no event of a watch")
            key = self.store.prepare(obj)
            if not sound and any("\ufffd" in str(part) for part in (*key, *map(obj["metadata"].get, _IDENTITY))):
                raise ValueError("it has bytes that are no UTF-8, where it says what it is about")
        except ValueError as error:
            self._report(line, error)
            raise ListAgain(f"an event can't be read: {error}") from error
        self.counts.events += 1
        if not sound:
            self._report(line, f"{'/'.join(filter(None, key))} has bytes that are no UTF-8")
        if sound or kind == "DELETED":  # what is gone can't be read again
            await self._take(kind, obj)
        else:
            await self._read_again(key, obj)

    async def _take(self, kind: str, obj: Json) -> None:
        version = obj["metadata"].get("resourceVersion")
        number = int(version) if isinstance(version, str) and version.isdecimal() else None
        if self._expected is not None and number is not None and number > self._expected[1]:
            self._compare()
        events = self.store.take(kind, obj)
        self._check_room(len(self.store.objects))
        if events:
            await self._tell(events)
        self._reach(version)

    def _reach(self, version: Any) -> None:
        """The stream has come to `version`."""
        self.store.reach(version if isinstance(version, str) else None)
        if self._expected is not None and (self.store.number or 0) >= self._expected[1]:
            self._compare()

    async def _read_again(self, key: Key, obj: Json) -> None:
        """An event whose object can't be trusted: read that one afresh, as the watch would show it.

        It is listed by its name, with the same selectors, since a GET would also give what they leave out.
        """
        namespace, name = key
        query = self._target.query(f"metadata.name={name}")
        page = await self._transport.get(await self._path(namespace), query, OPEN_TIMEOUT)
        items = page.get("items") or []
        if items:
            events = self.store.take("MODIFIED", items[0])
        else:
            events = self.store.absent(key, str((page.get("metadata") or {}).get("resourceVersion") or ""))
        await self._tell(events)
        self._reach(obj["metadata"].get("resourceVersion"))

    def _report(self, line: bytes, what: object) -> None:
        self.counts.unreadable += 1
        log.warning(
            "an event of %s can't be read (%d bytes): %s", self._target.kind, len(line), what,
            extra={"kind": self._target.kind, "size": len(line)},
        )  # fmt: skip


_IDENTITY = ("uid", "resourceVersion")


def _decoded(line: bytes) -> tuple[Any, bool]:
    """The JSON of a line, and whether every byte of it could be read. (None, False) for what is no JSON."""
    try:
        return json.loads(line), True
    except UnicodeDecodeError:
        pass
    except (ValueError, RecursionError):
        return None, False
    try:
        return json.loads(line.decode("utf-8", "replace")), False
    except (ValueError, RecursionError):
        return None, False


def _now() -> float:
    return asyncio.get_running_loop().time()
