"""What is read from Pods and nodes; and that the machine is pure."""

import math
from pathlib import Path
from typing import Any

import pytest

import asyncdispatch.nomination as package
from asyncdispatch.nomination.views import NodeView, PodView, amount, amounts, requests_of
from tests.nomination.objects import VICTIM, node, pod
from tests.test_architecture import impurities

PURE = (
    "states",
    "views",
    "room",
    "judging",
    "book",
    "standing",
    "writing",
    "machine",
    "actions",
    "invariants",
    "study",
)


@pytest.mark.parametrize("name", PURE)
def test_decisions_are_pure(name: str) -> None:
    """No clock, event loop, randomness, logging or I/O; `datetime` is there to read times that others wrote."""
    source = (Path(str(package.__file__)).parent / f"{name}.py").read_text(encoding="utf-8")
    found = impurities(f"asyncdispatch.nomination.{name}", source)
    assert [each for each in found if not each.endswith("datetime.datetime")] == []
    assert "datetime.now" not in source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("1", 1000), ("250m", 250), ("0.1", 100), ("1k", 10**6), ("1Ki", 1024000), ("1.5Gi", 1.5 * 2**30 * 1000)),
        *(("1e3", 10**6), ("1E", 10**21), ("100n", 1), ("1u", 1), ("2Mi", 2 * 2**20 * 1000), ("1P", 10**18)),
    ],
)
def test_quantities(text: str, expected: float) -> None:
    """In thousandths, rounded up."""
    assert amount(text) == math.ceil(expected)


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1GiB", "--1"])
def test_no_quantity(text: str) -> None:
    with pytest.raises(ValueError):
        amount(text)


def container(cpu: str, **fields: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **fields}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container("1"), container("2")]}, 3000),
        ({"containers": [container("1")], "initContainers": [container("5")]}, 5000),
        ({"containers": [container("1")], "initContainers": [container("2", restartPolicy="Always")]}, 3000),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("2", restartPolicy="Always"), container("4")],
            },
            6000,
        ),
        ({"containers": [container("1")], "overhead": {"cpu": "500m"}}, 1500),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "3"}}}, 3000),
        ({"containers": [{"name": "c"}]}, 0),
    ],
)
def test_requests(spec: dict[str, Any], cpu: int) -> None:
    """As kube-scheduler counts them."""
    found = requests_of({"metadata": {}, "spec": spec})
    assert found.get("cpu", 0) == cpu
    assert found["pods"] == 1000


def test_numbers_in_json() -> None:
    assert amounts({"cpu": 2, "pods": "10"}) == {"cpu": 2000, "pods": 10_000}
    assert amounts(None) == {}


def test_grounds_leave_out_what_does_not_decide() -> None:
    """Gates, images and labels; a heartbeat of the node."""
    one, other = pod("p", gates=("g",)), pod("p")
    other["metadata"]["labels"] = {"x": "y"}
    assert PodView(one, "a.b").grounds == PodView(other, "a.b").grounds
    assert PodView(one, "a.b").grounds != PodView(pod("p", cpu="2"), "a.b").grounds
    first, second = node("n"), node("n")
    second["status"]["conditions"].append({"type": "DiskPressure", "status": "False"})
    assert NodeView(first).grounds == NodeView(second).grounds
    assert NodeView(first).grounds != NodeView(node("n", zone="a")).grounds


def test_unfit_nodes() -> None:
    assert NodeView(node("n")).unfit is None
    assert NodeView(node("n", ready=False)).unfit == "is not ready"
    assert NodeView(node("n", cordoned=True)).unfit == "is cordoned"


def test_whose_value_it_is() -> None:
    """By our annotations, and by managedFields where there are any."""
    found = pod("p")
    found["status"]["nominatedNodeName"] = "n"
    found["metadata"]["annotations"] = {"a.b/decision-id": "d", "a.b/node": "n"}
    assert PodView(found, "a.b").is_ours("d", "n")
    assert not PodView(found, "a.b").is_ours("e", "n")
    assert not PodView(found, "x.y").is_ours("d", "n")
    for manager, ours in (("a.b", True), ("kube-scheduler", False)):
        fields: dict[str, Any] = {"f:status": {"f:nominatedNodeName": {}}}
        found["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": fields}]
        assert PodView(found, "a.b").is_ours("d", "n") == ours


def test_victims() -> None:
    found = pod("p", on="n")
    assert not PodView(found, "a.b").preempted
    found["status"]["conditions"] = [{**VICTIM, "reason": "EvictionByEvictionAPI"}]
    assert not PodView(found, "a.b").preempted
    found["status"]["conditions"] = [VICTIM]
    assert PodView(found, "a.b").preempted
