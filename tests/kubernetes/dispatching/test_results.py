"""What a typed method returns is what it returned before; on both clients, over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from asyncdispatch.kubernetes import Cluster
from tests.kubernetes.dispatching.world import LABEL, WIDGETS, Seen, World

# -- results -----------------------------------------------------------------------------------------------------------


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


# -- sharing -----------------------------------------------------------------------------------------------------------


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
