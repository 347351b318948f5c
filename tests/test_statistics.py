"""Frozen counts, and what observers are told."""

import asyncio
import logging
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from asyncdispatch import BreakerPolicy, DispatcherConfig, DispatcherStatistics, Mode, RetryPolicy
from asyncdispatch.dispatcher import Dispatcher
from tests.shell import Recorder, Script, StatusError, after, call, for_ever, pod, raising, running, turns
from tests.test_user_hooks import Hooked


async def test_statistics_are_frozen():
    """A value of one moment: neither it nor its tables change."""
    async with running() as dispatcher:
        statistics = dispatcher.statistics()
        with pytest.raises(FrozenInstanceError):
            statistics.depth = 3  # type: ignore[misc]
        tables: list[Any] = [statistics.waiting, statistics.outcomes, statistics.in_flight_by_flow]
        for table in tables:
            with pytest.raises(TypeError):
                table["x"] = 1
        await dispatcher.run(call())
        assert (statistics.accepted, sum(statistics.outcomes.values())) == (0, 0)
        assert isinstance(statistics, DispatcherStatistics)


async def test_an_idle_dispatcher_counts_nothing():
    async with running(max_in_flight=7, capacity=50) as dispatcher:
        statistics = dispatcher.statistics()
        assert statistics.mode is Mode.ASYNC
        assert (statistics.depth, statistics.capacity, statistics.joined, statistics.in_flight) == (0, 50, 0, 0)
        assert statistics.seats == 7
        assert statistics.oldest_wait is None
        assert statistics.last_completion_age is None
        assert statistics.unauthenticated_since is None
        assert statistics.open_breakers == ()
        assert (statistics.waiting, statistics.waiting_by_flow, statistics.in_flight_by_type) == ({}, {}, {})


async def test_waiting_and_flying_calls_are_counted_by_state_level_flow_and_type():
    async with running(max_in_flight=2) as dispatcher:
        dispatcher.submit(call(for_ever, "a", flow="x"))
        dispatcher.submit(call(for_ever, "b", flow="y", call_type="patch"))
        await turns()
        await asyncio.sleep(3.0)
        dispatcher.submit(call(name="c", flow="x", priority=2_000_000))
        dispatcher.submit(call(name="a", flow="z"))
        dispatcher.submit(call(name="d", flow="z", not_before=60.0, call_type="patch"))
        dispatcher.submit(call(name="c", flow="x", idempotency_key="k"))
        dispatcher.submit(call(name="c", flow="x", idempotency_key="k"))
        await asyncio.sleep(2.0)
        statistics = dispatcher.statistics()
        assert (statistics.depth, statistics.joined, statistics.in_flight) == (6, 1, 2)
        assert statistics.in_flight_by_flow == {"x": 1, "y": 1}
        assert statistics.in_flight_by_type == {"write": 1, "patch": 1}
        assert statistics.waiting == {"queued": 1, "line": 2, "delayed": 1}
        assert statistics.waiting_by_flow == {"x": 2, "z": 2}
        assert statistics.waiting_by_type == {"write": 3, "patch": 1}
        assert statistics.waiting_by_level == {"high": 1, "default": 3}
        assert statistics.oldest_wait == pytest.approx(2.0)
        await dispatcher.aclose()


async def test_what_has_happened_is_counted():
    async with running(retry=RetryPolicy(wait=lambda _: 1.0)) as dispatcher:
        blocker = dispatcher.submit(call(after(1.0)))
        for _ in range(3):
            dispatcher.submit(Hooked(target=pod(), on_merge=lambda newer, older: newer))
        first = dispatcher.submit(call(Script(OSError(), OSError(), "ok"), "b", idempotency_key="k"))
        second = dispatcher.submit(call(name="b", idempotency_key="k"))
        failed = dispatcher.submit(call(raising(ValueError()), "c"))
        await asyncio.gather(*(h.outcome() for h in (blocker, first, second, failed)))
        await asyncio.sleep(4.0)
        statistics = dispatcher.statistics()
        assert statistics.accepted == 7
        assert statistics.joined_total == 1
        assert statistics.merged_total == 2
        assert statistics.retried == 2
        assert statistics.attempts == 1 + 1 + 3 + 1
        outcomes = {name: count for name, count in statistics.outcomes.items() if count}
        assert outcomes == {"succeeded": 4, "overwritten": 2, "failed": 1}
        assert statistics.last_completion_age == pytest.approx(4.0)
        assert statistics.unobserved == 1
        dispatcher.forget(pod(), "gone")
        assert dispatcher.statistics().unobserved == 0


async def test_refused_credentials_say_since_when():
    async with running() as dispatcher:
        dispatcher.submit(call(Script(StatusError(401)), scope="cluster"))
        await asyncio.sleep(5.0)
        assert dispatcher.statistics().unauthenticated_since == pytest.approx(1_000.0)
        await dispatcher.aclose()


async def test_an_open_breaker_is_named():
    breaker = BreakerPolicy(failures=2, open_for=60.0)
    async with running(breaker=breaker, retry=RetryPolicy(wait=lambda _: 1.0)) as dispatcher:
        dispatcher.submit(call(Script(StatusError(503)), flow="plugin"))
        await asyncio.sleep(5.0)
        assert dispatcher.statistics().open_breakers == (("plugin", "write"),)
        await dispatcher.aclose()


async def test_a_closed_dispatcher_still_counts():
    dispatcher = Dispatcher(DispatcherConfig())
    assert dispatcher.statistics().accepted == 0
    async with dispatcher:
        await dispatcher.run(call())
    assert dispatcher.statistics().outcomes["succeeded"] == 1


# -- observers --------------------------------------------------------------------------------------------------------


async def test_observers_are_told_of_every_step_in_order():
    recorder = Recorder()
    async with running(observers=(recorder,), retry=RetryPolicy(wait=lambda _: 2.0)) as dispatcher:
        error = OSError("reset")
        await dispatcher.run(call(Script(error, "done")))
    assert recorder.events == [
        ("accepted", 1),
        ("started", 1, 1),
        ("attempted", 1, 1, error),
        ("retried", 1, "retry", 2.0),
        ("started", 1, 2),
        ("attempted", 1, 2, None),
        ("settled", 1, "Succeeded"),
    ]


async def test_an_observer_implements_what_it_wants():
    class OnlySettled:
        def __init__(self) -> None:
            self.tickets: list[int] = []

        def settled(self, handle: Any, outcome: Any) -> None:
            assert handle.settled is outcome or handle.settled == outcome
            self.tickets.append(handle.ticket)

    observer = OnlySettled()
    async with running(observers=(object(), observer)) as dispatcher:
        await asyncio.gather(*(dispatcher.run(call(name=f"p{i}")) for i in range(3)))
    assert observer.tickets == [1, 2, 3]


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("method", ["accepted", "started", "attempted", "retried", "settled", "mode_changed"])
async def test_an_error_of_an_observer_is_logged_and_counted_and_nothing_else(
    method: str, error: Any, caplog: pytest.LogCaptureFixture
):
    """Law L14: the other observers are told, the calls go on."""

    class Bad:
        def __getattr__(self, name: str) -> Any:
            if name != method:
                raise AttributeError(name)

            def fail(*args: Any) -> None:
                raise error("in an observer")

            return fail

    recorder = Recorder()
    async with running(observers=(Bad(), recorder), retry=RetryPolicy(wait=lambda _: 1.0)) as dispatcher:
        assert await dispatcher.run(call(Script(OSError(), "done"))) == "done"
        await dispatcher.switch(Mode.DRAINING, "test")
        await dispatcher.switch(Mode.ASYNC, "test")
        counted = dispatcher.statistics().observer_errors
        assert counted == len(recorder.of(method)) > 0
    assert caplog.text.count(f"observer method {method} raised") == counted


async def test_an_observer_may_look_and_submit():
    """It runs between two steps of the core."""
    following: list[Any] = []

    class Chain:
        def settled(self, handle: Any, outcome: Any) -> None:
            if handle.ticket < 3:
                following.append(handle.owner.submit(call(name=f"p{handle.ticket}")))
            handle.owner.statistics()

    async with running(observers=(Chain(),)) as dispatcher:
        await dispatcher.run(call())
        await turns()
        assert [await handle for handle in following] == ["done", "done"]


def test_logging_is_under_one_name():
    assert logging.getLogger("asyncdispatch").handlers == []
