"""K: memory, counts, backpressure."""

import asyncio
from typing import Any

import pytest

from asyncdispatch import (
    Backpressure,
    CallHandle,
    Dispatcher,
    DispatcherConfig,
    Effect,
    FunctionCall,
    IdempotencyPolicy,
    ObjectRef,
    Pressure,
    RateLimit,
    RetryBudget,
    RetryPolicy,
    Verdict,
    VerdictKind,
)
from asyncdispatch.outcomes import Expired, Shed, Succeeded
from tests.cases.support import UNSCHEDULABLE, Log, config_map, new_pod, now, sent


@pytest.mark.parametrize("sheddable", [True, False], ids=["events shed", "events refused"])
async def test_k1_side_work_under_a_lasting_backlog(server, cluster, sheddable):
    """Recording of events under a lasting backlog took memory and tasks without bound.

    Right: once the capacity is reached nothing grows any more, and refusals or shedding say so.
    """
    server.delay(1)
    pods = [server.create(new_pod(f"p{number}")) for number in range(200)]
    capacity, refused = 300, 0
    handles: list[CallHandle[Any]] = []
    sizes: list[int] = []
    config = DispatcherConfig(capacity=capacity, max_in_flight=12, timeout=20, reserve=0)
    async with Dispatcher(config) as dispatcher:
        for tick in range(36 * 20):
            event = config_map(f"event-{tick}")
            pod = pods[tick % len(pods)]
            state = [{"type": f"Tick{tick}", "status": "True"}]
            for call in (
                cluster.create(event, sheddable=sheddable, priority=-(2**31), call_type="event", flow="events"),
                cluster.patch_status(pod, conditions=state, flow="status"),
            ):
                try:
                    handles.append(dispatcher.submit(call))
                except Backpressure as full:
                    refused += full.scope == "total"
            await asyncio.sleep(0.05)
            statistics = dispatcher.statistics()
            assert statistics.depth <= capacity
            if statistics.depth > capacity * 0.9:
                sizes.append(sum(task.get_name().startswith("asyncdispatch") for task in asyncio.all_tasks()))
                assert dispatcher.pressure is not Pressure.OK
            core = dispatcher._core
            assert len(core.lanes.table) <= capacity
            assert len(core.flows) + len(core.groups) <= 8
        assert sizes
        assert set(sizes) == {12}
        await dispatcher.aclose()
    outcomes = [handle.settled for handle in handles]
    assert all(outcomes)
    shed = [outcome for outcome in outcomes if isinstance(outcome, Shed)]
    assert bool(shed) == sheddable
    assert refused + len(shed) > 50
    # What matters more was not crowded out by the side work.
    status = [handle.settled for handle in handles if handle.call.flow == "status"]
    assert sum(isinstance(outcome, Succeeded) for outcome in status) > 100


def bare(call_type, flow, name, namespace, fn, **fields):
    return FunctionCall(fn, call_type=call_type, target=ObjectRef("v1", "Pod", namespace, name), flow=flow, **fields)


async def fine(attempt):
    return {"metadata": {"name": attempt.call.target.name, "uid": f"u{attempt.ticket}", "resourceVersion": "1"}}


class FaultError(Exception):
    status = 503


async def faulty(attempt):
    if attempt.number == 1:
        raise FaultError
    return "well"


class LaterError(Exception):
    status = 403


def later_by_namespace(call, attempt, error):
    if isinstance(error, LaterError):
        return Verdict(VerdictKind.LATER, scope=("quota", call.target.namespace))
    return None


async def refused_once(attempt):
    if attempt.number == 1:
        raise LaterError
    return "well"


def sizes_of(dispatcher) -> dict[str, int]:
    """How large every table of the core is that is kept by a name from outside."""
    core = dispatcher._core
    return {
        "flows": len(core.flows),
        "call types": len(core.groups),
        "lanes": len(core.lanes.table),
        "contexts": len(core.epochs.table) + len(core.epochs.by_lane),
        "breakers": len(core.breakers.table),
        "scopes": len(core.laters) + len(core.holds),
        "dependents": len(core.dependents),
    }


@pytest.mark.parametrize("fn", [fine, faulty, refused_once])
async def test_k3_names_that_come_and_go(fn):
    """Tables kept by name grew with every deleted namespace, until everything that counted them ran out of memory.

    Right: namespaces leave nothing behind, and names of call types and flows that should be few stay under a cap.
    """
    rounds = 3_000 if fn is fine else 1_000
    memory = IdempotencyPolicy(ttl=60, max_keys=1_000)
    config = DispatcherConfig(idempotency=memory, retry_budget=RetryBudget(ratio=1))
    policy = RetryPolicy(classify=later_by_namespace)
    async with Dispatcher(config) as dispatcher:
        waiting: list[CallHandle[Any]] = []
        for number in range(rounds):
            namespace = f"ns{number}"
            pod = ObjectRef("v1", "Pod", namespace, "p", f"uid{number}")
            context = dispatcher.contexts.begin(pod)
            waiting.append(
                dispatcher.submit(
                    bare(
                        *(f"bind-pod{number}", f"pod{number}", "p", namespace, fn),
                        context=context,
                        retry=policy,
                        idempotency_key=f"key{number}",
                        depends_on=(ObjectRef("v1", "Node", None, f"node{number}"),),
                    )
                )
            )
            if len(waiting) == 250:
                for handle in waiting:
                    assert isinstance(await handle.outcome(), Succeeded)
                    dispatcher.forget(handle.call.target, "its namespace is gone")
                waiting.clear()
                sizes = sizes_of(dispatcher)
                assert sizes.pop("flows") <= 4_096
                assert sizes.pop("call types") <= 4_096
                assert sizes.pop("breakers") <= 1_024
                assert set(sizes.values()) == {0}, sizes
                assert len(dispatcher.statistics().in_flight_by_flow) == 0
        for handle in waiting:
            await handle.outcome()
        await asyncio.sleep(120)
        assert len(dispatcher._core.memory) == 0
        assert len(dispatcher._core.keys) == 0
        assert len(dispatcher._core.objects.table) <= 65_536
        # The idle names are let go as new ones come.
        assert len(dispatcher._core.flows) <= 1_000
        assert len(dispatcher._core.groups) <= 1_000


async def test_k3_names_that_are_all_in_use(monkeypatch):
    """Beyond the cap, live names share one: nothing is refused for it, and nothing is mixed up."""
    monkeypatch.setattr("asyncdispatch._core.executions.MAX_NAMES", 512)
    gate = asyncio.Event()

    async def gated(attempt):
        await gate.wait()
        return attempt.call.target.name

    async with Dispatcher() as dispatcher:
        handles = [
            dispatcher.submit(bare(f"type{n}", f"flow{n}", f"p{n}", "ns", gated, effect=Effect.READ))
            for n in range(1_000)
        ]
        assert sizes_of(dispatcher)["flows"] <= 513
        assert sizes_of(dispatcher)["call types"] <= 513
        gate.set()
        assert [await handle for handle in handles] == [f"p{n}" for n in range(1_000)]
        statistics = dispatcher.statistics()
        assert (statistics.depth, statistics.in_flight, statistics.waiting_by_flow) == (0, 0, {})
        # Once they are idle, the names are let go, and new ones stand for themselves again.
        for number in range(500):
            await dispatcher.run(bare("late type", f"late{number}", "p", "ns", gated, effect=Effect.READ))
        assert "late499" in dispatcher._core.flows


@pytest.mark.parametrize("how", ["slow server", "rate"])
async def test_k5_more_work_than_can_be_done(server, cluster, how):
    """Beyond its throughput a controller died, fell silent, or dropped accepted work when its time was over.

    Right: each accepted call ends in one outcome that its caller sees; counters add up; health can be told.
    """
    log = Log()
    server.latency = 0.2 if how == "slow server" else 0.0
    limit = RateLimit(qps=10) if how == "rate" else None
    config = DispatcherConfig(capacity=1_000, max_in_flight=2, rate=limit)
    handles: list[CallHandle[Any]] = []
    refused = 0
    pressures = set()
    async with Dispatcher(config, observers=[log]) as dispatcher:
        for number in range(3_000):
            try:
                handles.append(dispatcher.submit(cluster.create(config_map(f"c{number}"), timeout=20)))
            except Backpressure as full:
                refused += 0 < full.retry_after <= 30
            if number % 10 == 9:
                await asyncio.sleep(0.1)
                pressures.add(dispatcher.pressure)
            if number % 100 == 99 and number > 500:
                statistics = dispatcher.statistics()
                # A health check: it goes on ending calls, and says how far behind it is.
                assert statistics.last_completion_age is not None
                assert statistics.last_completion_age < 0.5
                assert statistics.oldest_wait is not None
                assert statistics.oldest_wait <= 20.1
        for handle in handles:
            await handle.outcome()
        statistics = dispatcher.statistics()
    assert pressures == {Pressure.OK, Pressure.HIGH, Pressure.FULL}
    assert all(count == 1 for count in log.settlements.values())
    assert len(log.settlements) == len(handles)
    done = [handle for handle in handles if isinstance(handle.settled, Succeeded)]
    late = [handle for handle in handles if isinstance(handle.settled, Expired)]
    assert len(done) + len(late) == len(handles)
    flew = [handle for handle in late if handle.settled and handle.settled.attempts]
    for handle in late:
        assert isinstance(handle.settled, Expired)
        assert handle.settled.where == ("in_flight" if handle in flew else "queued")
        assert handle.settled.ambiguous == (handle in flew)
    assert all(handle.settled.elapsed_seconds <= 20.1 for handle in late if handle.settled)
    assert statistics.accepted == len(handles) == sum(statistics.outcomes.values())
    assert statistics.refused == refused
    assert len(sent(server)) == len(done) + len(flew)
    if how == "rate":
        assert not flew
        assert len(done) >= 10 * 30
    assert now() < 60


async def test_k5_work_that_is_merged_is_not_lost(server, cluster):
    """The same for work that is offered faster than it can be done and can be merged: the newest of each wins."""
    server.latency = 1
    pod = server.create(new_pod())
    handles: list[CallHandle[Any]] = []
    async with Dispatcher(DispatcherConfig(max_in_flight=1)) as dispatcher:
        for number in range(100):
            state = {**UNSCHEDULABLE, "message": str(number)}
            handles.append(dispatcher.submit(cluster.patch_status(pod, conditions=[state], fence="uid")))
            await asyncio.sleep(0.1)
        outcomes = [await handle.outcome() for handle in handles]
        statistics = dispatcher.statistics()
    assert isinstance(outcomes[-1], Succeeded)
    assert statistics.accepted == 100 == sum(statistics.outcomes.values())
    assert len(sent(server, "PATCH")) <= 12
    assert server.get(pod)["status"]["conditions"][0]["message"] == "99"
