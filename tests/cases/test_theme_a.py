"""A: ambiguous answers, duplicate and lost writes."""

import asyncio
import contextlib

import pytest

from asyncdispatch import AmbiguousOutcome, Dispatcher, DispatcherConfig, IdempotencyPolicy
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.outcomes import Failed, Succeeded
from tests.cases.support import UNSCHEDULABLE, Watcher, applied, breaks_off, config_map, new_pod, now, sent

SHORT = DispatcherConfig(attempt_timeout=1)
LOST = ["dropped", "reset", "500", "504", "slow answer", "slow write"]


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("obj", [new_pod("ana"), config_map("ana")], ids=["pod", "config map"])
async def test_a1_create_is_not_repeated_and_its_own_object_is_known_again(server, cluster, obj, how):
    """A repeated create met the caller's own Pod as a conflict, and that Pod was deleted.

    Right: one POST is applied, a read knows the object by our mark, nothing is deleted, the outcome tells the story.
    """
    breaks_off(server, how, method="POST")
    async with Dispatcher(SHORT) as dispatcher:
        outcome = await dispatcher.submit(cluster.create(obj, idempotency_key="spawn-ana")).outcome()
        await asyncio.sleep(30)
    assert isinstance(outcome, Succeeded)
    found = server.get(obj["kind"], "ana", namespace="ns")
    assert outcome.value["metadata"]["uid"] == found["metadata"]["uid"]
    assert len(applied(server, "create")) == 1
    assert not sent(server, "DELETE")
    # A write that is still under way when the read asks for it makes one more POST, which meets it as a conflict.
    assert outcome.attempts == (2 if how == "slow write" else 1)
    assert outcome.cause is not None
    if how != "slow write":
        assert [record.method for record in server.audit] == ["POST", "GET"]


@pytest.mark.parametrize("how", ["foreign before", "foreign between"])
async def test_a1_foreign_object_of_the_same_name_is_left_alone(server, cluster, how):
    """The other side of it: what has the name and not our mark is neither taken for ours nor deleted."""
    foreign = new_pod("ana", nodeName="n9")
    if how == "foreign before":
        server.create(foreign)
    else:
        server.drop(method="POST")
        server.hook(lambda record: server.create(foreign) and None, times=1, method="GET")
    async with Dispatcher(SHORT) as dispatcher:
        outcome = await dispatcher.submit(cluster.create(new_pod("ana"), idempotency_key="spawn-ana")).outcome()
    assert isinstance(outcome, Failed)
    assert not outcome.ambiguous
    assert "not of this call" in str(outcome.error)
    assert server.get("Pod", "ana", namespace="ns")["spec"]["nodeName"] == "n9"
    assert not applied(server, "create")
    assert not sent(server, "DELETE")


@pytest.mark.parametrize("how", ["500", "dropped", "slow answer"])
async def test_a3_bind_that_was_stored_behind_an_error(server, cluster, how):
    """A bind was stored and answered by an error; the scheduler gave its room away, to a Pod that must not be there.

    Right: the Pod is read and the bind has Succeeded; until the watch has caught up, an old copy is shown on its node.
    """
    server.watch_lag = 5
    first, second = server.create(new_pod("p1")), server.create(new_pod("p2"))
    breaks_off(server, how, path="*/p1/binding")
    async with Watcher(server, "/api/v1/namespaces/ns/pods") as watch, Dispatcher(SHORT) as dispatcher:

        def seen(pod):
            return dispatcher.observe(watch.objects.get(pod["metadata"]["name"], pod))

        def free():
            taken = {seen(pod)["spec"].get("nodeName") for pod in (first, second)}
            return next(node for node in ("n1", "n2") if node not in taken)

        handle = dispatcher.submit(cluster.bind(first, free()))
        assert free() == "n2"  # while it waits or flies
        outcome = await handle.outcome()
        assert isinstance(outcome, Succeeded)
        assert "p1" not in watch.objects
        assert free() == "n2"  # while the watch is behind
        await dispatcher.run(cluster.bind(second, free()))
        await asyncio.sleep(30)
        assert watch.objects["p1"]["spec"]["nodeName"] == "n1"
        assert [seen(pod)["spec"]["nodeName"] for pod in (first, second)] == ["n1", "n2"]
        assert dispatcher.statistics().unobserved == 0
    assert [server.get(pod)["spec"]["nodeName"] for pod in (first, second)] == ["n1", "n2"]
    assert len(sent(server, "POST")) == len(applied(server, "bind")) == 2


async def test_a3_create_that_was_stored_behind_an_error_is_seen(server, cluster):
    """The same for a create whose outcome is a failure: what may exist is shown until a fresh read has said."""
    server.fail(status=500, reason="", message="etcdserver: request timed out", applied=True, method="POST")
    server.fail(status=403, method="GET", times=1)
    async with Dispatcher(SHORT) as dispatcher:
        outcome = await dispatcher.submit(cluster.create(new_pod())).outcome()
        assert isinstance(outcome, Failed)
        assert outcome.ambiguous
        shown = dispatcher.overlay([], api_version="v1", kind="Pod", namespace="ns")
        assert [pod["metadata"]["name"] for pod in shown] == ["p"]
        dispatcher.observe(await dispatcher.run(cluster.read(shown[0])), fresh=True)
        assert dispatcher.overlay([], api_version="v1", kind="Pod", namespace="ns") == []


CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "ns"}}


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "foreign"])
@pytest.mark.parametrize("obj", [CLAIM, new_pod("c")], ids=["claim", "pod"])
async def test_a5_refusal_that_is_slower_than_an_attempt(server, cluster, obj, ours):
    """A claim was there, but slow admission said so only after the client's time-out, so it saw only time-outs.

    Right: the read after the first time-out settles it, ours or foreign: no row of time-outs until the deadline.
    """
    call = cluster.create(obj, idempotency_key="K", timeout=30)
    server.put(call.obj if ours else obj)
    server.delay(4, method="POST")
    server.latency = 0.01
    async with Dispatcher(DispatcherConfig(attempt_timeout=3)) as dispatcher:
        outcome = await dispatcher.submit(call).outcome()
    assert isinstance(outcome, Succeeded if ours else Failed)
    assert not outcome.ambiguous
    assert outcome.elapsed_seconds < 4
    assert len(sent(server, "POST")) == 1


@pytest.mark.parametrize("how", ["dropped", "reset", "500", "slow answer"])
@pytest.mark.parametrize("verb", ["replace", "replace status", "delete", "delete dying"])
async def test_a7_write_that_the_client_sends_again_by_itself(server, cluster, verb, how):
    """The HTTP client re-sends PUT and DELETE when a connection is closed before the answer, and meets its own work.

    Right: the conflict, or the 404, is settled: as wanted already, it has Succeeded, and was done once.
    """
    obj = server.create(new_pod() if verb != "replace" else config_map(mine="old"))
    wanted = {**obj, "data": {"mine": "new"}} if verb == "replace" else {**obj, "status": {"phase": "Failed"}}
    if verb == "delete dying":
        obj = server.patch_object(obj, {"metadata": {"finalizers": ["example.com/held"]}})
    method = "DELETE" if verb.startswith("delete") else "PUT"
    breaks_off(server, how, method=method)
    async with Dispatcher(SHORT) as dispatcher:
        await dispatcher.run(cluster.read(obj))  # a warm connection
        if method == "DELETE":
            call = cluster.delete(obj)
        else:
            call = cluster.replace(wanted, subresource="status" if verb.endswith("status") else "")
        outcome = await dispatcher.submit(call).outcome()
    assert isinstance(outcome, Succeeded)
    assert not outcome.ambiguous
    found = server.find(obj)
    if verb == "delete":
        assert found is None
    elif verb == "delete dying":
        assert found["metadata"]["deletionTimestamp"]
    else:
        assert found == outcome.value
        assert found["status" if verb.endswith("status") else "data"] in ({"phase": "Failed"}, {"mine": "new"})
    again = sent(server, method)
    assert len([record for record in again if record.applied]) == 1
    if how in ("dropped", "reset"):
        assert [record.audit_id for record in again] == ["2-1", "2-1"]  # nobody asked for the second one


async def test_a7_conflict_that_is_not_our_own(server, cluster):
    """The other side of it: somebody else's write is no success of ours, and stays."""
    obj = server.create(config_map(mine="old"))
    server.drop(method="PUT")
    server.hook(lambda record: server.patch_object(obj, {"data": {"theirs": "1"}}) and None, times=1, method="PUT")
    async with Dispatcher(SHORT) as dispatcher:
        outcome = await dispatcher.submit(cluster.replace({**obj, "data": {"mine": "new"}})).outcome()
    assert isinstance(outcome, Failed)
    assert server.get(obj)["data"] == {"mine": "old", "theirs": "1"}


@pytest.mark.parametrize("name", ["p", "job-"], ids=["named", "generated"])
async def test_a9_create_again_after_a_restart(server, name):
    """A controller ended between creating a thing and writing that down, and made a second one after its restart.

    Right: the new process finds the object by its mark. The memory of keys is of no help: it has died with the first.
    """
    obj = new_pod(name)
    server.delay(5, applied=True, method="POST", times=1)
    config = DispatcherConfig(idempotency=IdempotencyPolicy(ttl=600), attempt_timeout=20)
    with contextlib.suppress(KeyboardInterrupt):
        async with Dispatcher(config) as first:
            handle = first.submit(Cluster(server.api_client()).create(obj, idempotency_key="job/1"))
            await asyncio.sleep(1)
            raise KeyboardInterrupt
    assert handle.settled is not None
    assert handle.settled.ambiguous
    async with Dispatcher(config) as second:
        found = await second.run(Cluster(server.api_client()).create(obj, idempotency_key="job/1"))
        other = await second.run(Cluster(server.api_client()).create(new_pod("x-"), idempotency_key="job/2"))
    assert len(server.objects.of("Pod")) == 2
    assert {found["metadata"]["uid"], other["metadata"]["uid"]} == {
        pod["metadata"]["uid"] for pod in server.objects.of("Pod")
    }


@pytest.mark.parametrize("how", ["dropped", "reset", "500", "slow answer"])
async def test_a11_generated_name_whose_answer_is_lost(server, cluster, how):
    """Objects with names of the server's choice were made twice, and clearing away the double took live ones along.

    Right: found by the label of its key, exactly one. Without a key nobody can tell: ambiguous, and no second POST.
    """
    breaks_off(server, how, times=2, method="POST")
    async with Dispatcher(SHORT) as dispatcher:
        found = await dispatcher.run(cluster.create(new_pod("root-"), idempotency_key="root of a/b"))
        with pytest.raises(AmbiguousOutcome):
            await dispatcher.run(cluster.create(new_pod("other-")))
    assert found["metadata"]["name"].startswith("root-")
    assert len(sent(server, "POST")) == len(applied(server, "create")) == 2
    assert not sent(server, "DELETE")


async def test_a11_one_that_is_still_under_way(server, cluster):
    """The answer is lost and the object not there yet: that is not known to be nothing, so there is no second POST."""
    breaks_off(server, "slow write", method="POST")
    async with Dispatcher(SHORT) as dispatcher:
        with pytest.raises(AmbiguousOutcome):
            await dispatcher.run(cluster.create(new_pod("root-"), idempotency_key="root"))
        await asyncio.sleep(60)
        # The same key asked for again later finds it, instead of making another.
        await dispatcher.run(cluster.create(new_pod("root-"), idempotency_key="root"))
    assert len(sent(server, "POST")) == len(server.objects.of("Pod")) == 1


@pytest.mark.parametrize("how", ["dropped", "500", "slow answer"])
async def test_a11_patch_whose_answer_is_lost(server, cluster, how):
    """The kind for writes that may be repeated: it is, and changes nothing the second time."""
    pod = server.create(new_pod())
    breaks_off(server, how, method="PATCH")
    began = now()
    async with Dispatcher(SHORT) as dispatcher:
        patched = await dispatcher.run(cluster.patch_status(pod, conditions=[UNSCHEDULABLE]))
    assert now() - began < 3
    assert patched == server.get(pod)
    assert len(applied(server, "patch")) == 1
