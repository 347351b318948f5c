"""What a typed method raises: the client's own errors, and ours where only we can tell."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from tenacity import stop_after_attempt

from asyncdispatch import (
    AmbiguousOutcome,
    DeadlineExpired,
    RetryPolicy,
)
from asyncdispatch.kubernetes import DispatchingApiClient
from asyncdispatch.kubernetes.marks import MARK
from tests.kubernetes.dispatching.world import LABEL, WIDGETS, Seen, World


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


async def test_a_server_that_has_just_started_knows_no_roles(world: World, seen: Seen) -> None:
    """Its 403 is waited for after a connection that failed, and is the client's own without one."""
    world.pod()
    missing = world.server.forbid()
    with pytest.raises(world.module.ApiException):
        await world.v1.read_namespaced_pod("p", "default")
    missing.remove()
    world.server.reset(times=1, method="PATCH")
    missing = world.server.forbid()
    asking = asyncio.ensure_future(world.v1.patch_namespaced_pod("p", "default", LABEL))
    await asyncio.sleep(2)
    missing.remove()
    assert (await asking).metadata.labels == {"a": "b"}
    assert [record.status for record in world.server.audit if record.method == "PATCH"].count(403) > 0


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
    assert [record.audit_id for record in world.server.audit] == ["1-1", "1-1", "1-2"]


async def test_waiting_for_a_connection_is_not_sending(world: World) -> None:
    """R8: the client's only connection is in use for longer than an attempt may take; nothing is in doubt."""
    world.server.delay(60, times=1, method="GET")
    configuration = world.module.Configuration(host=world.server.url)
    configuration.connection_pool_maxsize = 1
    async with world.module.ApiClient(configuration) as client:
        busy = asyncio.ensure_future(world.module.CoreV1Api(client).list_node())
        await asyncio.sleep(1)
        v1 = world.module.CoreV1Api(DispatchingApiClient(world.dispatcher, client))
        assert (await v1.create_namespaced_pod("default", world.model())).metadata.name == "p"
        await busy
    assert [record.method for record in world.server.audit] == ["GET", "POST"]


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
