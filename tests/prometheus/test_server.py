"""A real Prometheus scrapes a dispatcher over loopback, and its alerts tell of a real fault."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml  # type: ignore[import-untyped]
from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from asyncdispatch import Backpressure, BreakerPolicy, Dispatcher, DispatcherConfig
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import EmbeddedAPIServer
from tests.cases.support import new_pod

INTERVAL = "200ms"
PATIENCE = 60.0


class Scraped:
    """A page of metrics. Each scrape is an event: nothing here waits by the clock."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._scraped = asyncio.Event()
        self.url = ""

    async def page(self, request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        self._scraped.set()
        return web.Response(body=encoder(self._registry), headers={"Content-Type": content_type})

    async def again(self) -> None:
        """Until the next scrape."""
        self._scraped.clear()
        await self._scraped.wait()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """The address to scrape."""
        app = web.Application()
        app.router.add_get("/metrics", self.page)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def hurried(rules: dict[str, Any]) -> dict[str, Any]:
    """The shipped rules, a hundred and fifty times as impatient."""
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[\w+\]", "[2s]", rule["expr"])
            if "for" in rule:
                rule["for"] = "400ms"
    return rules


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def running(program: str, folder: Path, rules: str, target: str) -> AsyncIterator[str]:
    """A Prometheus that scrapes `target` by these rules: its address, once it is ready."""
    (folder / "rules.yml").write_text(yaml.safe_dump(hurried(yaml.safe_load(rules))))
    config = {
        "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "scheduler", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
        cwd=folder,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said: list[str] = []
    reader = None
    try:
        async with asyncio.timeout(PATIENCE):
            while "ready to receive web requests" not in "".join(said[-1:]):
                line = await process.stderr.readline()
                assert line, "Prometheus has ended:\n" + "".join(said)
                said.append(line.decode())
        reader = asyncio.create_task(process.stderr.read())  # or it would block on a full pipe
        yield f"http://{address}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        if reader is not None:
            await reader


class Asked:
    """The API of a Prometheus."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def get(self, path: str, **params: str) -> Any:
        async with self._session.get(f"{self._url}/api/v1/{path}", params=params) as answer:
            told = json.loads(await answer.text())
            assert told["status"] == "success", told
            return told["data"]

    async def firing(self) -> dict[str, dict[str, str]]:
        """The alerts that fire, with their labels."""
        alerts = (await self.get("alerts"))["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}

    async def value(self, query: str) -> float | None:
        found = (await self.get("query", query=query))["result"]
        return float(found[0]["value"][1]) if found else None


async def until(scraped: Scraped, work: Callable[[], None], told: Callable[[], Awaitable[bool]]) -> None:
    """From scrape to scrape, with work in between, until it is told."""
    async with asyncio.timeout(PATIENCE):
        while not await told():
            work()
            await scraped.again()


async def test_a_fault_is_told_and_so_is_its_end(prometheus: str, rules: str, tmp_path: Path) -> None:
    """The API server answers 500 to every write: calls wait behind a breaker, and some fail. Then it is well again."""
    registry = CollectorRegistry()
    config = DispatcherConfig(breaker=BreakerPolicy(failures=3, open_for=1.0), timeout=2.0, capacity=200)
    scraped = Scraped(registry)
    async with (
        EmbeddedAPIServer(auto_namespaces=True) as server,
        ApiClient(Configuration(host=server.url)) as client,
        Dispatcher(config, registry=registry) as dispatcher,
        scraped.served() as target,
        running(prometheus, tmp_path, rules, target) as url,
        aiohttp.ClientSession() as session,
    ):
        cluster, asked = Cluster(client), Asked(session, url)
        pods = [server.create(new_pod(f"p{number}")) for number in range(5)]
        numbers = iter(range(1_000_000))

        def work() -> None:
            for pod in pods:
                number = str(next(numbers))
                state = {"type": "PodScheduled", "status": "False", "message": number}
                try:  # with a key, so that none is merged
                    dispatcher.submit(
                        cluster.patch_status(pod, conditions=[state], fence="uid", idempotency_key=number)
                    )
                except Backpressure:
                    return

        async def well() -> bool:
            rate = await asked.value("asyncdispatch:api_requests:rate1m")
            return rate is not None and rate > 0

        await until(scraped, work, well)
        (scrape,) = (await asked.get("targets"))["activeTargets"]
        assert (scrape["health"], scrape["lastError"]) == ("up", "")
        assert await asked.firing() == {}
        assert await asked.value("asyncdispatch_up") == 1

        fault = server.fail(times=None, status=500, method="PATCH")

        async def told() -> bool:
            return {"AsyncdispatchBreakerOpen", "AsyncdispatchCallsFail"} <= (await asked.firing()).keys()

        await until(scraped, work, told)
        firing = await asked.firing()
        assert firing["AsyncdispatchBreakerOpen"]["call_type"] == "pod_status_patch"
        assert firing["AsyncdispatchCallsFail"]["severity"] == "warning"
        assert "AsyncdispatchDown" not in firing

        fault.remove()

        async def over() -> bool:
            return not await asked.firing()

        await until(scraped, work, over)

        # What it has scraped is what the dispatcher says of itself.
        statistics = dispatcher.statistics()
        name = "asyncdispatch_async_api_call_execution_total"
        seen = await asked.value(f"sum({name})")
        assert seen is not None
        assert 0 < seen <= statistics.attempts
        exemplars = await asked.get(
            "query_exemplars",
            query="asyncdispatch_async_api_call_execution_duration_seconds_bucket",
            start="0",
            end="9999999999",
        )
        tickets = [int(e["labels"]["ticket"]) for series in exemplars for e in series["exemplars"]]
        assert tickets
        assert max(tickets) <= statistics.accepted


async def test_a_dispatcher_that_has_ended_is_told(prometheus: str, rules: str, tmp_path: Path) -> None:
    """Also if its process goes on to be scraped."""
    registry = CollectorRegistry()
    scraped = Scraped(registry)
    dispatcher = Dispatcher(registry=registry)
    async with (
        scraped.served() as target,
        running(prometheus, tmp_path, rules, target) as url,
        aiohttp.ClientSession() as session,
    ):
        asked = Asked(session, url)
        async with dispatcher:
            pass

        async def down() -> bool:
            return "AsyncdispatchDown" in await asked.firing()

        await until(scraped, lambda: None, down)
        assert (await asked.firing())["AsyncdispatchDown"]["severity"] == "critical"


def test_the_shipped_rules_are_only_hurried(rules: str) -> None:
    """What is tested above differs from what is shipped in times alone."""

    def timeless(told: dict[str, Any]) -> list[dict[str, Any]]:
        rules = [rule for group in told["groups"] for rule in group["rules"]]
        return [{**rule, "expr": re.sub(r"\[\w+\]", "", rule["expr"]), "for": "for" in rule} for rule in rules]

    assert timeless(hurried(yaml.safe_load(rules))) == timeless(yaml.safe_load(rules))
