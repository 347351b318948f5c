"""States of a call, their one transition table, and the entry that moves through it.

The laws, by number; `invariants.py` checks what can be seen in one state, `history.py` in tests what can't:

L1 one outcome each · L2 one write per object in flight · L3 seats · L4 capacity · L5 nothing starts too late ·
L6 aging bounds waiting · L7 fair share · L8 joining by key · L9 one rank per execution, never worse · L10 ambiguity ·
L11 late results bind nothing · L12 line and superseding · L13 merging · L14 errors in user code end one call ·
L15 closing resolves all · L16 deterministic · L17 fenced binds · L18 own writes are seen · L19 no leaks, timers
everywhere · L20 tokens at start, waiting holds no seat · L21 requirements.

An `Entry` is one accepted call. It is the caller's handle and, unless it joined another's, also the execution:
`phase` says where the execution is, `value` what the handle was told.
"""

from __future__ import annotations

import enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from asyncdispatch.calls import Effect
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Overwritten, Shed, Skipped, Succeeded

if TYPE_CHECKING:
    from collections.abc import Hashable

    from asyncdispatch._core.epochs import Epoch
    from asyncdispatch._core.ordering import FlowQueue, Group, Older
    from asyncdispatch._core.parking import Hold, LaterScope
    from asyncdispatch._core.seats import Flow
    from asyncdispatch.calls import APICall
    from asyncdispatch.outcomes import AnyOutcome

SECOND = 1_000_000_000
NEVER = 1 << 120
"""Later than any time and behind any place."""

TICKET_BITS = 24
PLACE_SHIFT = TICKET_BITS + 3
"""A place is `accepted_ns << 27 | ticket`: comparing places compares times, then tickets. Three bits between them hold
the urgency of a level, so that a level's key (place minus its head start) breaks ties for the more urgent (law L6)."""


TICKET_MASK = (1 << TICKET_BITS) - 1


def place_of(now: int, ticket: int) -> int:
    return now << PLACE_SHIFT | (ticket & TICKET_MASK)


class CallState(enum.Enum):
    """Where a call is. The waiting states' values are those of `Expired.where`."""

    ACCEPTED = "accepted"
    DELAYED = "delayed"
    REQUIREMENTS = "requirements"
    LINE = "line"
    QUEUED = "queued"
    BACKOFF = "backoff"
    HELD = "held"
    IN_FLIGHT = "in_flight"
    STOPPING = "stopping"
    JOINED = "joined"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    OVERWRITTEN = "overwritten"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SHED = "shed"

    __hash__ = object.__hash__  # as equality is identity; Enum's own is a slow Python method

    terminal: bool
    flying: bool
    bit: int
    followers: int


# Looking a member up on its class is slow in Python 3.11: these names are for the hot path.
ACCEPTED = CallState.ACCEPTED
DELAYED = CallState.DELAYED
REQUIREMENTS = CallState.REQUIREMENTS
LINE = CallState.LINE
QUEUED = CallState.QUEUED
BACKOFF = CallState.BACKOFF
HELD = CallState.HELD
IN_FLIGHT = CallState.IN_FLIGHT
STOPPING = CallState.STOPPING
JOINED = CallState.JOINED
SUCCEEDED = CallState.SUCCEEDED
FAILED = CallState.FAILED
SKIPPED = CallState.SKIPPED
OVERWRITTEN = CallState.OVERWRITTEN
EXPIRED = CallState.EXPIRED
CANCELLED = CallState.CANCELLED
SHED = CallState.SHED
READ, IDEMPOTENT_WRITE, CREATE = Effect.READ, Effect.IDEMPOTENT_WRITE, Effect.CREATE

WAITING = (DELAYED, REQUIREMENTS, LINE, QUEUED, BACKOFF, HELD)
TERMINAL = (SUCCEEDED, FAILED, SKIPPED, OVERWRITTEN, EXPIRED, CANCELLED, SHED)
_ENDS_WAITING = (FAILED, SKIPPED, OVERWRITTEN, EXPIRED, CANCELLED, SHED)
_ENDS_FLIGHT = (FAILED, EXPIRED, CANCELLED)

TRANSITIONS: dict[CallState, tuple[CallState, ...]] = {
    ACCEPTED: (
        *(DELAYED, REQUIREMENTS, LINE, QUEUED, JOINED),
        *(SUCCEEDED, FAILED, EXPIRED),
    ),
    DELAYED: (REQUIREMENTS, LINE, QUEUED, *_ENDS_WAITING),
    REQUIREMENTS: (DELAYED, LINE, QUEUED, *_ENDS_WAITING),
    LINE: (QUEUED, BACKOFF, HELD, DELAYED, REQUIREMENTS, *_ENDS_WAITING),
    QUEUED: (IN_FLIGHT, LINE, DELAYED, REQUIREMENTS, HELD, *_ENDS_WAITING),
    BACKOFF: (LINE, QUEUED, DELAYED, REQUIREMENTS, *_ENDS_WAITING),
    HELD: (LINE, QUEUED, DELAYED, REQUIREMENTS, *_ENDS_WAITING),
    IN_FLIGHT: (STOPPING, BACKOFF, HELD, LINE, QUEUED, DELAYED, REQUIREMENTS, SUCCEEDED, *_ENDS_FLIGHT),
    STOPPING: (IN_FLIGHT, BACKOFF, HELD, LINE, QUEUED, DELAYED, REQUIREMENTS, *_ENDS_FLIGHT),
    JOINED: (SUCCEEDED, FAILED, SKIPPED, OVERWRITTEN, EXPIRED, CANCELLED),
    **dict.fromkeys(TERMINAL, ()),
}
"""Which state may follow which. `Entry.move` is the only writer of a phase and knows no other transition; the short
ways of common calls (short.py) write three of them, which are checked against this table at import."""

for _index, _state in enumerate(CallState):
    _state.bit = 1 << _index
    _state.terminal = _state in TERMINAL
    _state.flying = _state in (IN_FLIGHT, STOPPING)
for _state, _following in TRANSITIONS.items():
    _state.followers = sum(follower.bit for follower in _following)


def allowed(*states: CallState) -> bool:
    """True if each of the states may follow the one before it."""
    return all(after in TRANSITIONS[before] for before, after in pairwise(states))


_OUTCOME_STATES: dict[type, CallState] = {
    Succeeded: SUCCEEDED,
    Failed: FAILED,
    Skipped: SKIPPED,
    Overwritten: OVERWRITTEN,
    Expired: EXPIRED,
    Cancelled: CANCELLED,
    Shed: SHED,
}


class InvariantError(AssertionError):
    """The machine has contradicted itself: a defect of this library, never of its user."""


NO_BUCKET: dict[int, Entry] = {}
"""Where a handle's deadline stands before it is set, and after it was cleared."""


class Entry:
    """One accepted call: a handle, and its execution unless it joined another (law L8).

    Kept small: a hundred thousand of these may wait. What few calls need is in `more`.
    """

    __slots__ = (
        "accepted",  # its place: when it was accepted, then its ticket
        "at",  # the queue in which it stands and is valid, or None
        "attempts",  # entries into execute
        "bucket",  # of the handle's deadline
        "call",  # what is executed: merged, rebased or decided again, it is replaced
        "common",  # no `more`, nothing binds it, alone in its lane: short ways are open to it (see short.py)
        "deadline",  # ns; of the handle
        "ended",  # ns; when the handle was settled
        "flow",
        "group",  # its call type's
        "level",  # with `rank`, the execution's rank (law L9)
        "more",
        "owner",  # the shell's; the core never looks at it
        "phase",
        "rank",
        "started",  # ns; of the attempt in flight, else -1
        "ticket",
        "value",  # the value of a success, else the outcome
        "waiter",  # the shell's
    )

    def __init__(
        self,
        owner: Any,
        call: APICall[Any],
        ticket: int,
        place: int,
        level: int,
        deadline: int,
        flow: Flow,
        group: Group,
    ) -> None:
        self.owner = owner
        self.call = call
        self.common = False
        self.ticket = ticket
        self.accepted = self.rank = place
        self.level = level
        self.deadline = deadline
        self.flow = flow
        self.group = group
        self.phase = ACCEPTED
        self.at: FlowQueue | Older | None = None
        self.bucket: dict[int, Entry] = NO_BUCKET
        self.attempts = 0
        self.started = -1
        self.ended = 0
        self.value: Any = None
        self.more: More | None = None
        self.waiter: Any = None

    def move(self, state: CallState) -> None:
        """The only writer of `phase`."""
        if not self.phase.followers & state.bit:
            raise InvariantError(f"call {self.ticket} can't go from {self.phase.value} to {state.value}")
        self.phase = state

    def rare(self) -> More:
        """The optional part, made when first needed."""
        more = self.more
        if more is None:
            more = self.more = More()
            self.common = False
        return more

    @property
    def lead(self) -> Entry:
        """The entry whose execution this handle wants: itself, or the one that it joined."""
        more = self.more
        return self if more is None or more.lead is None else more.lead

    def done(self) -> bool:
        """True once the handle has its outcome."""
        return self.phase.terminal or (self.more is not None and self.more.own is not None)

    @property
    def leaves(self) -> bool:
        """True if it has its outcome, or wants to leave an attempt in flight and will get it with that one's end."""
        return self.done() or (self.more is not None and self.more.leaving is not None)

    @property
    def where(self) -> str:
        """What the execution is doing, as `Expired.where` says it."""
        return str((IN_FLIGHT if self.phase.flying else self.phase).value)

    @property
    def state(self) -> CallState:
        """Where the call is, as its caller sees it: a joiner is where the execution is that it joined."""
        if self.phase.terminal:
            return self.phase
        if self.more is not None:
            if self.more.own is not None:
                return _OUTCOME_STATES[type(self.more.own)]
            if self.more.lead is not None:
                return self.more.lead.phase
        return self.phase

    @property
    def settled(self) -> AnyOutcome | None:
        """The outcome, or None while there is none."""
        if self.phase is SUCCEEDED and (self.more is None or self.more.own is None):
            return Succeeded(self.value, **self.story(self.ended))
        if self.more is not None and self.more.own is not None:
            return self.more.own
        return self.value if self.phase.terminal else None

    def story(self, ended: int) -> dict[str, Any]:
        """What every outcome tells of the way that led to it."""
        lead, since = self.lead, self.accepted >> PLACE_SHIFT
        flown = 0 if lead.more is None else lead.more.flown
        if lead.started >= 0:
            flown += max(0, ended - max(lead.started, since))
        elapsed = ended - since
        return {
            "attempts": lead.attempts,
            "queued_seconds": max(0, elapsed - flown) / SECOND,
            "elapsed_seconds": elapsed / SECOND,
            "cause": None if lead.more is None else lead.more.error,
        }


class More:
    """What few calls need: joining, contexts, delays, retries, and what is known of sent requests."""

    __slots__ = (
        "again",
        "budgeted",
        "carrier",
        "doubt",
        "epoch",
        "error",
        "failures",
        "flown",
        "forgotten",
        "handles",
        "hash",
        "held_since",
        "hold",
        "interrupted",
        "later",
        "lead",
        "leavers",
        "leaving",
        "mark",
        "own",
        "paid",
        "ready_at",
        "reconciles",
        "reconciling",
        "same",
        "signature",
        "timer",
        "until",
        "verdict",
    )

    def __init__(self) -> None:
        # joining
        self.lead: Entry | None = None
        self.handles: list[Entry] | None = None  # living handles of the execution, in order of joining
        self.carrier: Entry | None = None  # whose call is executed; None: the entry's own
        self.own: AnyOutcome | None = None
        self.leavers: list[Entry] = []  # handles that wanted to leave in flight: told when the attempt has ended
        self.leaving: tuple[type, tuple[Any, ...]] | None = None  # of a leaver: its outcome's class and arguments
        self.hash: int | None = None  # of its key, in the index of keys
        # when it may start
        self.ready_at = 0
        self.epoch: Epoch | None = None
        self.until = 0  # end of backoff
        self.timer = 0  # number of its one live timer
        # what came of earlier attempts
        self.error: BaseException | None = None
        self.verdict: Any = None
        self.failures = 0
        self.interrupted = False  # an attempt was cancelled, and not by us
        self.flown = 0
        self.doubt = False  # a sent write may have been applied, and nothing has settled it since (law L10)
        self.forgotten = False  # its object was, while it flew: nothing of it is to be shown any more
        self.signature: Hashable = None
        self.same = 0
        self.budgeted = False  # it waits for the retry budget
        self.paid = False  # this attempt is a retry that the budget has given
        self.again: APICall[Any] | None = None
        self.reconciles = 0
        self.reconciling = False
        self.mark = 0  # a read: how many writes had ended when it began
        # parked for something elsewhere
        self.later: LaterScope | None = None
        self.hold: Hold | None = None
        self.held_since = 0
