"""A watch as HTTP: an answer without an end on connections of its own (rule R8), and its bytes as lines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from asyncdispatch.apierrors import TransportError
from asyncdispatch.calls import Attempt, ObjectRef
from asyncdispatch.errors import DispatchError
from asyncdispatch.kubernetes._apart import ApartTransport
from asyncdispatch.kubernetes.calls import Read
from asyncdispatch.kubernetes.transport import Json, Transport, _checked, _tellable, transport_error_of

__all__ = ["Lines", "StreamTransport"]

ERROR_BODY = 65_536
"""Bytes of the answer that are read if it is no stream."""


class StreamTransport(ApartTransport):
    """Reads, one of which may have no end. `ref` says what about. Close it at the end.

    All raise `ApiError` and `TransportError`, and `ConfigurationError` once the client itself is closed.
    """

    def __init__(self, transport: Transport, ref: ObjectRef) -> None:
        super().__init__(transport, connections=2)  # a stream's, and one for what is read meanwhile
        self._call = Read(target=ref, transport=self)

    def attempt(self, seconds: float) -> Attempt:
        """What a transport wants to know of a request."""
        clock = asyncio.get_running_loop().time
        return Attempt(clock, self._call, 0, 1, clock() + seconds, None)

    async def get(self, path: str, query: Mapping[str, str], seconds: float) -> Json:
        """The JSON object that a GET is answered, within `seconds`."""
        return await self.request("GET", path, self.attempt(seconds), query=query)

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], seconds: float) -> AsyncIterator[aiohttp.StreamReader]:
        """The bytes of an answer that may have no end; `seconds` is for its beginning."""
        label, generation = f"GET {path}?watch", 0
        try:
            async with asyncio.timeout(seconds):
                headers = await self._headers(self.attempt(seconds), label)
                generation = self.generation
                unbounded = aiohttp.ClientTimeout(total=None, sock_connect=None, ceil_threshold=math.inf)
                answer = await self._ask(*self._session(), "GET", path, query, headers, unbounded)
            try:
                if answer.status != 200:
                    async with asyncio.timeout(seconds):
                        _checked(answer, await answer.content.read(ERROR_BODY), label, 0)
                yield answer.content
            finally:
                answer.close()
        except DispatchError as error:  # one that is a TimeoutError is an OSError too
            self.refused(error, generation)
            raise
        except (aiohttp.ClientError, OSError) as error:
            failed = transport_error_of(error, label)
            self.refused(failed, generation)
            raise failed from _tellable(error)

    async def _headers(self, attempt: Attempt, label: str) -> dict[str, str]:
        """Without an Audit-ID: it is no call of a dispatcher's, so the server gives it one."""
        headers = await super()._headers(attempt, label)
        headers.pop("Audit-ID", None)
        return headers


class Lines:
    """Cuts bytes into lines. Characters may straddle chunks: nothing is decoded before its line is whole."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without those that are empty. `TransportError` if one has no end."""
        first, *rest = chunk.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > self._longest:
            raise TransportError(f"a line of more than {self._longest:,} bytes: this is no watch", sent=True)
        if not rest:
            return []
        lines = [b"".join(self._parts), *rest[:-1]]
        self._parts, self._size = [rest[-1]], len(rest[-1])
        return [line for line in lines if line.strip()]
