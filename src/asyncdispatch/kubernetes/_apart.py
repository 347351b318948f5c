"""Requests with a client's address and credentials, on connections of their own (rule R8).

What keeps a program alive (leases, watches) must not wait behind its calls for a free connection.
"""

from __future__ import annotations

import aiohttp

from asyncdispatch.kubernetes.transport import Transport

__all__ = ["ApartTransport"]


class ApartTransport(Transport):
    """A `Transport` that shares nothing with the client but its settings. Close it at the end.

    `connections` is how many it may open. It follows the client to new certificates: when the client gets itself
    another connector, so does this.
    """

    connecting = 1.0  # nobody else's turn is waited for

    def __init__(self, transport: Transport, *, connections: int) -> None:
        super().__init__(transport._client)
        self._connections = connections
        self._theirs: aiohttp.BaseConnector | None = None
        self._ours: aiohttp.ClientSession | None = None
        self._old: list[aiohttp.ClientSession] = []

    def _session(self) -> tuple[aiohttp.ClientSession, str | None]:
        theirs, proxy = super()._session()
        if self._ours is None or theirs.connector is not self._theirs:
            if self._ours is not None:
                self._old.append(self._ours)
            self._theirs = theirs.connector
            self._ours = aiohttp.ClientSession(
                # Its SSL context took the client 20 ms of blocking the loop to load, and is the one thing to be shared.
                connector=aiohttp.TCPConnector(limit=self._connections, ssl=getattr(theirs.connector, "_ssl", True)),
                headers=theirs.headers,
                skip_auto_headers=theirs.skip_auto_headers,
                auth=theirs.auth,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._ours, proxy

    async def close(self) -> None:
        """Close its connections. Requests in flight are cut off."""
        sessions = [*self._old, *([self._ours] if self._ours is not None else [])]
        self._old, self._ours = [], None
        for session in sessions:
            await session.close()
