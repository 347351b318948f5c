"""Nomination on a real API server with the real scheduler, with no rights but those of the shipped manifests."""

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from asyncdispatch.nomination import NominationState
from asyncdispatch.nomination.decisions import PREFIX
from benchmarks.plane import in_parallel
from tests.e2e.nominating import (
    MERGE,
    NAME,
    is_bound,
    is_unschedulable,
    nominating,
    nomination_plane,
    patch,
    place,
    ungate,
)
from tests.nomination.support import decide

S = NominationState


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own() -> Any:
    async with nomination_plane() as plane:
        yield plane


async def test_a_gated_pod_is_nominated_and_let_go(own):
    """Nominate, confirm, ungate: the real scheduler takes the node."""
    made = await own.add_pod("gated", "ns", gates=("quota",), requests={"cpu": "100m"})
    async with nominating(own) as nominator:
        handle = await nominator.nominate(decide(made, "n2"))
        assert await handle.written(), handle.settled
        found = await own.pod("gated", "ns")
        assert found["status"]["nominatedNodeName"] == "n2"
        assert found["spec"].get("nodeName") is None
        assert found["metadata"]["annotations"][f"{PREFIX}/decision-id"] == handle.decision_id
        writers = [
            entry["manager"]
            for entry in found["metadata"]["managedFields"]
            if "f:nominatedNodeName" in entry["fieldsV1"].get("f:status", {})
        ]
        assert writers == [PREFIX]
        assert await nominator.confirm(handle.decision_id)
        await ungate(own, "gated")
        outcome = await asyncio.wait_for(handle.outcome(), 20)
        assert (outcome.state, outcome.bound_to) == (S.HIT, "n2")
    await own.end_pod("gated", "ns")


async def test_taken_back(own):
    """Withdrawn: all that stays is the annotation that counts; a foreign value is never touched."""
    made = await own.add_pod("back", "ns", gates=("quota",))
    theirs = await own.add_pod("theirs", "ns", gates=("quota",))
    await patch(own, "theirs", {"status": {"nominatedNodeName": "n1"}}, role="admin")
    async with nominating(own) as nominator:
        handle = await nominator.nominate(decide(made, "n1"))
        assert await handle.written(), handle.settled
        assert (await nominator.withdraw(handle.decision_id)).state is S.WITHDRAWN
        refused = await (await nominator.nominate(decide(theirs, "n2"))).outcome()
        assert refused.state is S.REJECTED
        unknown = await (await nominator.nominate(decide(made, "nowhere"))).outcome()
        assert unknown.reason == "there is no node nowhere"
    found = await own.pod("back", "ns")
    assert "nominatedNodeName" not in found["status"]
    assert set(found["metadata"]["annotations"]) == {f"{PREFIX}/hinted-seconds"}
    assert (await own.pod("theirs", "ns"))["status"]["nominatedNodeName"] == "n1"
    for name in ("back", "theirs"):
        await own.end_pod(name, "ns")


async def test_the_same_value_by_another_is_told_from_ours(own):
    """Cleared and set again by somebody else, to the same node, with our annotations still there: not ours (N3)."""
    made = await own.add_pod("same", "ns", gates=("quota",))
    async with nominating(own, drain_timeout=0.01) as nominator:
        handle = await nominator.nominate(decide(made, "n1"))
        assert await handle.written(), handle.settled
        await own.scheduler.stop()
        nominator._machine.leave(handle.decision_id, "as if killed", 0.0)
    for value in (None, "n1"):
        assert (await patch(own, "same", {"status": {"nominatedNodeName": value}}, role="scheduler")).status == 200
    async with nominating(own) as second:
        found = second.handle(handle.decision_id)
        assert found is not None
        assert (await second.withdraw(handle.decision_id)).state is S.FOREIGN
    assert (await own.pod("same", "ns"))["status"]["nominatedNodeName"] == "n1"
    await own.scheduler.start()
    await own.end_pod("same", "ns")


async def test_a_hint_on_a_full_node_is_not_written(own):
    """The guards see what is taken; of what another has nominated there as well."""
    await own.add_node("full", cpu="2", labels={"for": "full"})
    await own.add_pod("takes-all", "ns", requests={"cpu": "2"}, nodeName="full")
    waits = await own.add_pod("waits", "ns", gates=("quota",), requests={"cpu": "100m"})
    async with nominating(own) as nominator:
        outcome = await (await nominator.nominate(decide(waits, "full"))).outcome()
        assert (outcome.state, outcome.reason) == (S.REJECTED, "full has not enough cpu free")
    found = await own.pod("waits", "ns")
    assert "nominatedNodeName" not in found["status"]
    assert "annotations" not in found["metadata"]
    for name in ("takes-all", "waits"):
        await own.end_pod(name, "ns")


@pytest.mark.parametrize("node", ["crammed", "nowhere"])
async def test_a_hint_that_is_wrong_costs_nothing(own, node):
    """Past all guards, on a full node or one that is not there: the scheduler looks at all nodes, and binds."""
    if node == "crammed":
        await own.add_node("crammed", cpu="2")
        await own.add_pod("takes-it", "ns", requests={"cpu": "2"}, nodeName="crammed")
    await own.add_pod("misled", "ns", gates=("quota",), requests={"cpu": "100m"})
    assert (await patch(own, "misled", {"status": {"nominatedNodeName": node}})).status == 200
    await ungate(own, "misled")
    bound = await own.until(place("misled"), is_bound)
    assert bound["spec"]["nodeName"] not in ("crammed", "nowhere")
    await own.end_pod("misled", "ns")
    if node == "crammed":
        await own.end_pod("takes-it", "ns")


async def test_a_hint_keeps_the_place_of_a_gated_pod(own):
    """The scheduler counts it as taken for Pods of equal or lower priority, before the gate is lifted."""
    await own.add_node("kept", cpu="2", labels={"for": "kept"})
    fields: dict[str, Any] = {"requests": {"cpu": "1500m"}, "nodeSelector": {"for": "kept"}}
    made = await own.add_pod("job", "ns", gates=("quota",), priorityClassName="high", **fields)
    async with nominating(own) as nominator:
        handle = await nominator.nominate(decide(made, "kept"))
        assert await handle.written(), handle.settled
        await own.add_pod("lower", "ns", **fields)
        await own.add_pod("equal", "ns", priorityClassName="high", **fields)
        for name in ("lower", "equal"):
            await own.until(place(name), is_unschedulable)
        assert await nominator.confirm(handle.decision_id)
        await ungate(own, "job")
        assert (await asyncio.wait_for(handle.outcome(), 20)).state is S.HIT
    for name in ("job", "lower", "equal"):
        await own.end_pod(name, "ns")


async def test_every_other_write_is_refused(own):
    """RBAC and the policy: with the nominator's own account nothing else can be done."""
    await own.add_pod("p", "ns", gates=("quota",), labels={"a": "b"})
    await patch(own, "p", {"metadata": {"annotations": {"theirs": "1"}}}, sub="", role="admin")
    nominated = {"status": {"nominatedNodeName": "n1"}}
    assert (await patch(own, "p", nominated)).status == 200
    denied = [
        {"status": {"nominatedNodeName": "n2"}},
        {"status": {"phase": "Running"}},
        {"status": {"message": "x"}},
        {"status": {"reason": "x"}},
        {"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}},
        {"status": {"hostIP": "10.0.0.2", "hostIPs": [{"ip": "10.0.0.2"}]}},
        {"status": {"startTime": "2026-01-01T00:00:00Z"}},
        {"status": {"nominatedNodeName": None, "phase": "Failed"}},
        {"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}},
        {"metadata": {"labels": {"a": "c"}}},
        {"metadata": {"labels": None}},
        {"metadata": {"finalizers": ["example.com/held"]}},
        {"metadata": {"annotations": {"mine": "1"}}},
        {"metadata": {"annotations": {"theirs": "2"}}},
        {"metadata": {"annotations": {"theirs": None}}},
    ]
    for body in denied:
        answer = await patch(own, "p", body)
        assert answer.status == 422, (body, answer)
        assert "denied request" in answer.body["message"]
    owned = {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "u"}]}}
    assert "ownerReferences" not in (await patch(own, "p", owned)).body["metadata"]  # the server ignores that here
    allowed = {"metadata": {"annotations": {f"{PREFIX}/reason": "r"}}, "status": {"nominatedNodeName": None}}
    assert (await patch(own, "p", allowed)).status == 200
    binding = {"metadata": {"name": "p"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}
    forbidden = [
        ("POST", f"{place('p')}/binding", binding),
        ("DELETE", place("p"), None),
        ("DELETE", "/api/v1/namespaces/ns/pods", None),
        ("POST", "/api/v1/namespaces/ns/pods", own.pod_body("q", "ns")),
        ("POST", "/api/v1/namespaces/ns/bindings", binding),
        ("PUT", f"{place('p')}/status", await own.pod("p", "ns")),
        ("PATCH", f"{place('p')}/resize", {"spec": {}}),
        ("PATCH", f"{place('p')}/ephemeralcontainers", {"spec": {}}),
        ("POST", f"{place('p')}/eviction", {"metadata": {"name": "p"}}),
        ("PATCH", place("p"), {"spec": {"nodeName": "n1"}}),
        ("PUT", place("p"), await own.pod("p", "ns")),
        ("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}}),
        ("PATCH", "/api/v1/nodes/n1/status", {"status": {"allocatable": {"cpu": "0"}}}),
        ("DELETE", f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{NAME}", None),
        ("DELETE", f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{NAME}", None),
        ("GET", "/api/v1/namespaces/ns/secrets", None),
    ]
    for method, path, body in forbidden:
        options = {"content_type": MERGE} if method == "PATCH" else {}
        answer = await own.request(method, path, body, role="nominator", **options)
        assert answer.status == 403, (method, path, answer)
    assert (await patch(own, "p", {"status": {"message": "x"}}, role="admin")).status == 200  # the policy is ours alone
    await own.end_pod("p", "ns")


async def test_rollback_while_the_scheduler_works(own):
    """500 live hints go within their bound, and each Pod is bound or pending, never stuck (N10, N12)."""
    count = 500
    names = [f"r{index}" for index in range(count)]
    for name in ("many-1", "many-2"):
        await own.add_node(name, cpu="8", pods=400, labels={"for": "many"})
    fields: dict[str, Any] = {"gates": ("quota",), "requests": {"cpu": "10m"}, "nodeSelector": {"for": "many"}}
    made = await in_parallel(own.add_pod(name, "ns", **fields) for name in names)
    async with nominating(own, writes_per_second=100.0, burst=20, drain_timeout=120) as nominator:
        nominating_all = [decide(pod, f"many-{1 + index % 2}", ttl=120) for index, pod in enumerate(made)]
        handles = [await nominator.nominate(decision) for decision in nominating_all]
        assert all([await handle.written() for handle in handles]), [handle.settled for handle in handles]
        freeing = asyncio.create_task(in_parallel(ungate(own, name) for name in names))
        outcomes = await nominator.rollback("a drill")
        assert len(outcomes) == count  # all, within drain_timeout; how soon on a quiet machine is for virtual time
        assert {outcome.state for outcome in outcomes} <= {S.ROLLED_BACK, S.HIT, S.FALLBACK}
        await freeing
    await in_parallel(own.until(place(name), is_bound, timeout=60) for name in names)
    await in_parallel(own.end_pod(name, "ns") for name in names)


async def test_drill_1_the_node_loses_its_room(own):
    """A Pod of higher priority takes the room: the hint goes, and its Pod is bound elsewhere, never stuck."""
    await own.add_node("drill-1", cpu="4", labels={"drill": "1"})
    low = await own.add_pod("low", "ns", gates=("quota",), requests={"cpu": "3"}, nodeSelector={"drill": "1"})
    async with nominating(own) as nominator:
        handle = await nominator.nominate(decide(low, "drill-1"))
        assert await handle.written(), handle.settled
        await own.add_pod("high", "ns", requests={"cpu": "3"}, priorityClassName="high", nodeSelector={"drill": "1"})
        await own.until(place("high"), lambda pod: pod["spec"].get("nodeName") == "drill-1")
        outcome = await asyncio.wait_for(handle.outcome(), 20)
        assert outcome.state in (S.STALE, S.CLEARED)
        assert "nominatedNodeName" not in (await own.pod("low", "ns"))["status"]
        await own.add_node("drill-1b", cpu="4", labels={"drill": "1"})
        await ungate(own, "low")
        await own.until(place("low"), lambda pod: pod["spec"].get("nodeName") == "drill-1b")
    for name in ("low", "high"):
        await own.end_pod(name, "ns")


async def test_drill_2_two_writers(own):
    """The scheduler writes between our read and our write: we lose, read again, and do not overwrite it."""
    made = await own.add_pod("two", "ns", gates=("quota",))

    async def meanwhile(pod, node):
        body = {"status": {"nominatedNodeName": "n2"}}
        assert (await patch(own, "two", body, role="scheduler")).status == 200
        return True

    async with nominating(own, precheck=meanwhile) as nominator:
        outcome = await (await nominator.nominate(decide(made, "n1"))).outcome()
        assert outcome.state is S.REJECTED
        assert outcome.reason == "the Pod is nominated to n2 already"
    found = await own.pod("two", "ns")
    assert found["status"]["nominatedNodeName"] == "n2"
    assert not [key for key in found["metadata"].get("annotations", {}) if key.startswith(PREFIX)]
    await own.end_pod("two", "ns")


async def test_drill_3_a_victim_with_a_long_grace_period(own):
    """Its node is not taken for free while it terminates; the one it was preempted for is bound when it has gone."""
    await own.add_node("drill-3", cpu="4", labels={"drill": "3"})
    fields: dict[str, Any] = {"requests": {"cpu": "3"}, "nodeSelector": {"drill": "3"}}
    await own.add_pod("victim", "ns", terminationGracePeriodSeconds=600, **fields)
    await own.until(place("victim"), lambda pod: pod["spec"].get("nodeName") == "drill-3")
    async with nominating(own) as nominator:
        await own.add_pod("taker", "ns", priorityClassName="higher", **fields)
        await own.until(place("victim"), lambda pod: "deletionTimestamp" in pod["metadata"])
        await own.until(place("taker"), lambda pod: pod["status"].get("nominatedNodeName") == "drill-3")
        small = await own.add_pod("small", "ns", gates=("quota",), nodeSelector={"drill": "3"})
        outcome = await (await nominator.nominate(decide(small, "drill-3"))).outcome()
        assert outcome.state is S.REJECTED
        assert "a victim of a preemption is terminating on drill-3" in outcome.reason
        async with nominator.pods.events() as events:
            await own.end_pod("victim", "ns")
            async for event in events:
                if event.type == "DELETED":
                    break
            await own.until(place("taker"), lambda pod: pod["spec"].get("nodeName") == "drill-3")
            async for event in events:
                if event.object["metadata"]["name"] == "taker" and is_bound(event.object):
                    break
        report = nominator.report()
        assert report.victim_seconds is not None
        assert report.inside.pods == 1
        assert report.inside.p90 is not None
        assert report.inside.p90 >= report.victim_seconds  # the tail of the time to bind is the victim's
    for name in ("taker", "small"):
        await own.end_pod(name, "ns")
