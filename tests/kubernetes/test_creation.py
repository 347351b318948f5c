"""Creating once: by name, by mark, and never by a second POST in doubt."""

from typing import Any

import pytest
from kubernetes_asyncio.client import V1Container, V1ObjectMeta, V1Pod, V1PodSpec

from asyncdispatch.calls import Again, Applied, Effect, ObjectRef, Refused, Unknown, VerdictKind
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import ApiError, Cluster
from asyncdispatch.kubernetes.marks import MARK
from asyncdispatch.testing import EmbeddedAPIServer
from tests.kubernetes.support import FakeClient, attempt_at, failure, pod_dict, tried

OFFLINE: Any = Cluster(FakeClient())


def nameless(**meta):
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta}


def new_pod(name="p", **spec):
    return pod_dict(name, uid=None, version=None, **spec)


def generated(prefix="job-"):
    pod = new_pod()
    del pod["metadata"]["name"]
    pod["metadata"]["generateName"] = prefix
    return pod


def methods(server):
    return [record.method for record in server.audit]


def applied_posts(server):
    return [record for record in server.audit if record.method == "POST" and record.applied]


# ---- the call --------------------------------------------------------------------------------------------------------


def test_a_create_as_a_value():
    """Target and priority come from the object; the object itself is copied."""
    pod = new_pod(priority=5)
    call = OFFLINE.create(pod)
    assert (call.call_type, call.effect, call.priority, call.scope) == ("create", Effect.CREATE, 5, OFFLINE)
    assert call.target == ObjectRef("v1", "Pod", "ns", "p")
    assert MARK not in str(call.obj)
    pod["spec"]["containers"].clear()
    assert call.obj["spec"]["containers"]
    assert repr(call) == "<Create Pod ns/p>"
    assert isinstance(hash(call), int)


def test_a_model_is_taken():
    """A client's model need not say its kind."""
    model = V1Pod(metadata=V1ObjectMeta(name="p", namespace="ns"), spec=V1PodSpec(containers=[V1Container(name="c")]))
    assert OFFLINE.create(model).obj == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"containers": [{"name": "c"}]},
    }


def test_the_mark():
    """An annotation by the key; a label too, where the object can only be found by listing."""
    named, listed = OFFLINE.create(new_pod(), idempotency_key="a/b"), OFFLINE.create(generated(), idempotency_key="a/b")
    assert named.obj["metadata"]["annotations"] == {MARK: "a/b"}
    assert "labels" not in named.obj["metadata"]
    assert listed.obj["metadata"]["annotations"] == {MARK: "a/b"}
    assert listed.obj["metadata"]["labels"][MARK].startswith("sha256-")


def test_what_is_shown_of_a_create():
    """L18: apply(None) is the object; one that is there stays as it is."""
    call = OFFLINE.create(new_pod(), idempotency_key="k")
    shown = call.apply(None)
    assert shown == call.obj
    assert shown is not None
    shown["metadata"]["labels"] = {"a": "b"}
    assert "labels" not in call.obj["metadata"]
    there = {"metadata": {"name": "p", "resourceVersion": "9"}}
    assert call.apply(there) is there


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: OFFLINE.create({}), "kind"),
        (lambda: OFFLINE.create("p"), "kind"),
        (
            lambda: OFFLINE.create(nameless(namespace="ns")),
            r"metadata\.name",
        ),
        (
            lambda: OFFLINE.create(nameless(name="p")),
            r"metadata\.namespace",
        ),
        (
            lambda: OFFLINE.create({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "namespace": "ns"}}),
            r"metadata\.namespace",
        ),
        (lambda: OFFLINE.create(pod_dict(version=None)), r"obj\.metadata\.uid"),
        (lambda: OFFLINE.create(pod_dict(uid=None)), r"obj\.metadata\.resourceVersion"),
        (lambda: OFFLINE.create({**new_pod(), "extra": object()}), "obj="),
        (lambda: OFFLINE.create(new_pod(), idempotency_key=7), "idempotency_key"),
        (lambda: OFFLINE.create(new_pod(), idempotency_key=""), "idempotency_key"),
        (lambda: OFFLINE.read({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}), r"metadata\.namespace"),
        (lambda: OFFLINE.read(generated()), r"metadata\.name"),
        (lambda: OFFLINE.read(None), "kind"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(make, field):
    """By an error that names field, value and remedy; nothing is made."""
    with pytest.raises(ConfigurationError, match=field):
        make()


# ---- by name ---------------------------------------------------------------------------------------------------------


async def test_a_create(server, cluster):
    """One POST; the value is the object as the server made it."""
    made = await tried(cluster.create(new_pod(), idempotency_key="spawn-ana"))
    assert made == server.get("Pod", "p", namespace="ns")
    assert made["metadata"]["annotations"] == {MARK: "spawn-ana"}
    assert methods(server) == ["POST"]


async def test_a1_our_own_object_is_not_taken_for_a_foreign_one(server, cluster):
    """A1: the answer is lost; one GET finds our mark; no second POST, no DELETE."""
    server.drop(times=1, applied=True, method="POST", path="*/pods")
    result = await tried(cluster.create(new_pod(), idempotency_key="spawn-ana"))
    assert result == Applied(server.get("Pod", "p", namespace="ns"))
    assert methods(server) == ["POST", "GET"]


async def test_a_create_that_did_not_arrive_is_sent_again(server, cluster):
    """By name that is safe: if the first one lands after all, the second meets it, and knows it by the mark."""
    server.drop(method="POST")
    call = cluster.create(new_pod(), idempotency_key="k")
    again = await tried(call)
    assert isinstance(again, Again)
    await call.execute(attempt_at(call))  # the first one, late
    assert await tried(again.call, number=2) == Applied(server.get("Pod", "p", namespace="ns"))
    assert len(applied_posts(server)) == 1


@pytest.mark.parametrize("ours", [True, False])
async def test_a5_a_slow_refusal_is_settled_by_reading(server, cluster, ours):
    """A5: the 409 takes longer than the attempt; the GET is quick and tells whose object it is."""
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "ns"}}
    call = cluster.create(claim, idempotency_key="K")
    server.put(call.obj if ours else claim)
    server.delay(4, method="POST")
    result = await tried_within(call, seconds=3)
    if ours:
        assert result == Applied(server.get("PersistentVolumeClaim", "c", namespace="ns"))
    else:
        assert isinstance(result, Refused)
        assert "not of this call" in str(result.error)


async def tried_within(call, seconds):
    attempt = attempt_at(call, seconds=seconds)
    try:
        return await call.execute(attempt)
    except Exception as error:
        verdict = call.classify(attempt, error)
        assert (verdict.kind, verdict.maybe_applied) == (VerdictKind.RECONCILE, True)
        return await call.reconcile(attempt_at(call), error)


async def test_a_foreign_object_is_left_alone(server, cluster):
    """409, a GET, no mark of ours: refused, with or without a key."""
    server.put(new_pod())
    for key in ("k", None):
        result = await tried(cluster.create(new_pod(), idempotency_key=key))
        assert isinstance(result, Refused)
        assert isinstance(result.error, ApiError)
        assert result.error.reason == "AlreadyExists"
        assert not result.error.gone
    assert methods(server) == ["POST", "GET"] * 2


async def test_without_a_key_a_lost_answer_stays_open(server, cluster):
    """What holds the name may be ours or not, and nothing tells: ambiguous, also after a second try met it."""
    server.drop(method="POST", applied=True)
    assert await tried(cluster.create(new_pod())) == Unknown()
    server.drop(method="POST")
    again = await tried(cluster.create(new_pod("q")))
    assert isinstance(again, Again)
    server.put(new_pod("q"))
    assert await tried(again.call, number=2) == Unknown()
    assert len(applied_posts(server)) == 1


async def test_a_reconcile_that_failed_keeps_the_doubt(server, cluster):
    """L14: the error that reconcile sees next is that of its own read; it does not prove that nothing was applied."""
    server.put(new_pod())
    call = cluster.create(new_pod())
    failed = failure(503, request="GET /api/v1/namespaces/ns/pods/p")
    assert await call.reconcile(attempt_at(call), failed) == Unknown()


async def test_a_name_held_by_a_dying_object(server, cluster):
    """R5: LATER, by the server's word and by ours, until the old uid is gone; then it is created."""
    old = server.put({**new_pod(), "metadata": {**new_pod()["metadata"], "finalizers": ["example.com/hold"]}})
    server.delete(old)
    for key in ("k", None):
        call = cluster.create(new_pod(), idempotency_key=key)
        error, verdict = await tried(call)
        assert verdict.kind is VerdictKind.LATER
        attempt = attempt_at(call)
        with pytest.raises(ApiError, match="object is being deleted") as caught:
            await call.reconcile(attempt, TimeoutError())
        again = call.classify(attempt, caught.value)
        assert again is not None
        assert (again.kind, again.maybe_applied) == (VerdictKind.LATER, False)
    server.finish(old)
    result = await call.reconcile(attempt_at(call), error)
    assert isinstance(result, Again)
    assert (await tried(result.call))["metadata"]["uid"] != old["metadata"]["uid"]


async def test_a_refusal_stays_a_refusal_while_a_dying_object_is_waited_for(server, cluster):
    """Our POST was answered by 409: whatever holds the name afterwards is not ours, with or without a key."""
    call = cluster.create(new_pod())
    dying = server.put(
        {**new_pod(), "metadata": {**new_pod()["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    )
    refused = failure(409, "exists", reason="AlreadyExists", request="POST /api/v1/namespaces/ns/pods")
    with pytest.raises(ApiError, match="object is being deleted") as caught:
        await call.reconcile(attempt_at(call), refused)
    server.finish(dying)
    server.put(new_pod())
    assert isinstance(await call.reconcile(attempt_at(call), caught.value), Refused)


# ---- by generated name -----------------------------------------------------------------------------------------------


async def test_a_generated_name(server, cluster):
    """Without a key: one POST. With one: a look for its label first."""
    made = await tried(cluster.create(generated()))
    assert made["metadata"]["name"].startswith("job-")
    assert methods(server) == ["POST"]
    again = await tried(cluster.create(generated(), idempotency_key="k"))
    assert again["metadata"]["name"] != made["metadata"]["name"]
    assert [(record.method, record.audit_id) for record in server.audit[1:]] == [("GET", "7-1"), ("POST", "7-1")]


async def test_a9_the_mark_survives_a_restart(server, cluster):
    """A9: the first process dies after its POST; the next one, with the same key, finds the object."""
    first = await tried(cluster.create(generated(), idempotency_key="run/1"))
    second = await tried(Cluster(server.api_client()).create(generated(), idempotency_key="run/1"))
    assert second == first
    assert len(server.objects.of("Pod")) == 1


async def test_a11_a_lost_answer_is_found_by_its_label(server, cluster):
    """A11: exactly one; without a mark nothing can be found out, and nothing is sent again."""
    server.drop(applied=True, method="POST")
    result = await tried(cluster.create(generated(), idempotency_key="k"))
    assert result == Applied(server.objects.of("Pod")[0])
    server.drop(applied=True, method="POST")
    assert await tried(cluster.create(generated())) == Unknown()
    assert len(applied_posts(server)) == 2


async def test_a_generated_object_that_is_not_found_may_yet_land(server, cluster):
    """R5: not found after one that was sent is Unknown, never a second POST."""
    server.drop(method="POST")
    assert await tried(cluster.create(generated(), idempotency_key="k")) == Unknown()


async def test_the_look_before_the_post_sends_nothing(server, cluster):
    """When it fails, the create was not sent: no doubt, and the next attempt looks again."""
    fault = server.drop(times=5, method="GET")
    call = cluster.create(generated(), idempotency_key="k")
    attempt = attempt_at(call)
    with pytest.raises(Exception, match="GET") as caught:
        await call.execute(attempt)
    verdict = call.classify(attempt, caught.value)
    assert verdict is not None
    assert (verdict.kind, verdict.maybe_applied, attempt.sent) == (VerdictKind.RETRY, False, False)
    fault.remove()
    await call.execute(attempt_at(call, number=2))
    assert methods(server)[-2:] == ["GET", "POST"]


async def test_an_object_of_ours_that_is_dying_does_not_count_before_the_post(server, cluster):
    """Its key was used by something that is on its way out; the new one is made beside it."""
    first = await tried(cluster.create(generated(), idempotency_key="k"))
    server.patch_object(first, {"metadata": {"finalizers": ["example.com/hold"]}})
    server.delete(first)
    second = await tried(cluster.create(generated(), idempotency_key="k"))
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_a_label_alone_is_no_mark(server, cluster):
    """Anybody could have set it; the annotation decides."""
    foreign = new_pod("x")
    foreign["metadata"]["labels"] = {MARK: "k"}
    server.put(foreign)
    made = await tried(cluster.create(generated(), idempotency_key="k"))
    assert made["metadata"]["name"] != "x"


# ---- refusals --------------------------------------------------------------------------------------------------------


async def test_a_namespace_that_is_not_there():
    """B7: about to appear, perhaps: LATER."""
    async with EmbeddedAPIServer() as strict:
        _, verdict = await tried(Cluster(strict.api_client()).create(new_pod()))
    assert verdict.kind is VerdictKind.LATER


async def test_a_namespace_that_is_being_deleted(server, cluster):
    """GONE for creates."""
    server.put(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}, "status": {"phase": "Terminating"}}
    )
    _, verdict = await tried(cluster.create(new_pod()))
    assert verdict.kind is VerdictKind.GONE


async def test_b3_a_conflict_about_a_quota(server, cluster):
    """B3: not about the target: no GET, the same body later."""
    server.fail(status=409, reason="Conflict", details={"kind": "resourcequotas", "name": "q"}, method="POST")
    _, verdict = await tried(cluster.create(new_pod()))
    assert verdict.kind is VerdictKind.LATER
    assert methods(server) == ["POST"]


# ---- reading ---------------------------------------------------------------------------------------------------------


async def test_a_read(server, cluster):
    """The newest state, or one at least as new as a version; by ref, dict or model."""
    stored = server.put(new_pod())
    ref = ObjectRef("v1", "Pod", "ns", "p")
    assert await tried(cluster.read(ref)) == stored
    assert await tried(cluster.read(stored, version=stored["metadata"]["resourceVersion"])) == stored
    assert [record.query for record in server.audit] == [{}, {"resourceVersion": stored["metadata"]["resourceVersion"]}]
    assert [record.audit_id for record in server.audit] == ["7-1", "7-1"]
    assert cluster.read(ref).effect is Effect.READ


async def test_a_read_of_another_uid_is_gone(server, cluster):
    """A ref with a uid asks for that very object."""
    old = server.put(new_pod())
    server.recreate(old)
    _, verdict = await tried(cluster.read(old))
    assert verdict.kind is VerdictKind.GONE
    server.finish(old)
    _, verdict = await tried(cluster.read(old))
    assert verdict.kind is VerdictKind.GONE


async def test_reads_out_of_namespaces(server, cluster):
    """Nodes and other kinds of the cluster."""
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    assert (await tried(cluster.read(ObjectRef("v1", "Node", None, "n1"))))["kind"] == "Node"
