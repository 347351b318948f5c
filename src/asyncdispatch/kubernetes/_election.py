"""Who holds one Lease, decided without clock, loop, randomness or network (rules R5, R7, R8).

An `Election` is told the time and what the server has answered; it says what to ask next, and what has changed. Times
are seconds of one monotonic clock: nothing here compares a time that another process has written.

Why no two hold a Lease at one time: a term is valid until its last successful renewal was *sent*, plus the renew
deadline. Who waits for the Lease counts its duration, which is longer, from when it *saw* the Lease change, which is
later; and every write asks for the resourceVersion that was seen, so that none lands on what it does not know.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from asyncdispatch.config import check_seconds
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes._record import Record

__all__ = [
    "Change",
    "Election",
    "Event",
    "Kind",
    "LeaseState",
    "LeaseTiming",
    "Record",
    "Refusal",
    "Refused",
    "Request",
]

JITTER = 1.2
"""Who waits for a Lease looks every retry period, plus up to so many times that, drawn anew each time."""


class LeaseState(enum.Enum):
    """What an election is doing."""

    IDLE = "idle"
    """Not holding the Lease, and not asked to."""
    CANDIDATE = "candidate"
    LEADING = "leading"
    RELEASING = "releasing"
    """Nothing is done under the Lease any more; the server is being told."""


class Event(enum.Enum):
    """What can happen to an election."""

    SEEK = "seek"
    ACQUIRED = "acquired"
    EXTENDED = "extended"
    LOST = "lost"
    RELEASE = "release"
    RELEASED = "released"


_S, _E = LeaseState, Event
TRANSITIONS: Mapping[tuple[LeaseState, Event], LeaseState] = {
    (_S.IDLE, _E.SEEK): _S.CANDIDATE,
    (_S.CANDIDATE, _E.ACQUIRED): _S.LEADING,
    (_S.LEADING, _E.EXTENDED): _S.LEADING,
    (_S.LEADING, _E.LOST): _S.IDLE,
    (_S.LEADING, _E.RELEASE): _S.RELEASING,
    (_S.CANDIDATE, _E.RELEASE): _S.RELEASING,
    (_S.RELEASING, _E.RELEASED): _S.IDLE,
}


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """How a Lease is held, in seconds; the defaults are client-go's.

    Others may take it `lease_duration` after they saw it change last. Its holder gives up `renew_deadline` after its
    last successful renewal was sent: the difference is what a write may take to land, and what clocks may differ in
    rate. It is renewed every `retry_period`, and each request has at most a third of the renew deadline.
    """

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        for name in ("lease_duration", "renew_deadline", "retry_period"):
            check_seconds(name, getattr(self, name))
        if self.lease_duration != int(self.lease_duration):
            raise ConfigurationError(
                "lease_duration", self.lease_duration, "give whole seconds: a Lease holds no parts"
            )
        if self.lease_duration <= self.renew_deadline:
            remedy = f"must be above renew_deadline ({self.renew_deadline:g}): else two may hold the Lease at one time"
            raise ConfigurationError("lease_duration", self.lease_duration, remedy)
        if self.renew_deadline <= self.retry_period * JITTER:
            remedy = (
                f"must be above {JITTER} times retry_period ({self.retry_period:g}): else one late renewal loses it"
            )
            raise ConfigurationError("renew_deadline", self.renew_deadline, remedy)

    @property
    def request_timeout(self) -> float:
        """What one request may take (rule R8)."""
        return self.renew_deadline / 3


class Kind(enum.Enum):
    """What is asked of the server."""

    READ = "read"
    CREATE = "create"
    CLAIM = "claim"
    RENEW = "renew"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Request:
    """One request: sent now, worthless after `deadline`. A write is fenced by the version in `base`."""

    kind: Kind
    sent: float
    deadline: float
    base: Record | None


class Refusal(enum.Enum):
    """An answer that is no Lease."""

    CONFLICT = "conflict"
    """The version asked for is not the newest, or the name is taken: perhaps by our own first try (rule R5)."""
    MISSING = "missing"
    """There is no such Lease."""
    FAILED = "failed"
    """Anything else; a write may have been applied, and may yet be."""


@dataclass(frozen=True, slots=True)
class Refused:
    kind: Refusal
    reason: str


Answer = Record | Refused


@dataclass(frozen=True, slots=True)
class Change:
    """Something has happened: for whoever runs the election to pass on."""

    event: Event
    valid_until: float
    reason: str = ""


class View:
    """What was seen of a Lease last, and since when it has been like that by our own clock."""

    __slots__ = ("changes", "present", "record", "since")

    def __init__(self) -> None:
        self.changes = 0
        self.record: Record | None = None
        self.present = False
        self.since = -math.inf

    def see(self, record: Record | None, now: float) -> None:
        """The Lease as it is now; None: there is none."""
        if record is None:
            if self.present:
                self.since = now
        else:
            if not self.present or self.record is None or self.record.spec != record.spec:
                self.since = now
                self.changes += 1
            self.record = record
        self.present = record is not None

    @property
    def holder(self) -> str:
        """Who holds it; "" for nobody."""
        return self.record.holder if self.record is not None and self.present else ""

    def free_at(self, identity: str, default: float) -> float:
        """From when on it may be taken by `identity`.

        A Lease that is there no more may have been held, by whomever, until right now: that counts as a change like
        any other. Only who has never seen it takes it at once.
        """
        if self.record is None:
            return -math.inf
        if not self.present:
            return self.since + max(default, self.record.duration(default))
        if self.record.holder in ("", identity):
            return -math.inf
        return self.since + self.record.duration(default)


class Election:
    """One participant in the election for one Lease.

    `identity` is the participant's own name, which nobody else has. `next` says what to ask, `answered` takes the
    answer, and `changes` collects what came of it; it is for the caller to empty after each step. `draw` gives numbers
    from 0 to 1. At most one request is in flight.
    """

    def __init__(self, identity: str, timing: LeaseTiming, draw: Callable[[], float]) -> None:
        self.identity = identity
        self.timing = timing
        self.state = LeaseState.IDLE
        self.view = View()
        self.valid_until = -math.inf
        self.changes: list[Change] = []
        self.flying: Request | None = None
        self.terms = 0
        self._draw = draw
        self._newest = False  # `view` is the newest version that we know of: a write may be based on it
        self._doubt = False  # a write of ours may have been applied since `view`
        self._next_at = -math.inf
        self._conflict_at = -math.inf
        self._release_by = math.inf

    # -- what the caller wants ----------------------------------------------------------------------------------------

    def seek(self, now: float) -> None:
        """Try to get the Lease, from now on. Nothing changes if that is so already."""
        if self.state is LeaseState.IDLE:
            self._go(Event.SEEK)
            self._newest = False  # time has passed: look first
            self._next_at = now

    def release(self, now: float) -> None:
        """Be no candidate any more; give the Lease back if it is, or may be, ours. The term ends at once."""
        self.tick(now)
        if self.state is LeaseState.LEADING or (self.state is LeaseState.CANDIDATE):
            ours = self.state is LeaseState.LEADING or self._doubt or self.view.holder == self.identity
            self.valid_until = -math.inf
            self._go(Event.RELEASE, "it is given back")
            self._next_at = now
            self._release_by = now + self.timing.request_timeout
            if not ours:
                self._go(Event.RELEASED)

    def drop(self, now: float, reason: str) -> None:
        """End the term and leave the Lease to run out: something done under it may yet land."""
        self.tick(now)
        if self.state is LeaseState.LEADING:
            self._lose(reason)

    # -- time and requests --------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """The first thing looked at in every step is the clock (rule R7)."""
        if self.state is LeaseState.LEADING and now >= self.valid_until:
            self._lose("it was not renewed in time")
        elif self.state is LeaseState.RELEASING and now >= self._release_by:
            self._go(Event.RELEASED, "the server could not be told")

    def wake_at(self) -> float:
        """When `next` has to be asked again, if nothing happens before."""
        if self.state is LeaseState.IDLE:
            return math.inf
        at = self._next_at if self.flying is None else math.inf
        if self.state is LeaseState.LEADING:
            return min(at, self.valid_until)
        return min(at, self._release_by) if self.state is LeaseState.RELEASING else at

    def next(self, now: float) -> Request | None:
        """What to send now, or None. Its answer is awaited before there is another."""
        self.tick(now)
        if self.flying is not None or self.state is LeaseState.IDLE or now < self._next_at:
            return None
        kind = self._wanted(now)
        deadline = now + self.timing.request_timeout
        if self.state is LeaseState.LEADING:
            deadline = min(deadline, self.valid_until)
        elif self.state is LeaseState.RELEASING:
            deadline = min(deadline, self._release_by)
        self._doubt = self._doubt or kind is not Kind.READ
        self.flying = Request(kind, now, deadline, self.view.record if self.view.present else None)
        return self.flying

    def _wanted(self, now: float) -> Kind:
        if not self._newest:
            return Kind.READ
        if self.state is LeaseState.LEADING:
            return Kind.RENEW
        if self.state is LeaseState.RELEASING:
            return Kind.RELEASE
        if now < self._free_at():
            return Kind.READ
        return Kind.CLAIM if self.view.present else Kind.CREATE

    def _free_at(self) -> float:
        return self.view.free_at(self.identity, self.timing.lease_duration)

    # -- answers ------------------------------------------------------------------------------------------------------

    def answered(self, answer: Answer, now: float) -> None:
        """What became of the request in flight."""
        request, self.flying = self.flying, None
        assert request is not None, "an answer to no request"
        self.tick(now)
        self._next_at = self._pace(request, now)
        if isinstance(answer, Record):
            self.view.see(answer, now)
            self._newest, self._doubt = True, False
            if request.kind is Kind.READ:
                self._seen(now)
            else:
                self._written(request, now)
        elif answer.kind is Refusal.MISSING and request.kind is Kind.READ:
            self.view.see(None, now)
            self._newest, self._doubt = True, False
            self._missing(now)
        else:
            self._newest = False
            if answer.kind is not Refusal.FAILED and now - self._conflict_at >= self.timing.retry_period:
                self._conflict_at = self._next_at = now  # look at once, but not in circles

    def _pace(self, request: Request, now: float) -> float:
        """When to ask again if nothing speaks for sooner. A request that took long was its own pause."""
        if self.state is LeaseState.CANDIDATE:
            return now + self.timing.retry_period * (1 + JITTER * self._draw())
        return max(now, request.sent + self.timing.retry_period)

    def _seen(self, now: float) -> None:
        """The Lease was read."""
        ours = self.view.holder == self.identity
        if self.state is LeaseState.LEADING and not ours:
            self._lose(f"{self.view.holder or 'nobody'} holds it")
        elif self.state is LeaseState.RELEASING and not ours:
            self._go(Event.RELEASED)
        elif self.state is LeaseState.CANDIDATE:
            self._next_at = max(now, min(self._next_at, self._free_at()))
        else:
            self._next_at = now

    def _missing(self, now: float) -> None:
        """There is no such Lease (any more)."""
        if self.state is LeaseState.LEADING:
            self._lose("the Lease was deleted")
        elif self.state is LeaseState.RELEASING:
            self._go(Event.RELEASED)
        elif self.state is LeaseState.CANDIDATE:
            self._next_at = max(now, min(self._next_at, self._free_at()))

    def _written(self, request: Request, now: float) -> None:
        """A write of ours has succeeded."""
        ours = self.view.holder == self.identity
        valid_until = request.sent + self.timing.renew_deadline
        if self.state is LeaseState.LEADING and ours:
            self.valid_until = valid_until
            self._go(Event.EXTENDED)
        elif self.state is LeaseState.CANDIDATE and ours and now < valid_until:
            self.valid_until = valid_until
            self.terms += 1
            self._next_at = max(now, request.sent + self.timing.retry_period)
            self._go(Event.ACQUIRED)
        elif self.state is LeaseState.RELEASING and not ours:
            self._go(Event.RELEASED)
        else:  # it landed, and is not what is wanted by now
            self._next_at = now

    # -- states -------------------------------------------------------------------------------------------------------

    def _lose(self, reason: str) -> None:
        self.valid_until = -math.inf
        self._go(Event.LOST, reason)

    def _go(self, event: Event, reason: str = "") -> None:
        """The only writer of `state`. An event that is not in the table is a defect."""
        self.state = TRANSITIONS[self.state, event]
        self.changes.append(Change(event, self.valid_until, reason))
