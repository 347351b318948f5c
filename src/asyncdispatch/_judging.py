"""What user code has raised or answered, as the core is told of it: for the workers, and for drivers in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncdispatch._core.parking import Failure
from asyncdispatch._core.states import PLACE_SHIFT, READ, SECOND
from asyncdispatch.calls import Again, Applied, Refused, Unknown, Verdict, VerdictKind
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.verdicts import classify, signal_of, signature_of

if TYPE_CHECKING:
    from asyncdispatch._core.states import Entry
    from asyncdispatch._delays import Delays
    from asyncdispatch.calls import APICall, Attempt
    from asyncdispatch.config import RetryPolicy


def failure_of(
    entry: Entry,
    call: APICall[Any],
    attempt: Attempt,
    error: BaseException,
    policy: RetryPolicy,
    delays: Delays,
    now: int,
) -> Failure:
    """The error with its verdict and delay; an error of the user's own classification ends the call (law L14)."""
    try:
        verdict = classify(call, attempt, error, policy)
        if verdict.maybe_applied and not attempt.sent:
            verdict = Verdict(verdict.kind, False, verdict.retry_after, verdict.scope, verdict.reason)
        failures = 1 if entry.more is None else entry.more.failures + 1
        accepted = (entry.accepted >> PLACE_SHIFT) / SECOND
        delay, exhausted = delays.next(call.retry, verdict, error, failures, accepted, now / SECOND)
    except BaseException as raised:
        maybe = attempt.sent and call.effect is not READ
        raised.__cause__ = raised.__cause__ or error
        return Failure(raised, Verdict(VerdictKind.PERMANENT, maybe, reason="classify, wait or stop raised"))
    return Failure(
        error,
        verdict,
        round(delay * SECOND),
        exhausted,
        signal_of(verdict, error),
        signature_of(verdict, error),
    )


def answer_of(answer: Any, call: APICall[Any]) -> Any:
    """What `reconcile` has returned. Raises `ConfigurationError` for what is no answer."""
    if answer is Unknown:
        return Unknown()
    if isinstance(answer, Again):
        again = answer.call
        if not isinstance(again, type(call)) or again.target.lane != call.target.lane:
            raise ConfigurationError("Again.call", again, f"must be a {type(call).__name__} of {call.target}")
    elif not isinstance(answer, (Applied, Refused, Unknown)):
        raise ConfigurationError("reconcile", answer, "must return Applied, Again, Refused or Unknown")
    return answer


def refusal_of(answer: Any) -> Verdict:
    """The verdict on the call, should `answer` be Refused."""
    if not isinstance(answer, Refused):
        return Verdict(VerdictKind.PERMANENT)
    gone = getattr(answer.error, "gone", False) or getattr(answer.error, "status", None) == 404
    return Verdict(VerdictKind.GONE if gone else VerdictKind.PERMANENT, reason=str(answer.error))
