"""Who may see the debug page: by the address that asks, and by the name that it asks for.

The page names what a cluster is doing, so by default it is for whoever is on the machine. The peer's address is not
enough: a web page that a browser on the machine shows may have its own name resolve to 127.0.0.1 (DNS rebinding), and
then asks from loopback. Its requests still carry its name in `Host`, so that must be one of ours.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from asyncdispatch.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio

    from aiohttp import web

NAME = re.compile(r"[a-z0-9._:-]+")

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class Access:
    """Loopback, and what is named: `hosts` that may stand in `Host`, `networks` that may ask."""

    def __init__(self, hosts: Iterable[str], networks: Iterable[str]) -> None:
        self._hosts = frozenset(_host(host) for host in _strings("hosts", hosts))
        self._networks = tuple(_network(network) for network in _strings("networks", networks))

    def refusal(self, request: web.Request) -> str | None:
        """Why a request may not see the page; None if it may."""
        return self._by_peer(request.transport) or self._by_host(request)

    def _by_peer(self, transport: asyncio.Transport | None) -> str | None:
        if transport is None:
            return "its connection is gone"
        peer = transport.get_extra_info("peername")
        if not isinstance(peer, tuple):
            return None  # a Unix socket: who may open it is the file system's to say
        address = _address(peer[0])
        if address is None:
            return "its address can't be read"
        if address.is_loopback or any(address in network for network in self._networks):
            return None
        return f"{address} is neither loopback nor in `networks`"

    def _by_host(self, request: web.Request) -> str | None:
        given = request.headers.getall("Host", [])
        name = hostname(given[0]) if len(given) == 1 else None
        if name is None:
            return "it names no host, or none that can be read"
        if name == "localhost" or name in self._hosts:
            return None
        address = _address(name)
        # An address can't be made to resolve to another: it is fine if it is the one that was asked.
        if address is not None and (address.is_loopback or address == _bound(request.transport)):
            return None
        return f"it asks for the host {name[:100]!r}, which is neither this machine's loopback nor in `hosts`"


def hostname(given: str) -> str | None:
    """The name or address in a `Host` header, in lower case, without port and final dot; None if it can't be read."""
    try:
        parts = urlsplit(f"//{given}")
        _ = parts.port  # raises if it is none
    except ValueError:
        return None
    if "@" in given or parts.path or parts.query or parts.fragment or not parts.hostname:
        return None
    return parts.hostname.removesuffix(".") or None


def _bound(transport: asyncio.Transport | None) -> IPAddress | None:
    """The address on which a connection has arrived."""
    own = transport.get_extra_info("sockname") if transport is not None else None
    return _address(own[0]) if isinstance(own, tuple) else None


def _address(text: str) -> IPAddress | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _strings(field: str, values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigurationError(field, values, "must be a tuple of strings")
    found = tuple(values)
    for value in found:
        if not isinstance(value, str) or not value:
            raise ConfigurationError(field, value, "must be strings that are not empty")
    return found


def _host(given: str) -> str:
    name = hostname(given)
    # A port in it would never match: names are compared without.
    if name is None or name != given.lower().removesuffix(".").strip("[]") or not NAME.fullmatch(name):
        raise ConfigurationError("hosts", given, "must be names as in a Host header, without port or wildcard")
    return name


def _network(given: str) -> IPNetwork:
    try:
        return ipaddress.ip_network(given)
    except ValueError as error:
        raise ConfigurationError("networks", given, f"must be networks such as 10.0.0.0/8 ({error})") from None
