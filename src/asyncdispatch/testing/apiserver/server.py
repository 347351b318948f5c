"""The embedded API server: puts the parts together and opens the port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from asyncdispatch.testing.apiserver.access import Access
from asyncdispatch.testing.apiserver.admission import SYSTEM_PRIORITIES, AdmissionStep, default_steps
from asyncdispatch.testing.apiserver.api import API, BODY_LIMIT, Request, Result
from asyncdispatch.testing.apiserver.audit import AuditRecord
from asyncdispatch.testing.apiserver.connections import Connection
from asyncdispatch.testing.apiserver.controls import FaultControls
from asyncdispatch.testing.apiserver.direct import DirectAccess
from asyncdispatch.testing.apiserver.faults import Seconds, check_seconds, drawing
from asyncdispatch.testing.apiserver.handler import Handler, parsed
from asyncdispatch.testing.apiserver.reading import Reader
from asyncdispatch.testing.apiserver.resources import Registry
from asyncdispatch.testing.apiserver.store import Store
from asyncdispatch.testing.apiserver.tls import CertificateControls, Certificates
from asyncdispatch.testing.apiserver.watch import WatchSettings
from asyncdispatch.testing.apiserver.watching import WatchControls
from asyncdispatch.testing.apiserver.wires import ConnectionControls
from asyncdispatch.testing.apiserver.writing import Writer

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_QUIET: dict[str, Any] = {"access_log": None}
_SHUTDOWN = 0.01
"""Seconds that requests in flight are given at the end."""


def _wall_clock() -> datetime:
    return datetime.now(UTC)


class EmbeddedAPIServer(DirectAccess, FaultControls, WatchControls, ConnectionControls, CertificateControls):
    """A Kubernetes API server for tests, over HTTP on a loopback port, in the caller's event loop.

    It answers as the real one does for the verbs that a scheduler needs, keeps an audit list of all requests, and
    misbehaves on request (see FaultControls). All waiting is by the event loop's clock, so it runs under virtual time;
    only the timestamps in objects come from `now`.

    `latency` is what every request takes, in seconds: half of it before the request is carried out and half after. It
    may be a pair (least, most) to draw from evenly, or a function: one that needs an argument is given a
    `random.Random` to draw from.
    `seed` decides uids, generated names and what is drawn: the same seed and requests give the same answers.
    `namespaces` are there from the start, as are the two system priority classes.
    `auto_namespaces` makes a namespace when something is created in it, instead of answering 404.
    `watch_window` counts the changes per resource that a watch can start from; before those it is answered 410, as
    `watch_gone` says: an ERROR "event" within a 200, or an HTTP "status". `watch_lag` holds events back.
    `watch_list` serves watches with sendInitialEvents, which are refused otherwise. Bookmarks, for those who ask for
    them, come every `bookmark_interval` seconds and before the end.
    `controllers` runs the controllers after every write, not only when `run_controllers` is called.
    `tls` makes it speak HTTPS, with certificates by an authority of its own (`ca_file`, `rotate_certificate`).
    Bad options raise ValueError (times a ConfigurationError, which is one).
    """

    def __init__(
        self,
        *,
        latency: Seconds = 0.0,
        seed: int = 0,
        namespaces: Iterable[str] = NAMESPACES,
        auto_namespaces: bool = False,
        watch_window: int = 10_000,
        watch_gone: str = "event",
        watch_lag: float = 0.0,
        watch_list: bool = False,
        bookmark_interval: float = 60.0,
        tls: bool = False,
        controllers: bool = False,
        now: Callable[[], datetime] = _wall_clock,
    ) -> None:
        _check_options(watch_window, watch_gone, watch_lag, bookmark_interval)
        registry = Registry()
        store = Store(registry, seed=seed, window=watch_window, now=now, time=self._now)
        reader = Reader(store)
        self._steps = default_steps()
        writer = Writer(store, self._steps)
        DirectAccess.__init__(self, registry, store, reader, writer)
        FaultControls.__init__(self, seed=seed, time=self._now)
        CertificateControls.__init__(self, Certificates() if tls else None)
        self._audit: list[AuditRecord] = []
        self._access = Access()
        watches = WatchSettings(bookmark_interval, watch_gone, watch_list)
        api = self._api = API(registry, reader, writer, watches, self._now)
        self._latency = latency
        draw = drawing("latency", latency)
        self._handler = Handler(api, self._access, self._faults, self._audit, latency=draw, seed=seed, time=self._now)
        WatchControls.__init__(self, store, self._handler.watches)
        watches.lies = self._lies
        self.watch_lag = watch_lag
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: asyncio.Server | None = None
        self._web: web.Server | None = None
        self._port = 0
        self._clients: list[Any] = []
        self._controllers_due = False
        if controllers:
            store.written = self._wrote
        if auto_namespaces:
            self._steps.insert(0, self._make_namespace)
        self._populate(namespaces)

    # -- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._listener is not None:
            raise RuntimeError("the server is running already; make another one")
        loop = self._loop = asyncio.get_running_loop()
        server = self._web = web.Server(self._handler.handle, request_factory=_request)
        certificates = self._maybe_certificates
        self._listener = await loop.create_server(
            lambda: Connection(server, loop=loop, dark=self._dark, **_QUIET),
            *("127.0.0.1", self._port),
            backlog=1024,
            ssl=certificates.context if certificates is not None else None,
        )
        if self._writer.store.written == self._wrote:
            self._wrote()
        listening: socket.socket = self._listener.sockets[0]
        self._port = int(listening.getsockname()[1])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for client in self._clients:
            await client.close()
        self._clients.clear()
        if self._listener is not None and self._web is not None:
            self._listener.close()
            self.close_watches()
            for connection in self._connections():
                if connection.wire.dark:
                    connection.wire.reset()
            await self._web.shutdown(_SHUTDOWN)
            self._listener = None

    @property
    def url(self) -> str:
        """The address at which it listens, on a port of its own of the loopback interface."""
        if not self._port:
            raise RuntimeError("the server is not running; enter it with 'async with'")
        scheme = "http" if self._maybe_certificates is None else "https"
        return f"{scheme}://127.0.0.1:{self._port}"

    def api_client(self, token: str | None = None) -> Any:
        """A new kubernetes_asyncio ApiClient, with a bearer token if given; the server closes it when it ends."""
        from kubernetes_asyncio import client

        configuration = client.Configuration(host=self.url)
        if self._maybe_certificates is not None:
            configuration.ssl_ca_cert = self.ca_file
        if token is not None:
            configuration.api_key["BearerToken"] = f"Bearer {token}"
        made = client.ApiClient(configuration)
        self._clients.append(made)
        return made

    def carry_out(
        self, method: str, path: str, query: Mapping[str, str], content_type: str, body: bytes, agent: str = ""
    ) -> Result:
        """One request to its answer, at once: without connection, latency, faults and audit. Needs no event loop."""
        value, fault = parsed(body)
        target = self._api.locate(path)
        return self._api.handle(Request(method, path, query, content_type, value, fault, len(body), agent, target))

    # -- settings that may change while it runs ----------------------------------------------------------------------

    @property
    def audit(self) -> list[AuditRecord]:
        """Every request, by arrival."""
        return self._audit

    @property
    def latency(self) -> Seconds:
        """What every request takes, in seconds; may be set while the server runs."""
        return self._latency

    @latency.setter
    def latency(self, seconds: Seconds) -> None:
        self._handler.latency = drawing("latency", seconds)
        self._latency = seconds

    @property
    def tokens(self) -> dict[str, str] | None:
        """The user of each bearer token that is accepted; None (at first): nobody is asked who they are.

        Other tokens are answered 401, no token 403 (anonymous). Change it, or set another one, to rotate tokens.
        """
        return self._access.tokens

    @tokens.setter
    def tokens(self, tokens: dict[str, str] | None) -> None:
        self._access.tokens = tokens

    @property
    def admission(self) -> list[AdmissionStep]:
        """The steps that every write passes, in order; may be changed."""
        return self._steps

    # -- inside ------------------------------------------------------------------------------------------------------

    def _connections(self) -> list[Connection]:
        open_ones = self._web.connections if self._web is not None else []
        return [connection for connection in open_ones if isinstance(connection, Connection)]

    def _now(self) -> float:
        return self._loop.time() if self._loop is not None else 0.0

    def _wrote(self) -> None:
        """Controllers run once the write is done, in a turn of the loop of their own."""
        if self._loop is not None and not self._loop.is_closed() and not self._controllers_due:
            self._controllers_due = True
            self._loop.call_soon(self._control)

    def _control(self) -> None:
        self.run_controllers()
        self._controllers_due = False

    def _make_namespace(self, request: Any) -> None:
        if request.operation == "CREATE" and request.resource.namespaced and not request.dry_run:
            self._ensure_namespace(request.resource, request.namespace)

    def _populate(self, namespaces: Iterable[str]) -> None:
        for name in namespaces:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name, value in SYSTEM_PRIORITIES.items():
            self.create(
                {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
                | {"value": value, "preemptionPolicy": "PreemptLowerPriority"}
            )


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """A request that may be larger than aiohttp would have it: the limit is the API server's."""
    loop = asyncio.get_running_loop()
    # Above the limit by one, so that the handler sees and answers what is too large.
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_LIMIT + 1)


def _check_options(window: int, gone: str, lag: float, bookmarks: float) -> None:
    check_seconds("watch_lag", lag)
    if isinstance(window, bool) or not isinstance(window, int) or window < 0:
        raise ValueError(f"watch_window: {window!r} is no number of changes; give an integer of at least 0")
    if gone not in ("event", "status"):
        raise ValueError(f"watch_gone: {gone!r} is unknown; give 'event' or 'status'")
    if isinstance(bookmarks, bool) or not isinstance(bookmarks, (int, float)) or not bookmarks > 0:
        raise ValueError(f"bookmark_interval: {bookmarks!r} is no time; give seconds above 0")
