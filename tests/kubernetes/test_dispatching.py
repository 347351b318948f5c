"""DispatchingApiClient: a typed client as it was, with a dispatcher underneath; on both clients, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from tenacity import stop_after_attempt

from asyncdispatch import (
    AmbiguousOutcome,
    Backpressure,
    CallCancelled,
    CallTypePolicy,
    ConfigurationError,
    DeadlineExpired,
    Dispatcher,
    DispatcherClosed,
    DispatcherConfig,
    Effect,
    Mode,
    ObjectRef,
    RetryPolicy,
    StaleContext,
    Verdict,
    VerdictKind,
)
from asyncdispatch.kubernetes import Cluster, DispatchingApiClient
from asyncdispatch.kubernetes.marks import MARK
from asyncdispatch.testing import EmbeddedAPIServer
from tests.kubernetes.dispatching_world import Flavour, Seen

SPEC = {"containers": [{"name": "main", "image": "app"}]}
LABEL = {"metadata": {"labels": {"a": "b"}}}
WIDGETS = ("example.com", "v1", "default", "widgets")


class World:
    """A server, a client of one flavour, and that client dispatched."""

    def __init__(self, flavour: Flavour, server: EmbeddedAPIServer, api_client: Any, dispatcher: Dispatcher) -> None:
        self.flavour, self.server, self.api_client, self.dispatcher = flavour, server, api_client, dispatcher
        self.client = DispatchingApiClient(dispatcher, api_client)
        self.module = flavour.client
        self.v1 = self.module.CoreV1Api(self.client)
        self.custom = self.module.CustomObjectsApi(self.client)
        self.bare = self.module.CoreV1Api(api_client)

    def pod(self, name: str = "p", **spec: Any) -> dict[str, Any]:
        meta = {"name": name, "namespace": "default"}
        return self.server.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**SPEC, **spec}})

    def binding(self, name: str = "p", node: str = "n1", **meta: Any) -> Any:
        target = {"kind": "Node", "name": node}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **meta}, "target": target}

    async def bind(self, name: str = "p", node: str = "n1", **meta: Any) -> Any:
        api, body = self.v1, self.binding(name, node, **meta)
        if self.flavour.name == "kubernetes.aio":
            body = self.module.V1Binding.from_dict(body)
        return await self.flavour.raw(api, "create_namespaced_pod_binding", name, "default", body)

    def model(self, name: str = "p") -> Any:
        m = self.module
        spec = m.V1PodSpec(containers=[m.V1Container(name="main", image="app")])
        return m.V1Pod(metadata=m.V1ObjectMeta(name=name), spec=spec)

    def written(self, verb: str) -> int:
        return sum(record.applied for record in self.server.audit if record.verb == verb)


@pytest.fixture
def flavour(library: Any) -> Flavour:
    return Flavour(library.__name__.removesuffix(".client"))


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def config() -> DispatcherConfig:
    return DispatcherConfig()


@pytest.fixture
async def world(
    flavour: Flavour, server: EmbeddedAPIServer, api_client: Any, seen: Seen, config: DispatcherConfig
) -> AsyncIterator[World]:
    async with Dispatcher(config, observers=[seen]) as dispatcher:
        yield World(flavour, server, api_client, dispatcher)


# -- results ----------------------------------------------------------------------------------------------------------


async def test_methods_of_the_core_api(world: World, seen: Seen) -> None:
    """Each family that a scheduler uses returns its model, and is a call named after what it does."""
    v1, m = world.v1, world.module
    pod = await v1.create_namespaced_pod("default", world.model())
    assert isinstance(pod, m.V1Pod)
    assert isinstance(await v1.read_namespaced_pod("p", "default"), m.V1Pod)
    assert isinstance(await v1.list_namespaced_pod("default"), m.V1PodList)
    assert isinstance(await v1.list_pod_for_all_namespaces(), m.V1PodList)
    assert (await v1.patch_namespaced_pod("p", "default", LABEL)).metadata.labels == {"a": "b"}
    pod = await v1.patch_namespaced_pod_status("p", "default", {"status": {"nominatedNodeName": "n1"}})
    assert pod.status.nominated_node_name == "n1"
    pod.metadata.labels = {"a": "c"}
    assert (await v1.replace_namespaced_pod("p", "default", pod)).metadata.labels == {"a": "c"}
    assert (await world.bind()).status == 201
    await v1.delete_namespaced_pod("p", "default", grace_period_seconds=0)
    await v1.delete_collection_namespaced_pod("default")
    assert isinstance(await v1.list_node(), m.V1NodeList)
    assert seen.types == [
        "pod_create",
        "pod_read",
        "pod_list",
        "pod_list",
        "pod_patch",
        "pod_status_patch",
        "pod_replace",
        "pod_binding",
        "pod_delete",
        "pod_delete_collection",
        "node_list",
    ]
    replaced = seen.calls[6]
    assert (replaced.target.uid, replaced.version) == (pod.metadata.uid, pod.metadata.resource_version)


async def test_custom_objects(world: World, seen: Seen) -> None:
    """Custom resources are dicts, as they were; their kind is learned from a body, or asked for once."""
    world.server.register("example.com/v1", "Widget", "widgets")
    custom = world.custom
    body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"n": 1}}
    made = await custom.create_namespaced_custom_object(*WIDGETS, body)
    assert made["spec"] == {"n": 1}
    assert (await custom.get_namespaced_custom_object(*WIDGETS, "w"))["kind"] == "Widget"
    assert len((await custom.list_namespaced_custom_object(*WIDGETS))["items"]) == 1
    merge = {"_content_type": "application/merge-patch+json"}
    await custom.patch_namespaced_custom_object(*WIDGETS, "w", {"spec": {"n": 2}}, **merge)
    await custom.patch_namespaced_custom_object_status(*WIDGETS, "w", {"status": {"ready": True}}, **merge)
    made = await custom.get_namespaced_custom_object(*WIDGETS, "w")
    await custom.replace_namespaced_custom_object(*WIDGETS, "w", made)
    await custom.delete_namespaced_custom_object(*WIDGETS, "w")
    assert seen.types == [
        "widget_create",
        "server_read",
        "widget_read",
        "widget_list",
        "widget_patch",
        "widget_status_patch",
        "widget_read",
        "widget_replace",
        "widget_delete",
    ]
    assert {call.target.kind for call in seen.calls if call.call_type != "server_read"} == {"Widget"}


async def test_a_kind_that_nobody_knows(world: World, seen: Seen) -> None:
    """If the server does not serve it, a read says so at once, in the client's words."""
    with pytest.raises(world.module.ApiException) as caught:
        await world.custom.get_namespaced_custom_object(*WIDGETS, "w")
    assert caught.value.status == 404
    assert seen.last.target.kind == "widgets"


async def test_status_and_headers(world: World) -> None:
    """`_with_http_info` gives model, status and headers."""
    world.pod()
    pod, status, headers = await world.flavour.info(world.v1, "read_namespaced_pod", "p", "default")
    assert pod.metadata.name == "p"
    assert status == 200
    assert headers["Content-Type"] == "application/json"


async def test_raw_responses(world: World) -> None:
    """Without preloading it is the HTTP client's response, which can be read whole or as a stream."""
    world.pod()
    response = await world.flavour.raw(world.v1, "read_namespaced_pod", "p", "default")
    assert isinstance(response, aiohttp.ClientResponse)
    assert (await response.json())["kind"] == "Pod"
    assert (await response.content.read()).startswith(b'{"')
    missing = await world.flavour.raw(world.v1, "read_namespaced_pod", "q", "default")
    assert missing.status == 404
    assert b"not found" in await missing.read()


async def test_large_raw_responses(world: World) -> None:
    """A stream that was read before is as long as it was."""
    for number in range(300):
        world.pod(f"p{number}")
    response = await world.flavour.raw(world.v1, "list_namespaced_pod", "default")
    body = b"".join([chunk async for chunk in response.content.iter_chunked(1000)])
    assert len(body) > 100_000
    assert body == await response.read()


# -- errors -----------------------------------------------------------------------------------------------------------


async def test_refusals_are_the_clients_own(world: World) -> None:
    """404, 409 and 422 are raised as the client raises them, with its text and no error of ours around them."""
    world.pod()
    for wanted, ask in (
        (404, lambda api: api.read_namespaced_pod("q", "default")),
        (404, lambda api: api.patch_namespaced_pod("q", "default", LABEL)),
        (409, lambda api: api.create_namespaced_pod("default", world.model())),
        (409, lambda api: api.patch_namespaced_pod("p", "default", {"metadata": {"resourceVersion": "1"}})),
        (422, lambda api: api.patch_namespaced_pod_status("p", "default", {"metadata": {"uid": "other"}})),
    ):
        errors = []
        for api in (world.bare, world.v1):
            with pytest.raises(world.module.ApiException) as caught:
                await ask(api)
            errors.append(caught.value)
        bare, ours = errors
        assert ours.status == bare.status == wanted
        assert type(ours) is type(bare)
        assert ours.body == bare.body
        assert ours.__cause__ is bare.__cause__ is None


async def test_transport_errors_are_the_clients_own(world: World) -> None:
    """A server that is not there: aiohttp's error, once the attempts are used up."""
    with world.client.options(retry=RetryPolicy(stop=stop_after_attempt(2))):
        world.client.configuration.host = "http://127.0.0.1:1"
        with pytest.raises(aiohttp.ClientConnectorError):
            await world.v1.read_namespaced_pod("p", "default")


async def test_faults_are_repeated(world: World, seen: Seen) -> None:
    """Two 503 and a lost answer later, the patch is there; its caller sees none of it."""
    world.pod()
    world.server.fail(times=2, status=503, method="PATCH")
    world.server.drop(times=1, applied=True, method="PATCH")
    assert (await world.v1.patch_namespaced_pod("p", "default", LABEL)).metadata.labels == {"a": "b"}
    assert len(seen.calls) == 1
    ids = [record.audit_id for record in world.server.audit if record.method == "PATCH"]
    assert ids == ["1-1", "1-2", "1-3", "1-4"]


async def test_lost_create_is_ambiguous(world: World) -> None:
    """Whose object is it? Nobody knows, and it is not created twice: an error of ours, from the client's."""
    world.server.drop(times=1, applied=True, method="POST")
    with pytest.raises(AmbiguousOutcome):
        await world.v1.create_namespaced_pod("default", world.model())
    assert world.written("create") == 1


async def test_lost_create_with_a_key_is_found_again(world: World) -> None:
    """With a key, the object carries our mark, and the lost create returns it."""
    world.server.drop(times=1, applied=True, method="POST")
    with world.client.options(idempotency_key="once"):
        pod = await world.v1.create_namespaced_pod("default", world.model())
    assert isinstance(pod, world.module.V1Pod)
    assert pod.metadata.annotations[MARK] == "once"
    assert world.written("create") == 1


async def test_create_that_never_arrived_is_sent_again(world: World) -> None:
    """A read shows that it is not there, so a second POST is safe."""
    world.server.drop(times=1, applied=False, method="POST")
    assert (await world.v1.create_namespaced_pod("default", world.model())).metadata.name == "p"
    assert [record.method for record in world.server.audit] == ["POST", "GET", "POST"]


async def test_lost_bind_is_found_by_reading(world: World) -> None:
    """The response is that of the read which shows the bind."""
    world.pod()
    world.server.drop(times=1, applied=True, method="POST")
    response = await world.bind()
    assert response.status == 200
    assert (await response.json())["spec"]["nodeName"] == "n1"
    assert world.written("bind") == 1


async def test_lost_bind_of_a_pod_bound_elsewhere(world: World) -> None:
    """What a read has found out is told in the client's words: a conflict."""
    world.pod()

    def elsewhere(record: Any) -> None:
        world.server.bind("p", "n9", namespace="default")

    world.server.hook(elsewhere, times=1, verb="bind")
    world.server.drop(times=1, applied=False, method="POST")
    with pytest.raises(world.module.ApiException) as caught:
        await world.bind()
    assert caught.value.status == 409
    assert "bound elsewhere: n9" in caught.value.body


async def test_second_bind_is_a_conflict(world: World) -> None:
    """Refused by the server, confirmed by a read, told in the server's words."""
    world.pod()
    await world.bind()
    response = await world.bind(node="n2")
    assert response.status == 409
    assert "already assigned" in (await response.json())["message"]


async def test_bind_of_a_missing_pod(world: World) -> None:
    """404, as it comes."""
    assert (await world.bind("q")).status == 404


async def test_unfenced_delete_in_doubt(world: World) -> None:
    """By name alone it is not sent again: the name may be another object's by then."""
    world.pod()
    world.server.fail(times=1, status=500, applied=True, method="DELETE")
    with pytest.raises(AmbiguousOutcome):
        await world.v1.delete_namespaced_pod("p", "default")
    assert world.written("delete") == 1


async def test_fenced_delete_in_doubt(world: World) -> None:
    """With its uid it is looked for: gone means a 404, still there means once more."""
    pod = world.pod()
    m = world.module
    options = m.V1DeleteOptions(preconditions=m.V1Preconditions(uid=pod["metadata"]["uid"]), grace_period_seconds=0)
    world.server.fail(times=1, status=500, applied=True, method="DELETE")
    with pytest.raises(m.ApiException) as caught:
        await world.v1.delete_namespaced_pod("p", "default", body=options)
    assert caught.value.status == 404
    pod = world.pod()
    options.preconditions.uid = pod["metadata"]["uid"]
    world.server.fail(times=1, status=500, applied=False, method="DELETE")
    await world.v1.delete_namespaced_pod("p", "default", body=options)
    assert world.written("delete") == 2


async def test_delete_in_doubt_of_what_is_dying(world: World) -> None:
    """What waits for its finalizers counts as deleted; the answer is the object as it is now."""
    pod = world.pod()
    await world.bare.patch_namespaced_pod("p", "default", {"metadata": {"finalizers": ["example.com/f"]}})
    m = world.module
    options = m.V1DeleteOptions(preconditions=m.V1Preconditions(uid=pod["metadata"]["uid"]))
    world.server.fail(times=1, status=500, applied=True, method="DELETE")
    deleted = await world.v1.delete_namespaced_pod("p", "default", body=options)
    assert deleted.metadata.deletion_timestamp is not None
    assert [record.method for record in world.server.audit] == ["PATCH", "DELETE", "GET"]


async def test_pushback_is_waited_out(world: World) -> None:
    """A 429 of the server costs time, not an error."""
    world.pod()
    loop = asyncio.get_running_loop()
    began = loop.time()
    world.server.fail(times=1, status=429, retry_after=3, method="GET")
    await world.v1.read_namespaced_pod("p", "default")
    assert loop.time() - began >= 3


async def test_deadline(world: World) -> None:
    """Time that runs out is told as ours, from what the last attempt met."""
    world.pod()
    world.server.fail(times=None, status=503, method="GET")
    with world.client.options(timeout=2), pytest.raises(DeadlineExpired):
        await world.v1.read_namespaced_pod("p", "default")


async def test_request_timeout(world: World) -> None:
    """`_request_timeout` bounds each attempt."""
    world.pod()
    world.server.black_hole(times=1, method="GET")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await world.v1.read_namespaced_pod("p", "default", _request_timeout=2.0)
    assert 1.9 <= loop.time() - began <= 4


async def test_a_patch_that_is_never_answered(world: World) -> None:
    """When the attempts are used up it may have been applied: that is our word, from the client's error."""
    world.pod()
    world.server.black_hole(times=None, applied=True, method="PATCH")
    with world.client.options(retry=RetryPolicy(stop=stop_after_attempt(2))), pytest.raises(AmbiguousOutcome):
        await world.v1.patch_namespaced_pod("p", "default", LABEL, _request_timeout=1.0)
    assert world.written("patch") == 1
    assert len([record for record in world.server.audit if record.verb == "patch"]) == 2


async def test_a_patch_by_position_is_not_repeated(world: World) -> None:
    """Appending twice would be done twice."""
    world.pod()
    world.server.fail(times=1, status=500, applied=True, method="PATCH")
    patch = [{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "a", "operator": "Exists"}}]
    kind = {"_content_type": "application/json-patch+json"}
    with pytest.raises(AmbiguousOutcome):
        await world.v1.patch_namespaced_pod("p", "default", patch, **kind)
    assert len([record for record in world.server.audit if record.verb == "patch"]) == 1


async def test_a_generated_name_in_doubt(world: World) -> None:
    """Nobody knows which name it got."""
    world.server.drop(times=1, applied=True, method="POST")
    pod = world.model()
    pod.metadata.name, pod.metadata.generate_name = None, "p-"
    with pytest.raises(AmbiguousOutcome):
        await world.v1.create_namespaced_pod("default", pod)
    assert world.written("create") == 1


async def test_a_kind_is_asked_for_once(world: World, seen: Seen) -> None:
    """Also by callers who come at the same time, and for all kinds of a group and version."""
    world.server.register("example.com/v1", "Widget", "widgets")
    world.server.register("example.com/v1", "Gadget", "gadgets")
    await asyncio.gather(*(world.custom.list_namespaced_custom_object(*WIDGETS) for _ in range(3)))
    await world.custom.list_cluster_custom_object("example.com", "v1", "gadgets")
    asked = [record.path for record in world.server.audit]
    assert asked.count("/apis/example.com/v1") == 1
    assert seen.last.target.kind == "Gadget"


async def test_a_server_below_a_path(world: World, seen: Seen) -> None:
    """The address of the server may have a path of its own; that is no part of the object's."""
    world.client.configuration.host = f"{world.server.url}/k8s/clusters/c1"
    with pytest.raises(world.module.ApiException), world.client.options(timeout=1):
        await world.v1.read_namespaced_pod("p", "default")
    assert world.server.audit[-1].path == "/k8s/clusters/c1/api/v1/namespaces/default/pods/p"
    assert (seen.last.call_type, seen.last.target.name) == ("pod_read", "p")


async def test_errors_before_anything_is_sent(world: World, seen: Seen) -> None:
    """A missing parameter is the client's own error, and no call."""
    with pytest.raises((TypeError, ValueError)):
        await world.v1.read_namespaced_pod(None, "default")
    assert not seen.calls


async def test_cancelling_the_caller(world: World) -> None:
    """Whoever stops waiting ends the call."""
    world.pod()
    world.server.latency = 10
    task = asyncio.ensure_future(world.v1.read_namespaced_pod("p", "default"))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(1)
    assert world.dispatcher.statistics().in_flight == 0


# -- credentials ------------------------------------------------------------------------------------------------------


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


# -- streams ----------------------------------------------------------------------------------------------------------


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


# -- options ----------------------------------------------------------------------------------------------------------


async def test_options(world: World, seen: Seen) -> None:
    """Fields of the calls in a block; the inner block wins, and tasks take them along."""
    world.pod()
    context = world.dispatcher.contexts.begin(ObjectRef("v1", "Pod", "default", "p"))
    with world.client.options(priority=5, flow="plugin", context=context):
        await world.v1.patch_namespaced_pod("p", "default", LABEL)
        with world.client.options(priority=9):
            task = asyncio.ensure_future(world.v1.read_namespaced_pod("p", "default"))
        await task
    await world.v1.read_namespaced_pod("p", "default")
    found = [(call.priority, call.flow, call.context) for call in seen.calls]
    assert found == [(5, "plugin", context), (9, "plugin", context), (0, "default", None)]


async def test_options_by_call_type(world: World, seen: Seen) -> None:
    """A mapping at construction; a block wins over it."""
    world.pod()
    client = DispatchingApiClient(world.dispatcher, world.api_client, options={"pod_patch": {"priority": 3}})
    v1 = world.module.CoreV1Api(client)
    await v1.patch_namespaced_pod("p", "default", LABEL)
    await v1.read_namespaced_pod("p", "default")
    with client.options(priority=4):
        await v1.patch_namespaced_pod("p", "default", LABEL)
    await world.v1.patch_namespaced_pod("p", "default", LABEL)
    assert [call.priority for call in seen.calls] == [3, 0, 4, 0]


async def test_ordered_is_for_reads(world: World, seen: Seen) -> None:
    """A block may hold both: it counts for the reads in it."""
    world.pod()
    with world.client.options(ordered=True):
        await world.v1.patch_namespaced_pod("p", "default", LABEL)
        await world.v1.read_namespaced_pod("p", "default")
    assert [call.ordered for call in seen.calls] == [False, True]


async def test_whose_credentials(world: World, seen: Seen) -> None:
    """Calls are held by the client whose credentials they use, unless told otherwise."""
    world.pod()
    await world.v1.read_namespaced_pod("p", "default")
    with world.client.options(scope="tenant"):
        await world.v1.read_namespaced_pod("p", "default")
    assert [call.scope for call in seen.calls] == [world.api_client, "tenant"]


async def test_a_bind_ends_with_its_node(world: World) -> None:
    """A node that is gone takes the binds to it along."""
    world.pod()
    world.server.latency = 5
    task = asyncio.ensure_future(world.bind())
    await asyncio.sleep(1)
    assert world.dispatcher.forget(ObjectRef("v1", "Node", None, "n1"), "node is gone") == 1
    with pytest.raises(CallCancelled, match="node is gone"):
        await task


async def test_the_priority_of_a_pod(world: World, seen: Seen) -> None:
    """What a body says of its priority counts, unless an option says otherwise."""
    pod = world.model()
    pod.spec.priority = 77
    world.server.fail(status=422, method="POST")
    with pytest.raises(world.module.ApiException):
        await world.v1.create_namespaced_pod("default", pod)
    assert seen.last.priority == 77


async def test_a_context_that_has_ended(world: World) -> None:
    """Nothing is sent for it."""
    world.pod()
    context = world.dispatcher.contexts.begin(ObjectRef("v1", "Pod", "default", "p"))
    context.end("preempted")
    with world.client.options(context=context), pytest.raises(StaleContext):
        await world.v1.patch_namespaced_pod("p", "default", LABEL)
    assert not world.server.audit


async def test_a_context_that_ends(world: World) -> None:
    """A call that waits is cancelled, and says why."""
    world.pod()
    world.server.latency = 5
    context = world.dispatcher.contexts.begin(ObjectRef("v1", "Pod", "default", "p"))
    with world.client.options(context=context):
        task = asyncio.ensure_future(world.v1.patch_namespaced_pod("p", "default", LABEL))
    await asyncio.sleep(0.5)
    context.end("preempted")
    with pytest.raises(CallCancelled, match="preempted"):
        await task


async def test_a_bind_waits_for_its_requirements(world: World, seen: Seen) -> None:
    """A call that confirms a requirement of the context goes first; the typed bind starts after it."""
    world.pod()
    context = world.dispatcher.contexts.begin(ObjectRef("v1", "Pod", "default", "p"), requires=["label"])
    with world.client.options(context=context):
        bind = asyncio.ensure_future(world.bind())
        await asyncio.sleep(1)
        assert not world.server.audit
        with world.client.options(prerequisite="label"):
            await world.v1.patch_namespaced_pod("p", "default", LABEL)
        assert (await bind).status == 201
    assert [record.verb for record in world.server.audit] == ["patch", "bind"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"urgency": 1}, "urgency"),
        ({"call_type": "x"}, "call_type"),
        ({"priority": "high"}, "priority"),
        ({"timeout": -1}, "timeout"),
        ({"flow": ""}, "flow"),
        ({"idempotency_key": []}, "idempotency_key"),
    ],
)
async def test_options_that_can_not_be_meant(world: World, fields: dict[str, Any], named: str) -> None:
    """An error that names the option, in a block and at construction."""
    with pytest.raises(ConfigurationError, match=named), world.client.options(**fields):
        pass
    with pytest.raises(ConfigurationError, match=named):
        DispatchingApiClient(world.dispatcher, world.api_client, options={"pod_patch": fields})


@pytest.mark.parametrize("options", [[], {"": {}}, {1: {}}, {"pod_patch": 5}])
async def test_mappings_that_can_not_be_meant(world: World, options: Any) -> None:
    """Call types to mappings of fields, and nothing else."""
    with pytest.raises(ConfigurationError, match="options"):
        DispatchingApiClient(world.dispatcher, world.api_client, options=options)


# -- sharing ----------------------------------------------------------------------------------------------------------


async def test_reads_are_not_shared_unasked(world: World) -> None:
    """An earlier read in flight may not show what this caller has seen already."""
    world.pod()
    world.server.latency = 1
    await asyncio.gather(*(world.v1.read_namespaced_pod("p", "default") for _ in range(3)))
    assert len(world.server.audit) == 3


async def test_readers_that_share_a_request_share_no_model(world: World) -> None:
    """With a key, equal reads are one request; each caller has a model of its own. Different ones stay apart."""
    world.pod()
    world.server.latency = 1
    with world.client.options(idempotency_key="look"):
        one, two, info, raw, raw2, missing = await asyncio.gather(
            world.v1.read_namespaced_pod("p", "default"),
            world.v1.read_namespaced_pod("p", "default"),
            world.flavour.info(world.v1, "read_namespaced_pod", "p", "default"),
            world.flavour.raw(world.v1, "read_namespaced_pod", "p", "default"),
            world.flavour.raw(world.v1, "read_namespaced_pod", "p", "default"),
            world.v1.read_namespaced_pod("q", "default"),
            return_exceptions=True,
        )
    assert one is not two
    assert one == two == info[0]
    one.metadata.name = "changed"
    assert two.metadata.name == "p"
    assert await raw.content.read() == await raw2.content.read() != b""
    assert missing.status == 404
    gets = [record for record in world.server.audit if record.name == "p"]
    assert len(gets) == (2 if world.flavour.name == "kubernetes_asyncio" else 1)


async def test_sharers_of_an_error_have_one_each(world: World) -> None:
    """The client changes its errors in place; what two callers share is not changed twice."""
    world.server.latency = 1
    with world.client.options(idempotency_key="look"):
        reads = [world.v1.read_namespaced_pod("q", "default") for _ in range(2)]
        found: list[Any] = await asyncio.gather(*reads, return_exceptions=True)
    one, two = found
    assert len(world.server.audit) == 1
    assert one is not two
    assert one.status == two.status == 404
    assert one.body == two.body


async def test_a_bind_supersedes_a_status_patch(world: World) -> None:
    """The policies of the configuration hold for typed calls; the loser is told so by us. A typed bind and one of
    `Cluster` meet in the same lane."""
    pod = world.pod()
    world.server.latency = 1
    first = asyncio.ensure_future(world.v1.patch_namespaced_pod("p", "default", LABEL))
    await asyncio.sleep(0.5)
    late = asyncio.ensure_future(
        world.v1.patch_namespaced_pod_status("p", "default", {"status": {"nominatedNodeName": "n"}})
    )
    await asyncio.sleep(0.1)
    handle = await world.dispatcher.dispatch(Cluster(world.api_client).bind(pod, "n1"))
    found = await asyncio.gather(first, late, handle, return_exceptions=True)
    assert type(found[1]).__name__ == "CallOverwritten"
    assert found[2] == "n1"
    assert [record.verb for record in world.server.audit] == ["patch", "bind"]


async def test_own_writes_are_seen(world: World) -> None:
    """What a typed bind does is in what `observe` returns, before any watch shows it."""
    pod = world.pod()
    await world.bind()
    assert world.dispatcher.observe(pod)["spec"]["nodeName"] == "n1"


async def test_an_own_create_is_seen(world: World) -> None:
    """Likewise a typed create, in a list that does not have it yet."""
    await world.v1.create_namespaced_pod("default", world.model())
    shown = world.dispatcher.overlay([], api_version="v1", kind="Pod", namespace="default")
    assert [obj["metadata"]["name"] for obj in shown] == ["p"]


# -- the dispatcher ---------------------------------------------------------------------------------------------------


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


# -- being a client ---------------------------------------------------------------------------------------------------


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
