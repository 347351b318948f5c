"""What an error of a Kubernetes call means: the default table (design section 6, "Verdicts").

Read from the top: what the message proves under any code comes first, then the codes. A write is maybe applied unless
its answer proves that it was refused before storage (law L10): by a 4xx, by Retry-After, by a webhook that could not be
asked, or because it was never sent. Reads never are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import Any

import aiohttp

from asyncdispatch.calls import APICall, Effect, Verdict, VerdictKind
from asyncdispatch.kubernetes.errors import ApiError, TransportError, api_error_of
from asyncdispatch.kubernetes.resources import regular_plural
from asyncdispatch.kubernetes.transport import transport_error_of

__all__ = ["classify_error", "classify_status", "classify_transport", "names_target"]

Call = APICall[Any]

RETRY, LATER, HOLD = VerdictKind.RETRY, VerdictKind.LATER, VerdictKind.HOLD
RECONCILE, GONE, PERMANENT = VerdictKind.RECONCILE, VerdictKind.GONE, VerdictKind.PERMANENT


def classify_error(error: BaseException, call: Call) -> Verdict | None:
    """The verdict on an error of ours, of a client library (anything with `status`, `body`, `headers`) or of aiohttp.

    None for any other error: it says nothing about the API server.
    """
    if (answered := api_error_of(error)) is not None:
        return classify_status(answered, call)
    if isinstance(error, (TransportError, aiohttp.ClientError, OSError)):
        return classify_transport(transport_error_of(error), call)
    return None


def classify_transport(error: TransportError, call: Call) -> Verdict:
    """The verdict on a request without an answer: lost trust holds its scope's door, the rest is retried."""
    if error.credentials:
        return Verdict(HOLD, scope=call.scope, reason=str(error))
    return Verdict(RETRY, maybe_applied=error.sent and _writes(error.request, call), reason=str(error))


def classify_status(error: ApiError, call: Call) -> Verdict:
    """The verdict on an answer of the API server, or of something in front of it."""
    if error.gone:
        return Verdict(GONE, reason=str(error))
    return _by_message(error, call) or _ROWS.get(error.status, _by_hundred)(error, call)


# -- under any code ---------------------------------------------------------------------------------------------------

# A webhook may deny with whatever code it likes, and a policy with one of four; 401 and 429 among them.
_DENIED = re.compile(r'admission webhook "[^"]*" denied the request|ValidatingAdmissionPolicy .*denied request', re.S)


def _by_message(error: ApiError, call: Call) -> Verdict | None:
    if error.status >= 400 and _DENIED.search(error.message):
        return Verdict(PERMANENT, reason=str(error))
    if error.status >= 400 and error.too_large:
        return Verdict(PERMANENT, reason=str(error))
    if error.status >= 500 and "failed calling webhook" in error.message:
        return Verdict(RETRY, retry_after=error.retry_after, reason=str(error))
    return None


# -- by code ----------------------------------------------------------------------------------------------------------


def _permanent(error: ApiError, call: Call) -> Verdict:
    return Verdict(PERMANENT, reason=str(error))


def _unauthorized(error: ApiError, call: Call) -> Verdict:
    return Verdict(HOLD, scope=call.scope, reason=str(error))


def _forbidden(error: ApiError, call: Call) -> Verdict:
    """403 is no right, or a namespace that ends, or something that is about to change: the message tells them apart."""
    if call.effect is Effect.CREATE and any(cause.get("reason") == "NamespaceTerminating" for cause in error.causes):
        return Verdict(GONE, reason=str(error))
    if "exceeded quota" in error.message or "status unknown for quota" in error.message:
        return _later(error, _place("quota", call))
    if re.search(r'error looking up service account|serviceaccount "[^"]*" not found', error.message):
        return _later(error, _place("service account", call))
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
        return _later(error, _place("disruption budget", call))
    return Verdict(RETRY, retry_after=error.retry_after, reason=str(error))


def _server_fault(error: ApiError, call: Call) -> Verdict:
    maybe = not error.pushed_back and _writes(error.request, call)
    return Verdict(RETRY, maybe_applied=maybe, retry_after=error.retry_after, reason=str(error))


_ROWS: dict[int, Callable[[ApiError, Call], Verdict]] = {
    401: _unauthorized,
    403: _forbidden,
    404: _not_found,
    # A proxy that gave up waiting for somebody: no word of what the server did.
    408: _server_fault,
    409: _conflict,
    422: _invalid,
    429: _too_many,
}


def _by_hundred(error: ApiError, call: Call) -> Verdict:
    """The codes without a row: an unreadable 2xx and a 5xx leave the fate open; redirects and 4xx never pass.

    410 Gone is among the latter: a version or a page of a list is too old, so that the caller has to list again.
    """
    if error.status >= 500 or error.status < 300:
        return _server_fault(error, call)
    return _permanent(error, call)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _later(error: ApiError, scope: Hashable = None) -> Verdict:
    return Verdict(LATER, retry_after=error.retry_after, scope=scope, reason=str(error))


def _place(condition: str, call: Call) -> Hashable:
    """What LATER waits by: one condition, in one namespace of one cluster."""
    return (condition, call.target.namespace, call.scope)


def _writes(request: str, call: Call) -> bool:
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
