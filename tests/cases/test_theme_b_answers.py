"""B: answers that mean something else than their code says."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from asyncdispatch import CallFailed, CallState, Dispatcher, DispatcherConfig
from asyncdispatch.calls import ObjectRef
from asyncdispatch.outcomes import Expired, Failed, Succeeded
from asyncdispatch.testing import answers
from asyncdispatch.testing.apiserver import service_account
from tests.cases.support import Log, config_map, new_pod, now, sent


async def test_b1_quota_that_is_used_up(server, cluster):
    """A create beyond a quota was put back at once and for ever; the API server drowned.

    Right: first after five seconds, then ever slower; the other namespace, the breaker and the retry budget know
    nothing of it; all succeed.
    """
    full = server.fail(answers.quota_exceeded("p"), times=None, method="POST", path="*/namespaces/full/pods")
    asyncio.get_running_loop().call_later(40, full.remove)
    async with Dispatcher(DispatcherConfig(max_in_flight=20)) as dispatcher:
        free = dispatcher.statistics().retry_budget
        blocked, others = (
            [dispatcher.submit(cluster.create(new_pod(f"p{n}", namespace=name), timeout=120)) for n in range(50)]
            for name in ("full", "other")
        )
        for handle in others:
            assert isinstance(await handle.outcome(), Succeeded)
        assert now() < 1
        await asyncio.sleep(30)
        statistics = dispatcher.statistics()
        assert statistics.open_breakers == ()
        assert statistics.retry_budget == free
        assert statistics.in_flight == 0
        assert {handle.state for handle in blocked} == {CallState.BACKOFF}
        for handle in blocked:
            assert isinstance(await handle.outcome(), Succeeded)
    posts = Counter(record.name or record.audit_id.split("-")[0] for record in sent(server, "POST", path="full/pods"))
    assert max(posts.values()) <= 8
    first = [record.time for record in sent(server, "POST", path="full/pods")]
    assert not [time for time in first if 0.1 < time < 5]


async def test_b3_conflict_about_a_quota(server, cluster):
    """Creates met a 409 about the quota that they all charged, and were treated as a conflict on their own object.

    Right: no read, the same body again after a short wait, counted apart from conflicts.
    """
    server.fail(answers.quota_conflict("q"), times=2, method="POST")
    log = Log()
    async with Dispatcher(observers=[log]) as dispatcher:
        made = await dispatcher.run(cluster.create(new_pod()))
    assert made["metadata"]["name"] == "p"
    requests = sent(server)
    assert [(record.method, record.status) for record in requests] == [("POST", 409), ("POST", 409), ("POST", 201)]
    assert now() < 5
    gaps = [after.time - before.time for before, after in pairwise(requests)]
    assert all(gap >= 0.5 for gap in gaps)


async def test_b5_service_account_that_is_still_coming(server, cluster):
    """A Pod created right after its namespace was refused: its service account was not there yet.

    Right: a short wait, and it succeeds.
    """
    server.admission.append(service_account)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "fresh"}}
    asyncio.get_running_loop().call_later(2, lambda: server.put(account))
    async with Dispatcher() as dispatcher:
        await dispatcher.run(cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fresh"}}))
        await dispatcher.run(cluster.create(new_pod(namespace="fresh")))
    assert now() < 6
    assert {record.status for record in sent(server, "POST", path="pods")} == {403, 201}


FARM = ObjectRef("example.com/v1", "Farm", "ns", "f")


def farm():
    return {"apiVersion": "example.com/v1", "kind": "Farm", "metadata": {"name": "f", "namespace": "ns"}}


def patches(dispatcher, cluster):
    """Three patches of one object, of which the first goes out; different fields, so that they stay apart."""
    made = [cluster.patch(FARM, {"spec": {f"s{n}": n}}, plural="farms", idempotency_key=f"k{n}") for n in range(3)]
    return [dispatcher.submit(call) for call in made]


async def test_b7_path_that_is_not_served_yet(server, cluster):
    """Custom resources that exist answered 404 while the server was starting.

    Right: the plain-text 404 says nothing of the object: tried again, and what waits behind is kept.
    """
    server.register("example.com/v1", "Farm", "farms")
    server.put(farm())
    server.fail(answers.not_served(), times=2, method="PATCH")
    async with Dispatcher() as dispatcher:
        for handle in patches(dispatcher, cluster):
            assert isinstance(await handle.outcome(), Succeeded)
    assert server.get("Farm", "f", namespace="ns")["spec"] == {"s0": 0, "s1": 1, "s2": 2}


async def test_b7_namespace_that_is_not_there_yet(server, cluster):
    """The same for a namespace that is about to appear; bounded by the call's own time."""
    missing = {"kind": "namespaces", "name": "ns"}
    server.fail(status=404, reason="NotFound", message='namespaces "ns" not found', details=missing, times=None)
    async with Dispatcher() as dispatcher:
        handle = dispatcher.submit(cluster.create(config_map(), timeout=60))
        outcome = await handle.outcome()
    assert isinstance(outcome, Expired)
    assert outcome.where == "backoff"
    assert now() <= 61
    assert len(sent(server)) <= 10


async def test_b7_object_that_is_gone(server, cluster):
    """Only an answer that names the object ends the call as GONE, and with it what waits for that object."""
    server.register("example.com/v1", "Farm", "farms")
    async with Dispatcher() as dispatcher:
        outcomes = [await handle.outcome() for handle in patches(dispatcher, cluster)]
    assert isinstance(outcomes[0], Failed)
    assert outcomes[0].verdict.kind.value == "gone"
    assert not any(isinstance(outcome, Succeeded) for outcome in outcomes)
    assert len(sent(server, "PATCH")) == 1


@pytest.mark.parametrize("code", [400, 401, 403, 409, 422, 429, 500])
@pytest.mark.parametrize("verb", ["create", "patch"])
async def test_b9_webhook_that_denies(server, cluster, verb, code):
    """A webhook may deny with any code; retries, rebases and held credentials followed from whichever it liked.

    Right: one verdict for all: denied by policy, at once, and the error says by whom and why.
    """
    denial = answers.webhook_denied("deny.example.com", "not on Fridays", code=code)
    server.fail(denial, times=None, method="POST" if verb == "create" else "PATCH")
    server.put(config_map(name="there"))
    async with Dispatcher() as dispatcher:
        if verb == "create":
            call = cluster.create(config_map(), timeout=60)
        else:
            call = cluster.patch(ObjectRef("v1", "ConfigMap", "ns", "there"), {"data": {"a": "b"}}, timeout=60)
        with pytest.raises(CallFailed) as caught:
            await dispatcher.run(call)
        assert dispatcher.statistics().unauthenticated_since is None
    outcome = caught.value.outcome
    assert isinstance(outcome, Failed)
    assert outcome.verdict.kind.value == "permanent"
    assert not outcome.ambiguous
    assert 'admission webhook "deny.example.com" denied the request: not on Fridays' in str(caught.value)
    assert len(sent(server)) == 1


async def test_b9_webhook_that_cannot_be_asked(server, cluster):
    """The kind: while a webhook is restarted nothing is stored and nothing fails, however often it is tried."""
    down = server.fail(answers.webhook_unreachable("w.example.com"), times=None, method="POST")
    asyncio.get_running_loop().call_later(30, down.remove)
    async with Dispatcher() as dispatcher:
        await dispatcher.run(cluster.create(config_map(), timeout=120))
    assert len(sent(server, "POST")) > 5
    assert not sent(server, "GET")


async def test_b11_refusal_in_plain_text(server, cluster):
    """A 429 carried plain text, parsing it raised, and the task was lost.

    Right: tried again after the pause it asks for; its text is kept.
    """
    server.fail(answers.throttled(), method="POST")
    async with Dispatcher() as dispatcher:
        await dispatcher.run(cluster.create(config_map()))
    first, second = sent(server, "POST")
    assert second.time - first.time >= 1
    server.fail(answers.throttled(), times=None, method="POST")
    async with Dispatcher() as dispatcher:
        outcome = await dispatcher.submit(cluster.create(config_map("d"), timeout=5)).outcome()
    assert isinstance(outcome, Expired)
    assert "Too many requests, please try again later." in str(outcome.cause)
