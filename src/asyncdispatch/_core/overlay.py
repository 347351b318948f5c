"""What is known of objects: the uid and version seen last, and own writes that no observation has shown yet (L2, L18).

An own write stays until it is seen: in an object at least as new as its answer, in one on which `apply` changes nothing
(the shell finds that out), or in a read begun after it had ended. It is bounded by count and age; at either bound a
fresh read is asked for (rule R3).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncdispatch.calls import identity_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncdispatch.calls import APICall, ObjectRef

MAX_IDENTITIES = 65_536

MAX_DIGITS = 40
"""Of a resourceVersion: much more than 64 bits, much less than what Python refuses to read."""


class OwnWrite:
    """One ended write that defines `apply`. `version` is its answer's, None if it had none or is doubtful."""

    __slots__ = ("answer", "call", "number", "since", "ticket", "version")

    def __init__(self, call: APICall[Any], ticket: int, number: int, version: int | None, now: int) -> None:
        self.call = call
        self.ticket = ticket
        self.number = number  # which of all ended writes it is
        self.version = version
        self.since = now
        self.answer: Any = None  # of a create: the object itself


class Known:
    """What is known of one object."""

    __slots__ = ("gone", "uid", "version", "writes")

    def __init__(self) -> None:
        self.uid: str | None = None
        self.gone: str | None = None  # the uid of one that is gone, of which a late watch may yet show what we changed
        self.version: int | None = None
        self.writes: list[OwnWrite] = []

    @property
    def last_uid(self) -> str | None:
        return self.gone if self.uid is None else self.uid

    def outdates(self, uid: str | None, version: int | None) -> bool:
        """True if what was seen (uid, version) is older than this: it changes nothing."""
        last = self.last_uid
        if last is None:
            return False
        if uid is not None and uid == self.gone:
            return True
        if self.version is None or version is None:
            return False
        if uid is not None and uid != last:
            return version <= self.version
        return version < self.version


class ReadWanted(NamedTuple):
    """An own write is in doubt, or was not seen for too long: a fresh read of the object is asked for."""

    ref: ObjectRef
    ticket: int
    call_type: str


def integer_version(version: Any) -> int | None:
    """A resourceVersion as an integer (KEP-5504), or None if it is none: what stands there may be anything."""
    return int(version) if isinstance(version, str) and version.isdecimal() and len(version) <= MAX_DIGITS else None


class Objects:
    """The table of what is known, by lane."""

    __slots__ = ("_age", "_aging", "_max", "count", "ended", "table", "timer", "wanted")

    def __init__(self, max_unobserved: int, age: int) -> None:
        self.table: dict[str, Known] = {}
        self.count = 0  # own writes not yet seen, a gauge
        self.ended = 0  # how many writes have ended that are, or were, to be shown
        self.wanted: list[ReadWanted] = []
        self.timer = 0
        self._max = max_unobserved
        self._age = age
        self._aging: deque[tuple[int, str, OwnWrite]] = deque()  # in order of when a read is asked for

    # -- identities (law L2) ------------------------------------------------------------------------------------

    def uid_of(self, lane: str) -> str | None:
        known = self.table.get(lane)
        return None if known is None else known.uid

    def outdated(self, lane: str, uid: str | None, version: int | None) -> bool:
        """True if what was seen (uid, version) is older than what is known: it changes nothing."""
        known = self.table.get(lane)
        return known is not None and known.outdates(uid, version)

    def meet(self, lane: str, uid: str | None, version: int | None) -> bool | None:
        """Take note of an object as seen. True if its uid is not the one known before (or none was), None if what was
        seen is outdated."""
        known = self.table.get(lane)
        if known is not None and known.outdates(uid, version):
            return None
        if uid is None:
            return False
        if known is None:
            known = self._make(lane)
        changed = known.uid != uid
        if changed:
            if known.last_uid not in (None, uid):
                self._drop_writes(known, [write for write in known.writes if write.call.target.uid not in (None, uid)])
                known.version = None
            known.uid, known.gone = uid, None
        if version is not None:
            known.version = version
        return changed

    def forget(self, lane: str, uid: str | None) -> None:
        """The object is gone. With a uid only that one: a newer object of the name stays known."""
        known = self.table.get(lane)
        if known is None:
            return
        if uid is None or known.last_uid in (None, uid):
            self._drop_writes(known, list(known.writes))
            self.table.pop(lane, None)
        else:
            self._drop_writes(known, [write for write in known.writes if write.call.target.uid == uid])

    def vanish(self, lane: str) -> None:
        """The server has said that the object is gone. What a watch that lags still shows of it is older than that, and
        our own writes belong to it: they are kept for as long as they would be without that word."""
        known = self.table.get(lane)
        if known is not None and known.uid is not None and known.writes:
            known.uid, known.gone = None, known.uid
        else:
            self.forget(lane, None)

    # -- own writes (law L18) -----------------------------------------------------------------------------------

    def completed(self, lane: str, call: APICall[Any], ticket: int, version: int | None, answer: Any, now: int) -> None:
        self.ended += 1
        write = OwnWrite(call, ticket, self.ended, version, now)
        write.answer = answer
        self._record(lane, write)

    def doubtful(self, lane: str, call: APICall[Any], ticket: int, now: int) -> None:
        self.ended += 1
        self._record(lane, OwnWrite(call, ticket, self.ended, None, now))

    def settle_doubt(self, lane: str, ticket: int) -> None:
        """The doubt about one call is over; what became of it is recorded anew, if it was done."""
        known = self.table.get(lane)
        if known is not None:
            self._drop_writes(known, [write for write in known.writes if write.ticket == ticket])
            self._tidy(lane, known)

    def seen(self, lane: str, uid: str | None, version: int | None, fresh: bool) -> list[OwnWrite]:
        """An object was observed: settle what it shows by its version or freshness, return the writes that are left."""
        known = self.table.get(lane)
        if known is None or not known.writes:
            return []
        if fresh:
            self._drop_writes(known, list(known.writes))
        elif version is not None:
            reached = [w for w in known.writes if w.version is not None and w.version <= version]
            self._drop_writes(known, reached)
        return list(known.writes)

    def seen_by_read(self, lane: str, mark: int) -> None:
        """A read begun when `mark` writes had ended has its answer: it shows all of those."""
        known = self.table.get(lane)
        if known is not None:
            self._drop_writes(known, [write for write in known.writes if write.number <= mark])

    def drop(self, lane: str, writes: list[OwnWrite]) -> None:
        """`apply` changed nothing on the observed object: these are seen."""
        known = self.table.get(lane)
        if known is not None:
            self._drop_writes(known, writes)
            self._tidy(lane, known)

    def writes(self, lane: str) -> list[OwnWrite]:
        known = self.table.get(lane)
        return list(known.writes) if known is not None else []

    # -- bounds -------------------------------------------------------------------------------------------------

    @property
    def due(self) -> int | None:
        """When the next own write has waited too long to be seen."""
        self._skip_seen()
        return self._aging[0][0] if self._aging else None

    def ask_for_old(self, now: int) -> None:
        """Ask for a read of every object with an own write that was not seen for too long; keep showing it. Of one that
        is gone there is nothing to read: its writes go."""
        while self._aging and self._aging[0][0] <= now:
            _, lane, write = self._aging.popleft()
            if not self._holds(lane, write):
                continue
            if self.table[lane].gone is not None:
                self._drop_writes(self.table[lane], [write])
                self._tidy(lane, self.table[lane])
            else:
                self._want(write)
                self._aging.append((now + self._age, lane, write))

    def lanes_with_writes(self, prefix: str) -> Iterator[str]:
        """Of objects that are there, as far as is known."""
        return (
            lane
            for lane, known in list(self.table.items())
            if known.writes and known.gone is None and lane.startswith(prefix)
        )

    # -- inside -------------------------------------------------------------------------------------------------

    def _make(self, lane: str) -> Known:
        if len(self.table) >= MAX_IDENTITIES:
            victim = next((key for key, known in self.table.items() if not known.writes), None)
            if victim is not None:
                del self.table[victim]
        known = self.table[lane] = Known()
        return known

    def _record(self, lane: str, write: OwnWrite) -> None:
        known = self.table.get(lane)
        if known is None:
            known = self._make(lane)
        if self.count >= self._max:
            self._drop_oldest()
        known.writes.append(write)
        self.count += 1
        self._aging.append((write.since + self._age, lane, write))

    def _drop_oldest(self) -> None:
        """At the bound: the write that was not seen for longest is given up, and a read is asked for, aloud."""
        self._skip_seen()
        if self._aging:
            _, lane, write = self._aging.popleft()
            self._want(write)
            self._drop_writes(self.table[lane], [write])
            self._tidy(lane, self.table[lane])

    def _want(self, write: OwnWrite) -> None:
        ref = write.call.target
        if (made := identity_in(write.answer)) is not None:  # the server may have chosen its name
            ref = replace(ref, name=made[0], uid=made[1])
        self.wanted.append(ReadWanted(ref, write.ticket, write.call.call_type))

    def _drop_writes(self, known: Known, writes: list[OwnWrite]) -> None:
        if writes:
            gone = {write.number: None for write in writes}
            kept = [write for write in known.writes if write.number not in gone]
            self.count -= len(known.writes) - len(kept)
            known.writes = kept
            if not self.count:
                self._aging.clear()
            elif len(self._aging) > 2 * self.count + 64:
                self._aging = deque(item for item in self._aging if self._holds(item[1], item[2]))

    def _tidy(self, lane: str, known: Known) -> None:
        if known.uid is None and not known.writes:
            self.table.pop(lane, None)

    def _holds(self, lane: str, write: OwnWrite) -> bool:
        known = self.table.get(lane)
        return known is not None and any(other is write for other in known.writes)

    def _skip_seen(self) -> None:
        while self._aging and not self._holds(self._aging[0][1], self._aging[0][2]):
            self._aging.popleft()
