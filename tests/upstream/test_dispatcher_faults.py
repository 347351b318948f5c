"""Known faults of kube-scheduler's own asynchronous dispatcher: each docstring tells the fault, then our law."""

import asyncio
import time
from itertools import count

import pytest

from asyncdispatch import (
    AsyncDisabled,
    CallFailed,
    CallTypePolicy,
    Dispatcher,
    DispatcherClosed,
    DispatcherConfig,
    FunctionCall,
    Mode,
    ObjectRef,
    RateLimit,
)
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.outcomes import Cancelled, Failed, Overwritten, Skipped, Succeeded
from asyncdispatch.testing import EmbeddedAPIServer
from tests.cases.support import ETCD, UNSCHEDULABLE, Log, applied, condition, config_map, new_pod, now, sent


def ready(kind: str, status: str = "True", **more: str):
    return {"type": kind, "status": status, **more}


async def test_same_type_add_during_flight_told_the_waiter_overwritten(server, cluster):
    """A call of the same type, added during a flight, told the waiter in flight that it was overwritten.

    L13: nobody is told "overwritten" about a request that is on the wire: the first succeeds, the second is sent too.
    """
    pod = server.create(new_pod())
    server.latency = 1
    async with Dispatcher() as dispatcher:
        first = dispatcher.submit(cluster.patch_status(pod, conditions=[ready("A")]))
        await asyncio.sleep(0.5)
        second = dispatcher.submit(cluster.patch_status(pod, conditions=[ready("A", "False")]))
        third = dispatcher.submit(cluster.patch_status(pod, conditions=[ready("B")]))
        outcomes = [await handle.outcome() for handle in (first, second, third)]
    assert isinstance(outcomes[0], Succeeded)
    assert condition(outcomes[0].value, "A") == "True"
    assert isinstance(outcomes[1], Overwritten)  # it was not on the wire: merged
    assert outcomes[1].by == third.ticket
    assert isinstance(outcomes[2], Succeeded)
    assert (condition(outcomes[2].value, "A"), condition(outcomes[2].value, "B")) == ("False", "True")
    assert len(sent(server, "PATCH")) == 2


@pytest.mark.parametrize("third_type", ["pod_binding", "pod_status_patch", "other"])
async def test_third_call_replaced_the_parked_one_whose_waiter_never_resolved(server, cluster, third_type):
    """With one call in flight and one parked, a third of another type replaced the parked one; its waiter hung.

    L1: every accepted call gets exactly one outcome.
    """
    pod = server.create(new_pod())
    server.latency = 1
    log = Log()

    async def label(attempt):
        server.patch_object(pod, {"metadata": {"labels": {"l": "1"}}})
        return "labelled"

    async with Dispatcher(observers=[log]) as dispatcher:
        handles = [dispatcher.submit(cluster.patch_status(pod, conditions=[ready("A")], version="1", fence="uid"))]
        await asyncio.sleep(0.5)
        handles.append(dispatcher.submit(cluster.patch_status(pod, nominated_node=None)))
        if third_type == "pod_binding":
            third = cluster.bind(pod, "n1")
        elif third_type == "pod_status_patch":
            third = cluster.patch_status(pod, conditions=[ready("B")])
        else:
            third = FunctionCall(label, call_type="label", target=ObjectRef.of(pod))
        handles.append(dispatcher.submit(third))
        await asyncio.sleep(20)
        assert all(handle.done() for handle in handles)
        assert dispatcher.statistics().depth == 0
    assert log.settlements == {handle.ticket: 1 for handle in handles}
    assert isinstance(handles[2].settled, Succeeded)


@pytest.mark.parametrize("end", ["fails", "expires", "is cancelled"])
async def test_low_call_skipped_for_a_high_one_that_then_failed(server, cluster, end):
    """A low call was skipped because of a high one in flight, and was lost when the high one failed.

    L12: it waits in line, and is sent when the better one ends in any other way than well.
    """
    pod = server.create(new_pod())
    server.latency = 1
    if end == "fails":
        server.fail(status=422, path="*/binding")
    else:
        server.delay(60, path="*/binding")
    async with Dispatcher() as dispatcher:
        high = dispatcher.submit(cluster.bind(pod, "n1", timeout=5))
        await asyncio.sleep(0.1)
        low = dispatcher.submit(cluster.patch_status(pod, conditions=[UNSCHEDULABLE]))
        await asyncio.sleep(0.1)
        if end == "is cancelled":
            high.cancel()
        patched = await low
        assert not isinstance(await high.outcome(), Succeeded)
    assert condition(patched, "PodScheduled") == "False"


async def test_low_call_is_skipped_when_the_high_one_succeeds(server, cluster):
    """The other end of the same law: after the bind's success it is Skipped, and not sent."""
    pod = server.create(new_pod())
    server.latency = 1
    async with Dispatcher() as dispatcher:
        high = dispatcher.submit(cluster.bind(pod, "n1"))
        await asyncio.sleep(0.1)
        outcome = await dispatcher.submit(cluster.patch_status(pod, conditions=[UNSCHEDULABLE])).outcome()
        assert isinstance(outcome, Skipped)
        assert outcome.by == high.ticket
    assert not sent(server, "PATCH")


async def test_no_op_high_call_deleted_the_pending_low_one(server, cluster):
    """A high call that changed nothing deleted the pending low one, and the gauges drifted.

    L1, L12: a no-op is only taken as one when nothing else of its object waits; what is pending keeps its place.
    """
    pod = server.create(new_pod())
    server.latency = 1
    shown = {**pod, "status": {"conditions": [ready("A")]}}

    class NoBind(FunctionCall):
        def is_noop(self):
            return True

    async def bound(attempt):
        return "bound"

    config = DispatcherConfig(max_in_flight=1, call_types={"high": CallTypePolicy(supersedes=("pod_status_patch",))})
    async with Dispatcher(config) as dispatcher:
        blocker = dispatcher.submit(cluster.create(config_map()))
        low = dispatcher.submit(cluster.patch_status(pod, conditions=[ready("B")]))
        high = dispatcher.submit(NoBind(bound, call_type="high", target=ObjectRef.of(pod)))
        same = dispatcher.submit(cluster.patch_status(shown, conditions=[ready("A")]))
        assert not high.done()
        assert low.settled == Overwritten(by=same.ticket)  # merged into the one that would change nothing by itself
        assert not same.done()
        assert dispatcher.statistics().depth == 3
        outcomes = [await handle.outcome() for handle in (blocker, high, same)]
        statistics = dispatcher.statistics()
        dispatcher.observe(server.get(pod))
        alone = dispatcher.submit(cluster.patch_status(server.get(pod), nominated_node=None))
        assert isinstance(alone.settled, Succeeded)  # nothing else of it waits: now it is a no-op, with no attempt
        assert alone.settled.attempts == 0
    assert [type(outcome) for outcome in outcomes] == [Succeeded, Succeeded, Skipped]
    assert outcomes[1].attempts == 1
    assert (statistics.depth, statistics.in_flight, statistics.waiting) == (0, 0, {})
    assert sum(statistics.outcomes.values()) == statistics.accepted == 4


def test_removal_from_the_queue_cost_as_much_as_the_queue_is_long():
    """Removing one call went through the whole queue, under the lock.

    Cancelling one of many waiting calls costs about the same, however many wait.
    """

    async def never(attempt):
        await asyncio.Event().wait()

    async def seconds_for(waiting: int, cancelled: int = 500) -> float:
        config = DispatcherConfig(capacity=100_000, max_in_flight=1)
        async with asyncio.timeout(60), Dispatcher(config) as dispatcher:
            handles = [
                dispatcher.submit(FunctionCall(never, call_type="t", target=ObjectRef("v1", "Pod", "ns", f"p{n}")))
                for n in range(waiting)
            ]
            middle = handles[waiting // 2 - cancelled // 2 :][:cancelled]
            began = time.perf_counter()
            for handle in middle:
                handle.cancel()
            spent = time.perf_counter() - began
            await dispatcher.aclose()
        return spent

    few = min(asyncio.run(seconds_for(1_000)) for _ in range(2))
    many = min(asyncio.run(seconds_for(10_000)) for _ in range(2))
    assert many < 4 * few + 0.005, (few, many)


@pytest.mark.parametrize("end", ["close", "drain"])
async def test_close_accepted_later_adds_and_notified_nobody(server, cluster, end):
    """After Close, calls were still accepted, and nobody who waited was told anything.

    L15: closing resolves every handle, and whoever comes later is told so at once.
    """
    server.latency = 1
    async with Dispatcher(DispatcherConfig(max_in_flight=2)) as dispatcher:
        handles = [dispatcher.submit(cluster.create(config_map(f"c{number}"))) for number in range(6)]
        handles.append(dispatcher.submit(cluster.create(config_map("later"), not_before=600)))
        await asyncio.sleep(0.5)
        closing = asyncio.create_task(dispatcher.aclose() if end == "close" else dispatcher.drain(timeout=10))
        await asyncio.sleep(0.001)
        for submitting in (dispatcher.dispatch, dispatcher.run):
            with pytest.raises(DispatcherClosed):
                await submitting(cluster.create(config_map("late")))
        with pytest.raises(DispatcherClosed):
            dispatcher.submit(cluster.create(config_map("late")))
        await closing
        assert all(handle.done() for handle in handles)
    kinds = [type(handle.settled) for handle in handles[:6]]
    assert kinds == ([Succeeded] * 6 if end == "drain" else [Cancelled] * 6)
    assert not [record for record in server.audit if record.name in ("late", "later")]


@pytest.mark.parametrize("limit", ["seats", "rate"])
async def test_backlog_of_status_patches_delayed_binds(server, cluster, limit):
    """A backlog of status patches used up the limiter that binds share with them.

    Seats per call type, and priority before rate: a bind starts with the next token and seat.
    """
    pods = [server.create(new_pod(f"p{number}")) for number in range(100)]
    server.latency = 1
    types = {"pod_status_patch": CallTypePolicy(max_in_flight=2)}
    if limit == "seats":
        config = DispatcherConfig(max_in_flight=4, call_types=types)
    else:
        config = DispatcherConfig(rate=RateLimit(qps=10))
    urgent = 0 if limit == "seats" else 1_000_000
    log = Log()
    async with Dispatcher(config, observers=[log]) as dispatcher:
        for pod in pods[:90]:
            dispatcher.submit(cluster.patch_status(pod, conditions=[UNSCHEDULABLE]))
        await asyncio.sleep(0.95)
        for pod in pods[90:]:
            began = now()
            handle = dispatcher.submit(cluster.bind(pod, "n1", priority=urgent))
            await handle
            assert log.started_at[handle.ticket][0] - began <= 0.11
        await dispatcher.aclose()


async def test_fixed_cap_throttled_binding_on_a_slow_but_healthy_server(server, cluster):
    """A fixed cap of 16 calls throttled binding whenever latency was high, though the server was well.

    The limit starts generous and grows with success; it is cut when the server itself says that it is too much.
    """
    pods = [server.create(new_pod(f"p{number}")) for number in range(600)]
    server.latency = 1
    async with Dispatcher() as dispatcher:
        before = dispatcher.statistics().seats
        for handle in [dispatcher.submit(cluster.bind(pod, "n1")) for pod in pods]:
            await handle
        assert now() < 600 / 16 / 2
        grown = dispatcher.statistics().seats
        assert grown > before >= 32
        server.latency = 0
        server.rate_limit(qps=5)
        for handle in [dispatcher.submit(cluster.create(config_map(f"c{n}"))) for n in range(30)]:
            await handle
        assert dispatcher.statistics().seats < grown


@pytest.mark.parametrize("known", ["the context", "the version"])
async def test_late_unscheduled_patch_landed_after_a_successful_bind(server, cluster, known):
    """A late PodScheduled=False of an older cycle was written over a Pod that had been bound meanwhile.

    L5, L11 and versions: the older context's end cancels it, and its version keeps it off if it is on the wire.
    """
    pod = server.create(new_pod())
    server.delay(5, method="PATCH")
    async with Dispatcher(DispatcherConfig(attempt_timeout=1)) as dispatcher:
        context = dispatcher.contexts.begin(pod) if known == "the context" else None
        patch = dispatcher.submit(cluster.patch_status(pod, conditions=[UNSCHEDULABLE], context=context))
        await asyncio.sleep(0.5)
        context = dispatcher.contexts.begin(pod) if known == "the context" else None
        assert await dispatcher.run(cluster.bind(pod, "n1", context=context)) == "n1"
        assert isinstance(await patch.outcome(), (Cancelled, Failed, Skipped, Overwritten))
        await asyncio.sleep(30)
    assert condition(server.get(pod), "PodScheduled") == "True"


@pytest.mark.parametrize("fault", ["500", "slow"])
async def test_ambiguous_bind_led_to_two_scheduling_cycles(server, cluster, fault):
    """A bind that timed out, though it was stored, put its Pod back into the queue: two cycles for one Pod.

    L10: its fate is found out by a read before anybody is told; one outcome, one completion, one bind.
    """
    pod = server.create(new_pod())
    if fault == "500":
        server.fail(status=500, reason="", message=ETCD, applied=True, path="*/binding")
    else:
        server.delay(30, applied=True, path="*/binding")
    cycles = 0
    async with Dispatcher(DispatcherConfig(attempt_timeout=2)) as dispatcher, dispatcher.completions() as completions:
        context = dispatcher.contexts.begin(pod)
        dispatcher.submit(cluster.bind(pod, "n1", context=context))
        completion = await anext(completions)
        cycles += not isinstance(completion.outcome, Succeeded)
        assert completion.epoch == context.epoch
        await asyncio.sleep(60)
    assert [completion async for completion in completions] == []
    assert cycles == 0
    assert len(sent(server, "POST")) == len(applied(server, "bind")) == 1


async def test_retrying_a_conflict_with_the_same_stale_base(server, cluster):
    """A conflict was tried again with the base that had just been refused, which can never get through.

    `reconcile` and rebase: each further try is decided on what was read.
    """
    pod = server.create(new_pod())
    numbers = count()
    server.hook(
        lambda record: server.patch_object(pod, {"metadata": {"labels": {"l": str(next(numbers))}}}) and None,
        times=4,
        method="PATCH",
    )
    async with Dispatcher() as dispatcher:
        await dispatcher.run(cluster.patch_status(pod, conditions=[UNSCHEDULABLE], fence="version"))
    bases = [record.body["metadata"]["resourceVersion"] for record in sent(server, "PATCH")]
    assert len(bases) == len(set(bases)) == 5


async def test_recreated_pod_received_the_old_ones_patch(server, cluster):
    """A Pod was deleted and created again under its name, and got the patch that was meant for the old one.

    The uid is a precondition of every write, and what is known to be for another uid ends unsent.
    """
    pod = server.create(new_pod())
    async with Dispatcher() as dispatcher:
        delayed = dispatcher.submit(cluster.patch_status(pod, conditions=[UNSCHEDULABLE], not_before=5))
        server.recreate(pod)
        unfenced = cluster.patch_status(pod, conditions=[ready("A")])
        for call in (unfenced, cluster.bind(pod, "n1")):
            with pytest.raises(CallFailed):
                await dispatcher.run(call)
        dispatcher.observe(server.get(pod))
        outcome = await delayed.outcome()
        assert isinstance(outcome, (Failed, Cancelled))
        assert not outcome.attempts
    found = server.get(pod)
    assert not found["status"].get("conditions")
    assert "nodeName" not in found["spec"]


async def test_dozens_of_deletes_for_one_victim(server, cluster):
    """A preemption's request was not tracked, so that its victim was deleted again in every cycle, dozens of times.

    L8: an equal key while live is one execution, and every caller gets its outcome.
    """
    victim = server.create(new_pod("victim"))
    server.latency = 1
    path = "/api/v1/namespaces/ns/pods/victim"

    async def delete(attempt):
        return await cluster.transport.request("DELETE", path, attempt)

    async with Dispatcher() as dispatcher:
        handles = []
        for _ in range(40):
            target = ObjectRef.of(victim)
            call = FunctionCall(delete, call_type="delete", target=target, idempotency_key="preempt victim")
            handles.append(dispatcher.submit(call))
            await asyncio.sleep(0.01)
        assert dispatcher.statistics().depth == 1
        for handle in handles:
            await handle
    assert len(sent(server, "DELETE")) == 1


async def test_wake_up_lost_while_the_waiter_was_still_gated(server, cluster):
    """The event that should wake a waiter fired while its gate was shut; opening the gate then woke nobody.

    L19, L21: a requirement is a state, not an event; and whoever is too slow for completions is told what he lost.
    """
    pod = server.create(new_pod())
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "ns"}}
    async with Dispatcher() as dispatcher, dispatcher.completions(maxsize=2) as slow:
        context = dispatcher.contexts.begin(pod, requires=("volume", "quota"))
        context.confirm("quota")
        await dispatcher.run(cluster.create(claim, context=context, prerequisite="volume"))  # before anybody waits
        assert await dispatcher.run(cluster.bind(pod, "n1", context=context)) == "n1"
        for number in range(5):
            await dispatcher.run(cluster.create(config_map(f"c{number}")))
        first = await anext(slow)
        assert first.lost == 5
        assert (await anext(slow)).lost == 0
        assert slow.lost == 5


async def test_conditions_patched_in_separate_calls_overwrote_each_other(server, cluster):
    """Several conditions, patched in separate calls, overwrote each other.

    They are merged by type, both in line and on the server.
    """
    pod = server.create(new_pod())
    server.latency = 0.1
    async with Dispatcher() as dispatcher:
        for kind in ("A", "B", "C"):
            dispatcher.submit(cluster.patch_status(pod, conditions=[ready(kind)]))
        await asyncio.sleep(0.05)
        for kind in ("D", "A"):
            dispatcher.submit(cluster.patch_status(pod, conditions=[ready(kind, "False")]))
    found = server.get(pod)
    assert {item["type"]: item["status"] for item in found["status"]["conditions"]} == {
        "A": "False",
        "B": "True",
        "C": "True",
        "D": "False",
    }
    assert len(sent(server, "PATCH")) == 2


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
async def test_gate_off_tests_that_never_turned_the_gate_off(mode):
    """Tests "with the gate off" ran with the gate on, and so proved nothing.

    Here the mode is asserted, and the very same code runs in both, with a difference that can be seen.
    """
    async with EmbeddedAPIServer(auto_namespaces=True, latency=1) as server, Dispatcher() as dispatcher:
        cluster = Cluster(server.api_client())
        pod = server.create(new_pod())
        await dispatcher.switch(mode, "test")
        assert dispatcher.mode is mode
        handle = await dispatcher.dispatch(cluster.bind(pod, "n1"))
        assert dispatcher.mode is mode
        assert handle.done() == (mode is Mode.SYNC)
        assert now() == pytest.approx(1 if mode is Mode.SYNC else 0, abs=0.01)
        assert await handle == "n1"
        assert await dispatcher.run(cluster.create(config_map()))
        if mode is Mode.SYNC:
            with pytest.raises(AsyncDisabled):
                dispatcher.submit(cluster.create(config_map("d")))
        else:
            await dispatcher.submit(cluster.create(config_map("d")))
        assert len(sent(server)) == 2 + (mode is Mode.ASYNC)
