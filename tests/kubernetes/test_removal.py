"""Deleting and evicting: what is sent, when it counts as done, and that it never hits another object of the name."""

import asyncio
from typing import Any

import pytest
from kubernetes_asyncio.client import V1ObjectMeta, V1Pod

from asyncdispatch import Dispatcher, DispatcherConfig
from asyncdispatch.calls import Again, Applied, Effect, ObjectRef, Refused, VerdictKind
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import Cluster, Evict
from asyncdispatch.outcomes import Failed, Overwritten, Succeeded
from tests.kubernetes.support import FakeClient, failure, pod_dict, still_attempt, tried

OFFLINE: Any = Cluster(FakeClient())
SHORT = DispatcherConfig(attempt_timeout=1)
BOTH = ["delete", "evict"]


def config_map(name="c", **meta):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "ns", **meta}}


def removal(cluster, kind, pod, **fields):
    return cluster.delete(pod, **fields) if kind == "delete" else cluster.evict(pod, **fields)


def running_pod(server, **spec):
    return server.put({**pod_dict(uid=None, version=None, nodeName="n1", **spec), "status": {"phase": "Running"}})


def dying(pod):
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"}}


def written(server):
    return [record for record in server.audit if record.method != "GET"]


def lose(server, *, applied):
    """The next write's fate is unknown. No break of the connection: aiohttp would send a DELETE again by itself."""
    message = "etcdserver: request timed out"
    server.fail(status=500, reason="", message=message, applied=applied, when=lambda record: record.method != "GET")


# ---- as values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOTH)
def test_a_removal_as_a_value(kind):
    """Target and priority come from the object; two of the same are equal, whenever they were made."""
    call = removal(OFFLINE, kind, pod_dict(priority=7))
    assert (call.call_type, call.effect, call.priority, call.scope) == (kind, Effect.IDEMPOTENT_WRITE, 7, OFFLINE)
    assert call.target == ObjectRef("v1", "Pod", "ns", "p", "u1")
    assert call == removal(OFFLINE, kind, pod_dict(priority=7))
    assert isinstance(hash(call), int)
    assert repr(call) == f"<{kind.capitalize()} Pod ns/p (u1)>"
    assert removal(OFFLINE, kind, pod_dict(), fence="version").version == "5"
    model = V1Pod(metadata=V1ObjectMeta(name="p", namespace="ns", uid="u1", resource_version="5"))
    assert removal(OFFLINE, kind, model).target == call.target


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: OFFLINE.delete(pod_dict(), grace_period=-1), "grace_period"),
        (lambda: OFFLINE.evict(pod_dict(), grace_period=1.5), "grace_period"),
        (lambda: OFFLINE.evict(pod_dict(), grace_period=True), "grace_period"),
        (lambda: OFFLINE.delete(pod_dict(), propagation="background"), "propagation"),
        (lambda: OFFLINE.delete(pod_dict(), fence="none"), "fence"),
        (lambda: OFFLINE.delete(ObjectRef("v1", "Pod", "ns", "p"), fence="version"), "metadata.resourceVersion"),
        (lambda: OFFLINE.delete(ObjectRef("v1", "Pod", None, "p")), "metadata.namespace"),
        (lambda: OFFLINE.delete(ObjectRef("v1", "Pod", "ns", "p-*")), "metadata.name"),
        (lambda: OFFLINE.delete({"metadata": {"name": "p"}}), "kind"),
        (lambda: OFFLINE.evict(ObjectRef("v1", "Pod", "ns", "p")), "pod.metadata.uid"),
        (lambda: OFFLINE.evict(pod_dict(uid=None)), "pod.metadata.uid"),
        (lambda: OFFLINE.evict(config_map(uid="u")), "pod.kind"),
        (lambda: Evict(target=ObjectRef("v1", "Pod", "ns", "p"), transport=OFFLINE.transport), "pod.metadata.uid"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(make, field):
    """A named error, before anything is queued."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.field == field


# ---- what is sent ----------------------------------------------------------------------------------------------------


async def test_what_a_delete_sends(server, cluster):
    """uid and version as preconditions, and the options that were asked for; nothing that was not."""
    pod = running_pod(server)
    fences = {"uid": pod["metadata"]["uid"], "resourceVersion": pod["metadata"]["resourceVersion"]}
    bare = {"kind": "DeleteOptions", "apiVersion": "v1"}
    async with Dispatcher() as dispatcher:
        found = await dispatcher.run(cluster.delete(pod, fence="version", grace_period=7, propagation="Background"))
        assert found["metadata"]["deletionGracePeriodSeconds"] == 7
        server.create(config_map())
        await dispatcher.run(cluster.delete(ObjectRef("v1", "ConfigMap", "ns", "c")))
    options = {"gracePeriodSeconds": 7, "propagationPolicy": "Background"}
    assert server.audit[0].body == {**bare, "preconditions": fences, **options}
    assert server.audit[1].body == bare
    assert server.find("ConfigMap", "c", namespace="ns") is None


async def test_what_an_eviction_sends(server, cluster):
    """An Eviction of policy/v1, with the uid in its delete options: the Pod begins to die."""
    pod = running_pod(server)
    async with Dispatcher() as dispatcher:
        await dispatcher.run(cluster.evict(pod, grace_period=3))
    (record,) = server.audit
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": pod["metadata"]["uid"]}}
    assert (record.method, record.subresource) == ("POST", "eviction")
    assert record.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p", "namespace": "ns"},
        "deleteOptions": {**options, "gracePeriodSeconds": 3},
    }
    assert server.get(pod)["metadata"]["deletionTimestamp"]


async def test_a_custom_resource_is_deleted(server, cluster):
    """As any other; cluster-wide ones have no namespace."""
    server.register("example.com/v1", "Gadget", "gadgets", namespaced=False)
    gadget = server.create({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "g"}})
    async with Dispatcher() as dispatcher:
        await dispatcher.run(cluster.delete(gadget))
    assert server.find(gadget) is None


# ---- when it is done -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "done"), [("delete", True), ("evict", False)])
async def test_nothing_of_the_name(server, cluster, kind, done):
    """A DELETE may have been sent twice by the HTTP client: gone is done. A POST was not: GONE."""
    answer = await tried(removal(cluster, kind, pod_dict()))
    if done:
        assert answer is None
    else:
        error, verdict = answer
        assert (error.status, verdict.kind) == (404, VerdictKind.GONE)


@pytest.mark.parametrize("kind", BOTH)
async def test_another_object_of_the_name(server, cluster, kind):
    """409 by the precondition, settled by a read: GONE, and the new object lives."""
    old = running_pod(server)
    new = server.recreate(old)
    async with Dispatcher() as dispatcher:
        outcome = await dispatcher.submit(removal(cluster, kind, old)).outcome()
    assert isinstance(outcome, Failed)
    assert outcome.verdict.kind is VerdictKind.GONE
    assert not outcome.ambiguous
    assert "deletionTimestamp" not in server.get(new)["metadata"]
    assert [record.method for record in server.audit] == [written(server)[0].method, "GET"]


@pytest.mark.parametrize("kind", BOTH)
async def test_a_version_that_has_moved(server, cluster, kind):
    """It was decided on that very state: it fails, and the Pod lives."""
    pod = running_pod(server)
    server.patch_object(pod, {"metadata": {"labels": {"safe": "to-evict-no"}}})
    async with Dispatcher() as dispatcher:
        outcome = await dispatcher.submit(removal(cluster, kind, pod, fence="version")).outcome()
    assert isinstance(outcome, Failed)
    assert "decided on version" in str(outcome.error)
    assert "deletionTimestamp" not in server.get(pod)["metadata"]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("after", ["dying", "gone", "recreated", "not landed"])
async def test_a_lost_answer(server, cluster, kind, after):
    """It is looked for: gone, dying or replaced, it was done. What a controller has made since is left alone."""
    pod = running_pod(server)
    lose(server, applied=after != "not landed")

    def meanwhile(record):
        if after in ("gone", "recreated"):
            server.finish(pod)
        if after == "recreated":
            server.put(pod)

    server.hook(meanwhile, times=1, method="GET")
    async with Dispatcher(SHORT) as dispatcher:
        outcome = await dispatcher.submit(removal(cluster, kind, pod)).outcome()
    assert isinstance(outcome, Succeeded)
    assert len(written(server)) == (2 if after == "not landed" else 1)
    found = server.find(pod)
    if after == "recreated":
        assert "deletionTimestamp" not in found["metadata"]
    else:
        assert found is None or found["metadata"]["deletionTimestamp"]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("then", ["gone", "made again"])
async def test_a_late_landing(server, cluster, kind, then):
    """A request that the read had missed lands before the next one: the 404, or the new uid, is our own doing."""
    pod = running_pod(server)
    lose(server, applied=False)

    def land(record):
        if len(server.audit) > 1:
            server.finish(pod)
            if then == "made again":
                server.put(pod)

    server.hook(land, when=lambda record: record.method != "GET")
    async with Dispatcher(SHORT) as dispatcher:
        outcome = await dispatcher.submit(removal(cluster, kind, pod)).outcome()
    assert isinstance(outcome, Succeeded)
    found = server.find(pod)
    assert found is None if then == "gone" else "deletionTimestamp" not in found["metadata"]


async def test_a_delete_by_name_alone_is_not_repeated_in_doubt(server, cluster):
    """Whatever has the name by then may be another object: it ends as ambiguous."""
    server.create(config_map())
    lose(server, applied=True)
    async with Dispatcher(SHORT) as dispatcher:
        outcome = await dispatcher.submit(cluster.delete(ObjectRef("v1", "ConfigMap", "ns", "c"))).outcome()
    assert isinstance(outcome, Failed)
    assert outcome.ambiguous
    assert len(written(server)) == 1


async def test_a_delete_by_name_that_was_refused_is_repeated(server, cluster):
    """What was surely not applied goes again."""
    server.create(config_map())
    server.fail(status=429, retry_after=1, method="DELETE")
    async with Dispatcher(SHORT) as dispatcher:
        await dispatcher.run(cluster.delete(ObjectRef("v1", "ConfigMap", "ns", "c")))
    assert server.find("ConfigMap", "c", namespace="ns") is None


def test_what_an_answer_means():
    """By what holds the name, and by what may have been applied before."""
    delete, evict = OFFLINE.delete(pod_dict()), OFFLINE.evict(pod_dict())
    for call in (delete, evict):
        assert call.settled_by(dying(pod_dict()), False) == Applied(dying(pod_dict()))
        assert call.settled_by(None, True) == Applied(None)
        assert call.settled_by(pod_dict(uid="u2"), True) == Applied(None)
        assert isinstance(call.settled_by(pod_dict(uid="u2"), False), Refused)
        again = call.settled_by(pod_dict(), True)
        assert isinstance(again, Again)
        repeated: Any = again.call
        assert repeated.doubtful
    assert delete.settled_by(None, False) == Applied(None)
    assert isinstance(evict.settled_by(None, False), Refused)


@pytest.mark.parametrize("kind", BOTH)
async def test_a_watch_that_is_quicker_than_the_answer(server, cluster, kind):
    """A reflector sees the object gone before the answer to our own deletion has come: that is its success."""
    pod = running_pod(server)
    server.latency = 1.0
    async with Dispatcher() as dispatcher:
        handle = dispatcher.submit(removal(cluster, kind, pod, grace_period=0))
        await asyncio.sleep(0.6)
        assert server.find(pod) is None
        dispatcher.forget(ObjectRef.of(pod), "deleted")
        outcome = await handle.outcome()
    assert isinstance(outcome, Succeeded), outcome


@pytest.mark.parametrize("kind", BOTH)
async def test_what_was_not_deleted_is_in_the_report(server, cluster, kind):
    """Rule R16: of a dispatcher that is closed while the server refuses for now."""
    pod = running_pod(server)
    server.fail(status=429, times=None, when=lambda record: record.method != "GET")
    async with Dispatcher() as dispatcher:
        handle = dispatcher.submit(removal(cluster, kind, pod))
        report = await dispatcher.aclose()
    assert report.not_deleted == (handle,)


def test_two_budgets_on_one_pod():
    """A 500 that passes only when somebody edits a budget: PERMANENT. Another 500 is looked into."""
    call = OFFLINE.evict(pod_dict())
    budgets = failure(500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not …")
    assert call.classify(still_attempt(call), budgets).kind is VerdictKind.PERMANENT
    other = failure(500, "etcdserver: request timed out", request="POST /x")
    assert call.classify(still_attempt(call), other).kind is VerdictKind.RECONCILE


# ---- in the queue ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOTH)
def test_once_is_enough(kind):
    """Two that ask for the same become one; other options are another wish."""
    one, two = removal(OFFLINE, kind, pod_dict()), removal(OFFLINE, kind, pod_dict())
    assert two.merge(one) == two
    assert removal(OFFLINE, kind, pod_dict(), grace_period=0).merge(one) is None
    doubtful = one.settled_by(pod_dict(), True).call
    assert two.merge(doubtful).doubtful


async def test_dozens_of_deletes_for_one_victim(server, cluster):
    """One request."""
    pod = running_pod(server)
    async with Dispatcher(DispatcherConfig(max_in_flight=1)) as dispatcher:
        handles = [dispatcher.submit(cluster.delete(pod)) for _ in range(12)]
        outcomes = [await handle.outcome() for handle in handles]
    assert isinstance(outcomes[-1], Succeeded)
    assert all(isinstance(outcome, Overwritten) for outcome in outcomes[:-1])
    assert len(server.audit) == 1


@pytest.mark.parametrize("kind", BOTH)
def test_an_object_that_is_dying_already(kind):
    """Nothing needs to be done, unless something more is asked for."""
    assert removal(OFFLINE, kind, dying(pod_dict())).is_noop()
    assert not removal(OFFLINE, kind, pod_dict()).is_noop()
    assert not removal(OFFLINE, kind, dying(pod_dict()), grace_period=0).is_noop()
    assert not OFFLINE.delete(dying(pod_dict()), propagation="Foreground").is_noop()


@pytest.mark.parametrize(
    ("obj", "fields", "gone"),
    [
        (pod_dict(), {}, True),
        (pod_dict(nodeName="n1"), {}, False),
        (pod_dict(nodeName="n1"), {"grace_period": 0}, True),
        (pod_dict(nodeName="n1", terminationGracePeriodSeconds=0), {}, True),
        ({**pod_dict(nodeName="n1"), "status": {"phase": "Succeeded"}}, {}, True),
        (config_map(uid="u1"), {}, True),
        (config_map(uid="u1", finalizers=["x"]), {}, False),
        (config_map(uid="u1"), {"propagation": "Foreground"}, False),
        (config_map(uid="u1"), {"propagation": "Orphan"}, False),
        ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}}, {}, False),
    ],
)
def test_what_is_shown_of_a_delete(obj, fields, gone):
    """L18: gone where nothing keeps it; else dying, for a Pod that still runs holds its room."""
    call = OFFLINE.delete(obj, **fields)
    shown = call.apply(obj)
    assert (shown is None) == gone
    if not gone:
        assert shown["metadata"]["deletionTimestamp"] == call.asked
        assert "deletionTimestamp" not in obj["metadata"]
        assert call.apply(shown) == shown


@pytest.mark.parametrize("kind", BOTH)
def test_what_is_not_shown(kind):
    """Another object of the name stays; nothing stays nothing."""
    call = removal(OFFLINE, kind, pod_dict())
    assert call.apply(pod_dict(uid="u2")) == pod_dict(uid="u2")
    assert call.apply(None) is None


async def test_a_deleted_pod_is_shown_as_the_server_has_it(server, cluster):
    """From the submission on: a running Pod dies, one without a node is gone."""
    runs, waits = running_pod(server), server.create(pod_dict("q", uid=None, version=None))
    server.latency = 1
    async with Dispatcher() as dispatcher:
        for pod in (runs, waits):
            dispatcher.submit(cluster.delete(pod))
        shown = dispatcher.overlay([runs, waits], api_version="v1", kind="Pod", namespace="ns")
        assert [pod["metadata"]["name"] for pod in shown] == ["p"]
        assert shown[0]["metadata"]["deletionTimestamp"]
