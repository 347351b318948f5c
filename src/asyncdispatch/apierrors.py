"""What a request to the API server can end with, other than well.

::

    DispatchError
    ├── ApiError          an answer came, and it was not what was asked for
    └── TransportError    no answer came, or none that could be read to its end
        └── TransportTimeout   the server did not answer in time (also a TimeoutError)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from asyncdispatch.errors import DispatchError

__all__ = ["ApiError", "TransportError", "TransportTimeout"]

Json = dict[str, Any]

BODY_KEPT = 16_384
"""Characters of an answer's text that an error keeps: outcomes are kept by callers, so what they hold is bounded."""
MESSAGE_SHOWN = 500
"""Characters of the server's message that the error's own text repeats."""

# What etcd, and the API server's client of it, say of an object above their limits: under code 500 (rule R12).
_TOO_LARGE = ("request is too large", "message larger than max")


class ApiError(DispatchError):
    """The API server, or something in front of it, answered and did not do or give what was asked for.

    `status` is the HTTP status, `reason` the Status object's reason (else the HTTP phrase), `message` what the server
    said, `body` the answer's text (its first 16 KiB), `status_object` the parsed Status or None, `headers` those of the
    answer. `retry_after` is in seconds: None if the server did not ask for a pause, 0 if it gave no usable time.
    `request` is the method and path, `request_size` the size of the request's body in bytes. `gone` says that the
    object meant is not there, or not with the uid meant; `repeated` that the HTTP client has sent the request more than
    once, so that it answers the last time only; `passing` that it refuses what it may yet allow:
    a server that has just started has yet to read its roles.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        *,
        body: str = "",
        headers: Mapping[str, str] | None = None,
        request: str = "",
        request_size: int = 0,
        gone: bool = False,
    ) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {} if headers is None else headers
        self.status_object = _status_object(body)
        said = self.status_object or {}
        self.reason = str(said.get("reason") or reason or _phrase(status))
        self.message = str(said.get("message") or message or body.strip())[:BODY_KEPT]
        self.body = body[:BODY_KEPT]
        self.request = request
        self.request_size = request_size
        self.gone = gone
        self.passing = False
        self.repeated = False
        self.retry_after = _retry_after(self.headers, self.details)
        super().__init__(self._text())

    @property
    def details(self) -> Json:
        """The Status's `details`, or an empty dict: which object the answer is about, and causes."""
        details = (self.status_object or {}).get("details")
        return details if isinstance(details, dict) else {}

    @property
    def causes(self) -> list[Json]:
        """The Status's `details.causes`, each a dict with `reason`, `message` and `field` where known."""
        causes = self.details.get("causes")
        return [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []

    @property
    def too_large(self) -> bool:
        """The request can't pass at this size: some part of the server has a limit below it."""
        too_long = any(cause.get("reason") == "FieldValueTooLong" for cause in self.causes)
        return self.status == 413 or too_long or any(sign in self.message for sign in _TOO_LARGE)

    @property
    def pushed_back(self) -> bool:
        """The answer carries Retry-After: the server refused the request before it did anything (law L10)."""
        return _seconds(self.headers) is not None

    def _text(self) -> str:
        message = self.message if len(self.message) <= MESSAGE_SHOWN else f"{self.message[:MESSAGE_SHOWN]}…"
        text = f"{self.status} {self.reason}" + (f": {message}" if message else "")
        if self.too_large and self.request_size:
            text += f" (the request's body has {self.request_size:,} bytes)"
        return f"{self.request}: {text}" if self.request else text

    def __repr__(self) -> str:
        return f"<ApiError {self}>"


class TransportError(DispatchError):
    """No answer to a request, or one that broke off. `__cause__` is the HTTP client's error.

    `sent` is False only if it is certain that no server has seen the request whole: the connection was refused, its
    name not resolved, its certificate not trusted, or no connection was free in time. `credentials` says that it
    failed on trust: the server's certificate, or our own token or certificate could not be read. `request` is the
    method and path.
    """

    def __init__(self, message: str, *, sent: bool, credentials: bool = False, request: str = "") -> None:
        fate = " (it was not sent)" if not sent else "" if request.startswith("GET ") else " (it may have been applied)"
        super().__init__(f"{request}: {message}{fate}" if request else f"{message}{fate}")
        self.sent = sent
        self.credentials = credentials
        self.request = request

    def __repr__(self) -> str:
        return f"<TransportError {self}>"


class TransportTimeout(TransportError, TimeoutError):
    """The request was sent, and no answer came in time: a sign of overload, as any time-out of a server is."""


def api_error_of(error: Any) -> ApiError | None:
    """An error that looks like a client's `ApiException` (`status`, `body`, `headers`) as an `ApiError`, or None."""
    status = getattr(error, "status", None)
    if isinstance(error, ApiError):
        return error
    if isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 599:
        return None
    body = getattr(error, "body", None)
    if isinstance(body, (bytes, bytearray)):
        body = body.decode("utf-8", "replace")
    headers = getattr(error, "headers", None)
    return ApiError(
        status,
        str(getattr(error, "reason", None) or ""),
        body=body if isinstance(body, str) else "",
        headers=headers if isinstance(headers, Mapping) else None,
    )


def _status_object(body: str) -> Json | None:
    if not body.lstrip().startswith("{"):
        return None
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and parsed.get("kind") == "Status" else None


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "unknown status"


def _retry_after(headers: Mapping[str, str], details: Mapping[str, Any]) -> float | None:
    asked = _seconds(headers)
    if asked is None:
        # A proxy may have lost the header; the Status still says how long to wait (but proves nothing, see L10).
        seconds = details.get("retryAfterSeconds")
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds < math.inf:
            return float(seconds)
    return asked


def _seconds(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds; a date counts from the answer's own Date, so our clock does not matter (rule R17)."""
    value = _header(headers.items(), "retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        until, since = _date(value), _date(_header(headers.items(), "date"))
        if until is None:
            return None
        return max(0.0, (until - since).total_seconds()) if since is not None else 0.0
    return seconds if 0 <= seconds < math.inf else None


def _header(headers: Iterable[tuple[str, str]], name: str) -> str | None:
    return next((value for key, value in headers if key.lower() == name), None)


def _date(value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        date = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    # A date without a zone, which only a sloppy proxy writes, can't be compared with one that has it.
    return date if date.tzinfo is not None else None
