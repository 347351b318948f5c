"""What an error of a request means: the part of the default table that needs the HTTP clients (facts of theirs).

Plain functions raise what their client library raises. Of those, kubernetes_asyncio and the official client (its
asynchronous and its blocking half) are known here, besides aiohttp itself.
"""

from __future__ import annotations

from typing import Any

import aiohttp
from urllib3 import exceptions as urllib3

from asyncdispatch.apierrors import TransportError, TransportTimeout, api_error_of
from asyncdispatch.calls import APICall, Effect, Verdict, VerdictKind
from asyncdispatch.kubernetes.transport import transport_error_of
from asyncdispatch.verdicts import classify_status, writes

__all__ = ["classify_error", "classify_transport"]

Call = APICall[Any]


def classify_error(error: BaseException, call: Call) -> Verdict | None:
    """The verdict on an error of ours, of a client library (anything with `status`, `body`, `headers`) or of aiohttp.

    None for any other error: it says nothing about the API server.
    """
    if isinstance(error, aiohttp.ClientHttpProxyError):  # its status is the proxy's, and the request never left
        return classify_transport(transport_error_of(error), call)
    if (answered := api_error_of(error)) is not None:
        return classify_status(answered, call)
    if isinstance(error, (TransportError, aiohttp.ClientError, OSError)):
        return classify_transport(transport_error_of(error), call)
    lost = error.__context__ if getattr(error, "status", None) == 0 else error  # as it wraps what TLS says
    if isinstance(lost, urllib3.HTTPError):
        return classify_transport(_of_urllib3(lost), call)
    if isinstance(error, UnicodeDecodeError) and (refused := api_error_of(error.__context__)) is not None:
        return classify_status(refused, call)  # kubernetes_asyncio, of an error whose body is no text
    if _reading_an_answer(error):
        return _unreadable(error, call)
    return None


def classify_transport(error: TransportError, call: Call) -> Verdict:
    """The verdict on a request without an answer: lost trust holds its scope's door, the rest is retried."""
    if error.credentials:
        return Verdict(VerdictKind.HOLD, scope=call.scope, reason=str(error))
    return Verdict(VerdictKind.RETRY, maybe_applied=error.sent and writes(error.request, call), reason=str(error))


# -- typed clients ----------------------------------------------------------------------------------------------------

_TYPED_CLIENTS = (
    "kubernetes_asyncio.client.api_client",
    "kubernetes.aio.client.api_client",
    "kubernetes.client.api_client",
)


def _reading_an_answer(error: BaseException) -> bool:
    """A typed client raised it as it read an answer: that of a success, since for others it raises ApiException."""
    traceback, place = error.__traceback__, ""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_globals.get("__name__") in _TYPED_CLIENTS:
            place = frame.f_code.co_name
            if place in ("deserialize", "response_deserialize"):
                return True
        traceback = traceback.tb_next
    # kubernetes_asyncio turns bytes into text in the function that also sends; nothing else there raises these.
    return place == "__call_api" and isinstance(error, (UnicodeDecodeError, LookupError))


def _unreadable(error: BaseException, call: Call) -> Verdict:
    """The server has done what it was asked; only its answer is not what the client expected (a bind answers a Status).

    Asking again would end the same way, so a write is for its caller to look at: it fails as AmbiguousOutcome.
    """
    maybe = call.effect is not Effect.READ
    reason = f"the answer was a success, but the client can't read it: {type(error).__name__}"
    return Verdict(VerdictKind.PERMANENT, maybe_applied=maybe, reason=reason)


def _of_urllib3(error: urllib3.HTTPError) -> TransportError:
    """The official client's blocking half: connections that were never made are told from answers that were lost."""
    while isinstance(error, urllib3.MaxRetryError) and isinstance(error.reason, urllib3.HTTPError):
        error = error.reason
    untrusted = isinstance(error, urllib3.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error)
    sent = not untrusted and not isinstance(error, _NOT_SENT)
    # Their texts repeat URLs, a proxy's password among them.
    kind = TransportTimeout if sent and isinstance(error, urllib3.TimeoutError) else TransportError
    return kind(type(error).__name__, sent=sent, credentials=untrusted)


# NewConnectionError and NameResolutionError are kinds of the first.
_NOT_SENT = (urllib3.ConnectTimeoutError, urllib3.EmptyPoolError, urllib3.LocationValueError, urllib3.ProxyError)
