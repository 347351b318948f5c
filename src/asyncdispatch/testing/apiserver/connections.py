"""Connections, and the ways in which they break: closed, reset, dark, cut in the middle, sent in pieces."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, cast

from aiohttp import web

from asyncdispatch.testing.apiserver.faults import Plan

_TURNS = 3
"""Turns of the event loop between two pieces, so that a client in the same loop reads the first one alone."""


class Wire:
    """A transport that can go dark: it stays open, and nothing goes through it any more."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.dark = False

    def write(self, data: bytes) -> None:
        if not self.dark:
            self._transport.write(data)

    def writelines(self, data: Iterable[bytes]) -> None:
        if not self.dark:
            self._transport.writelines(data)

    def close(self) -> None:
        if not self.dark:
            self._transport.close()

    def reset(self) -> None:
        """Close by RST, which discards what is in the buffers."""
        connection = self._transport.get_extra_info("socket")
        if connection is not None and connection.fileno() != -1:  # the client may have closed it just now
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(web.RequestHandler):
    """A connection that tells when it is lost, and that can go dark."""

    lost: Callable[[], None] | None = None
    wire: Wire

    def __init__(
        self, manager: web.Server, *, loop: asyncio.AbstractEventLoop, dark: bool = False, **kept: Any
    ) -> None:
        super().__init__(manager, loop=loop, **kept)
        self._born_dark = dark

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = Wire(cast(asyncio.Transport, transport))
        self.wire.dark = self._born_dark
        super().connection_made(cast(asyncio.BaseTransport, self.wire))

    def data_received(self, data: bytes) -> None:
        if not self.wire.dark:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.lost is not None:
            self.lost()

    @property
    def open(self) -> bool:
        """An answer may reach the client."""
        return not self.wire.dark and not self.wire.is_closing()


class CutError(Exception):
    """The body ends here; the connection is closed."""


class Sender:
    """Writes a body as the plan for its request says."""

    def __init__(self, response: web.StreamResponse, connection: Connection, plan: Plan) -> None:
        self._response = response
        self._connection = connection
        self._piece = plan.piece
        self._cut = plan.cut
        self._sent = bytearray()

    async def write(self, data: bytes) -> None:
        """Send `data`, or a part of it and then raise CutError."""
        end = None
        if self._cut is not None:
            before = len(self._sent)
            self._sent += data
            place = self._cut(bytes(self._sent))
            end = None if place is None else max(0, place - before)
        await self._pieces(data[:end])
        if end is not None:
            self._connection.wire.close()
            raise CutError

    async def _pieces(self, data: bytes) -> None:
        if self._piece is None:
            if data:
                await self._response.write(data)
            return
        for start in range(0, len(data), self._piece):
            await self._response.write(data[start : start + self._piece])
            for _ in range(_TURNS):
                await asyncio.sleep(0)
