"""C: evictions and disruption budgets."""

import asyncio
from itertools import pairwise

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig
from asyncdispatch.outcomes import Failed, Succeeded
from tests.cases.support import new_pod, now, sent

SHORT = DispatcherConfig(attempt_timeout=1)


def running_pod(server, name="p"):
    """A Pod on a node: what a budget counts."""
    pod = new_pod(name, nodeName="n1")
    pod["metadata"]["labels"] = {"app": "a"}
    return server.put({**pod, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})


def budget(server, name, *, allowed):
    """A disruption budget for those Pods, as its controller has left it."""
    status = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "observedGeneration": 1}
    return server.put(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": "ns", "generation": 1},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
            "status": status,
        }
    )


async def test_c1_budget_that_is_used_up(server, cluster):
    """Evictions that a budget blocked were repeated with no pause: the delay was zero by default.

    Right: at least five seconds between two tries, and it succeeds once the budget allows it.
    """
    pod = running_pod(server)
    budget(server, "b", allowed=0)
    asyncio.get_running_loop().call_later(60, lambda: budget(server, "b", allowed=1))
    async with Dispatcher() as dispatcher:
        await dispatcher.run(cluster.evict(pod, timeout=120))
    assert server.get(pod)["metadata"]["deletionTimestamp"]
    tries = [record.time for record in sent(server, "POST")]
    assert [record.status for record in sent(server)] == [429] * (len(tries) - 1) + [201]
    assert len(tries) <= 12
    assert min(later - earlier for earlier, later in pairwise(tries)) >= 5
    assert now() >= 60


async def test_c1_others_are_not_held_up(server, cluster):
    """The kind: what waits for a budget holds no seat, opens no breaker and spends no retry budget."""
    pod = running_pod(server)
    budget(server, "b", allowed=0)
    async with Dispatcher(DispatcherConfig(max_in_flight=1)) as dispatcher:
        blocked = dispatcher.submit(cluster.evict(pod, timeout=30))
        await asyncio.sleep(1)
        other = server.create(new_pod("q"))
        outcome = await dispatcher.submit(cluster.evict(other)).outcome()
        assert isinstance(outcome, Succeeded)
        assert outcome.elapsed_seconds < 1
        assert not (await blocked.outcome()).ambiguous
    assert "deletionTimestamp" not in server.get(pod)["metadata"]


async def test_c3_two_budgets_for_one_pod(server, cluster):
    """It is answered 500 and passes only when a person edits a budget: it fails at once, and says why."""
    pod = running_pod(server)
    budget(server, "b1", allowed=1)
    budget(server, "b2", allowed=1)
    async with Dispatcher() as dispatcher:
        outcome = await dispatcher.submit(cluster.evict(pod, timeout=600)).outcome()
    assert isinstance(outcome, Failed)
    assert "more than one PodDisruptionBudget" in str(outcome.error)
    assert not outcome.ambiguous
    assert now() < 1
    assert [record.status for record in sent(server)] == [500]


@pytest.mark.parametrize("known", [False, True], ids=["nobody has told", "observed"])
async def test_c5_pod_that_is_made_again_meanwhile(server, cluster, known):
    """Drain went on evicting by name after the Pod had been re-created elsewhere.

    Right: every try carries the uid; the call ends as GONE, and the new Pod is left alone.
    """
    pod = running_pod(server)
    budget(server, "b", allowed=0)
    async with Dispatcher() as dispatcher:
        handle = dispatcher.submit(cluster.evict(pod))
        await asyncio.sleep(8)
        assert len(sent(server, "POST")) == 2
        server.finish(pod)
        new = running_pod(server)
        budget(server, "b", allowed=1)
        if known:
            dispatcher.observe(new)
        outcome = await handle.outcome()
    assert isinstance(outcome, Failed)
    assert outcome.verdict.kind.value == "gone"
    tries = sent(server, "POST")
    assert {r.body["deleteOptions"]["preconditions"]["uid"] for r in tries} == {pod["metadata"]["uid"]}
    assert len(tries) == (2 if known else 3)
    assert server.get(new) == new


@pytest.mark.parametrize("after", ["dying", "gone", "made again"])
async def test_c5_answer_of_an_eviction_is_lost(server, cluster, after):
    """The kind: what our own first eviction has done is a success, also when the Pod has gone or was made again."""
    pod = running_pod(server)
    server.drop(applied=True, path="*/eviction")

    def meanwhile(record):
        if after != "dying":
            server.finish(pod)
        if after == "made again":
            running_pod(server)

    server.hook(meanwhile, times=1, method="GET")
    async with Dispatcher(SHORT) as dispatcher:
        assert isinstance(await dispatcher.submit(cluster.evict(pod)).outcome(), Succeeded)
    assert len(sent(server, "POST")) == 1
    if after == "made again":
        assert "deletionTimestamp" not in server.get("Pod", "p", namespace="ns")["metadata"]
