"""The sub-application: `/metrics`, `/debug/dispatcher`, `/healthz`, `/readyz`."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from asyncdispatch._dumping import RUNNING, Json, state_of
from asyncdispatch.dispatcher import Dispatcher
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.inspection.access import Access
from asyncdispatch.inspection.page import POLICY, page

__all__ = ["debug_app"]

log = logging.getLogger("asyncdispatch")

Check = Callable[[], object]

MAX_ROWS = 1_000

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def debug_app(
    dispatcher: Dispatcher,
    registry: CollectorRegistry | None = None,
    ready: Mapping[str, Check] | None = None,
    *,
    hosts: Iterable[str] = (),
    networks: Iterable[str] = (),
) -> web.Application:
    """An aiohttp application to be served on its own, or added to another by `add_subapp("/prefix", …)`.

    `registry` is what `/metrics` exposes: the one given to `Dispatcher(registry=…)`; without it there are no metrics.
    `ready` names checks that `/readyz` asks as well, each a plain function that returns true if all is well.

    `/debug/dispatcher` answers loopback only, asked for by a loopback name. `hosts` are further names that may stand in
    `Host`, `networks` further addresses that may ask ("10.0.0.0/8"). Metrics and health answer everybody.

    Serve it on the dispatcher's event loop. Raises `ConfigurationError` for wrong values.
    """
    if not isinstance(dispatcher, Dispatcher):
        raise ConfigurationError("dispatcher", dispatcher, "must be a Dispatcher")
    if registry is not None and not isinstance(registry, CollectorRegistry):
        raise ConfigurationError("registry", registry, "must be prometheus_client's CollectorRegistry or None")
    debug = _Debug(dispatcher, registry, _checked(ready), Access(hosts, networks))
    app = web.Application()
    app.router.add_get("/debug/dispatcher", debug.look)
    app.router.add_get("/healthz", debug.health)
    app.router.add_get("/readyz", debug.readiness)
    if registry is not None:
        app.router.add_get("/metrics", debug.metrics)
    return app


def _checked(ready: Mapping[str, Check] | None) -> dict[str, Check]:
    if ready is None:
        return {}
    if not isinstance(ready, Mapping):
        raise ConfigurationError("ready", ready, "must map names to functions")
    for name, check in ready.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ConfigurationError("ready", name, "must map names to functions")
        if not callable(check) or inspect.iscoroutinefunction(check):
            raise ConfigurationError(f"ready[{name!r}]", check, "must be a plain function that returns true or false")
    return dict(ready)


class _Debug:
    """The handlers."""

    def __init__(
        self, dispatcher: Dispatcher, registry: CollectorRegistry | None, ready: dict[str, Check], access: Access
    ) -> None:
        self._dispatcher = dispatcher
        self._registry = registry
        self._ready = ready
        self._access = access

    # -- the queue ----------------------------------------------------------------------------------------------

    async def look(self, request: web.Request) -> web.Response:
        """JSON, or the page for whoever prefers HTML."""
        refusal = self._access.refusal(request)
        if refusal is not None:
            log.info("debug page refused: %s", refusal, extra={"reason": refusal})
            return _text(f"refused: {refusal}", status=403)
        limit = _limit(request.query.get("limit", "100"))
        if limit is None:
            return _text(f"limit must be a whole number from 0 to {MAX_ROWS}", status=400)
        dumped = self._dispatcher.dump(limit=limit)
        headers = {**HEADERS, "Vary": "Accept"}
        if _prefers_html(request.headers.get("Accept", "")):
            headers |= {"Content-Security-Policy": POLICY, "X-Frame-Options": "DENY"}
            return web.Response(body=page(dumped), content_type="text/html", charset="utf-8", headers=headers)
        return web.Response(body=_json(dumped), content_type="application/json", headers=headers)

    # -- metrics ------------------------------------------------------------------------------------------------

    async def metrics(self, request: web.Request) -> web.Response:
        """In OpenMetrics' format for whoever asks for it, else in Prometheus' text format."""
        assert self._registry is not None
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        response = web.Response(body=encode(self._registry), headers={**HEADERS, "Content-Type": content_type})
        response.enable_compression()
        return response

    # -- health -------------------------------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        """Fails once the dispatcher is closed, also by a defect of its own: it will never work again.

        That there is an answer shows that the event loop is alive. Draining is no failure.
        """
        closed = state_of(self._dispatcher)[0] == "closed"
        return _text("closed" if closed else "ok", status=503 if closed else 200)

    async def readiness(self, request: web.Request) -> web.Response:
        """Fails unless calls are accepted and every check holds. In SYNC they are accepted, one after another."""
        state = state_of(self._dispatcher)[0]
        lines = [_line("dispatcher", state == RUNNING, state)]
        for name, check in self._ready.items():
            lines.append(_line(name, _holds(name, check), "not ready"))
        failed = any(line.startswith("[-]") for line in lines)
        return _text("\n".join(lines), status=503 if failed else 200)


def _holds(name: str, check: Check) -> bool:
    try:
        answer = check()
    except Exception:
        log.exception("readiness check %s raised", name, extra={"check": name})
        return False
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        log.error("readiness check %s returned an awaitable: it must be a plain function", name, extra={"check": name})
        return False
    return bool(answer)


def _line(name: str, holds: bool, why: str) -> str:
    return f"[+]{name} ok" if holds else f"[-]{name} failed: {why}"


def _limit(given: str) -> int | None:
    plain = given.isascii() and given.isdigit() and len(given) <= 4
    return int(given) if plain and int(given) <= MAX_ROWS else None


def _prefers_html(accept: str) -> bool:
    """True for a browser: `text/html` is named, and not after JSON."""
    names = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if "text/html" not in names:
        return False
    return "application/json" not in names or names.index("text/html") < names.index("application/json")


def _json(dumped: Json) -> bytes:
    return json.dumps(dumped, indent=1, allow_nan=False).encode()


def _text(text: str, status: int = 200) -> web.Response:
    headers: dict[str, Any] = dict(HEADERS)
    return web.Response(text=f"{text}\n", status=status, headers=headers)
