"""What an error means when nobody else says so: the default of `classify`, and what an error says of the server.

Asked in this order: the call's own `retry.classify`, the configuration's, a method `classify(attempt, error)` of the
call's class, the classifiers that adapters have registered, and last the table below for plain functions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from asyncdispatch._core.parking import Signal
from asyncdispatch.calls import APICall, Attempt, Effect, Verdict, VerdictKind
from asyncdispatch.config import RetryPolicy
from asyncdispatch.errors import ConfigurationError

__all__ = ["classify", "register", "signal_of", "signature_of"]

Classifier = Callable[[BaseException, APICall[Any]], "Verdict | None"]

_registered: list[Classifier] = []


def register(classifier: Classifier) -> None:
    """Let an adapter classify its own errors for every call: `classifier(error, call)` gives a Verdict, or None."""
    if classifier not in _registered:
        _registered.append(classifier)


def classify(call: APICall[Any], attempt: Attempt, error: BaseException, default: RetryPolicy) -> Verdict:
    """The verdict on `error`. Raises what a user's `classify` raises, `ConfigurationError` if it gives no Verdict."""
    for policy in (call.retry, default):
        if policy is not None and policy.classify is not None:
            verdict = _checked(policy.classify(call, attempt, error))
            if verdict is not None:
                return verdict
    own = getattr(call, "classify", None)
    if own is not None:
        verdict = _checked(own(attempt, error))
        if verdict is not None:
            return verdict
    for classifier in _registered:
        verdict = classifier(error, call)
        if verdict is not None:
            return verdict
    return _by_default(call, error)


def _checked(verdict: object) -> Verdict | None:
    if verdict is not None and not isinstance(verdict, Verdict):
        raise ConfigurationError("classify", verdict, "must return a Verdict, or None for the default table")
    return verdict


_BY_STATUS: dict[int, VerdictKind] = {
    401: VerdictKind.HOLD,
    404: VerdictKind.GONE,
    409: VerdictKind.RECONCILE,
    429: VerdictKind.RETRY,
}


def _by_default(call: APICall[Any], error: BaseException) -> Verdict:
    """Plain functions: an integer `.status` is read as an API server's; faults of the transport may be repeated."""
    write = call.effect is not Effect.READ
    status = getattr(error, "status", None)
    if isinstance(status, int) and not isinstance(status, bool):
        retry_after = _retry_after(error)
        if status >= 500:
            return Verdict(VerdictKind.RETRY, write and retry_after is None, retry_after, reason=f"status {status}")
        kind = _BY_STATUS.get(status, VerdictKind.PERMANENT)
        scope = call.scope if kind is VerdictKind.HOLD else None
        return Verdict(kind, retry_after=retry_after, scope=scope, reason=f"status {status}")
    if isinstance(error, (OSError, TimeoutError)):
        return Verdict(VerdictKind.RETRY, write, reason=type(error).__name__)
    return Verdict(VerdictKind.PERMANENT, reason=type(error).__name__)


def _retry_after(error: BaseException) -> float | None:
    headers: Any = getattr(error, "headers", None) or {}
    try:
        return max(0.0, float(headers.get("Retry-After")))
    except (TypeError, ValueError, AttributeError):
        return None


def signal_of(verdict: Verdict, error: BaseException) -> Signal:
    """What the error says of the server's health: only what is its own fault or load counts."""
    fault = verdict.kind is VerdictKind.RETRY or (verdict.kind is VerdictKind.RECONCILE and verdict.maybe_applied)
    if not fault:
        return Signal.NONE
    status = getattr(error, "status", None)
    if status == 429:
        return Signal.PUSHBACK
    if status in (503, 504) or isinstance(error, TimeoutError):
        return Signal.OVERLOAD
    return Signal.FAULT


def signature_of(verdict: Verdict, error: BaseException) -> Hashable:
    """Equal for errors that won't pass by themselves when they come again (rule R12): a 500 without Retry-After."""
    if verdict.kind is VerdictKind.RETRY and getattr(error, "status", None) == 500 and verdict.retry_after is None:
        return (500, str(error))
    return None
