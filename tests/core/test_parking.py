"""What holds a call back after an answer: backoff, budget, breakers, conditions elsewhere, refused credentials.

All of it delays and none of it fails a call (but `hold_limit`); nobody holds a seat meanwhile (law L20), and everybody
has a timer (law L19).
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from asyncdispatch._core import parking
from asyncdispatch._core.parking import Signal
from asyncdispatch._core.states import CallState, Entry
from asyncdispatch.calls import Again, Unknown, VerdictKind
from asyncdispatch.config import BreakerPolicy, DispatcherConfig, RetryBudget
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Succeeded
from tests.core.driver import CREATE, HOLD, LATER, LEVELS, PERMANENT, RECONCILE, RETRY, Driver, pod


def many(driver: Driver, count: int, **fields: object) -> list[Entry]:
    start = len(driver.handles)
    return [driver.submit(target=pod(f"p{number}"), **fields) for number in range(start, start + count)]


# -- backoff ----------------------------------------------------------------------------------------------------------


def test_a_retry_waits_for_its_delay_and_holds_no_seat() -> None:
    """L20: others use the seat; L1: attempts and the last error are told."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    first, second = many(driver, 2)
    driver.start()
    error = ValueError("503")
    driver.fail(first, RETRY, delay=1.0, error=error)
    assert first.state is CallState.BACKOFF
    assert driver.start() is second
    driver.succeed(second)
    driver.advance(0.99)
    assert driver.start() is None
    driver.advance(0.01)
    assert driver.start() is first
    driver.succeed(first)
    outcome = driver.outcome(first, Succeeded)
    assert (outcome.attempts, outcome.cause) == (2, error)
    driver.finish()


def test_a_retry_after_its_deadline_expires_at_once() -> None:
    """L20: where="backoff"; it does not wait for what can't come."""
    driver = Driver()
    (entry,) = many(driver, 1, timeout=5.0)
    driver.start()
    driver.fail(entry, RETRY, delay=5.0)
    outcome = driver.outcome(entry, Expired)
    assert (outcome.where, outcome.elapsed_seconds) == ("backoff", 0.0)
    driver.finish()


@pytest.mark.parametrize("kind", [RETRY, LATER])
def test_a_stop_strategy_ends_it(kind: VerdictKind) -> None:
    """`exhausted`: no further attempt, Failed with the error of the last one."""
    driver = Driver()
    (entry,) = many(driver, 1)
    driver.start()
    error = ValueError("enough")
    driver.fail(entry, kind, exhausted=True, error=error)
    assert driver.outcome(entry, Failed).error is error
    driver.finish()


# -- the budget -------------------------------------------------------------------------------------------------------


def test_an_empty_budget_delays_retries_and_trickles() -> None:
    """Overload is answered, not amplified: first come, first retried, and each in its time."""
    driver = Driver(DispatcherConfig(retry_budget=RetryBudget(ratio=0.0, per_second=2.0, burst=3), breaker=None))
    entries = many(driver, 10)
    for entry in driver.start_all():
        driver.fail(entry, RETRY, delay=0.0)
    started = driver.start_all()
    assert started == entries[:3]
    for entry in started:
        driver.succeed(entry)
    times = []
    for _ in range(14):
        driver.advance(0.25)
        for entry in driver.start_all():
            times.append(entry)
            driver.succeed(entry)
    assert times == entries[3:]
    driver.finish()


def test_successes_feed_the_budget() -> None:
    """`ratio` of them earn one retry each, at once."""
    driver = Driver(DispatcherConfig(retry_budget=RetryBudget(ratio=0.5, per_second=0.001, burst=1), breaker=None))
    first, second, *others = many(driver, 6)
    driver.start_all()
    driver.fail(first, RETRY)
    assert driver.start() is first
    driver.fail(second, RETRY)
    assert driver.start() is None
    driver.succeed(others[0])
    assert driver.start() is None
    driver.succeed(others[1])
    assert driver.start() is second
    driver.finish()


def test_who_waits_for_the_budget_can_leave() -> None:
    """L19: cancelled or expired it frees its place for the next one."""
    driver = Driver(DispatcherConfig(retry_budget=RetryBudget(ratio=0.0, per_second=1.0, burst=1), breaker=None))
    first, second, third, fourth = many(driver, 4)
    driver.start_all()
    for entry in (first, second, third, fourth):
        driver.fail(entry, RETRY)
    assert driver.start() is first
    driver.cancel(second)
    driver.advance(1.0)
    assert driver.start() is third
    driver.finish()


def test_later_and_conflicts_cost_no_retry() -> None:
    """Verdicts: LATER never feeds the retry budget; a reconcile is bounded by itself."""
    driver = Driver(DispatcherConfig(retry_budget=RetryBudget(ratio=0.0, per_second=0.001, burst=1), breaker=None))
    (entry,) = many(driver, 1)
    for _ in range(5):
        assert driver.start() is entry
        driver.fail(entry, LATER, delay=0.1)
        driver.advance(0.1)
    assert driver.start() is entry
    assert driver.fail(entry, RECONCILE)
    driver.reconcile(entry, Again(entry.call))
    assert driver.start() is entry
    driver.finish()


# -- breakers ---------------------------------------------------------------------------------------------------------

BREAKER = DispatcherConfig(breaker=BreakerPolicy(failures=3, open_for=5.0), max_in_flight=100)


def opened(driver: Driver, **fields: object) -> list[Entry]:
    """Three faults in a row."""
    entries = many(driver, 3, **fields)
    driver.start_all()
    for entry in entries:
        driver.fail(entry, RETRY, delay=0.0, signal=Signal.FAULT)
    return entries


def test_a_breaker_opens_and_lets_one_probe_through() -> None:
    """After `open_for`, exactly one; its success closes it; other flows and types go on meanwhile."""
    driver = Driver(BREAKER)
    opened(driver, flow="a")
    many(driver, 5, flow="a")
    assert driver.start() is None
    (other,) = many(driver, 1, flow="b")
    (another,) = many(driver, 1, flow="a", call_type="other")
    assert driver.start_all() == [other, another]
    driver.advance(4.9)
    assert driver.start() is None
    driver.advance(0.2)
    (probe,) = driver.start_all()
    driver.succeed(probe)
    assert len(driver.start_all()) == 7
    driver.finish()


def test_a_failed_probe_opens_it_again() -> None:
    """For another `open_for`; no call fails by it."""
    driver = Driver(BREAKER)
    opened(driver)
    for _ in range(3):
        driver.advance(5.0)
        (probe,) = driver.start_all()
        driver.fail(probe, RETRY, delay=0.0, signal=Signal.OVERLOAD)
        assert driver.start() is None
    assert not driver.outcomes
    driver.finish()


@pytest.mark.parametrize("how", ["stopped", "pushback", "silent"])
def test_a_probe_without_an_answer_gives_way_to_another(how: str) -> None:
    """L19: nobody waits for a probe that says nothing."""
    driver = Driver(BREAKER)
    opened(driver)
    driver.advance(5.0)
    (probe,) = driver.start_all()
    if how == "stopped":
        driver.cancel(probe)
        driver.stop(probe)
    else:
        driver.fail(probe, RETRY, delay=50.0, signal=Signal(how))
    assert len(driver.start_all()) == 1
    driver.finish()


def test_only_failures_in_a_row_count() -> None:
    """An answer that is no fault starts the count anew, whatever it says."""
    driver = Driver(BREAKER)
    for _ in range(3):
        entries = many(driver, 3)
        driver.start_all()
        driver.fail(entries[0], RETRY, delay=90.0, signal=Signal.FAULT)
        driver.fail(entries[1], RETRY, delay=90.0, signal=Signal.FAULT)
        driver.fail(entries[2], PERMANENT, signal=Signal.NONE)
    assert many(driver, 1) == driver.start_all()
    driver.finish()


def test_a_late_fault_of_before_does_not_keep_it_open() -> None:
    """It is open for its time, however many old attempts still fail meanwhile."""
    driver = Driver(BREAKER)
    entries = many(driver, 6)
    driver.start_all()
    for entry in entries[:3]:
        driver.fail(entry, RETRY, delay=0.0, signal=Signal.FAULT)
    driver.advance(4.0)
    for entry in entries[3:]:
        driver.fail(entry, RETRY, delay=0.0, signal=Signal.FAULT)
    driver.advance(1.0)
    assert len(driver.start_all()) == 1
    driver.finish()


def test_breakers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """L19: at the cap one makes room, and nobody behind it waits for ever."""
    monkeypatch.setattr(parking, "MAX_BREAKERS", 2)
    driver = Driver(BREAKER)
    for flow in "abcd":
        opened(driver, flow=flow)
    assert len(driver.core.breakers.table) <= 2
    for _ in range(40):
        driver.advance(1.0)
        driver.start_all()
        for entry in list(driver.flying.values()):
            driver.succeed(entry)
    assert all(isinstance(driver.outcomes.get(ticket), Succeeded) for ticket in driver.handles)
    driver.finish()


# -- LATER ------------------------------------------------------------------------------------------------------------


def refuse_all(driver: Driver, count: int, scope: Hashable, delay: float) -> list[Entry]:
    entries = many(driver, count)
    while (entry := driver.start()) is not None:
        driver.fail(entry, LATER, scope=scope, delay=delay)
    return entries


def test_a_scope_wakes_a_few_at_a_time() -> None:
    """R2, case B1: while the condition holds, a few are tried for all, each no more often than its delay."""
    driver = Driver(DispatcherConfig(max_in_flight=1_000), check=False)
    refuse_all(driver, 100, "quota", 5.0)
    for _ in range(60):
        driver.advance(0.5)
        for entry in driver.start_all():
            driver.fail(entry, LATER, scope="quota", delay=5.0)
    assert max(entry.attempts for entry in driver.handles.values()) <= 7
    driver.finish()


def test_few_are_in_flight_at_one_time_for_a_closed_scope() -> None:
    """R2: the window is small while nothing has passed."""
    driver = Driver(DispatcherConfig(max_in_flight=1_000))
    refuse_all(driver, 50, "quota", 1.0)
    driver.advance(1.0)
    assert len(driver.start_all()) == 4
    assert driver.start() is None
    driver.finish()


def test_the_window_opens_when_the_condition_has_passed() -> None:
    """R2: each that passes lets two more through, so that all are through soon."""
    driver = Driver(DispatcherConfig(max_in_flight=1_000))
    entries = refuse_all(driver, 100, "quota", 1.0)
    driver.advance(1.0)
    rounds = 0
    while started := driver.start_all():
        rounds += 1
        for entry in started:
            driver.succeed(entry)
    assert all(entry.done() for entry in entries)
    assert rounds <= 7
    driver.finish()


def test_one_that_leaves_makes_way() -> None:
    """L19: cancelled, expired or refused for another reason, it frees its place among the few."""
    driver = Driver(DispatcherConfig(max_in_flight=1_000))
    refuse_all(driver, 9, "quota", 1.0)
    driver.advance(1.0)
    first, second, third, _ = driver.start_all()
    driver.cancel(first)
    driver.stop(first)
    driver.fail(second, RETRY, delay=60.0)
    driver.fail(third, LATER, scope="other", delay=60.0)
    assert len(driver.start_all()) >= 3
    driver.finish()


def test_scopes_do_not_wait_for_each_other() -> None:
    """R2: another namespace, and a call without a scope, go their own way."""
    driver = Driver(DispatcherConfig(max_in_flight=1_000))
    refuse_all(driver, 20, "one", 1.0)
    others = refuse_all(driver, 3, "two", 1.0)
    alone = refuse_all(driver, 20, None, 1.0)
    driver.advance(1.0)
    started = {entry.ticket for entry in driver.start_all()}
    assert started >= {entry.ticket for entry in (*others, *alone)}
    assert len(started) == 4 + 3 + 20
    driver.finish()


def test_case_d7_a_closed_door_costs_few_attempts() -> None:
    """Case D7: hundreds that wait for five others to end make O(log) attempts each, and hold nobody up."""
    driver = Driver(DispatcherConfig(max_in_flight=20, aging=1_000.0), check=False)
    cap, migrating = 5, 0
    moves = many(driver, 500, call_type="migrate", timeout=100.0)
    finishes = many(driver, 50, call_type="finish")
    for tick in range(1_200):
        for entry in driver.start_all():
            if entry.call.call_type == "finish":
                driver.succeed(entry)
            elif migrating < cap:
                migrating += 1
            else:
                delay = min(20.0, 0.5 * 2 ** (entry.attempts - 1))
                driver.fail(entry, LATER, scope="cap", delay=delay)
        if tick % 10 == 9:  # five end each second
            for entry in list(driver.flying.values()):
                driver.succeed(entry)
                migrating -= 1
        driver.advance(0.1)
    assert all(entry.done() for entry in finishes)
    attempts = sorted(entry.attempts for entry in moves)
    assert attempts[-1] <= 16, attempts[-20:]
    succeeded = sum(isinstance(driver.outcomes.get(entry.ticket), Succeeded) for entry in moves)
    assert succeeded >= 250
    driver.finish()


def test_later_is_not_a_fault_of_the_server() -> None:
    """Verdicts: neither the breaker nor the seats hear of it."""
    driver = Driver(DispatcherConfig(breaker=BreakerPolicy(failures=2, open_for=5.0)))
    refuse_all(driver, 9, "quota", 1.0)
    assert not driver.core.breakers.table
    assert many(driver, 1) == driver.start_all()
    driver.finish()


@pytest.mark.parametrize("answer", ["again", "unknown", "exhausted"])
def test_a_scope_lets_go_of_who_leaves_it_by_a_reconcile(answer: str) -> None:
    """L19: whatever the reconcile says, its place among the few is free again."""
    driver = Driver()
    entry = driver.submit(effect=CREATE)
    driver.start()
    assert driver.fail(entry, RETRY, maybe=True)
    driver.fail_reconcile(entry, LATER, scope="quota", delay=0.1)
    driver.advance(0.1)
    assert driver.start() is entry
    if answer == "again":
        driver.reconcile(entry, Again(entry.call), delay=0.1)
    elif answer == "unknown":
        driver.reconcile(entry, Unknown())
    else:
        driver.fail_reconcile(entry, LATER, scope="quota", exhausted=True)
    assert not driver.core.laters
    driver.finish()


# -- HOLD -------------------------------------------------------------------------------------------------------------


def held(driver: Driver, count: int = 10, **fields: object) -> list[Entry]:
    """One is refused for its credentials; the others have not been sent."""
    entries = many(driver, count, scope="cluster", **fields)
    first = driver.start()
    assert first is not None
    driver.fail(first, HOLD)
    return entries


def test_one_probe_for_all() -> None:
    """R4, case J1: soon after the first refusal one call is sent; its success lets all follow, and nobody fails."""
    driver = Driver()
    entries = held(driver)
    assert driver.start() is None
    assert {entry.state for entry in entries} == {CallState.HELD}
    (other,) = many(driver, 1, scope="other")
    assert driver.start() is other
    driver.advance(0.5)
    (probe,) = driver.start_all()
    driver.succeed(probe)
    assert len(driver.start_all()) == 9
    driver.finish()


def test_the_most_urgent_is_the_probe() -> None:
    """R4: by rank, of those that stand first in line."""
    driver = Driver()
    held(driver, 5, priority=LEVELS["low"])
    (urgent,) = many(driver, 1, scope="cluster", priority=LEVELS["high"])
    assert driver.start() is None
    driver.advance(0.5)
    assert driver.start_all() == [urgent]
    driver.finish()


def test_case_j3_credentials_that_no_refresh_mends() -> None:
    """Case J3: one probe about every ten seconds, not a hundred requests; each call expires with the 401 as cause."""
    driver = Driver(DispatcherConfig(max_in_flight=50))
    entries = many(driver, 30, scope="cluster", timeout=60.0)
    attempts = 0
    refused = ValueError("401")
    for _ in range(620):
        for entry in driver.start_all():
            attempts += 1
            driver.fail(entry, HOLD, error=refused)
        driver.advance(0.1)
    assert attempts <= 30 + 8
    assert all(driver.outcome(entry, Expired).where == "held" for entry in entries)
    assert all(driver.outcome(entry, Expired).cause is refused for entry in entries)
    driver.finish()


def test_hold_limit_ends_it_as_permanent() -> None:
    """R4: wrong credentials still end, with the error that held them."""
    driver = Driver(DispatcherConfig(hold_limit=30.0))
    entries = held(driver, 3)
    for _ in range(310):
        for entry in driver.start_all():
            driver.fail(entry, HOLD)
        driver.advance(0.1)
    for entry in entries:
        outcome = driver.outcome(entry, Failed)
        assert outcome.verdict.kind is PERMANENT
        assert outcome.elapsed_seconds <= 31.0
    assert not driver.core.holds
    driver.finish()


@pytest.mark.parametrize("kind", [PERMANENT, LATER, RECONCILE])
def test_any_real_answer_shows_that_the_credentials_are_good(kind: VerdictKind) -> None:
    """R4: a 403 or a 409 was given to somebody who is known."""
    driver = Driver()
    held(driver)
    driver.advance(0.5)
    (probe,) = driver.start_all()
    driver.fail(probe, kind, delay=60.0)
    assert len(driver.start_all()) == 9
    driver.finish()


@pytest.mark.parametrize("end", ["cancelled", "expired", "a fault"])
def test_a_probe_that_says_nothing_gives_way_to_another(end: str) -> None:
    """L19: the others do not wait for it."""
    driver = Driver()
    held(driver, timeout=100.0)
    driver.advance(0.5)
    (probe,) = driver.start_all()
    if end == "cancelled":
        driver.cancel(probe)
        driver.stop(probe)
    elif end == "expired":
        driver.advance(99.0)
        driver.stop(probe)
    else:
        driver.fail(probe, RETRY, delay=60.0)
    if end != "expired":
        driver.advance(10.0)
        (second,) = driver.start_all()
        driver.succeed(second)
        assert not driver.core.holds
    driver.finish()


def test_a_probe_that_is_cancelled_before_its_start_gives_way() -> None:
    """L19: also one that waits for a seat."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    held(driver, 3)
    (blocker,) = many(driver, 1)
    assert driver.start() is blocker
    driver.advance(1.0)
    (probe,) = [entry for entry in driver.handles.values() if entry.state is CallState.QUEUED]
    driver.cancel(probe)
    driver.outcome(probe, Cancelled)
    driver.succeed(blocker)
    driver.advance(11.0)
    assert driver.start() is not None
    driver.finish()


def test_a_held_write_keeps_its_place_in_line() -> None:
    """L12: what came later for the object does not pass it."""
    driver = Driver()
    first = driver.submit(scope="cluster", call_type="a")
    driver.start()
    second = driver.submit(call_type="b")
    driver.fail(first, HOLD)
    assert driver.start() is None
    driver.advance(0.5)
    assert driver.start_all() == [first]
    driver.succeed(first)
    assert driver.start() is second
    driver.finish()


def test_a_newcomer_is_held_with_the_others() -> None:
    """R4: all other starts of that scope wait, whoever submits them, and are told where if they expire."""
    driver = Driver()
    held(driver, 1)
    (late,) = many(driver, 1, scope="cluster", timeout=0.3)
    assert driver.start() is None
    driver.advance(0.4)
    assert driver.outcome(late, Expired).where == "held"
    driver.finish()
