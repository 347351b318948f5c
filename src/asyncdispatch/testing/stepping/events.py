"""What a driver of the core records: one flat list of events, from which the laws over time are checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncdispatch.calls import APICall, ObjectRef, Verdict
from asyncdispatch.errors import RefusedError
from asyncdispatch.outcomes import AnyOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`step` counts the driver's operations; all that one operation leads to has the same number."""

    step: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(Event):
    """A handle was returned; `lead` is the ticket of the execution that it wants, its own unless it joined."""

    ticket: int
    call: APICall[Any]
    lead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Event):
    """`submit` has raised."""

    call: APICall[Any]
    error: RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """An execution took a seat; `reconcile`: it sends nothing but asks what became of its last request."""

    ticket: int
    reconcile: bool
    sent: APICall[Any]
    seats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Event):
    """An attempt has ended. `how`: succeeded, failed, stopped, applied, again, refused, unknown, reconcile_failed."""

    ticket: int
    how: str
    goes_on: bool = False
    verdict: Verdict | None = None
    sent: bool = True
    value: Any = None
    maybe_applied: bool = False  # what an Unknown says of an earlier request


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Event):
    """A handle was told its outcome."""

    ticket: int
    outcome: AnyOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(Event):
    """A caller has cancelled its handle, and was told that this is so."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Event):
    """An attempt in flight was asked to stop."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed(Event):
    """The call of an execution was rebased to `call`: what it sends is no handle's own call any more."""

    ticket: int
    call: APICall[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Began(Event):
    """A context began. Times in ns; None: no limit of its own."""

    epoch: int
    ref: ObjectRef
    parent: int | None
    valid_until: int | None
    requires: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended(Event):
    epoch: int
    valid_until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """A context has ended, by itself or by someone."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Required(Event):
    """A requirement was confirmed (True) or failed from outside."""

    epoch: int
    name: str
    state: BaseException | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(Event):
    """Nothing is accepted any more; what is there ends by `until` (`drain`), or at once (`close`: None)."""

    until: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Event):
    """Something that no law is about: what became of a request, what another party did. `ref`: to which object."""

    ref: ObjectRef | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked(Event):
    """All that was due by now has been done: the end of a step."""
