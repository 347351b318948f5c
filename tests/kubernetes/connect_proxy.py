"""A small HTTP proxy on loopback: tunnels by CONNECT, forwards plain requests, may ask for a password."""

from __future__ import annotations

import asyncio
import base64
from typing import Self
from urllib.parse import urlsplit


class ConnectProxy:
    """`seen` are the request lines that it was sent; all tunnels lead to `target`, whatever they ask for."""

    def __init__(self, target: str, password: str | None = None) -> None:
        self.seen: list[str] = []
        self._target = urlsplit(target)
        self._password = password
        self._listener: asyncio.Server

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listener.close()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode().split("\r\n")
        self.seen.append(line)
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
        if self._password is not None and headers.get("proxy-authorization") != self._expected():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        if line.startswith("CONNECT"):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            method, url, version = line.split()
            path = urlsplit(url)._replace(scheme="", netloc="").geturl()
            back.write(head.replace(line.encode(), f"{method} {path} {version}".encode(), 1))
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    def _expected(self) -> str:
        return f"Basic {base64.b64encode(f'{self._password}'.encode()).decode()}"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()
