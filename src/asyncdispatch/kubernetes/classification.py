"""What an error of a request means: the part of the default table that needs the HTTP client (facts of aiohttp)."""

from __future__ import annotations

from typing import Any

import aiohttp

from asyncdispatch.apierrors import TransportError, api_error_of
from asyncdispatch.calls import APICall, Verdict, VerdictKind
from asyncdispatch.kubernetes.transport import transport_error_of
from asyncdispatch.verdicts import classify_status, writes

__all__ = ["classify_error", "classify_transport"]

Call = APICall[Any]


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
        return Verdict(VerdictKind.HOLD, scope=call.scope, reason=str(error))
    return Verdict(VerdictKind.RETRY, maybe_applied=error.sent and writes(error.request, call), reason=str(error))
