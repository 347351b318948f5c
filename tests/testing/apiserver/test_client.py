"""kubernetes_asyncio takes the server for a real one: typed calls, patches, watches, errors, lost connections."""

import asyncio
from typing import Any

import pytest
from kubernetes_asyncio import client, watch
from kubernetes_asyncio.client.exceptions import ApiException

from asyncdispatch.testing import EmbeddedAPIServer
from tests.testing.apiserver.support import node, pod

pytestmark = pytest.mark.looptime


@pytest.fixture
async def core(server: EmbeddedAPIServer) -> Any:
    return client.CoreV1Api(server.api_client())


def typed(name: str = "web", **metadata: Any) -> Any:
    containers = [client.V1Container(name="main", image="app:1")]
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, **metadata), spec=client.V1PodSpec(containers=containers)
    )


async def test_a_pod_from_its_creation_to_its_end(server: EmbeddedAPIServer, core: Any) -> None:
    made = await core.create_namespaced_pod("default", typed())
    assert (made.metadata.name, made.status.phase, made.spec.priority) == ("web", "Pending", 0)
    read = await core.read_namespaced_pod("web", "default")
    assert read.metadata.uid == made.metadata.uid
    read.metadata.labels = {"a": "b"}
    replaced = await core.replace_namespaced_pod("web", "default", read)
    assert replaced.metadata.labels == {"a": "b"}
    with pytest.raises(ApiException) as caught:
        await core.replace_namespaced_pod("web", "default", read)
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    gone = await core.delete_namespaced_pod("web", "default")
    assert gone.metadata.uid == made.metadata.uid
    with pytest.raises(ApiException) as caught:
        await core.read_namespaced_pod("web", "default")
    assert caught.value.status == 404


async def test_typed_lists(server: EmbeddedAPIServer, core: Any) -> None:
    for name in "abc":
        server.create(pod(name))
    found = await core.list_namespaced_pod("default", limit=2, field_selector="spec.nodeName=")
    assert [item.metadata.name for item in found.items] == ["a", "b"]
    rest = await core.list_namespaced_pod("default", limit=2, _continue=found.metadata._continue)
    assert [item.metadata.name for item in rest.items] == ["c"]
    server.put(node("n1"))
    assert [item.metadata.name for item in (await core.list_node()).items] == ["n1"]


async def test_status_patches_by_every_content_type(server: EmbeddedAPIServer, core: Any) -> None:
    """A dict goes out as a strategic merge patch, a list as JSON Patch, others where they are forced."""
    server.create(pod())
    condition = {"type": "example.com/Ready", "status": "True"}
    patched = await core.patch_namespaced_pod_status("web", "default", {"status": {"conditions": [condition]}})
    assert [c.type for c in patched.status.conditions] == ["example.com/Ready"]
    operations = [{"op": "add", "path": "/status/nominatedNodeName", "value": "n1"}]
    patched = await core.patch_namespaced_pod_status("web", "default", operations)
    assert patched.status.nominated_node_name == "n1"
    body = {"status": {"nominatedNodeName": None}}
    merge = "application/merge-patch+json"
    patched = await core.patch_namespaced_pod_status("web", "default", body, _content_type=merge)
    assert patched.status.nominated_node_name is None
    assert [record.content_type.partition("/")[2] for record in server.audit] == [
        "strategic-merge-patch+json",
        "json-patch+json",
        "merge-patch+json",
    ]


async def test_a_bind_succeeds_though_the_typed_call_raises(server: EmbeddedAPIServer, core: Any) -> None:
    """The server answers with a Status, which the typed client takes for a Binding without a target."""
    server.create(pod())
    body = client.V1Binding(metadata=client.V1ObjectMeta(name="web"), target=client.V1ObjectReference(name="n1"))
    with pytest.raises(ValueError):
        await core.create_namespaced_pod_binding("web", "default", body)
    assert server.get("Pod", "web")["spec"]["nodeName"] == "n1"
    response = await core.create_namespaced_pod_binding("web", "default", body, _preload_content=False)
    assert response.status == 409
    response.release()


async def test_leases_and_events_and_classes(server: EmbeddedAPIServer) -> None:
    api = server.api_client()
    leases = client.CoordinationV1Api(api)
    spec = client.V1LeaseSpec(holder_identity="me", lease_duration_seconds=15)
    made = await leases.create_namespaced_lease(
        "kube-system", client.V1Lease(metadata=client.V1ObjectMeta(name="leader"), spec=spec)
    )
    made.spec.holder_identity = "you"
    renewed = await leases.replace_namespaced_lease("leader", "kube-system", made)
    assert renewed.spec.holder_identity == "you"
    classes = await client.SchedulingV1Api(api).list_priority_class()
    assert {item.metadata.name for item in classes.items} == {"system-node-critical", "system-cluster-critical"}
    event = client.CoreV1Event(
        metadata=client.V1ObjectMeta(generate_name="web-"),
        involved_object=client.V1ObjectReference(kind="Pod", name="web", namespace="default"),
        reason="Scheduled",
    )
    core = client.CoreV1Api(api)
    await core.create_namespaced_event("default", event)
    found = await core.list_namespaced_event("default", field_selector="involvedObject.name=web")
    assert [item.reason for item in found.items] == ["Scheduled"]


async def test_custom_objects(server: EmbeddedAPIServer) -> None:
    custom: Any = client.CustomObjectsApi(server.api_client())
    where = ("example.com", "v1", "default", "widgets")
    body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}}
    await custom.create_namespaced_custom_object(*where, body)
    merge = "application/merge-patch+json"
    patched = await custom.patch_namespaced_custom_object(*where, "w", {"spec": {"size": 2}}, _content_type=merge)
    assert (patched["spec"], patched["metadata"]["generation"]) == ({"size": 2}, 2)
    assert len((await custom.list_namespaced_custom_object(*where))["items"]) == 1


async def test_watch_with_its_own_class(server: EmbeddedAPIServer, core: Any) -> None:
    """Lists, then watches from there; sees typed objects come, change and go, and passes bookmarks over."""
    server.create(pod("a"))
    listed = await core.list_namespaced_pod("default")

    async def write() -> None:
        await core.create_namespaced_pod("default", typed("b"))
        await asyncio.sleep(100)
        await core.patch_namespaced_pod("b", "default", {"metadata": {"labels": {"x": "y"}}})
        await core.delete_namespaced_pod("b", "default")

    writing = asyncio.create_task(write())
    seen = []
    async with watch.Watch() as stream:
        query = {"resource_version": listed.metadata.resource_version, "allow_watch_bookmarks": True}
        async for event in stream.stream(core.list_namespaced_pod, "default", timeout_seconds=200, **query):
            obj = event["object"]
            seen.append((event["type"], obj["kind"] if isinstance(obj, dict) else obj.metadata.name))
    await writing
    told = [event for event in seen if event[0] != "BOOKMARK"]
    assert told == [("ADDED", "b"), ("MODIFIED", "b"), ("MODIFIED", "b"), ("DELETED", "b")]
    assert ("BOOKMARK", "Pod") in seen


async def test_watch_learns_that_its_version_is_too_old(server: EmbeddedAPIServer, core: Any) -> None:
    server.create(pod())
    server.compact()
    async with watch.Watch() as stream:
        with pytest.raises(ApiException) as caught:
            async for _ in stream.stream(core.list_namespaced_pod, "default", resource_version="1", timeout_seconds=5):
                pass
    assert caught.value.status == 410


async def test_errors_carry_headers_and_body(server: EmbeddedAPIServer, core: Any) -> None:
    server.fail(status=429, retry_after=7)
    with pytest.raises(ApiException) as caught:
        await core.list_node()
    error: Any = caught.value
    assert error.status == 429
    assert error.headers["Retry-After"] == "7"
    assert '"kind":"Status"' in error.body


async def test_the_audit_id_of_a_client_is_kept(server: EmbeddedAPIServer) -> None:
    api = server.api_client()
    api.set_default_header("Audit-ID", "ticket-1")
    await client.CoreV1Api(api).list_node()
    assert server.audit[0].audit_id == "ticket-1"
    assert "OpenAPI-Generator" in server.audit[0].user_agent


async def test_clients_are_closed_with_the_server() -> None:
    async with EmbeddedAPIServer() as server:
        api = server.api_client()
        await client.CoreV1Api(api).list_node()
        session = api.rest_client.pool_manager
    assert session.closed
