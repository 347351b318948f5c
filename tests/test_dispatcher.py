"""The front door: submit, dispatch and run, room and pressure, forgetting, and what is logged."""

import asyncio
import logging
from typing import Any

import pytest

from asyncdispatch import (
    Backpressure,
    CallFailed,
    CallState,
    Cancelled,
    DeadlineExpired,
    Dispatcher,
    Effect,
    Expired,
    FlowQuota,
    FunctionCall,
    IdempotencyPolicy,
    Pressure,
    RateLimit,
    RetryPolicy,
    Succeeded,
)
from tests.shell import (
    Recorder,
    Script,
    after,
    call,
    for_ever,
    just_after,
    node,
    now,
    pod,
    pod_dict,
    raising,
    running,
    turns,
)


async def test_submit_never_waits():
    """The handle is there at once; nothing has run yet."""
    async with running() as dispatcher:
        started: list[Any] = []
        handle = dispatcher.submit(call(Script("done")))
        assert handle.state is CallState.QUEUED
        assert started == []
        assert await handle == "done"


async def test_dispatch_gives_the_handle_at_once():
    async with running() as dispatcher:
        handle = await dispatcher.dispatch(call(after(1.0)))
        assert now() == 0.0
        assert await handle == "done"


async def test_run_gives_the_value_or_the_error():
    async with running() as dispatcher:
        assert await dispatcher.run(call(after(1.0, 7))) == 7
        with pytest.raises(CallFailed):
            await dispatcher.run(call(raising(ValueError())))


async def test_a_no_op_succeeds_at_once_without_an_attempt():
    class Nothing(FunctionCall[Any]):
        def is_noop(self) -> bool:
            return True

    async with running() as dispatcher:
        handle = dispatcher.submit(Nothing(raising(ValueError()), call_type="write", target=pod()))
        assert handle.done()
        assert handle.result() is None
        assert await handle.outcome() == Succeeded(None)


async def test_a_remembered_key_is_answered_from_memory():
    """Law L8: within its time, unless the call is `fresh` or the object was forgotten."""
    script = Script(1, 2, 3)
    async with running(idempotency=IdempotencyPolicy(ttl=10.0)) as dispatcher:

        async def ask(**fields: Any) -> Any:
            return await dispatcher.run(call(script, idempotency_key="k", **fields))

        assert [await ask(), await ask(), await ask(fresh=True)] == [1, 1, 2]
        await asyncio.sleep(11.0)
        assert await ask() == 3


# -- room -------------------------------------------------------------------------------------------------------------


async def test_when_it_is_full_submit_says_so_and_what_and_for_how_long():
    async with running(capacity=20, reserve=0.1, max_in_flight=1) as dispatcher:
        handles = [dispatcher.submit(call(after(0.1), f"p{i}")) for i in range(18)]
        with pytest.raises(Backpressure) as caught:
            dispatcher.submit(call(name="more"))
        assert (caught.value.scope, caught.value.depth, caught.value.capacity) == ("total", 18, 18)
        assert 0 < caught.value.retry_after <= 30.0
        with pytest.raises(Backpressure):
            await dispatcher.dispatch(call(name="more"))
        context = dispatcher.contexts.begin(pod("c"), requires=("volume",))
        volume = dispatcher.submit(call(name="v", context=context, prerequisite="volume"))
        await asyncio.gather(*handles, volume)
        assert dispatcher.statistics().refused == 2
        assert await dispatcher.run(call()) == "done"


async def test_retry_after_follows_the_rate_at_which_calls_end():
    async with running(capacity=100, reserve=0.0, max_in_flight=1) as dispatcher:
        for i in range(100):
            dispatcher.submit(call(after(0.1), f"p{i}"))
        await asyncio.sleep(5.0)
        for i in range(100 - dispatcher.statistics().depth):
            dispatcher.submit(call(after(0.1), f"q{i}"))
        with pytest.raises(Backpressure) as caught:
            dispatcher.submit(call(name="more"))
        assert caught.value.retry_after == pytest.approx(1.1, rel=0.2), "eleven places at ten a second"
        await dispatcher.aclose()


@pytest.mark.parametrize("scope", ["flow", "object", "joined"])
async def test_every_scope_that_may_be_full_is_named(scope: str):
    quotas = {"small": FlowQuota(max_queued=2)}
    async with running(flows=quotas, lane_capacity=2, max_joined=1) as dispatcher:
        fields: dict[str, Any] = {
            "flow": {"flow": "small", "name": "p{}"},
            "object": {},
            "joined": {"idempotency_key": "k"},
        }[scope]

        def submit(number: int) -> Any:
            given = {**fields, "name": fields.get("name", "p").format(number)}
            return dispatcher.submit(call(for_ever, **given))

        submit(0)
        await turns()
        submit(1)
        if scope == "object":
            submit(2)
        with pytest.raises(Backpressure, match=f"{scope} is full") as caught:
            submit(3)
        assert caught.value.scope == scope
        await dispatcher.aclose()


async def test_run_waits_for_room():
    """In the order in which they came, and the time-out counts from the call of `run`."""
    async with running(capacity=2, reserve=0.0, max_in_flight=1) as dispatcher:
        order: list[int] = []

        async def run(number: int) -> None:
            await dispatcher.run(call(after(0.7), f"p{number}"))
            order.append(number)

        await asyncio.gather(*(run(i) for i in range(6)))
        assert order == [0, 1, 2, 3, 4, 5]
        assert now() == pytest.approx(4.2, abs=0.1)


async def test_the_urgent_get_room_first_and_nobody_waits_for_ever():
    """L6: as in the queue. Whoever has waited for long enough is not passed by the urgent of now."""
    order: list[str] = []

    async def run(dispatcher: Dispatcher, name: str, priority: int) -> None:
        await dispatcher.run(call(after(1.0), name, priority=priority))
        order.append(name)

    async with running(capacity=1, reserve=0.0, aging=5.0) as dispatcher, asyncio.TaskGroup() as group:
        dispatcher.submit(call(after(25.0), "first"))
        group.create_task(run(dispatcher, "old", 0))
        await asyncio.sleep(24.0)
        for name, priority in (("low", -1_000), ("default", 0), ("urgent", 2_000_000_000)):
            group.create_task(run(dispatcher, name, priority))
            await turns()
    assert order == ["old", "urgent", "default", "low"], order


async def test_who_looks_for_room_in_vain_keeps_the_place():
    """Its timer wakes the first one before there is room: it does not fall behind the second."""
    async with running(capacity=1, reserve=0.0) as dispatcher:
        dispatcher.submit(call(after(1.2), "blocker"))
        first = asyncio.create_task(dispatcher.run(call(after(5.0), "a")))
        await asyncio.sleep(0.5)
        second = asyncio.create_task(dispatcher.run(call(after(5.0), "b")))
        await first
        assert now() == pytest.approx(6.2)
        await second


async def test_run_that_finds_no_room_in_time_expires():
    async with running(capacity=1, reserve=0.0) as dispatcher:
        blocker = dispatcher.submit(call(after(10.0)))
        with pytest.raises(DeadlineExpired, match="waited for room until its time was over") as caught:
            await dispatcher.run(call(name="q", timeout=3.0))
        assert just_after(3.0)
        assert isinstance(caught.value.outcome, Expired)
        assert (caught.value.outcome.where, caught.value.outcome.attempts) == ("queued", 0)
        assert isinstance(caught.value.__cause__, Backpressure)
        await blocker


async def test_the_time_out_of_run_counts_from_its_call():
    """Waiting for room is part of it."""
    async with running(capacity=1, reserve=0.0) as dispatcher:
        dispatcher.submit(call(after(2.0)))
        with pytest.raises(DeadlineExpired):
            await dispatcher.run(call(for_ever, "q", timeout=5.0))
        assert just_after(5.0)


async def test_cancelling_run_cancels_its_call():
    """While it waits for room, in the queue, and in flight."""
    async with running(capacity=2, reserve=0.0, max_in_flight=1) as dispatcher:
        tasks = [asyncio.create_task(dispatcher.run(call(for_ever, f"p{i}"))) for i in range(3)]
        await asyncio.sleep(1.0)
        assert dispatcher.statistics().depth == 2
        for task in reversed(tasks):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await turns()
        statistics = dispatcher.statistics()
        assert (statistics.depth, statistics.outcomes["cancelled"], sum(statistics.outcomes.values())) == (0, 2, 2)


async def test_the_reason_of_a_cancelled_run_says_so():
    recorder = Recorder()
    outcomes: list[Any] = []
    recorder.settled = lambda handle, outcome: outcomes.append(outcome)  # type: ignore[method-assign]
    async with running(observers=(recorder,)) as dispatcher:
        task = asyncio.create_task(dispatcher.run(call(name="q", not_before=10.0)))
        await turns()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert outcomes == [Cancelled("run was cancelled")]


async def test_pressure_tells_before_it_is_full():
    """OK; HIGH above 80 % until 60 %; FULL until 90 %: of what ordinary calls may take."""
    async with running(capacity=200, reserve=0.5, max_in_flight=1) as dispatcher:
        seen: dict[int, Pressure] = {}
        handles = []
        for i in range(100):
            seen[i] = dispatcher.pressure
            handles.append(dispatcher.submit(call(name=f"p{i}", not_before=60.0)))
        assert (seen[80], seen[81], seen[99]) == (Pressure.OK, Pressure.HIGH, Pressure.HIGH)
        assert dispatcher.pressure is Pressure.FULL
        falling: dict[int, Pressure] = {}
        while handles:
            handles.pop().cancel()
            falling[len(handles)] = dispatcher.pressure
        assert (falling[91], falling[90]) == (Pressure.FULL, Pressure.HIGH)
        assert (falling[60], falling[59]) == (Pressure.HIGH, Pressure.OK)


async def test_when_full_all_that_was_accepted_ends_and_the_counters_add_up():
    """Case K5: 100 a second offered, ten a second served: each ends Succeeded or Expired in the queue."""
    handles, refused, full = [], 0, False
    async with running(capacity=100, reserve=0.0, max_in_flight=1, timeout=8.0) as dispatcher:
        for i in range(1_000):
            try:
                handles.append(dispatcher.submit(call(after(0.1), f"p{i}")))
            except Backpressure:
                refused += 1
            full = full or dispatcher.pressure is Pressure.FULL
            await asyncio.sleep(0.01)
        outcomes = await asyncio.gather(*(handle.outcome() for handle in handles))
        statistics = dispatcher.statistics()
    assert full
    # A call that starts just before its deadline is cut off in flight.
    places = {outcome.where for outcome in outcomes if isinstance(outcome, Expired)}
    assert places <= {"queued", "in_flight"}
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert set(kinds) == {"Succeeded", "Expired"}
    assert (statistics.accepted, statistics.refused) == (len(handles), refused)
    assert statistics.outcomes["succeeded"] == kinds.count("Succeeded")
    assert statistics.outcomes["expired"] == kinds.count("Expired")
    assert sum(statistics.outcomes.values()) == len(handles)
    assert refused > 700


async def test_a_rate_limit_is_waited_for_by_a_timer():
    """Starts follow the bucket though nothing else happens (laws L19, L20)."""
    script = Script("done")
    async with running(rate=RateLimit(qps=2.0, burst=2)) as dispatcher:
        await asyncio.gather(*(dispatcher.run(call(script, f"p{i}")) for i in range(6)))
    assert script.times == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.5, 2.0], abs=0.01)


async def test_not_before_is_waited_for_by_a_timer():
    script = Script("done")
    async with running() as dispatcher:
        await dispatcher.run(call(script, not_before=7.5))
        expired = await dispatcher.submit(call(script, not_before=7.5, timeout=7.5)).outcome()
        assert isinstance(expired, Expired)
        assert expired.where == "delayed"
    assert script.times == [pytest.approx(7.5)]


# -- ending calls -----------------------------------------------------------------------------------------------------


async def test_forget_cancels_what_waits_or_flies_for_the_object_or_depends_on_it():
    """Case G3, rule R18: its node is gone, so the bind makes no sense any more."""
    async with running() as dispatcher:
        flying = dispatcher.submit(call(for_ever))
        waiting = dispatcher.submit(call())
        bind = dispatcher.submit(call(name="q", depends_on=(node("n1"),), not_before=5.0))
        other = dispatcher.submit(call(name="r", depends_on=(node("n2"),)))
        await turns()
        assert dispatcher.forget(pod(), "deleted") == 2
        assert dispatcher.forget(node("n1"), "node went") == 1
        assert isinstance(await flying.outcome(), Cancelled)
        assert waiting.settled == Cancelled("deleted")
        assert bind.settled == Cancelled("node went")
        assert await other == "done"
        assert dispatcher.forget(pod("never seen"), "deleted") == 0


async def test_forget_with_an_older_uid_leaves_the_newer_object_alone():
    """Case F1: the late events of the old Pod change nothing."""
    async with running() as dispatcher:
        handle = dispatcher.submit(call(target=pod("web-0", "u2"), not_before=1.0))
        dispatcher.observe(pod_dict("web-0", "u2", 20))
        dispatcher.observe(pod_dict("web-0", "u1", 12))
        assert dispatcher.forget(pod("web-0", "u1"), "deleted") == 0
        assert await handle == "done"


async def test_cancel_flow_cancels_all_calls_of_one_flow():
    async with running(max_in_flight=1) as dispatcher:
        kept = dispatcher.submit(call(after(1.0), "a"))
        mine = [dispatcher.submit(call(name=f"p{i}", flow="plugin")) for i in range(3)]
        assert dispatcher.cancel_flow("plugin", "unloaded") == 3
        assert dispatcher.cancel_flow("plugin", "unloaded") == 0
        assert dispatcher.cancel_flow("unknown", "unloaded") == 0
        assert [handle.settled for handle in mine] == [Cancelled("unloaded")] * 3
        assert await kept == "done"


async def test_the_repr_says_state_depth_and_flight():
    async with running(capacity=100) as dispatcher:
        assert repr(dispatcher) == "<Dispatcher async depth=0/100 in_flight=0>"
        dispatcher.submit(call(for_ever))
        dispatcher.submit(call(name="q", not_before=5.0))
        await turns()
        assert repr(dispatcher) == "<Dispatcher async depth=2/100 in_flight=1>"
        await dispatcher.aclose("maintenance")
        assert repr(dispatcher) == "<Dispatcher closed: maintenance depth=0/100 in_flight=0>"
    assert repr(Dispatcher()).startswith("<Dispatcher not entered yet")


# -- logging ----------------------------------------------------------------------------------------------------------


async def test_a_failure_is_logged_with_its_fields(caplog: pytest.LogCaptureFixture):
    """Ticket, object, flow, type, outcome and cause are in `extra`; a success is not worth a line."""
    async with running() as dispatcher:
        assert await dispatcher.run(call(name="good")) == "done"
        await dispatcher.submit(call(raising(ValueError("no")), target=pod("p", "u"), flow="plugin")).outcome()
    (record,) = [record for record in caplog.records if record.name == "asyncdispatch"]
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "call 2 ended: Failed"
    names = ("ticket", "object", "flow", "call_type", "outcome", "cause")
    fields = {name: record.__dict__[name] for name in names}
    assert fields == {
        "ticket": 2,
        "object": "Pod ns/p (u)",
        "flow": "plugin",
        "call_type": "write",
        "outcome": "Failed",
        "cause": "ValueError('no')",
    }


async def test_doubt_is_logged_whatever_the_outcome(caplog: pytest.LogCaptureFixture):
    async with running() as dispatcher:
        handle = dispatcher.submit(call(for_ever))
        await turns()
        handle.cancel()
        await handle.outcome()
        assert dispatcher.statistics().ambiguous == 1
    assert [record.getMessage() for record in caplog.records] == ["call 1 ended: Cancelled and may have been applied"]


async def test_each_failed_attempt_is_logged_for_those_who_look(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, "asyncdispatch"):
        async with running(retry=RetryPolicy(wait=lambda _: 1.0)) as dispatcher:
            await dispatcher.run(call(Script(OSError("reset"), "done")))
    (record,) = [
        record for record in caplog.records if record.levelno == logging.DEBUG and record.name == "asyncdispatch"
    ]
    assert record.getMessage() == "attempt 1 of call 1 failed: retry (OSError('reset'))"
    assert record.__dict__["object"] == "Pod ns/p"


async def test_reads_of_one_object_and_version_join():
    script = Script("read", seconds=1.0)
    async with running() as dispatcher:
        reads = [dispatcher.run(call(script, effect=Effect.READ, version=version)) for version in ("5", "5", "6")]
        assert await asyncio.gather(*reads) == ["read"] * 3
    assert len(script.times) == 2
