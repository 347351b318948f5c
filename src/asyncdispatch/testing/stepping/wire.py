"""Requests that go nowhere until the test says so: the connections of an ApiClient whose server is in the same process.

Everything above the connections is real: the client library, the transport, what they make of an answer or of none.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import types
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.testing.apiserver.answers import Answer, status_answer
from asyncdispatch.testing.apiserver.status import StatusError

if TYPE_CHECKING:
    from asyncdispatch.calls import APICall
    from asyncdispatch.handles import CallHandle
    from asyncdispatch.testing.apiserver.api import Result
    from asyncdispatch.testing.apiserver.server import EmbeddedAPIServer

__all__ = ["Exchange", "Trouble", "instead", "lost", "step_client", "unsent"]

Json = dict[str, Any]


@dataclass(frozen=True)
class Trouble:
    """What goes wrong with one request. Made by `unsent`, `lost` and `instead`; drawn by `strategies.troubles`."""

    how: Literal["unsent", "lost", "instead"]
    applied: bool = False
    """The request is carried out before it strikes."""
    late: bool = False
    """It is still on its way, and may be carried out at any time after."""
    answer: Answer | None = None

    def __repr__(self) -> str:
        if self.how == "instead" and self.answer is not None:
            return f"instead({self.answer.code}, applied={self.applied})"
        if self.how == "lost":
            return f"lost(applied={self.applied}, late={self.late})"
        return "unsent()"


def unsent() -> Trouble:
    """There is no connection: the request never leaves."""
    return Trouble("unsent")


def lost(*, applied: bool = False, late: bool = False) -> Trouble:
    """The connection breaks without an answer. `late`: the request may yet arrive, when nobody counts on it any more.

    Raises `ConfigurationError` for one that is both applied and late.
    """
    if applied and late:
        raise ConfigurationError("late", late, "what is applied already does not arrive later: leave one out")
    return Trouble("lost", applied, late)


def instead(answer: Answer | StatusError, *, applied: bool = False) -> Trouble:
    """An answer of the test's choice (see `answers`) takes the place of the server's own."""
    return Trouble("instead", applied, answer=status_answer(answer) if isinstance(answer, StatusError) else answer)


class Exchange:
    """One request, from its making to its answer."""

    def __init__(self, method: str, url: URL, headers: Any, data: Any) -> None:
        self.method = method
        self.path = url.path
        self.query = dict(url.query)
        self.handle: CallHandle[Any]
        """Whose request it is."""
        self.call: APICall[Any]
        self.result: Result | None = None
        """What the server made of it, once it was carried out."""
        self.before: Json | None = None
        """The call's object as it was on the server right before that; None: it was not there."""
        self.after: Json | None = None
        """And right after."""
        self._headers = {str(name).lower(): str(value) for name, value in (headers or {}).items()}
        self._data = data
        self._body: bytes | None = None

    @property
    def write(self) -> bool:
        return self.method != "GET"

    @property
    def applied(self) -> bool:
        """It was carried out, and has changed what is stored."""
        return self.result is not None and self.result.written is not None and self.result.written.applied

    def depart(self) -> bytes:
        """It leaves; from here on the server may have seen it. Returns its body."""
        if self._body is None:
            self._body = _bytes_of(self._data)
        return self._body

    def carry_out(self, server: EmbeddedAPIServer) -> Result:
        """It arrives, and the server does what it asks for. Once: nothing the second time."""
        if self.result is None:
            content_type = str(self._headers.get("content-type") or getattr(self._data, "content_type", ""))
            content_type = content_type.partition(";")[0].strip().lower()
            agent = self._headers.get("user-agent", "")
            self.result = server.carry_out(self.method, self.path, self.query, content_type, self.depart(), agent)
        return self.result

    def __await__(self) -> Generator[Exchange, Answer, Answer]:
        return (yield self)

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"


class _Sink:
    """Where a body is written to."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    async def write(self, data: bytes) -> None:
        self.parts.append(bytes(data))


def _bytes_of(data: Any) -> bytes:
    if data is None:
        return b""
    if isinstance(data, (str, bytes)):
        return data.encode() if isinstance(data, str) else data
    sink = _Sink()
    with contextlib.suppress(StopIteration):
        data.write(sink).send(None)  # it has nothing to wait for
    return b"".join(sink.parts)


class _Response:
    """As much of aiohttp's response as clients look at."""

    def __init__(self, answer: Answer) -> None:
        self.status = answer.code
        self.reason = HTTPStatus(answer.code).phrase
        self.headers = CIMultiDict({"Content-Type": answer.content_type, **answer.headers})
        self._body = answer.body

    async def read(self) -> bytes:
        return self._body

    def release(self) -> None:
        pass


class _Session:
    """As much of aiohttp's session as clients use: each request waits for the test to answer it."""

    closed = False
    trust_env = False

    @types.coroutine
    def request(self, method: str, url: Any, **options: Any) -> Generator[Exchange, Answer, _Response]:
        address = url if isinstance(url, URL) else URL(url)
        answer = yield Exchange(method, address, options.get("headers"), options.get("data"))
        return _Response(answer)

    async def close(self) -> None:
        pass


def step_client() -> Any:
    """kubernetes_asyncio's ApiClient over such connections. Raises `ConfigurationError` if it is not installed."""
    made = copy.copy(_template())
    made.configuration = copy.copy(made.configuration)
    made.default_headers = dict(made.default_headers)
    made.rest_client = copy.copy(made.rest_client)
    made.rest_client.pool_manager = _Session()
    return made


@functools.cache
def _template() -> Any:
    """A client as it makes itself, which takes an event loop and a while."""
    try:
        from kubernetes_asyncio import client
    except ImportError as error:
        remedy = "install asyncdispatch[kubernetes]: its client is what calls are sent by"
        raise ConfigurationError("kubernetes_asyncio", None, remedy) from error

    async def make() -> Any:
        made = client.ApiClient(client.Configuration(host="http://api-server.test"))
        await made.close()
        return made

    with ThreadPoolExecutor(1) as apart:  # there may be a loop in this thread
        return apart.submit(asyncio.run, make()).result()


def error_of(trouble: Trouble, exchange: Exchange) -> BaseException:
    """What aiohttp raises for it."""
    if trouble.how == "unsent":
        return aiohttp.ConnectionTimeoutError(f"no connection for {exchange}")
    return aiohttp.ServerDisconnectedError()
