"""Rollout and guard on a dispatcher: calls outside are treated as in SYNC; the way back is a small share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncdispatch import (
    AsyncDisabled,
    ConfigurationError,
    Dispatcher,
    DispatcherConfig,
    FunctionCall,
    Mode,
    RetryPolicy,
)
from asyncdispatch.rollout import (
    FeatureGates,
    Guard,
    GuardPolicy,
    GuardState,
    HalfOpen,
    Rollout,
    Rule,
    Threshold,
    Waiting,
)
from asyncdispatch.rollout.policy import SIGNALS
from tests.shell import after, call, now, pod

ONCE = RetryPolicy(stop=lambda _: True)
OUTSIDE = Rule(name="not these", flows=("old",), percentage=0)
REST = Rule(name="the rest")


def dispatcher_with(rollout: Rollout, *observers: Any, **fields: Any) -> Dispatcher:
    return Dispatcher(DispatcherConfig(retry=ONCE, **fields), rollout=rollout, observers=observers)


async def test_a_call_outside_is_treated_as_in_sync():
    """`submit` refuses it, `dispatch` waits for its outcome, `run` is as ever; the mode stays what it is."""
    async with dispatcher_with(Rollout([OUTSIDE, REST])) as dispatcher:
        assert dispatcher.mode is Mode.ASYNC
        old = call(after(2.0), flow="old")
        with pytest.raises(AsyncDisabled, match="outside of the rollout"):
            dispatcher.submit(old)
        with pytest.raises(AsyncDisabled):
            await asyncio.wrap_future(dispatcher.submit_threadsafe(old))
        assert dispatcher.statistics().accepted == 0
        handle = await dispatcher.dispatch(old)
        assert (handle.done(), now()) == (True, 2.0)
        inside = await dispatcher.dispatch(call(after(2.0), "q"))
        assert (inside.done(), now()) == (False, 2.0)
        assert await dispatcher.run(old) == "done"
        assert dispatcher.mode is Mode.ASYNC


async def test_both_kinds_meet_in_one_lane():
    """The same core: a synchronous write waits for the asynchronous one on its object (law L2)."""
    async with dispatcher_with(Rollout([OUTSIDE, REST])) as dispatcher:
        dispatcher.submit(call(after(3.0)))
        await dispatcher.dispatch(call(after(1.0), flow="old"))
        assert now() == 4.0


async def test_cancelling_dispatch_of_a_call_outside_cancels_it():
    async with dispatcher_with(Rollout([OUTSIDE, REST])) as dispatcher:
        task = asyncio.create_task(dispatcher.dispatch(call(after(9.0), flow="old")))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert now() == 1.0


async def test_the_gate_is_asked_first():
    """A gate that is off really is: asserted by what `dispatch` does."""
    rollout = Rollout(gates=FeatureGates())
    async with dispatcher_with(rollout) as dispatcher:
        assert (await dispatcher.dispatch(call(after(1.0)))).done()
        rollout.replace(gates=FeatureGates("AsyncAPICalls=true"))
        assert not (await dispatcher.dispatch(call(after(1.0)))).done()


async def test_a_call_that_makes_no_sense_is_named_all_the_same():
    async with dispatcher_with(Rollout([REST])) as dispatcher:
        for wrong in (None, call(priority="high"), call(flow="")):
            with pytest.raises(ConfigurationError):
                dispatcher.submit(wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError):
                await dispatcher.dispatch(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="rollout=True"):
        Dispatcher(rollout=True)  # type: ignore[arg-type]


# -- with the guard ---------------------------------------------------------------------------------------------------


def policy(**fields: Any) -> GuardPolicy:
    nothing: dict[str, Any] = dict.fromkeys(SIGNALS)
    half_open = HalfOpen(percentage=20, seconds=30, samples=20)
    failures = Threshold(absolute=0.1)
    return GuardPolicy(**{**nothing, "failure_rate": failures, "half_open": half_open, "hold_off": 60.0, **fields})


class Server:
    """Answers at once; while it is ill, asynchronous calls or all calls fail."""

    def __init__(self) -> None:
        self.ill = False

    async def __call__(self, attempt: Any) -> None:
        if self.ill:
            raise ValueError("ill")

    def call(self, number: int, **fields: Any) -> FunctionCall[Any]:
        return call(self, f"p{number}", target=pod(f"p{number}", f"uid-{number}"), **fields)


async def traffic(dispatcher: Dispatcher, server: Server, seconds: int, **fields: Any) -> tuple[int, int]:
    """Ten calls a second by the loop's own code; how many came back done, and how many not yet."""
    done = 0
    for number in range(seconds * 10):
        handle = await dispatcher.dispatch(server.call(number, **fields))
        done += handle.done()
        await handle.outcome()
        await asyncio.sleep(0.1)
    return done, seconds * 10 - done


async def test_it_rolls_back_and_comes_back_by_a_small_share():
    """The loop does not change a line: synchronous after the breach, a fifth of the Pods, then all."""
    server, rollout = Server(), Rollout()
    guard = Guard(policy(), rollout=rollout)
    async with dispatcher_with(rollout, guard) as dispatcher, guard.watch(dispatcher):
        assert await traffic(dispatcher, server, 10) == (0, 100)
        server.ill = True
        await traffic(dispatcher, server, 10)
        assert (guard.state, dispatcher.mode) == (GuardState.TRIPPED, Mode.SYNC)
        server.ill = False
        assert await traffic(dispatcher, server, 30) == (300, 0)
        await asyncio.sleep(25.0)
        assert (guard.state, dispatcher.mode) == (GuardState.HALF_OPEN, Mode.ASYNC)
        synchronous, asynchronous = await traffic(dispatcher, server, 20)
        assert 20 < asynchronous < 60
        assert synchronous + asynchronous == 200
        await traffic(dispatcher, server, 20)
        assert guard.state is GuardState.ARMED
        assert await traffic(dispatcher, server, 10) == (0, 100)
        assert [what.partition(":")[0] for _, what in guard.report().history] == [
            "armed",
            "tripped",
            "half-open",
            "armed",
        ]


async def test_a_server_that_is_still_ill_trips_it_again_and_for_longer():
    server, rollout, held = Server(), Rollout(), []
    server.ill = True
    guard = Guard(policy(hold_off=15.0), rollout=rollout, on_rollback=lambda decision: held.append(decision.hold_off))
    async with dispatcher_with(rollout, guard) as dispatcher, guard.watch(dispatcher):
        await traffic(dispatcher, server, 120)
    assert held == [15.0, 30.0, 60.0]


async def test_only_what_is_inside_is_judged():
    """The calls outside may fail as they like; they would, without the dispatcher."""
    server, rollout = Server(), Rollout([OUTSIDE, REST])
    server.ill = True
    guard = Guard(policy(), rollout=rollout)
    async with dispatcher_with(rollout, guard) as dispatcher, guard.watch(dispatcher):
        await traffic(dispatcher, server, 20, flow="old")
        assert (guard.state, dispatcher.mode) == (GuardState.ARMED, Mode.ASYNC)
        await traffic(dispatcher, server, 5)
        assert guard.state is GuardState.TRIPPED


async def test_a_few_bad_ones_among_many_synchronous_ones_are_seen():
    """In half-open only the small share counts, so the others can't hide it."""
    server, well, rollout = Server(), Server(), Rollout([OUTSIDE, REST])
    server.ill = True
    guard = Guard(policy(), rollout=rollout)
    async with dispatcher_with(rollout, guard) as dispatcher, guard.watch(dispatcher):
        await traffic(dispatcher, server, 5)
        assert dispatcher.mode is Mode.SYNC
        await asyncio.sleep(60.0)
        for number in range(500):
            one = server.call(number) if rollout.admits(server.call(number)) else well.call(number)
            await (await dispatcher.dispatch(one)).outcome()
            await asyncio.sleep(0.04)
        assert (guard.state, guard.report().rollbacks) == (GuardState.TRIPPED, 2)


async def test_a_rollback_cancels_only_what_is_asynchronous():
    server, rollout = Server(), Rollout([OUTSIDE, REST])
    guard = Guard(policy(waiting=Waiting.CANCEL, half_open=None), rollout=rollout)
    async with dispatcher_with(rollout, guard) as dispatcher, guard.watch(dispatcher):
        waiting = dispatcher.submit(call(name="in", not_before=20.0))
        outside = asyncio.create_task(dispatcher.dispatch(call(name="out", flow="old", not_before=20.0)))
        server.ill = True
        await traffic(dispatcher, server, 4)
        assert guard.state is GuardState.TRIPPED
        assert repr(waiting.settled).endswith("reason='rollback')")
        assert (await outside).result() == "done"


async def test_opening_by_hand_lifts_the_small_share():
    server, rollout = Server(), Rollout()
    guard = Guard(policy(), rollout=rollout)
    async with dispatcher_with(rollout, guard) as dispatcher, guard.watch(dispatcher):
        server.ill = True
        await traffic(dispatcher, server, 5)
        server.ill = False
        await asyncio.sleep(60.0)
        assert "held to 20 % (guard: half-open)" in str(rollout.explain(pod("p", "uid-1")))
        await guard.open("mended")
        assert repr(rollout) == "<Rollout everything>"
        assert await traffic(dispatcher, server, 2) == (0, 20)
