"""Proofs that run on a real API server and on the embedded one. Each ends with the audit, which `Stage` makes."""

import asyncio
from collections.abc import Sequence
from typing import Any

from asyncdispatch import APICall, CallHandle, VerdictKind
from asyncdispatch.outcomes import Failed, Succeeded
from tests.e2e.audit import permanent
from tests.facts.world import refused
from tests.proofs.stage import PROOFS, Proof, Stage, proof

__all__ = ["PROOFS", "Proof"]

Call = APICall[Any]


@proof
async def binds_are_fenced_by_the_uid(stage: Stage) -> None:
    """A Pod that was replaced by another of its name is not bound for the first one's decision, and nor patched."""
    async with stage.dispatcher() as (dispatcher, cluster):
        old = await dispatcher.run(cluster.create(stage.pod()))
    assert (await stage.world.delete(stage.world.pods("web"))).status == 200
    new = await stage.world.pod()
    async with stage.dispatcher() as (dispatcher, cluster):  # this one knows nothing of the new Pod
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        calls: list[Call] = [
            cluster.bind(old, "n1"),
            cluster.patch_status(old, conditions=[unscheduled]),
            cluster.delete(old),
        ]
        for call in calls:
            outcome = await dispatcher.submit(call).outcome()
            assert isinstance(outcome, Failed), outcome
            assert (outcome.verdict.kind, outcome.ambiguous) == (VerdictKind.GONE, False), outcome
        assert await dispatcher.run(cluster.bind(new, "n2")) == "n2"


@proof
async def binds_are_fenced_by_the_version(stage: Stage) -> None:
    """Any change since the decision refuses the bind, and the decision on what is there now passes."""
    async with stage.dispatcher() as (dispatcher, cluster):
        decided_on = await dispatcher.run(cluster.create(stage.pod()))
    changed = await stage.world.patch(stage.world.pods("web"), {"metadata": {"labels": {"a": "b"}}})
    async with stage.dispatcher() as (dispatcher, cluster):
        outcome = await dispatcher.submit(cluster.bind(decided_on, "n1", fence="version")).outcome()
        assert permanent(outcome, "decided on version"), outcome
        assert await dispatcher.run(cluster.bind(changed.json, "n2", fence="version")) == "n2"


@proof
async def a_pod_is_bound_once(stage: Stage) -> None:
    """Of two schedulers that bind the same Pods one wins, and the other learns where; the same node is a success."""
    async with stage.dispatcher() as (dispatcher, cluster):
        pods = [await dispatcher.run(cluster.create(stage.pod(f"p{n}"))) for n in range(20)]
    async with stage.dispatcher() as (ours, cluster), stage.dispatcher() as (theirs, other_cluster):
        first = [ours.submit(cluster.bind(obj, "ours")) for obj in pods]
        second = [theirs.submit(other_cluster.bind(obj, "theirs")) for obj in pods]
        for mine, other in zip(first, second, strict=True):
            ends = [await mine.outcome(), await other.outcome()]
            won = [isinstance(end, Succeeded) for end in ends]
            assert sorted(won) == [False, True], ends
            node = ("ours", "theirs")[won.index(True)]
            assert permanent(ends[won.index(False)], f"bound elsewhere: {node}"), ends
    async with stage.dispatcher() as (again, cluster):
        found = await stage.items(stage.world.pods())
        nodes = {obj["metadata"]["name"]: obj["spec"]["nodeName"] for obj in found}
        handles = {
            obj["metadata"]["name"]: again.submit(cluster.bind(obj, nodes[obj["metadata"]["name"]])) for obj in pods
        }
        assert {name: await handle for name, handle in handles.items()} == nodes


@proof
async def a_storm_of_429(stage: Stage) -> None:
    """All is done in the end, though most of it was turned away at first, in plain text."""
    async with stage.dispatcher() as (dispatcher, cluster):
        pods = [await dispatcher.run(cluster.create(stage.pod(f"p{n}"))) for n in range(20)]
    async with stage.dispatcher("bot") as (dispatcher, cluster):
        turned_away = []
        async with stage.storm():
            handles: list[CallHandle[Any]] = []
            for n, obj in enumerate(pods):
                handles.append(dispatcher.submit(cluster.bind(obj, f"n{n}")))
                new = stage.config_map(f"c{n}")
                handles.append(dispatcher.submit(cluster.create(new, idempotency_key=f"key-{n}")))
                marked = {"metadata": {"annotations": {"n": str(n)}}}
                handles.append(dispatcher.submit(cluster.patch(obj, marked)))
            outcomes = [await handle.outcome() for handle in handles]
        for outcome in outcomes:
            assert isinstance(outcome, Succeeded), outcome
            if outcome.cause is not None:
                turned_away.append(str(outcome.cause))
        assert turned_away, "nothing was turned away: this was no storm"
        assert all("Too many requests" in told for told in turned_away), turned_away


@proof
async def a_right_that_is_missing(stage: Stage) -> None:
    """403 is for good and at once, and concerns nothing else."""
    await stage.grant(but_not=("patch", "configmaps"))
    async with stage.dispatcher("bot") as (dispatcher, cluster):
        made = await dispatcher.run(cluster.create(stage.config_map("c")))
        denied = dispatcher.submit(cluster.patch(made, {"data": {"a": "b"}}))
        outcome = await denied.outcome()
        assert permanent(outcome, 'cannot patch resource "configmaps"'), outcome
        assert outcome.attempts == 1
        await dispatcher.run(cluster.delete(made))


@proof
async def a_namespace_that_is_being_deleted(stage: Stage) -> None:
    """What would be new there is refused for good, and so are binds; it cancels nothing: patches and deletes pass."""
    async with stage.dispatcher() as (dispatcher, cluster):
        pods = [await dispatcher.run(cluster.create(stage.pod(f"p{n}"))) for n in range(2)]
        assert (await stage.world.delete(f"/api/v1/namespaces/{stage.world.namespace}")).status in (200, 202)
        creates = [cluster.create(stage.config_map(f"c{n}"), idempotency_key=f"k{n}") for n in range(3)]
        creates.append(cluster.create(stage.pod("late")))
        calls: list[Call] = [cluster.patch(pods[0], {"metadata": {"labels": {"a": "b"}}}), cluster.delete(pods[1])]
        lost = [dispatcher.submit(call) for call in creates]
        bind = dispatcher.submit(cluster.bind(pods[0], "n1"))
        done = [dispatcher.submit(call) for call in calls]
        assert permanent(await bind.outcome(), "because it is being terminated")
        for handle in lost:
            outcome = await handle.outcome()
            assert isinstance(outcome, Failed), outcome
            assert (outcome.verdict.kind, outcome.ambiguous) == (VerdictKind.GONE, False), outcome
        outcomes = [await handle.outcome() for handle in done]
    assert all(isinstance(outcome, Succeeded) for outcome in outcomes), outcomes


@proof
async def a_namespace_that_is_gone(stage: Stage) -> None:
    """A bind is told of the namespace, not of the Pod, and yet it is GONE at once and waits for no such namespace."""
    path = f"/api/v1/namespaces/{stage.world.namespace}"
    async with stage.dispatcher() as (dispatcher, cluster):
        pod = await dispatcher.run(cluster.create(stage.pod()))
        await dispatcher.run(cluster.delete(pod))
    assert (await stage.world.delete(path)).status in (200, 202)
    left = (await stage.world.get(path)).json
    assert (await stage.world.put(f"{path}/finalize", {**left, "spec": {"finalizers": []}})).status == 200
    refused(await stage.world.get(path), 404, "NotFound")
    refused(await stage.world.bind(), 404, "NotFound", "namespaces")
    async with stage.dispatcher() as (dispatcher, cluster):
        calls: list[Call] = [
            cluster.bind(pod, "n1"),
            cluster.evict(pod),
            cluster.patch(pod, {"metadata": {"labels": {}}}),
        ]
        for call in calls:
            outcome = await dispatcher.submit(call).outcome()
            assert isinstance(outcome, Failed), outcome
            assert (outcome.verdict.kind, outcome.ambiguous) == (VerdictKind.GONE, False), outcome


@proof
async def a_quota_that_is_lifted(stage: Stage) -> None:
    """What does not fit waits, and is created once there is room; what names no request never passes."""
    quotas, hard = stage.world.path("resourcequotas"), {"pods": "2", "requests.cpu": "8"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    assert (await stage.world.post(quotas, quota)).status == 201
    used = {"pods": "0", "requests.cpu": "0"}
    status = await stage.world.patch(f"{quotas}/q/status", {"status": {"hard": hard, "used": used}})
    assert status.status == 200, status.text

    def asking(name: str) -> dict[str, object]:
        body = stage.pod(name)
        body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
        return body

    async with stage.dispatcher() as (dispatcher, cluster):
        never = await dispatcher.submit(cluster.create(stage.pod("silent"))).outcome()
        assert permanent(never, "must specify requests.cpu"), never
        handles = [dispatcher.submit(cluster.create(asking(f"p{n}"), idempotency_key=f"k{n}")) for n in range(4)]
        await first_of(handles, 2)
        assert sum(handle.done() for handle in handles) == 2
        reply = await stage.world.post(stage.world.pods(), asking("other"))
        refused(reply, 403, "Forbidden", "exceeded quota: q")
        hard["pods"] = "10"
        assert (await stage.world.patch(f"{quotas}/q", {"spec": {"hard": hard}})).status == 200
        raised = await stage.world.patch(f"{quotas}/q/status", {"status": {"hard": hard}})
        assert raised.status == 200, raised.text
        outcomes = [await handle.outcome() for handle in handles]
    assert all(isinstance(outcome, Succeeded) for outcome in outcomes), outcomes
    assert any("exceeded quota" in str(outcome.cause) for outcome in outcomes)


@proof
async def a_policy_that_denies(stage: Stage) -> None:
    """422 Invalid, which looks like a 403 and is neither a fault of the object: for good, and nothing is stored."""
    await stage.deny()
    labels = {"forbidden": "yes"}
    reply = await stage.world.post(stage.world.path("configmaps"), stage.config_map("raw", labels=labels))
    status = refused(reply, 422, "Invalid", "denied request")
    assert status["details"] == {
        "name": "raw",
        "kind": "configmaps",
        "causes": [{"message": status["message"].partition(" is forbidden: ")[2]}],
    }
    async with stage.dispatcher() as (dispatcher, cluster):
        made = await dispatcher.run(cluster.create(stage.config_map("allowed")))
        calls: list[Call] = [
            cluster.create(stage.config_map("denied", labels=labels), idempotency_key="denied"),
            cluster.patch(made, {"metadata": {"labels": labels}}),
        ]
        for call in calls:
            outcome = await dispatcher.submit(call).outcome()
            assert permanent(outcome, "denied request"), outcome
            assert outcome.attempts == 1


@proof
async def creates_of_one_key(stage: Stage) -> None:
    """Two processes with one key make one object, under a name that the server chose too; another's name is refused."""
    assert (await stage.world.post(stage.world.path("configmaps"), stage.config_map("taken"))).status == 201
    generated = {"metadata": {"generateName": "job-", "namespace": stage.world.namespace}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", **generated}
    made = []
    for _ in range(2):
        async with stage.dispatcher() as (dispatcher, cluster):
            calls = [
                cluster.create(stage.config_map("mine"), idempotency_key="mine"),
                cluster.create(body, idempotency_key="generated/1"),
            ]
            made.append([(await dispatcher.run(call))["metadata"]["uid"] for call in calls])
            theirs = dispatcher.submit(cluster.create(stage.config_map("taken"), idempotency_key="k"))
            assert permanent(await theirs.outcome(), "already exists, and is not of this call")
    assert made[0] == made[1]


async def first_of(handles: Sequence[CallHandle[Any]], count: int) -> None:
    """Until so many of them have ended."""
    enough = asyncio.Event()

    def ended(_: object) -> None:
        if sum(handle.done() for handle in handles) >= count:
            enough.set()

    for handle in handles:
        handle.add_done_callback(ended)
    async with asyncio.timeout(60):
        await enough.wait()
