"""What an error means when nobody else says so: the default of `classify`, and what an error says of the server.

Asked in this order: the call's own `retry.classify`, the configuration's, a method `classify(attempt, error)` of the
call's class, the classifiers that adapters have registered, and last the API server's table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from asyncdispatch._core.parking import Signal
from asyncdispatch.apierrors import ApiError, api_error_of
from asyncdispatch.calls import APICall, Attempt, Effect, Verdict, VerdictKind
from asyncdispatch.config import RetryPolicy
from asyncdispatch.errors import ConfigurationError

__all__ = ["classify", "classify_status", "register", "signal_of", "signature_of"]

RETRY, LATER, HOLD = VerdictKind.RETRY, VerdictKind.LATER, VerdictKind.HOLD
RECONCILE, GONE, PERMANENT = VerdictKind.RECONCILE, VerdictKind.GONE, VerdictKind.PERMANENT

Call = APICall[Any]
Classifier = Callable[[BaseException, APICall[Any]], "Verdict | None"]

_registered: list[Classifier] = []


def register(classifier: Classifier) -> None:
    """Let an adapter classify its own errors for every call: `classifier(error, call)` gives a Verdict, or None."""
    if classifier not in _registered:
        _registered.append(classifier)


def classify(
    call: APICall[Any], attempt: Attempt, error: BaseException, default: RetryPolicy = RetryPolicy()
) -> Verdict:
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


def _by_default(call: APICall[Any], error: BaseException) -> Verdict:
    """Plain functions: an integer `.status` is read as an API server's answer; faults of the transport are repeated."""
    answered = api_error_of(error)
    if answered is not None:
        return classify_status(answered, call)
    if isinstance(error, (OSError, TimeoutError)):
        return Verdict(RETRY, call.effect is not Effect.READ, reason=type(error).__name__)
    return Verdict(PERMANENT, reason=type(error).__name__)


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
    """Equal for errors that won't pass by themselves when they come again (rule R12): a 500 without Retry-After.

    None for other errors, and for a 500 that is known to pass: an etcd without a leader, a webhook that is restarted.
    """
    if verdict.kind not in (RETRY, RECONCILE) or getattr(error, "status", None) != 500:
        return None
    answered = api_error_of(error)
    if answered is None or verdict.retry_after is not None or any(sign in answered.message for sign in _PASSING):
        return None
    return (500, answered.message)


_PASSING = ("etcdserver: ", "failed calling webhook")


# -- the API server's table -------------------------------------------------------------------------------------------
#
# Read from the top: what the message proves under any code comes first, then the codes. A write is maybe applied unless
# its answer proves that it was refused before storage (law L10): by a 4xx, by Retry-After, by a webhook that could not
# be asked. Reads never are.


def classify_status(error: ApiError, call: Call) -> Verdict:
    """The verdict on an answer of the API server, or of something in front of it."""
    if error.gone:
        return Verdict(GONE, reason=str(error))
    verdict = _by_message(error, call) or _ROWS.get(error.status, _by_hundred)(error, call)
    if error.repeated and verdict.kind is not RECONCILE and writes(error.request, call):
        return replace(verdict, maybe_applied=True)  # what the server did the first time, it has not said
    return verdict


# -- under any code ---------------------------------------------------------------------------------------------------

# A webhook may deny with whatever code it likes, and a policy with one of four; 401 and 429 among them.
_DENIED = re.compile(r'admission webhook "[^"]*" denied the request|ValidatingAdmissionPolicy .*denied request', re.S)


def _by_message(error: ApiError, call: Call) -> Verdict | None:
    if error.status >= 400 and _DENIED.search(error.message):
        return Verdict(PERMANENT, reason=str(error))
    if error.status >= 400 and error.too_large:
        return Verdict(PERMANENT, reason=str(error))
    if error.status >= 500 and "failed calling webhook" in error.message:
        # The webhook is asked before anything is stored.
        return Verdict(RETRY, retry_after=error.retry_after, reason=str(error))
    return None


# -- by code ----------------------------------------------------------------------------------------------------------


def _permanent(error: ApiError, call: Call) -> Verdict:
    return Verdict(PERMANENT, reason=str(error))


def _unauthorized(error: ApiError, call: Call) -> Verdict:
    """401, and a proxy's own 407: nothing was looked at, and nothing will be until the credentials are others (R4)."""
    return Verdict(HOLD, scope=call.scope, reason=str(error))


def _forbidden(error: ApiError, call: Call) -> Verdict:
    """403 is no right, or a namespace that ends, or something that is about to change: the message tells them apart."""
    if call.effect is Effect.CREATE and any(cause.get("reason") == "NamespaceTerminating" for cause in error.causes):
        return Verdict(GONE, reason=str(error))
    if "exceeded quota" in error.message:
        return _later(error, _place("quota", call), floor=SLOW)
    if "status unknown for quota" in error.message:
        return _later(error, _place("quota", call))
    if re.search(r'error looking up service account|serviceaccount "[^"]*" not found', error.message):
        return _later(error, _place("service account", call))
    if error.passing:
        return _later(error, _place("roles", call))
    return Verdict(PERMANENT, reason=str(error))


def _not_found(error: ApiError, call: Call) -> Verdict:
    """404 ends a call only if it names the call's own object (rule R11)."""
    if call.effect is not Effect.CREATE and names_target(error, call, unnamed=False):
        return Verdict(GONE, reason=str(error))
    if error.details.get("kind") == "namespaces":
        return _later(error, _place("namespace", call))
    if error.details.get("name"):
        return _later(error, _place(f"{error.details.get('kind')} {error.details['name']}", call))
    return _later(error, _place(f"path of {call.target.api_version} {call.target.kind}", call))


def _conflict(error: ApiError, call: Call) -> Verdict:
    """409: whose conflict? About another object the same request may pass later; about the target, read it (R5)."""
    if error.reason == "AlreadyExists" and error.message.startswith("object is being deleted"):
        return _later(error)
    if any(cause.get("reason") == "FieldManagerConflict" for cause in error.causes):
        return Verdict(PERMANENT, reason=str(error))
    if not names_target(error, call, unnamed=True):
        return _later(error, _place(f"{error.details.get('kind')} {error.details.get('name')}", call))
    if error.reason == "AlreadyExists" and call.target.generated:
        return Verdict(RETRY, reason=str(error))  # the server drew a name that is taken; it draws another next time
    return Verdict(RECONCILE, reason=str(error))


def _invalid(error: ApiError, call: Call) -> Verdict:
    other_uid = any(cause.get("field") == "metadata.uid" for cause in error.causes)
    kind = GONE if other_uid and call.effect is not Effect.CREATE else PERMANENT
    return Verdict(kind, reason=str(error))


def _too_many(error: ApiError, call: Call) -> Verdict:
    """429 is the server's own load, unless a disruption budget says no: that is nobody's fault and lasts longer."""
    if any(cause.get("reason") == "DisruptionBudget" for cause in error.causes):
        return _later(error, _place("disruption budget", call), floor=SLOW)
    return Verdict(RETRY, retry_after=error.retry_after, reason=str(error))


def _server_fault(error: ApiError, call: Call) -> Verdict:
    maybe = not error.pushed_back and writes(error.request, call)
    return Verdict(RETRY, maybe_applied=maybe, retry_after=error.retry_after, reason=str(error))


_ROWS: dict[int, Callable[[ApiError, Call], Verdict]] = {
    401: _unauthorized,
    403: _forbidden,
    404: _not_found,
    407: _unauthorized,
    # A proxy that gave up waiting for somebody: no word of what the server did.
    408: _server_fault,
    409: _conflict,
    422: _invalid,
    429: _too_many,
    # What the server does not do at all, under a code of its own fault (rule R12).
    501: _permanent,
    505: _permanent,
}


def _by_hundred(error: ApiError, call: Call) -> Verdict:
    """The codes without a row: an unreadable 2xx and a 5xx leave the fate open; redirects and 4xx never pass.

    410 Gone is among the latter: a version or a page of a list is too old, so that the caller has to list again.
    """
    if error.status >= 500 or error.status < 300:
        return _server_fault(error, call)
    return _permanent(error, call)


# -- helpers ----------------------------------------------------------------------------------------------------------


def regular_plural(kind: str) -> str:
    """The plural that almost every kind has: pods, ingresses, policies. Custom resources may choose another."""
    name = kind.lower()
    if name == "endpoints":
        return name
    if name.endswith(("s", "x", "z", "ch", "sh")):
        return f"{name}es"
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}s"


SLOW = 5.0
"""Seconds: the least wait for what somebody has to free first (a quota, a disruption budget; rules R2, R17)."""


def _later(error: ApiError, scope: Hashable = None, *, floor: float = 0.0) -> Verdict:
    asked = max(error.retry_after or 0.0, floor) or None
    return Verdict(LATER, retry_after=asked, scope=scope, reason=str(error))


def _place(condition: str, call: Call) -> Hashable:
    """What LATER waits by: one condition, in one namespace of one cluster."""
    return (condition, call.target.namespace, call.scope)


def writes(request: str, call: Call) -> bool:
    """The failed request could change something. A write's reconcile reads, and says so in `request`."""
    return call.effect is not Effect.READ and not request.startswith("GET ")


def names_target(error: ApiError, call: Call, *, unnamed: bool) -> bool:
    """The answer is about the call's own object; `unnamed` is the answer to that if it names none."""
    details, target = error.details, call.target
    kind, name = details.get("kind"), details.get("name")
    if not isinstance(kind, str) or not kind:
        return unnamed
    if details.get("group") and details["group"] != target.api_version.rpartition("/")[0]:
        return False
    # The kind as such (in 422), or its plural, or that with a subresource: "pods/binding".
    ours = {target.kind.lower(), regular_plural(target.kind), getattr(call, "plural", None)}
    if kind.partition("/")[0].lower() not in ours:
        return False
    if target.generated or not name:
        return target.generated or unnamed
    return bool(name == target.name)
