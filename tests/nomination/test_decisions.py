"""Decisions and policies: what can't be meant is an error that names field, value and remedy."""

from typing import Any

import pytest

from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.nomination import Decision, NominationPolicy
from asyncdispatch.nomination.calls import PodNomination
from tests.nomination.objects import pod

FOUND = {**pod("p", priority=7), "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "5"}}


def asking(cpu: str) -> dict[str, Any]:
    return {**pod("p", cpu=cpu), "metadata": FOUND["metadata"]}


GOOD: dict[str, Any] = {"pod": FOUND, "node": "n1", "algorithm_version": "v", "reason": "r", "ttl": 5}


def test_what_a_whole_pod_tells() -> None:
    decision = Decision(**GOOD)
    assert (decision.priority, decision.observed_version) == (7, "5")
    assert decision.ref == ObjectRef("v1", "Pod", "ns", "p", "u")
    assert decision.decision_id != Decision(**GOOD).decision_id
    assert "containers" not in repr(decision)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("node", "Not_A_Name", "node='Not_A_Name'"),
        ("node", "", "node=''"),
        ("ttl", 0, "ttl=0"),
        ("ttl", -1, "ttl=-1"),
        ("ttl", float("inf"), "ttl=inf"),
        ("ttl", True, "ttl=True"),
        ("reason", "", "reason=''"),
        ("reason", "x" * 1025, "reason='1025 bytes'"),
        ("reason", "é" * 513, "reason='1026 bytes'"),
        ("reason", "\ud800", "reason='\\ud800': has half a character"),
        ("pod", asking("a lot"), "pod.spec='Pod ns/p (u)': 'a lot' is no quantity"),
        ("pod", {**asking("1"), "spec": {**asking("1")["spec"], "overhead": {"cpu": "1x"}}}, "'1x' is no quantity"),
        ("algorithm_version", "", "algorithm_version=''"),
        ("algorithm_version", "a\nb", "algorithm_version="),
        ("decision_id", "x" * 129, "decision_id="),
        ("priority", "high", "priority='high'"),
        ("priority", 2**31, "priority=2147483648"),
        ("order_version", "", "order_version=''"),
        ("observed_version", 5, "observed_version=5"),
        ("pod", ObjectRef("v1", "Pod", "ns", "p"), "pod.metadata.uid=None"),
        ("pod", pod("p"), "pod.metadata.uid=None"),
        ("pod", {"kind": "Node", "metadata": {}}, "pod.kind='Node'"),
    ],
)
def test_bad_decisions(field: str, value: Any, named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Decision(**{**GOOD, field: value})
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespaces", ()),
        ("namespaces", "ns"),
        ("namespaces", ("Not Valid",)),
        ("namespaces", ("x" * 64,)),
        ("namespaces", ("a.b",)),
        ("namespaces", ("a", "b", "a")),
        ("schedulers", ("a", "a")),
        ("priority_classes", ("High",)),
        ("priority_classes", ("x" * 254,)),
        ("schedulers", ("",)),
        ("priority_classes", [1]),
        ("percentage", 0),
        ("percentage", 101),
        ("max_ttl", 0),
        ("max_ttl", 901),
        ("hint_budget", -1),
        ("writes_per_second", 0),
        ("burst", 0),
        ("writes_per_pod", 0),
        ("max_live", 1.5),
        ("max_conflicts", -1),
        ("gated", None),
        ("prefix", "Not A Prefix"),
        ("prefix", "a/b"),
        ("prefix", ""),
        ("prefix", "kubernetes.io"),
        ("prefix", "k8s.io"),
        ("prefix", "scheduling.k8s.io"),
        ("adoption_slack", -1),
        ("drain_timeout", 0),
    ],
)
def test_bad_policies(field: str, value: Any) -> None:
    """One that matches nothing is one of them."""
    with pytest.raises(ConfigurationError, match=field):
        NominationPolicy(**{field: value})


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (NominationPolicy(namespaces=("other",)), "namespace ns"),
        (NominationPolicy(priority_classes=("high",)), "priorityClassName None"),
        (NominationPolicy(schedulers=("mine",)), "schedulerName default-scheduler"),
        (NominationPolicy(gated=False), "scheduling gates"),
        (NominationPolicy(), None),
        (NominationPolicy(namespaces=("ns",), schedulers=None), None),
    ],
)
def test_scope(policy: NominationPolicy, why: str | None) -> None:
    said = policy.excludes({**FOUND, "spec": {**FOUND["spec"], "schedulingGates": [{"name": "g"}]}})
    assert said is None if why is None else why in str(said)


def test_share() -> None:
    """Whoever is in at 5 % is in at 50 %."""
    refs = [ObjectRef("v1", "Pod", "ns", "p", f"u{index}") for index in range(2000)]
    few, many = NominationPolicy(percentage=5), NominationPolicy(percentage=50)
    within = [ref for ref in refs if few.admits(ref)]
    assert 60 < len(within) < 140
    assert all(many.admits(ref) for ref in within)


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"version": None}, "version"), ({"annotations": {"x/y": "1"}}, "annotations"), ({"node": "A"}, "node")],
)
def test_the_call_itself_keeps_the_laws(fields: dict[str, Any], named: str) -> None:
    """N1, N2: without a fence, or for another annotation, there is no call."""
    given: dict[str, Any] = {
        "target": ObjectRef("v1", "Pod", "ns", "p", "u"),
        "version": "5",
        "node": "n1",
        "was": "n1",
        "decision_id": "d",
        "prefix": "a.b",
        "annotations": {"a.b/node": "n1"},
        "transport": None,
    }
    assert set(PodNomination(**given).body()) == {"metadata", "status"}
    with pytest.raises(ConfigurationError, match=named):
        PodNomination(**{**given, **fields})
