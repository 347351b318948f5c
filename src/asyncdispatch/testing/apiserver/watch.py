"""Watches: a stream of changes from a version on, as lines of JSON."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncdispatch.testing.apiserver.lies import Event, Lie, garbled
from asyncdispatch.testing.apiserver.query import count, flag
from asyncdispatch.testing.apiserver.reading import Reader
from asyncdispatch.testing.apiserver.resources import Resource
from asyncdispatch.testing.apiserver.selectors import Predicate, selection
from asyncdispatch.testing.apiserver.status import Cause, StatusError, bad_request, expired, invalid
from asyncdispatch.testing.apiserver.store import Change, Stored, dumps


@dataclass(slots=True)
class WatchSettings:
    """How the server serves watches."""

    bookmark_interval: float = 60.0
    gone: str = "event"
    """How a version that is too old is answered: an ERROR "event" within a 200, or the HTTP "status" 410."""
    watch_list: bool = False
    """Whether sendInitialEvents is served; refused with 422 if not."""
    lies: list[Lie] = field(default_factory=list[Lie])


class WatchStream:
    """One watch. `lines()` yields what to send, in batches, until the watch ends."""

    def __init__(
        self,
        reader: Reader,
        resource: Resource,
        namespace: str,
        query: Mapping[str, str],
        settings: WatchSettings,
        time: Callable[[], float],
    ) -> None:
        self._resource = resource
        self._namespace = namespace
        self._settings = settings
        self._time = time
        self._reader = reader
        self._table = reader.store.table(resource)
        self.silent_after: int | None = None
        """After so many events nothing more is sent."""
        self._wake = asyncio.Event()
        self._closed = False
        self._last: list[bytes] = []
        self._sent = 0
        self._late: list[tuple[float, int, bytes]] = []
        self._swapped: list[bytes] = []
        self._numbers = itertools.count()
        self._bookmarks = flag(query, "allowWatchBookmarks")
        self._end = _end(query, time)
        self._next_bookmark = time() + settings.bookmark_interval
        self._predicate: Predicate | None = selection(
            resource, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        self._first = self._begin(query)

    def close(self) -> None:
        """End the stream, as a server that shuts down does."""
        self._closed = True
        self._wake.set()

    def fail(self, error: StatusError) -> None:
        """End the stream with an ERROR event, in what is a 200 for HTTP."""
        self._last.append(_line("ERROR", dumps(error.status)))
        self.close()

    def hush(self) -> None:
        """Send nothing more, and stay open."""
        self.silent_after = self._sent
        self._wake.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """The stream; ends at its time-out, when closed, after an error, or when it fell behind the window."""
        # Listening begins here, where the end is sure to be reached; the position was fixed before.
        self._table.listeners.add(self._wake.set)
        try:
            batch: list[bytes] | None = self._opening()
            while batch is not None:
                heard = batch if self.silent_after is None else batch[: max(0, self.silent_after - self._sent)]
                self._sent += len(heard)
                if heard:
                    yield b"".join(heard)
                if len(heard) < len(batch) or self._silent:
                    await self._silence()
                batch = await self._next()
            if self._last:
                yield b"".join(self._last)
        finally:
            self._table.listeners.discard(self._wake.set)

    @property
    def _silent(self) -> bool:
        return self.silent_after is not None and self._sent >= self.silent_after

    async def _silence(self) -> None:
        """Until the connection or the server ends; what comes after that is not sent."""
        while not self._closed:
            self._wake.clear()
            await self._wake.wait()
        self._last.clear()

    def _opening(self) -> list[bytes]:
        batch: list[bytes] = []
        for event in self._first:
            self._pass(event, batch, self._time())
        return batch

    async def _next(self) -> list[bytes] | None:
        """What to send next, None at the end."""
        while not self._closed and self._position >= self._table.first:
            self._wake.clear()
            batch = self._due()
            if batch or self._silent:
                return batch
            if self._time() >= self._end:
                break
            await self._pause()
        return None

    def _begin(self, query: Mapping[str, str]) -> list[Event]:
        """Set the position and return the first events; StatusError for what can't be served."""
        version = self._reader.check_version(query)
        table, current = self._table, self._reader.store.version
        self._position = table.first + len(table.changes)
        if flag(query, "sendInitialEvents"):
            self._check_watch_list(query)
            return [*self._existing(query), self._bookmark(current, initial=True)]
        if query.get("resourceVersionMatch"):
            raise bad_request("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        if not version:
            # 0 is answered from the cache, which may be behind; unset from storage, and the past is not sent again.
            seen = self._reader.visible(self._resource, version)
            self._position = table.position(seen)
            return self._existing(query, version)
        if version >= table.compacted:
            self._position = table.position(version)
            return []
        error = expired(f"too old resource version: {version} ({current})")
        if self._settings.gone == "status":
            raise error
        self.fail(error)
        return []

    def _check_watch_list(self, query: Mapping[str, str]) -> None:
        if not self._settings.watch_list:
            why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            raise _options_refused(Cause.forbidden("sendInitialEvents", why))
        if query.get("resourceVersionMatch") != "NotOlderThan":
            why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise _options_refused(Cause.forbidden("resourceVersionMatch", why))

    def _existing(self, query: Mapping[str, str], version: int | None = None) -> list[Event]:
        found = self._reader.matching(self._resource, self._namespace, query, version)
        return [self._line("ADDED", stored.obj, stored.json()) for stored in found]

    def _due(self) -> list[bytes]:
        """The lines whose time has come."""
        table, now = self._table, self._time()
        batch: list[bytes] = []
        for change in table.changes[self._position - table.first :]:
            if self._reader.store.unseen(change, now):
                break
            self._position += 1
            event = self._event(change)
            if event is not None:
                self._pass(event, batch, now)
        while self._late and self._late[0][0] <= now:
            batch.append(heapq.heappop(self._late)[2])
        caught_up = self._position == table.first + len(table.changes)
        if self._bookmarks and caught_up and now >= min(self._next_bookmark, self._end):
            self._pass(self._bookmark(self._reader.store.version), batch, now)
            self._next_bookmark = now + self._settings.bookmark_interval
            # The last bookmark of a stream is followed by its end.
            self._closed = self._closed or now >= self._end
        return batch

    def _pass(self, event: Event, batch: list[bytes], now: float) -> None:
        """Add an event to what is sent, as it is or as a lie has it."""
        lie = (
            next((lie for lie in tuple(self._settings.lies) if lie.meets(event)), None) if self._settings.lies else None
        )
        how = lie.how if lie is not None else ""
        if lie is not None and how == "late":
            heapq.heappush(self._late, (now + lie.seconds, next(self._numbers), event.line))
        elif how == "swap":
            self._swapped.append(event.line)
        elif how != "lose":
            batch.append(garbled(event.line) if how == "garble" else event.line)
            if how == "repeat":
                batch.append(event.line)
            batch.extend(self._swapped)
            self._swapped.clear()

    async def _pause(self) -> None:
        """Until something is written, or the next line is due by the clock."""
        until, table = self._end, self._table
        if self._position < table.first + len(table.changes):
            until = min(until, table.changes[self._position - table.first].time + self._reader.store.lag)
        elif self._bookmarks:  # which wait until the watch has caught up
            until = min(until, self._next_bookmark)
        if self._late:
            until = min(until, self._late[0][0])
        # At least a microsecond: a virtual clock would not get past what rounding leaves of a time.
        left = max(until - self._time(), 1e-6)
        try:
            async with asyncio.timeout(None if left == float("inf") else left):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _event(self, change: Change) -> Event | None:
        """The event for a change, as seen through the selectors."""
        if self._namespace and change.after.key[0] != self._namespace:
            return None
        was = change.before is not None and self._selects(change.before)
        if not change.deleted and self._selects(change.after):
            return self._line("MODIFIED" if was else "ADDED", change.after.obj, change.after.json())
        if not was or change.before is None:
            return None
        if change.deleted:
            return self._line("DELETED", change.after.obj, change.after.json())
        # It left the selection: its last state within, under the version of the change.
        metadata = {**change.before.obj["metadata"], "resourceVersion": str(change.version)}
        last = {**change.before.obj, "metadata": metadata}
        return self._line("DELETED", last, dumps(last))

    def _line(self, kind: str, obj: dict[str, Any], text: bytes) -> Event:
        return Event(kind, self._resource.kind, obj, _line(kind, text))

    def _selects(self, stored: Stored) -> bool:
        return self._predicate is None or self._predicate(stored.obj)

    def _bookmark(self, version: int, *, initial: bool = False) -> Event:
        metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        resource = self._resource
        obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return self._line("BOOKMARK", obj, dumps(obj))


def _line(kind: str, obj: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + obj + b"}\n"


def _end(query: Mapping[str, str], time: Callable[[], float]) -> float:
    seconds = count(query, "timeoutSeconds")
    return time() + seconds if seconds else float("inf")


def _options_refused(cause: Cause) -> StatusError:
    return invalid("meta.k8s.io", "ListOptions", "", [cause])
