"""Nomination on a real API server with the real scheduler, with no rights but those of the shipped manifests."""

import asyncio
import time
from contextlib import asynccontextmanager
from typing import Any

import pytest_asyncio

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.nomination import NominationPolicy, NominationState, Nominator, manifests
from asyncdispatch.nomination.decisions import PREFIX
from asyncdispatch.testing import ControlPlane
from asyncdispatch.testing.controlplane import Role
from tests.nomination.support import decide

S = NominationState
NAMESPACE, NAME = "nomination", "asyncdispatch-nominator"
ACCOUNT = Role(f"system:serviceaccount:{NAMESPACE}:{NAME}", ("system:serviceaccounts", "system:authenticated"))
MERGE = "application/merge-patch+json"
COLLECTIONS = {
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "Deployment": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own() -> Any:
    """A control plane with a scheduler, and the manifests applied."""
    async with ControlPlane(scheduler=True, roles={"nominator": ACCOUNT}) as plane:
        await plane.add_namespace(NAMESPACE)
        for manifest in manifests(namespace=NAMESPACE, name=NAME):
            await plane.ask("POST", COLLECTIONS[manifest["kind"]], manifest)
        await plane.add_namespace("ns")
        for name in ("n1", "n2"):
            await plane.add_node(name, cpu="4")
        await enforced(plane)
        yield plane


async def enforced(plane: Any) -> None:
    """Wait until the policy is: it takes the API server a moment to see it."""
    await plane.add_pod("canary", "ns", gates=("g",))
    deadline = time.monotonic() + 20
    while (await patch(plane, "canary", {"status": {"message": str(time.monotonic())}})).status != 422:
        assert time.monotonic() < deadline, "the policy is not enforced"
    await plane.end_pod("canary", "ns")


async def patch(plane: Any, name: str, body: Any, *, sub: str = "/status", role: str = "nominator") -> Any:
    path = f"/api/v1/namespaces/ns/pods/{name}{sub}"
    return await plane.request("PATCH", path, body, role=role, content_type=MERGE)


@asynccontextmanager
async def nominating(plane: Any, **policy: Any) -> Any:
    client = plane.api_client("nominator")
    async with (
        Dispatcher() as dispatcher,
        Nominator(dispatcher, Cluster(client), NominationPolicy(**policy)) as nominator,
    ):
        yield nominator
    await client.close()


def place(name: str) -> str:
    return f"/api/v1/namespaces/ns/pods/{name}"


async def ungate(plane: Any, name: str) -> None:
    steps = [{"op": "remove", "path": "/spec/schedulingGates"}]
    await plane.ask("PATCH", place(name), steps, content_type="application/json-patch+json")


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
        {"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}},
        {"metadata": {"labels": {"a": "c"}}},
        {"metadata": {"labels": None}},
        {"metadata": {"annotations": {"mine": "1"}}},
        {"metadata": {"annotations": {"theirs": "2"}}},
        {"metadata": {"annotations": {"theirs": None}}},
    ]
    for body in denied:
        answer = await patch(own, "p", body)
        assert answer.status == 422, (body, answer)
        assert "denied request" in answer.body["message"]
    allowed = {"metadata": {"annotations": {f"{PREFIX}/reason": "r"}}, "status": {"nominatedNodeName": None}}
    assert (await patch(own, "p", allowed)).status == 200
    binding = {"metadata": {"name": "p"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}
    forbidden = [
        ("POST", f"{place('p')}/binding", binding),
        ("DELETE", place("p"), None),
        ("POST", f"{place('p')}/eviction", {"metadata": {"name": "p"}}),
        ("PATCH", place("p"), {"spec": {"nodeName": "n1"}}),
        ("PUT", place("p"), await own.pod("p", "ns")),
        ("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}}),
        ("GET", "/api/v1/namespaces/ns/secrets", None),
    ]
    for method, path, body in forbidden:
        options = {"content_type": MERGE} if method == "PATCH" else {}
        answer = await own.request(method, path, body, role="nominator", **options)
        assert answer.status == 403, (method, path, answer)
    assert (await patch(own, "p", {"status": {"message": "x"}}, role="admin")).status == 200  # the policy is ours alone
    await own.end_pod("p", "ns")


async def test_rollback_while_the_scheduler_works(own):
    """Live hints go within their bound, and each Pod is bound or pending, never stuck (N10, N12)."""
    count = 60
    made = [await own.add_pod(f"r{i}", "ns", gates=("quota",), requests={"cpu": "10m"}) for i in range(count)]
    async with nominating(own) as nominator:
        handles = [await nominator.nominate(decide(pod, f"n{1 + i % 2}", ttl=120)) for i, pod in enumerate(made)]
        assert all([await handle.written() for handle in handles]), [handle.settled for handle in handles]
        freeing = asyncio.create_task(asyncio.wait_for(_ungate_all(own, count), 60))
        outcomes = await nominator.rollback("a drill")
        await freeing
        assert len(outcomes) == count
        assert {outcome.state for outcome in outcomes} <= {S.ROLLED_BACK, S.HIT, S.FALLBACK}
    for index in range(count):
        await own.until(place(f"r{index}"), lambda pod: bool(pod["spec"].get("nodeName")))
        await own.end_pod(f"r{index}", "ns")


async def _ungate_all(plane: Any, count: int) -> None:
    for index in range(count):
        await ungate(plane, f"r{index}")
