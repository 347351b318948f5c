"""The methods by which a test acts on the connections that are open, whoever holds them."""

from __future__ import annotations

from collections.abc import Iterable

from asyncdispatch.testing.apiserver.connections import Connection


class ConnectionControls:
    """What a test does to open connections, between requests as well as within."""

    _dark = False
    """New connections are dark from the start."""

    def _connections(self) -> Iterable[Connection]:
        raise NotImplementedError

    def close_connections(self) -> None:
        """Close all connections, as a load balancer does that has had enough of them; answers under way are lost.

        Dark ones stay open: nothing comes through them, not even their end.
        """
        for connection in self._connections():
            connection.wire.close()

    def reset_connections(self) -> None:
        """Reset all connections (RST)."""
        for connection in self._connections():
            connection.wire.reset()

    def darken(self, *, new: bool = False) -> None:
        """All connections become black holes: they stay open, nothing arrives, nothing comes back.

        What had arrived is still carried out. With `new`, those to come are accepted and are dark from the start.
        """
        self._dark = new
        for connection in self._connections():
            connection.wire.dark = True

    def lighten(self) -> None:
        """New connections work again; those that went dark stay so, since what they swallowed is gone."""
        self._dark = False
