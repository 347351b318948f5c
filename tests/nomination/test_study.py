"""Does it help? What the study counts, when it says no, and the metrics beside it."""

import asyncio
import re
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.nomination import (
    Decision,
    NominationOutcome,
    NominationPolicy,
    NominationState,
    RollbackRule,
)
from asyncdispatch.nomination.study import Study
from tests.nomination.conftest import nominating
from tests.nomination.objects import VICTIM, pod
from tests.nomination.support import decide, passes

S = NominationState
HALF = NominationPolicy(percentage=50)
NEVER = RollbackRule(slower=None, fallbacks=None, churn=None, wrong_bindings=None)


def made(index: int, **fields: Any) -> dict[str, Any]:
    obj = pod(f"p{index}", **fields)
    obj["metadata"]["uid"] = f"uid-{index}"
    return obj


def bind(obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "spec": {**obj["spec"], "nodeName": "n"}}


def run(study: Study, count: int, inside: float, outside: float, **fields: Any) -> None:
    """`count` Pods, bound after about so many seconds."""
    random = Random(1)
    for index in range(count):
        obj = made(index, **fields)
        mean = inside if study.policy.admits(ObjectRef("v1", "Pod", "ns", f"p{index}", f"uid-{index}")) else outside
        study.see(obj, float(index))
        study.see(bind(obj), index + mean * random.uniform(0.5, 1.5))


def outcome(state: S, *, written: bool = True, raced: bool = False) -> NominationOutcome:
    ref = ObjectRef("v1", "Pod", "ns", "p", "u")
    decision = Decision(pod=ref, node="n", algorithm_version="v", reason="r", ttl=9)
    return NominationOutcome(decision=decision, state=state, reason="", written=written, raced=raced, hinted_seconds=2)


def test_both_arms_are_measured() -> None:
    """By the rollout's share, whoever was hinted; gates do not count, nor who is outside of the policy's scope."""
    study = Study(HALF, RollbackRule())
    run(study, 200, 1.0, 4.0, priority=7)
    gated = made(900, gates=("g",))
    study.see(gated, 0.0)
    study.see(made(900), 100.0)
    study.see(bind(made(900)), 101.0)
    study.see(made(901, schedulerName="other"), 0.0)
    study.see(bind(made(901, schedulerName="other")), 9.0)
    report = study.report(250.0, 3, None)
    assert report.inside.pods + report.outside.pods == 201
    assert report.inside.median == pytest.approx(1.0, abs=0.2)
    assert report.outside.median == pytest.approx(4.0, abs=0.6)
    assert set(report.by_priority) == {7}
    assert report.verdict is None
    text = str(report)
    assert "3 live hints" in text
    assert "priority 7" in text
    assert study.report(2000.0, 0, None).inside.pods == 0  # the window is over


def test_slower_is_found_and_as_fast_is_not() -> None:
    slow, same = Study(HALF, RollbackRule()), Study(HALF, RollbackRule())
    run(slow, 200, 8.0, 2.0)
    run(same, 400, 2.0, 2.0)
    assert "took 1.5 times the P90" in str(slow.verdict(200.0))
    assert same.verdict(400.0) is None
    slow.reset(250.0)
    assert slow.verdict(260.0) is None


@pytest.mark.parametrize(
    ("state", "says"),
    [(S.FALLBACK, "bound elsewhere"), (S.CLEARED, "overwritten or cleared"), (S.OVERWRITTEN, "overwritten or cleared")],
)
def test_hints_that_are_not_honoured(state: S, says: str) -> None:
    study = Study(HALF, RollbackRule())
    for index in range(60):
        study.ended(outcome(S.HIT if index % 10 == 0 else state), float(index))
        assert index >= 29 or study.verdict(float(index)) is None
    assert says in str(study.verdict(60.0))
    off = Study(HALF, NEVER)
    for index in range(60):
        off.ended(outcome(state), float(index))
    assert off.verdict(60.0) is None


def test_raced_and_unwritten_count_for_nothing() -> None:
    study = Study(HALF, RollbackRule())
    for index in range(100):
        study.ended(outcome(S.FALLBACK, raced=True), float(index))
        study.ended(outcome(S.REJECTED, written=False), float(index))
    report = study.report(100.0, 0, "a drill")
    assert (report.verdict, report.hit_rate, report.raced) == (None, None, 100)
    assert "off, a drill" in str(report)


def test_wrong_bindings() -> None:
    study = Study(HALF, RollbackRule())
    for index in range(3):
        assert study.verdict(float(index)) is None
        study.misplaced(float(index))
    assert "3 Pods were bound" in str(study.verdict(3.0))


def test_victims() -> None:
    study = Study(HALF, RollbackRule())
    victim = bind(made(1))
    victim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    victim["status"]["conditions"] = [VICTIM]
    study.see(victim, 10.0)
    assert study.gone(victim, 25.0) == 15.0
    assert study.gone(victim, 26.0) is None
    assert study.report(30.0, 0, None).victim_seconds == 15.0


@pytest.mark.parametrize(
    "fields",
    [
        {"slower": 1.0},
        {"fallbacks": 1.0},
        {"churn": 0},
        {"wrong_bindings": 0},
        {"window": 0},
        {"min_samples": 0},
        {"false_alarm": 0.5},
    ],
)
def test_bad_rules(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(fields))):
        RollbackRule(**fields)


async def test_it_rolls_itself_back(server, cluster):
    """Hints that the scheduler keeps clearing: within a round no new one is written, and it is told why."""
    rule = RollbackRule(min_samples=5, false_alarm=0.01, churn=0.2)
    async with nominating(cluster, rule=rule) as nominator:
        for index in range(8):
            handle = await nominator.nominate(decide(server.create(pod(f"p{index}", cpu="100m"))))
            assert await handle.written()
            server.patch_object("Pod", {"status": {"nominatedNodeName": None}}, f"p{index}", namespace="ns")
            assert (await handle.outcome()).state is S.CLEARED
        await passes(16)
        assert nominator.off == "8 of 8 hints were overwritten or cleared by others"
        nominator.resume("by hand")
        await passes(16)
        assert nominator.off is None


TAINT = {"key": "only", "value": "gpu", "effect": "NoSchedule"}
TOLERATING = {"tolerations": [{"key": "only", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}]}
FULL = {"status": {"allocatable": {"cpu": "100m", "pods": "10"}}}


@pytest.mark.parametrize(
    ("change", "spec", "wrong"),
    [
        ({"spec": {"unschedulable": True}}, {}, "is cordoned"),
        ({"spec": {"taints": [TAINT]}}, {}, "has the taint only, which the Pod does not tolerate"),
        ({"spec": {"taints": [TAINT]}}, TOLERATING, None),
        ({"spec": {"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}}, {}, None),
        (FULL, {}, "has not enough cpu for what is on it"),
        ({"metadata": {"labels": {"disk": "hdd"}}}, {"nodeSelector": {"disk": "ssd"}}, "has not the labels"),
        ({"metadata": {"labels": {"disk": "hdd"}}}, {}, None),
    ],
)
async def test_a_binding_that_its_own_grounds_exclude(server, cluster, caplog, change, spec, wrong):
    """Bound to the hinted node, which had changed by then. What excludes the Pod is a trigger; no other change is."""
    server.patch_object("Node", {"metadata": {"labels": {"disk": "ssd"}}}, "n1")
    async with nominating(cluster, rule=RollbackRule(wrong_bindings=3)) as nominator:
        found = [server.create(pod(f"p{index}", cpu="200m", **spec)) for index in range(3)]
        handles = [await nominator.nominate(decide(each, ttl=200)) for each in found]
        assert all([await handle.written() for handle in handles])
        await passes(10)
        server.patch_object("Node", change, "n1")
        for each in found:
            server.bind(each, "n1")
        assert {(await handle.outcome()).state for handle in handles} == {S.HIT}
        await passes(16)
        assert nominator.report().wrong_bindings == (0 if wrong is None else 3)
        assert (nominator.off is None) == (wrong is None)
    said = [record.message for record in caplog.records if "was bound to the hinted node n1, which" in record.message]
    assert len(said) == (0 if wrong is None else 3)
    assert all(str(wrong) in line for line in said)


@pytest.mark.parametrize("refused", [False, True])
async def test_room_that_had_come_free_before_it_was_told(server, cluster, refused):
    """A list brings changes in no order: a Pod that has finished since holds its room for a moment longer. If the
    kubelet refuses the Pod, though, it was bound wrongly."""
    async with nominating(cluster, rule=RollbackRule(wrong_bindings=1)) as nominator:
        found = server.create(pod("p", cpu="2"))
        handle = await nominator.nominate(decide(found, ttl=200))
        assert await handle.written()
        await passes(5)
        server.put(pod("z", cpu="3", on="n1"))
        server.bind(found, "n1")
        assert (await handle.outcome()).state is S.HIT
        server.patch_object("Pod", {"status": {"phase": "Succeeded"}}, "z", namespace="ns")
        if refused:
            server.patch_object("Pod", {"status": {"phase": "Failed", "reason": "OutOfcpu"}}, "p", namespace="ns")
        await passes(16)
        assert nominator.report().wrong_bindings == refused


async def test_what_was_before_a_resume_counts_for_nothing(server, cluster):
    """A binding that looked wrong, and was not judged yet, is not held against what comes."""
    async with nominating(cluster, rule=RollbackRule(wrong_bindings=1)) as nominator:
        found = server.create(pod("p"))
        handle = await nominator.nominate(decide(found, ttl=200))
        assert await handle.written()
        server.patch_object("Node", {"spec": {"unschedulable": True}}, "n1")
        server.bind(found, "n1")
        assert (await handle.outcome()).state is S.HIT
        await nominator.rollback("a drill")
        nominator.resume("it is over")
        await passes(31)
        assert (nominator.report().wrong_bindings, nominator.off) == (0, None)


async def test_metrics(server, cluster):
    """Hits, times and live hints are there, by bounded labels; one registry for each nominator."""
    registry = CollectorRegistry()
    async with nominating(cluster, registry=registry, cluster_name="here") as nominator:
        for index in range(30):
            found = server.create(pod(f"p{index}", cpu="10m"))
            handle = await nominator.nominate(decide(found, "n2" if index % 2 else "n1", algorithm_version=f"v{index}"))
            assert await handle.written() or index >= 20
            if index == 0:
                server.bind({"kind": "Pod", "metadata": {"name": "p0", "namespace": "ns"}}, "n1")
                await asyncio.sleep(0.1)
        text = generate_latest(registry).decode()
        first, second = ('algorithm_version="v0",cluster="here"', 'algorithm_version="v1",cluster="here"')
        level, by = 'level="default"', 'scheduler="default-scheduler"'
        assert f'writes_total{{{first},kind="set",{level},result="applied",{by}}} 1.0' in text
        assert f'pending_to_binding_seconds_count{{{first},{level},rollout="inside",{by}}} 1.0' in text
        assert f'_live{{{second},{level},{by},state="nominated"}} 1.0' in text
        with pytest.raises(ConfigurationError, match="registry"):
            async with nominating(cluster, registry=registry):
                pass
    text = generate_latest(registry).decode()
    assert f'_live{{{second},{level},{by},state="nominated"}} 0.0' in text
    versions = set(re.findall(r'algorithm_version="([^"]*)"', text))
    assert len(versions) <= 22
    assert "other" in versions
    assert "hit rate" in str(nominator.report())


def labels_of(registry: CollectorRegistry) -> dict[str, set[str]]:
    """By metric, the labels of its samples, but for those of its own."""
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            name = family.name.removeprefix("asyncdispatch_nomination_")
            found[name] = set(sample.labels) - {"le", "outcome", "raced", "kind", "result", "rollout", "state"}
    return found


async def test_labels(server, cluster):
    """By cluster, level, scheduler and algorithm version: all but what belongs to no decision."""
    registry, who = CollectorRegistry(), {"cluster", "level", "scheduler", "algorithm_version"}
    async with nominating(cluster, registry=registry) as nominator:
        hinted, free = server.put(pod("p", priority=1_000)), server.create(pod("free"))
        low = server.put(pod("low", on="n2", priority=-5))
        dying = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
        server.patch_object("Pod", {"metadata": dying, "status": {"conditions": [VICTIM]}}, "low", namespace="ns")
        handle = await nominator.nominate(decide(hinted, order_version="1"))
        assert await handle.written()
        await passes(5)
        begun = generate_latest(registry).decode()
        server.bind(hinted, "n2")
        server.bind(free, "n1")
        server.finish(low)
        assert (await handle.outcome()).state is S.FALLBACK
        await passes(20)
        assert labels_of(registry) == {
            **dict.fromkeys(("outcomes", "hinted_seconds", "writes", "pending_to_binding_seconds"), who),
            **dict.fromkeys(("inferred_filter_failures", "fallback_scheduling_seconds"), who),
            **dict.fromkeys(("live", "oldest_live_seconds"), who),
            "victim_termination_seconds": who - {"algorithm_version"},
            "off": {"cluster"},
        }
        text = generate_latest(registry).decode()
    mine = 'algorithm_version="v3",cluster="default",level="elevated"'
    assert f'oldest_live_seconds{{{mine},scheduler="default-scheduler"}} 5.0' in begun
    assert f'oldest_live_seconds{{{mine},scheduler="default-scheduler"}} 0.0' in text
    assert f'pending_to_binding_seconds_count{{{mine},rollout="inside"' in text
    assert 'pending_to_binding_seconds_count{algorithm_version="",cluster="default",level="default"' in text
    assert 'victim_termination_seconds_count{cluster="default",level="low",scheduler="default-scheduler"} 1.0' in text


async def test_a_registry_with_a_gauge_of_our_name(cluster):
    registry = CollectorRegistry()
    Gauge("asyncdispatch_nomination_live", "somebody's", registry=registry)
    with pytest.raises(ConfigurationError, match="of our names already"):
        async with nominating(cluster, registry=registry):
            pass
