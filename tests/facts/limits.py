"""Rows about quotas, namespaces, sizes, admission, rights and trouble inside the server."""

from typing import Any

from asyncdispatch.testing import answers
from asyncdispatch.testing.apiserver import Admission, service_account
from tests.facts.world import WIDGETS, World, binding, embedded_only, pod, refused, scenario

# -- quotas -----------------------------------------------------------------------------------------------------------


async def quota(world: World, hard: dict[str, str], used: dict[str, str] | None) -> str:
    """A quota as it is once a controller has looked at it; `used` None: before it has counted."""
    path = world.path("resourcequotas")
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    reply = await world.post(path, body)
    assert reply.status == 201, reply.text
    status: dict[str, Any] = {"hard": hard} | ({"used": used} if used is not None else {})
    reply = await world.patch(f"{path}/q/status", {"status": status})
    assert reply.status == 200, reply.text
    return f"{path}/q"


def asking(name: str = "web", **requests: str) -> dict[str, Any]:
    body = pod(name)
    body["spec"]["containers"][0]["resources"] = {"requests": requests}
    return body


@scenario
async def a_create_beyond_a_quota(world: World) -> None:
    """403 Forbidden without causes, "exceeded quota: …"; what it used before counts."""
    path = await quota(world, {"pods": "1"}, {"pods": "0"})
    assert (await world.post(world.pods(), pod("first"))).status == 201
    assert (await world.get(path)).json["status"]["used"] == {"pods": "1"}
    reply = await world.post(world.pods(), pod())
    status = refused(reply, 403, "Forbidden")
    assert status["message"] == (
        'pods "web" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'
    )
    assert status["details"] == {"name": "web", "kind": "pods"}


@scenario
async def a_create_beyond_a_quota_of_requests(world: World) -> None:
    """The quantities are added up as quantities."""
    await quota(world, {"requests.cpu": "1", "requests.memory": "1Gi"}, {"requests.cpu": "0", "requests.memory": "0"})
    assert (await world.post(world.pods(), asking("first", cpu="600m", memory="512Mi"))).status == 201
    status = refused(await world.post(world.pods(), asking(cpu="500m", memory="512Mi")), 403, "Forbidden")
    assert "exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: " in status["message"]
    assert (await world.post(world.pods(), asking(cpu="400m", memory="512Mi"))).status == 201


@scenario
async def a_create_without_the_requests_that_a_quota_counts(world: World) -> None:
    """403, "failed quota: …", which never passes."""
    await quota(world, {"requests.cpu": "1"}, {"requests.cpu": "0"})
    status = refused(await world.post(world.pods(), pod()), 403, "Forbidden", "failed quota: q: must specify ")
    assert "requests.cpu" in status["message"]


@scenario
async def a_create_under_a_quota_whose_usage_is_unknown(world: World) -> None:
    """403, "status unknown for quota: …"."""
    await quota(world, {"pods": "9"}, None)
    says = "status unknown for quota: q, resources: pods"
    refused(await world.post(world.pods(), pod()), 403, "Forbidden", says)


@embedded_only
async def a_create_while_others_charge_the_quota(world: World) -> None:
    """409 Conflict about the quota, not about the target; nothing was created."""
    world.server.fail(answers.quota_conflict("q"), verb="create")
    status = refused(await world.post(world.pods(), pod()), 409, "Conflict")
    assert status["details"] == {"name": "q", "kind": "resourcequotas"}
    assert (await world.post(world.pods(), pod())).status == 201


# -- namespaces -------------------------------------------------------------------------------------------------------


@scenario
async def a_namespace_that_is_being_deleted(world: World) -> None:
    """Creates: 403, cause NamespaceTerminating; binds and evictions are creates too. Patches and deletes pass."""
    await world.bound()
    await world.pod("free")
    assert (await world.delete(f"/api/v1/namespaces/{world.namespace}")).status in (200, 202)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}}
    for reply in (
        await world.post(world.pods(), pod("new")),
        await world.bind("free"),
        await world.bind("nothing"),
        await world.post(world.pods("web", "eviction"), eviction),
    ):
        assert refused(reply, 403, "Forbidden", "because it is being terminated")["details"]["kind"] == "pods"
        assert ("metadata.namespace", "NamespaceTerminating") in reply.causes
    assert (await world.patch(world.pods("web"), {"metadata": {"labels": {"a": "b"}}})).status == 200
    assert (await world.delete(world.pods("web"), {"gracePeriodSeconds": 0})).status == 200


@scenario
async def a_namespace_that_is_not_there(world: World) -> None:
    """404, about the namespace."""
    there = "/api/v1/namespaces/nowhere/pods"
    for reply in (await world.post(there, pod()), await world.post(f"{there}/web/binding", binding("web", "n1"))):
        assert refused(reply, 404, "NotFound")["details"] == {"name": "nowhere", "kind": "namespaces"}


@scenario
async def a_namespace_ends_once_it_is_finalized(world: World) -> None:
    """Until then it stays."""
    path = f"/api/v1/namespaces/{world.namespace}"
    await world.delete(path)
    left = (await world.get(path)).json
    assert left["status"]["phase"] == "Terminating"
    left["spec"]["finalizers"] = []
    assert (await world.put(f"{path}/finalize", left)).status == 200
    refused(await world.get(path), 404, "NotFound")


@embedded_only
async def a_pod_before_its_service_account(world: World) -> None:
    """403, told by its message only; it passes once the account is there."""
    server = world.server
    server.admission.append(service_account)
    says = f"error looking up service account {world.namespace}/default: serviceaccount"
    refused(await world.post(world.pods(), pod()), 403, "Forbidden", says)
    server.run_controllers()
    assert (await world.post(world.pods(), pod())).status == 201


# -- sizes and paths --------------------------------------------------------------------------------------------------


@scenario
async def an_object_above_the_limit_of_storage(world: World) -> None:
    """500 without a reason, "etcdserver: request is too large"."""
    body = {"apiVersion": WIDGETS, "kind": "Widget", "metadata": {"name": "w"}, "spec": {"big": "x" * 2_000_000}}
    reply = await world.post(world.path("widgets", group=WIDGETS), body)
    refused(reply, 500, None, "etcdserver: request is too large")


@scenario
async def a_config_map_that_is_too_large(world: World) -> None:
    """422 FieldValueTooLong."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"big": "x" * 1_200_000}}
    reply = await world.post(world.path("configmaps"), body)
    assert refused(reply, 422, "Invalid")["details"]["name"] == "c"
    assert reply.causes == [("[]", "FieldValueTooLong")]


@scenario
async def a_body_above_three_mebibytes(world: World) -> None:
    """413."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"big": "x" * 3_200_000}}
    refused(await world.post(world.path("configmaps"), body), 413, "RequestEntityTooLarge")


@scenario
async def a_path_that_is_not_served(world: World) -> None:
    """404 in plain text, not a Status."""
    reply = await world.get("/apis/nothing.example/v1/things")
    assert (reply.status, reply.text) == (404, "404 page not found\n")
    assert reply.headers["Content-Type"].startswith("text/plain")


# -- admission --------------------------------------------------------------------------------------------------------


@embedded_only
async def a_webhook_that_denies(world: World) -> None:
    """Any code that it likes, "admission webhook … denied the request: …"."""
    for code in (400, 403, 409, 422, 429, 500):
        world.server.fail(answers.webhook_denied("x.example.com", "no", code=code), verb="create")
        reply = await world.post(world.pods(), pod())
        refused(reply, code, None, 'admission webhook "x.example.com" denied the request: no')
        assert "Retry-After" not in reply.headers
    assert (await world.get(world.pods("web"))).status == 404


@embedded_only
async def a_webhook_that_changes_the_object(world: World) -> None:
    """What is stored is what it made of it."""

    def label(request: Admission) -> None:
        if request.operation == "CREATE" and request.obj is not None and request.resource.kind == "Pod":
            metadata = {**request.obj["metadata"], "labels": {"seen": "yes"}}
            request.obj = {**request.obj, "metadata": metadata}

    world.server.admission.append(label)
    assert (await world.pod())["metadata"]["labels"] == {"seen": "yes"}


@embedded_only
async def a_webhook_that_is_not_reachable(world: World) -> None:
    """500 InternalError "failed calling webhook …", before storage."""
    world.server.fail(answers.webhook_unreachable("x.example.com"), verb="create")
    says = 'failed calling webhook "x.example.com"'
    refused(await world.post(world.pods(), pod()), 500, "InternalError", says)
    assert (await world.get(world.pods("web"))).status == 404


@embedded_only
async def a_policy_that_denies(world: World) -> None:
    """422 Invalid, not 403, "… denied request"."""
    world.server.fail(answers.policy_denied("p", resource="pods", name="web"), verb="create")
    refused(await world.post(world.pods(), pod()), 422, "Invalid", "denied request")


# -- trouble ----------------------------------------------------------------------------------------------------------


@embedded_only
async def too_many_requests(world: World) -> None:
    """429 of Priority and Fairness: Retry-After 1 and plain text, not a Status."""
    world.server.rate_limit(qps=1, burst=1)
    for expected in (200, 429):
        reply = await world.get(world.pods())
        assert reply.status == expected
    assert reply.headers["Retry-After"] == "1"
    assert reply.headers["Content-Type"].startswith("text/plain")
    assert reply.text == "Too many requests, please try again later.\n"


@embedded_only
async def a_watch_cache_that_is_not_ready(world: World) -> None:
    """429 with a Status."""
    world.server.fail(answers.cache_not_ready(), verb="list")
    reply = await world.get(world.pods())
    refused(reply, 429, "TooManyRequests", "storage is (re)initializing")
    assert reply.headers["Retry-After"] == "1"


@embedded_only
async def a_storage_that_times_out(world: World) -> None:
    """500 without reason and Retry-After; applied or not."""
    for applied in (False, True):
        for answer in (answers.etcd_timeout(), answers.leader_changed()):
            world.server.fail(answer, applied=applied, verb="create")
            reply = await world.post(world.pods(), pod())
            refused(reply, 500, None, "etcdserver: ")
            assert "Retry-After" not in reply.headers
        assert (await world.get(world.pods("web"))).status == (200 if applied else 404)


@embedded_only
async def credentials_and_rights(world: World) -> None:
    """401 for a token that is not known, 403 for a right that is missing."""
    world.server.forbid(verb="list", times=1)
    refused(await world.get(world.pods()), 403, "Forbidden", 'cannot list resource "pods" in API group ""')
    world.server.fail(answers.unauthorized())
    refused(await world.get(world.pods()), 401, "Unauthorized", "Unauthorized")


@embedded_only
async def an_apply_that_conflicts(world: World) -> None:
    """409, causes FieldManagerConflict."""
    world.server.fail(answers.apply_conflict("pods", "web", manager="kubectl", field=".spec"), verb="patch")
    reply = await world.patch(world.pods("web"), {})
    refused(reply, 409, "Conflict", "Apply failed")
    assert reply.causes == [(".spec", "FieldManagerConflict")]
