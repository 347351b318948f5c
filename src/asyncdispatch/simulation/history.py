"""What happened in a simulated run, in records that whoever checks it can read without knowing the core.

A `CallRecord` is what a caller saw: what it asked for, when that was accepted, and what it was told. A `RequestRecord`
is one request: when its sender sent it, when and how that ended for the sender, and what the server did. Times are
nanoseconds of virtual time, `NEVER` for what has not happened. What few records have is given by their class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from asyncdispatch.simulation.calls import SimulatedCall

__all__ = ["NEVER", "CallRecord", "ContextRecord", "History", "RequestRecord", "State", "Term"]

NEVER = -1

State = tuple[str, int, Mapping[str, Any]]
"""An object as the server keeps it: uid, version, what it holds."""


class RequestRecord:
    """One request of a call, of a reconcile (`look`), or of somebody without a dispatcher (`record` None)."""

    ended = NEVER
    """When its sender knew how it had ended, or stopped waiting."""
    error: str | None = None
    """What its sender was told; "" for success, None while it was told nothing."""
    landed = NEVER
    """When the server carried it out."""
    before: State | None = None
    """The object before it; None: it was not there."""
    after: State | None = None
    look = False
    """It asks what became of an earlier request."""

    # What only the engine needs.
    open = True  # its sender waits
    stopping = False  # its sender was asked to end it
    lands = NEVER  # when it will reach the store

    def __init__(self, call: SimulatedCall, record: CallRecord | None, sent: int, cut_off: int, entry: Any) -> None:
        self.call = call
        """What was sent: as accepted, merged, or decided again."""
        self.record = record
        self.sent = sent
        self.cut_off = cut_off
        self.entry = entry

    @property
    def changed(self) -> bool:
        """It has changed its object."""
        return self.before is not self.after


class ContextRecord:
    """A scheduling context: `until` is when it ends by itself, `ended` when somebody ended it."""

    ended = NEVER

    def __init__(self, epoch: int, began: int, until: int | None = None, parent: ContextRecord | None = None) -> None:
        self.epoch = epoch
        self.began = began
        self.until = until
        self.parent = parent

    @property
    def over(self) -> int | None:
        """When it was over: ended by somebody, by itself, or with its parent. None while it lives."""
        times = [] if self.ended == NEVER else [self.ended]
        if self.until is not None:
            times.append(self.until)
        if self.parent is not None and (above := self.parent.over) is not None:
            times.append(above)
        return min(times, default=None)


class CallRecord:
    """One accepted call of one replica, and what its caller was told."""

    how = ""
    """What it was told: "succeeded", "failed" and so on; "" while it was told nothing."""
    told = NEVER
    tellings = 0
    """How often it was told something: once, it is to be hoped."""
    value: Any = None
    by = 0
    """The ticket that Overwritten and Skipped name."""
    ambiguous = False
    late = False
    """It was told of a success that came too late."""
    context: ContextRecord | None = None
    lead: CallRecord | None = None
    """The call whose execution it shares, if it joined one."""

    # What only the engine needs.
    heard = False  # its scheduler wants to know what became of it
    open: RequestRecord | None = None  # its request on the wire
    entry: Any = None

    def __init__(self, replica: int, ticket: int, call: SimulatedCall, accepted: int, deadline: int) -> None:
        self.replica = replica
        self.ticket = ticket
        self.call = call
        self.accepted = accepted
        self.deadline = deadline
        self.requests: list[RequestRecord] = []


class Term(NamedTuple):
    """A time in which a replica took itself for the leader: from when it knew until when it would have stopped."""

    replica: int
    since: int
    until: int


class History:
    """All that happened in one run."""

    def __init__(self) -> None:
        self.calls: list[CallRecord] = []
        self.requests: list[RequestRecord] = []
        """Requests of calls, in the order in which they were sent."""
        self.audit: list[RequestRecord] = []
        """Requests that read or wrote something, in the order in which the server carried them out."""
        self.decisions: list[tuple[int, str, int]] = []
        """Replica, uid, when: it has decided where a Pod goes, or that it goes nowhere."""
        self.terms: list[Term] = []
        self.crashed: dict[int, int] = {}
        """Replica -> when. Its calls are told nothing any more."""
        self.stalls: list[tuple[int, int, int]] = []
        """Replica, from, until: it looked at nothing."""
        self.faults: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Calls that were not accepted, by the error's name."""
        self.steps = 0
        self.began = self.ended = 0
