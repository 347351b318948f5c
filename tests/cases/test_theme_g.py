"""G: binding."""

import asyncio

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig, ObjectRef
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Succeeded
from tests.cases.support import UNSCHEDULABLE, Watcher, applied, condition, new_pod, now, sent

NODE = ObjectRef("v1", "Node", None, "n1")


def placing(dispatcher, *pods):
    """The first node that no Pod is shown on: each has room for one."""
    taken = {dispatcher.observe(pod)["spec"].get("nodeName") for pod in pods}
    return next(node for node in ("n1", "n2", "n3") if node not in taken)


@pytest.mark.parametrize("late", ["answer", "write"])
@pytest.mark.parametrize("end", ["expires", "is cancelled", "fails"])
async def test_g1_assumption_outlives_a_bind_in_doubt(server, cluster, late, end):
    """An assumption expired, then the bind succeeded and its event came late: the room was given away twice.

    Right: a bind in doubt says that it is, and its Pod is shown on its node until a fresh read has told.
    """
    server.watch_lag = 10
    first, second = server.create(new_pod("p1")), server.create(new_pod("p2"))
    server.delay(35, path="*/p1/binding", applied=late == "answer")
    if end == "fails":
        server.fail(status=403, times=1, method="GET", path="*/p1")
    config = DispatcherConfig(attempt_timeout=20 if end == "fails" else 60)
    pods = "/api/v1/namespaces/ns/pods"
    async with (
        Watcher(server, pods) as watch,
        Dispatcher(config) as dispatcher,
        dispatcher.completions() as completions,
    ):
        handle = dispatcher.submit(cluster.bind(first, placing(dispatcher, first), timeout=30))
        if end == "is cancelled":
            await asyncio.sleep(20)
            handle.cancel("changed its mind")
        outcome = await handle.outcome()
        assert outcome.ambiguous
        if end == "expires":
            assert isinstance(outcome, Expired)
            assert outcome.where == "in_flight"
            assert now() == pytest.approx(30, abs=0.1)
        else:
            assert isinstance(outcome, Cancelled if end == "is cancelled" else (Failed, Expired))
        assert (await anext(completions)).needs_read
        assert placing(dispatcher, first, second) == "n2"  # in doubt
        await asyncio.sleep(36 - now())
        assert placing(dispatcher, first, second) == "n2"  # still in doubt, whatever an old copy says
        fresh = await dispatcher.run(cluster.read(first))
        assert dispatcher.observe(fresh, fresh=True)["spec"]["nodeName"] == "n1"
        await dispatcher.run(cluster.bind(second, placing(dispatcher, fresh, second)))
        await asyncio.sleep(30)
        assert watch.objects["p1"]["spec"]["nodeName"] == "n1"
    assert [server.get(pod)["spec"]["nodeName"] for pod in (first, second)] == ["n1", "n2"]


async def test_g1_bind_that_did_not_land(server, cluster):
    """The other end of it: the fresh read shows that it is not there, and the room is free again."""
    pod = server.create(new_pod())
    server.drop(times=None, path="*/binding")
    async with Dispatcher() as dispatcher:
        outcome = await dispatcher.submit(cluster.bind(pod, "n1", timeout=3)).outcome()
        assert isinstance(outcome, Expired)
        fresh = await dispatcher.run(cluster.read(pod))
        assert "nodeName" not in dispatcher.observe(fresh, fresh=True)["spec"]
        assert "nodeName" not in dispatcher.observe(pod)["spec"]
        assert dispatcher.statistics().unobserved == 0


@pytest.mark.parametrize("how", ["waits for a seat", "is delayed", "lacks a requirement", "backs off", "waits in line"])
async def test_g3_node_that_goes_takes_its_waiting_binds_along(server, cluster, how):
    """When a node flapped, Pods that were only assumed on it were taken up again as placed there.

    Right: the binds to it that were never sent end as Cancelled, and nothing shows their Pods there any more.
    """
    pod, other = server.create(new_pod("p")), server.create(new_pod("other"))
    server.delay(5, path="*/other/binding")
    server.delay(5, method="PATCH")
    async with Dispatcher(DispatcherConfig(max_in_flight=1)) as dispatcher:
        context = dispatcher.contexts.begin(pod, requires=("volume",) if how == "lacks a requirement" else ())
        if how == "waits for a seat":
            dispatcher.submit(cluster.bind(other, "n2"))
        elif how == "backs off":
            server.fail(status=503, retry_after=5, path="*/p/binding")
        elif how == "waits in line":
            dispatcher.submit(cluster.patch_status(pod, conditions=[{"type": "A", "status": "True"}]))
        await asyncio.sleep(0.1)
        delay = 5 if how == "is delayed" else None
        handle = dispatcher.submit(cluster.bind(pod, "n1", context=context, not_before=delay))
        elsewhere = dispatcher.submit(cluster.bind(other, "n3", not_before=20))
        await asyncio.sleep(0.1)
        assert dispatcher.observe(pod)["spec"]["nodeName"] == "n1"
        assert dispatcher.forget(NODE, "node n1 is gone") == 1
        outcome = handle.settled
        assert isinstance(outcome, Cancelled)
        assert not outcome.ambiguous
        assert "n1 is gone" in outcome.reason
        assert "nodeName" not in dispatcher.observe(pod)["spec"]
        dispatcher.observe({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "back"}})
        assert "nodeName" not in dispatcher.observe(pod)["spec"]
        assert not elsewhere.done()
        elsewhere.cancel()
        await asyncio.sleep(20)
    assert len(sent(server, path="/p/binding")) == (how == "backs off")
    assert "nodeName" not in server.get(pod)["spec"]


async def test_g3_bind_on_the_wire_stays_in_doubt(server, cluster):
    """One that was sent may have landed: it is told as ambiguous and shown until a fresh read."""
    pod = server.create(new_pod())
    server.delay(2, path="*/binding")
    async with Dispatcher() as dispatcher:
        handle = dispatcher.submit(cluster.bind(pod, "n1"))
        await asyncio.sleep(1)
        assert dispatcher.forget(NODE, "node n1 is gone") == 1
        outcome = await handle.outcome()
        assert isinstance(outcome, Cancelled)
        assert outcome.ambiguous
        assert dispatcher.observe(pod)["spec"]["nodeName"] == "n1"
        await asyncio.sleep(5)
        fresh = await dispatcher.run(cluster.read(pod))
        assert dispatcher.observe(fresh, fresh=True)["spec"]["nodeName"] == "n1"


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_g5_two_binders(server, cluster, when):
    """Two components bound the same Pods, and the loser wrote storms of "already assigned" into its log.

    Right: a conflict leads to one read and a final answer that says where; no retry, one completion, no open breaker.
    """
    pods = [server.create(new_pod(f"p{number}")) for number in range(100)]
    lost = pods[::3][:30]
    losers = {pod["metadata"]["name"] for pod in lost}

    def rival(record):
        if record.name in losers:
            server.bind("Pod", "n5", record.name, namespace="ns")

    if when == "before":
        for pod in lost:
            server.bind(pod, "n5")
    else:
        server.hook(rival, verb="bind")
    async with Dispatcher() as dispatcher, dispatcher.completions() as completions:
        handles = [dispatcher.submit(cluster.bind(pod, "n1")) for pod in pods]
        outcomes = {handle.call.target.name: await handle.outcome() for handle in handles}
        assert dispatcher.statistics().open_breakers == ()
        assert dispatcher.statistics().attempts == 100
    told = [completion.ref.name async for completion in completions]
    assert sorted(told) == sorted(outcomes)
    for name, outcome in outcomes.items():
        if name in losers:
            assert isinstance(outcome, Failed)
            assert "bound elsewhere: n5" in str(outcome.error)
            assert outcome.attempts == 1
            assert not outcome.ambiguous
        else:
            assert isinstance(outcome, Succeeded)
    assert len(sent(server, "POST")) == 100
    assert len(sent(server, "GET")) == 30
    assert len(applied(server, "bind")) == 70


async def test_g5_same_decision_by_two(server, cluster):
    """A rival that came to the same node has done our work: that is a success. Two patches of one status as well."""
    pod = server.create(new_pod())
    server.hook(lambda record: server.bind(pod, "n1") and None, times=1, verb="bind")
    other = server.create(new_pod("q"))
    seen = {**UNSCHEDULABLE, "lastTransitionTime": "2030-01-01T00:00:00Z"}
    server.hook(
        lambda record: server.patch_object(other, {"status": {"conditions": [seen]}}) and None, times=1, method="PATCH"
    )
    async with Dispatcher() as dispatcher:
        assert await dispatcher.run(cluster.bind(pod, "n1")) == "n1"
        patched = await dispatcher.run(cluster.patch_status(other, conditions=[seen]))
    assert condition(patched, "PodScheduled") == "False"
    assert not applied(server, "bind")
    assert not applied(server, "patch")
