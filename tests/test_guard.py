"""The guard on a real dispatcher: records, opens, rolls back, obeys a hand, and says what it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncdispatch import AsyncDisabled, Cancelled, ConfigurationError, Dispatcher, Mode, RetryPolicy
from asyncdispatch.rollout import (
    Baseline,
    Decision,
    Guard,
    GuardPolicy,
    GuardState,
    HalfOpen,
    Measured,
    Rollout,
    Step,
    Threshold,
    Waiting,
)
from asyncdispatch.rollout.policy import SIGNALS
from tests.shell import StatusError, after, call, now, pod, raising, running, stubborn, turns

NOTHING: dict[str, Any] = dict.fromkeys(SIGNALS)
ONCE = RetryPolicy(stop=lambda _: True)


def policy(**fields: Any) -> GuardPolicy:
    """One that stays rolled back until a hand opens."""
    return GuardPolicy(**{**NOTHING, "half_open": None, "failure_rate": Threshold(absolute=0.1), **fields})


@asynccontextmanager
async def guarded(guard: Guard, *, mode: Mode = Mode.ASYNC, **fields: Any) -> AsyncIterator[Dispatcher]:
    async with running(observers=(guard,), retry=ONCE, **fields) as dispatcher:
        if mode is not Mode.ASYNC:
            await dispatcher.switch(mode, "to begin with")
        async with guard.watch(dispatcher):
            yield dispatcher


async def fail(dispatcher: Dispatcher, count: int = 40) -> None:
    """So many calls that fail, whatever the mode."""
    handles = [await dispatcher.dispatch(call(raising(StatusError(422)), f"bad{i}")) for i in range(count)]
    for handle in handles:
        await handle.outcome()


# -- rolling back -----------------------------------------------------------------------------------------------------


async def test_a_breach_goes_through_draining_to_sync():
    """New asynchronous calls are refused, what is there keeps its course, the loop's own code goes on."""
    guard = Guard(policy())
    async with guarded(guard) as dispatcher:
        kept = dispatcher.submit(call(after(5.0), "kept"))
        waiting = dispatcher.submit(call(name="later", not_before=4.0))
        await fail(dispatcher)
        await asyncio.sleep(1.5)
        assert (guard.state, dispatcher.mode) == (GuardState.TRIPPED, Mode.DRAINING)
        with pytest.raises(AsyncDisabled):
            dispatcher.submit(call())
        handle = await dispatcher.dispatch(call(name="next"))
        assert (dispatcher.mode, handle.done(), now()) == (Mode.SYNC, True, 5.0)
        assert (await kept, await waiting) == ("done", "done")


async def test_waiting_calls_may_be_cancelled_instead():
    """With the reason "rollback"; what is in flight lands."""
    guard = Guard(policy(waiting=Waiting.CANCEL))
    async with guarded(guard) as dispatcher:
        flying = dispatcher.submit(call(stubborn(5.0, "landed"), "flying"))
        behind = dispatcher.submit(call(name="flying"))
        context = dispatcher.contexts.begin(pod("bound"), requires=("volume",))
        held = dispatcher.submit(call(name="bound", context=context, awaits_prerequisites=True))
        delayed = dispatcher.submit(call(name="delayed", not_before=100.0))
        await fail(dispatcher)
        await asyncio.sleep(1.5)
        cancelled: Cancelled[Any] = Cancelled("rollback", queued_seconds=1.0, elapsed_seconds=1.0)
        assert [handle.settled for handle in (behind, held, delayed)] == [cancelled] * 3
        assert await flying == "landed"


async def test_one_log_one_count_one_event(caplog: pytest.LogCaptureFixture):
    counted: list[str] = []
    steps: list[Decision] = []
    guard = Guard(policy(), on_rollback=lambda decision: counted.append(decision.reason), on_step=steps.append)
    with caplog.at_level(logging.WARNING, "asyncdispatch"):
        async with guarded(guard) as dispatcher:
            caplog.clear()
            await fail(dispatcher, 41)
            caplog.clear()
            await asyncio.sleep(5.0)
    (record,) = caplog.records
    assert record.getMessage() == "guard tripped: failure_rate 1 > 0.1 (41 samples)"
    told = {name: record.__dict__[name] for name in ("guard", "step", "reason", "breaches", "hold_off")}
    assert told == {
        "guard": "tripped",
        "step": "breached",
        "reason": "failure_rate",
        "breaches": ["failure_rate 1 > 0.1 (41 samples)"],
        "hold_off": None,
    }
    assert counted == ["failure_rate"]
    assert [decision.step for decision in steps] == [Step.BREACHED]


async def test_a_hook_may_still_submit_and_may_raise(caplog: pytest.LogCaptureFixture):
    """An Event about the rollback is an asynchronous call itself, made before the door is shut."""
    handles: list[Any] = []

    def send(decision: Decision) -> None:
        handles.append(dispatcher.submit(call(name="event")))
        raise ValueError("hook")

    guard = Guard(policy(waiting=Waiting.CANCEL), on_step=send)
    with caplog.at_level(logging.CRITICAL, "asyncdispatch"):
        async with guarded(guard) as dispatcher:
            await fail(dispatcher)
            await asyncio.sleep(2.0)
            assert (dispatcher.mode, await handles[0]) == (Mode.SYNC, "done")


async def test_a_hook_may_be_a_coroutine_function(caplog: pytest.LogCaptureFixture):
    """It runs beside the rollback, and what it submits by `run` goes on once that is done."""
    told: list[Any] = []

    async def send(decision: Decision) -> None:
        told.append(decision.reason)
        told.append(await dispatcher.run(call(name="event")))
        raise ValueError("hook")

    guard = Guard(policy(), on_rollback=send)
    with caplog.at_level(logging.ERROR, "asyncdispatch"):
        async with guarded(guard) as dispatcher:
            await fail(dispatcher)
            await asyncio.sleep(2.0)
            assert (dispatcher.mode, told) == (Mode.SYNC, ["failure_rate", "done"])
    assert [record.getMessage() for record in caplog.records] == ["a hook of the guard raised"]


async def test_a_hook_that_is_awaited_ends_with_the_block():
    """It is asked to stop, and waited for."""
    ended: list[str] = []

    async def for_ever(decision: Decision) -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append(decision.reason)

    guard = Guard(policy(), on_step=for_ever)
    async with running(observers=(guard,), retry=ONCE) as dispatcher:
        async with guard.watch(dispatcher):
            await fail(dispatcher)
            await asyncio.sleep(2.0)
            assert not ended
        assert ended == ["failure_rate"]


async def test_without_a_rollout_the_way_back_is_by_hand():
    """Whatever the default policy says of half-open."""
    guard = Guard(GuardPolicy(**NOTHING | {"failure_rate": Threshold(absolute=0.1)}))
    assert guard.policy.half_open is None
    async with guarded(guard) as dispatcher:
        await fail(dispatcher)
        await asyncio.sleep(10_000.0)
        assert (guard.state, dispatcher.mode) == (GuardState.TRIPPED, Mode.SYNC)
        assert guard.report().half_open_in is None
        await guard.open("mended")
        assert (guard.state, dispatcher.mode) == (GuardState.ARMED, Mode.ASYNC)
    assert Guard().policy == GuardPolicy(half_open=None)


async def test_the_report_says_what_it_did():
    guard = Guard(policy())
    async with guarded(guard) as dispatcher:
        await fail(dispatcher)
        await asyncio.sleep(10.0)
        report = guard.report()
        assert (report.state, report.rollbacks, report.half_open_in) == (GuardState.TRIPPED, 1, None)
        assert report.history[-1][1].startswith("tripped: failure_rate 1 > 0.1")


# -- what is measured -------------------------------------------------------------------------------------------------


async def test_every_signal_comes_from_what_happens():
    """Recorded while synchronous: times, shares, and what the loop tells of itself."""
    guard = Guard(policy(failure_rate=Threshold(relative=2.0, least=0.05), baseline_samples=1))
    async with guarded(guard, mode=Mode.SYNC, capacity=100, max_in_flight=1) as dispatcher:
        slow = asyncio.create_task(dispatcher.dispatch(call(after(0.4), "a", call_type="pod_binding")))
        await turns()
        waits = asyncio.create_task(dispatcher.dispatch(call(after(0.1), "b", idempotency_key="k")))
        await turns()
        again = asyncio.create_task(dispatcher.dispatch(call(after(0.1), "b", idempotency_key="k")))
        await asyncio.gather(slow, waits, again)
        await dispatcher.dispatch(call(raising(StatusError(422)), call_type="pod_binding"))
        guard.scheduled(0.02)
        guard.scheduled(0.03, retried=True)
        await asyncio.sleep(2.0)
        recorded = {name: (round(each.value, 2), each.samples) for name, each in guard.baseline.signals.items()}
    assert recorded == {
        "scheduling_p99": (0.03, 2),
        "queue_depth": (0.0, 2),
        "queue_wait_p99": (0.43, 4),
        "api_latency_p99": (0.43, 4),
        "failure_rate": (0.25, 4),
        "duplicate_rate": (0.25, 4),
        "binding_errors": (0.5, 2),
        "unschedulable_retries": (0.5, 2),
    }


async def test_a_hanging_server_is_noticed_before_its_calls_are_given_up():
    """Each attempt that fails is a sample of the latency, long before the calls end."""
    guard = Guard(policy(failure_rate=None, api_latency_p99=Threshold(absolute=2.0)))
    async with running(observers=(guard,), attempt_timeout=5.0, breaker=None) as dispatcher, guard.watch(dispatcher):
        for name in range(30):
            dispatcher.submit(call(after(1e6), f"p{name}", timeout=200.0))
        await asyncio.sleep(8.0)
        assert (guard.state, now()) == (GuardState.TRIPPED, 8.0)
        assert dispatcher.statistics().depth == 30
        await dispatcher.aclose("enough")


async def test_a_queue_that_fills_is_a_breach():
    """Even if nothing ends at all."""
    guard = Guard(policy(failure_rate=None, queue_depth=Threshold(absolute=0.5)))
    async with guarded(guard, capacity=100, drain_timeout=1.0) as dispatcher:
        for name in range(60):
            dispatcher.submit(call(name=f"p{name}", not_before=250.0))
        await asyncio.sleep(30.0)
        assert guard.state is GuardState.TRIPPED
        await dispatcher.aclose("enough")


async def test_what_was_accepted_before_does_not_count():
    """Calls decided synchronously, and calls of the time before a rollback, say nothing about now."""
    guard = Guard(policy())
    async with guarded(guard, mode=Mode.SYNC) as dispatcher:
        old = [asyncio.create_task(dispatcher.dispatch(call(after(5.0), f"p{i}", timeout=3.0))) for i in range(50)]
        await asyncio.sleep(1.0)
        await guard.open("ready")
        await asyncio.gather(*old)
        await asyncio.sleep(3.0)
        assert guard.state is GuardState.ARMED
        assert all(not each.samples for each in guard.report().signals if each.name == "failure_rate")


# -- the baseline -----------------------------------------------------------------------------------------------------

RELATIVE = policy(failure_rate=Threshold(relative=2.0, least=0.05), baseline_samples=50)


async def test_it_records_while_synchronous_and_opens_once_there_is_enough():
    guard = Guard(RELATIVE)
    async with guarded(guard, mode=Mode.SYNC) as dispatcher:
        for name in range(49):
            await dispatcher.dispatch(call(name=f"p{name}"))
        with pytest.raises(ConfigurationError, match="failure_rate=49: has 49 samples of the 50 needed"):
            await guard.open("ready")
        assert (guard.state, dispatcher.mode) == (GuardState.RECORDING, Mode.SYNC)
        await dispatcher.dispatch(call())
        await guard.open("ready")
        assert (guard.state, dispatcher.mode) == (GuardState.ARMED, Mode.ASYNC)
        assert guard.baseline.signals["failure_rate"] == Measured(0.0, 50)
        await fail(dispatcher)
        await asyncio.sleep(2.0)
        assert guard.state is GuardState.TRIPPED


async def test_a_guard_with_no_baseline_refuses_to_watch():
    guard = Guard(RELATIVE)
    async with running(observers=(guard,)) as dispatcher:
        with pytest.raises(ConfigurationError, match=r"the guard has none: begin in Mode.SYNC"):
            async with guard.watch(dispatcher):
                raise AssertionError("it watches")
        given = Guard(RELATIVE, baseline=Baseline({"failure_rate": Measured(0.01, 1_000)}))
    async with running(observers=(given,)) as dispatcher, given.watch(dispatcher):
        assert given.state is GuardState.ARMED


async def test_going_asynchronous_behind_its_back_is_told(caplog: pytest.LogCaptureFixture):
    """It has nothing to judge by, says so, records nothing of it, and breaks nothing."""
    guard = Guard(RELATIVE)
    async with guarded(guard, mode=Mode.SYNC) as dispatcher:
        with caplog.at_level(logging.WARNING, "asyncdispatch"):
            await dispatcher.switch(Mode.ASYNC, "by hand")
        assert "asynchronous without a guard, which can't judge: baseline failure_rate=0" in caplog.text
        await dispatcher.dispatch(call())
        await asyncio.sleep(3.0)
        assert (guard.state, guard.baseline.signals) == (GuardState.RECORDING, {})
        assert dispatcher.statistics().observer_errors == 0


async def test_the_baseline_may_be_recorded_anew():
    guard = Guard(RELATIVE, baseline=Baseline({"failure_rate": Measured(0.01, 1_000)}))
    async with guarded(guard) as dispatcher:
        with pytest.raises(ConfigurationError, match=r"state='armed': switch to Mode.SYNC by hand first"):
            guard.forget_baseline()
        await guard.close("to measure")
        await dispatcher.dispatch(call())
        assert guard.baseline.signals["failure_rate"] == Measured(0.01, 1_000)
        guard.forget_baseline()
        await dispatcher.dispatch(call())
        assert guard.baseline.signals["failure_rate"] == Measured(0.0, 1)


# -- a hand goes first ------------------------------------------------------------------------------------------------


async def test_back_by_hand():
    """By `open`, or by the dispatcher's own switch: the windows begin anew."""
    guard = Guard(policy())
    async with guarded(guard) as dispatcher:
        for way in ("open", "switch"):
            await fail(dispatcher)
            await asyncio.sleep(2.0)
            assert (guard.state, dispatcher.mode) == (GuardState.TRIPPED, Mode.SYNC)
            if way == "open":
                await guard.open("mended")
            else:
                await dispatcher.switch(Mode.ASYNC, "mended")
            assert (guard.state, dispatcher.mode) == (GuardState.ARMED, Mode.ASYNC)
            await asyncio.sleep(3.0)
            assert guard.state is GuardState.ARMED
        assert guard.report().rollbacks == 2


async def test_back_by_hand_while_it_still_drains():
    """Who switches last is obeyed."""
    guard = Guard(policy())
    async with guarded(guard) as dispatcher:
        handle = dispatcher.submit(call(after(20.0), "long"))
        await fail(dispatcher)
        await asyncio.sleep(2.0)
        assert dispatcher.mode is Mode.DRAINING
        await guard.open("mended")
        await asyncio.sleep(5.0)
        assert (guard.state, dispatcher.mode) == (GuardState.ARMED, Mode.ASYNC)
        assert await handle == "done"
        await fail(dispatcher)
        await asyncio.sleep(2.0)
        assert guard.state is GuardState.TRIPPED


async def test_off_by_hand_is_left_off():
    """Whatever happens then: the guard changes nothing until somebody opens again."""
    guard = Guard(policy())
    async with guarded(guard) as dispatcher:
        await dispatcher.switch(Mode.SYNC, "by hand")
        assert guard.state is GuardState.RECORDING
        await fail(dispatcher)
        await asyncio.sleep(1000.0)
        assert (guard.state, dispatcher.mode, guard.report().rollbacks) == (GuardState.RECORDING, Mode.SYNC, 0)


# -- the ends ---------------------------------------------------------------------------------------------------------


async def test_it_ends_with_the_dispatcher_and_with_its_block():
    guard = Guard(policy())
    async with guarded(guard) as dispatcher:
        await dispatcher.aclose("shutdown")
        await asyncio.sleep(5.0)
    async with running(observers=(guard,)) as dispatcher:
        async with guard.watch(dispatcher):
            await fail(dispatcher, 5)
        await fail(dispatcher)
        await asyncio.sleep(5.0)
        assert dispatcher.mode is Mode.ASYNC
        guard.scheduled(1.0)


async def test_left_while_it_drains():
    """The rollback goes on to its end, and what waits for that goes on."""
    guard = Guard(policy())
    async with running(observers=(guard,), retry=ONCE) as dispatcher:
        async with guard.watch(dispatcher):
            dispatcher.submit(call(after(20.0), "long"))
            await fail(dispatcher)
            await asyncio.sleep(2.0)
        assert (dispatcher.mode, guard.state) == (Mode.DRAINING, GuardState.TRIPPED)
        handle = await dispatcher.dispatch(call(name="next"))
        assert (dispatcher.mode, handle.done(), now()) == (Mode.SYNC, True, 20.0)


async def test_a_close_that_is_cancelled_while_it_drains():
    """It is done all the same: what was asked for by hand stays so, and an `open` ends it."""
    guard = Guard(policy())
    async with guarded(guard) as dispatcher:
        for opened in (False, True):
            dispatcher.submit(call(after(20.0), "long"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(guard.close("x"), 0.1)
            assert (dispatcher.mode, guard.state) == (Mode.DRAINING, GuardState.RECORDING)
            if opened:
                await guard.open("x")
            await asyncio.sleep(30.0)
            expected = (Mode.ASYNC, GuardState.ARMED) if opened else (Mode.SYNC, GuardState.RECORDING)
            assert (dispatcher.mode, guard.state) == expected
            await guard.open("again")


async def test_an_error_of_its_own_does_not_end_it(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    guard = Guard(policy())
    async with guarded(guard) as dispatcher:
        broken, whole = [True], guard._judge.tick

        def tick(now: float) -> Decision | None:
            if broken:
                broken.pop()
                raise RuntimeError("defect")
            return whole(now)

        monkeypatch.setattr(guard._judge, "tick", tick)
        with caplog.at_level(logging.ERROR, "asyncdispatch"):
            await asyncio.sleep(1.5)
        assert "the guard has failed at one look, and goes on" in caplog.text
        await fail(dispatcher)
        await asyncio.sleep(2.0)
        assert guard.state is GuardState.TRIPPED


async def test_bad_input_is_named():
    guard = Guard(policy())
    for make, message in (
        (lambda: Guard(None), "policy=None"),  # type: ignore[arg-type]
        (lambda: Guard(policy(), rollout=True), "rollout=True"),  # type: ignore[arg-type]
        (lambda: Guard(policy(), baseline={}), "baseline={}"),  # type: ignore[arg-type]
        (lambda: Guard(policy(), on_step=3), "on_step=3"),  # type: ignore[arg-type]
        (lambda: Guard(policy(half_open=HalfOpen(samples=5))), "rollout=None: half-open needs the dispatcher's"),
        (lambda: guard.scheduled(-1.0), "seconds=-1.0"),
        (lambda: guard.scheduled(float("nan")), "seconds=nan"),
        (lambda: guard.scheduled("1"), "seconds='1'"),  # type: ignore[arg-type]
        (lambda: guard.scheduled(None), "seconds=None"),  # type: ignore[arg-type]
        (lambda: guard.scheduled(1.0, retried="no"), "retried='no'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError, match=message):
            make()
    for by_hand in (guard.open, guard.close):
        with pytest.raises(ConfigurationError, match="the guard watches none"):
            await by_hand("why")
        with pytest.raises(ConfigurationError, match="reason=None"):
            await by_hand(None)  # type: ignore[arg-type]
    async with running() as dispatcher:
        with pytest.raises(ConfigurationError, match=r"Dispatcher\(observers=\(guard,\)\)"):
            async with guard.watch(dispatcher):
                pass
    apart = Guard(policy(), rollout=Rollout())
    async with running(observers=(guard, apart)) as dispatcher, guard.watch(dispatcher):
        with pytest.raises(ConfigurationError, match="watches one already"):
            async with guard.watch(dispatcher):
                pass
        with pytest.raises(ConfigurationError, match=r"must be the dispatcher's: Dispatcher\(rollout=rollout\)"):
            async with apart.watch(dispatcher):
                pass
