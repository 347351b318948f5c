"""F: same name, new object; stale caches."""

import asyncio

import pytest

from asyncdispatch import CallFailed, Dispatcher, DispatcherConfig, ObjectRef, StaleContext
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.outcomes import Failed, Succeeded
from asyncdispatch.testing import EmbeddedAPIServer
from tests.cases.support import UNSCHEDULABLE, Watcher, condition, new_pod, now, sent

PODS = "/api/v1/namespaces/ns/pods"


def generations(server):
    """The states of a Pod that is deleted and created again: (old, old modified, old deleted, new)."""
    old = server.create(new_pod("web-0"))
    modified = server.patch_object(old, {"metadata": {"labels": {"late": "yes"}}})
    deleted = server.patch_object(old, {"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}})
    server.finish(old)
    return old, modified, deleted, server.create(new_pod("web-0"))


@pytest.mark.parametrize("kind", ["bind", "patch", "create behind"])
async def test_f1_late_events_of_an_older_object(server, cluster, kind):
    """A delayed event of the old Pod was applied to the new Pod of the same name.

    Right: late events of the old one change nothing, and forgetting it does not touch calls for the new one.
    """
    old, modified, deleted, new = generations(server)
    async with Dispatcher() as dispatcher:
        assert dispatcher.observe(new) == new
        if kind == "bind":
            call = cluster.bind(new, "n1", not_before=1)
        elif kind == "patch":
            call = cluster.patch_status(new, conditions=[UNSCHEDULABLE], not_before=1)
        else:
            call = cluster.create(new_pod("web-1"), not_before=1, depends_on=(ObjectRef.of(new),))
        handle = dispatcher.submit(call)
        assert dispatcher.observe(modified)["metadata"]["uid"] == old["metadata"]["uid"]
        dispatcher.observe(deleted)
        assert dispatcher.forget(ObjectRef.of(old), "deleted") == 0
        assert not handle.done()
        assert isinstance(await handle.outcome(), Succeeded)
    assert server.get(new)["metadata"]["uid"] == new["metadata"]["uid"]


async def test_f1_calls_for_the_older_object(server, cluster):
    """The other way round: the new object ends what waits for the old one, before or after it is submitted."""
    old, modified, _, new = generations(server)
    async with Dispatcher() as dispatcher:
        dispatcher.observe(modified)
        waiting = dispatcher.submit(cluster.bind(old, "n1", not_before=30))
        dispatcher.observe(new)
        late = dispatcher.submit(cluster.bind(old, "n1"))
        for handle in (waiting, late):
            outcome = await handle.outcome()
            assert isinstance(outcome, Failed)
            assert outcome.verdict.kind.value == "gone"
            assert not outcome.attempts
    assert not sent(server)


@pytest.mark.parametrize("kind", ["bind", "patch"])
async def test_f1_nobody_has_told_yet(server, cluster, kind):
    """And when no event has come at all: the uid in the request keeps it off the new Pod."""
    old, _, _, new = generations(server)
    call = cluster.bind(old, "n1") if kind == "bind" else cluster.patch_status(old, conditions=[UNSCHEDULABLE])
    async with Dispatcher() as dispatcher:
        with pytest.raises(CallFailed, match=r"now held by|uid|gone"):
            await dispatcher.run(call)
    found = server.get(new)
    assert "nodeName" not in found["spec"]
    assert condition(found, "PodScheduled") is None


@pytest.mark.parametrize("told", [False, True], ids=["nobody has told", "observed"])
async def test_f3_delayed_delete_of_an_object_that_was_replaced(server, cluster, told):
    """A grace timer remembered a Pod by name, and later deleted its healthy replacement.

    Right: the uid is a precondition of the DELETE; seen as replaced, the call ends before it is sent.
    """
    old = server.create(new_pod("web-0"))
    async with Dispatcher() as dispatcher:
        dispatcher.observe(old)
        handle = dispatcher.submit(cluster.delete(old, not_before=30))
        await asyncio.sleep(10)
        new = server.recreate(old)
        if told:
            dispatcher.observe(new)
        outcome = await handle.outcome()
        assert isinstance(outcome, Failed)
        assert outcome.verdict.kind.value == "gone"
        assert now() < 11 if told else now() >= 30
    assert server.get(new) == new
    assert [record.method for record in server.audit] == ([] if told else ["DELETE", "GET"])
    if not told:
        assert server.audit[0].body["preconditions"] == {"uid": old["metadata"]["uid"]}


@pytest.mark.parametrize("names", ["given", "generated"])
@pytest.mark.parametrize("age", [300.0, 50.0])
async def test_f5_own_creates_while_the_watch_is_silent(names, age):
    """Expectations expired after minutes of informer delay, and Pods were created that were there already.

    Right: own creates stay visible until the watch has caught up. A time limit only asks for a fresh read.
    """
    desired = 5
    async with EmbeddedAPIServer(auto_namespaces=True, watch_lag=360) as server:
        cluster = Cluster(server.api_client())
        config = DispatcherConfig(unobserved_age=age)
        async with (
            Watcher(server, PODS) as watch,
            Dispatcher(config) as dispatcher,
            dispatcher.completions() as completions,
        ):
            for _ in range(40):
                mine = dispatcher.overlay(watch.objects.values(), api_version="v1", kind="Pod", namespace="ns")
                for number in range(len(mine), desired):
                    name = "w-" if names == "generated" else f"w-{number}"
                    await dispatcher.run(cluster.create(new_pod(name)))
                await asyncio.sleep(10)
            assert len(watch.objects) == desired
            assert dispatcher.statistics().unobserved == 0
        asked = [completion async for completion in completions if completion.needs_read]
    assert len(sent(server, "POST")) == desired
    assert {completion.outcome for completion in asked} == {None}
    # What is asked for can be read, also where the server chose the name.
    assert {completion.ref.name for completion in asked} == set(watch.objects)
    assert len(asked) == desired * int(360 / age)


async def test_f5_bound_on_what_is_remembered(server, cluster):
    """The other bound, a number: what is given up is asked for aloud, never forgotten in silence."""
    async with (
        Dispatcher(DispatcherConfig(max_unobserved=3)) as dispatcher,
        dispatcher.completions() as completions,
    ):
        for number in range(5):
            await dispatcher.run(cluster.create(new_pod(f"w-{number}")))
        assert dispatcher.statistics().unobserved == 3
        mine = dispatcher.overlay([], api_version="v1", kind="Pod", namespace="ns")
        assert [pod["metadata"]["name"] for pod in mine] == ["w-2", "w-3", "w-4"]
    asked = [completion.ref.name async for completion in completions if completion.needs_read]
    assert asked == ["w-0", "w-1"]


@pytest.mark.parametrize("fault", ["none", "lost answers", "throttled"])
async def test_f7_counting_from_a_lagging_cache(fault):
    """Arithmetic on a lagging cache started surplus workers, and then ended some of them at random.

    Right: with own writes shown, exactly as many creates as wanted, and nothing is ever surplus.
    """
    desired = 10
    async with EmbeddedAPIServer(auto_namespaces=True, watch_lag=2, latency=0.02) as server:
        cluster = Cluster(server.api_client())
        if fault == "lost answers":
            server.drop(times=4, applied=True, method="POST")
        elif fault == "throttled":
            server.rate_limit(qps=4, method="POST")
        surplus = 0
        async with Watcher(server, PODS) as watch, Dispatcher() as dispatcher:
            until = now() + 20
            while now() < until:
                mine = dispatcher.overlay(watch.objects.values(), api_version="v1", kind="Pod", namespace="ns")
                names = {pod["metadata"]["name"] for pod in mine}
                surplus += max(0, len(names) - desired)
                for number in range(desired):
                    if f"worker-{number}" not in names:
                        call = cluster.create(new_pod(f"worker-{number}"), idempotency_key=f"worker-{number}")
                        dispatcher.submit(call)
                await asyncio.sleep(0.1)
            assert len(watch.objects) == desired
            assert dispatcher.statistics().unobserved == 0
    assert surplus == 0
    assert not sent(server, "DELETE")
    created = [record for record in sent(server, "POST") if record.applied]
    assert len(created) == desired
    assert fault == "throttled" or len(sent(server, "POST")) == desired


async def test_f7_patches_decided_on_a_lagging_cache(server, cluster):
    """The kind for other writes: what was patched is not patched again while the watch is behind."""
    server.watch_lag = 2
    pod = server.create(new_pod())
    async with Watcher(server, PODS) as watch, Dispatcher() as dispatcher:
        for _ in range(50):
            seen = dispatcher.observe(watch.objects.get("p", pod))
            if condition(seen, "PodScheduled") != "False":
                dispatcher.submit(cluster.patch_status(seen, conditions=[UNSCHEDULABLE]))
            await asyncio.sleep(0.1)
        assert condition(watch.objects["p"], "PodScheduled") == "False"
    assert len(sent(server, "PATCH")) == 1


async def test_f9_decision_of_an_older_generation(server, cluster):
    """Late events of the old group were put down to the new leader of the same name, which was deleted again.

    Right: a completion tells its epoch; a delete decided in it is stale, and one without a context carries the old uid.
    """
    old = server.create(new_pod("leader"))
    async with Dispatcher() as dispatcher, dispatcher.completions() as completions:
        first = dispatcher.contexts.begin(old)
        await dispatcher.run(cluster.patch(old, {"metadata": {"labels": {"group": "1"}}}, context=first))
        completion = await anext(completions)
        new = server.recreate(old)
        second = dispatcher.contexts.begin(new)
        assert completion.epoch == first.epoch != second.epoch
        with pytest.raises(StaleContext):
            dispatcher.submit(cluster.delete(new, context=first))
        outcome = await dispatcher.submit(cluster.delete(old)).outcome()
        assert isinstance(outcome, Failed)
        assert outcome.verdict.kind.value == "gone"
        # And in another process, which knows of nothing: the uid in the request keeps it off.
        async with Dispatcher() as other:
            outcome = await other.submit(Cluster(server.api_client()).delete(old)).outcome()
        assert isinstance(outcome, Failed)
    assert server.get(new) == new
    assert len(sent(server, "DELETE")) == 1
