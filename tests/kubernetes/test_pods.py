"""Binding a Pod, and patching its status: what is sent, what it changes, and what became of it."""

import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes_asyncio.client import V1Node, V1ObjectMeta, V1Pod, V1PodCondition, V1PodStatus

from asyncdispatch.calls import Again, Applied, Effect, ObjectRef, Refused, VerdictKind
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import KEEP, ApiError, Cluster, PodStatusPatch
from tests.kubernetes.support import FakeClient, attempt_at, pod_dict, tried

UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
OFFLINE: Any = Cluster(FakeClient())


def refusal(result) -> ApiError:
    assert isinstance(result, Refused)
    assert isinstance(result.error, ApiError)
    return result.error


# ---- binding ---------------------------------------------------------------------------------------------------------


def test_a_bind_as_a_value():
    """Its fields by default and by the Pod; equal binds are equal; the repr tells what matters."""
    bind = OFFLINE.bind(pod_dict(priority=2_000_000_000), "n1")
    assert bind == OFFLINE.bind(pod_dict(priority=2_000_000_000), V1Node(metadata=V1ObjectMeta(name="n1")))
    assert hash(bind) == hash(OFFLINE.bind(pod_dict(priority=2_000_000_000), "n1"))
    assert bind != OFFLINE.bind(pod_dict(priority=2_000_000_000), "n2")
    assert (bind.call_type, bind.effect, bind.awaits_prerequisites) == ("pod_binding", Effect.IDEMPOTENT_WRITE, True)
    assert (bind.priority, bind.version, bind.scope) == (2_000_000_000, None, OFFLINE)
    assert bind.target == ObjectRef("v1", "Pod", "ns", "p", "u1")
    assert bind.depends_on == (ObjectRef("v1", "Node", None, "n1"),)
    assert repr(bind) == "<PodBinding Pod ns/p (u1) to n1>"
    assert not bind.is_noop()


def test_call_fields_are_passed_on():
    """Also those that the Pod would give."""
    claim = ObjectRef("v1", "PersistentVolumeClaim", "ns", "c")
    bind = OFFLINE.bind(pod_dict(), "n1", priority=7, flow="plugin", timeout=3, depends_on=(claim,), scope="mine")
    assert (bind.priority, bind.flow, bind.timeout, bind.scope) == (7, "plugin", 3, "mine")
    assert bind.depends_on == (claim, ObjectRef("v1", "Node", None, "n1"))
    with pytest.raises(TypeError, match="no_such_field"):
        OFFLINE.bind(pod_dict(), "n1", no_such_field=1)


async def test_a_bind_is_fenced_by_uid(server, cluster):
    """The body carries the uid, and annotations reach the Pod; the value is the node's name."""
    pod = server.create(pod_dict(uid=None, version=None))
    bind = cluster.bind(pod, "n1", annotations={"example.com/by": "us"})
    assert await bind.execute(attempt_at(bind)) == "n1"
    body = server.audit[0].body
    assert body["metadata"] == {
        "name": "p",
        "namespace": "ns",
        "uid": pod["metadata"]["uid"],
        "annotations": {"example.com/by": "us"},
    }
    assert body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    assert server.get(pod)["spec"]["nodeName"] == "n1"
    assert server.get(pod)["metadata"]["annotations"] == {"example.com/by": "us"}


async def test_a_bind_fenced_by_version_meets_the_exact_state(server, cluster):
    """L17: any change since the decision refuses it, and the read says so."""
    pod = server.create(pod_dict(uid=None, version=None))
    bind = cluster.bind(pod, "n1", fence="version")
    assert bind.version == pod["metadata"]["resourceVersion"]
    server.patch_object(pod, {"metadata": {"labels": {"a": "b"}}})
    error = refusal(await tried(bind))
    assert "decided on version" in str(error)
    assert not error.gone
    assert "nodeName" not in server.get(pod)["spec"]
    assert await tried(cluster.bind(server.get(pod), "n1", fence="version")) == "n1"


async def test_a_pod_bound_elsewhere(server, cluster):
    """G5: 409, one read, and the answer names the other node. Not gone, not retried."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.bind(pod, "n5")
    error = refusal(await tried(cluster.bind(pod, "n1")))
    assert "bound elsewhere: n5" in str(error)
    assert not error.gone
    assert [record.method for record in server.audit] == ["POST", "GET"]
    assert [record.audit_id for record in server.audit] == ["7-1", "7-1"]


async def test_a_bind_that_was_ours_already(server, cluster):
    """The second of two equal binds meets the first one's success."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.bind(pod, "n1")
    assert await tried(cluster.bind(pod, "n1")) == Applied("n1")


@pytest.mark.parametrize("lose", ["drop", "reset", "fail"])
@pytest.mark.parametrize("applied", [True, False])
async def test_a_bind_in_doubt_is_read(server, cluster, lose, applied):
    """A3: an answer lost after the bind was stored is a success; one lost before is sent again."""
    pod = server.create(pod_dict(uid=None, version=None))
    fault = {"message": "etcdserver: request timed out", "reason": ""} if lose == "fail" else {}
    getattr(server, lose)(applied=applied, path="*/binding", **fault)
    bind = cluster.bind(pod, "n1")
    assert await tried(bind) == (Applied("n1") if applied else Again(bind))
    assert [record.method for record in server.audit] == ["POST", "GET"]


async def test_a_pod_that_is_gone(server, cluster):
    """404 that names it; and after a lost answer, the same by reading."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.finish(pod)
    _, verdict = await tried(cluster.bind(pod, "n1"))
    assert verdict.kind is VerdictKind.GONE
    server.drop(method="POST")
    error = refusal(await tried(cluster.bind(pod, "n1")))
    assert error.gone
    assert "not there" in str(error)


async def test_a_pod_recreated_under_its_name(server, cluster):
    """L17: the uid keeps the bind off the new Pod, and its end is GONE."""
    pod = server.create(pod_dict(uid=None, version=None))
    new = server.recreate(pod)
    error = refusal(await tried(cluster.bind(pod, "n1")))
    assert error.gone
    assert new["metadata"]["uid"] in str(error)
    assert "nodeName" not in server.get(pod)["spec"]


async def test_a_pod_that_is_being_deleted(server, cluster):
    """409 by the server; refused by what the Pod says."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.patch_object(pod, {"metadata": {"finalizers": ["example.com/hold"]}})
    server.delete(pod)
    error = refusal(await tried(cluster.bind(pod, "n1")))
    assert "being deleted" in str(error)
    assert not error.gone


async def test_a_pod_with_closed_gates(server, cluster):
    """The server's 409 would come again and again: the bind is refused, and says by which gates."""
    pod = server.create(pod_dict(uid=None, version=None, schedulingGates=[{"name": "a"}, {"name": "b"}]))
    error = refusal(await tried(cluster.bind(pod, "n1")))
    assert "gates are closed: a, b" in str(error)


async def test_a_reconcile_that_fails_is_an_error_of_its_own(server, cluster):
    """L14: it is classified as a read, so nothing is thought to be applied by it; a path not served is not GONE."""
    pod = server.create(pod_dict(uid=None, version=None))
    bind = cluster.bind(pod, "n1")
    lost = TimeoutError()
    for fault, kind in (
        ({"status": 503}, VerdictKind.RETRY),
        ({"status": 404, "body": "404 page not found"}, VerdictKind.LATER),
    ):
        server.fail(method="GET", **fault)
        attempt = attempt_at(bind)
        with pytest.raises(ApiError) as caught:
            await bind.reconcile(attempt, lost)
        verdict = bind.classify(attempt, caught.value)
        assert verdict is not None
        assert (verdict.kind, verdict.maybe_applied) == (kind, False)
    server.fail(method="GET", status=200, body={"hello": "proxy"})
    with pytest.raises(ApiError, match="no object"):
        await bind.reconcile(attempt_at(bind), lost)


async def test_applying_a_bind_is_what_the_server_does(server, cluster):
    """L18: node, cleared hint, condition and annotations, on a copy; on the server's own Pod it changes nothing."""
    pod = server.create(pod_dict(uid=None, version=None))
    pod = server.patch_object(pod, {"status": {"nominatedNodeName": "n2", "conditions": [UNSCHEDULABLE]}})
    before = copy.deepcopy(pod)
    bind = cluster.bind(pod, "n1", annotations={"a": "1"})
    shown = bind.apply(pod)
    assert pod == before
    await bind.execute(attempt_at(bind))
    stored = server.get(pod)
    for path in (("spec",), ("metadata", "annotations"), ("status", "nominatedNodeName")):
        assert at(shown, path) == at(stored, path)
    condition = stored["status"]["conditions"][0]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    assert shown["status"]["conditions"][0]["status"] == "True"
    assert bind.apply(stored) is stored


def at(obj, path):
    for key in path:
        obj = obj.get(key) if obj else None
    return obj


def test_applying_a_bind_where_it_cannot_be():
    """A Pod bound elsewhere, dying, of another uid, or not there, stays as it is."""
    bind = OFFLINE.bind(pod_dict(), "n1")
    dying = pod_dict()
    dying["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for pod in (pod_dict(nodeName="n5"), dying, pod_dict(uid="u2"), None):
        before = copy.deepcopy(pod)
        assert bind.apply(pod) is pod
        assert pod == before


# ---- status ----------------------------------------------------------------------------------------------------------


async def test_a_status_patch_is_fenced_and_returns_the_pod(server, cluster):
    """One strategic merge patch with the uid; conditions of others stay."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.patch_object(pod, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
    patch = cluster.patch_status(pod, conditions=[UNSCHEDULABLE], nominated_node="n1", fence="uid")
    result = await patch.execute(attempt_at(patch))
    record = server.audit[0]
    assert (record.method, record.path) == ("PATCH", "/api/v1/namespaces/ns/pods/p/status")
    assert record.content_type == "application/strategic-merge-patch+json"
    assert record.body["metadata"] == {"uid": pod["metadata"]["uid"]}
    assert {condition["type"] for condition in result["status"]["conditions"]} == {"Ready", "PodScheduled"}
    assert result["status"]["nominatedNodeName"] == "n1"
    assert result == server.get(pod)
    cleared = cluster.patch_status(result, nominated_node=None)
    assert "nominatedNodeName" not in (await cleared.execute(attempt_at(cleared)))["status"]


def test_a_status_patch_that_a_bound_pod_must_not_show_is_fenced_by_its_base():
    """By default: so that it can't land behind a bind (E5). What else a Pod shows needs no such fence."""
    ready = [{"type": "Ready", "status": "True"}]
    scheduled = [{"type": "PodScheduled", "status": "True"}]

    def fences(pod, **what):
        patch = OFFLINE.patch_status(pod, **what)
        return patch.version, patch.base

    assert fences(pod_dict(), conditions=[UNSCHEDULABLE]) == (None, "5")
    assert fences(pod_dict(), conditions=ready, nominated_node="n1") == (None, "5")
    assert fences(pod_dict(), conditions=[*ready, *scheduled]) == (None, None)
    assert fences(pod_dict(), nominated_node=None) == (None, None)
    assert fences(pod_dict(version=None), conditions=[UNSCHEDULABLE]) == (None, None)
    assert fences(ObjectRef("v1", "Pod", "ns", "p", "u1"), conditions=[UNSCHEDULABLE]) == (None, None)
    assert fences(pod_dict(), conditions=[UNSCHEDULABLE], fence="uid") == (None, None)
    assert fences(pod_dict(), conditions=[UNSCHEDULABLE], version="4") == ("4", None)
    assert fences(pod_dict(), conditions=[UNSCHEDULABLE], fence="version") == ("5", None)


async def test_a_base_is_required_like_a_version(server, cluster):
    """It stands in the body; a conflict is decided anew on the new state, or refused if the Pod was bound."""
    pod = server.create(pod_dict(uid=None, version=None))
    newer = server.patch_object(pod, {"metadata": {"labels": {"a": "1"}}})
    again = await tried(cluster.patch_status(pod, conditions=[UNSCHEDULABLE]))
    assert isinstance(again, Again)
    assert isinstance(again.call, PodStatusPatch)
    assert (again.call.version, again.call.base) == (None, newer["metadata"]["resourceVersion"])
    server.bind(pod, "n1")
    assert "bound meanwhile: n1" in str(refusal(await tried(again.call)))
    bases = [record.body["metadata"]["resourceVersion"] for record in server.audit if record.method == "PATCH"]
    assert bases == [pod["metadata"]["resourceVersion"], newer["metadata"]["resourceVersion"]]


async def test_a_status_patch_does_not_meet_another_uid(server, cluster):
    """The old Pod's patch ends as GONE and leaves the new Pod alone."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.recreate(pod)
    _, verdict = await tried(cluster.patch_status(pod, conditions=[UNSCHEDULABLE], fence="uid"))
    assert verdict.kind is VerdictKind.GONE
    assert "conditions" not in server.get(pod)["status"]


async def test_a_conflict_is_decided_anew(server, cluster):
    """E1: another writer changes an unrelated label; the patch takes the new version and goes on."""
    pod = server.create(pod_dict(uid=None, version=None))
    patch = cluster.patch_status(pod, conditions=[UNSCHEDULABLE], fence="version")
    for label in ("a", "b", "c"):
        pod = server.patch_object(pod, {"metadata": {"labels": {label: "1"}}})
        again = await tried(patch)
        assert isinstance(again, Again)
        patch = again.call
        assert patch.version == pod["metadata"]["resourceVersion"]
    result = await tried(patch)
    assert [condition["type"] for condition in result["status"]["conditions"]] == ["PodScheduled"]


async def test_a_conflict_with_our_own_lost_write(server, cluster):
    """The first try was applied and its answer lost; the second meets its version, and the Pod says it is done."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.drop(applied=True, method="PATCH")
    patch = cluster.patch_status(pod, conditions=[UNSCHEDULABLE], fence="version")
    _, verdict = await tried(patch)
    assert (verdict.kind, verdict.maybe_applied) == (VerdictKind.RETRY, True)
    assert await tried(patch, number=2) == Applied(server.get(pod))


async def test_a_pod_bound_meanwhile_is_not_called_unscheduled(server, cluster):
    """E5: a fenced patch that lost to the bind is refused; the Pod does not end up bound and PodScheduled=False."""
    pod = server.create(pod_dict(uid=None, version=None))
    patches = [
        cluster.patch_status(pod, conditions=[UNSCHEDULABLE], fence="version"),
        cluster.patch_status(pod, nominated_node="n2", fence="version"),
    ]
    server.bind(pod, "n1")
    for patch in patches:
        assert "bound meanwhile: n1" in str(refusal(await tried(patch)))
        assert patch.rebase_onto(server.get(pod)) is patch
    other = cluster.patch_status(pod, conditions=[{"type": "Ready", "status": "True"}], fence="version")
    assert isinstance(await tried(other), Again)
    assert server.get(pod)["status"]["conditions"][0]["status"] == "True"


async def test_a_conflict_on_a_pod_that_is_gone(server, cluster):
    """By uid or by name: GONE."""
    pod = server.create(pod_dict(uid=None, version=None))
    patch = cluster.patch_status(pod, conditions=[UNSCHEDULABLE], fence="version")
    server.recreate(pod)
    assert refusal(await patch.reconcile(attempt_at(patch), TimeoutError())).gone
    server.finish(pod)
    assert refusal(await patch.reconcile(attempt_at(patch), TimeoutError())).gone


def test_a_status_patch_as_a_value():
    """Its repr tells what it sets; priority and version come from the Pod."""
    patch = OFFLINE.patch_status(pod_dict(priority=5), conditions=[UNSCHEDULABLE], nominated_node="n1", fence="version")
    assert repr(patch) == "<PodStatusPatch Pod ns/p (u1): PodScheduled=False, nominated to n1>"
    assert (patch.call_type, patch.priority, patch.version, patch.scope) == ("pod_status_patch", 5, "5", OFFLINE)
    assert isinstance(hash(patch), int)
    assert patch == OFFLINE.patch_status(
        pod_dict(priority=5), conditions=patch.conditions, nominated_node="n1", version="5"
    )


def test_merging_composes():
    """L13: conditions by type, the later one's where both speak; its control fields count; a KEEP keeps."""
    first = OFFLINE.patch_status(
        pod_dict(), conditions=[UNSCHEDULABLE, {"type": "A", "status": "True"}], nominated_node="n1"
    )
    second = OFFLINE.patch_status(pod_dict(), conditions=[{"type": "A", "status": "False"}], priority=9)
    both = second.merge(first)
    assert both is not None
    assert [(c["type"], c["status"]) for c in both.conditions] == [("PodScheduled", "False"), ("A", "False")]
    assert (both.nominated_node, both.priority) == ("n1", 9)
    clearing = OFFLINE.patch_status(pod_dict(), nominated_node=None)
    merged = clearing.merge(first)
    assert merged is not None
    assert merged.nominated_node is None
    back = first.merge(clearing)
    assert back is not None
    assert back.nominated_node == "n1"


def test_a_merged_patch_keeps_the_base_that_it_needs():
    """The later decision's own; else the earlier one's, if what needs it is still said (case E5, law L13)."""

    def merged(earlier, later):
        both = OFFLINE.patch_status(pod_dict(version="7"), **later).merge(OFFLINE.patch_status(pod_dict(), **earlier))
        assert both is not None
        return both.version, both.base

    unscheduled, scheduled = (
        {"conditions": [UNSCHEDULABLE]},
        {"conditions": [{"type": "PodScheduled", "status": "True"}]},
    )
    ready, nominated = {"conditions": [{"type": "Ready", "status": "True"}]}, {"nominated_node": "n1"}
    for earlier, later, base in (
        (ready, ready, None),
        (ready, unscheduled, "7"),
        (unscheduled, nominated, "7"),
        (unscheduled, ready, "5"),
        (nominated, ready, "5"),
        (unscheduled, scheduled, None),
        (nominated, {"nominated_node": None}, None),
        ({**nominated, **unscheduled}, scheduled, "5"),
        (unscheduled, {**unscheduled, "fence": "uid"}, None),
    ):
        assert merged(earlier, later) == (None, base), (earlier, later)


def status_pod(*conditions, **status):
    return {**pod_dict(), "status": {"phase": "Pending", "conditions": list(conditions), **status}}


READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def test_a_patch_that_is_there_already_is_a_noop():
    """By the whole Pod that it was decided on; a ref, or a Pod without a status, says nothing."""
    wanted = {"type": "Ready", "status": "True"}
    assert OFFLINE.patch_status(status_pod(READY), conditions=[wanted]).is_noop()
    assert OFFLINE.patch_status(status_pod(READY), nominated_node=None).is_noop()
    assert OFFLINE.patch_status(status_pod(READY, nominatedNodeName="n1"), nominated_node="n1").is_noop()
    assert not OFFLINE.patch_status(status_pod(READY), conditions=[{**wanted, "reason": "New"}]).is_noop()
    assert not OFFLINE.patch_status(status_pod(READY), conditions=[UNSCHEDULABLE]).is_noop()
    assert not OFFLINE.patch_status(status_pod(READY, nominatedNodeName="n1"), nominated_node=None).is_noop()
    ref = ObjectRef("v1", "Pod", "ns", "p", "u1")
    assert not OFFLINE.patch_status(ref, nominated_node=None).is_noop()
    bare = pod_dict()
    del bare["status"]
    assert not OFFLINE.patch_status(bare, nominated_node=None).is_noop()


def test_a_patch_that_a_client_model_shows_already_is_a_noop():
    """As with a dict: by its status, whole; times are compared as the server writes them."""
    seen = V1PodCondition(type="Ready", status="True", last_transition_time=datetime(2026, 1, 1, tzinfo=UTC))
    meta = V1ObjectMeta(name="p", namespace="ns", uid="u1", resource_version="5")
    model = V1Pod(metadata=meta, status=V1PodStatus(conditions=[seen], nominated_node_name="n1"))
    assert OFFLINE.patch_status(model, conditions=[{"type": "Ready", "status": "True"}]).is_noop()
    assert OFFLINE.patch_status(model, nominated_node="n1").is_noop()
    assert not OFFLINE.patch_status(model, conditions=[{"type": "Ready", "status": "False"}]).is_noop()
    assert not OFFLINE.patch_status(model, nominated_node=None).is_noop()
    assert not OFFLINE.patch_status(V1Pod(metadata=meta), nominated_node=None).is_noop()


def test_a_merged_patch_is_never_a_noop():
    """What the newer one found done, the older one may undo."""
    older = OFFLINE.patch_status(status_pod(READY), conditions=[{"type": "Ready", "status": "False"}])
    newer = OFFLINE.patch_status(status_pod(READY), conditions=[{"type": "Ready", "status": "True"}])
    assert newer.is_noop()
    merged = newer.merge(older)
    assert merged is not None
    assert not merged.is_noop()
    assert [condition["status"] for condition in merged.conditions] == ["True"]


def test_transition_times_come_from_the_pod_or_the_clock():
    """A status that stays keeps the Pod's time; a model's conditions are read as well."""
    kept = OFFLINE.patch_status(status_pod(READY), conditions=[{"type": "Ready", "status": "True", "reason": "x"}])
    assert kept.conditions[0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    changed = OFFLINE.patch_status(status_pod(READY), conditions=[{"type": "Ready", "status": "False"}])
    assert changed.conditions[0]["lastTransitionTime"] > "2026-01-01T00:00:00Z"
    model = V1Pod(
        metadata=V1ObjectMeta(name="p", namespace="ns", uid="u1"),
        status=V1PodStatus(
            conditions=[
                V1PodCondition(type="Ready", status="True", last_transition_time=datetime(2026, 1, 1, tzinfo=UTC))
            ]
        ),
    )
    assert OFFLINE.patch_status(model, conditions=[{"type": "Ready", "status": "True"}]).conditions == (READY,)


def test_rebasing_takes_the_version_and_drops_nothing():
    """What the observed Pod shows already may yet be changed by a write that waits before this one."""
    patch = OFFLINE.patch_status(pod_dict(), conditions=[{"type": "Ready", "status": "True"}], fence="version")
    observed = status_pod(READY)
    observed["metadata"]["resourceVersion"] = "9"
    rebased = patch.rebase_onto(observed)
    assert (rebased.version, rebased.base) == ("9", None)
    assert (rebased.conditions, rebased.is_noop()) == ((READY,), True)
    based = OFFLINE.patch_status(pod_dict(), nominated_node="n1").rebase_onto(observed)
    assert (based.version, based.base) == (None, "9")
    back = status_pod({**READY, "status": "False"})
    assert not rebased.rebase_onto(back).is_noop()
    unfenced = OFFLINE.patch_status(pod_dict(), conditions=[UNSCHEDULABLE], fence="uid")
    assert unfenced.rebase_onto(observed).version is None
    assert patch.rebase_onto({**pod_dict(uid="u2")}) is patch
    assert patch.rebase_onto(None) is patch


async def test_applying_a_patch_is_what_the_server_does(server, cluster):
    """L18: shown on a copy; on the server's own Pod it changes nothing."""
    pod = server.create(pod_dict(uid=None, version=None))
    patch = cluster.patch_status(pod, conditions=[UNSCHEDULABLE], nominated_node="n1")
    shown = patch.apply(pod)
    assert "conditions" not in pod["status"]
    result = await patch.execute(attempt_at(patch))
    assert shown["status"] == result["status"]
    assert patch.apply(result) is result
    assert patch.apply(None) is None
    other = pod_dict(uid="u2")
    assert patch.apply(other) is other


# ---- what can't be meant ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: OFFLINE.bind(pod_dict(uid=None), "n1"), r"pod\.metadata\.uid"),
        (lambda: OFFLINE.bind(pod_dict(), "N 1"), "node"),
        (lambda: OFFLINE.bind(pod_dict(), object()), "node"),
        (lambda: OFFLINE.bind(pod_dict(), "n1", fence="name"), "fence='name'"),
        (lambda: OFFLINE.bind(pod_dict(version=None), "n1", fence="version"), r"metadata\.resourceVersion"),
        (lambda: OFFLINE.bind(ObjectRef("v1", "Pod", "ns", "p", "u"), "n1", fence="version"), "resourceVersion"),
        (lambda: OFFLINE.bind(pod_dict(), "n1", annotations={"a": 1}), "annotations"),
        (lambda: OFFLINE.bind(pod_dict(), "n1", depends_on=3), "depends_on=3"),
        (lambda: OFFLINE.bind(pod_dict(), "n1", depends_on=None), "depends_on=None"),
        (lambda: OFFLINE.bind(pod_dict(), "n1", depends_on="x"), "depends_on='x'"),
        (lambda: OFFLINE.bind(pod_dict(), "n1", depends_on=["x"]), "depends_on"),
        (lambda: OFFLINE.bind(pod_dict(), "n1", depends_on=ObjectRef("v1", "Node", None, "n1")), "depends_on"),
        (lambda: OFFLINE.patch_status(pod_dict()), "nothing to patch"),
        (lambda: OFFLINE.patch_status(pod_dict(), conditions=[], nominated_node=KEEP), "nothing to patch"),
        (lambda: OFFLINE.patch_status(pod_dict(), nominated_node=""), "nominated_node"),
        (lambda: OFFLINE.patch_status(pod_dict(), nominated_node="n_1"), "nominated_node"),
        (lambda: OFFLINE.patch_status(pod_dict(), conditions=[{"type": "A"}]), r"conditions\[0\]\.status"),
        (lambda: OFFLINE.patch_status({"kind": "Node", "metadata": {"name": "n"}}, nominated_node="n1"), r"pod\.kind"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(make, field):
    """By an error that names field, value and remedy; nothing is made."""
    with pytest.raises(ConfigurationError, match=field):
        make()
