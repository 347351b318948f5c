"""The proxy that misbehaves, between a client and the embedded API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from kubernetes_asyncio import client

from asyncdispatch import Dispatcher, Succeeded
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import ControlPlane, EmbeddedAPIServer, FaultProxy

pytestmark = pytest.mark.looptime

NODES = "/api/v1/nodes"


@asynccontextmanager
async def proxied(delay: float = 0.0) -> AsyncIterator[tuple[EmbeddedAPIServer, FaultProxy, aiohttp.ClientSession]]:
    async with (
        EmbeddedAPIServer(auto_namespaces=True) as server,
        FaultProxy(server.url, delay=delay) as proxy,
        aiohttp.ClientSession(proxy.url) as http,
    ):
        yield server, proxy, http


async def status(http: aiohttp.ClientSession, method: str = "GET", name: str | None = None) -> int:
    body = {"metadata": {"name": name}} if name else None
    async with http.request(method, NODES, json=body) as response:
        await response.read()
        return response.status


def names(server: EmbeddedAPIServer) -> list[str]:
    return [node["metadata"]["name"] for node in server.objects.of("Node")]


async def test_it_forwards() -> None:
    """Bytes pass both ways, large ones too, and a kept-alive connection is kept."""
    async with proxied() as (server, proxy, http):
        assert await status(http, "POST", "a") == 201
        large = {"metadata": {"name": "b", "annotations": {"text": "x" * 200_000}}}
        async with http.post(NODES, json=large) as response:
            assert (await response.json())["metadata"]["annotations"] == large["metadata"]["annotations"]
        assert names(server) == ["a", "b"]
        assert (proxy.accepted, proxy.connections) == (1, 1)


async def test_delay_is_per_direction() -> None:
    """A connection waits once, each request twice."""
    async with proxied(delay=0.5) as (_, proxy, http):
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await status(http) == 200
        assert loop.time() - began == pytest.approx(1.5)
        assert await status(http) == 200
        assert loop.time() - began == pytest.approx(2.5)
        proxy.delay = 0
        assert await status(http) == 200
        assert loop.time() - began == pytest.approx(2.5)


async def test_cut_resets_what_is_open() -> None:
    """A request that waits for its answer ends by a reset, not by a mere end; the next one gets a new connection."""
    async with proxied() as (server, proxy, http):
        server.delay(10, times=1)
        waiting = asyncio.create_task(status(http, "POST", "a"))  # aiohttp would send a GET again by itself
        await asyncio.sleep(1)
        assert proxy.cut() == 1
        with pytest.raises(aiohttp.ClientOSError, match="reset by peer"):
            await waiting
        assert proxy.cut() == 0
        assert await status(http) == 200


async def test_refusing_resets_new_connections_only() -> None:
    """Until it is told to restore."""
    async with proxied() as (_, proxy, http):
        assert await status(http) == 200
        proxy.refuse()
        assert await status(http) == 200
        async with aiohttp.ClientSession(proxy.url) as other:
            with pytest.raises(aiohttp.ClientConnectionError):
                await status(other)
            proxy.restore()
            assert await status(other) == 200


async def test_a_black_hole_holds_everything_back() -> None:
    """On open connections and new ones; nothing is lost once it is over."""
    async with proxied() as (server, proxy, http):
        assert await status(http) == 200
        proxy.black_hole()
        async with aiohttp.ClientSession(proxy.url) as other:
            waiting = [asyncio.create_task(status(via, "POST", name)) for via, name in ((http, "a"), (other, "b"))]
            await asyncio.sleep(60)
            assert names(server) == []
            proxy.restore()
            assert await asyncio.gather(*waiting) == [201, 201]
        assert names(server) == ["a", "b"]


async def test_answers_are_swallowed_after_the_write() -> None:
    """The write is done, its client hears nothing, until the connection is cut; a new connection is not concerned."""
    async with proxied() as (server, proxy, http):
        assert await status(http) == 200
        swallowed = proxy.swallow()
        waiting = asyncio.create_task(status(http, "POST", "a"))
        await swallowed.wait()
        assert names(server) == ["a"]
        assert swallowed.bytes > 0
        await asyncio.sleep(60)
        assert not waiting.done()
        assert await status(http) == 200  # over a connection of its own
        proxy.cut()
        with pytest.raises(aiohttp.ClientOSError, match="reset by peer"):
            await waiting


async def test_an_answer_can_be_swallowed_and_its_connection_cut() -> None:
    """As when a load balancer is restarted at the wrong moment."""
    async with proxied() as (server, proxy, http):
        assert await status(http) == 200
        proxy.swallow(then_cut=True)
        with pytest.raises(aiohttp.ClientOSError, match="reset by peer"):
            await status(http, "POST", "a")
        assert names(server) == ["a"]
        assert await status(http) == 200
        assert proxy.accepted == 2


async def test_a_server_that_is_gone_is_told_by_a_reset() -> None:
    """The client of a connection that leads nowhere sees it reset, not ended as if all had been said."""
    async with EmbeddedAPIServer() as server:
        target = server.url
    async with FaultProxy(target) as proxy, aiohttp.ClientSession(proxy.url) as http:
        with pytest.raises(aiohttp.ClientOSError, match="reset by peer"):
            await status(http, "POST", "a")
        assert proxy.connections == 0


async def test_leaving_cuts_and_frees_the_port() -> None:
    """Also in the middle of a black hole."""
    async with proxied() as (_, proxy, http):
        assert await status(http) == 200
        proxy.black_hole()
        waiting = asyncio.create_task(status(http))
        fresh = asyncio.create_task(status(http))
        await asyncio.sleep(1)
        await proxy.__aexit__(None, None, None)
        for task in (waiting, fresh):
            with pytest.raises(aiohttp.ClientError):
                await task
        assert proxy.connections == 0
        with pytest.raises(aiohttp.ClientConnectorError):
            await status(http)


async def test_a_bind_whose_answer_was_swallowed_is_found_out() -> None:
    """The dispatcher reads the Pod over a new connection, and does not bind twice (L10)."""
    async with proxied() as (server, proxy, _), client.ApiClient(client.Configuration(host=proxy.url)) as api_client:
        cluster = Cluster(api_client)
        pod = server.create(ControlPlane.pod_body("p"))
        async with Dispatcher() as dispatcher:
            await dispatcher.run(cluster.read(pod))
            proxy.swallow(then_cut=True)
            handle = dispatcher.submit(cluster.bind(pod, "n1"))
            outcome = await handle.outcome()
        assert isinstance(outcome, Succeeded)
        assert [record.path for record in server.audit if record.method == "POST"] == [
            "/api/v1/namespaces/default/pods/p/binding"
        ]


@pytest.mark.parametrize("target", ["", "127.0.0.1:80", "ftp://localhost", "https://"])
def test_a_target_is_an_address(target: str) -> None:
    """What is none is refused at once, with an example of one."""
    with pytest.raises(ValueError, match=r"target: .* is no address; give one like 'https://127.0.0.1:6443'"):
        FaultProxy(target)


async def test_it_runs_once() -> None:
    """An address before it runs, or a second start, is an error."""
    proxy = FaultProxy("http://127.0.0.1:1")
    with pytest.raises(RuntimeError, match="not running"):
        assert proxy.url
    async with proxy:
        with pytest.raises(RuntimeError, match="running already"):
            await proxy.__aenter__()
