"""Requests of a generated client as calls: sent through the client's own REST layer, answered in its own words.

The client makes the request and reads the answer; what lies between is repeated, held and settled here. An answer is
kept as bytes, and each caller gets a copy of its own to decode, so that callers which share a request share no model.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
from aiohttp.base_protocol import BaseProtocol

from asyncdispatch.apierrors import ApiError, TransportError
from asyncdispatch.calls import (
    Again,
    APICall,
    Applied,
    Attempt,
    Effect,
    Reconciled,
    Refused,
    Verdict,
    VerdictKind,
    metadata_of,
)
from asyncdispatch.kubernetes._rights import Rights
from asyncdispatch.kubernetes.calls import refused
from asyncdispatch.kubernetes.classification import classify_error
from asyncdispatch.kubernetes.creation import Create
from asyncdispatch.kubernetes.marks import is_dying
from asyncdispatch.kubernetes.objects import Json, field_of, on_json
from asyncdispatch.kubernetes.pods import PodBinding
from asyncdispatch.kubernetes.transport import Transport, transport_error_of
from asyncdispatch.verdicts import names_target

__all__ = ["Answer", "Request", "SettledRequest", "TypedRequest", "send", "surface"]

Credentials = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request as the client has made it, without its credentials: those are read anew for each attempt.

    `rest` is the client's REST layer, `arguments` what else its `request` is given (body, query, time-out), `rights`
    what the client was allowed before.
    """

    rest: Any
    method: str
    url: str
    path: str
    headers: Mapping[str, str]
    credentials: Credentials | None
    arguments: Mapping[str, Any]
    rights: Rights

    def beside(self, path: str) -> Request:
        """A GET of `path` in the same manner, for a look beside the request itself."""
        url = f"{self.url.partition('?')[0].removesuffix(self.path)}{path}"
        headers = {key: value for key, value in self.headers.items() if key.lower() != "content-type"}
        arguments = {key: value for key, value in self.arguments.items() if key in ("_preload_content",)}
        return Request(self.rest, "GET", url, path, headers, self.credentials, arguments, self.rights)


class Answer:
    """What the client's REST layer returned, read to its end. `metadata` is that of the object in it, where wanted."""

    __slots__ = ("data", "metadata", "theirs")

    def __init__(self, theirs: Any, data: bytes, *, is_object: bool = False) -> None:
        self.theirs = theirs
        self.data = data
        self.metadata = metadata_of(self.json()) if is_object else None

    def json(self) -> Json:
        """The JSON object in it, or an empty one."""
        try:
            found = json.loads(self.data)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def own(self) -> Any:
        """A copy for one caller: decoding changes it in place, and a stream can be read once."""
        return _copied(self.theirs, self.data)


def _copied(theirs: Any, data: bytes) -> Any:
    kind: Any = type(theirs)
    copy = kind.__new__(kind)
    copy.__dict__.update(theirs.__dict__)
    if isinstance(copy, aiohttp.ClientResponse):
        stream = aiohttp.StreamReader(BaseProtocol(copy._loop), max(len(data), 2**16), loop=copy._loop)
        stream.feed_data(data)
        stream.feed_eof()
        copy.content = stream
    elif isinstance(response := copy.__dict__.get("response"), aiohttp.ClientResponse):
        copy.response = _copied(response, data)
    return copy


class _Refusal(ApiError):
    """An answer other than 2xx that the client itself wants to see, and to raise its own error for."""

    answer: Answer


async def send(request: Request, attempt: Attempt, *, aside: bool = False, is_object: bool = False) -> Answer:
    """Send `request` once and read its answer. With `aside` it is a look beside the call's own request.

    Raises `ApiError` and `TransportError`, with the client's own error as their cause where it has raised one, and
    as it is whatever else the client raises.
    """
    label = f"{request.method} {request.path}"
    headers: dict[str, Any] = {"Audit-ID": f"{attempt.ticket}-{attempt.number}"}
    headers.update(request.headers)
    if request.credentials is not None:
        sent, attempt.sent = attempt.sent, aside and attempt.sent
        try:
            await request.credentials(headers)
        except Exception as error:
            message = f"credentials could not be read: {type(error).__name__}"  # its text may repeat what it read
            raise TransportError(message, sent=False, credentials=True, request=label) from error
        attempt.sent = sent
    arguments = dict(request.arguments)
    if not arguments.get("_request_timeout"):  # the attempt's end is its own, but it must begin in time
        connect = attempt.remaining * Transport.connecting
        arguments["_request_timeout"] = aiohttp.ClientTimeout(connect=connect, ceil_threshold=math.inf)
    try:
        theirs = await request.rest.request(request.method, request.url, headers=headers, **arguments)
        data = getattr(theirs, "data", None)
        if data is None:
            data = await theirs.read()
    except (aiohttp.ClientError, OSError) as error:
        request.rights.lost(attempt)
        raise transport_error_of(error, label) from error
    except Exception as error:
        status = getattr(error, "status", None)
        if not isinstance(status, int) or not 100 <= status <= 599:
            raise
        answered: ApiError = _filled(ApiError, status, error, _bytes(getattr(error, "body", None)), label)
        request.rights.judge(answered, attempt)
        raise answered from error
    if not 200 <= theirs.status <= 299:
        refusal = _filled(_Refusal, theirs.status, theirs, data, label)
        refusal.answer = Answer(theirs, data)
        request.rights.judge(refusal, attempt)
        raise refusal
    if not aside:
        request.rights.worked(attempt.call)
    return Answer(theirs, data, is_object=is_object)


def _filled(kind: Any, status: int, said: Any, body: bytes, label: str) -> Any:
    headers = getattr(said, "headers", None)
    return kind(
        status,
        str(getattr(said, "reason", None) or ""),
        body=body.decode("utf-8", "replace"),
        headers=headers if isinstance(headers, Mapping) else None,
        request=label,
    )


def _bytes(body: Any) -> bytes:
    return bytes(body) if isinstance(body, (bytes, bytearray)) else str(body or "").encode()


# -- calls ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class TypedRequest(APICall[Answer]):
    """One request of a generated client.

    When nobody knows whether it was applied: a read and a `repeatable` write are sent again, all else is ambiguous.
    """

    request: Request
    repeatable: bool = True
    plural: str | None = None
    removes: bool = False

    @property
    def deletes(self) -> bool:
        """As of the calls of a `Cluster` that remove an object."""
        return self.removes

    async def execute(self, attempt: Attempt) -> Answer:
        return await send(self.request, attempt)

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        """The default table, but that any refusal answers a read: it asked how things are, and was told."""
        verdict = classify_error(error, self)
        if verdict is None:
            return None
        if verdict.maybe_applied and not attempt.sent:
            verdict = dataclasses.replace(verdict, maybe_applied=False)
        asks = self.effect is Effect.READ and verdict.kind is VerdictKind.LATER
        in_doubt = verdict.maybe_applied and verdict.kind is VerdictKind.RETRY
        if asks or (in_doubt and not self.repeatable):
            return dataclasses.replace(verdict, kind=VerdictKind.PERMANENT)
        return verdict

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.call_type} of {self.target}>"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SettledRequest(TypedRequest):
    """A create by name, a binding (to `node`) or a fenced removal: what became of it is read from the object (rule R5).

    If the object shows that a request whose answer was lost has been applied, the answer is that of the read: the
    object as it is now. An object that is not there any more is told in the words of that read, a 404. `doubtful` says
    that an earlier request of this call may have been applied.
    """

    transport: Transport
    body: Json | None = None
    node: str | None = None
    doubtful: bool = False

    @property
    def _creates(self) -> bool:
        return self.node is None and not self.removes

    async def execute(self, attempt: Attempt) -> Answer:
        return await send(self.request, attempt, is_object=self._creates)

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        verdict = super().classify(attempt, error)
        if verdict is not None and verdict.kind is VerdictKind.RETRY and verdict.maybe_applied:
            return dataclasses.replace(verdict, kind=VerdictKind.RECONCILE)
        return verdict

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Reconciled[Answer]:
        """One fresh read of the object, and the rules of `Create`, `PodBinding` and `Delete`."""
        doubtful = self.doubtful or not refused(error)
        try:
            answer = await send(self.request.beside(self._path()), attempt, aside=True, is_object=True)
        except ApiError as missing:
            if missing.status != 404 or not names_target(missing, self, unnamed=False):
                raise
            return Again(dataclasses.replace(self, doubtful=doubtful)) if self._creates else Refused(missing)
        settled = self._settled_by(answer.json(), doubtful)
        if isinstance(settled, Applied):
            return Applied(answer)
        if isinstance(settled, Again) and not (self.removes and refused(error)):
            return Again(self)
        if isinstance(settled, (Again, Refused)) and refused(error):
            return Refused(error)  # in the server's words rather than ours
        return settled

    def _settled_by(self, found: Json, doubtful: bool) -> Reconciled[Any]:
        if self.removes:
            return self._removed(found)
        if self.node is not None:
            return self._binding(found).settled_by(found)
        return self._create().settled_by(found, doubtful)

    def _removed(self, found: Json) -> Reconciled[Any]:
        uid = field_of(found, "metadata", "uid")
        if self.target.uid not in (None, uid):
            message = f"{self.target}: the name is now held by uid {uid}"
            return Refused(ApiError(404, "NotFound", message, gone=True))
        return Applied(None) if is_dying(found) else Again(self)

    @on_json
    def apply(self, obj: Any) -> Any:
        if self._creates:
            return self._create().apply(obj)
        return self._binding(obj).apply(obj) if self.node is not None and isinstance(obj, dict) else obj

    def _create(self) -> Create:
        key = self.idempotency_key
        return Create(target=self.target, obj=self.body or {}, transport=self.transport, idempotency_key=key)

    def _binding(self, pod: Json) -> PodBinding:
        """This bind as the adapter of `Cluster` has it, which wants a uid: the Pod's own, if the request names none."""
        uid = self.target.uid or field_of(pod, "metadata", "uid") or "unknown"
        target = dataclasses.replace(self.target, uid=uid)
        return PodBinding(target=target, node=self.node or "", version=self.version, transport=self.transport)

    def _path(self) -> str:
        """The path of the object itself."""
        path = self.request.path.removesuffix("/")
        if self._creates:
            return f"{path}/{quote(self.target.name, safe='')}"
        if path.endswith("/bindings"):
            return f"{path.removesuffix('bindings')}pods/{quote(self.target.name, safe='')}"
        return path if self.request.method == "DELETE" else path.rpartition("/")[0]


def _init(self: Any, /, **fields: Any) -> None:
    """Store what was given; the rest is read from the class. The generated way costs more than the whole queue."""
    object.__setattr__(self, "__dict__", fields)


if not TYPE_CHECKING:
    TypedRequest.__init__ = SettledRequest.__init__ = _init


# -- what the caller sees ---------------------------------------------------------------------------------------------


def surface(rest: Any, error: BaseException) -> Any:
    """End a failed request as the client itself would have: raise its error, or return the answer that it judges."""
    if isinstance(error, _Refusal):
        return error.answer.own()
    if isinstance(error, (ApiError, TransportError)) and error.__cause__ is not None:
        error = error.__cause__
        if isinstance(getattr(error, "body", None), bytes):
            error = _twin(error)  # the client decodes the body in place
    elif isinstance(error, ApiError):
        error = _in_their_words(rest, error)
    raise error


def _twin(error: BaseException) -> BaseException:
    twin = type(error).__new__(type(error), *error.args)
    twin.__dict__.update(error.__dict__)
    return twin


def _in_their_words(rest: Any, error: ApiError) -> Exception:
    """An error that was found out by reading, as the exception that the client would raise for such an answer."""
    exception: Any = importlib.import_module(type(rest).__module__).ApiException
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    status |= {"message": error.message, "reason": error.reason, "code": error.status}
    body = json.dumps(status)
    answer = SimpleNamespace(status=error.status, reason=error.reason, data=body.encode(), headers={}, getheaders=dict)
    if hasattr(exception, "from_response"):
        made: Exception = _caught(exception.from_response, http_resp=answer, body=body, data=None)
    else:
        made = exception(http_resp=answer)
    return made


def _caught(make: Callable[..., Any], **arguments: Any) -> Exception:
    """What `make` raises, or returns."""
    try:
        made: Exception = make(**arguments)
    except Exception as error:
        return error
    return made
