"""One lane per object: the write in flight, the writes in line, and the calls that are not in line (yet).

Law L2: at most one write of a lane is in flight, counting one that is asked to stop until it has really ended. Law L12:
writes wait in line; a call moves forward past those that its type supersedes until it meets one that it does not. Law
L13: merging is asked of the last in line only.

The table holds the entry itself while an object has just one call, which is the common case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncdispatch._core.states import ACCEPTED, DELAYED, IDEMPOTENT_WRITE, READ, REQUIREMENTS
from asyncdispatch.calls import APICall
from asyncdispatch.errors import MergeFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from asyncdispatch._core.states import Entry
    from asyncdispatch.config import CallTypePolicy


class Lane:
    """All live executions of one object. Every one of them is in exactly one of the four places."""

    __slots__ = ("flying", "last_write", "line", "outside", "reads")

    def __init__(self) -> None:
        self.flying: Entry | None = None  # the one write in flight
        self.line: list[Entry] = []  # writes in line: the first is queued, in backoff or held
        self.outside: dict[int, Entry] = {}  # delayed, or waiting for requirements: they block nobody
        self.reads: dict[int, Entry] = {}
        self.last_write = 0  # the ticket of the last write accepted

    def __len__(self) -> int:
        return (self.flying is not None) + len(self.line) + len(self.outside) + len(self.reads)

    def entries(self) -> Iterator[Entry]:
        """All executions: writes in the order in which they will be sent, then what is outside, then reads."""
        if self.flying is not None:
            yield self.flying
        yield from list(self.line)
        yield from list(self.outside.values())
        yield from list(self.reads.values())

    def waiting(self) -> int:
        """How many executions wait, which `lane_capacity` bounds."""
        reads = sum(not entry.phase.flying for entry in self.reads.values())
        return len(self.line) + len(self.outside) + reads

    def add(self, entry: Entry) -> None:
        """Take in an execution that already has a phase: put it where that says."""
        if entry.call.effect is READ:
            self.reads[entry.ticket] = entry
        elif entry.phase.flying:
            self.flying = entry
        elif entry.phase in (DELAYED, REQUIREMENTS, ACCEPTED):
            self.outside[entry.ticket] = entry
        else:
            self.line.append(entry)

    def discard(self, entry: Entry) -> None:
        """Remove an execution from wherever it is."""
        if self.flying is entry:
            self.flying = None
        elif self.outside.pop(entry.ticket, None) is None and self.reads.pop(entry.ticket, None) is None:
            self.leave_line(entry)

    def leave_line(self, entry: Entry) -> None:
        self.line[:] = [other for other in self.line if other is not entry]

    def oldest_write(self, ticket: int) -> bool:
        """True if a write accepted before `ticket` is in flight or in line: an ordered read has to wait for it."""
        if self.flying is not None and self.flying.ticket < ticket:
            return True
        return any(entry.ticket < ticket for entry in self.line)


class Lanes:
    """The table of lanes, and the rules of the line."""

    __slots__ = ("_supersedes", "table")

    def __init__(self, call_types: Mapping[str, CallTypePolicy]) -> None:
        self.table: dict[str, Entry | Lane] = {}
        self._supersedes = {name: frozenset(policy.supersedes) for name, policy in call_types.items()}

    def supersedes(self, one: str, other: str) -> bool:
        """True if the success of a call of type `one` settles a waiting call of type `other`."""
        return other in self._supersedes.get(one, ())

    def lane(self, key: str) -> Lane:
        """The lane in full, made from the single entry or from nothing."""
        found = self.table.get(key)
        if isinstance(found, Lane):
            return found
        lane = self.table[key] = Lane()
        if found is not None:
            found.common = False
            lane.add(found)
            if found.call.effect is not READ:
                lane.last_write = found.ticket
        return lane

    def entries(self, key: str) -> list[Entry]:
        """All live executions of an object."""
        found = self.table.get(key)
        if found is None:
            return []
        return list(found.entries()) if isinstance(found, Lane) else [found]

    def discard(self, key: str, entry: Entry) -> Lane | None:
        """Remove an execution. The lane, if others are left in it."""
        found = self.table.get(key)
        if found is entry:
            del self.table[key]
            return None
        if not isinstance(found, Lane):
            return None
        found.discard(entry)
        if not len(found):
            del self.table[key]
            return None
        return found

    def insert(self, lane: Lane, entry: Entry) -> int:
        """Put a write in line by law L12. Returns its index."""
        line, index = lane.line, len(lane.line)
        while index and self.supersedes(entry.call.call_type, line[index - 1].call.call_type):
            index -= 1
        line.insert(index, entry)
        return index

    def place_again(self, lane: Lane, entry: Entry) -> int:
        """Where in line a write that flew stands again: in front, but behind those that have moved past it (L12)."""
        line, index = lane.line, 0
        while index < len(line) and self.supersedes(line[index].call.call_type, entry.call.call_type):
            index += 1
        return index


# -- merging (law L13) --------------------------------------------------------------------------------------------

_PAYLOAD_FREE = ("call_type", "target", "effect", "version", "idempotency_key", "prerequisite")
CONTROL_FIELDS = (
    *("priority", "flow", "timeout", "not_before", "context", "awaits_prerequisites", "sheddable"),
    *("depends_on", "fresh", "scope", "retry", "ordered"),
)


def mergeable(pending: Entry, call: APICall[Any]) -> bool:
    """True if `merge` may be asked: two idempotent writes of equal type, object, uid and version, without a key."""
    waiting = pending.call
    return (
        waiting.effect is IDEMPOTENT_WRITE
        and call.effect is IDEMPOTENT_WRITE
        and "merge" in call._hooks
        and waiting.call_type == call.call_type
        and waiting.target.uid == call.target.uid
        and waiting.version == call.version
        and waiting.idempotency_key is None
        and call.idempotency_key is None
        and waiting.prerequisite is None
        and call.prerequisite is None
        and waiting.scope == call.scope
    )


def merged(newer: APICall[Any], older: APICall[Any]) -> APICall[Any] | None:
    """`newer.merge(older)`, checked, with the control fields of `newer`. Raises `MergeFailed`."""
    try:
        both = newer.merge(older)
    except Exception as error:
        raise MergeFailed(f"{type(newer).__name__}.merge raised {error!r}; the waiting call is untouched") from error
    if both is None:
        return None
    if not isinstance(both, type(newer)):
        raise MergeFailed(
            f"{type(newer).__name__}.merge returned {type(both).__name__}: return a call of its own type, or None"
        )
    for name in _PAYLOAD_FREE:
        if getattr(both, name) != getattr(newer, name):
            raise MergeFailed(f"{type(newer).__name__}.merge changed {name}: it must stay {getattr(newer, name)!r}")
    return with_fields_of(both, newer, CONTROL_FIELDS)


def with_fields_of(call: APICall[Any], source: APICall[Any], names: tuple[str, ...]) -> APICall[Any]:
    """`call` with the named fields of `source`; `call` itself if they are the same already."""
    different = [name for name in names if getattr(call, name) is not getattr(source, name)]
    if not different:
        return call
    copied: APICall[Any] = object.__new__(type(call))
    for name, value in call.__dict__.items():
        object.__setattr__(copied, name, value)
    for name in different:
        object.__setattr__(copied, name, getattr(source, name))
    return copied
