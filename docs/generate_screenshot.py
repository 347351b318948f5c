"""Draws docs/_static/looking-inside-*.png, by a headless Chromium: `python docs/generate_screenshot.py`.

The page is that of a running dispatcher with some hundred calls, in which everything that there is to see happens.
"""

import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from asyncdispatch import (
    APICall,
    Attempt,
    BreakerPolicy,
    CallTypePolicy,
    Dispatcher,
    DispatcherConfig,
    FlowQuota,
    FunctionCall,
    ObjectRef,
    Verdict,
    VerdictKind,
)
from asyncdispatch.config import RetryPolicy
from asyncdispatch.inspection import debug_app

FOLDER = Path(__file__).parent / "_static"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
SCHEMES = {"dark": "0", "light": "1"}
CONFIG = DispatcherConfig(
    capacity=400,
    max_in_flight=12,
    flows={"volume-binding": FlowQuota(max_in_flight=4, weight=2.0), "descheduler": FlowQuota(max_in_flight=3)},
    call_types={"event": CallTypePolicy(max_in_flight=2)},
    breaker=BreakerPolicy(failures=2, open_for=60.0),
    retry=RetryPolicy(classify=lambda call, attempt, error: error.args[0]),
)
PRIORITIES = (-2_000, 0, 0, 0, 1_000, 1_000_000, 2_000_000_000)


def pod(number: int) -> ObjectRef:
    return ObjectRef("v1", "Pod", f"team-{number % 3}", f"worker-{number}")


async def slowly(attempt: Attempt) -> None:
    await asyncio.sleep(3600)


def failing(verdict: Verdict) -> Callable[[Attempt], Awaitable[None]]:
    async def execute(attempt: Attempt) -> None:
        raise RuntimeError(verdict)

    return execute


def calls(chance: random.Random) -> list[APICall[None]]:
    """A mixture of types, flows and priorities, in a fixed order."""
    found: list[APICall[None]] = []
    for number in range(230):
        call_type, flow = chance.choice(
            (("pod_binding", "default"), ("pod_status_patch", "default"), ("claim_patch", "volume-binding"),
             ("eviction", "descheduler"), ("event", "default"))
        )  # fmt: skip
        delay = 90.0 if number % 29 == 7 else None
        priority = chance.choice(PRIORITIES)
        fields: dict[str, Any] = {"flow": flow, "priority": priority, "not_before": delay, "target": pod(number % 190)}
        found.append(FunctionCall(slowly, call_type=call_type, **fields))
    return found


async def fill(dispatcher: Dispatcher) -> None:
    """Failures first, then what waits behind calls that do not end."""
    backoff = failing(Verdict(VerdictKind.RETRY, retry_after=45.0))
    quota = failing(Verdict(VerdictKind.LATER, scope=("quota", "team-1"), retry_after=60.0))
    for number in range(4):
        dispatcher.submit(FunctionCall(backoff, call_type="webhook", flow="audit", target=pod(500 + number)))
        dispatcher.submit(FunctionCall(quota, call_type="pod_create", target=pod(600 + number)))
    await asyncio.sleep(0.2)
    for number in range(3):
        context = dispatcher.contexts.begin(pod(700 + number), requires=("volume", "quota"))
        context.confirm("quota")
        dispatcher.submit(
            FunctionCall(
                slowly, call_type="pod_binding", target=pod(700 + number), context=context, awaits_prerequisites=True
            )
        )
    for call in calls(random.Random(1)):
        dispatcher.submit(call)
        await asyncio.sleep(0.01)


async def shoot(chromium: str, url: str, scheme: str) -> None:
    with tempfile.TemporaryDirectory() as profile:
        process = await asyncio.create_subprocess_exec(
            chromium,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
            "--window-size=1280,1480",
            f"--screenshot={FOLDER / f'looking-inside-{scheme}.png'}",
            url,
            stderr=asyncio.subprocess.DEVNULL,
        )
        if await process.wait():
            raise SystemExit(f"{chromium} ended with {process.returncode}")


async def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("Chromium is missing: apt-get install chromium")
    FOLDER.mkdir(exist_ok=True)
    async with Dispatcher(CONFIG) as dispatcher:
        runner = web.AppRunner(debug_app(dispatcher))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        await fill(dispatcher)
        port = runner.addresses[0][1]
        for scheme in SCHEMES:
            await shoot(chromium, f"http://127.0.0.1:{port}/debug/dispatcher?limit=6", scheme)
        await runner.cleanup()
        await dispatcher.aclose("the picture is taken")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
