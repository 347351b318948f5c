"""What controllers do, on request or after every write; and the quantities by which quotas count."""

import asyncio
from decimal import Decimal
from typing import Any

import aiohttp
import pytest

from asyncdispatch.testing import EmbeddedAPIServer
from asyncdispatch.testing.apiserver.quotas import quantity, written
from asyncdispatch.testing.apiserver.selectors import chooses
from tests.testing.apiserver.support import Http, pod

APP = {"app": "web"}


def budget(**spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}}
    return {**head, "spec": {"selector": {"matchLabels": APP}, **spec}}


def quota(**hard: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}


def evicting(name: str) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}


def scene(server: EmbeddedAPIServer, count: int) -> None:
    for number in range(count):
        server.put(pod(f"p{number}", labels=APP, nodeName="n1"))
        server.run_pod(f"p{number}")


@pytest.mark.parametrize(
    ("spec", "desired", "allowed"),
    [
        ({"minAvailable": 2}, 2, 2),
        ({"minAvailable": "50%"}, 2, 2),
        ({"minAvailable": "30%"}, 2, 2),
        ({"minAvailable": 9}, 9, 0),
        ({"maxUnavailable": 1}, 3, 1),
        ({"maxUnavailable": "50%"}, 2, 2),
        ({"maxUnavailable": 9}, 0, 4),
    ],
)
async def test_budgets_are_counted(spec: dict[str, Any], desired: int, allowed: int, server: EmbeddedAPIServer) -> None:
    scene(server, 4)
    server.put(pod("foreign"))
    server.create(budget(**spec))
    server.run_controllers()
    assert server.get("PodDisruptionBudget", "b")["status"] == {
        "observedGeneration": 1, "expectedPods": 4, "currentHealthy": 4,
        "desiredHealthy": desired, "disruptionsAllowed": allowed,
    }  # fmt: skip


async def test_a_round_without_work_writes_nothing(server: EmbeddedAPIServer) -> None:
    scene(server, 2)
    server.create(budget(minAvailable=1))
    server.create(quota(pods="3"))
    server.run_controllers()
    before = server.resource_version
    server.run_controllers()
    assert server.resource_version == before


async def test_an_evicted_pod_does_not_count_as_healthy(server: EmbeddedAPIServer, http: Http) -> None:
    """Its budget opens again when another one has taken its place."""
    scene(server, 3)
    server.create(budget(minAvailable=2))
    server.run_controllers()
    path = "/api/v1/namespaces/default/pods"
    assert (await http.post(f"{path}/p0/eviction", evicting("p0"))).status == 201
    record = server.audit[-1]
    assert (record.verb, record.name, record.subresource, record.applied) == ("evict", "p0", "eviction", True)
    assert record.uid == server.get("Pod", "p0")["metadata"]["uid"]
    server.run_controllers()
    status = server.get("PodDisruptionBudget", "b")["status"]
    assert (status["currentHealthy"], status["disruptionsAllowed"]) == (2, 0)
    assert "disruptedPods" not in status
    assert (await http.post(f"{path}/p1/eviction", evicting("p1"))).status == 429
    server.finish("Pod", "p0")
    server.put(pod("p3", labels=APP, nodeName="n1"))
    server.run_pod("Pod", "p3")
    server.run_controllers()
    assert (await http.post(f"{path}/p1/eviction", evicting("p1"))).status == 201


async def test_an_always_allowed_eviction_of_an_unready_pod(server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod("p0", labels=APP, nodeName="n1") | {"status": {"phase": "Running"}})
    server.create(budget(minAvailable=1))
    server.run_controllers()
    path = "/api/v1/namespaces/default/pods/p0/eviction"
    assert (await http.post(path, evicting("p0"))).status == 429
    server.patch_object("PodDisruptionBudget", {"spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow"}}, "b")
    assert (await http.post(path, evicting("p0"))).status == 201


async def test_a_budget_has_one_of_two_numbers(server: EmbeddedAPIServer, http: Http) -> None:
    both = budget(minAvailable=1, maxUnavailable=1)
    reply = await http.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", both)
    assert (reply.status, reply.causes) == (422, [("spec", "FieldValueInvalid")])


async def test_quotas_are_counted_and_counted_again(server: EmbeddedAPIServer, http: Http) -> None:
    """A create charges the quota at once; what has ended is given back by the controller alone."""
    server.put(pod("old"))
    server.create(quota(pods="2", **{"count/configmaps": "1"}))
    path = "/api/v1/namespaces/default"
    assert (await http.post(f"{path}/pods", pod("free"))).status == 201
    server.finish("Pod", "free")
    server.run_controllers()
    assert server.get("ResourceQuota", "q")["status"]["used"] == {"pods": "1", "count/configmaps": "0"}
    assert (await http.post(f"{path}/pods", pod("a"), dryRun="All")).status == 201
    assert (await http.post(f"{path}/pods", pod("a"))).status == 201
    assert (await http.post(f"{path}/pods", pod("b"))).status == 403
    server.patch_object("Pod", {"status": {"phase": "Succeeded"}}, "old")
    assert (await http.post(f"{path}/pods", pod("b"))).status == 403
    server.run_controllers()
    assert (await http.post(f"{path}/pods", pod("b"))).status == 201
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    assert (await http.post(f"{path}/configmaps", config)).status == 201
    reply = await http.post(f"{path}/configmaps", {**config, "metadata": {"name": "d"}})
    assert "requested: count/configmaps=1, used: count/configmaps=1, limited: count/configmaps=1" in reply.text


async def test_a_namespace_ends_when_what_is_in_it_has_ended(server: EmbeddedAPIServer) -> None:
    """A Pod with a grace period holds it until its kubelet is done."""
    server.put({**pod(nodeName="n1"), "metadata": {"name": "web", "namespace": "old"}})
    server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "old"}})
    server.run_controllers()
    assert server.find("ServiceAccount", "default", namespace="old") is not None
    server.delete("Namespace", "old")
    server.run_controllers()
    assert [key for key in server.objects if key[1] == "old"] == [("Pod", "old", "web")]
    assert "deletionTimestamp" in server.get("Pod", "web", namespace="old")["metadata"]
    server.finish("Pod", "web", namespace="old")
    server.run_controllers()
    assert server.find("Namespace", "old") is None


@pytest.mark.looptime
async def test_controllers_may_run_after_every_write() -> None:
    async with EmbeddedAPIServer(controllers=True) as server, aiohttp.ClientSession() as session:
        http = Http(server, session)
        path = "/api/v1/namespaces/default"
        assert (await http.post(f"{path}/resourcequotas", quota(pods="1"))).status == 201
        assert (await http.post(f"{path}/pods", pod("a"))).status == 201
        assert (await http.post(f"{path}/pods", pod("b"))).status == 403
        assert (await http.delete(f"{path}/pods/a")).status == 200
        assert (await http.post(f"{path}/pods", pod("b"))).status == 201
        assert (await http.delete(path)).status == 200
        await asyncio.sleep(0.1)
        assert server.find("Namespace", "default") is None
    server.put(pod("late"))  # nothing runs any more, nothing is wrong either


@pytest.mark.parametrize(
    ("text", "number", "name", "canonical"),
    [
        ("1", 1, "cpu", "1"),
        ("500m", "0.5", "cpu", "500m"),
        ("1500m", "1.5", "cpu", "1500m"),
        ("2000m", 2, "cpu", "2"),
        ("1Gi", 2**30, "memory", "1Gi"),
        ("1024Mi", 2**30, "memory", "1Gi"),
        ("1G", 10**9, "memory", "1000000000"),
        ("0", 0, "memory", "0"),
        (3, 3, "pods", "3"),
        ("much", 0, "pods", "0"),
    ],
)
def test_quantities(text: object, number: Any, name: str, canonical: str) -> None:
    assert quantity(text) == Decimal(number)
    assert written(quantity(text), name) == canonical


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_selectors_of_objects(selector: Any, chosen: bool) -> None:
    assert chooses(selector, pod(labels=APP)) is chosen
