"""The objects in Python, the audit list, and the server's life."""

import asyncio
import dataclasses
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from asyncdispatch.testing import EmbeddedAPIServer, StatusError
from asyncdispatch.testing.apiserver import Admission
from tests.testing.apiserver.support import POD, PODS, WIDGETS, Http, binding, node, pod


@dataclass(frozen=True)
class Reference:
    kind: str
    namespace: str | None
    name: str
    api_version: str = "v1"


async def test_put_sets_a_scene(server: EmbeddedAPIServer) -> None:
    """Stores what it is given, with its status, and makes a missing namespace; an existing object keeps its uid."""
    body = pod(nodeName="n1") | {"status": {"phase": "Running"}}
    body["metadata"]["namespace"] = "fresh"
    first = server.put(body)
    assert first["status"] == {"phase": "Running"}
    assert server.find("Namespace", "fresh") is not None
    second = server.put(body | {"status": {"phase": "Failed"}})
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])


async def test_put_adds_what_a_create_would(server: EmbeddedAPIServer) -> None:
    """Whatever a kind's create sets is set by a put too, where the object does not say otherwise."""
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": {}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": {}}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": {"a": "b"}}}
    gated = pod("gated", schedulingGates=[{"name": "g"}])
    server.admission.clear()  # which sets a Pod's priority, and is none of its defaults
    for body in (pod(), gated, budget, claim, space, node("n1")):
        put = server.put(body)
        server.finish(put)
        created = server.create(body)
        for each in (put, created):
            for field in ("uid", "resourceVersion"):
                del each["metadata"][field]
        assert put == created | ({"status": body["status"]} if "status" in body else {})


async def test_a_replace_may_leave_out_what_is_the_default(server: EmbeddedAPIServer, http: Http) -> None:
    """What is missing there is the default, not a change; a change to the default is one."""
    server.put(pod())
    assert (await http.put(POD, pod(labels={"a": "b"}))).status == 200
    assert server.get("Pod", "web")["spec"]["restartPolicy"] == "Always"
    server.put(pod(restartPolicy="Never"))
    assert (await http.put(POD, pod())).status == 422


async def test_put_says_otherwise(server: EmbeddedAPIServer) -> None:
    """Fields of the spec that are given stay, and so does the whole status."""
    put = server.put(pod(restartPolicy="Never") | {"status": {"message": "m"}})
    assert (put["spec"]["restartPolicy"], put["spec"]["dnsPolicy"]) == ("Never", "ClusterFirst")
    assert put["status"] == {"message": "m"}
    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}, "spec": {"finalizers": []}})
    assert server.delete("Namespace", "n") is None


async def test_a_namespace_that_was_put_ends_as_any_other(server: EmbeddedAPIServer, http: Http) -> None:
    """Deleted or put as dying, it stays, is Terminating, and refuses creates."""
    space: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "deleted"}}
    server.put(space)
    server.delete("Namespace", "deleted")
    server.put(space | {"metadata": {"name": "dying", "deletionTimestamp": "2030-01-01T00:00:00Z"}})
    for name in ("deleted", "dying"):
        assert server.get("Namespace", name)["status"] == {"phase": "Terminating"}
        reply = await http.post(f"/api/v1/namespaces/{name}/configmaps", {"metadata": {"name": "c"}})
        assert (reply.status, reply.json["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")


async def test_what_goes_in_and_out_is_not_shared(server: EmbeddedAPIServer) -> None:
    body = pod(labels={"a": "b"})
    made = server.create(body)
    body["metadata"]["labels"]["a"] = made["metadata"]["labels"]["a"] = "changed"
    server.get("Pod", "web")["spec"].clear()
    assert server.get("Pod", "web")["metadata"]["labels"] == {"a": "b"}
    assert server.get("Pod", "web")["spec"]


async def test_objects_are_named_in_three_ways(server: EmbeddedAPIServer) -> None:
    made = server.create(pod())
    assert server.get("Pod", "web") == made
    assert server.get(made) == made
    assert server.get(Reference("Pod", "default", "web")) == made
    assert server.find("Pod", "web", namespace="kube-system") is None


async def test_what_is_not_there(server: EmbeddedAPIServer) -> None:
    with pytest.raises(KeyError, match="no Pod 'web' in namespace 'default'"):
        server.get("Pod", "web")
    with pytest.raises(KeyError):
        server.delete("Pod", "web")
    with pytest.raises(ValueError, match="kind: 'Gadget' is not served"):
        server.get("Gadget", "g")
    with pytest.raises(ValueError, match="name: missing for Pod"):
        server.get("Pod")
    with pytest.raises(ValueError, match="target: 7 names no object"):
        server.get(7)  # type: ignore[arg-type]


async def test_generated_names_are_free_ones() -> None:
    """Five random letters collide soon enough: a taken name is not given out again."""
    server = EmbeddedAPIServer()
    body = pod()
    body["metadata"] = {"generateName": "p-"}
    assert len({server.create(body)["metadata"]["name"] for _ in range(6000)}) == 6000


async def test_the_view_of_objects(server: EmbeddedAPIServer) -> None:
    made = server.create(pod())
    key = ("Pod", "default", "web")
    assert server.objects[key] == made
    assert key in server.objects
    assert ("Pod", "default", "other") not in server.objects
    assert ("Gadget", "", "other") not in server.objects
    assert [obj["metadata"]["name"] for obj in server.objects.of("Pod")] == ["web"]
    assert server.objects.of("Pod", "kube-system") == []
    assert len(server.objects) == len(list(server.objects)) == 4 + 2 + 1  # namespaces, priority classes, the Pod


async def test_kinds_that_two_groups_share(server: EmbeddedAPIServer) -> None:
    server.put({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a"}})
    server.put({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "b"}})
    server.register("example.com/v1", "Pod", "pods")
    server.put(pod() | {"apiVersion": "example.com/v1"})
    keys = [key for key in server.objects if key[0].startswith(("Event", "Pod"))]
    assert keys == [("Event", "default", "a"), ("Event", "default", "b"), ("Pod.example.com", "default", "web")]
    assert all(server.objects[key] for key in keys)


async def test_create_refuses_as_a_post_would(server: EmbeddedAPIServer) -> None:
    server.create(pod())
    with pytest.raises(StatusError) as caught:
        server.create(pod())
    assert (caught.value.code, caught.value.status["reason"]) == (409, "AlreadyExists")


async def test_patch_object_is_another_writers_hand(server: EmbeddedAPIServer) -> None:
    """It may change anything; what changes nothing keeps the version."""
    server.create(pod())
    changed = server.patch_object("Pod", {"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}, "web")
    assert (changed["spec"]["nodeName"], changed["status"]["phase"]) == ("n1", "Running")
    assert server.patch_object(changed, {"status": {"phase": "Running"}}) == changed
    conditions = {"status": {"conditions": [{"type": "A", "status": "True"}]}}
    server.patch_object(changed, conditions, strategic=True)
    other = {"status": {"conditions": [{"type": "B", "status": "True"}]}}
    assert len(server.patch_object(changed, other, strategic=True)["status"]["conditions"]) == 2


async def test_delete_and_finish(server: EmbeddedAPIServer) -> None:
    server.put(pod(nodeName="n1"))
    dying = server.delete("Pod", "web")
    assert dying is not None
    assert dying["metadata"]["deletionGracePeriodSeconds"] == 30
    server.finish(dying)
    assert server.find(dying) is None
    server.put(pod(nodeName="n1"))
    assert server.delete("Pod", "web", grace_period=0) is None


async def test_a_scene_with_a_dying_pod(server: EmbeddedAPIServer, http: Http) -> None:
    """It stays, also when its status is written, until somebody ends it."""
    body = pod(nodeName="n1")
    body["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    server.put(body)
    assert (await http.patch(f"{POD}/status", {"status": {"phase": "Running"}})).status == 200
    assert server.find("Pod", "web") is not None
    assert server.delete("Pod", "web", grace_period=0) is None


async def test_recreate(server: EmbeddedAPIServer) -> None:
    """The same name, another object: new uid, unbound, fresh status."""
    old = server.put(pod(nodeName="n1", labels={"a": "b"}) | {"status": {"phase": "Running"}})
    new = server.recreate(old)
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert new["metadata"]["labels"] == {"a": "b"}
    assert new["status"]["phase"] == "Pending"
    assert "nodeName" not in new["spec"]


async def test_a_rival_binds(server: EmbeddedAPIServer) -> None:
    server.create(pod())
    assert server.bind("web", "n1")["spec"]["nodeName"] == "n1"
    with pytest.raises(StatusError):
        server.bind(server.get("Pod", "web"), "n2")


async def test_registered_resources(server: EmbeddedAPIServer, http: Http) -> None:
    """Cluster-wide, and without a status subresource, where so told."""
    server.register("other.io/v1beta1", "Ring", "rings", namespaced=False, status_subresource=False)
    body = {"apiVersion": "other.io/v1beta1", "kind": "Ring", "metadata": {"name": "r"}, "status": {"kept": True}}
    made = await http.post("/apis/other.io/v1beta1/rings", body)
    assert (made.status, made.json["status"]) == (201, {"kept": True})
    assert "namespace" not in made.json["metadata"]
    assert (await http.patch("/apis/other.io/v1beta1/rings/r/status", {})).status == 404
    assert (await http.get("/apis/other.io/v1beta1/namespaces/default/rings")).status == 404
    assert (await http.get(WIDGETS)).status == 200


# ---- audit -----------------------------------------------------------------------------------------------------------


async def test_every_request_is_recorded(server: EmbeddedAPIServer, http: Http) -> None:
    headers = {"Audit-ID": "7-1", "User-Agent": "me/1"}
    reply = await http("POST", PODS, pod(), headers=headers, query={"fieldManager": "me"})
    assert reply.headers["Audit-ID"] == "7-1"
    await http.get("/nothing")
    await http.post(PODS, "{")
    first, second, third = server.audit
    assert (first.number, first.method, first.path, first.query) == (1, "POST", PODS, {"fieldManager": "me"})
    assert (first.audit_id, first.user_agent, first.content_type) == ("7-1", "me/1", "application/json")
    assert (first.verb, first.api_version, first.kind, first.namespace, first.name) == (
        *("create", "v1", "Pod", "default", "web"),
    )
    assert (first.status, first.answered, first.applied, first.fault) == (201, True, True, None)
    metadata = server.get("Pod", "web")["metadata"]
    assert (first.resource_version, first.uid) == (metadata["resourceVersion"], metadata["uid"])
    assert first.body == pod()
    assert (second.kind, second.verb, second.status, second.audit_id) == ("", "", 404, None)
    assert (third.body, third.status) == ("{", 400)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.status = 1  # type: ignore[misc]


@pytest.mark.looptime
async def test_a_request_in_flight_is_in_the_list(server: EmbeddedAPIServer, http: Http) -> None:
    """First without an end; the write is noted when it lands, not when it is answered."""
    server.latency = 4
    asking = asyncio.create_task(http.post(PODS, pod()))
    await asyncio.sleep(1)
    assert (server.audit[0].applied, server.audit[0].finished) == (False, None)
    await asyncio.sleep(2)
    assert (server.audit[0].applied, server.audit[0].finished) == (True, None)
    await asking
    assert server.audit[0].status == 201


async def test_the_list_may_be_cleared(server: EmbeddedAPIServer, http: Http) -> None:
    await http.get(PODS)
    server.audit.clear()
    await http.get(POD)
    assert [(record.number, record.status) for record in server.audit] == [(1, 404)]


async def test_deletes_record_what_was_removed(server: EmbeddedAPIServer, http: Http) -> None:
    uid = server.put(node("n1"))["metadata"]["uid"]
    await http.delete("/api/v1/nodes/n1", {"preconditions": {"uid": uid}})
    record = server.audit[0]
    assert (record.verb, record.uid, record.resource_version) == ("delete", uid, server.resource_version)


# ---- the server ------------------------------------------------------------------------------------------------------


async def test_admission_steps_can_be_added(server: EmbeddedAPIServer, http: Http) -> None:
    """A step sees every write on its way, and may change or refuse it."""
    seen = []
    before = []

    def step(request: Admission) -> None:
        seen.append((request.operation, request.subresource, request.name))
        before.append(request.old)
        if request.operation == "CREATE" and request.obj is not None and not request.subresource:
            metadata = request.obj["metadata"]
            request.obj = {**request.obj, "metadata": {**metadata, "labels": {"by": "policy"}}}
        if request.operation == "DELETE":
            raise StatusError(422, 'policy "p" denied request', reason="Invalid")

    server.admission.append(step)
    assert (await http.post(PODS, pod())).json["metadata"]["labels"] == {"by": "policy"}
    await http.patch(f"{POD}/status", {"status": {"message": "m"}})
    await http.bind(binding())
    assert (await http.delete(POD)).status == 422
    assert seen == [
        ("CREATE", "", "web"),
        ("UPDATE", "status", "web"),
        ("CREATE", "binding", "web"),
        ("DELETE", "", "web"),
    ]
    assert before[0] is None
    assert [old["metadata"]["name"] for old in before[1:] if old is not None] == ["web"] * 3
    assert before[3] == server.get("Pod", "web")


async def test_namespaces_can_be_made_on_the_way() -> None:
    async with EmbeddedAPIServer(auto_namespaces=True) as server, aiohttp.ClientSession() as session:
        body = pod()
        body["metadata"]["namespace"] = "new"
        assert (await Http(server, session).post("/api/v1/namespaces/new/pods", body)).status == 201


async def test_the_same_story_twice(http: Http) -> None:
    """Uids, versions and generated names depend on the seed and the requests alone."""

    async def story(seed: int) -> list[Any]:
        async with EmbeddedAPIServer(seed=seed) as server, aiohttp.ClientSession() as session:
            one = Http(server, session)
            body = pod()
            body["metadata"] = {"generateName": "p-"}
            made = [(await one.post(PODS, body)).json["metadata"] for _ in range(3)]
            return [(metadata["uid"], metadata["name"], metadata["resourceVersion"]) for metadata in made]

    assert await story(1) == await story(1)
    assert await story(1) != await story(2)


async def test_the_server_can_come_back(server: EmbeddedAPIServer) -> None:
    """On the same port, with its objects."""
    async with EmbeddedAPIServer() as one, aiohttp.ClientSession() as session:
        url = one.url
        one.create(pod())
        await one.__aexit__(None, None, None)
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"{url}{POD}")
        await one.__aenter__()
        assert one.url == url
        async with session.get(f"{url}{POD}") as response:
            assert response.status == 200


async def test_a_server_that_is_not_running() -> None:
    server = EmbeddedAPIServer()
    with pytest.raises(RuntimeError, match="async with"):
        _ = server.url
    async with server:
        with pytest.raises(RuntimeError, match="running already"):
            await server.__aenter__()


@pytest.mark.looptime
async def test_leaving_does_not_wait_for_requests() -> None:
    async with aiohttp.ClientSession() as session:
        async with EmbeddedAPIServer(latency=1000) as server:
            asking = asyncio.create_task(Http(server, session).get(PODS))
            await asyncio.sleep(1)
            begun = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - begun < 1
        with pytest.raises(aiohttp.ClientError):
            await asking


async def test_an_error_of_a_hook_is_a_500(server: EmbeddedAPIServer, http: Http, caplog: Any) -> None:
    """It is logged, and the server goes on."""

    def broken(record: Any) -> None:
        raise RuntimeError("broken hook")

    server.hook(broken, times=1)
    reply = await http.get(PODS)
    assert (reply.status, reply.json["reason"]) == (500, "InternalError")
    assert "broken hook" in caplog.text
    assert (await http.get(PODS)).status == 200


async def test_many_requests_at_once(server: EmbeddedAPIServer, http: Http) -> None:
    """Fenced writers that race: each version is written once."""
    server.create(pod())

    async def add(key: str) -> int:
        conflicts = 0
        while True:
            metadata = (await http.get(POD)).json["metadata"]
            labels = {**metadata.get("labels", {}), key: "x"}
            patch = {"metadata": {"labels": labels, "resourceVersion": metadata["resourceVersion"]}}
            if (await http.patch(POD, patch)).status == 200:
                return conflicts
            conflicts += 1

    await asyncio.gather(*(add(f"k{n}") for n in range(20)))
    assert len(server.get("Pod", "web")["metadata"]["labels"]) == 20
    versions = [record.resource_version for record in server.audit if record.applied]
    assert len(versions) == len(set(versions)) == 20
