"""What a request means, row by row: pure, no server."""

from typing import Any

import pytest

from asyncdispatch import Effect, ObjectRef
from asyncdispatch.kubernetes._requests import Operation, is_stream, kind_known, operation_of, place_of, snake

POD = "/api/v1/namespaces/ns/pods/p"
READ, WRITE, CREATE = Effect.READ, Effect.IDEMPOTENT_WRITE, Effect.CREATE


def read(method: str, path: str, body: Any = None, kind: str | None = None, **query: str) -> Operation:
    place = place_of(path)
    assert place is not None
    found = kind_known(place, body) or kind
    assert found is not None
    return operation_of(method, place, found, query, body)


ROWS: list[tuple[str, str, Any, str, Effect, str, str | None, bool]] = [
    # method, path, body, call type, effect, name, uid, repeatable
    ("GET", POD, None, "pod_read", READ, "p", None, True),
    ("GET", f"{POD}/status", None, "pod_status_read", READ, "p", None, True),
    ("GET", f"{POD}/log", None, "pod_log_read", READ, "p", None, True),
    ("GET", "/api/v1/namespaces/ns/pods", None, "pod_list", READ, "*", None, True),
    ("GET", "/api/v1/pods", None, "pod_list", READ, "*", None, True),
    ("POST", "/api/v1/namespaces/ns/pods", {"metadata": {"name": "p"}}, "pod_create", CREATE, "p", None, True),
    (
        "POST",
        "/api/v1/namespaces/ns/pods",
        {"metadata": {"generateName": "p-"}},
        "pod_create",
        CREATE,
        "p-*",
        None,
        True,
    ),
    ("POST", f"{POD}/binding", {"metadata": {"uid": "u"}}, "pod_binding", WRITE, "p", "u", True),
    ("POST", "/api/v1/namespaces/ns/bindings", {"metadata": {"name": "p"}}, "pod_binding", WRITE, "p", None, True),
    ("POST", f"{POD}/eviction", {"metadata": {"name": "p"}}, "pod_eviction", WRITE, "p", None, False),
    (
        "POST",
        f"{POD}/eviction",
        {"deleteOptions": {"preconditions": {"uid": "u"}}},
        "pod_eviction",
        WRITE,
        "p",
        "u",
        True,
    ),
    ("PATCH", f"{POD}/status", {"metadata": {"uid": "u"}}, "pod_status_patch", WRITE, "p", "u", True),
    ("PATCH", POD, {"metadata": {"labels": {}}}, "pod_patch", WRITE, "p", None, True),
    ("PATCH", POD, [{"op": "add", "path": "/metadata/labels/a", "value": "b"}], "pod_patch", WRITE, "p", None, True),
    ("PATCH", POD, [{"op": "add", "path": "/spec/tolerations/-", "value": {}}], "pod_patch", WRITE, "p", None, False),
    ("PATCH", POD, [{"op": "remove", "path": "/spec/tolerations/0"}], "pod_patch", WRITE, "p", None, False),
    ("PATCH", POD, [{"op": "move", "from": "/a", "path": "/b"}], "pod_patch", WRITE, "p", None, False),
    ("PATCH", POD, [{"op": "test", "path": "/metadata/uid", "value": "u"}], "pod_patch", WRITE, "p", "u", True),
    ("PUT", POD, {"metadata": {"name": "p", "uid": "u"}}, "pod_replace", WRITE, "p", "u", True),
    ("PUT", f"{POD}/restart", {}, "pod_restart_replace", WRITE, "p", None, False),
    ("DELETE", POD, None, "pod_delete", WRITE, "p", None, False),
    ("DELETE", POD, {"preconditions": {"uid": "u"}}, "pod_delete", WRITE, "p", "u", True),
    ("DELETE", "/api/v1/namespaces/ns/pods", None, "pod_delete_collection", WRITE, "*", None, False),
    ("PUT", "/api/v1/namespaces/ns/finalize", {}, "namespace_finalize_replace", WRITE, "ns", None, True),
    ("PATCH", "/api/v1/nodes/n/status", {}, "node_status_patch", WRITE, "n", None, True),
    (
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {},
        "subject_access_review_create",
        WRITE,
        "*",
        None,
        True,
    ),
    ("POST", "/api/v1/namespaces/ns/serviceaccounts/a/token", {}, "service_account_token", WRITE, "a", None, True),
    ("GET", "/apis/storage.k8s.io/v1/csinodes/n", None, "csi_node_read", READ, "n", None, True),
    ("GET", "/api/v1/namespaces/ns/pods/a%2Fb", None, "pod_read", READ, "a/b", None, True),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "call_type", "effect", "name", "uid", "repeatable"),
    ROWS,
    ids=[f"{row[3]}-{number}" for number, row in enumerate(ROWS)],
)
def test_requests(
    method: str, path: str, body: Any, call_type: str, effect: Effect, name: str, uid: str | None, repeatable: bool
) -> None:
    """Type, effect, target and fence come from the request; what can't be repeated in doubt is known."""
    found = read(method, path, body)
    assert (found.call_type, found.effect, found.target.name, found.target.uid) == (call_type, effect, name, uid)
    assert found.repeatable is repeatable


def test_versions() -> None:
    """A read's version is in its query, a write's in its body, its preconditions or its tests."""
    meta = {"metadata": {"resourceVersion": "7"}}
    assert read("GET", POD, resourceVersion="7").version == "7"
    assert read("PUT", POD, meta).version == "7"
    assert read("PATCH", POD, meta).version == "7"
    assert read("POST", f"{POD}/binding", meta).version == "7"
    assert read("DELETE", POD, {"preconditions": {"resourceVersion": "7"}}).version == "7"
    fenced = read("PATCH", POD, [{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}, {"op": "move"}])
    assert fenced.version == "7"
    assert fenced.repeatable
    assert (
        read("POST", "/api/v1/namespaces/ns/pods", {"metadata": {"name": "p", "resourceVersion": "7"}}).version is None
    )


def test_targets() -> None:
    """Group and version from the path, kind from its plural, namespace where there is one."""
    assert read("GET", POD).target == ObjectRef("v1", "Pod", "ns", "p")
    assert read("GET", "/apis/batch/v1/namespaces/ns/jobs/j").target == ObjectRef("batch/v1", "Job", "ns", "j")
    assert read("GET", "/api/v1/namespaces/ns").target == ObjectRef("v1", "Namespace", None, "ns")
    assert read("GET", "/api/v1/namespaces/ns/status").target == ObjectRef("v1", "Namespace", None, "ns")


def test_custom_kinds() -> None:
    """The body names the kind of a custom resource; without one it has to be asked for."""
    path = "/apis/example.com/v1/namespaces/ns/widgets"
    place = place_of(path)
    assert place is not None
    assert kind_known(place, {"apiVersion": "example.com/v1", "kind": "Widget"}) == "Widget"
    assert kind_known(place, {"apiVersion": "v1", "kind": "DeleteOptions"}) is None
    assert kind_known(place, None) is None
    assert read("PATCH", f"{path}/w/status", {}, "Widget").call_type == "widget_status_patch"


def test_dry_run() -> None:
    """A dry run changes nothing: it is a read."""
    assert read("POST", f"{POD}/binding", {}, dryRun="All").effect is READ
    assert read("DELETE", POD, dryRun="All").effect is READ


def test_binding_names_its_node() -> None:
    """So that it ends when the node is forgotten."""
    assert read("POST", f"{POD}/binding", {"target": {"name": "n1"}}).node == "n1"
    assert read("POST", f"{POD}/binding", {}).node is None


@pytest.mark.parametrize(
    ("path", "query", "stream"),
    [
        (POD, {}, False),
        ("/api/v1/pods", {"watch": "True"}, True),
        ("/api/v1/pods", {"watch": "false"}, False),
        (f"{POD}/log", {"follow": "true"}, True),
        (f"{POD}/log", {}, False),
        (f"{POD}/exec", {}, True),
        (f"{POD}/attach", {}, True),
        (f"{POD}/portforward", {}, True),
        (f"{POD}/proxy", {}, True),
        (f"{POD}/proxy/a/b", {}, True),
        ("/logs/kubelet.log", {}, True),
        ("/version/", {}, False),
    ],
)
def test_streams(path: str, query: dict[str, str], stream: bool) -> None:
    """What has no single answer passes straight through."""
    assert is_stream(path, place_of(path), query) is stream


@pytest.mark.parametrize(
    "path", ["/version/", "/api/", "/api/v1", "/apis/apps/v1", "/", "/openid/v1/jwks", "/api/v1//x"]
)
def test_no_resource(path: str) -> None:
    """Paths of the server itself name no object."""
    assert place_of(path) is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Pod", "pod"),
        ("PersistentVolumeClaim", "persistent_volume_claim"),
        ("CSINode", "csi_node"),
        ("APIService", "api_service"),
    ],
)
def test_names(kind: str, name: str) -> None:
    """Kinds in words."""
    assert snake(kind) == name
