"""Answers as they are sent, and those by name that a real server gives and that a test may want to hear.

Each function gives an answer for `server.fail(...)`. Those that are a Status are a StatusError, which a step of
`server.admission` may raise as well: `raise answers.webhook_denied("x.example.com", "not on Fridays", code=403)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncdispatch.testing.apiserver.status import (
    Cause,
    Json,
    StatusError,
    bare,
    expired,
    forbidden,
    modified,
    too_many_requests,
)
from asyncdispatch.testing.apiserver.store import dumps

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, ready to be sent."""

    code: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def text_answer(code: int, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    """A plain-text error; it ends with a newline, as the API server's do."""
    return Answer(code, f"{text}\n".encode(), TEXT, {"X-Content-Type-Options": "nosniff", **(headers or {})})


def status_answer(error: StatusError) -> Answer:
    """A refusal as it is sent."""
    return Answer(error.code, dumps(error.status), headers=error.headers)


# -- overload and trouble inside the server ----------------------------------------------------------------------------


def throttled(retry_after: int = 1) -> Answer:
    """429 of Priority and Fairness: plain text, not a Status."""
    headers = {"Retry-After": str(retry_after)}
    return text_answer(429, "Too many requests, please try again later.", headers)


def cache_not_ready() -> StatusError:
    """429 of a watch cache that is being filled."""
    return too_many_requests("storage is (re)initializing", 1)


def empty(code: int = 503) -> Answer:
    """An answer without a body, as a load balancer gives it."""
    return Answer(code, b"", TEXT)


def etcd_timeout() -> StatusError:
    """500 without reason and Retry-After: whether the write landed is not known (see `applied` of `fail`)."""
    return bare("etcdserver: request timed out")


def leader_changed() -> StatusError:
    """As etcd_timeout, while etcd elects a leader."""
    return bare("etcdserver: leader changed")


def request_too_large() -> StatusError:
    """500 of a request that etcd does not take; it never passes."""
    return bare("etcdserver: request is too large")


def not_served() -> Answer:
    """404 of a path that is not served (yet): plain text, not a Status."""
    return text_answer(404, "404 page not found")


def gone(version: int = 1, current: int = 2) -> StatusError:
    """410: a watch asked for a version that is forgotten; as HTTP status, or as an ERROR event (`fail_watches`)."""
    return expired(f"too old resource version: {version} ({current})")


# -- who asks ----------------------------------------------------------------------------------------------------------


def unauthorized() -> StatusError:
    """401, whatever is wrong with the credentials."""
    return StatusError(401, "Unauthorized", reason="Unauthorized")


# -- admission ---------------------------------------------------------------------------------------------------------


def webhook_denied(webhook: str, message: str = "", *, code: int = 400, reason: str = "") -> StatusError:
    """A webhook's denial, under any code that it likes and with the reason that it gives, which is often none."""
    said = f'admission webhook "{webhook}" denied the request'
    said += f": {message}" if message else " without explanation"
    return StatusError(code, said, reason=reason)


def webhook_unreachable(webhook: str, why: str = "connect: connection refused") -> StatusError:
    """500: a webhook that must be asked can't be. Refused before storage, whatever the code seems to say."""
    call = f'failed calling webhook "{webhook}": failed to call webhook: Post "https://{webhook}/": {why}'
    details: Json = {"causes": [{"message": call}]}
    return StatusError(500, f"Internal error occurred: {call}", reason="InternalError", details=details)


def policy_denied(policy: str, message: str = "failed expression: false", *, resource: str, name: str) -> StatusError:
    """422 Invalid of a ValidatingAdmissionPolicy; `resource` is the plural. It reads like a 403 and is none."""
    why = f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {message}"
    details: Json = {"name": name, "kind": resource, "causes": [{"message": why}]}
    return StatusError(422, f'{resource} "{name}" is forbidden: {why}', reason="Invalid", details=details)


def no_service_account(pod: str, namespace: str = "default", account: str = "default") -> StatusError:
    """403 of a Pod whose service account is not there yet."""
    why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
    return forbidden("", "pods", pod, why)


def quota_exceeded(name: str, *, quota: str = "quota", resource: str = "pods") -> StatusError:
    """403 of a create beyond a quota, told apart by its message only; it may pass later."""
    why = f"exceeded quota: {quota}, requested: {resource}=1, used: {resource}=1, limited: {resource}=1"
    return forbidden("", resource, name, why)


def quota_conflict(quota: str = "quota") -> StatusError:
    """409 about the quota that several creates charged at once: not about the object that was sent."""
    return modified("", "resourcequotas", quota)


def apply_conflict(resource: str, name: str, *, manager: str = "other", field: str = ".spec.replicas") -> StatusError:
    """409 of a server-side apply that meets another manager's field."""
    cause = Cause("FieldManagerConflict", f'conflict with "{manager}"', field)
    details: Json = {"name": name, "kind": resource}
    details["causes"] = [{"reason": cause.reason, "message": cause.message, "field": cause.field}]
    message = f'Apply failed with 1 conflict: conflict with "{manager}": {field}'
    return StatusError(409, message, reason="Conflict", details=details)


__all__ = [
    "Answer",
    "apply_conflict",
    "cache_not_ready",
    "empty",
    "etcd_timeout",
    "gone",
    "leader_changed",
    "no_service_account",
    "not_served",
    "policy_denied",
    "quota_conflict",
    "quota_exceeded",
    "request_too_large",
    "throttled",
    "unauthorized",
    "webhook_denied",
    "webhook_unreachable",
]
