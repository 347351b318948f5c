"""The caller's side of an accepted call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from asyncdispatch._core.states import SUCCEEDED, CallState, Entry
from asyncdispatch.errors import (
    AmbiguousOutcome,
    CallCancelled,
    CallFailed,
    CallOverwritten,
    CallShed,
    CallSkipped,
    DeadlineExpired,
    OutcomeError,
    PrerequisiteFailed,
)
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Outcome, Overwritten, Shed, Skipped, Succeeded

if TYPE_CHECKING:
    from asyncdispatch.dispatcher import Dispatcher

__all__ = ["CallHandle", "CallState"]

T = TypeVar("T")


class CallHandle(Entry, Generic[T]):
    """One accepted call. `await handle` gives its value or raises; `await handle.outcome()` never raises for its fate.

    Cancelling a task that awaits a handle leaves the call as it is; `cancel` ends it. Used from the dispatcher's event
    loop only. `ticket` numbers the accepted calls of a dispatcher.
    """

    __slots__ = ()

    def cancel(self, reason: str = "cancelled by its caller") -> bool:
        """End this call. False if it has its outcome, or is about to end, already.

        A call in flight is asked to stop, and is Cancelled once its attempt has ended (law L11).
        """
        return cast("Dispatcher", self.owner)._cancel(self, reason)

    def result(self) -> T:
        """The value, or the error for the outcome. Raises `asyncio.InvalidStateError` while there is none."""
        if self.phase is SUCCEEDED:
            return cast("T", self.value)
        outcome = self.settled
        if outcome is None:
            raise asyncio.InvalidStateError(f"call {self.ticket} is {self.state.value}: it has no outcome yet")
        raise error_for(self, outcome)

    def add_done_callback(self, fn: Callable[[CallHandle[T]], object]) -> None:
        """Have `fn(handle)` called by the event loop once the outcome is there; soon, if it is there already.

        An error that it raises is logged and counted, nothing else.
        """
        owner = cast("Dispatcher", self.owner)
        if self.done():
            owner._call_back(self, fn)
        else:
            self._add_waiter(fn)

    async def outcome(self) -> Outcome[T]:
        """Wait for the outcome. Raises nothing for the call's fate."""
        if not self.done():
            await self._wait()
        outcome = self.settled
        assert outcome is not None
        return outcome

    def __await__(self) -> Generator[Any, None, T]:
        if self.phase is SUCCEEDED:
            return self.value  # type: ignore[no-any-return]  # as `result`, without a call
        if not self.done():
            yield from self._wait().__await__()
        return self.result()

    async def _wait(self) -> None:
        future = cast("Dispatcher", self.owner)._loop.create_future()
        self._add_waiter(future)
        try:
            await future
        finally:
            if not self.done() and isinstance(self.waiter, list):
                self.waiter = [other for other in self.waiter if other is not future]

    def _add_waiter(self, waiter: Any) -> None:
        if self.waiter is None:
            self.waiter = [waiter]
        else:
            self.waiter.append(waiter)

    def __repr__(self) -> str:
        call = self.call
        return f"<CallHandle {self.ticket} {call.call_type} of {call.target} {self.state.value}>"


def error_for(handle: Entry, outcome: Outcome[Any]) -> OutcomeError:
    """The exception that stands for an outcome; its cause is the original error."""
    what = f"call {handle.ticket} ({handle.call.call_type} of {handle.call.target})"
    error: OutcomeError
    cause = outcome.cause
    match outcome:
        case Failed(error=original, verdict=verdict):
            cause = original
            if isinstance(original, PrerequisiteFailed):
                error = PrerequisiteFailed(f"{what}: {original}", original.name)
                error.outcome = outcome
                cause = original.__cause__
            elif outcome.ambiguous:
                error = AmbiguousOutcome(f"{what} failed and may have been applied: {original!r}", outcome)
            else:
                error = CallFailed(f"{what} failed ({verdict.kind.value}): {original!r}", outcome)
        case Skipped(by=by):
            error = CallSkipped(f"{what} was skipped: call {by} has succeeded and supersedes it", outcome)
        case Overwritten(by=by):
            error = CallOverwritten(f"{what} was overwritten by call {by}", outcome)
        case Expired(where=where):
            error = DeadlineExpired(f"{what} ran out of time ({where})", outcome)
        case Cancelled(reason=reason):
            error = CallCancelled(f"{what} was cancelled: {reason}", outcome)
        case Shed(reason=reason):
            error = CallShed(f"{what} was shed: {reason}", outcome)
        case Succeeded():
            raise AssertionError("a success has no error")
    error.__cause__ = cause
    return error
