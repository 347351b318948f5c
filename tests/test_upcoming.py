"""The look at what would start next, held equal to what the core then starts."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncdispatch._core.parking import Signal
from asyncdispatch._core.states import LINE, Entry
from asyncdispatch._upcoming import upcoming
from asyncdispatch.config import BreakerPolicy, CallTypePolicy, DispatcherConfig, FlowQuota
from tests.core.driver import Driver
from tests.core.operations import begun
from tests.core.words import HOLD, LEVELS, RETRY, pod


def started(driver: Driver, count: int) -> tuple[list[int], bool]:
    """What the core starts of itself if seats come free one by one; and whether something else happened meanwhile: a
    call was found to be too late at its turn, or had to go back in line, where it makes others more urgent."""
    core = driver.core
    core.rate = None
    ready = list(core.ordering.entries())
    found: list[Entry] = []
    while len(found) < count:
        core.seats.limit = core.seats.taken + 1
        entry = core.next(driver.now)
        if entry is None:
            break
        found.append(entry)
    disturbed = bool(core.settled) or any(entry.phase is LINE for entry in ready)
    return [entry.ticket for entry in found], disturbed


def looked(driver: Driver, count: int) -> list[int]:
    return [entry.ticket for entry in upcoming(driver.core, driver.now, count)]


@given(st.integers(0, 2**32), st.integers(1, 150), st.sampled_from([1, 2, 7, 40]))
def test_what_is_shown_is_what_starts(seed: int, steps: int, count: int) -> None:
    """After random operations over all features the look says what the core starts next, and changes nothing."""
    driver = begun(seed, steps)
    driver.core.tick(driver.now)
    driver.core.settled.clear()
    shown = looked(driver, count)
    assert looked(driver, count) == shown
    real, disturbed = started(driver, count)
    if not disturbed:
        assert shown == real


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_many_that_wait(seed: int) -> None:
    """The same with long queues: levels, flows of unequal weight, types and flows with few seats, half-way through."""
    random = Random(seed)
    pick: Any = random.choice
    config = DispatcherConfig(
        lane_capacity=200,
        max_in_flight=pick([1, 5, 20]),
        aging=pick([0.5, 5.0]),
        flows={"a": FlowQuota(weight=3.0), "b": FlowQuota(max_in_flight=pick([1, 9])), "c": FlowQuota(weight=0.5)},
        call_types={"x": CallTypePolicy(max_in_flight=pick([2, None]))},
    )
    driver = Driver(config, check=False)
    flying: list[Entry] = []
    for number in range(120):
        where = {"target": pod(f"p{pick(range(number + 1))}"), "scope": pick([None, None, "s"])}
        driver.submit(flow=pick("abcd"), call_type=pick("xyz"), priority=pick(list(LEVELS.values())), **where)
        if number % 3 == 0 and (entry := driver.start()):
            flying.append(entry)
        if number % 9 == 0 and flying:
            driver.succeed(flying.pop(random.randrange(len(flying))))
        if number % 30 == 0:
            driver.stall(0.1)
    if flying and pick([True, False]):
        driver.fail(flying[0], HOLD, scope="s")
    count = pick([3, 30, 200])
    assert looked(driver, count) == started(driver, count)[0]


def test_flows_and_levels_in_turn() -> None:
    """By level, then by fair share, then by time; a number larger than what waits gives all of it."""
    driver = Driver(DispatcherConfig(flows={"b": FlowQuota(weight=2.0)}))
    for number in range(6):
        driver.submit(target=pod(f"p{number}"), flow="ab"[number % 2], priority=LEVELS["default"])
    urgent = driver.submit(target=pod("urgent"), priority=LEVELS["high"])
    shown = looked(driver, 100)
    assert shown[0] == urgent.ticket
    assert len(shown) == 7
    assert shown == started(driver, 100)[0]


def test_a_full_flow_or_type_starts_nothing() -> None:
    """Each start takes a seat of its flow and of its type; what finds none is not next."""
    config = DispatcherConfig(
        flows={"few": FlowQuota(max_in_flight=2)}, call_types={"one": CallTypePolicy(max_in_flight=1)}
    )
    driver = Driver(config)
    for number in range(4):
        driver.submit(target=pod(f"f{number}"), flow="few")
        driver.submit(target=pod(f"t{number}"), call_type="one")
    shown = [entry.call.target.name for entry in upcoming(driver.core, driver.now, 10)]
    assert shown == ["f0", "t0", "f1"]


def test_one_probe_of_a_half_open_breaker() -> None:
    """While a breaker is open nothing of its flow and type is next; half-open, one call is."""
    driver = Driver(DispatcherConfig(breaker=BreakerPolicy(failures=1, open_for=5.0)))
    for number in range(3):
        driver.submit(target=pod(f"p{number}"))
    first = driver.start()
    assert first is not None
    driver.fail(first, RETRY, delay=60.0, signal=Signal.FAULT)
    assert looked(driver, 10) == []
    driver.advance(5.0)
    assert looked(driver, 10) == [2]


def test_held_and_late_calls_are_not_next() -> None:
    """They are in the queue until it is their turn, and do not start then."""
    driver = Driver()
    probe = driver.submit(target=pod("p"), scope="s")
    driver.submit(target=pod("held"), scope="s")
    late = driver.submit(target=pod("late"), timeout=1.0)
    free = driver.submit(target=pod("free"))
    assert driver.start() is probe
    driver.fail(probe, HOLD, scope="s")
    assert looked(driver, 10) == [late.ticket, free.ticket]
    driver.stall(1.0)
    assert looked(driver, 10) == [free.ticket]
    assert looked(driver, 0) == []
