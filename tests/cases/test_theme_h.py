"""H: leadership, shutdown, cancellation."""

import asyncio
from typing import Any

import pytest

from asyncdispatch import (
    CallHandle,
    Dispatcher,
    DispatcherClosed,
    DispatcherConfig,
    FunctionCall,
    ObjectRef,
    StaleContext,
)
from asyncdispatch.outcomes import Cancelled, Expired, Succeeded
from tests.cases.support import UNSCHEDULABLE, Log, config_map, hold_loop, new_pod, now

LEASE = ObjectRef("coordination.k8s.io/v1", "Lease", "ns", "leader")


@pytest.mark.parametrize("how", ["time", "word"])
@pytest.mark.parametrize("latency", [4.0, 0.3])
async def test_h1_no_write_after_leadership(server, cluster, how, latency):
    """After the lease was lost, parts of the program went on writing while an orderly shutdown was blocked.

    Right: nothing starts once the time of the last renewal is over, whatever is blocked, and nothing can land later.
    """
    server.delay(latency)
    pods = [server.create(new_pod(f"p{number}")) for number in range(200)]
    hook_blocked = asyncio.Event()
    async with Dispatcher(DispatcherConfig(max_in_flight=8, attempt_timeout=60)) as dispatcher:
        leading = dispatcher.contexts.begin(LEASE, valid_until=10 if how == "time" else None)
        handles: list[CallHandle[Any]] = []
        for index, pod in enumerate(pods):
            context = leading if index % 2 else dispatcher.contexts.begin(pod, parent=leading)
            if index % 3:
                call = cluster.bind(pod, "n1", context=context)
            else:
                call = cluster.patch_status(pod, conditions=[UNSCHEDULABLE], context=context)
            handles.append(dispatcher.submit(call))

        async def shutdown_hook():
            await hook_blocked.wait()

        blocked = asyncio.create_task(shutdown_hook())
        if how == "word":
            await asyncio.sleep(10)
            leading.end("the lease is lost")
        await asyncio.sleep(20 - now())
        assert all(handle.done() for handle in handles)
        with pytest.raises(StaleContext):
            dispatcher.submit(cluster.create(config_map(), context=leading))
        hook_blocked.set()
        await blocked
    for handle in handles:
        outcome = handle.settled
        assert isinstance(outcome, (Succeeded, Cancelled, Expired))
        assert outcome.elapsed_seconds <= 10.1
    assert max(record.time for record in server.audit) <= 10
    landed = [record.applied_at for record in server.audit if record.applied]
    assert landed
    assert max(landed) <= 15
    told = {handle.ticket for handle in handles if isinstance(handle.settled, Succeeded)}
    doubted = {handle.ticket for handle in handles if handle.settled is not None and handle.settled.ambiguous}
    tickets = {int(record.audit_id.split("-")[0]) for record in server.audit if record.applied and record.audit_id}
    assert tickets <= told | doubted


async def test_h1_extended_leadership_goes_on(server, cluster):
    """While renewals succeed, the same work runs to its end; a renewal that comes too late is refused."""
    server.delay(1)
    async with Dispatcher(DispatcherConfig(max_in_flight=2)) as dispatcher:
        leading = dispatcher.contexts.begin(LEASE, valid_until=10)
        handles = [dispatcher.submit(cluster.create(config_map(f"c{n}"), context=leading)) for n in range(40)]
        for _ in range(3):
            await asyncio.sleep(5)
            leading.extend(now() + 10)
        for handle in handles:
            assert isinstance(await handle.outcome(), Succeeded)
        await asyncio.sleep(20)
        with pytest.raises(StaleContext):
            leading.extend(now() + 10)


@pytest.mark.parametrize("waits", ["for seats", "in backoff", "until later"])
async def test_h3_stalled_process_that_believes_it_leads(server, cluster, waits):
    """A stalled process believed that it still led, and wrote beside its successor.

    Right: the first thing after the stall is a look at the clock: nothing starts any more, and the context has ended.
    """
    server.delay(4 if waits == "for seats" else 0)
    if waits == "in backoff":
        server.fail(status=503, retry_after=3, times=None)
    log = Log()
    async with Dispatcher(DispatcherConfig(max_in_flight=2, attempt_timeout=60), observers=[log]) as dispatcher:
        leading = dispatcher.contexts.begin(LEASE, valid_until=10)
        delay = 5 if waits == "until later" else None
        handles = [
            dispatcher.submit(cluster.create(config_map(f"c{n}"), context=leading, not_before=delay)) for n in range(20)
        ]
        rival = dispatcher.submit(cluster.create(config_map("not-of-the-leader"), not_before=15))
        await asyncio.sleep(1)
        before = len(server.audit)
        hold_loop(19)
        for handle in handles:
            assert isinstance(await handle.outcome(), (Cancelled, Expired))
        assert leading.ended
        assert now() < 21
        await rival.outcome()
    ours = [record for record in server.audit if record.name != "not-of-the-leader"]
    assert len(ours) == before
    assert all(when < 2 for handle in handles for when in log.started_at.get(handle.ticket, ()))


async def test_h3_stall_of_user_code_is_reported(caplog):
    """The stall itself is named, if it was a call's own code that held the loop."""
    target = ObjectRef("v1", "Pod", "ns", "p")

    async def heavy(attempt):
        hold_loop(19)

    async def light(attempt):
        return now()

    async with Dispatcher(DispatcherConfig(max_in_flight=1, blocking_threshold=1e-9)) as dispatcher:
        leading = dispatcher.contexts.begin(LEASE, valid_until=10)
        stalled = dispatcher.submit(FunctionCall(heavy, call_type="heavy", target=target, context=leading))
        behind = dispatcher.submit(FunctionCall(light, call_type="light", target=target, context=leading))
        assert not isinstance(await behind.outcome(), Succeeded)
        assert not isinstance(await stalled.outcome(), Succeeded)
        assert behind.settled is not None
        assert not behind.settled.attempts
        assert dispatcher.statistics().blocked
    assert any("heavy" in record.message for record in caplog.records)


@pytest.mark.parametrize("second", ["at once", "later", "never"])
async def test_h11_cancelled_twice_while_leaving(server, cluster, second):
    """A second cancellation during clean-up left background tasks running.

    Right: no task of ours is left, every handle has its outcome, and the cancellation is raised again.
    """
    server.delay(2)
    handles: list[CallHandle[Any]] = []
    inside = asyncio.Event()

    async def program():
        async with Dispatcher(DispatcherConfig(max_in_flight=4)) as dispatcher:
            handles.extend(dispatcher.submit(cluster.create(config_map(f"c{n}"))) for n in range(12))
            waiting = asyncio.create_task(dispatcher.run(cluster.create(config_map("run"))))
            inside.set()
            try:
                await asyncio.sleep(600)
            finally:
                waiting.cancel()

    before = asyncio.all_tasks()
    task = asyncio.create_task(program())
    await inside.wait()
    await asyncio.sleep(3)
    task.cancel()
    if second != "never":
        await asyncio.sleep(0 if second == "at once" else 0.001)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(handle.done() for handle in handles)
    assert now() <= 3 + 5.1
    left = {other for other in asyncio.all_tasks() - before if "asyncdispatch" in other.get_name()}
    assert not left
    sent_by_then = len(server.audit)
    await asyncio.sleep(60)
    assert len(server.audit) == sent_by_then
    told = {h.ticket for h in handles if isinstance(h.settled, Succeeded) or (h.settled and h.settled.ambiguous)}
    landed = {int(record.audit_id.split("-")[0]) for record in server.audit if record.applied}
    assert landed
    assert landed <= told


async def test_h11_cancelled_twice_while_draining(server, cluster):
    """The same in the drain of a block that was left in peace: closed at once, nothing left, cancellation raised."""
    server.delay(2)
    handles: list[CallHandle[Any]] = []

    async def program():
        async with Dispatcher(DispatcherConfig(max_in_flight=1)) as dispatcher:
            handles.extend(dispatcher.submit(cluster.create(config_map(f"c{n}"))) for n in range(5))

    before = asyncio.all_tasks()
    task = asyncio.create_task(program())
    await asyncio.sleep(3)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() <= 3.1
    assert [type(handle.settled) for handle in handles] == [Succeeded] + [Cancelled] * 4
    assert not {other for other in asyncio.all_tasks() - before if "asyncdispatch" in other.get_name()}


@pytest.mark.parametrize("fault", ["503", "429", "quota", "401"])
@pytest.mark.parametrize("end", ["context", "close", "cancel", "forget", "flow"])
async def test_h13_retry_ends_with_what_it_was_for(server, cluster, end, fault):
    """A retry loop ignored that its context had ended, and slept on or span until it was killed.

    Right: the handles have their outcomes in the same turn, and neither a timer nor a further request is left.
    """
    if fault == "quota":
        server.fail(status=403, message="exceeded quota: q, requested: pods=1", times=None)
    else:
        asked = None if fault == "401" else 60
        server.fail(status=int(fault), retry_after=asked, times=None)
    pod = server.create(new_pod())
    async with Dispatcher() as dispatcher:
        context = dispatcher.contexts.begin(pod)
        handles = [
            dispatcher.submit(cluster.bind(pod, "n1", context=context, flow="mine")),
            dispatcher.submit(cluster.patch_status(pod, nominated_node=None, context=context, flow="mine")),
        ]
        if end != "forget":
            handles.append(dispatcher.submit(cluster.create(config_map(), context=context, flow="mine")))
        await asyncio.sleep(0.4)
        assert not any(handle.done() for handle in handles)
        closing = None
        if end == "context":
            context.end("preempted")
        elif end == "close":
            closing = asyncio.create_task(dispatcher.aclose())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        elif end == "cancel":
            for handle in handles:
                handle.cancel()
        elif end == "forget":
            dispatcher.forget(ObjectRef.of(pod), "deleted")
        else:
            dispatcher.cancel_flow("mine", "the tenant has left")
        for handle in handles:
            assert isinstance(handle.settled, Cancelled)
        before = len(server.audit)
        if closing is not None:
            await closing
        else:
            assert dispatcher.statistics().waiting == {}
        assert now() < 0.5
        await asyncio.sleep(300)
        assert len(server.audit) == before
    if closing is not None:
        with pytest.raises(DispatcherClosed):
            dispatcher.submit(cluster.create(config_map()))
