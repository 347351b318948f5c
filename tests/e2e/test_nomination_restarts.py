"""Nominators in processes of their own, killed and started again, and two at a time: nothing is lost or done twice."""

import asyncio
import signal
from typing import Any

import pytest
import pytest_asyncio

from asyncdispatch.nomination import NominationState
from asyncdispatch.nomination.decisions import PREFIX
from tests.e2e.nominating import is_bound, nominating, nomination_plane, nominator_process, patch, place, ungate

S = NominationState


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own() -> Any:
    async with nomination_plane() as plane:
        yield plane


def is_free(pod: dict[str, Any]) -> bool:
    return "nominatedNodeName" not in pod["status"]


async def add(plane: Any, name: str, **fields: Any) -> Any:
    return await plane.add_pod(
        name, "ns", gates=("quota",), requests={"cpu": "100m"}, **{"labels": {"to": "n1"}, **fields}
    )


@pytest.mark.parametrize("when", ["before its TTL is over", "after it"])
async def test_killed_and_started_again(own, when):
    """kill -9: the hint stands while nobody keeps it. The next one, without a plan, finds it by its annotations, and
    takes it back once its TTL is over: at once, if that was meanwhile (N7, N8)."""
    await add(own, "killed")
    late = when == "after it"
    async with nominator_process(own, ttl=1 if late else 12) as first:
        [kept] = await first.told("keeps")
        await first.kill()
    if late:
        await asyncio.sleep(1.5)
    assert (await own.pod("killed", "ns"))["status"]["nominatedNodeName"] == "n1"
    async with nominator_process(own) as second:
        [found] = await second.told("keeps")
        assert found["decision"] == kept["decision"]
        if not late:
            assert not is_free(await own.pod("killed", "ns"))
        await own.until(place("killed"), is_free, timeout=30)
        [outcome] = await second.told("outcome")
        assert outcome == {"event": "outcome", "pod": "killed", "decision": kept["decision"], "state": "expired"}
    left = await own.pod("killed", "ns")
    assert set(left["metadata"]["annotations"]) == {f"{PREFIX}/hinted-seconds"}
    assert not is_bound(left)
    await own.end_pod("killed", "ns")


async def test_everything_is_killed_and_started_again(own):
    """Nominator, scheduler, API server and etcd. What became of six hints meanwhile is seen; what stands is kept, with
    its id; nothing of others is touched (N3, N5, N7)."""
    names = ("bound", "overwritten", "cleared", "deleted", "stands", "stands-too")
    for name in names:
        await add(own, name)
    async with nominator_process(own, ttl=200) as first:
        ids = {told["pod"]: told["decision"] for told in await first.told("keeps", len(names))}
        await first.kill()
    await ungate(own, "bound")
    await own.until(place("bound"), is_bound)
    for name, values in (("overwritten", ("n2",)), ("cleared", (None,))):
        for value in values:
            answer = await patch(own, name, {"status": {"nominatedNodeName": value}}, role="scheduler")
            assert answer.status == 200
    await own.end_pod("deleted", "ns")
    for part in (own.scheduler, own.apiserver, own.etcd):
        part.kill()
    for part in (own.etcd, own.apiserver, own.scheduler):
        await part.start()
    before = {name: await own.pod(name, "ns") for name in ("bound", "overwritten", "cleared")}
    async with nominating(own) as nominator:
        live = {handle.decision.ref.name: handle.decision_id for handle in nominator.live}
        assert live == {name: ids[name] for name in ("stands", "stands-too")}
        await ungate(own, "stands")
        handle = nominator.handle(ids["stands"])
        assert handle is not None
        assert (await asyncio.wait_for(handle.outcome(), 20)).state is S.HIT
        outcomes = await nominator.rollback("the end")
        assert [(outcome.decision.decision_id, outcome.state) for outcome in outcomes] == [
            (ids["stands-too"], S.ROLLED_BACK)
        ]
    assert is_free(await own.pod("stands-too", "ns"))
    for name, was in before.items():
        found = await own.pod(name, "ns")
        assert found["status"].get("nominatedNodeName") == was["status"].get("nominatedNodeName")
        assert found["metadata"].get("annotations") == was["metadata"].get("annotations")
    for name in names:
        if name != "deleted":
            await own.end_pod(name, "ns")


async def test_replicas_share_the_pods(own):
    """Each Pod is nominated by one of two. When one is killed, the other takes up its hints as they stand, and plans
    for the Pods of its shards from then on; sent away, it takes all back."""
    async with nominator_process(own, ttl=200, shards=4, name="a") as first:
        await first.until(lambda: [told["shards"] for told in first.of("owns")][-1:] == [[0, 1, 2, 3]])
        async with nominator_process(own, ttl=200, shards=4, name="b") as second:
            await second.until(lambda: any(len(told["shards"]) == 2 for told in second.of("owns")))
            await first.until(lambda: len(first.of("owns")[-1]["shards"]) == 2)
            early = [f"early-{number}" for number in range(16)]
            for name in early:
                await add(own, name)
            for name in early:
                await own.until(place(name), lambda pod: not is_free(pod))
            ids = {name: await decision_of(own, name) for name in early}
            await first.until(lambda: len(first.of("keeps")) + len(second.of("keeps")) == len(early))
            firsts = {told["pod"] for told in first.of("keeps")}
            assert firsts
            assert firsts < set(early)
            assert {told["pod"] for told in second.of("keeps")} == set(early) - firsts
            await first.kill()
            late = [f"late-{number}" for number in range(16)]
            for name in late:
                await add(own, name)
            for name in late:
                await own.until(place(name), lambda pod: not is_free(pod), timeout=60)
            await second.until(lambda: {told["pod"] for told in second.of("keeps")} == {*early, *late})
            assert {name: await decision_of(own, name) for name in early} == ids
            assert not second.of("outcome")
            second.process.send_signal(signal.SIGTERM)
            await second.told("ended")
            assert {told["state"] for told in second.of("outcome")} == {"withdrawn"}
    for name in (*early, *late):
        assert is_free(await own.pod(name, "ns"))
        await own.end_pod(name, "ns")


async def decision_of(plane: Any, name: str) -> str:
    found: str = (await plane.pod(name, "ns"))["metadata"]["annotations"][f"{PREFIX}/decision-id"]
    return found
