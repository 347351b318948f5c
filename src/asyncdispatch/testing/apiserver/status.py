"""The API server's way to say no: `Status` objects, and the exception that carries one.

Every function here builds a `StatusError` for one row of the API server's table of answers; nobody else writes
reasons and details by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

Json = dict[str, Any]

REASONS: Mapping[int, str] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for a refusal, with the field that it is about."""

    reason: str
    message: str
    field: str

    @classmethod
    def invalid(cls, field: str, value: object, why: str) -> Cause:
        return cls("FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}", field)

    @classmethod
    def required(cls, field: str, why: str = "") -> Cause:
        return cls("FieldValueRequired", f"Required value: {why}" if why else "Required value", field)

    @classmethod
    def forbidden(cls, field: str, why: str) -> Cause:
        return cls("FieldValueForbidden", f"Forbidden: {why}", field)


class StatusError(Exception):
    """The server refuses a request; `status` is the Status object that it answers with, `code` its HTTP status."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: Json | None = None,
        headers: Mapping[str, str] | None = None,
        metadata: Json | None = None,
    ) -> None:
        super().__init__(f"{code} {reason or ''}: {message}")
        self.code = code
        self.headers: Mapping[str, str] = headers or {}
        self.status = failure(code, message, reason=reason, details=details, metadata=metadata)


def failure(
    code: int,
    message: str,
    *,
    reason: str | None = None,
    details: Json | None = None,
    metadata: Json | None = None,
) -> Json:
    """A Status object that says `Failure`; an empty `reason` is left out, as the API server does."""
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": metadata or {}, "status": "Failure"}
    status["message"] = message
    if reason:
        status["reason"] = reason
    if details is not None:
        status["details"] = details
    status["code"] = code
    return status


def success(details: Json | None = None, *, code: int = 200) -> Json:
    """A Status object that says `Success`."""
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        status["details"] = details
    status["code"] = code
    return status


def default_message(code: int) -> str:
    """A message for a failure that nobody described."""
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return f"status {code}"


def details_of(group: str, kind: str, name: str) -> Json:
    """Which object an answer is about; `kind` is the resource's plural in most answers, the kind in `Invalid`."""
    details: Json = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    details["kind"] = kind
    return details


def _qualified(group: str, plural: str) -> str:
    return f"{plural}.{group}" if group else plural


def bad_request(message: str) -> StatusError:
    return StatusError(400, message, reason="BadRequest")


def not_found(group: str, plural: str, name: str) -> StatusError:
    message = f'{_qualified(group, plural)} "{name}" not found'
    return StatusError(404, message, reason="NotFound", details=details_of(group, plural, name))


def no_such_resource() -> StatusError:
    """The resource is served, but not the part of it that was asked for."""
    message = "the server could not find the requested resource"
    return StatusError(404, message, reason="NotFound", details={})


def already_exists(group: str, plural: str, name: str, *, dying: bool) -> StatusError:
    message = f'{_qualified(group, plural)} "{name}" already exists'
    if dying:
        message = f"object is being deleted: {message}"
    return StatusError(409, message, reason="AlreadyExists", details=details_of(group, plural, name))


def conflict(group: str, plural: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {_qualified(group, plural)} "{name}": {why}'
    return StatusError(409, message, reason="Conflict", details=details_of(group, plural, name))


def modified(group: str, plural: str, name: str) -> StatusError:
    """The resourceVersion that the request carries is not the stored one."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(group, plural, name, why)


def invalid(group: str, kind: str, name: str, causes: Iterable[Cause]) -> StatusError:
    """The object was understood and is not acceptable; each cause names a field."""
    found = list(causes)
    lines = [f"{cause.field}: {cause.message}" for cause in found]
    said = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    details = details_of(group, kind, name)
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in found]
    qualified = f"{kind}.{group}" if group else kind
    return StatusError(422, f'{qualified} "{name}" is invalid: {said}', reason="Invalid", details=details)


def patch_refused() -> StatusError:
    """A JSON Patch that could not be applied: the API server tells no more than this."""
    message = "the server rejected our request due to an error in our request"
    return StatusError(422, message, reason="Invalid", details={})


def forbidden(group: str, plural: str, name: str, why: str, causes: Iterable[Cause] = ()) -> StatusError:
    details = details_of(group, plural, name)
    found = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    if found:
        details["causes"] = found
    named = f' "{name}"' if name else ""
    message = f"{_qualified(group, plural)}{named} is forbidden: {why}"
    return StatusError(403, message, reason="Forbidden", details=details)


def too_many_requests(message: str, retry_after: int = 0) -> StatusError:
    """429 with a body; without `retry_after` (seconds) it says nothing of when to come again."""
    details: Json = {"retryAfterSeconds": retry_after} if retry_after else {}
    headers = {"Retry-After": str(retry_after)} if retry_after else {}
    return StatusError(429, message, reason="TooManyRequests", details=details, headers=headers)


def expired(message: str, *, metadata: Json | None = None) -> StatusError:
    """410: a version or a continue token is too old."""
    return StatusError(410, message, reason="Expired", metadata=metadata)


def version_too_large(asked: int, current: int) -> StatusError:
    """The client asks for a version that the server has not reached."""
    message = f"Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    details: Json = {"causes": [cause], "retryAfterSeconds": 1}
    return StatusError(504, f"Timeout: {message}", reason="Timeout", details=details, headers={"Retry-After": "1"})


def unsupported_media(accepted: Iterable[str]) -> StatusError:
    message = "the body of the request was in an unknown format - accepted media types include: "
    return StatusError(415, message + ", ".join(accepted), reason="UnsupportedMediaType", details={})


def unknown_patch(custom: bool) -> StatusError:
    """A kind of patch that is not taken: told by two parts of the server, each in its own words."""
    if not custom:
        return StatusError(415, "415: Unsupported Media Type", reason="UnsupportedMediaType", details={})
    types = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(types)
    return StatusError(415, message, reason="UnsupportedMediaType")


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, message, reason="MethodNotAllowed", details={})


def body_too_large(limit: int) -> StatusError:
    message = f"Request entity too large: limit is {limit}"
    return StatusError(413, message, reason="RequestEntityTooLarge")


def bare(message: str) -> StatusError:
    """500 with neither reason nor details: an error of storage, or one that nobody translated."""
    return StatusError(500, message)


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
