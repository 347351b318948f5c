"""A TCP proxy that misbehaves, to stand between a client and any API server."""

from __future__ import annotations

import asyncio
import socket
import struct
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

__all__ = ["FaultProxy"]

_CHUNK = 2**16
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time at all: closing sends RST."""


class FaultProxy:
    """Forwards connections to `target` (a URL) on a loopback port of its own, byte by byte, until it is told otherwise.

    TLS passes through untouched, so a certificate for 127.0.0.1 stays good and nothing inside can be told apart: faults
    are for connections, not for requests. `url` is the address for clients. `delay` is what bytes take in each
    direction, in seconds; it may be set at any time. Leaving cuts what is open.
    """

    def __init__(self, target: str, *, delay: float = 0.0) -> None:
        parts = urlsplit(target)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"target: {target!r} is no address; give one like 'https://127.0.0.1:6443'")
        self._scheme = parts.scheme
        self.target = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        self.delay = delay
        self.accepted = 0
        """Connections accepted so far."""
        self._links: set[_Link] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self._listener: asyncio.Server | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        if self._listener is not None:
            raise RuntimeError("the proxy is running already; make another one")
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_CHUNK, backlog=1024)
        self._port = int(self._listener.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        tasks = [link.task for link in self._links]
        self.cut()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """Where clients connect to."""
        if not self._port:
            raise RuntimeError("the proxy is not running; enter it with 'async with'")
        return f"{self._scheme}://127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._links)

    # -- faults ------------------------------------------------------------------------------------------------------

    def cut(self) -> int:
        """Reset (RST) all open connections, towards the client and towards the server; returns how many there were."""
        links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    def refuse(self) -> None:
        """Reset every new connection as soon as it is accepted, until `restore`. Open ones live on."""
        self._refusing = True

    def black_hole(self) -> None:
        """From now on nothing passes in either direction, on open connections or new ones, until `restore`.

        What is sent meanwhile is not lost, as it would not be on a network that is cut for a while.
        """
        self._passing.clear()

    def restore(self) -> None:
        """End `black_hole` and `refuse`. Connections whose answers are swallowed stay so."""
        self._refusing = False
        self._passing.set()

    def swallow(self, *, then_cut: bool = False) -> Swallowed:
        """Drop all that the server answers on the connections that are open now; requests still reach it.

        With `then_cut` such a connection is reset as soon as an answer was dropped; without, it stays silent until
        `cut`. New connections are not concerned, so that a client which makes one can read what became of its write.
        """
        swallowed = Swallowed()
        for link in self._links:
            link.swallow(swallowed, then_cut)
        return swallowed

    # -- inside ------------------------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(self, reader, writer)
        self._links.add(link)
        link.task.add_done_callback(lambda task: self._links.discard(link))
        if self._refusing:
            link.reset()

    async def pass_on(self) -> None:
        """Wait as long as the proxy makes bytes wait."""
        if self.delay > 0:
            await asyncio.sleep(self.delay)
        await self._passing.wait()


class Swallowed:
    """What became of the answers that a proxy was told to swallow."""

    def __init__(self) -> None:
        self.bytes = 0
        self._some = asyncio.Event()

    async def wait(self) -> None:
        """Until the first answer was swallowed: its request has been carried out by then."""
        await self._some.wait()

    def add(self, count: int) -> None:
        self.bytes += count
        self._some.set()


class _Link:
    """One connection of a client and the one to the server that belongs to it."""

    def __init__(self, proxy: FaultProxy, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._writers = [client]
        self._swallowed: Swallowed | None = None
        self._then_cut = False
        self.task = asyncio.create_task(self._run(requests))

    async def _run(self, requests: asyncio.StreamReader) -> None:
        try:
            await self._proxy.pass_on()
            answers, server = await asyncio.open_connection(*self._proxy.target, limit=_CHUNK)
            self._writers.append(server)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(requests, server, answering=False))
                group.create_task(self._pump(answers, self._client, answering=True))
        except* OSError:  # one side is gone: the other is told the same way
            self._abort()
        finally:
            for writer in self._writers:
                writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answering: bool) -> None:
        while data := await reader.read(_CHUNK):
            await self._proxy.pass_on()
            if not answering or self._swallowed is None:
                writer.write(data)
                await writer.drain()
                continue
            self._swallowed.add(len(data))
            if self._then_cut:
                self.reset()
        await self._proxy.pass_on()
        if not answering or self._swallowed is None:
            writer.write_eof()

    def swallow(self, swallowed: Swallowed, then_cut: bool) -> None:
        self._swallowed, self._then_cut = swallowed, then_cut

    def reset(self) -> None:
        self._abort()
        self.task.cancel()

    def _abort(self) -> None:
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            if connection is not None and connection.fileno() >= 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
