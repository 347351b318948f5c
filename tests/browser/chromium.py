"""A headless Chromium, told what to do over its own protocol (DevTools), and asked what it has to complain about."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import signal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0"),
)
PATIENCE = 60.0
"""Seconds for one step: a machine may be busy, and a browser that does not answer at all must fail the test."""


def find() -> str:
    """Where Chromium is. Raises if there is none: a test that needs it must not look as if it had passed."""
    for name in ("chromium", "chromium-browser"):
        if (path := shutil.which(name)) is not None:
            return path
    raise RuntimeError("Chromium is missing: apt-get install --no-install-recommends chromium")


class Browser:
    """One Chromium with one page. `complaints` gathers what it writes to its console, and errors that nobody caught."""

    def __init__(self, program: str, profile: Path) -> None:
        self._program = program
        self._profile = profile
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded: asyncio.Future[None] | None = None
        self.complaints: list[str] = []

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            self._program,
            *FLAGS,
            f"--user-data-dir={self._profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # so that its many processes can be ended together
        )
        self._session = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(PATIENCE):
                port = await self._port()
                async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [each for each in await answer.json() if each["type"] == "page"]
                self._socket = await self._session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
        except BaseException:
            await self._end()
            raise
        self._reader = asyncio.create_task(self._read())
        self._drain = asyncio.create_task(self._drained())
        for domain in ("Page", "Runtime", "Log"):
            await self._ask(f"{domain}.enable")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (self._reader, self._drain):
            task.cancel()
        await asyncio.gather(self._reader, self._drain, return_exceptions=True)
        await self._socket.close()
        await self._end()

    async def _end(self) -> None:
        await self._session.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._process._transport.close()  # type: ignore[attr-defined]  # the pipe that its children have held

    async def _port(self) -> str:
        assert self._process.stderr is not None
        said = []
        async for line in self._process.stderr:
            said.append(line.decode(errors="replace"))
            if found := re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", said[-1]):
                return found[1]
        raise RuntimeError(f"{self._program} did not start:\n{''.join(said)}")

    async def _drained(self) -> None:
        assert self._process.stderr is not None
        async for _ in self._process.stderr:
            pass

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                if (future := self._answers.pop(told["id"], None)) is not None and not future.done():
                    future.set_result(told)
            else:
                self._note(told["method"], told["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.complaints.append(f"{params['type']}: {[each.get('value') for each in params['args']]}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(f"{params['entry']['source']}: {params['entry']['text']}")
        elif method == "Page.loadEventFired" and self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(None)

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE):
            answer = await future
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    # -- what tests do ------------------------------------------------------------------------------------------

    async def open(self, url: str) -> None:
        """Go there and wait until it is loaded."""
        self._loaded = asyncio.get_running_loop().create_future()
        await self._ask("Page.navigate", url=url)
        async with asyncio.timeout(PATIENCE):
            await self._loaded

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, in the page; a promise is waited for."""
        answer = await self._ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def text(self, selector: str) -> str:
        """The text of an element as a reader sees it."""
        return str(await self.value(f"document.querySelector({selector!r}).innerText"))

    async def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true, looking at each change of the document."""
        await self.value(
            f"""new Promise(resolve => {{
                const look = () => {{ if ({expression}) {{ watcher.disconnect(); resolve(); }} }};
                const watcher = new MutationObserver(look);
                const all = {{subtree: true, childList: true, characterData: true, attributes: true}};
                watcher.observe(document, all);
                look();
            }})"""
        )

    async def prefer(self, scheme: str) -> None:
        """As somebody who prefers `light` or `dark`."""
        await self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
