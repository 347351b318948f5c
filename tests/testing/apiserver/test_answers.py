"""The API server's table of answers, one row per test: what is asked, and what the server says to it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from asyncdispatch.testing import EmbeddedAPIServer
from tests.testing.apiserver.support import (
    APPLY,
    JSON_PATCH,
    LEASES,
    MERGE,
    POD,
    PODS,
    STRATEGIC,
    WIDGETS,
    Http,
    Reply,
    binding,
    node,
    pod,
)

Ask = Callable[[EmbeddedAPIServer, Http], Awaitable[Reply]]


@dataclass(frozen=True)
class Row:
    case: str
    ask: Ask
    code: int
    reason: str | None = None
    says: str = ""
    causes: list[tuple[str, str]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def hinted(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "status": {"nominatedNodeName": name}}


def bound(server: EmbeddedAPIServer) -> None:
    server.put(pod(nodeName="n1"))


def dying(server: EmbeddedAPIServer) -> None:
    server.put(pod(nodeName="n1"))
    server.delete("Pod", "web")


async def second_bind(s: EmbeddedAPIServer, h: Http) -> Reply:
    bound(s)
    return await h.bind(binding(to="n2"))


async def bind_dying(s: EmbeddedAPIServer, h: Http) -> Reply:
    s.put(pod())
    s.patch_object("Pod", {"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}}, "web")
    return await h.bind(binding())


async def bind_gated(s: EmbeddedAPIServer, h: Http) -> Reply:
    s.put(pod(schedulingGates=[{"name": "example.com/wait"}]))
    return await h.bind(binding())


async def bind_stale(s: EmbeddedAPIServer, h: Http) -> Reply:
    old = s.put(pod())
    s.patch_object("Pod", {"metadata": {"labels": {"a": "b"}}}, "web")
    return await h.bind(binding(resourceVersion=old["metadata"]["resourceVersion"], uid=old["metadata"]["uid"]))


async def stale_put(s: EmbeddedAPIServer, h: Http) -> Reply:
    old = s.put(pod())
    s.patch_object("Pod", {"metadata": {"labels": {"a": "b"}}}, "web")
    return await h.put(POD, old)


async def put_with_both_wrong(s: EmbeddedAPIServer, h: Http) -> Reply:
    old = s.put(pod())
    old["metadata"].update(uid="other", resourceVersion="1")
    return await h.put(POD, old)


def patching(body: Any, content_type: str = MERGE, path: str = POD, arrange: Callable[..., Any] | None = None) -> Ask:
    async def ask(s: EmbeddedAPIServer, h: Http) -> Reply:
        (arrange or (lambda server: server.put(pod())))(s)
        return await h.patch(path, body, content_type)

    return ask


def creating(body: Any, path: str = PODS, arrange: Callable[..., Any] | None = None) -> Ask:
    async def ask(s: EmbeddedAPIServer, h: Http) -> Reply:
        if arrange is not None:
            arrange(s)
        return await h.post(path, body)

    return ask


def deleting(body: Any, path: str = POD) -> Ask:
    async def ask(s: EmbeddedAPIServer, h: Http) -> Reply:
        s.put(pod(nodeName="n1"))
        return await h.delete(path, body)

    return ask


def binding_it(body: Any) -> Ask:
    async def ask(s: EmbeddedAPIServer, h: Http) -> Reply:
        s.put(pod())
        return await h.bind(body)

    return ask


def asking(method: str, path: str, body: Any = None, **query: str) -> Ask:
    async def ask(s: EmbeddedAPIServer, h: Http) -> Reply:
        return await h(method, path, body, query=query)

    return ask


def terminating_namespace(server: EmbeddedAPIServer) -> None:
    server.delete("Namespace", "default")


def widget(server: EmbeddedAPIServer) -> None:
    server.put({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}})


BIG = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"text": "x" * 2_000_000}}
BIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"text": "x" * 1_200_000}}
HUGE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"text": "x" * 3_200_000}}
NO_CONTAINERS = {"metadata": {"name": "a"}, "spec": {}}
NAMELESS = pod("")
NO_IMAGE = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}}
GATED = pod(nodeName="n1", schedulingGates=[{"name": "example.com/wait"}])
DOTTED = {"metadata": {"name": "a.b"}}
UPPER = pod("Web")
ELSEWHERE = "/api/v1/namespaces/nowhere/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
NO_VERSION = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}}


def lease(server: EmbeddedAPIServer) -> None:
    server.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}})


async def unversioned_lease(s: EmbeddedAPIServer, h: Http) -> Reply:
    lease(s)
    return await h.put(f"{LEASES}/l", NO_VERSION)


async def misnamed_put(s: EmbeddedAPIServer, h: Http) -> Reply:
    s.put(pod())
    return await h.put(POD, pod("other"))


async def foreign_put(s: EmbeddedAPIServer, h: Http) -> Reply:
    s.put(pod())
    return await h.put(POD, pod() | {"metadata": {"name": "web", "uid": "other"}})


async def put_into_another_namespace(s: EmbeddedAPIServer, h: Http) -> Reply:
    s.put(pod())
    return await h.put(POD, pod() | {"metadata": {"name": "web", "namespace": "other"}})


async def lost_lease(s: EmbeddedAPIServer, h: Http) -> Reply:
    return await h.put(f"{LEASES}/l", {"metadata": {"name": "l", "uid": "old"}, "spec": {}})


async def stricter_toleration(s: EmbeddedAPIServer, h: Http) -> Reply:
    s.create(pod(tolerations=[{"key": "a"}]))
    assert (await h.patch(POD, {"spec": {"tolerations": [{"key": "a"}, {"key": "b"}]}})).status == 200
    s.audit.clear()
    return await h.patch(POD, {"spec": {"tolerations": [{"key": "b"}]}})


async def finalizer_on_dying(s: EmbeddedAPIServer, h: Http) -> Reply:
    dying(s)
    return await h.patch(POD, {"metadata": {"finalizers": ["example.com/late"]}})


BAD, FORBIDDEN, REQUIRED = "FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"
ABOUT_POD = {"kind": "pods", "name": "web"}
ROWS = [
    Row("other uid in a PUT", foreign_put, 409, "Conflict", "StorageError", details=ABOUT_POD),
    Row("other namespace in a PUT", put_into_another_namespace, 400, "BadRequest"),
    Row("PUT with a uid on what is gone", lost_lease, 409, "Conflict", "Precondition failed: UID"),
    Row("toleration taken away", stricter_toleration, 422, causes=[("spec.tolerations", FORBIDDEN)]),
    Row("container without image", creating(NO_IMAGE), 422, causes=[("spec.containers[0].image", REQUIRED)]),
    Row("gated and bound", creating(GATED), 422, causes=[("spec.nodeName", FORBIDDEN)]),
    Row("born on a node with a bad name", creating(pod(nodeName="N_1")), 422, causes=[("spec.nodeName", BAD)]),
    Row("name that is too long", creating(pod("a" * 254)), 422, causes=[("metadata.name", BAD)]),
    Row("namespace with a dot", creating(DOTTED, "/api/v1/namespaces"), 422, causes=[("metadata.name", BAD)]),
    Row("priority of one's own", creating(pod(priority=7)), 403, "Forbidden", "integer value of priority"),
    Row("bind to no node kind", binding_it(binding() | {"target": {"kind": "Pod", "name": "x"}}), 500, None),
    Row("bind of no binding", binding_it([]), 400, "BadRequest"),
    Row("bind of another namespace", binding_it(binding(namespace="other")), 400, "BadRequest"),
    Row("delete with options that are none", deleting([]), 400, "BadRequest"),
    Row("metadata that is none", creating({"metadata": []}), 400, "BadRequest"),
    Row("name that is no string", creating({"metadata": {"name": 1}}), 400, "BadRequest"),
    Row("field selector that is none", asking("GET", PODS, fieldSelector="spec"), 400, "BadRequest"),
    Row("match without a version", asking("GET", PODS, resourceVersionMatch="Exact"), 400, "BadRequest"),
    Row("stale version in a PUT", stale_put, 409, "Conflict", "object has been modified", details=ABOUT_POD),
    Row("stale version in a PATCH", patching(hinted("n1", resourceVersion="1")), 409, "Conflict", details=ABOUT_POD),
    Row(
        "stale version in a JSON Patch",
        patching([{"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}], JSON_PATCH),
        *(409, "Conflict"),
    ),
    Row(
        "other uid in a PATCH",
        patching(hinted("n1", uid="other"), path=f"{POD}/status"),
        *(422, "Invalid", "field is immutable", [("metadata.uid", "FieldValueInvalid")]),
        details={"kind": "Pod", "name": "web"},
    ),
    Row("version is compared before uid in a PATCH", patching({"metadata": {"uid": "o", "resourceVersion": "1"}}), 409),
    Row("uid is compared before version in a PUT", put_with_both_wrong, 409, "Conflict", "Precondition failed: UID"),
    Row(
        "failed test of a JSON Patch",
        patching([{"op": "test", "path": "/metadata/name", "value": "x"}], JSON_PATCH),
        *(422, "Invalid", "rejected our request"),
    ),
    Row(
        "JSON Patch of a path that is not there",
        patching([{"op": "remove", "path": "/spec/nothing"}], JSON_PATCH),
        *(422, "Invalid", "rejected our request"),
    ),
    Row("JSON Patch that is none", patching({"op": "test"}, JSON_PATCH), 400, "BadRequest"),
    Row("merge patch that is none", patching([1]), 400, "BadRequest"),
    Row(
        "bad node name",
        patching(hinted("Not_A_Node"), path=f"{POD}/status"),
        *(422, "Invalid", "", [("status.nominatedNodeName", "FieldValueInvalid")]),
    ),
    Row(
        "hint on a bound Pod",
        patching(hinted("n2"), path=f"{POD}/status", arrange=bound),
        *(422, "Invalid", "", [("status.nominatedNodeName", "FieldValueForbidden")]),
    ),
    Row(
        "hint on a bound Pod that is being deleted",
        patching(hinted("n2"), path=f"{POD}/status", arrange=dying),
        *(422, "Invalid", "", [("status.nominatedNodeName", "FieldValueForbidden")]),
    ),
    Row(
        "stale hint on a bound Pod",
        patching(hinted("n2", resourceVersion="1"), path=f"{POD}/status", arrange=bound),
        *(409, "Conflict"),
    ),
    Row(
        "server-side apply without a field manager",
        patching("{}", APPLY),
        *(422, "Invalid", "", [("fieldManager", "FieldValueRequired")]),
    ),
    Row("server-side apply", asking("PATCH", POD, "{}", fieldManager="me"), 415, "UnsupportedMediaType"),
    Row("unknown kind of patch", patching("{}", "application/json"), 415, "UnsupportedMediaType"),
    Row(
        "strategic merge patch on a custom resource",
        patching({"spec": {"size": 2}}, STRATEGIC, f"{WIDGETS}/w", widget),
        *(415, "UnsupportedMediaType"),
    ),
    Row(
        "taken name",
        creating(pod(), arrange=lambda s: s.put(pod())),
        *(409, "AlreadyExists", 'pods "web" already exists'),
        details=ABOUT_POD,
    ),
    Row(
        "name held by a dying object",
        creating(pod(), arrange=dying),
        *(409, "AlreadyExists", "object is being deleted"),
        details=ABOUT_POD,
    ),
    Row("second bind", second_bind, 409, "Conflict", 'already assigned to node "n1"'),
    Row("bind of a dying Pod", bind_dying, 409, "Conflict", "is being deleted"),
    Row("bind of a gated Pod", bind_gated, 409, "Conflict", "schedulingGates"),
    Row("bind with another uid", binding_it(binding(uid="other")), 409, "Conflict", "Precondition failed: UID"),
    Row("bind with a stale version", bind_stale, 409, "Conflict", "Precondition failed: ResourceVersion"),
    Row("bind of a Pod that is gone", asking("POST", f"{POD}/binding", binding()), 404, "NotFound", details=ABOUT_POD),
    Row("bind of another name", binding_it(binding("other")), 400, "BadRequest", "name in URL"),
    Row("bind to no node", binding_it(binding(to="")), 500, None, "target.name"),
    Row("Pod that is gone, read", asking("GET", POD), 404, "NotFound", 'pods "web" not found', details=ABOUT_POD),
    Row("Pod that is gone, patched", asking("PATCH", POD, {}), 415),
    Row("Pod that is gone, replaced", asking("PUT", POD, pod()), 404, "NotFound", details=ABOUT_POD),
    Row("Pod that is gone, deleted", asking("DELETE", POD), 404, "NotFound", details=ABOUT_POD),
    Row(
        "delete with another uid",
        deleting({"preconditions": {"uid": "other"}}),
        *(409, "Conflict", "deleted and then recreated"),
        details={"name": "web", "kind": "Pod"},
    ),
    Row("delete with a stale version", deleting({"preconditions": {"resourceVersion": "1"}}), 409, "Conflict"),
    Row("delete with a wrong grace period", deleting({"gracePeriodSeconds": "soon"}), 400, "BadRequest"),
    Row(
        "create in a namespace that is not there",
        creating({"metadata": {"name": "web"}}, ELSEWHERE),
        *(404, "NotFound", 'namespaces "nowhere" not found'),
        details={"kind": "namespaces", "name": "nowhere"},
    ),
    Row(
        "create in a namespace that is being deleted",
        creating(pod(), arrange=terminating_namespace),
        *(403, "Forbidden", "because it is being terminated", [("metadata.namespace", "NamespaceTerminating")]),
    ),
    Row("create without a name", creating(NAMELESS), 422, "Invalid", "", [("metadata.name", "FieldValueRequired")]),
    Row("create with a bad name", creating(UPPER), 422, "Invalid", "", [("metadata.name", "FieldValueInvalid")]),
    Row("Pod without containers", creating(NO_CONTAINERS), 422, causes=[("spec.containers", "FieldValueRequired")]),
    Row("create with a version", creating({"metadata": {"name": "a", "resourceVersion": "7"}}), 500, None),
    Row("invalid JSON", creating('{"metadata": '), 400, "BadRequest"),
    Row("no body", asking("POST", PODS, ""), 400, "BadRequest"),
    Row("body that is no object", creating([]), 400, "BadRequest"),
    Row("body of another kind", creating(node("web")), 400, "BadRequest", "kind"),
    Row("body of another namespace", creating({"metadata": {"name": "a", "namespace": "other"}}), 400, "BadRequest"),
    Row("label that is no string", creating({"metadata": {"name": "a", "labels": {"a": 1}}}), 400, "BadRequest"),
    Row("annotation made a number", patching({"metadata": {"annotations": {"a": 1}}}), 422, "Invalid"),
    Row("priority class that is not there", creating(pod(priorityClassName="x")), 403, "Forbidden", "PriorityClass"),
    Row(
        "spec.nodeName set by a patch",
        patching({"spec": {"nodeName": "n1"}}),
        422,
        causes=[("spec", "FieldValueForbidden")],
    ),
    Row("PUT under another name", misnamed_put, 400, "BadRequest", "does not match the name on the URL"),
    Row(
        "lease replaced without version",
        unversioned_lease,
        422,
        causes=[("metadata.resourceVersion", "FieldValueInvalid")],
    ),
    Row("finalizer for a dying object", finalizer_on_dying, 422, causes=[("metadata.finalizers", FORBIDDEN)]),
    Row("custom object of 2 MB", creating(BIG, WIDGETS), 500, None, "etcdserver: request is too large"),
    Row("config map of 1.2 MB", creating(BIG_MAP, CONFIG_MAPS), 422, "Invalid", causes=[("[]", "FieldValueTooLong")]),
    Row("body of more than 3 MiB", creating(HUGE, CONFIG_MAPS), 413, "RequestEntityTooLarge"),
    Row("create with YAML", asking("POST", PODS, "kind: Pod"), 400, "BadRequest"),
    Row("unknown subresource", asking("GET", f"{POD}/nothing"), 404, "NotFound", "requested resource"),
    Row("method that is not served", asking("DELETE", "/api/v1/pods"), 405, "MethodNotAllowed"),
    Row("binding is only posted", asking("GET", f"{POD}/binding"), 405, "MethodNotAllowed"),
    Row(
        "unknown field selector",
        asking("GET", PODS, fieldSelector="spec.x=1"),
        400,
        "BadRequest",
        "not supported: spec.x",
    ),
    Row("bad label selector", asking("GET", PODS, labelSelector="a in b"), 400, "BadRequest"),
    Row("bad limit", asking("GET", PODS, limit="many"), 400, "BadRequest"),
    Row("bad continue token", asking("GET", PODS, limit="1", **{"continue": "?"}), 400, "BadRequest"),
    Row("version of the future", asking("GET", PODS, resourceVersion="999999"), 504, "Timeout", "Too large"),
    Row("watch list not enabled", asking("GET", PODS, watch="1", sendInitialEvents="true"), 422, "Invalid"),
    Row("dryRun that is none", asking("POST", PODS, pod(), dryRun="yes"), 422, "Invalid"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.case)
async def test_refusals(row: Row, server: EmbeddedAPIServer, http: Http) -> None:
    """A refusal is a Status with the code, reason, details and causes of the real server, and writes nothing."""
    reply = await row.ask(server, http)
    status = reply.json
    assert reply.status == row.code, status
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    assert status["code"] == row.code
    if row.reason is not None or row.code == 500:
        assert status.get("reason") == row.reason
    assert row.says in status["message"]
    if row.causes:
        assert reply.causes == row.causes
    for key, value in row.details.items():
        assert status["details"][key] == value
    record = server.audit[-1] if server.audit else None
    assert record is None or not record.applied


async def test_failed_json_patch_has_no_causes(server: EmbeddedAPIServer, http: Http) -> None:
    """A failed `test` can't be told from any other JSON Patch that fails."""
    server.put(pod())
    failed = await http.patch(POD, [{"op": "test", "path": "/metadata/name", "value": "x"}], JSON_PATCH)
    broken = await http.patch(POD, [{"op": "remove", "path": "/spec/x"}], JSON_PATCH)
    assert failed.json == broken.json
    assert failed.causes == []


@pytest.mark.parametrize(
    "path", ["/api/v1/namespaces/default/gadgets", "/apis/none.io/v1/gadgets", "/nothing", "/api/v1/x/y/z/a/b"]
)
async def test_a_path_that_is_not_served(path: str, http: Http) -> None:
    """It is answered in plain text, not by a Status."""
    reply = await http.get(path)
    assert reply.status == 404
    assert reply.headers["Content-Type"].startswith("text/plain")
    assert reply.text.strip() == "404 page not found"


async def test_patch_of_a_pod_that_is_gone(http: Http) -> None:
    for path in (POD, f"{POD}/status"):
        reply = await http.patch(path, {"status": {}}, STRATEGIC)
        assert (reply.status, reply.json["reason"]) == (404, "NotFound")


async def test_bind_to_a_node_that_does_not_exist(server: EmbeddedAPIServer, http: Http) -> None:
    """It is accepted, and answered by a Status."""
    server.put(pod())
    reply = await http.bind(binding(to="nowhere"))
    assert reply.status == 201
    assert (reply.json["kind"], reply.json["status"], reply.json["code"]) == ("Status", "Success", 201)


async def test_hint_to_a_node_that_does_not_exist(server: EmbeddedAPIServer, http: Http) -> None:
    """Only the name's syntax is checked."""
    server.put(pod(schedulingGates=[{"name": "example.com/wait"}]))
    reply = await http.patch(f"{POD}/status", hinted("nowhere"))
    assert reply.status == 200
    assert reply.json["status"]["nominatedNodeName"] == "nowhere"


async def test_writes_in_a_namespace_that_is_being_deleted(server: EmbeddedAPIServer, http: Http) -> None:
    """Patches and deletes still pass there."""
    server.put(pod())
    terminating_namespace(server)
    assert (await http.patch(POD, {"metadata": {"labels": {"a": "b"}}})).status == 200
    assert (await http.delete(POD)).status == 200
