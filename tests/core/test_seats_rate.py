"""Laws L3 and L20: how many may fly, how many may start in a second, and what the server's answers change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch._core.parking import Signal
from asyncdispatch.config import AdaptiveLimit, CallTypePolicy, DispatcherConfig, FlowQuota, RateLimit
from asyncdispatch.outcomes import Cancelled, Expired
from tests.core.driver import Driver
from tests.core.words import READ, RETRY, SECOND, pod


def many(driver: Driver, count: int, **fields: object) -> None:
    start = len(driver.handles)
    for number in range(start, start + count):
        driver.submit(target=pod(f"p{number}"), **fields)


# -- seats (law L3) ---------------------------------------------------------------------------------------------------


def test_seats_bound_what_flies_in_total_per_flow_and_per_type() -> None:
    """L3: a full flow or type is passed over, and does not hold up the others."""
    driver = Driver(
        DispatcherConfig(
            max_in_flight=6,
            flows={"a": FlowQuota(max_in_flight=2)},
            call_types={"x": CallTypePolicy(max_in_flight=1)},
        )
    )
    many(driver, 4, flow="a")
    many(driver, 4, call_type="x")
    many(driver, 4, effect=READ)
    started = driver.start_all()
    assert len(started) == 6
    assert sum(entry.call.flow == "a" for entry in started) == 2
    assert sum(entry.call.call_type == "x" for entry in started) == 1
    driver.succeed(next(entry for entry in started if entry.call.flow == "a"))
    entry = driver.start()
    assert entry is not None
    assert entry.call.flow == "a"
    driver.finish()


@pytest.mark.parametrize("signal", [Signal.PUSHBACK, Signal.OVERLOAD])
def test_overload_cuts_the_seats_once_for_what_flew_together(signal: Signal) -> None:
    """L3: multiplied by `backoff`, never below `minimum`; what flies goes on, and nothing starts until it is fewer."""
    driver = Driver(DispatcherConfig(max_in_flight=AdaptiveLimit(10, 3, 20, backoff=0.5), breaker=None))
    many(driver, 40)
    started = driver.start_all()
    assert len(started) == 10
    driver.advance(1.0)
    for entry in started[:3]:
        driver.fail(entry, RETRY, delay=100.0, signal=signal)
        assert driver.core.seats.limit == 5
    assert driver.start() is None
    for entry in started[3:6]:
        driver.succeed(entry)
    (later,) = driver.start_all()
    driver.advance(1.0)
    driver.fail(later, RETRY, delay=100.0, signal=signal)
    assert driver.core.seats.limit == 3
    driver.finish()


@pytest.mark.parametrize("signal", [Signal.NONE, Signal.FAULT, Signal.SILENT])
def test_other_errors_do_not_cut_the_seats(signal: Signal) -> None:
    """L3: a 409, a 500 or a caller without time say nothing about the load."""
    driver = Driver(DispatcherConfig(max_in_flight=AdaptiveLimit(10, 3, 20), breaker=None))
    many(driver, 1)
    (entry,) = driver.start_all()
    driver.fail(entry, RETRY, delay=1.0, signal=signal)
    assert driver.core.seats.limit == 10
    driver.finish()


def test_seats_grow_by_one_for_a_whole_limit_of_successes() -> None:
    """L3: only while they are used up, and never above `maximum`."""
    driver = Driver(DispatcherConfig(max_in_flight=AdaptiveLimit(4, 1, 6)), check=False)
    many(driver, 3)
    for _ in range(8):
        for entry in driver.start_all():
            driver.succeed(entry)
        many(driver, 3)
    assert driver.core.seats.limit == 4, "three at a time never use four seats"
    many(driver, 60)
    grown = []
    for _ in range(30):
        driver.start_all()
        driver.succeed(next(iter(driver.flying.values())))
        grown.append(driver.core.seats.limit)
    assert grown[:4] == [4, 4, 4, 5]
    assert grown[4:9] == [5, 5, 5, 5, 6]
    assert max(grown) == 6
    driver.finish()


def test_a_fixed_number_of_seats_stays_as_it_is() -> None:
    """L3: a plain number does not follow the server."""
    driver = Driver(DispatcherConfig(max_in_flight=2))
    many(driver, 1)
    (entry,) = driver.start_all()
    driver.fail(entry, RETRY, delay=1.0, signal=Signal.OVERLOAD)
    assert driver.core.seats.limit == 2
    driver.finish()


# -- rate (law L20) ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 6)), max_size=40),
    st.sampled_from([0.5, 3.0, 7.0, 50.0]),
    st.integers(1, 5),
)
def test_starts_in_any_window(steps: list[tuple[float, int]], qps: float, burst: int) -> None:
    """L20: at most burst + qps·t in any time t (the history checks each window), and no fewer than can be."""
    driver = Driver(DispatcherConfig(rate=RateLimit(qps, burst), max_in_flight=10_000), check=False)
    waiting, idle = 0, driver.now
    for pause, count in steps:
        many(driver, count)
        waiting += count
        started = driver.start_all()
        waiting -= len(started)
        if waiting:
            assert driver.core.wake_at(driver.now) <= driver.now + SECOND / qps + 1
        driver.advance(pause)
    begun = driver.now
    for _ in range(1_000):
        waiting -= len(driver.start_all())
        if not waiting:
            break
        driver.advance((driver.core.wake_at(driver.now) - driver.now) / SECOND)
    assert waiting == 0
    assert (driver.now - begun) / SECOND <= sum(count for _, count in steps) / qps + 1e-3
    assert idle <= begun
    driver.finish()


def test_a_full_bucket_is_back_after_idling() -> None:
    """L20: after burst/qps seconds without a start, whatever was cancelled or expired before."""
    driver = Driver(DispatcherConfig(rate=RateLimit(50.0, 50), max_in_flight=200), check=False)
    many(driver, 50)
    assert len(driver.start_all()) == 50
    many(driver, 1)
    assert driver.start() is None
    driver.cancel(driver.handles[51])
    driver.advance(1.0)
    many(driver, 60)
    assert len(driver.start_all()) == 50
    driver.finish()


def test_case_d1_callers_that_gave_up_owe_nothing() -> None:
    """Case D1: thousands that expired or were cancelled in the queue leave no debt behind."""
    driver = Driver(DispatcherConfig(rate=RateLimit(50.0, 50)), check=False)
    many(driver, 1_000, timeout=0.2)
    for entry in driver.start_all():
        driver.succeed(entry)
    for ticket in list(driver.handles)[500:600]:
        driver.cancel(driver.handles[ticket])
    driver.advance(0.3)
    kinds = {type(outcome) for outcome in driver.outcomes.values()}
    assert kinds >= {Expired, Cancelled}
    assert len(driver.outcomes) == 1_000
    driver.advance(1.0)
    many(driver, 50, timeout=5.0)
    assert len(driver.start_all()) == 50
    driver.finish()


def test_pushback_empties_the_bucket() -> None:
    """The server's own 429: starts go on at the steady rate, without a burst."""
    driver = Driver(DispatcherConfig(rate=RateLimit(10.0, 5), max_in_flight=100))
    many(driver, 20)
    (entry, *_) = [driver.start()]
    assert entry is not None
    driver.fail(entry, RETRY, delay=50.0, signal=Signal.PUSHBACK)
    assert driver.start() is None
    driver.advance(0.11)
    assert len(driver.start_all()) == 1
    driver.finish()


def test_who_cannot_get_a_token_in_time_is_told_at_once() -> None:
    """L20: its earliest start is after its deadline; at submission and at its turn."""
    driver = Driver(DispatcherConfig(rate=RateLimit(1.0, 1)))
    many(driver, 1)
    driver.start()
    many(driver, 1, timeout=0.5)
    assert driver.outcome(driver.handles[2], Expired).where == "queued"
    many(driver, 1, timeout=1.5)
    assert not driver.handles[3].done()
    driver.finish()


def test_the_next_token_wakes_the_loop() -> None:
    """L19: `wake_at` names the time of the next token while somebody waits for it, and no time while seats lack."""
    driver = Driver(DispatcherConfig(rate=RateLimit(2.0, 1), max_in_flight=2))
    many(driver, 3)
    driver.start()
    assert driver.core.wake_at(driver.now) == driver.now + SECOND // 2
    driver.advance(0.5)
    assert driver.start() is not None
    assert driver.core.wake_at(driver.now) > driver.now + SECOND
    driver.finish()
