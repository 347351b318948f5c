"""What is asked of a client library's ApiClient, and a session of it that does not ask the environment each time."""

from __future__ import annotations

import weakref
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from asyncdispatch.errors import ConfigurationError

__all__ = ["check_client", "without_environment"]


def check_client(api_client: Any) -> None:
    """Raise `ConfigurationError` if it is no ApiClient, or has an address or a proxy that are none."""
    kind = type(api_client).__name__
    for path in ("configuration.auth_settings", "default_headers", "rest_client.pool_manager"):
        found = api_client
        for name in path.split("."):
            if not hasattr(found, name):
                remedy = f"must be the ApiClient of kubernetes_asyncio or kubernetes.aio: a {kind} has no {path}"
                raise ConfigurationError("api_client", kind, remedy)
            found = getattr(found, name)
    host = str(api_client.configuration.host)
    if not _is_url(host):
        shown = host.rpartition("@")[2]  # in front of it may be a password
        raise ConfigurationError("api_client.configuration.host", shown, "must be a URL: https://host:port")
    _check_proxy("api_client.configuration.proxy", api_client.configuration.proxy)


def without_environment(theirs: aiohttp.ClientSession, host: str) -> tuple[aiohttp.ClientSession, str | None]:
    """A session on the client's connections that does not look into the environment for each request; and the proxy.

    The client's own does: it asks for a proxy and reads the user's netrc in threads, which costs several times the
    request (and a netrc that knows the host makes every request with a token fail). We ask for the proxy once.
    """
    if not theirs.trust_env or type(theirs) is not aiohttp.ClientSession:
        return theirs, None
    if (ours := _OURS.get(theirs)) is None:
        proxy = _proxy_of_environment(host)
        session = aiohttp.ClientSession(
            connector=theirs.connector,
            connector_owner=False,
            headers=theirs.headers,
            skip_auto_headers=theirs.skip_auto_headers,
            auth=theirs.auth,
            cookie_jar=theirs.cookie_jar,
            trace_configs=theirs.trace_configs,
            auto_decompress=theirs.auto_decompress,
        )
        # Closing the client closes ours with its connections. But for those that it shares with others: then ours
        # lets go of them when the client's session goes, or aiohttp complains of it.
        weakref.finalize(theirs, session.detach)
        ours = _OURS[theirs] = session, proxy
    return ours


_OURS: weakref.WeakKeyDictionary[aiohttp.ClientSession, tuple[aiohttp.ClientSession, str | None]] = (
    weakref.WeakKeyDictionary()
)


def _proxy_of_environment(host: str) -> str | None:
    """The proxy that HTTPS_PROXY and its like name for the API server, unless NO_PROXY excepts it."""
    url = urlsplit(host)
    if url.hostname is None or proxy_bypass(url.hostname):
        return None
    proxy = getproxies().get(url.scheme)
    _check_proxy(f"{url.scheme.upper()}_PROXY", proxy)
    return proxy or None


def _check_proxy(field: str, proxy: str | None) -> None:
    if proxy and not _is_url(proxy):
        # Not shown: it may hold a password.
        raise ConfigurationError(field, "…", "must be a proxy's URL: http://host:port")


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
