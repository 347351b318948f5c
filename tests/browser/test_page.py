"""The page of the queue in a real browser: it shows a dispatcher, refreshes itself, and runs nobody's markup."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from asyncdispatch import Dispatcher, DispatcherConfig
from asyncdispatch.inspection import debug_app
from tests.browser import chromium
from tests.browser.chromium import Browser
from tests.shell import call, for_ever, pod, turns

EVIL = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


@asynccontextmanager
async def serving(dispatcher: Dispatcher) -> AsyncIterator[str]:
    runner = web.AppRunner(debug_app(dispatcher))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/debug/dispatcher"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def busy() -> AsyncIterator[Dispatcher]:
    """A dispatcher with two seats, both taken, and three calls of high priority that wait."""
    async with Dispatcher(DispatcherConfig(max_in_flight=2, capacity=100)) as dispatcher:
        for name in ("a", "b"):
            dispatcher.submit(call(for_ever, name))
        await turns()
        for name in ("c", "d", "e"):
            dispatcher.submit(call(for_ever, name, priority=1_000_000, flow="plugin"))
        yield dispatcher
        await dispatcher.aclose()


async def test_it_shows_the_numbers(browser: Browser) -> None:
    """Depth, seats, levels by state, what flies, why calls wait, and which comes next; the console stays empty."""
    async with busy() as dispatcher, serving(dispatcher) as url:
        await browser.open(url)
        assert await browser.text("#depth") == "5"
        assert await browser.text("#seats") == "2"
        assert await browser.text("#state") == "running"
        assert await browser.value("document.title") == "5 of 100 · asyncdispatch"
        levels = await browser.text("#levels")
        assert "high\t3" in levels.replace(" ", "")
        assert "all seats are taken" in await browser.text("#reasons")
        assert "Pod ns/c" in await browser.text("#next")
        assert "Pod ns/a" in await browser.text("#in-flight")
        assert "plugin" in await browser.text("#flows")
        assert "all 2 seats are taken" in await browser.text("#waiting")
        share = await browser.value("document.querySelector('.bar rect').getBoundingClientRect().width")
        whole = await browser.value("document.querySelector('.bar').getBoundingClientRect().width")
        assert share == pytest.approx(whole * 0.05, rel=0.05)
        assert browser.complaints == []


async def test_it_refreshes_itself(browser: Browser) -> None:
    """Without a reload: what the reader has scrolled to stays."""
    async with busy() as dispatcher, serving(dispatcher) as url:
        await browser.open(url)
        await browser.value("window.mark = 'the same document'")
        await browser.value("window.scrollTo(0, 120)")
        before = await browser.value("scrollY")
        for number in range(7):
            dispatcher.submit(call(name=f"new{number}"))
        await browser.until("document.querySelector('#depth').innerText === '12'")
        assert await browser.value("window.mark") == "the same document"
        assert await browser.value("scrollY") == before
        assert await browser.value("document.title") == "12 of 100 · asyncdispatch"
        assert browser.complaints == []


async def test_it_says_when_it_can_not_refresh(browser: Browser) -> None:
    """The last numbers stay, marked as old; when the server is back, so is the page."""
    async with busy() as dispatcher:
        gone = False

        @web.middleware
        async def perhaps(request: web.Request, handler: object) -> web.StreamResponse:
            if gone:
                raise web.HTTPServiceUnavailable
            return await handler(request)  # type: ignore[operator]

        app = debug_app(dispatcher)
        app.middlewares.append(perhaps)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        await browser.open(f"http://127.0.0.1:{runner.addresses[0][1]}/debug/dispatcher")
        gone = True
        await browser.until("document.body.classList.contains('stale')")
        assert "Not refreshed (status 503)" in await browser.text("#note")
        assert await browser.text("#depth") == "5"
        gone = False
        await browser.until("!document.body.classList.contains('stale')")
        assert await browser.text("#note") == ""
        await runner.cleanup()


async def test_it_can_be_paused(browser: Browser) -> None:
    """Nothing is asked for until it goes on."""
    async with busy() as dispatcher, serving(dispatcher) as url:
        await browser.open(url)
        await browser.value("document.querySelector('#pause').click()")
        asked = "performance.getEntriesByType('resource').filter(each => each.initiatorType === 'fetch').length"
        before = await browser.value(asked)
        await browser.value("refresh()")
        assert await browser.value(asked) == before
        await browser.value("document.querySelector('#pause').click()")
        await browser.until(f"{asked} > {before}")


async def test_nobodys_markup_runs(browser: Browser) -> None:
    """Names, reasons and scopes of markup are shown as text, on the first page and on refreshed ones."""
    async with busy() as dispatcher, serving(dispatcher) as url:
        dispatcher.submit(call(for_ever, EVIL, flow=EVIL, call_type=EVIL))
        context = dispatcher.contexts.begin(pod(EVIL), requires=(EVIL,))
        dispatcher.submit(call(name="x", context=context, awaits_prerequisites=True))
        await browser.open(url)
        assert "onerror" in await browser.text("#waiting")
        assert await browser.value("document.images.length") == 0
        assert await browser.value("document.scripts.length") == 1
        dispatcher.submit(call(name="y"))
        await browser.until("document.querySelector('#depth').innerText === '8'")
        assert await browser.value("document.images.length") == 0
        assert "broken" not in await browser.value("document.title")
        assert browser.complaints == []


async def test_the_policy_holds(browser: Browser) -> None:
    """Even if markup got in, its script, image and style would not be run or asked for; and the browser says so."""
    async with busy() as dispatcher, serving(dispatcher) as url:
        await browser.open(url)
        await browser.value(
            """(() => {
                const script = document.createElement("script");
                script.textContent = "window.broken = true";
                document.body.append(script);
            })()"""
        )
        assert await browser.value("window.broken") is None
        await browser.until("true")
        assert any("Content Security Policy" in each for each in browser.complaints)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_light_and_dark(browser: Browser, scheme: str) -> None:
    """It follows the reader's wish, with text that can be read."""
    async with busy() as dispatcher, serving(dispatcher) as url:
        await browser.prefer(scheme)
        await browser.open(url)
        ground, text = [
            sum(map(int, (await browser.value(f"getComputedStyle(document.body).{name}"))[4:-1].split(",")))
            for name in ("backgroundColor", "color")
        ]
        assert (ground > 600) is (scheme == "light")
        assert abs(ground - text) > 450
        assert browser.complaints == []


async def test_a_closed_dispatcher(browser: Browser) -> None:
    """The page goes on and says so."""
    async with Dispatcher() as dispatcher, serving(dispatcher) as url:
        await browser.open(url)
        await dispatcher.aclose("the end of the day")
        await browser.until("document.querySelector('#state').innerText === 'closed'")
        assert "the end of the day" in await browser.text("#reason")
        assert browser.complaints == []


def test_without_chromium_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says what to install."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="apt-get install"):
        chromium.find()
