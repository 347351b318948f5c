"""Credentials that stay fresh: read again now and then, before they expire, and when they were refused (rule R4).

One refresh at a time, in a thread. Requests go on with what is known meanwhile, unless that was refused or has
expired: then they wait for the refresh, within their own time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import access as reading
from asyncdispatch.kubernetes.access import Access, access_by_kubeconfig, access_in_cluster
from asyncdispatch.kubernetes.kubeconfig import KubeconfigPath, kubeconfig_paths

__all__ = ["Credentials", "connect_client"]

log = logging.getLogger("asyncdispatch")

REREAD = 60.0
"""Seconds after which files are read again. A Pod's token is replaced long before it expires."""
AHEAD = 60.0
"""Seconds before an expiry that is known at which the refresh begins; a fifth of the lifetime if that is less."""
LEAST = 1.0
"""Seconds between two refreshes after refusals at least, however often credentials are refused."""
AFTER_FAILURE = 10.0
"""Seconds after a refresh that failed at which the next one is due."""
RETIRED = 3_600.0
"""Seconds that connections with replaced certificates are left to requests that still use them."""


class Credentials:
    """Keeps one ApiClient's token and certificates as they are where they come from.

    It is the client's `refresh_api_key_hook`: what uses the client, typed or raw, has it ask here first. `load` reads
    them anew (it blocks) and raises `ConfigurationError`. Close it before the client.
    """

    def __init__(self, client: Any, load: Callable[[], Access], access: Access) -> None:
        self._client = client
        self._load = load
        self._access = access
        self._refreshing: asyncio.Task[None] | None = None
        self._retired: list[tuple[float, aiohttp.ClientSession]] = []
        self._refused = False
        self._reread_at = -math.inf  # when a refusal last had them read anew
        self.generation = 0
        """Counted up by every refresh that went well: tells whether a refusal was of the present credentials."""
        self._apply_token(access)
        self._plan(access)

    def __repr__(self) -> str:
        return f"<Credentials from {self._access.source}>"

    async def __call__(self, configuration: Any) -> None:
        """The client's hook. Waits, at most as long as an attempt may take by default, if it can't do without."""
        await self.ready(30.0)

    @property
    def due(self) -> bool:
        """A refresh is to begin, or is under way and can't be done without."""
        return _now() >= self._due_at

    async def ready(self, limit: float) -> None:
        """Return once requests may use what the client has. Raises `TimeoutError` after `limit` seconds."""
        now = _now()
        if now < self._due_at:
            return
        refreshing = self._begin()
        if self._refused or now >= self._expires_at:
            done, _ = await asyncio.wait({refreshing}, timeout=limit)
            if not done:
                raise TimeoutError

    def refused(self, generation: int) -> None:
        """The server, or we the server, did not accept what `generation` was: read it anew, once."""
        if generation != self.generation or self._refused:
            return
        self._due_at = max(_now(), self._reread_at + LEAST)
        self._refused = True
        if self.due:
            self._begin()

    async def aclose(self) -> None:
        """Stop refreshing, and close connections with replaced certificates."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait({self._refreshing})
        retired, self._retired = self._retired, []
        for _, session in retired:
            await session.close()

    # -- one refresh --------------------------------------------------------------------------------------------------

    def _begin(self) -> asyncio.Task[None]:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="asyncdispatch credentials")
        return self._refreshing

    async def _refresh(self) -> None:
        """Never raises: credentials that can't be read leave the old ones, on which the server has the last word."""
        old, source = self._access, self._access.source
        try:
            access, context = await asyncio.to_thread(_load_anew, self._load, old)
            if context is not None:
                await self._apply_certificates(access, context)
            self._apply_token(access)
        except Exception as error:
            # Texts of others may repeat what they read, so that only their kind is told.
            why = str(error) if isinstance(error, ConfigurationError) else type(error).__name__
            log.warning("credentials could not be refreshed: %s", why, extra={"source": source, "reason": why})
            self._due_at = _now() + AFTER_FAILURE
        else:
            if (access.authorization, access.certificates) != (old.authorization, old.certificates):
                log.info("credentials were refreshed", extra={"source": source})
            self._access = access
            self.generation += 1
            self._plan(access)
        if self._refused:
            self._refused, self._reread_at = False, _now()

    def _plan(self, access: Access) -> None:
        """When to read again. Wall-clock times count only here and now: the clock may be set later (case J5)."""
        now = _now()
        self._due_at = now + REREAD if access.rereads else math.inf
        self._expires_at = math.inf
        left = math.inf if access.expires is None else access.expires - time.time()
        if left == math.inf:
            return
        if left <= 0:  # it is too old, or our clock is wrong: the server knows
            self._due_at = min(self._due_at, now + REREAD)
            return
        self._expires_at = now + left
        self._due_at = min(self._due_at, now + max(LEAST, left - min(AHEAD, left / 5)))

    def _apply_token(self, access: Access) -> None:
        keys = self._client.configuration.api_key
        if access.authorization is None:
            keys.pop("BearerToken", None)
        else:
            keys["BearerToken"] = access.authorization

    async def _apply_certificates(self, access: Access, context: Any) -> None:
        """New connections with the new certificates; requests under way end on the old ones."""
        rest, now = self._client.rest_client, _now()
        self._retired.append((now, rest.pool_manager))
        rest.pool_manager = _session(context)
        while self._retired[0][0] < now - RETIRED:
            await self._retired.pop(0)[1].close()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _load_anew(load: Callable[[], Access], old: Access) -> tuple[Access, Any]:
    """What is there now, and an SSL context if its certificates are others."""
    access = load()
    return access, None if access.certificates == old.certificates else access.certificates.context(access.source)


def _session(context: Any) -> aiohttp.ClientSession:
    """A session as the client library makes it for itself, with our SSL context.

    But with as many connections as are wanted at one time: the dispatcher's seats limit them, and who waits for one
    waits in its queue.
    """
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    return aiohttp.ClientSession(connector=connector, trust_env=True, read_bufsize=2**21)


# -- connecting -------------------------------------------------------------------------------------------------------


async def connect_client(kubeconfig: KubeconfigPath | None, context: str | None) -> tuple[Any, Credentials]:
    """A new ApiClient and what keeps its credentials fresh; close both at the end, the latter first.

    From inside a cluster if nothing is asked for and this is one, else from a kubeconfig. Reads files, runs exec
    plugins and loads certificates in a thread. Raises `ConfigurationError`.
    """
    load = _source(kubeconfig, context)
    access, tls, client = await asyncio.to_thread(_first, load)
    settings: Any = type.__call__(client.Configuration)  # not a copy of a default that somebody has set
    settings.host = access.server.rstrip("/")
    settings.verify_ssl = access.certificates.verify
    settings.tls_server_name = access.server_name
    settings.proxy = access.proxy
    api_client: Any = client.ApiClient(settings)
    credentials = Credentials(api_client, load, access)
    settings.refresh_api_key_hook = credentials
    theirs, rest = api_client.rest_client.pool_manager, api_client.rest_client
    rest.pool_manager = _session(tls)
    await theirs.close()
    return api_client, credentials


def _source(kubeconfig: KubeconfigPath | None, context: str | None) -> Callable[[], Access]:
    """What reads the credentials that `connect_client` is to use. A Pod without a token looks for a kubeconfig."""
    in_pod = kubeconfig is None and context is None and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    token = reading.SERVICE_ACCOUNT / "token"
    if in_pod and os.path.lexists(token):
        return lambda: access_in_cluster(os.environ, reading.SERVICE_ACCOUNT)
    try:
        paths = kubeconfig_paths(kubeconfig)
    except ConfigurationError as error:
        if not in_pod:
            raise
        remedy = f"{error.remedy}: this is a Pod, but {token} is not there"
        raise ConfigurationError(error.field, error.value, remedy) from None
    if in_pod:
        log.info("%s is not there, so that the kubeconfig is used", token, extra={"source": str(paths[0])})
    return lambda: access_by_kubeconfig(paths, context)


def _first(load: Callable[[], Access]) -> tuple[Access, Any, Any]:
    # Imported here: it takes most of a second, and a program that brings its own client may do without.
    from kubernetes_asyncio import client

    access = load()
    return access, access.certificates.context(access.source), client
