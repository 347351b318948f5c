"""Raw requests over a client library's ApiClient: its connections, TLS and credentials, without its models.

The typed client costs several times a bare request, raises where the server succeeded (a bind answers a Status) and
succeeds where it should raise (a body that is not JSON). So the calls speak JSON over the ApiClient's own aiohttp
session, and check the answer themselves.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
from aiohttp.payload import Payload
from yarl import URL

from asyncdispatch.apierrors import ApiError, TransportError, TransportTimeout
from asyncdispatch.calls import Attempt, ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes._client import check_client, without_environment
from asyncdispatch.kubernetes._rights import Rights
from asyncdispatch.kubernetes.credentials import Credentials
from asyncdispatch.kubernetes.resources import Resource, builtin, group_path

__all__ = ["JSON", "MERGE_PATCH", "STRATEGIC_MERGE_PATCH", "Transport", "transport_error_of"]

Json = dict[str, Any]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


class Transport:
    """Requests to one API server, with the connections and credentials of one ApiClient.

    `api_client` is kubernetes_asyncio's ApiClient or one built like it. It stays its owner's: its settings are read
    anew for each request, so a token that was replaced or a header that was added counts at once. Raises
    `ConfigurationError` if it is no such client.
    """

    connecting = 0.25
    """The share of an attempt's time in which it must have a connection, its turn among those in use included. Who gets
    one too late would be cut off before the answer, in doubt; who gets none has sent nothing, and is tried again."""

    def __init__(self, api_client: Any) -> None:
        check_client(api_client)
        self._client = api_client
        self.rights = Rights()
        self._resources: dict[tuple[str, str], Resource] = {}
        self._discovery = asyncio.Lock()

    @property
    def server(self) -> str:
        """Scheme, host and port of the API server; no user or password."""
        url = urlsplit(self._client.configuration.host)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"

    def __repr__(self) -> str:
        return f"<Transport {self.server}>"

    async def request(
        self,
        method: str,
        path: str,
        attempt: Attempt,
        *,
        body: Any = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
        aside: bool = False,
    ) -> Json:
        """Send one request within what is left of `attempt`; return the JSON object that a 2xx answer carries.

        The header `Audit-ID` is `<ticket>-<attempt>`. `aside`: a read beside the call's own request (reconcile,
        discovery, a look for a mark). A write sets `attempt.sent` False and, as its body begins to leave, True; reads
        leave it alone. Raises `ApiError` and `TransportError`.
        """
        label = f"{method} {path}"
        data = None if body is None else _Body(json.dumps(body, separators=(",", ":")).encode(), content_type, attempt)
        if method != "GET":
            attempt.sent = data is None  # what has no body can't say when it leaves
        generation = 0
        try:
            headers = await self._headers(attempt, label)
            generation = self.generation
            answer = await self._send(method, path, attempt, data, query, headers)
            text = await answer.read()
            good = _checked(answer, text, label, 0 if data is None else len(data.data))
        except (aiohttp.ClientError, OSError) as error:  # OSError: TimeoutError too
            # The error tells of the last sending only; our body knows of each.
            failed = transport_error_of(error, label, sent=None if data is None else attempt.sent)
            cause = _tellable(error)
        except ApiError as error:
            error.repeated = data is not None and data.sendings > 1
            self.refused(error, generation)
            self.rights.judge(error, attempt)
            raise
        else:
            if not aside:
                self.rights.worked(attempt.call)
            return good
        self.rights.lost(attempt)
        self.refused(failed, generation)
        raise failed from cause  # out here, so that what is not to be told is no context either

    @property
    def generation(self) -> int:
        """Which of the credentials that were read one after another a request uses now. For `refused`."""
        own = self._client.configuration.refresh_api_key_hook
        return own.generation if isinstance(own, Credentials) else 0

    def refused(self, error: BaseException, generation: int) -> None:
        """Have the credentials of a client of ours read anew if `error` says that they were not accepted (rule R4).

        `generation` is that of the request: refusals of older ones count no more. A client that somebody else made has
        its own way of refreshing.
        """
        own = self._client.configuration.refresh_api_key_hook
        if isinstance(own, Credentials):
            untrusted = isinstance(error, TransportError) and error.credentials
            if untrusted or (isinstance(error, ApiError) and error.status == 401):
                own.refused(generation)

    async def _send(
        self,
        method: str,
        path: str,
        attempt: Attempt,
        data: _Body | None,
        query: Mapping[str, str] | None,
        headers: dict[str, str],
    ) -> aiohttp.ClientResponse:
        session, proxy = self._session()
        seconds = attempt.remaining
        if not seconds:
            raise TransportError("no time was left for it", sent=False, request=f"{method} {path}")
        # aiohttp rounds long time-outs up to whole seconds of the clock, unless told not to.
        timeout = aiohttp.ClientTimeout(total=seconds, connect=seconds * self.connecting, ceil_threshold=math.inf)
        return await self._ask(session, proxy, method, path, query, headers, timeout, data)

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        proxy: str | None,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        data: Payload | None = None,
    ) -> aiohttp.ClientResponse:
        """The beginning of the answer, by the client's settings."""
        configuration = self._client.configuration
        url = configuration.host.rstrip("/") + path
        options: dict[str, Any] = {}
        if configuration.proxy or proxy:
            options["proxy"] = configuration.proxy or proxy
        if configuration.proxy_headers:
            options["proxy_headers"] = configuration.proxy_headers
        if configuration.tls_server_name:
            options["server_hostname"] = configuration.tls_server_name
        return await session.request(
            method,
            # Quoted already, segment by segment; a redirect would send our credentials to who knows whom.
            URL(f"{url}?{urlencode(query)}" if query else url, encoded=True),
            data=data,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            raise_for_status=False,
            **options,
        )

    def _session(self) -> tuple[aiohttp.ClientSession, str | None]:
        """A session with the client's connections, and the proxy that the environment wants it to use."""
        rest = self._client.rest_client
        if rest.pool_manager is None:  # the official client opens its session with its first request
            rest.pool_manager = rest._create_pool_manager()
        theirs: aiohttp.ClientSession = rest.pool_manager
        if theirs.closed:
            raise ConfigurationError("api_client", self.server, "it is closed: keep it open until the dispatcher ends")
        return without_environment(theirs, self._client.configuration.host)

    async def _headers(self, attempt: Attempt, label: str) -> dict[str, str]:
        client = self._client
        headers: dict[str, str] = {**client.default_headers, "Accept": JSON}
        headers["Audit-ID"] = f"{attempt.ticket}-{attempt.number}"
        if client.cookie:
            headers["Cookie"] = client.cookie
        own = client.configuration.refresh_api_key_hook
        if not isinstance(own, Credentials):
            settings = await self._credentials(attempt, label)
        else:
            settings = await self._own_credentials(own, attempt, label)
        for setting in settings.values():
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = _sendable(setting["value"], label)
        return headers

    async def _own_credentials(self, own: Credentials, attempt: Attempt, label: str) -> dict[str, Any]:
        """As `_credentials`, for a client whose credentials we keep fresh."""
        if own.due:
            try:
                await own.ready(attempt.remaining)
            except TimeoutError:
                message = "credentials were not refreshed in time"
                raise TransportError(message, sent=False, credentials=True, request=label) from None
        value = self._client.configuration.api_key.get("BearerToken")
        return {"BearerToken": {"in": "header", "key": "authorization", "value": value}}

    async def _credentials(self, attempt: Attempt, label: str) -> dict[str, Any]:
        configuration = self._client.configuration
        try:
            settings: Any = configuration.auth_settings()  # a coroutine in later versions of the client
            if configuration.refresh_api_key_hook is not None and inspect.isawaitable(settings):
                # The hook reads a file or runs a program: its time is the attempt's.
                async with asyncio.timeout(attempt.remaining):
                    settings = await settings
            elif inspect.isawaitable(settings):
                settings = await settings
            return dict(settings)
        except OSError as error:
            message = f"credentials could not be read: {str(error) or type(error).__name__}"
            raise TransportError(message, sent=False, credentials=True, request=label) from error
        except Exception as error:
            # Its text may repeat what it read, so only its kind is told, and it is not chained.
            message = f"credentials could not be refreshed: {type(error).__name__}"
            raise TransportError(message, sent=False, credentials=True, request=label) from None

    async def locate(self, ref: ObjectRef, plural: str | None, attempt: Attempt) -> Resource:
        """How the server serves the ref's kind: built in, as `plural` says, or looked up once in its discovery.

        Raises `ApiError` 404 in the manner of a path that is not served, if the server does not know the kind (yet).
        """
        if plural is not None:
            return Resource(plural, ref.namespace is not None)
        if (known := builtin(ref)) is not None:
            return known
        key = (ref.api_version, ref.kind)
        if key not in self._resources:
            async with self._discovery:
                if key not in self._resources:
                    await self._discover(ref.api_version, attempt)
        if key not in self._resources:
            message = f"no kind {ref.kind} in {ref.api_version}: the server does not serve it (yet)"
            raise ApiError(404, message=message, request=f"GET {group_path(ref.api_version)}")
        return self._resources[key]

    async def _discover(self, api_version: str, attempt: Attempt) -> None:
        found = await self.request("GET", group_path(api_version), attempt, aside=True)
        entries = found.get("resources")
        for entry in entries if isinstance(entries, list) else []:
            plural, kind = entry.get("name"), entry.get("kind")
            if isinstance(plural, str) and isinstance(kind, str) and "/" not in plural:
                self._resources[api_version, kind] = Resource(plural, bool(entry.get("namespaced")))


def _sendable(value: Any, label: str) -> str:
    """A header's value. A token read from a file may end with a newline; what else no header can carry is an error."""
    text = str(value).strip()
    if not text.isascii() or not text.isprintable():
        message = "the credentials are no header's value: they must be printable ASCII"
        raise TransportError(message, sent=False, credentials=True, request=label)
    return text


class _Body(Payload):
    """A request's body that says when it begins to leave: no server can apply a write before that."""

    _autoclose = True

    def __init__(self, data: bytes, content_type: str, attempt: Attempt) -> None:
        super().__init__(data, content_type=content_type)
        self.data = data
        self.sendings = 0  # aiohttp repeats a PUT or DELETE whose connection turns out to be closed
        self._attempt = attempt
        self._size = len(data)

    async def write(self, writer: Any) -> None:
        self._begin()
        await writer.write(self.data)

    async def write_with_length(self, writer: Any, content_length: int | None) -> None:
        self._begin()
        await writer.write(self.data if content_length is None else self.data[:content_length])

    def _begin(self) -> None:
        self._attempt.sent = True
        self.sendings += 1

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.data.decode(encoding, errors)

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.data


def transport_error_of(error: BaseException, request: str = "", *, sent: bool | None = None) -> TransportError:
    """What an error of aiohttp, of the system or of time means for the request: the border from their words to ours.

    `sent` says whether any of it has left, where that is known; else the error tells. The caller chains it:
    `raise … from error`.
    """
    if isinstance(error, TransportError):
        return error
    certificate = isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ServerFingerprintMismatch))
    certificate |= isinstance(error, aiohttp.ClientHttpProxyError) and error.status == 407
    if sent is None:
        sent = not certificate and not isinstance(error, _NOT_SENT)
    if isinstance(error, TimeoutError):
        if sent:
            return TransportTimeout("no answer in time", sent=True, request=request)
        return TransportError("no connection in time", sent=False, request=request)
    said = str(error)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        said = f"the proxy answered {error.status}"
    elif _tellable(error) is None:
        said = "of an address that is not to be told"
    message = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return TransportError(message, sent=sent, credentials=certificate, request=request)


_USER_IN_URL = re.compile(r"//[^\s]*@")


def _tellable(error: BaseException) -> BaseException | None:
    """The error, to be chained: None if it holds a URL with a password, or the headers of a request, to be told."""
    telling = isinstance(error, aiohttp.ClientResponseError) or _USER_IN_URL.search(str(error))
    return None if telling else error


# Refused, not resolved, not handshaken, no free connection in time, or no request that could be sent at all.
_NOT_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
    aiohttp.NonHttpUrlClientError,
)


def _checked(answer: aiohttp.ClientResponse, text: bytes, label: str, request_size: int) -> Json:
    """The JSON object of a good answer; `ApiError` for any other."""
    reason, message = answer.reason or "", ""
    if 200 <= answer.status <= 299:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        reason, message = "Unreadable", f"the answer is no JSON object ({len(text)} bytes)"
    elif 300 <= answer.status <= 399:
        target = urlsplit(answer.headers.get("Location", ""))
        message = f"redirected to {target.hostname or ''}{target.path}: give the API server's own address"
    raise ApiError(
        answer.status,
        reason,
        message,
        body=text.decode("utf-8", "replace"),
        headers=answer.headers,
        request=label,
        request_size=request_size,
    )
