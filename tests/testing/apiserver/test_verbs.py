"""What successful requests do to storage, and what they answer."""

from typing import Any

import pytest

from asyncdispatch.testing import EmbeddedAPIServer
from tests.testing.apiserver.support import (
    JSON_PATCH,
    LEASES,
    MERGE,
    POD,
    PODS,
    STRATEGIC,
    WIDGETS,
    Http,
    binding,
    node,
    pod,
)

STATUS = f"{POD}/status"
GATE = [{"name": "example.com/wait"}]


async def test_create_fills_in_what_is_the_servers(http: Http) -> None:
    reply = await http.post(PODS, pod() | {"status": {"phase": "Running"}})
    made = reply.json
    assert reply.status == 201
    metadata = made["metadata"]
    assert metadata["creationTimestamp"] == "2030-01-02T03:04:05Z"
    assert metadata["generation"] == 1
    assert metadata["resourceVersion"].isdigit()
    assert len(metadata["uid"]) == 36
    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert made["spec"]["priority"] == 0


async def test_create_takes_the_priority_of_its_class(http: Http) -> None:
    made = (await http.post(PODS, pod(priorityClassName="system-node-critical"))).json
    assert made["spec"]["priority"] == 2_000_001_000


async def test_create_of_a_gated_pod_says_so(http: Http) -> None:
    made = (await http.post(PODS, pod(schedulingGates=GATE))).json
    (condition,) = made["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")


async def test_generate_name(server: EmbeddedAPIServer, http: Http) -> None:
    body = pod()
    body["metadata"] = {"generateName": "job-"}
    names = {(await http.post(PODS, body)).json["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("job-") and len(name) == 9 for name in names)
    assert server.audit[-1].name in names


async def test_a_node_keeps_the_status_that_it_is_created_with(http: Http) -> None:
    assert (await http.post("/api/v1/nodes", node("n1"))).json["status"] == {"allocatable": {"pods": "9"}}


async def test_a_claim_begins_pending(http: Http) -> None:
    path = "/api/v1/namespaces/default/persistentvolumeclaims"
    assert (await http.post(path, {"metadata": {"name": "c"}})).json["status"] == {"phase": "Pending"}


async def test_a_namespace(server: EmbeddedAPIServer, http: Http) -> None:
    """Is Active, labelled with its name, and stays Terminating once deleted until somebody ends it."""
    made = (await http.post("/api/v1/namespaces", {"metadata": {"name": "n"}})).json
    assert (made["status"], made["spec"]) == ({"phase": "Active"}, {"finalizers": ["kubernetes"]})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n"}
    labelled = made | {"spec": {}, "metadata": {**made["metadata"], "labels": {"a": "b"}}}
    assert (await http.put("/api/v1/namespaces/n", labelled)).json["spec"] == made["spec"]
    assert (await http.delete("/api/v1/namespaces/n")).json["status"]["phase"] == "Terminating"
    server.finish("Namespace", "n")
    assert (await http.get("/api/v1/namespaces/n")).status == 404


async def test_the_default_priority_class(server: EmbeddedAPIServer, http: Http) -> None:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "usual"}}
    server.create(kind | {"value": 5, "globalDefault": True})
    made = (await http.post(PODS, pod())).json
    assert (made["spec"]["priority"], made["spec"]["priorityClassName"]) == (5, "usual")


async def test_nulls_are_absent_fields(http: Http) -> None:
    made = (await http.post(PODS, pod(nodeSelector=None) | {"status": None})).json
    assert "nodeSelector" not in made["spec"]


@pytest.mark.parametrize("verb", ["create", "patch", "replace", "delete", "bind"])
async def test_dry_run_changes_nothing(verb: str, server: EmbeddedAPIServer, http: Http) -> None:
    """It is answered as the real thing would be."""
    stored = None if verb == "create" else server.put(pod(nodeName="n1") if verb == "delete" else pod())
    version = server.resource_version
    replies: dict[str, Any] = {
        "create": lambda: http.post(PODS, pod(), dryRun="All"),
        "patch": lambda: http.patch(POD, {"metadata": {"labels": {"a": "b"}}}, dryRun="All"),
        "replace": lambda: http.put(POD, pod(labels={"a": "b"}), dryRun="All"),
        "delete": lambda: http.delete(POD, dryRun="All"),
        "bind": lambda: http.bind(binding(), dryRun="All"),
    }
    reply = await replies[verb]()
    assert reply.status == (201 if verb in ("create", "bind") else 200), reply.text
    assert server.resource_version == version
    assert server.find("Pod", "web") == stored
    assert (server.audit[-1].dry_run, server.audit[-1].applied) == (True, False)


# ---- update ----------------------------------------------------------------------------------------------------------


async def test_put_ignores_the_status_and_status_ignores_the_spec(server: EmbeddedAPIServer, http: Http) -> None:
    made = server.create(pod())
    made["status"]["phase"] = "Running"
    made["metadata"]["labels"] = {"a": "b"}
    stored = (await http.put(POD, made)).json
    assert stored["status"]["phase"] == "Pending"
    assert stored["metadata"]["labels"] == {"a": "b"}
    made = stored | {"status": {"phase": "Running"}, "spec": {**stored["spec"], "priority": 7}}
    stored = (await http.put(STATUS, made)).json
    assert stored["status"]["phase"] == "Running"
    assert stored["spec"]["priority"] == 0


async def test_status_patch_of_a_pod(server: EmbeddedAPIServer, http: Http) -> None:
    """Spec, deletionTimestamp and ownerReferences are reset in silence; labels and annotations are not."""
    before = server.create(pod())
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}
    patch = {
        "metadata": {
            "annotations": {"example.com/hint": "1"},
            "labels": {"a": "b"},
            "deletionTimestamp": "2030-01-01T00:00:00Z",
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "n9"},
        "status": {"nominatedNodeName": "n1"},
    }
    after = (await http.patch(STATUS, patch, STRATEGIC)).json
    assert after["spec"] == before["spec"]
    assert after["metadata"]["annotations"] == {"example.com/hint": "1"}
    assert after["metadata"]["labels"] == {"a": "b"}
    assert not {"deletionTimestamp", "ownerReferences"} & after["metadata"].keys()
    assert after["status"]["nominatedNodeName"] == "n1"
    assert after["metadata"]["generation"] == 1


async def test_main_patch_ignores_the_status(server: EmbeddedAPIServer, http: Http) -> None:
    server.create(pod())
    reply = await http.patch(POD, {"status": {"nominatedNodeName": "n1"}})
    assert reply.status == 200
    assert "nominatedNodeName" not in reply.json["status"]
    assert not server.audit[-1].applied


@pytest.mark.parametrize(
    ("content_type", "patch"),
    [
        (MERGE, {"metadata": {"labels": {"a": "b"}}}),
        (STRATEGIC, {"metadata": {"labels": {"a": "b"}}}),
        (JSON_PATCH, [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]),
    ],
)
async def test_a_patch_that_changes_nothing_keeps_the_version(
    content_type: str, patch: Any, server: EmbeddedAPIServer, http: Http
) -> None:
    server.put(pod())
    first = await http.patch(POD, patch, content_type)
    second = await http.patch(POD, patch, content_type)
    assert first.json == second.json
    assert [record.applied for record in server.audit] == [True, False]


async def test_a_put_that_changes_nothing_keeps_the_version(server: EmbeddedAPIServer, http: Http) -> None:
    made = server.create(pod())
    assert (await http.put(POD, made)).json == made


async def test_fences_that_hold_let_a_patch_pass(server: EmbeddedAPIServer, http: Http) -> None:
    metadata = server.create(pod())["metadata"]
    fence = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    reply = await http.patch(STATUS, {"metadata": fence, "status": {"message": "m"}})
    assert reply.status == 200
    assert int(reply.json["metadata"]["resourceVersion"]) > int(fence["resourceVersion"])


async def test_conditions_are_merged_by_type(server: EmbeddedAPIServer, http: Http) -> None:
    """By a strategic merge patch; a merge patch replaces the list."""
    server.put(pod() | {"status": {"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]}})
    patch = {"status": {"conditions": [{"type": "B", "status": "False"}, {"type": "C", "status": "True"}]}}
    merged = (await http.patch(STATUS, patch, STRATEGIC)).json["status"]["conditions"]
    assert [(c["type"], c["status"]) for c in merged] == [("A", "True"), ("B", "False"), ("C", "True")]
    replaced = (await http.patch(STATUS, patch, MERGE)).json["status"]["conditions"]
    assert [c["type"] for c in replaced] == ["B", "C"]


async def test_gates_may_be_lifted_and_not_added(server: EmbeddedAPIServer, http: Http) -> None:
    server.create(pod(schedulingGates=GATE))
    lifted = await http.patch(POD, {"spec": {"schedulingGates": None}})
    assert "schedulingGates" not in lifted.json["spec"]
    assert lifted.json["metadata"]["generation"] == 2
    again = await http.patch(POD, {"spec": {"schedulingGates": GATE}})
    assert again.causes == [("spec.schedulingGates", "FieldValueForbidden")]


async def test_custom_status_takes_nothing_but_the_status(server: EmbeddedAPIServer, http: Http) -> None:
    server.create({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}})
    patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"size": 2}, "status": {"ready": True}}
    after = (await http.patch(f"{WIDGETS}/w/status", patch)).json
    assert (after["spec"], after["status"], "labels" in after["metadata"]) == ({"size": 1}, {"ready": True}, False)
    after = (await http.patch(f"{WIDGETS}/w", patch | {"status": {"ready": False}})).json
    assert (after["spec"], after["status"], after["metadata"]["generation"]) == ({"size": 2}, {"ready": True}, 2)
    stale = await http.patch(f"{WIDGETS}/w/status", {"metadata": {"resourceVersion": "1"}, "status": {}})
    assert stale.status == 409


async def test_a_lease_is_created_by_a_put(http: Http) -> None:
    body = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
    reply = await http.put(f"{LEASES}/l", body)
    assert reply.status == 201
    fenced = body | {"metadata": reply.json["metadata"], "spec": {"holderIdentity": "b"}}
    assert (await http.put(f"{LEASES}/l", fenced)).status == 200
    assert (await http.put(f"{LEASES}/l", fenced)).status == 409


# ---- bind ------------------------------------------------------------------------------------------------------------


async def test_bind(server: EmbeddedAPIServer, http: Http) -> None:
    """Sets the node, clears the hint, carries labels and annotations over, and marks the Pod as scheduled."""
    server.create(pod())
    await http.patch(STATUS, {"status": {"nominatedNodeName": "n2"}})
    metadata = server.get("Pod", "web")["metadata"]
    fence = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    body = binding(**fence, annotations={"example.com/by": "us"}, labels={"zone": "z1"})
    assert (await http.bind(body)).status == 201
    after = server.get("Pod", "web")
    assert after["spec"]["nodeName"] == "n1"
    assert "nominatedNodeName" not in after["status"]
    assert after["metadata"]["annotations"] == {"example.com/by": "us"}
    assert after["metadata"]["labels"] == {"zone": "z1"}
    assert after["metadata"]["generation"] == 1
    (condition,) = after["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    assert server.audit[-1].verb == "bind"
    assert server.audit[-1].resource_version == after["metadata"]["resourceVersion"]


async def test_bind_keeps_other_conditions(server: EmbeddedAPIServer, http: Http) -> None:
    """Its own replaces the one of its type, and keeps the time of a transition that is none."""
    old = "2020-01-01T00:00:00Z"
    other = {"type": "A", "status": "True"}
    for status, moved in (("False", "2030-01-02T03:04:05Z"), ("True", old)):
        scheduled = {"type": "PodScheduled", "status": status, "reason": "Unschedulable", "lastTransitionTime": old}
        server.put(pod() | {"status": {"conditions": [scheduled, other]}})
        await http.bind(binding())
        after = server.get("Pod", "web")["status"]["conditions"]
        assert after[1] == other
        assert (after[0]["status"], after[0]["lastTransitionTime"], "reason" in after[0]) == ("True", moved, False)


async def test_bind_by_the_collection_of_bindings(server: EmbeddedAPIServer, http: Http) -> None:
    server.create(pod())
    assert (await http.post("/api/v1/namespaces/default/bindings", binding())).status == 201
    assert server.get("Pod", "web")["spec"]["nodeName"] == "n1"


async def test_a_hint_may_be_cleared_once_bound(server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod(nodeName="n1") | {"status": {"nominatedNodeName": "n2"}})
    reply = await http.patch(STATUS, {"status": {"nominatedNodeName": None}})
    assert (reply.status, reply.json["status"]) == (200, {})


# ---- delete ----------------------------------------------------------------------------------------------------------


async def test_graceful_deletion(server: EmbeddedAPIServer, http: Http) -> None:
    """A Pod with a node stays, dying, until it is deleted with grace period 0."""
    uid = server.put(pod(nodeName="n1"))["metadata"]["uid"]
    reply = await http.delete(POD)
    assert (reply.status, reply.json["kind"]) == (200, "Pod")
    assert reply.json["metadata"]["deletionTimestamp"] == "2030-01-02T03:04:35Z"
    assert reply.json["metadata"]["deletionGracePeriodSeconds"] == 30
    again = await http.delete(POD)
    assert again.json == reply.json
    ended = await http.delete(POD, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
    assert (ended.status, ended.json["metadata"]["uid"]) == (200, uid)
    assert (await http.delete(POD)).status == 404
    assert [record.applied for record in server.audit] == [True, False, True, False]


async def test_a_shorter_grace_period_brings_the_end_forward(server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod(nodeName="n1"))
    await http.delete(POD)
    assert (await http.delete(POD, gracePeriodSeconds="5")).json["metadata"]["deletionGracePeriodSeconds"] == 5


@pytest.mark.parametrize("state", ["unbound", "finished"])
async def test_some_pods_are_deleted_at_once(state: str, server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod() if state == "unbound" else pod(nodeName="n1") | {"status": {"phase": "Succeeded"}})
    assert (await http.delete(POD)).json["kind"] == "Pod"
    assert server.find("Pod", "web") is None


async def test_other_kinds_answer_a_status_when_they_are_gone(server: EmbeddedAPIServer, http: Http) -> None:
    uid = server.put(node("n1"))["metadata"]["uid"]
    reply = (await http.delete("/api/v1/nodes/n1")).json
    assert (reply["kind"], reply["status"]) == ("Status", "Success")
    assert reply["details"] == {"name": "n1", "kind": "nodes", "uid": uid}


async def test_finalizers_hold_an_object(server: EmbeddedAPIServer, http: Http) -> None:
    body = node("n1")
    body["metadata"]["finalizers"] = ["example.com/a"]
    server.put(body)
    held = (await http.delete("/api/v1/nodes/n1")).json
    assert held["metadata"]["deletionTimestamp"] == "2030-01-02T03:04:05Z"
    last = await http.patch("/api/v1/nodes/n1", {"metadata": {"finalizers": []}})
    assert last.status == 200
    assert server.find("Node", "n1") is None


async def test_recreation_gives_a_new_uid(server: EmbeddedAPIServer, http: Http) -> None:
    first = (await http.post(PODS, pod())).json
    await http.delete(POD)
    second = (await http.post(PODS, pod())).json
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    stale = await http.bind(binding(uid=first["metadata"]["uid"]))
    assert stale.status == 409


async def test_delete_of_a_collection(server: EmbeddedAPIServer, http: Http) -> None:
    for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
        server.put(pod(name, labels={"app": label}))
    reply = await http.delete(PODS, labelSelector="app=x")
    assert [item["metadata"]["name"] for item in reply.json["items"]] == ["a", "b"]
    assert [key[2] for key in server.objects if key[0] == "Pod"] == ["c"]


# ---- list ------------------------------------------------------------------------------------------------------------


async def names(http: Http, path: str = "/api/v1/pods", **query: str) -> list[str]:
    reply = await http.get(path, **query)
    assert reply.status == 200, reply.text
    return [item["metadata"]["name"] for item in reply.json["items"]]


async def test_list(server: EmbeddedAPIServer, http: Http) -> None:
    """Items come by name, without kind, under the version of the whole store."""
    for name in ("b", "a"):
        server.put(pod(name))
    server.put(pod("c") | {"metadata": {"name": "c", "namespace": "other"}})
    reply = (await http.get(PODS)).json
    assert (reply["kind"], reply["apiVersion"]) == ("PodList", "v1")
    assert reply["metadata"] == {"resourceVersion": server.resource_version}
    assert [item["metadata"]["name"] for item in reply["items"]] == ["a", "b"]
    assert not any("kind" in item for item in reply["items"])
    assert await names(http) == ["a", "b", "c"]


async def test_items_of_custom_lists_have_a_kind(server: EmbeddedAPIServer, http: Http) -> None:
    server.put({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}})
    assert (await http.get(WIDGETS)).json["items"][0]["kind"] == "Widget"


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("metadata.name=a", ["a"]),
        ("metadata.name!=a", ["b", "c"]),
        ("metadata.namespace=default", ["a", "b", "c"]),
        ("spec.nodeName=", ["c"]),
        ("spec.nodeName=n1,status.phase=Running", ["a"]),
        ("spec.nodeName==n1", ["a", "b"]),
        ("status.nominatedNodeName=n2", ["c"]),
        ("spec.schedulerName=mine", ["b"]),
    ],
)
async def test_field_selectors(selector: str, found: list[str], server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod("a", nodeName="n1") | {"status": {"phase": "Running"}})
    server.put(pod("b", nodeName="n1", schedulerName="mine") | {"status": {"phase": "Pending"}})
    server.put(pod("c") | {"status": {"nominatedNodeName": "n2"}})
    assert await names(http, fieldSelector=selector) == found


OLD_EVENTS = "/api/v1/namespaces/default/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
SAME_IN_BOTH = {
    "metadata": {"name": "e", "namespace": "default"},
    "reason": "Scheduled",
    "type": "Normal",
    "action": "Binding",
    "eventTime": "2030-01-01T00:00:00.000000Z",
    "reportingInstance": "me-1",
    "series": {"count": 2, "lastObservedTime": "2030-01-01T00:00:01.000000Z"},
    "related": {"kind": "Node", "name": "n1"},
}
OLD_EVENT = SAME_IN_BOTH | {
    "involvedObject": {"kind": "Pod", "name": "web"},
    "message": "to n1",
    "reportingComponent": "me",
}
OLD_FIELDS = {
    "source": {"component": "me"},
    "firstTimestamp": "2030-01-01T00:00:00Z",
    "lastTimestamp": "2030-01-01T00:00:01Z",
    "count": 2,
}
NEW_EVENT = SAME_IN_BOTH | {
    "regarding": {"kind": "Pod", "name": "web"},
    "note": "to n1",
    "reportingController": "me",
}
DEPRECATED_FIELDS = {
    "deprecatedSource": {"component": "me"},
    "deprecatedFirstTimestamp": "2030-01-01T00:00:00Z",
    "deprecatedLastTimestamp": "2030-01-01T00:00:01Z",
    "deprecatedCount": 2,
}


@pytest.mark.parametrize(
    ("path", "event", "other_path", "other_event", "about", "version"),
    [
        (
            *(OLD_EVENTS, OLD_EVENT | OLD_FIELDS, NEW_EVENTS, NEW_EVENT | DEPRECATED_FIELDS),
            *("regarding.name=web,reportingController=me", "events.k8s.io/v1"),
        ),
        (NEW_EVENTS, NEW_EVENT, OLD_EVENTS, OLD_EVENT, "involvedObject.name=web,reportingComponent=me", "v1"),
    ],
)
async def test_events_of_both_groups_are_the_same(
    path: str, event: Any, other_path: str, other_event: Any, about: str, version: str, http: Http
) -> None:
    """What is written as one is read, listed, watched, changed and deleted as the other, which has its own names."""
    async with http.watch(other_path, fieldSelector=about) as seen:
        made = (await http.post(path, event)).json
        read = (await http.get(f"{other_path}/e")).json
        assert read == other_event | {"apiVersion": version, "kind": "Event", "metadata": made["metadata"]}
        assert await seen.next() == ("ADDED", read)
        assert (await http.post(other_path, other_event)).status == 409
        changed = (await http.patch(f"{other_path}/e", {"reason": "Changed"})).json
        assert await seen.next() == ("MODIFIED", changed)
        assert (await http.get(f"{path}/e")).json == made | {"reason": "Changed", "metadata": changed["metadata"]}
        assert await names(http, other_path, fieldSelector=about) == ["e"]
        assert (await http.delete(f"{path}/e")).status == 200
        kind, last = await seen.next()
        assert (kind, last["reason"], last["apiVersion"]) == ("DELETED", "Changed", version)
        assert await names(http, path) == await names(http, other_path) == []


async def test_events_of_both_groups_end_with_their_namespace(server: EmbeddedAPIServer) -> None:
    server.put({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "old"}})
    server.delete("Namespace", "old")
    server.run_controllers()
    assert server.find("Namespace", "old") is None
    assert server.objects.of("Event") == server.objects.of("Event.events.k8s.io") == []


async def test_events_are_found_by_what_they_are_about(server: EmbeddedAPIServer, http: Http) -> None:
    for name, about in (("e1", "web"), ("e2", "db")):
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}}
        server.put(event | {"involvedObject": {"kind": "Pod", "name": about}, "reason": "Scheduled"})
    path = "/api/v1/namespaces/default/events"
    assert await names(http, path, fieldSelector="involvedObject.name=web,involvedObject.kind=Pod") == ["e1"]
    assert await names(http, path, fieldSelector="reason=Scheduled") == ["e1", "e2"]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("app=x", ["a"]),
        ("app==x", ["a"]),
        ("app!=x", ["b", "c"]),
        ("app in (x, y)", ["a", "b"]),
        ("app notin (x)", ["b", "c"]),
        ("app", ["a", "b"]),
        ("!app", ["c"]),
        ("app in (x,y),tier=web", ["b"]),
        (" app = x ", ["a"]),
    ],
)
async def test_label_selectors(selector: str, found: list[str], server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod("a", labels={"app": "x"}))
    server.put(pod("b", labels={"app": "y", "tier": "web"}))
    server.put(pod("c"))
    assert await names(http, labelSelector=selector) == found


async def test_pages_show_one_state(server: EmbeddedAPIServer, http: Http) -> None:
    """What is written between two pages is not seen; the last page has no token."""
    for name in "abcde":
        server.put(pod(name))
    first = (await http.get(PODS, limit="2")).json
    assert first["metadata"]["remainingItemCount"] == 3
    server.delete("Pod", "d")
    server.put(pod("f"))
    second = (await http.get(PODS, limit="2", **{"continue": first["metadata"]["continue"]})).json
    third = (await http.get(PODS, limit="2", **{"continue": second["metadata"]["continue"]})).json
    pages = [[item["metadata"]["name"] for item in page["items"]] for page in (first, second, third)]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert {page["metadata"]["resourceVersion"] for page in (first, second, third)} == {
        first["metadata"]["resourceVersion"]
    }
    assert "continue" not in third["metadata"]


async def test_an_expired_token(server: EmbeddedAPIServer, http: Http) -> None:
    """410, with a token to go on inconsistently."""
    for name in "abc":
        server.put(pod(name))
    first = (await http.get(PODS, limit="1")).json
    server.compact()
    gone = await http.get(PODS, limit="1", **{"continue": first["metadata"]["continue"]})
    assert (gone.status, gone.json["reason"]) == (410, "Expired")
    server.put(pod("aa"))
    assert await names(http, PODS, **{"continue": gone.json["metadata"]["continue"]}) == ["aa", "b", "c"]


async def test_exact_lists_are_only_of_now(server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod())
    exact = {"resourceVersionMatch": "Exact"}
    assert (await http.get(PODS, resourceVersion=server.resource_version, **exact)).status == 200
    assert (await http.get(PODS, resourceVersion="1", **exact)).status == 410


# ---- about the server ------------------------------------------------------------------------------------------------


async def test_discovery(server: EmbeddedAPIServer, http: Http) -> None:
    groups = {group["name"] for group in (await http.get("/apis")).json["groups"]}
    assert {"coordination.k8s.io", "scheduling.k8s.io", "batch", "example.com"} <= groups
    listed = {entry["name"]: entry for entry in (await http.get("/api/v1")).json["resources"]}
    assert listed["pods"]["kind"] == "Pod"
    assert {"pods/status", "pods/binding"} <= listed.keys()
    assert (await http.get("/apis/example.com/v1")).json["resources"][0]["namespaced"] is True
    assert (await http.get("/api")).json["versions"] == ["v1"]
    assert (await http.get("/version")).json["gitVersion"].startswith("v1.")
    assert (await http.get("/readyz")).text == "ok"
    assert (await http.post("/version", {})).status == 405
