"""Patches of objects of any kind: what is sent, and what becomes of conflicts and lost answers."""

import asyncio
from typing import Any

import pytest
from kubernetes_asyncio.client import V1ObjectMeta, V1Pod

from asyncdispatch import Dispatcher, DispatcherConfig
from asyncdispatch.calls import Again, Applied, Effect, ObjectRef, Refused, Unknown, VerdictKind
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import ApiError, Cluster, Patch
from asyncdispatch.outcomes import Cancelled, Failed, Succeeded
from tests.kubernetes.documents import LABEL, config_map, widget, without, writes
from tests.kubernetes.support import FakeClient, attempt_at, plain, pod_dict, still_attempt, tried

OFFLINE: Any = Cluster(FakeClient())
SHORT = DispatcherConfig(attempt_timeout=1)


class V1alpha1Gadget:
    """A model of a client nobody has heard of."""

    metadata = V1ObjectMeta(name="g", namespace="ns")


def reads(server):
    return [record for record in server.audit if record.method == "GET"]


@pytest.fixture
def widgets(server):
    server.register("example.com/v1", "Widget", "widgets")
    return server


# ---- a patch as a value ----------------------------------------------------------------------------------------------


def test_a_patch_as_a_value():
    """Target, uid and priority come from the object; it can be hashed, compared and read."""
    call = OFFLINE.patch(pod_dict(priority=7), LABEL)
    assert (call.call_type, call.effect, call.priority, call.scope) == ("patch", Effect.IDEMPOTENT_WRITE, 7, OFFLINE)
    assert call.target == ObjectRef("v1", "Pod", "ns", "p", "u1")
    assert call.version is None
    assert call == OFFLINE.patch(pod_dict(priority=7), LABEL)
    assert isinstance(hash(call), int)
    assert repr(call) == "<Patch Pod ns/p (u1)>"


def test_versions_as_asked_for():
    """By the object, by the field, or as the patch itself says."""
    assert OFFLINE.patch(pod_dict(), LABEL, fence="version").version == "5"
    assert OFFLINE.patch(pod_dict(), LABEL, version="4").version == "4"
    ref = ObjectRef("v1", "Pod", "ns", "p")
    call = OFFLINE.patch(ref, {"metadata": {"uid": "u2", "resourceVersion": "9", "labels": {"a": "1"}}})
    assert (call.target.uid, call.version) == ("u2", "9")
    with pytest.raises(ConfigurationError, match=r"patch\.metadata\.uid"):
        OFFLINE.patch(pod_dict(), {"metadata": {"uid": "u2"}})
    with pytest.raises(ConfigurationError, match=r"patch\.metadata\.resourceVersion"):
        OFFLINE.patch(pod_dict(), {"metadata": {"resourceVersion": "9"}}, version="4")


def test_models_are_taken():
    """As the object, and as the patch."""
    model = V1Pod(metadata=V1ObjectMeta(name="p", namespace="ns", uid="u1", resource_version="5", labels={"a": "1"}))
    call = OFFLINE.patch(model, V1Pod(metadata=V1ObjectMeta(labels={"a": "1"})))
    assert call.target == ObjectRef("v1", "Pod", "ns", "p", "u1")
    assert call.change is not None
    assert call.change.document == LABEL
    assert call.is_noop()


LISTS: dict[str, Any] = {"metadata": {"finalizers": []}}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: OFFLINE.patch(pod_dict(), LISTS), "patch.metadata.finalizers"),
        (lambda: OFFLINE.patch(pod_dict(), {"spec": {"x": [1]}}, version=None), "patch.spec.x"),
        (lambda: OFFLINE.patch(widget(), {"status": {"l": []}}, subresource="status"), "patch.status.l"),
        (lambda: OFFLINE.patch(pod_dict(), [{"op": "remove", "path": "/spec/x/0"}]), "patch.0.path"),
        (lambda: OFFLINE.patch(ObjectRef("v1", "Pod", "ns", "p"), LABEL, fence="version"), "metadata.resourceVersion"),
        (lambda: OFFLINE.patch(pod_dict(), LABEL, fence="name"), "fence"),
        (lambda: OFFLINE.patch(pod_dict(), without("x"), fence="version"), "version"),
        (lambda: OFFLINE.patch(pod_dict(), without("x"), version="5"), "version"),
        (lambda: OFFLINE.patch(ObjectRef("v1", "Pod", "ns", "p-*"), LABEL), "metadata.name"),
        (lambda: OFFLINE.patch({"kind": "Pod", "apiVersion": "v1", "metadata": {}}, LABEL), "metadata.name"),
        (lambda: OFFLINE.patch({"metadata": {"name": "p"}}, LABEL), "kind"),
        (lambda: OFFLINE.patch(ObjectRef("v1", "Pod", None, "p"), LABEL), "metadata.namespace"),
        (lambda: OFFLINE.patch(ObjectRef("v1", "Node", "ns", "n"), LABEL), "metadata.namespace"),
        (lambda: OFFLINE.patch(V1alpha1Gadget(), LABEL), "apiVersion"),
        (lambda: OFFLINE.patch(object(), LABEL), "kind"),
        (lambda: OFFLINE.patch("p", LABEL), "kind"),
        (lambda: OFFLINE.patch(pod_dict(), lambda pod: "x"), "patch"),
        (lambda: Patch(target=ObjectRef("v1", "Pod", "ns", "p"), transport=OFFLINE.transport), "patch"),
        (lambda: OFFLINE.replace(config_map()), "obj.metadata.resourceVersion"),
        (lambda: OFFLINE.replace(ObjectRef("v1", "Pod", "ns", "p")), "obj"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_at_once(make, field):
    """A named error, before anything is queued."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.field == field


# ---- what is sent ----------------------------------------------------------------------------------------------------


async def test_a_patch_is_fenced_by_uid(server, cluster):
    """The uid goes into the body; the value is the object as it is afterwards."""
    pod = server.create(pod_dict(uid=None, version=None))
    found = await cluster.patch(pod, LABEL).execute(attempt_at(cluster.patch(pod, LABEL)))
    assert found["metadata"]["labels"] == {"a": "1"}
    record = server.audit[0]
    assert (record.content_type, record.path) == ("application/merge-patch+json", "/api/v1/namespaces/ns/pods/p")
    assert record.body == {"metadata": {"labels": {"a": "1"}, "uid": pod["metadata"]["uid"]}}


@pytest.mark.parametrize("kind", ["merge", "strategic", "json", "function"])
async def test_each_kind_of_patch(server, cluster, kind):
    """All four do the same, each with its content type; without a uid in the ref there is none in the body."""
    server.create(config_map(a="1", b="2"))
    ref = ObjectRef("v1", "ConfigMap", "ns", "c")
    patch = {"data": {"a": "3", "b": None}}
    steps = [{"op": "add", "path": "/data/a", "value": "3"}, {"op": "remove", "path": "/data/b"}]
    given = {"merge": patch, "strategic": patch, "json": steps, "function": lambda obj: patch}[kind]
    async with Dispatcher() as dispatcher:
        found = await dispatcher.run(cluster.patch(ref, given, strategic=kind == "strategic"))
    assert found["data"] == {"a": "3"} == server.get("ConfigMap", "c", namespace="ns")["data"]
    expected = {"strategic": "application/strategic-merge-patch+json", "json": "application/json-patch+json"}
    assert writes(server)[0].content_type == expected.get(kind, "application/merge-patch+json")
    assert "uid" not in str(writes(server)[0].body)


@pytest.mark.parametrize("plural", [None, "widgets"])
async def test_custom_resources_and_their_status(widgets, cluster, plural):
    """Found by discovery, or where the caller says; the status has a path of its own."""
    made = widgets.create(widget(size=1))
    async with Dispatcher() as dispatcher:
        await dispatcher.run(cluster.patch(made, {"spec": {"size": 2}}, plural=plural))
        await dispatcher.run(cluster.patch(made, {"status": {"ready": True}}, subresource="status", plural=plural))
    found = widgets.get(made)
    assert (found["spec"], found["status"]) == ({"size": 2}, {"ready": True})
    assert [r.subresource for r in writes(widgets)] == ["", "status"]


@pytest.mark.parametrize("steps", [False, True], ids=["merge", "json"])
async def test_another_object_of_the_name(server, cluster, steps):
    """422 about the uid, or a read: GONE, and the new object is left alone."""
    old = server.create(pod_dict(uid=None, version=None))
    server.recreate(old)
    patch = [{"op": "add", "path": "/metadata/labels", "value": {"a": "1"}}] if steps else LABEL
    call = cluster.patch(old, patch)
    error, verdict = await tried(call)
    assert (error.status, verdict.kind) == (422, VerdictKind.GONE)
    assert "labels" not in server.get(old)["metadata"]


async def test_nothing_of_the_name(server, cluster):
    """404 that names the object: GONE."""
    error, verdict = await tried(cluster.patch(pod_dict(), LABEL))
    assert (error.status, verdict.kind) == (404, VerdictKind.GONE)


@pytest.mark.parametrize("code", [409, 500, None], ids=str)
async def test_a_function_reads_where_it_has_no_object(server, cluster, code):
    """With a ref alone the object is read first; the patch is fenced by what was read, whatever happens to it."""
    pod = server.create(pod_dict(uid=None, version=None))
    if code is not None:
        server.fail(status=code, reason="Conflict" if code == 409 else "", method="PATCH")
    async with Dispatcher() as dispatcher:
        found = await dispatcher.run(cluster.patch(ObjectRef("v1", "Pod", "ns", "p"), lambda obj: LABEL))
    assert found["metadata"]["labels"] == {"a": "1"}
    for record in writes(server):
        assert record.body["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
    assert len(writes(server)) == (1 if code is None else 2)


async def test_a_read_before_a_patch_changes_nothing(server, cluster):
    """Cut off while it reads, the call is not in doubt: nothing was sent that could change the object."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.delay(20, method="GET")
    async with Dispatcher() as dispatcher:
        handle = dispatcher.submit(cluster.patch(ObjectRef.of(pod), lambda obj: LABEL))
        await asyncio.sleep(1)
        handle.cancel("not wanted any more")
        outcome = await handle.outcome()
    assert isinstance(outcome, Cancelled)
    assert not outcome.ambiguous


async def test_a_function_of_what_is_not_there(server, cluster):
    """GONE, by the read."""
    call = cluster.patch(ObjectRef("v1", "Pod", "ns", "p", "u1"), lambda obj: LABEL)
    error, verdict = await tried(call)
    assert (error.gone, verdict.kind) == (True, VerdictKind.GONE)
    server.create(pod_dict(uid=None, version=None))
    error, verdict = await tried(call)
    assert (error.gone, verdict.kind) == (True, VerdictKind.GONE)


# ---- nothing to do ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patch", "noop"),
    [
        ({"metadata": {"labels": {"a": "1"}}}, True),
        ({"metadata": {"labels": {"b": None}}}, True),
        ({"metadata": {"labels": {"a": "2"}}}, False),
        ([{"op": "add", "path": "/metadata/labels/a", "value": "1"}], True),
        ([{"op": "test", "path": "/metadata/labels/a", "value": "2"}], False),  # it is refused, and says so
        ([{"op": "remove", "path": "/metadata/labels/b"}], False),
        (lambda obj: None, True),
        (lambda obj: {}, True),
        (lambda obj: {"metadata": {"labels": {"a": "1"}}}, True),
        (lambda obj: {"metadata": {"labels": {"a": "2"}}}, False),
    ],
)
def test_an_object_that_shows_it_already(patch, noop):
    """Then nothing needs to be sent."""
    pod = pod_dict()
    pod["metadata"]["labels"] = {"a": "1"}
    assert OFFLINE.patch(pod, patch).is_noop() == noop


def test_part_of_an_object_shows_nothing():
    """Without a version it is no object as a server has sent it: what is missing there may well be there."""
    part = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "u1"}}
    assert not OFFLINE.patch(part, {"metadata": {"labels": {"b": None}}}).is_noop()
    assert not OFFLINE.patch(ObjectRef.of(part), {"metadata": {"labels": {"b": None}}}).is_noop()
    unknown: dict[str, Any] = {"status": {"conditions": []}}
    assert not OFFLINE.patch(pod_dict(), unknown, strategic=True, subresource="status").is_noop()


async def test_a_no_op_sends_nothing(server, cluster):
    """Also when the function finds that out by a read of its own: the value is the object."""
    pod = server.create(pod_dict(uid=None, version=None))
    async with Dispatcher() as dispatcher:
        assert await dispatcher.run(cluster.patch(pod, without("x"))) is None
        assert not server.audit
        found = await dispatcher.run(cluster.patch(ObjectRef.of(pod), without("x")))
    assert found == pod
    assert not writes(server)


# ---- conflicts and lost answers --------------------------------------------------------------------------------------


async def test_a_fixed_patch_that_loses_its_version(server, cluster):
    """It was decided on that very state: it fails, and says what it found."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.patch_object(pod, {"metadata": {"labels": {"b": "2"}}})
    answer = await tried(cluster.patch(pod, {"metadata": {"finalizers": ["x.y/z"]}}, fence="version"))
    assert isinstance(answer, Refused)
    assert isinstance(answer.error, ApiError)
    assert answer.error.status == 409
    assert "decided on version" in str(answer.error)


@pytest.mark.parametrize("patch", [LABEL, {"metadata": {"finalizers": ["x.y/z"]}}], ids=["field", "list"])
@pytest.mark.parametrize("changed", [False, True], ids=["landed", "landed and changed since"])
async def test_a_lost_answer_of_a_patch_with_a_version(server, cluster, patch, changed):
    """It is looked for: there it has Succeeded; changed by somebody since, nobody can tell, and the outcome says so."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.drop(applied=True, method="PATCH")
    if changed:
        undo = {"metadata": {"labels": None, "finalizers": None}}
        server.hook(lambda record: server.patch_object(pod, undo) and None, times=1, method="GET")
    async with Dispatcher(SHORT) as dispatcher:
        outcome = await dispatcher.submit(cluster.patch(pod, patch, fence="version")).outcome()
    assert isinstance(outcome, Failed if changed else Succeeded)
    assert outcome.ambiguous == changed
    assert len([record for record in writes(server) if record.applied]) == 1


@pytest.mark.parametrize("landed", [False, True])
async def test_a_lost_answer_of_operations(server, cluster, landed):
    """A JSON Patch can't be repeated blindly: its test would fail, what it removes is gone. It is looked for first."""
    pod = server.create(config_map(a="1", b="2"))
    server.drop(applied=landed, method="PATCH")
    steps = [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "replace", "path": "/data/a", "value": "2"}]
    steps.append({"op": "remove", "path": "/data/b"})
    async with Dispatcher(SHORT) as dispatcher:
        found = await dispatcher.run(cluster.patch(pod, steps))
    assert found["data"] == {"a": "2"}
    assert len(writes(server)) == (1 if landed else 2)
    assert len(reads(server)) == 1


async def test_a_lost_answer_of_fields(server, cluster):
    """A merge patch without a version does the same again, so it is repeated at once, without a read."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.drop(applied=True, method="PATCH")
    async with Dispatcher(SHORT) as dispatcher:
        await dispatcher.run(cluster.patch(pod, LABEL))
    assert [record.method for record in server.audit] == ["PATCH", "PATCH"]


@pytest.mark.parametrize("landed", [False, True])
async def test_a_lost_answer_of_a_function(server, cluster, landed):
    """It is asked again with what is there now."""
    pod = server.create({**pod_dict(uid=None, version=None)})
    pod = server.patch_object(pod, {"metadata": {"finalizers": ["other/a", "ours/b"]}})
    server.drop(applied=landed, method="PATCH")
    async with Dispatcher(SHORT) as dispatcher:
        found = await dispatcher.run(cluster.patch(pod, without("ours/b")))
    assert found["metadata"]["finalizers"] == ["other/a"]
    assert len(writes(server)) == (1 if landed else 2)


async def test_a_function_that_raises(server, cluster):
    """At once where the object is at hand; else the call fails with that error, also after a conflict."""

    def decide(obj):
        if "labels" in obj["metadata"]:
            raise ZeroDivisionError("mine")
        return LABEL

    pod = server.create(pod_dict(uid=None, version=None))
    early = cluster.patch(pod, decide)
    labelled = server.patch_object(pod, {"metadata": {"labels": {"b": "2"}}})
    with pytest.raises(ZeroDivisionError):
        cluster.patch(labelled, decide)
    async with Dispatcher() as dispatcher:
        for call in (early, cluster.patch(ObjectRef.of(pod), decide)):
            outcome = await dispatcher.submit(call).outcome()
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, ZeroDivisionError)
            assert not outcome.ambiguous


def test_what_a_conflict_means():
    """By the object as it is, and by what became of the request before."""
    found = pod_dict(version="6")
    fixed = OFFLINE.patch(pod_dict(), LABEL)
    assert fixed.settled_by(found, False) == Again(fixed)  # an unfenced patch met another in the server: once more
    assert isinstance(fixed.settled_by(None, True), Refused)
    assert isinstance(fixed.settled_by(pod_dict(uid="u2"), True), Refused)
    done = {**found, "metadata": {**found["metadata"], "labels": {"a": "1"}}}
    assert fixed.settled_by(done, False) == Applied(done)
    versioned = OFFLINE.patch(pod_dict(), LABEL, fence="version")
    assert isinstance(versioned.settled_by(found, False), Refused)
    again = versioned.settled_by(found, True)
    assert isinstance(again, Again)
    repeated: Any = again.call
    assert repeated.doubtful
    assert repeated.settled_by(found, True) == Unknown(maybe_applied=True)
    assert isinstance(versioned.settled_by(pod_dict(version="5"), True), Again)


def test_what_is_looked_for_before_it_is_repeated():
    """What is not the same when it is done twice."""
    lost = plain(504, "upstream request timeout")
    kinds = {}
    steps = [{"op": "remove", "path": "/metadata/labels/x"}]
    for name, call in {
        "fields": OFFLINE.patch(pod_dict(), LABEL),
        "version": OFFLINE.patch(pod_dict(), LABEL, fence="version"),
        "steps": OFFLINE.patch(pod_dict(), steps),
        "function": OFFLINE.patch(pod_dict(), lambda obj: LABEL),
        "replace": OFFLINE.replace(pod_dict()),
    }.items():
        kinds[name] = call.classify(still_attempt(call), lost).kind
    reconciled = dict.fromkeys(("version", "steps", "function", "replace"), VerdictKind.RECONCILE)
    assert kinds == {"fields": VerdictKind.RETRY, **reconciled}
