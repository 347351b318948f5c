"""The core has short ways for common calls: each must decide exactly as the long way does (laws L1 to L21)."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch._core.parking import Signal
from asyncdispatch._core.states import Entry
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.errors import Backpressure
from tests.core.driver import Driver
from tests.core.operations import Operations, draw_config, play
from tests.core.words import LEVELS, pod


def trace(driver: Driver) -> list[str]:
    return [repr(event) for event in driver.history.events]


@pytest.mark.parametrize("block", range(4))
def test_random_runs(block: int) -> None:
    """All features at once."""
    for seed in range(block * 50, block * 50 + 50):
        assert trace(play(seed)) == trace(play(seed, short=False)), seed


def common(random: Random, driver: Driver, steps: int) -> None:
    """Mostly common calls, in many levels and flows, with the seats always used up."""
    operations = Operations(driver)
    for number in range(steps):
        what = random.choice(("submit",) * 5 + ("rare", "start", "turn", "turn", "turn", "succeed", "wait"))
        if what == "submit":
            name = f"q{random.randrange(6)}" if random.random() < 0.2 else f"p{number}"
            fields = {"priority": random.choice(list(LEVELS.values())), "call_type": random.choice("xz")}
            try:
                driver.submit(target=pod(name), flow=random.choice("abc"), **fields)
            except Backpressure:
                pass
        elif what == "wait":
            driver.advance(random.choice((0.01, 0.3)))
        elif what == "rare":
            getattr(operations, random.choice(("submit", "fail", "cancel", "begin", "observe")))(random)
        else:
            getattr(operations, what)(random)
    driver.finish()


def both(seed: int, config: DispatcherConfig, steps: int) -> None:
    long, short = Driver(config, check=False, short=False), Driver(config, check=False)
    for driver in (long, short):
        common(Random(seed), driver, steps)
    assert trace(short) == trace(long)


def test_an_entry_made_the_short_way_is_whole() -> None:
    """It has every part that one made the long way has, with the same values but for what tells the two apart."""
    long, short = Driver(short=False), Driver()
    for driver in (long, short):
        driver.submit(target=pod("first"))
    made = [driver.submit(target=pod("second")) for driver in (long, short)]
    assert [entry.common for entry in made] == [False, True]
    alike = [
        name for name in Entry.__slots__ if name not in ("common", "call", "flow", "group", "at", "bucket", "owner")
    ]
    assert [getattr(made[0], name) for name in alike] == [getattr(made[1], name) for name in alike]
    assert len(short.core.ordering) == 2
    for driver in (long, short):
        driver.finish()


def test_a_failure_leaves_the_short_way_in_open() -> None:
    """Calls are accepted as before while a breaker counts: but not into a queue that it may keep from starting."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    for number in range(3):
        driver.submit(target=pod(f"p{number}"))
    failing = driver.start()
    assert failing is not None
    driver.submit(target=pod("other"), flow="other", not_before=9.0)  # makes the flow known
    driver.fail(failing, delay=5.0, signal=Signal.FAULT)
    assert not driver.core.calm
    assert driver.submit(target=pod("behind others")).common
    assert not driver.submit(target=pod("in a queue of its own"), flow="other").common
    driver.finish()


@given(st.integers(0, 10**9))
def test_common_calls(seed: int) -> None:
    """One seat passes from call to call."""
    config = DispatcherConfig(max_in_flight=2, aging=0.5, flows=dict(draw_config(Random(seed)).flows))
    both(seed, config, 120)


@given(st.integers(0, 10**9))
def test_common_calls_without_quotas(seed: int) -> None:
    """Nothing holds anything back, so that the shortest way is taken often."""
    both(seed, DispatcherConfig(max_in_flight=1, aging=0.5, breaker=None), 120)
