"""The sub-application over HTTP: metrics, health, the page and who may see it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from prometheus_client import CollectorRegistry, Gauge

from asyncdispatch import ConfigurationError, Dispatcher
from asyncdispatch.inspection import REASONS, debug_app
from asyncdispatch.inspection.access import Access, hostname
from asyncdispatch.inspection.page import SCRIPT, STYLE, page
from tests.shell import call, for_ever, pod, running, turns

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
EVIL = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Served:
    """An application on loopback, and a client of it."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
        """Status, body and headers."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, self.url + path, headers=given) as answer:
            return answer.status, await answer.text(), answer.headers


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[Served]:
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session:
            yield Served(f"http://127.0.0.1:{runner.addresses[0][1]}", session)
    finally:
        await runner.cleanup()


# -- the queue --------------------------------------------------------------------------------------------------------


async def test_json_for_programs() -> None:
    """Without a wish for HTML the answer is the dump."""
    async with running(max_in_flight=1) as dispatcher, serving(debug_app(dispatcher)) as served:
        dispatcher.submit(call(for_ever, "a"))
        dispatcher.submit(call(name="b"))
        await turns()
        for accept in ("*/*", "application/json", "application/json, text/html"):
            status, body, headers = await served.get("/debug/dispatcher", Accept=accept)
            assert status == 200
            assert headers["Content-Type"] == "application/json"
            dumped = json.loads(body)
            assert dumped["waiting"]["rows"][0]["object"] == "Pod ns/b"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Vary"] == "Accept"
        await dispatcher.aclose()


async def test_html_for_browsers() -> None:
    """The same as a page, whose policy allows its own script and style by their hashes and nothing else."""
    async with running() as dispatcher, serving(debug_app(dispatcher)) as served:
        dispatcher.submit(call(for_ever, "a"))
        await turns()
        status, body, headers = await served.get("/debug/dispatcher", **BROWSER)
        assert status == 200
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert "Pod ns/a" in body
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff"
        await dispatcher.aclose()


async def test_the_limit_is_asked_for() -> None:
    """From 0 to 1,000 rows."""
    async with running() as dispatcher, serving(debug_app(dispatcher)) as served:
        for number in range(3):
            dispatcher.contexts.begin(pod(f"p{number}"))
        _, body, _ = await served.get("/debug/dispatcher?limit=1")
        assert json.loads(body)["contexts"]["left_out"] == 2


@pytest.mark.parametrize("limit", ["-1", "x", "1001", "", "1e3", "%D9%A1", "000000000000000001"])
async def test_a_limit_that_can_not_be_meant(limit: str) -> None:
    async with running() as dispatcher, serving(debug_app(dispatcher)) as served:
        status, body, _ = await served.get(f"/debug/dispatcher?limit={limit}")
        assert status == 400
        assert body == "limit must be a whole number from 0 to 1000\n"


async def test_a_closed_dispatcher_can_be_looked_at() -> None:
    """The page says so."""
    async with Dispatcher() as dispatcher:
        await dispatcher.aclose("the end of the day")
    async with serving(debug_app(dispatcher)) as served:
        status, body, _ = await served.get("/debug/dispatcher", **BROWSER)
        assert status == 200
        assert "closed" in body
        assert "the end of the day" in body


async def test_under_a_prefix() -> None:
    """As a sub-application of another."""
    async with running() as dispatcher:
        app = web.Application()
        app.add_subapp("/scheduler", debug_app(dispatcher))
        async with serving(app) as served:
            assert (await served.get("/scheduler/healthz"))[0] == 200
            assert (await served.get("/scheduler/debug/dispatcher"))[0] == 200


# -- hostile words ----------------------------------------------------------------------------------------------------


async def test_no_word_becomes_markup() -> None:
    """Whatever stands in names and reasons is text on the page: of scripts and images there is only our one script."""
    async with Dispatcher() as dispatcher:
        dispatcher.submit(call(for_ever, EVIL, flow=EVIL, call_type=EVIL))
        dispatcher.submit(call(name=EVIL, call_type=EVIL))
        context = dispatcher.contexts.begin(pod(EVIL), requires=(EVIL,))
        dispatcher.submit(call(name="r", context=context, awaits_prerequisites=True))
        await turns()
        dumped = dispatcher.dump()
        await dispatcher.aclose(EVIL)
    dumped["reason"] = EVIL
    text = page(dumped).decode()
    assert len(re.findall("<script", text)) == 1
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text
    closed = page(dispatcher.dump()).decode()
    assert len(re.findall("<script", closed)) == 1
    assert "alert(1)" in closed


def test_every_string_of_a_dump_is_escaped() -> None:
    """Also the fields that are words of ours today: each string of a dump in turn, replaced by markup."""

    async def dumped() -> dict[str, Any]:
        async with Dispatcher() as dispatcher:
            dispatcher.submit(call(for_ever))
            await turns()
            taken = dispatcher.dump()
            await dispatcher.aclose()
        return taken

    before = asyncio.run(dumped())
    fixed = ("reason", "effect", "version")  # `reason` of a row is a key

    def poison(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: poison(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [poison(each, key) for each in value]
        return EVIL if isinstance(value, str) and key not in fixed else value

    text = page(poison(before)).decode()
    assert len(re.findall("<script", text)) == 1
    assert "<img" not in text


def test_lone_surrogates_do_not_break_the_page() -> None:
    """What can't be encoded is replaced."""

    async def dumped() -> dict[str, Any]:
        async with Dispatcher() as dispatcher:
            return dispatcher.dump()

    assert page({**asyncio.run(dumped()), "state": "\ud800"})


def test_script_and_style_can_not_end_themselves() -> None:
    """They stand in the page as they are."""
    for text in (SCRIPT, STYLE):
        assert "</" not in text
        assert "<!--" not in text
    assert "innerHTML" not in SCRIPT
    assert all(name in REASONS for name in ("seats", "held"))


# -- who may see it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1:9", "127.1.2.3", "[::1]", "[::1]:8080"]
)
async def test_loopback_names_are_ours(host: str) -> None:
    async with running() as dispatcher, serving(debug_app(dispatcher)) as served:
        assert (await served.get("/debug/dispatcher", Host=host))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "evil@localhost",
        "localhost@evil.example",
        "10.0.0.1",
        "[::2]",
        "localhost:x",
        "local host",
        "localhost/",
        "",
        "0.0.0.0",
    ],
)
async def test_other_names_are_refused(host: str) -> None:
    """DNS rebinding: a web page's own name may resolve to this machine, and still stands in `Host`."""
    async with running() as dispatcher, serving(debug_app(dispatcher)) as served:
        for headers in ({}, BROWSER):
            status, body, _ = await served.get("/debug/dispatcher", Host=host, **headers)
            assert status in (400, 403)  # 400: what the server itself can't read
            assert "waiting" not in body
        head = await served.get("/debug/dispatcher", "HEAD", Host=host)
        assert head[0] in (400, 403)


async def test_a_refusal_says_why() -> None:
    async with running() as dispatcher, serving(debug_app(dispatcher)) as served:
        _, body, headers = await served.get("/debug/dispatcher", Host="evil.example")
        assert body.startswith("refused: it asks for the host 'evil.example'")
        assert headers["Content-Type"].startswith("text/plain")


async def test_hosts_that_are_named() -> None:
    """By name, in any case, with whatever port."""
    async with running() as dispatcher, serving(debug_app(dispatcher, hosts=("Debug.Example.",))) as served:
        assert (await served.get("/debug/dispatcher", Host="debug.example:8443"))[0] == 200
        assert (await served.get("/debug/dispatcher", Host="other.example"))[0] == 403


async def test_health_and_metrics_are_for_everybody() -> None:
    """The kubelet and Prometheus ask for an address of the Pod."""
    async with running() as dispatcher, serving(debug_app(dispatcher, CollectorRegistry())) as served:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await served.get(path, Host="10.1.2.3:8080"))[0] == 200


class Line:
    """What a connection knows of its two ends. Nobody but loopback can connect in a test."""

    def __init__(self, peer: Any, own: Any = ("10.0.0.7", 80)) -> None:
        self.known = {"peername": peer, "sockname": own}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.known.get(name, default)


def refusal(access: Access, peer: Any, host: str = "localhost") -> str | None:
    request = make_mocked_request("GET", "/", headers={"Host": host}, transport=Line(peer))
    return access.refusal(request)


@pytest.mark.parametrize("peer", ["10.1.2.3", "192.168.0.1", "::2", "fe80::1%eth0", "8.8.8.8", "::ffff:10.1.2.3", "?"])
def test_peers_elsewhere_are_refused(peer: str) -> None:
    """Also those that ask for localhost."""
    assert refusal(Access((), ()), (peer, 1234)) is not None


@pytest.mark.parametrize("peer", [("127.0.0.1", 1), ("127.9.9.9", 1), ("::1", 1, 0, 0), ("::ffff:127.0.0.1", 1), ""])
def test_loopback_peers_and_unix_sockets_are_ours(peer: Any) -> None:
    assert refusal(Access((), ()), peer) is None


def test_networks_that_are_named() -> None:
    """They may ask by the address that they have reached, which no name can be bound to."""
    access = Access((), ("10.1.0.0/16", "fd00::/8"))
    assert refusal(access, ("10.1.2.3", 1), "10.0.0.7:80") is None
    assert refusal(access, ("fd00::1", 1, 0, 0), "localhost") is None
    assert refusal(access, ("10.2.2.3", 1), "10.0.0.7") is not None
    assert refusal(access, ("10.1.2.3", 1), "10.0.0.8") is not None
    assert refusal(access, ("10.1.2.3", 1), "evil.example") is not None


def test_a_connection_that_is_gone() -> None:
    request = make_mocked_request("GET", "/", headers={"Host": "localhost"})
    request._protocol.transport = None
    assert Access((), ()).refusal(request) == "its connection is gone"


@pytest.mark.parametrize("headers", [{}, [("Host", "localhost"), ("Host", "localhost")]])
def test_no_host_or_two(headers: Any) -> None:
    """Which of them was meant can't be told."""
    request = make_mocked_request("GET", "/", headers=CIMultiDict(headers), transport=Line(("127.0.0.1", 1)))
    assert "names no host" in str(Access((), ()).refusal(request))


def test_host_names() -> None:
    assert hostname("A.b:80") == "a.b"
    assert hostname("[::1]:80") == "::1"
    assert hostname("[::1") is None
    assert hostname("a?b") is None
    assert hostname("") is None
    assert hostname(".") is None


# -- metrics ----------------------------------------------------------------------------------------------------------


async def test_metrics_in_both_formats() -> None:
    """OpenMetrics for whoever asks for it, else the text format."""
    registry = CollectorRegistry()
    Gauge("answer", "The answer.", registry=registry).set(42)
    async with running() as dispatcher, serving(debug_app(dispatcher, registry)) as served:
        status, body, headers = await served.get("/metrics")
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain")
        assert "answer 42.0" in body
        assert "# EOF" not in body
        wish = "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"
        _, body, headers = await served.get("/metrics", Accept=wish)
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert body.endswith("# EOF\n")


async def test_metrics_of_the_dispatcher() -> None:
    """The registry that was given to it."""
    registry = CollectorRegistry()
    async with Dispatcher(registry=registry) as dispatcher, serving(debug_app(dispatcher, registry)) as served:
        await dispatcher.run(call())
        _, body, _ = await served.get("/metrics")
        assert "asyncdispatch_" in body


async def test_no_registry_no_metrics() -> None:
    async with running() as dispatcher, serving(debug_app(dispatcher)) as served:
        assert (await served.get("/metrics"))[0] == 404


# -- health -----------------------------------------------------------------------------------------------------------


async def test_health_through_a_life() -> None:
    """Well until it is closed; ready only while it accepts."""
    dispatcher = Dispatcher()
    async with serving(debug_app(dispatcher)) as served:
        assert (await served.get("/healthz"))[:2] == (200, "ok\n")
        assert (await served.get("/readyz"))[:2] == (503, "[-]dispatcher failed: not entered yet\n")
        async with dispatcher:
            assert (await served.get("/readyz"))[:2] == (200, "[+]dispatcher ok\n")
            dispatcher.submit(call(for_ever))
            draining = asyncio.create_task(dispatcher.drain(5.0))
            await turns()
            assert (await served.get("/healthz"))[0] == 200
            assert (await served.get("/readyz"))[:2] == (503, "[-]dispatcher failed: draining for good\n")
            await draining
        assert (await served.get("/healthz"))[:2] == (503, "closed\n")
        assert (await served.get("/readyz"))[0] == 503


async def test_a_broken_worker_is_not_well() -> None:
    """A defect of ours closes the dispatcher."""
    async with Dispatcher() as dispatcher, serving(debug_app(dispatcher)) as served:
        dispatcher._broken(RuntimeError("a defect"))
        await turns()
        assert (await served.get("/healthz"))[0] == 503


async def test_checks_of_readiness() -> None:
    """Each is named; one that fails, raises or answers with an awaitable makes it not ready."""
    state = {"pods": False}

    async def later() -> bool:
        return True

    def broken() -> bool:
        raise ValueError("s3cr3t")

    checks = {"pods": lambda: state["pods"]}
    async with running() as dispatcher, serving(debug_app(dispatcher, ready=checks)) as served:
        assert (await served.get("/readyz"))[:2] == (503, "[+]dispatcher ok\n[-]pods failed: not ready\n")
        state["pods"] = True
        assert (await served.get("/readyz"))[:2] == (200, "[+]dispatcher ok\n[+]pods ok\n")
    for check in (broken, lambda: later()):
        async with running() as dispatcher, serving(debug_app(dispatcher, ready={"c": check})) as served:
            assert (await served.get("/readyz"))[:2] == (503, "[+]dispatcher ok\n[-]c failed: not ready\n")


# -- wrong values -----------------------------------------------------------------------------------------------------


async def coroutine() -> bool:
    return True


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"dispatcher": None}, "dispatcher"),
        ({"registry": {}}, "registry"),
        ({"ready": ["pods"]}, "ready"),
        ({"ready": {"": bool}}, "ready"),
        ({"ready": {"a\nb": bool}}, "ready"),
        ({"ready": {1: bool}}, "ready"),
        ({"ready": {"pods": True}}, "ready['pods']"),
        ({"ready": {"pods": coroutine}}, "ready['pods']"),
        ({"hosts": "debug.example"}, "hosts"),
        ({"hosts": (1,)}, "hosts"),
        ({"hosts": ("",)}, "hosts"),
        ({"hosts": ("debug.example:8080",)}, "hosts"),
        ({"hosts": ("http://debug.example",)}, "hosts"),
        ({"hosts": ("*",)}, "hosts"),
        ({"networks": ("10.0.0.1/8",)}, "networks"),
        ({"networks": "10.0.0.0/8"}, "networks"),
        ({"networks": ("everybody",)}, "networks"),
    ],
)
def test_wrong_values(fields: dict[str, Any], field: str) -> None:
    """Each is named, with the remedy, before anything is served."""
    with pytest.raises(ConfigurationError) as raised:
        debug_app(**{"dispatcher": Dispatcher(), **fields})
    assert raised.value.field == field
