"""BindGate: what a bind still waits for, since when, and what to do about what has failed (law L21, rule R23).

The core already holds a call with `awaits_prerequisites` until its context's requirements are confirmed. The gate keeps
nothing beside that: it reads the context, and the calls that live in it, whenever it is asked. So no event can be
missed because it came before the question (case I5).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from asyncdispatch._core.states import PLACE_SHIFT, SECOND, CallState
from asyncdispatch.calls import Verdict, VerdictKind
from asyncdispatch.config import check_seconds
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.errors import ConfigurationError, OutcomeError, PrerequisiteFailed, StaleContext
from asyncdispatch.outcomes import Expired, Failed, Shed

if TYPE_CHECKING:
    from asyncdispatch.dispatcher import Dispatcher
    from asyncdispatch.handles import CallHandle

__all__ = ["TRANSITIONS", "BindGate", "Requirement", "RequirementState", "Retry", "what_to_retry"]


class RequirementState(enum.Enum):
    """How far one requirement of a context is."""

    DECLARED = "declared"
    PENDING = "pending"
    CONFIRMED = "confirmed"
    FAILED = "failed"


DECLARED, PENDING = RequirementState.DECLARED, RequirementState.PENDING
CONFIRMED, FAILED = RequirementState.CONFIRMED, RequirementState.FAILED

TRANSITIONS: dict[RequirementState, dict[RequirementState, str]] = {
    DECLARED: {
        PENDING: "a call with this `prerequisite` is accepted",
        CONFIRMED: "`context.confirm(name)`",
        FAILED: "`context.fail(name, error)`",
    },
    PENDING: {
        CONFIRMED: "the call succeeds, or `context.confirm(name)`",
        FAILED: "the call ends in any other way, or `context.fail(name, error)`",
    },
    CONFIRMED: {
        PENDING: "another call for it is accepted: it is to be confirmed anew",
        FAILED: "`context.fail(name, error)`",
    },
    FAILED: {
        PENDING: "another call for it is accepted",
        CONFIRMED: "`context.confirm(name)`",
    },
}
"""Which state may follow which, and what leads there. A new context begins with all of its requirements declared."""


class Retry(enum.Enum):
    """What is worth repeating after a requirement has failed. The two are counted apart."""

    CALL = "call"
    """The decision still stands: make the API call again, in the same context."""
    SCHEDULING = "scheduling"
    """What the decision was built on is not so: consider the Pod again, in a new context."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement as it is now.

    `seconds` it has been in this state if it is pending, else since its context began. `ticket` and `doing` tell of
    the call that is to confirm it, if one is accepted and not ended. `error` and `retry` tell of a failure.
    """

    name: str
    state: RequirementState
    seconds: float
    ticket: int | None = None
    doing: CallState | None = None
    error: BaseException | None = None
    retry: Retry | None = None

    def __str__(self) -> str:
        text = f"{self.name} {self.state.value} for {self.seconds:.3g} s"
        if self.doing is not None:
            text += f" (call {self.ticket} is {self.doing.value})"
        return text if self.error is None else f"{text}: {self.error!r}"


class BindGate:
    """Asks whether the bind decided in a context may go, and what it waits for. Event loop only; holds nothing.

    Requirements are named by `dispatcher.contexts.begin(pod, requires=("volume", "quota"))`. A call with
    `prerequisite="volume"` in that context confirms or fails one by its end; `context.confirm` and `context.fail` do
    so from outside.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def look(self, context: SchedulingContext) -> tuple[Requirement, ...]:
        """All requirements of a context, in the order in which they were declared.

        In a context that has ended nothing is pending any more: what was not confirmed shows as declared or failed.
        """
        core, now = self._dispatcher._step()
        _check_context(context)
        epoch = core.epochs.table.get(context.epoch)
        living = [] if epoch is None or epoch.context is not context else list(epoch.handles.values())
        calls = {handle.call.prerequisite: cast("CallHandle[object]", handle) for handle in reversed(living)}
        return tuple(_requirement(context, name, calls.get(name), now) for name in context.requirements)

    def missing(self, context: SchedulingContext) -> tuple[Requirement, ...]:
        """The requirements that are not confirmed: what is missing, and since when."""
        return tuple(each for each in self.look(context) if each.state is not CONFIRMED)

    async def ready(self, context: SchedulingContext, timeout: float | None = None) -> None:
        """Wait until every requirement of `context` is confirmed; returns at once if all are.

        Raises `PrerequisiteFailed`, with the name, as soon as one has failed; `what_to_retry` reads it. Raises
        `StaleContext` as soon as the context ends or its validity is over, `TimeoutError` after `timeout` seconds
        (None: no limit but the context's). Cancelling it changes nothing.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        self._dispatcher._check_thread()
        _check_context(context)
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not self._decided(context, loop.time()):
            if deadline is not None and loop.time() >= deadline:
                waiting = "; ".join(map(str, self.missing(context)))
                raise TimeoutError(f"{context.ref} is not ready after {timeout:.3g} s: {waiting}")
            await _changed(context, loop, min((when for when in (deadline, _limit(context)) if when), default=None))

    def _decided(self, context: SchedulingContext, now: float) -> bool:
        """True if it may go, False if it must wait. The clock is compared first (rule R7)."""
        limit = _limit(context)
        ended = context.ended or ("its validity is over" if limit is not None and limit <= now else None)
        if ended is not None:
            raise StaleContext(f"context {context.epoch} of {context.ref} has ended ({ended}); begin a new one")
        for name, state in context.requirements.items():
            if isinstance(state, BaseException):
                raise _failure(context, name, state)
        return not context.missing()


def what_to_retry(error: BaseException) -> Retry:
    """Whether the API call or the scheduling attempt is to be repeated after `error`.

    `error` is what a requirement failed with, or the `PrerequisiteFailed` that tells of it. The call, if the server or
    the way to it was at fault, or time or room was lacking: an `.status` of 429 or from 500 on, an OSError, a time-out,
    a verdict RETRY or LATER. The scheduling attempt for anything else, since then the answer was about the object.
    """
    if isinstance(error, PrerequisiteFailed):
        return what_to_retry(error.__cause__) if error.__cause__ is not None else Retry.SCHEDULING
    if isinstance(error, OutcomeError):
        match error.outcome:
            case Expired() | Shed():
                return Retry.CALL
            case Failed(verdict=verdict, error=original):
                again = verdict.kind in (VerdictKind.RETRY, VerdictKind.LATER)
                return Retry.CALL if again else what_to_retry(original)
            case _:
                return Retry.SCHEDULING
    status = getattr(error, "status", None)
    # A TimeoutError is an OSError.
    passing = isinstance(error, OSError) or (isinstance(status, int) and (status == 429 or status >= 500))
    return Retry.CALL if passing else Retry.SCHEDULING


def _check_context(context: object) -> None:
    if not isinstance(context, SchedulingContext):
        raise ConfigurationError("context", context, "must be a SchedulingContext: see dispatcher.contexts.begin")


def _requirement(context: SchedulingContext, name: str, handle: CallHandle[object] | None, now: int) -> Requirement:
    value = context.requirements[name]
    since = context.began
    ticket = doing = None
    if handle is not None:
        ticket, doing = handle.ticket, handle.state
    if value is True:
        return Requirement(name, CONFIRMED, now / SECOND - since, ticket, doing)
    if isinstance(value, BaseException):
        return Requirement(name, FAILED, now / SECOND - since, ticket, doing, value, what_to_retry(value))
    if handle is not None:
        return Requirement(name, PENDING, (now - (handle.accepted >> PLACE_SHIFT)) / SECOND, ticket, doing)
    return Requirement(name, DECLARED, now / SECOND - since)


def _failure(context: SchedulingContext, name: str, error: BaseException) -> PrerequisiteFailed:
    failed = PrerequisiteFailed(f"{context.ref}: requirement {name!r} failed: {error!r}", name)
    failed.outcome = Failed(error, Verdict(VerdictKind.PERMANENT, reason=f"requirement {name!r} failed"))
    failed.__cause__ = error
    return failed


def _lineage(context: SchedulingContext) -> Iterator[SchedulingContext]:
    above: SchedulingContext | None = context
    while above is not None:
        yield above
        above = above.parent


def _limit(context: SchedulingContext) -> float | None:
    """When the context ends by itself, in seconds of the loop's clock; None: never."""
    return min((each.valid_until for each in _lineage(context) if each.valid_until is not None), default=None)


async def _changed(context: SchedulingContext, loop: asyncio.AbstractEventLoop, until: float | None) -> None:
    """Wait for a change of the context, `until` at most: nothing waits on an event alone (rule R23)."""
    future: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not future.done():
            future.set_result(None)

    timer = loop.call_at(until, note) if until is not None else None
    context.watchers.append(note)
    try:
        await future
    finally:
        context.watchers.remove(note)
        if timer is not None:
            timer.cancel()
