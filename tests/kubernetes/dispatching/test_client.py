"""The dispatching client as a client: credentials, streams, settings, closing, and a dispatcher's moods."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from asyncdispatch import (
    Backpressure,
    CallTypePolicy,
    ConfigurationError,
    DeadlineExpired,
    DispatcherClosed,
    DispatcherConfig,
    Effect,
    Mode,
    RetryPolicy,
    Verdict,
    VerdictKind,
)
from asyncdispatch.kubernetes import Cluster, DispatchingApiClient
from tests.kubernetes.dispatching.world import Seen, World

# -- credentials -------------------------------------------------------------------------------------------------------


def listen(world: World) -> list[str | None]:
    """The tokens of the requests from now on."""
    heard: list[str | None] = []

    async def note(session: Any, context: Any, params: Any) -> None:
        heard.append(params.headers.get("Authorization"))

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(note)
    trace.freeze()
    rest = world.api_client.rest_client
    if rest.pool_manager is None:
        rest.pool_manager = rest._create_pool_manager()
    rest.pool_manager._trace_configs.append(trace)
    return heard


async def test_a_token_is_read_when_the_request_starts(world: World) -> None:
    """One that was replaced while the call waited counts."""
    world.pod()
    tokens = world.client.configuration.api_key
    tokens["BearerToken"] = "old"
    world.server.fail(times=1, status=401, method="GET")
    heard = listen(world)

    async def replace() -> None:
        await asyncio.sleep(0.05)
        tokens["BearerToken"] = "new"

    await asyncio.gather(world.v1.read_namespaced_pod("p", "default"), replace())
    assert heard == ["old", "new"]


async def test_a_stream_has_its_token(world: World) -> None:
    """What passes through goes out with the client's credentials."""
    world.client.configuration.api_key["BearerToken"] = "token"
    heard = listen(world)
    await world.flavour.raw(world.v1, "list_namespaced_pod", "default", watch=True, timeout_seconds=1)
    assert heard == ["token"]


async def test_credentials_that_fail(world: World) -> None:
    """A hook that raises holds the call; its own error is what comes out in the end."""
    world.pod()

    async def hook(configuration: Any) -> None:
        raise OSError("no token there")

    world.client.configuration.api_key["BearerToken"] = "old"
    world.client.configuration.refresh_api_key_hook = hook
    with pytest.raises(OSError, match="no token there"):
        await world.v1.read_namespaced_pod("p", "default")
    assert asyncio.get_running_loop().time() >= 100
    assert not world.server.audit


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_watches_pass_through(world: World, seen: Seen) -> None:
    """A watch is the client's own, and no call."""
    world.pod()
    async with world.flavour.watch.Watch() as watch:
        async for event in watch.stream(world.v1.list_namespaced_pod, "default", timeout_seconds=5):
            assert event["object"].metadata.name == "p"
            break
    assert not seen.calls


async def test_streams_pass_through(world: World, seen: Seen) -> None:
    """Followed logs, exec and proxies reach the server as they are; here it serves none of them."""
    for method, more in (
        ("read_namespaced_pod_log", {"follow": True}),
        ("connect_get_namespaced_pod_exec", {"command": ["ls"]}),
        ("connect_get_namespaced_pod_proxy", {}),
    ):
        with pytest.raises(world.module.ApiException):
            await getattr(world.v1, method)("p", "default", **more)
    assert not seen.calls
    assert len(world.server.audit) == 3


async def test_a_client_for_websockets_passes_through(world: World) -> None:
    """Exec over a WsApiClient goes out with its credentials; nothing of it is dispatched."""
    heard: list[str | None] = []

    async def serve(request: aiohttp.web.BaseRequest) -> aiohttp.web.WebSocketResponse:
        heard.append(request.headers.get("Authorization"))
        socket = aiohttp.web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_bytes(b"\x01hello")
        await socket.close()
        return socket

    runner = aiohttp.web.ServerRunner(aiohttp.web.Server(serve))
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = world.module.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    configuration.api_key["BearerToken"] = "token"
    async with world.flavour.stream.WsApiClient(configuration) as plain:
        if plain.rest_client.pool_manager is None:
            plain.rest_client.pool_manager = plain.rest_client._create_pool_manager()
        v1 = world.module.CoreV1Api(DispatchingApiClient(world.dispatcher, plain))
        assert await v1.connect_get_namespaced_pod_exec("p", "default", command=["ls"]) == "hello"
    await runner.cleanup()
    assert heard == ["token"]
    assert world.dispatcher.statistics().accepted == 0


# -- the dispatcher ----------------------------------------------------------------------------------------------------


class TestFull:
    """When there is no room."""

    @pytest.fixture
    def config(self) -> DispatcherConfig:
        return DispatcherConfig(capacity=2, max_in_flight=1, call_types={"pod_list": CallTypePolicy(max_in_flight=1)})

    async def test_it_waits_for_room(self, world: World) -> None:
        """Nobody is refused: a typed caller waits anyway."""
        world.pod()
        world.server.latency = 0.5
        pods = await asyncio.gather(*(world.v1.read_namespaced_pod("p", "default") for _ in range(6)))
        assert len(pods) == 6

    async def test_it_waits_no_longer_than_it_may(self, world: World) -> None:
        """Then it is late, which is not the same as refused."""
        world.pod()
        world.server.latency = 2
        with world.client.options(timeout=5):
            found = await asyncio.gather(
                *(world.v1.read_namespaced_pod("p", "default") for _ in range(6)), return_exceptions=True
            )
        late = [error for error in found if isinstance(error, DeadlineExpired)]
        assert late
        assert not any(isinstance(error, Backpressure) for error in found)


async def test_synchronous_mode(world: World) -> None:
    """Switched off, the same code works."""
    world.pod()
    await world.dispatcher.switch(Mode.SYNC, "by hand")
    assert (await world.v1.read_namespaced_pod("p", "default")).metadata.name == "p"


async def test_a_closed_dispatcher(world: World) -> None:
    """Its own error."""
    await world.dispatcher.aclose("test")
    with pytest.raises(DispatcherClosed):
        await world.v1.read_namespaced_pod("p", "default")


async def test_what_is_no_client(world: World) -> None:
    """Each wrong part is named."""
    with pytest.raises(ConfigurationError, match="dispatcher"):
        DispatchingApiClient(None, world.api_client)  # type: ignore[arg-type]
    for wrong in (None, world.v1, SimpleNamespace(), world.client):
        with pytest.raises(ConfigurationError, match="api_client"):
            DispatchingApiClient(world.dispatcher, wrong)


# -- being a client ----------------------------------------------------------------------------------------------------


async def test_it_is_the_client_that_it_was_made_of(world: World, seen: Seen) -> None:
    """Class, settings and connections are shared, both ways; the client itself stays as it is."""
    client, plain = world.client, world.api_client
    assert isinstance(client, world.module.ApiClient)
    assert isinstance(client, DispatchingApiClient)
    assert client.configuration is plain.configuration
    client.set_default_header("X-Test", "1")
    client.user_agent = "me"
    client.cookie = "c=1"
    assert plain.default_headers["X-Test"] == "1"
    assert plain.user_agent == "me"
    assert plain.cookie == "c=1"
    assert client.rest_client.pool_manager is plain.rest_client.pool_manager
    assert "secret" not in repr(client)
    world.pod()
    await world.bare.read_namespaced_pod("p", "default")
    assert not seen.calls
    assert world.server.audit[-1].user_agent == "me"


async def test_closing(world: World) -> None:
    """`async with` closes the client that it was made of."""
    async with world.client as client:
        await world.v1.list_node()
    assert client is world.client
    assert world.api_client.rest_client.pool_manager.closed


async def test_a_cluster_on_the_same_client(world: World, seen: Seen) -> None:
    """The adapters work on a dispatching client too, without being dispatched twice."""
    pod = world.pod()
    assert await world.dispatcher.run(Cluster(world.client).bind(pod, "n1")) == "n1"
    assert seen.types == ["pod_binding"]


async def test_nothing_is_left_open(world: World) -> None:
    """A response holds no connection, whether it is read or not."""
    world.pod()
    response = await world.flavour.raw(world.v1, "read_namespaced_pod", "p", "default")
    assert response.connection is None


async def test_classifying_by_option(world: World) -> None:
    """Whoever wants a quota's refusal at once says so."""
    world.server.fail(status=403, message="exceeded quota: q", times=None, method="POST")

    def at_once(call: Any, attempt: Any, error: Any) -> Verdict | None:
        return Verdict(VerdictKind.PERMANENT) if getattr(error, "status", None) == 403 else None

    with world.client.options(retry=RetryPolicy(classify=at_once)), pytest.raises(world.module.ApiException) as caught:
        await world.v1.create_namespaced_pod("default", world.model())
    assert caught.value.status == 403
    with world.client.options(timeout=20), pytest.raises(DeadlineExpired):
        await world.v1.create_namespaced_pod("default", world.model())


async def test_a_dry_run_changes_nothing(world: World, seen: Seen) -> None:
    """It is a read: it waits for no lane, and its success supersedes nothing."""
    await world.v1.create_namespaced_pod("default", world.model(), dry_run="All")
    assert seen.last.effect is Effect.READ
    assert not world.written("create")
