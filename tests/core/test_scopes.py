"""What calls wait for together: a condition elsewhere (LATER, rule R2), refused credentials (HOLD, rule R4).

Both delay, with a timer (law L19) and without a seat (law L20); only `hold_limit` fails a call.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from asyncdispatch._core.parking import LaterScope
from asyncdispatch._core.states import CallState
from asyncdispatch.calls import Again, Unknown, VerdictKind
from asyncdispatch.config import BreakerPolicy, DispatcherConfig
from asyncdispatch.handles import CallHandle
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Succeeded
from tests.core.driver import Driver
from tests.core.words import CREATE, HOLD, LATER, LEVELS, PERMANENT, RECONCILE, RETRY, pod


def many(driver: Driver, count: int, **fields: object) -> list[CallHandle[Any]]:
    start = len(driver.handles)
    return [driver.submit(target=pod(f"p{number}"), **fields) for number in range(start, start + count)]


# -- LATER ------------------------------------------------------------------------------------------------------------


def refuse_all(driver: Driver, count: int, scope: Hashable, delay: float) -> list[CallHandle[Any]]:
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


def test_the_window_doubles_with_each_that_passes() -> None:
    """R2: four at first; eight after one success; four again once the condition holds."""
    driver = Driver(DispatcherConfig(max_in_flight=1_000))
    refuse_all(driver, 60, "quota", 1.0)
    driver.advance(1.0)
    first, *others = driver.start_all()
    assert len(others) == 3
    driver.succeed(first)
    more = driver.start_all()
    assert len(others + more) == 8
    for entry in others + more:
        driver.fail(entry, LATER, scope="quota", delay=60.0)
    assert len(driver.start_all()) == 4
    driver.finish()


def test_the_window_is_bounded() -> None:
    """R2: a condition that held for thousands is not met by all of them at once."""
    scope: LaterScope = LaterScope("quota")
    driver = Driver(DispatcherConfig(max_in_flight=1))
    for entry in many(driver, 20):
        scope.members[entry.ticket] = scope.due[entry.ticket] = entry
        assert scope.next_due() is entry
        scope.answered(entry, later=False)
    assert scope.window == 1_024
    scope.answered(entry, later=True)
    assert scope.window == 1_024, "its answer was told already"


def test_who_waits_for_a_scope_starts_in_the_order_of_being_due() -> None:
    """R2: first due, first tried; whoever has left is not waited for."""
    driver = Driver(DispatcherConfig(max_in_flight=1_000))
    entries = refuse_all(driver, 12, "quota", 1.0)
    driver.advance(1.0)
    started = driver.start_all()
    assert started == entries[:4]
    driver.cancel(entries[4])
    driver.succeed(started[0])
    assert driver.start_all() == entries[5:10]
    driver.finish()


def test_a_scope_lasts_while_somebody_waits_for_it() -> None:
    """R2: whoever comes later waits with the others; together they are no more than the few."""
    driver = Driver(DispatcherConfig(max_in_flight=1_000))
    refuse_all(driver, 1, "quota", 1.0)
    driver.advance(1.0)
    refuse_all(driver, 10, "quota", 1.0)  # the first one is refused again
    driver.advance(1.0)
    passed, *others = driver.start_all()
    assert len(others) == 3
    driver.succeed(passed)
    for entry in others + driver.start_all():
        driver.fail(entry, LATER, scope="quota", delay=1.0)
    refuse_all(driver, 10, "quota", 1.0)
    driver.advance(1.0)
    assert len(driver.start_all()) == 4
    assert len(driver.core.laters) == 1
    driver.finish()


def test_who_waits_for_something_else_makes_way_for_one() -> None:
    """R2: refused for another condition, it waits for that one, and is told so."""
    driver = Driver(DispatcherConfig(max_in_flight=1_000))
    entries = refuse_all(driver, 6, "quota", 1.0)
    driver.advance(1.0)
    started = driver.start_all()
    driver.fail(started[0], LATER, scope="other", delay=1.0)
    assert driver.start_all() == entries[4:5]
    driver.fail(started[1], LATER, delay=1.0)
    assert driver.start_all() == entries[5:]
    assert set(driver.core.laters) == {"quota", "other"}
    driver.advance(1.0)
    assert driver.start_all() == [started[0], started[1]]
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


def held(driver: Driver, count: int = 10, **fields: object) -> list[CallHandle[Any]]:
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
    assert [hold.since for hold in driver.core.holds.values()] == [driver.now]
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


def test_everybody_held_is_told_the_latest_refusal() -> None:
    """R4: also who was never sent, or was sent before; a probe asks about every ten seconds until the limit."""
    driver = Driver(DispatcherConfig(hold_limit=15.0))
    first, second = many(driver, 2, scope="cluster")
    assert driver.start() is first
    driver.fail(first, HOLD, error=ValueError("first"))
    assert driver.start() is None
    driver.advance(0.49)
    assert driver.start() is None
    driver.advance(0.01)
    assert driver.start() is first
    latest = ValueError("latest")
    driver.fail(first, HOLD, error=latest)
    driver.advance(9.9)
    assert driver.start() is None
    driver.advance(0.1)
    assert driver.start_all() == [first]
    driver.advance(4.4)
    assert second.settled is None
    driver.advance(0.1)
    assert driver.outcome(second, Failed).error is latest
    assert driver.outcome(second, Failed).elapsed_seconds == pytest.approx(15.0, abs=0.1)
    driver.finish()


@pytest.mark.parametrize("which", ["the probe", "another"])
def test_each_refusal_is_waited_for_anew(which: str) -> None:
    """R4: `hold_limit` counts from when the credentials were refused last, if they have been good since."""
    driver = Driver(DispatcherConfig(hold_limit=30.0, max_in_flight=10))
    held(driver, 2)
    driver.advance(0.5)
    (probe,) = driver.start_all()
    driver.fail(probe, LATER, delay=20.0)
    (other,) = driver.start_all()
    driver.fail(other, RETRY, delay=20.0)
    driver.advance(20.0)
    assert set(driver.start_all()) == {probe, other}
    again, passing = (probe, other) if which == "the probe" else (other, probe)
    driver.succeed(passing)
    driver.fail(again, HOLD)
    for _ in range(59):
        driver.advance(0.5)
        for entry in driver.start_all():
            driver.fail(entry, HOLD)
    assert again.settled is None
    driver.advance(0.6)
    assert driver.outcome(again, Failed).elapsed_seconds == pytest.approx(50.5, abs=0.1)
    driver.finish()


def test_the_cause_of_being_held_is_told() -> None:
    """R4: by who leaves meanwhile; it is the refusal, unless an attempt of its own has failed otherwise before."""
    driver = Driver()
    tried, first, never = many(driver, 3, scope="cluster", timeout=5.0)
    own, refusal = ValueError("503"), ValueError("401")
    assert driver.start() is tried
    driver.fail(tried, RETRY, delay=0.1, error=own)
    assert driver.start() is first
    driver.fail(first, HOLD, error=refusal)
    driver.advance(0.2)
    assert driver.start() is None
    driver.cancel(tried)
    assert driver.outcome(tried, Cancelled).cause is own
    driver.cancel(never)
    assert driver.outcome(never, Cancelled).cause is refusal
    driver.finish()


def test_a_hold_keeps_its_time_over_probes() -> None:
    """R4: each call fails `hold_limit` after it was held first, also the one that was tried meanwhile."""
    driver = Driver(DispatcherConfig(hold_limit=12.0))
    held(driver, 1)
    driver.advance(0.5)
    (probe,) = driver.start_all()
    driver.fail(probe, HOLD)
    driver.advance(11.4)
    for entry in driver.start_all():
        driver.fail(entry, HOLD)
    assert probe.settled is None
    driver.advance(0.1)
    assert driver.outcome(probe, Failed).elapsed_seconds == pytest.approx(12.0, abs=0.01)
    driver.finish()


def test_calls_without_a_scope_are_held_with_their_flow() -> None:
    """R4, case J3: a flow that names no credentials has one probe, and holds no other; a verdict may name whom else."""
    driver = Driver()
    first, second = many(driver, 2)
    (elsewhere,) = many(driver, 1, flow="elsewhere")
    driver.start()
    driver.fail(first, HOLD)
    assert driver.start() is elsewhere
    assert driver.start() is None
    assert second.state is CallState.HELD
    driver.fail(elsewhere, HOLD, scope="cluster")
    (newcomer,) = many(driver, 1, scope="cluster")
    assert driver.start() is None
    assert newcomer.state is CallState.HELD
    driver.advance(0.5)
    probes = driver.start_all()
    assert len(probes) == 2
    for probe in probes:
        driver.succeed(probe)
    assert len(driver.start_all()) == 2
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
