"""What is counted for metrics: exactly what has happened, whichever way it went through the core."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch._core.metering import CANCEL_REASONS, CANCELLED, ERROR, SUCCESS, Attempts, Meter, Tally
from asyncdispatch._core.states import SUCCEEDED
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.errors import Backpressure
from asyncdispatch.testing.stepping import events
from tests.core.driver import Driver
from tests.core.operations import Operations, play
from tests.core.words import GONE, RETRY, pod

MILLISECOND = 1_000_000
Counts = dict[str, Any]


def metered(config: DispatcherConfig, *, short: bool = True, most: int = 100) -> Driver:
    driver = Driver(config, check=False, short=short)
    driver.core.meter = Meter(driver.core.levels, (), most)
    return driver


def bucket(took: int) -> int:
    """By the words of the docstring, without bits: how many of the bounds 1 ms, 2 ms, 4 ms … it has reached."""
    return sum(took >= MILLISECOND << n for n in range(63))


def counted(driver: Driver) -> Counts:
    """What the meter says, by call type."""
    meter = driver.core.meter
    assert meter is not None
    flying: Counter[str] = Counter()
    for entry in driver.core.executions():
        if entry.phase.flying:
            flying[entry.group.name] += entry.started
    found: Counts = {"waits": [sum(level) for level in meter.waits]}
    for name, tally in meter.tallies.items():
        success = tally.attempts[SUCCESS]
        outcomes = Counter({state.value: 0 for state, _ in tally.outcomes})
        for (state, _), count in tally.outcomes.items():
            outcomes[state.value] += count
        outcomes[SUCCEEDED.value] += sum(tally.quick)
        found[name] = {
            SUCCESS: [a + b for a, b in zip(success.counts, tally.quick, strict=True)],
            "success total": success.total + tally.quick_total(flying[name]),
            ERROR: tally.attempts[ERROR].counts,
            "error total": tally.attempts[ERROR].total,
            CANCELLED: tally.attempts[CANCELLED].counts,
            "cancelled total": tally.attempts[CANCELLED].total,
            "outcomes": dict(outcomes),
            "reconciles": sum(tally.reconciles.values()),
        }
    return found


def happened(driver: Driver) -> Counts:
    """The same out of the history, which the driver wrote as it went."""
    types = {ticket: handle.group.name for ticket, handle in driver.handles.items()}
    found: Counts = {"waits": [0] * driver.core.levels}
    for name in dict.fromkeys(types.values()):
        found[name] = {"outcomes": Counter(), "reconciles": 0}
        for result in (SUCCESS, ERROR, CANCELLED):
            found[name] |= {result: [0] * 64, f"{result} total": 0}
    started: dict[int, int] = {}
    reconciling: set[int] = set()
    tried: set[int] = set()
    waits = 0
    for event in driver.history.events:
        if isinstance(event, events.Started):
            started[event.ticket] = event.at
            if event.reconcile:
                reconciling.add(event.ticket)
            elif event.ticket not in tried:
                tried.add(event.ticket)
                waits += 1
        elif isinstance(event, events.Ended):
            of = found[types[event.ticket]]
            how = {"succeeded": SUCCESS, "failed": ERROR, "stopped": CANCELLED}.get(event.how)
            if event.ticket in reconciling or how is None:
                of["reconciles"] += 1
            else:
                took = event.at - started[event.ticket]
                of[how][bucket(took)] += 1
                of[f"{how} total"] += took
            reconciling.discard(event.ticket)
            if event.goes_on:
                reconciling.add(event.ticket)
    for ticket, outcome in driver.outcomes.items():
        found[types[ticket]]["outcomes"][type(outcome).__name__.lower()] += 1
    found["waits"] = waits
    return found


def compare(driver: Driver) -> None:
    said, true = counted(driver), happened(driver)
    assert sum(said.pop("waits")) == true.pop("waits")
    for name, of in true.items():
        mine = said.pop(name)
        assert Counter(mine.pop("outcomes")) == of.pop("outcomes"), name
        assert mine == of, name
    assert not any(sum(of[SUCCESS]) for of in said.values())


def common(random: Random, driver: Driver, steps: int) -> None:
    """Mostly common calls of two types, with the seats always used up; some that are not."""
    operations = Operations(driver)
    for number in range(steps):
        what = random.choice(("submit",) * 8 + ("turn",) * 6 + ("start", "wait", "rare"))
        if what == "submit":
            priority = random.choice((0, 0, 0, 2_000_000_000))
            try:
                driver.submit(target=pod(f"p{number}"), call_type=random.choice("xxz"), priority=priority)
            except Backpressure:
                pass
        elif what == "turn" and driver.flying:
            driver.turn(random.choice(list(driver.flying.values())))
        elif what == "wait":
            driver.advance(random.choice((0.0004, 0.01, 0.3)))
        elif what == "rare" and random.random() < 0.2:
            getattr(operations, random.choice(("submit", "fail", "cancel", "reconcile", "stop", "succeed")))(random)
        else:
            driver.start()


def run(seed: int, *, short: bool) -> Driver:
    driver = metered(DispatcherConfig(max_in_flight=2, aging=0.5, breaker=None), short=short)
    common(Random(seed), driver, 80)
    return driver


@given(st.integers(0, 10**9))
def test_what_is_counted_is_what_has_happened(seed: int) -> None:
    """Attempts with their times, outcomes, reconciles and waits: in the middle of things, and at the end."""
    driver = run(seed, short=True)
    compare(driver)
    driver.finish()
    compare(driver)


@given(st.integers(0, 10**9))
def test_both_ways_count_the_same(seed: int) -> None:
    """The short way and the long one, to the nanosecond and the bucket."""
    short, long = run(seed, short=True), run(seed, short=False)
    assert counted(short) == counted(long)
    assert short.core.meter is not None
    assert long.core.meter is not None
    assert short.core.meter.waits == long.core.meter.waits


def test_the_short_way_is_taken() -> None:
    """Or the two tests above would compare the long way with itself."""
    quick = [run(seed, short=True).core.meter for seed in range(20)]
    assert sum(sum(map(sum, (t.quick for t in meter.tallies.values()))) for meter in quick if meter) > 100


@pytest.mark.parametrize("block", range(4))
def test_random_runs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All features at once."""
    monkeypatch.setattr("tests.core.operations.Driver", lambda config, **more: metered(config, short=more["short"]))
    for seed in range(block * 25, block * 25 + 25):
        driver, other = play(seed), play(seed, short=False)
        compare(driver)
        assert counted(driver) == counted(other), seed


def test_a_wait_is_counted_by_level_from_acceptance_or_the_end_of_its_delay() -> None:
    driver = metered(DispatcherConfig(max_in_flight=1))
    driver.submit(target=pod("a"))
    driver.submit(target=pod("b"), not_before=2.0)
    first = driver.start()
    assert first is not None
    driver.advance(3.0)
    driver.succeed(first)
    assert driver.start() is not None
    meter = driver.core.meter
    assert meter is not None
    waits = [level for level in meter.waits if sum(level)]
    assert len(waits) == 1
    assert [n for n, count in enumerate(waits[0]) if count] == [0, (10**9).bit_length()]


def test_reasons_are_of_a_bounded_set() -> None:
    """What somebody wrote as the reason of a cancellation is no label."""
    driver = metered(DispatcherConfig())
    for number, reason in enumerate((*CANCEL_REASONS, *(f"pod-{n} is gone" for n in range(50)))):
        driver.cancel(driver.submit(target=pod(f"p{number}")), reason)
    handle = driver.submit(target=pod("late"), timeout=1.0)
    driver.advance(2.0)
    assert handle.done()
    driver.submit(target=pod("gone"))
    entry = driver.start()
    assert entry is not None
    driver.fail(entry, GONE)
    tally = tally_of(driver)
    assert {reason for _, reason in tally.outcomes} == {*CANCEL_REASONS.values(), "other", "queued", "gone"}


def test_retries_by_verdict() -> None:
    driver = metered(DispatcherConfig())
    driver.submit(target=pod("a"))
    entry = driver.start()
    assert entry is not None
    driver.fail(entry, RETRY)
    driver.fail(driver.start_all()[0], RETRY)
    assert tally_of(driver).retries == {"retry": 2}


def tally_of(driver: Driver) -> Tally:
    assert driver.core.meter is not None
    (tally,) = driver.core.meter.tallies.values()
    return tally


def test_the_longest_attempt_is_remembered() -> None:
    """With its ticket, so that it can be found in the logs."""
    attempts = Attempts()
    for took, ticket in ((5, 1), (9, 2), (7, 3)):
        attempts.add(took, ticket, 100 + ticket)
    assert attempts.longest == (9, 2, 102)


def test_types_beyond_the_bound_share_a_tally() -> None:
    """Known ones never do. The first that did is named."""
    meter = Meter(1, ("known",), 2)
    names = [meter.tally(name).name for name in ("a", "b", "c", "a", "known", "other", "d")]
    assert names == ["a", "b", "other", "a", "known", "other", "other"]
    assert (meter.overflows, meter.overflowed) == (2, "c")
