"""What happened in a simulated run, in records that whoever checks it can read without knowing the core.

A `CallRecord` is what a caller saw: what it asked for, when that was accepted, and what it was told. A `RequestRecord`
is one request: when its sender sent it, when and how that ended for the sender, and what the server did. Times are
nanoseconds of virtual time, `NEVER` for what has not happened: it is later than all. What few records have is given by
their class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from asyncdispatch.simulation.calls import SimulatedCall

__all__ = ["NEVER", "CallRecord", "ContextRecord", "History", "RequestRecord", "State", "Term"]

NEVER = 1 << 62

State = tuple[str, int, Mapping[str, Any]]
"""An object as the server keeps it: uid, version, what it holds."""


class RequestRecord:
    """One request of a call, of a reconcile (`look`), or of somebody without a dispatcher (`record` None)."""

    ended = NEVER
    """When its sender knew how it had ended, or stopped waiting."""
    error = ""
    """What its sender was told when it ended; "" for success."""
    landed = NEVER
    """When the server carried it out."""
    before: State | None = None
    """The object before it; None: it was not there."""
    after: State | None = None
    look = False
    """It asks what became of an earlier request."""

    # What only the engine needs.
    stopping = False  # its sender was asked to end it
    lands = 0  # when it reaches the store, if it does

    def __init__(self, call: SimulatedCall, record: CallRecord | None, sent: int, cut_off: int) -> None:
        self.call = call
        """What was sent: as accepted, merged, or decided again."""
        self.record = record
        self.sent = sent
        self.cut_off = cut_off

    @property
    def changed(self) -> bool:
        """It has changed its object."""
        return self.before is not self.after


class ContextRecord:
    """A scheduling context: `until` is when it ends by itself, `ended` when somebody ended it."""

    ended = NEVER

    def __init__(self, epoch: int, began: int, until: int = NEVER, parent: ContextRecord | None = None) -> None:
        self.epoch = epoch
        self.began = began
        self.until = until
        self.parent = parent

    @property
    def over(self) -> int:
        """When it was over: ended by somebody, by itself, or with its parent. `NEVER` while it lives."""
        over = min(self.ended, self.until)
        return over if self.parent is None else min(over, self.parent.over)


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

    def __init__(
        self, replica: int, ticket: int, call: SimulatedCall, accepted: int, deadline: int, entry: Any = None
    ) -> None:
        self.replica = replica
        self.ticket = ticket
        self.call = call
        self.accepted = accepted
        self.deadline = deadline
        self.entry = entry  # the engine's alone; None once it has succeeded, as nothing more can come of it
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
        self.began = self.ended = 0

    def forget(self) -> None:
        """Let go of all records. They name each other, and few of them are left to the garbage collector so."""
        self.audit.clear()
        self.requests.clear()
        while self.calls:
            record = self.calls.pop()
            record.requests.clear()
            record.entry = None
