"""Rollout: stable, monotone in the percentage, first match wins and is explained, changed at run time."""

from __future__ import annotations

import functools
import subprocess
import sys
import uuid
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch import ConfigurationError, ObjectRef, PriorityLevels
from asyncdispatch.rollout import FeatureGates, Gate, Rollout, Rule, Stage
from asyncdispatch.rollout.rules import bucket_of
from tests.shell import call, running

ON, OFF = FeatureGates("AsyncAPICalls=true"), FeatureGates()
PERCENT = st.integers(0, 10_000).map(lambda share: share / 100)


def ref(uid: str | None = None, name: str = "p", namespace: str | None = "ns") -> ObjectRef:
    return ObjectRef("v1", "Pod", namespace, name, uid)


@functools.cache
def uids(count: int, seed: int = 1) -> list[str]:
    random = Random(seed)
    return [str(uuid.UUID(int=random.getrandbits(128), version=4)) for _ in range(count)]


def share_in(rollout: Rollout, count: int = 4_000) -> float:
    return sum(rollout.admits(call(target=ref(uid))) for uid in uids(count)) / count


# -- who is in --------------------------------------------------------------------------------------------------------


def test_without_rules_all_are_in():
    rollout = Rollout()
    assert rollout.admits(call(target=ref("u1")))
    assert str(rollout.explain(ref("u1"))) == "asynchronous: there are no rules"
    assert repr(rollout) == "<Rollout everything>"


def test_the_gate_decides_over_all():
    assert not Rollout(gates=OFF).admits(call())
    assert str(Rollout(gates=OFF).explain(call())) == "synchronous: feature gate AsyncAPICalls is off"
    assert repr(Rollout(gates=OFF)) == "<Rollout off>"
    assert Rollout(gates=ON).admits(call())


@pytest.mark.parametrize(
    ("fields", "admitted", "rule"),
    [
        ({"target": ref(namespace="kube-system")}, False, "never the system"),
        ({"flow": "volumes"}, True, "one plugin"),
        ({"target": ref(namespace="kube-system"), "flow": "volumes"}, False, "never the system"),
        ({"priority": 2_000_000}, False, "not what is urgent"),
        ({"priority": 2_000_000, "flow": "volumes"}, True, "one plugin"),
        ({"target": ref(namespace="test")}, True, "try it"),
        ({}, False, None),
        ({"target": ref(namespace=None)}, False, None),
    ],
    ids=range(8),
)
def test_the_first_rule_that_matches_decides(fields: dict[str, Any], admitted: bool, rule: str | None):
    rollout = Rollout(
        [
            Rule(name="never the system", namespaces=("kube-system",), percentage=0),
            Rule(name="one plugin", flows=("volumes",)),
            Rule(name="not what is urgent", levels=("high",), percentage=0),
            Rule(name="try it", namespaces=("test",)),
        ]
    )
    explained = rollout.explain(call(**fields))
    assert rollout.admits(call(**fields)) is admitted is bool(explained)
    assert (explained.rule and explained.rule.name) == rule


def test_the_explanation_says_why():
    rollout = Rollout([Rule(name="tenth", percentage=10, namespaces=("ns",))])
    inside = next(uid for uid in uids(100) if rollout.admits(call(target=ref(uid))))
    outside = next(uid for uid in uids(100) if not rollout.admits(call(target=ref(uid))))
    said = str(rollout.explain(ref(inside)))
    assert said.startswith(
        f"asynchronous: rule 'tenth' (10 %) is the first that matches; Pod ns/p ({inside}) falls at "
    )
    assert str(rollout.explain(ref(outside))).startswith("synchronous: rule 'tenth' (10 %)")
    assert "by name, for want of a uid" in str(rollout.explain(ref()))
    elsewhere = rollout.explain(ref("u", namespace="other"), flow="mine", priority=5_000)
    assert str(elsewhere) == "synchronous: no rule matches (flow mine, namespace other, level elevated)"
    assert "no namespace" in str(rollout.explain(ObjectRef("v1", "Node", None, "n")))


def test_a_pod_is_explained_as_its_calls_are():
    """A dict or a client model: its own namespace, uid and priority."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"priority": 2_000_000_000},
    }
    rollout = Rollout([Rule(name="critical", levels=("system-cluster-critical",))])
    assert rollout.explain(pod)
    assert rollout.explain({name: pod[name] for name in ("metadata", "spec")})  # as an item of a list
    assert not rollout.explain(pod, priority=0)
    assert not rollout.explain(ObjectRef.of(pod))
    assert rollout.explain(call(target=ObjectRef.of(pod), priority=2_000_000_000))
    with pytest.raises(ConfigurationError):
        rollout.explain({"metadata": {}})
    with pytest.raises(ConfigurationError, match="apiVersion"):
        rollout.explain({"kind": "Job", "metadata": pod["metadata"]})
    with pytest.raises(ConfigurationError):
        rollout.explain(3)


async def test_all_calls_of_a_context_go_the_same_way():
    """The prerequisite on a claim is judged by its Pod, as the bind is."""
    rollout = Rollout([Rule(name="half", percentage=50)])
    async with running() as dispatcher:
        for uid in uids(50):
            context = dispatcher.contexts.begin(ref(uid))
            claim = ObjectRef("v1", "PersistentVolumeClaim", "ns", f"claim-{uid}", f"of-{uid}")
            both = {rollout.admits(call(target=target, context=context)) for target in (ref(uid), claim)}
            assert both == {bool(rollout.explain(ref(uid)))}


# -- shares -----------------------------------------------------------------------------------------------------------


def test_a_share_is_stable_across_processes():
    """No seed of the interpreter's hash is in it; the numbers never change, or Pods would swap sides at an upgrade."""
    program = (
        "from asyncdispatch import ObjectRef; from asyncdispatch.rollout.rules import bucket_of;"
        "print([bucket_of(ObjectRef('v1', 'Pod', 'ns', 'p', u)) for u in ('u1', 'u2', None)])"
    )
    for seed in ("0", "7"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
        assert result.stdout.strip() == "[5694, 4122, 43]"


@given(uid=st.text(min_size=1, max_size=40), low=PERCENT, high=PERCENT)
def test_a_share_is_monotone(uid: str, low: float, high: float):
    """Who is in at a percentage is in at any higher one."""
    low, high = sorted((low, high))
    lower, higher = (Rollout([Rule(name="r", percentage=p)]) for p in (low, high))
    assert lower.admits(call(target=ref(uid))) <= higher.admits(call(target=ref(uid)))
    assert 0 <= bucket_of(ref(uid)) < 10_000


@pytest.mark.parametrize("percentage", [0, 1, 5, 33.3, 50, 99, 100])
def test_a_share_is_about_what_it_says(percentage: float):
    """Within four standard errors, for uids as the API server makes them; 0 and 100 are exact."""
    p = percentage / 100
    error = 4 * (p * (1 - p) / 4_000) ** 0.5
    assert share_in(Rollout([Rule(name="r", percentage=percentage)])) == pytest.approx(p, abs=error)


def test_a_share_of_numbered_names_is_even_as_well():
    """Names in a row, as a StatefulSet's Pods have, without a uid."""
    rollout = Rollout([Rule(name="r", percentage=20)])
    inside = sum(rollout.admits(call(target=ref(name=f"web-{i}"))) for i in range(5_000))
    assert 0.18 < inside / 5_000 < 0.22


@given(seed=st.integers(0, 1_000), percentage=PERCENT, cap=PERCENT)
def test_being_held_to_a_share_takes_away_and_never_adds(seed: int, percentage: float, cap: float):
    """The guard's half-open: the same Pods first as in a rollout of that percentage."""
    plain, held = (Rollout([Rule(name="r", percentage=percentage)]) for _ in range(2))
    smaller = Rollout([Rule(name="r", percentage=min(percentage, cap))])
    held.hold_to(cap, "half open")
    for uid in uids(20, seed):
        one = call(target=ref(uid))
        assert held.admits(one) is smaller.admits(one)
        assert held.admits(one) <= plain.admits(one)
    held.hold_to(100, "over")
    assert all(held.admits(call(target=ref(uid))) is plain.admits(call(target=ref(uid))) for uid in uids(20, seed))


def test_being_held_is_explained():
    rollout = Rollout()
    rollout.hold_to(5, "guard: half open")
    assert rollout.explain(ref("u2")).reason == (
        "there are no rules; Pod ns/p (u2) falls at 41.22 % by uid; held to 5 % (guard: half open)"
    )
    rollout.hold_to(0, "guard: rolled back")
    assert not rollout.admits(call(target=ref("u1")))


# -- changing ---------------------------------------------------------------------------------------------------------


def test_it_is_changed_at_run_time_all_at_once():
    rollout = Rollout([Rule(name="a", percentage=0)], gates=OFF)
    rollout.replace([Rule(name="b")], gates=ON)
    assert rollout.admits(call())
    assert ([rule.name for rule in rollout.rules], rollout.gates) == (["b"], ON)
    rollout.replace(gates=OFF)
    assert (rollout.rules[0].name, rollout.admits(call())) == ("b", False)
    rollout.replace([], gates=ON)
    assert repr(rollout) == "<Rollout everything>"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([Rule(name="a"), Rule(name="a", flows=("x",))], "'a': is the name of two rules"),
        ([Rule(name="a", levels=("urgent",))], r"levels='urgent': is none of \('lowest', 'low'"),
        ([Rule(name="all"), Rule(name="b", flows=("x",))], "'b': can never match after 'all': put it before"),
        (
            [Rule(name="a", flows=("x", "y")), Rule(name="b", flows=("y",), namespaces=("ns",))],
            "'b': can never match after 'a'",
        ),
        (["a"], "must be Rules"),
    ],
    ids=range(5),
)
def test_a_wrong_change_changes_nothing(rules: list[Any], message: str):
    rollout = Rollout([Rule(name="kept", percentage=50)])
    before = [rollout.admits(call(target=ref(uid))) for uid in uids(50)]
    with pytest.raises(ConfigurationError, match=message):
        rollout.replace(rules)
    with pytest.raises(ConfigurationError, match=message):
        Rollout(rules)
    with pytest.raises(ConfigurationError, match="percentage=101"):
        rollout.hold_to(101, "wrong")
    assert [rollout.admits(call(target=ref(uid))) for uid in uids(50)] == before
    assert rollout.rules[0].name == "kept"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "Rule.name"),
        ({"percentage": -1}, "Rule 'r': percentage=-1: must be a percentage from 0 to 100"),
        ({"percentage": 100.5}, "must be a percentage from 0 to 100"),
        ({"percentage": float("nan")}, "must be a percentage from 0 to 100"),
        ({"percentage": True}, "must be a percentage from 0 to 100"),
        ({"percentage": "5"}, "must be a percentage from 0 to 100"),
        ({"percentage": 0.001}, "too fine"),
        ({"flows": "default"}, "flows='default': must be a tuple of names"),
        ({"namespaces": ("",)}, "must be a tuple of names"),
        ({"levels": (3,)}, "must be a tuple of names"),
    ],
    ids=range(10),
)
def test_a_rule_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        Rule(**{"name": "r", **fields})


def test_other_wrong_arguments_are_refused():
    with pytest.raises(ConfigurationError, match="gates='AsyncAPICalls=true': must be FeatureGates"):
        Rollout(gates="AsyncAPICalls=true")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is not known"):
        Rollout(gates=FeatureGates(known=(Gate("Other", True, Stage.BETA),)))
    with pytest.raises(ConfigurationError, match="levels"):
        Rollout(levels=None)  # type: ignore[arg-type]


def test_levels_are_the_dispatchers():
    levels = PriorityLevels((("batch", -(2**31)), ("service", 100)))
    rollout = Rollout([Rule(name="services", levels=("service",))], levels=levels)
    assert rollout.admits(call(priority=100))
    assert not rollout.admits(call(priority=99))
