"""What holds a call back after an answer: backoff, the budget of retries, breakers.

All of it delays and none of it fails a call. Nobody holds a seat meanwhile (law L20), everybody has a timer (law L19).
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch._core import parking
from asyncdispatch._core.parking import Budget, Signal
from asyncdispatch._core.states import CallState, Entry
from asyncdispatch.calls import Again, Applied, Effect, Refused, Unknown, VerdictKind
from asyncdispatch.config import BreakerPolicy, DispatcherConfig, RetryBudget
from asyncdispatch.outcomes import Expired, Failed, Succeeded
from tests.core.driver import Driver
from tests.core.words import HOLD, LATER, LEVELS, PERMANENT, RECONCILE, RETRY, SECOND, START, pod


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


def test_failures_are_counted_for_the_next_wait() -> None:
    """What a wait strategy is asked with: retries and LATER count; a refusal of credentials and a conflict do not."""
    driver = Driver()
    (entry,) = many(driver, 1, scope="cluster")
    failures = []
    for kind in (RETRY, LATER, RETRY):
        driver.start()
        driver.fail(entry, kind, delay=1.0)
        failures.append(entry.rare().failures)
        driver.advance(1.0)
    driver.start()
    driver.fail(entry, HOLD)
    failures.append(entry.rare().failures)
    driver.advance(0.5)
    assert driver.start() is entry
    assert driver.fail(entry, RECONCILE)
    driver.reconcile(entry, Again(entry.call))
    failures.append(entry.rare().failures)
    assert failures == [1, 2, 3, 3, 3]
    driver.finish()


def test_who_joins_one_in_backoff_shares_its_wait() -> None:
    """L20: who has time for it waits; who has not expires at once, and says where; after it anybody may join."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    first = driver.submit(idempotency_key="k", timeout=90.0)
    driver.start()
    driver.fail(first, RETRY, delay=5.0)
    late = driver.submit(idempotency_key="k", timeout=5.0)
    assert driver.outcome(late, Expired).where == "backoff"
    waiting = driver.submit(idempotency_key="k", timeout=5.1)
    assert waiting.settled is None
    blocker = driver.submit(target=pod("blocker"))
    assert driver.start() is blocker
    driver.advance(5.0)
    assert driver.submit(idempotency_key="k", timeout=1.0).settled is None
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


def test_a_seat_that_passes_on_feeds_the_budget_too() -> None:
    """A success is one, however its call ends: once a retry was taken, each of them earns."""
    budget = RetryBudget(ratio=1.0, per_second=0.001, burst=1)
    driver = Driver(DispatcherConfig(max_in_flight=3, retry_budget=budget, breaker=None))
    many(driver, 9)
    retried, second, third = driver.start_all()
    driver.fail(retried, RETRY, delay=1.0)
    driver.succeed(second)
    other = driver.start()
    driver.advance(1.0)
    assert driver.start() is retried, "it has taken the one retry that there was"
    assert other is not None
    assert driver.turn(other) is not None
    assert third.settled is None
    driver.fail(retried, RETRY, delay=0.0)
    assert driver.start() is retried
    driver.finish()


def test_nobody_passes_those_who_wait_for_the_budget() -> None:
    """First come, first retried: also if the loop was blocked, and all is due at once."""
    driver = Driver(DispatcherConfig(retry_budget=RetryBudget(ratio=0.0, per_second=1.0, burst=1), breaker=None))
    first, second, third = many(driver, 3)
    driver.start_all()
    driver.fail(first, RETRY)
    driver.fail(second, RETRY)
    driver.fail(third, RETRY, delay=0.5)
    assert driver.start_all() == [first]
    driver.stall(1.5)
    assert driver.start_all() == [second]
    driver.advance(1.0)
    assert driver.start_all() == [third]
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


class Counted:
    """A budget in exact fractions."""

    def __init__(self, policy: RetryBudget) -> None:
        self.policy = policy
        self.tokens = Fraction(policy.burst)
        self.seen = START

    def look(self, now: int) -> Fraction:
        given = Fraction(now - self.seen, SECOND) * Fraction(str(self.policy.per_second))
        self.tokens = min(Fraction(self.policy.burst), self.tokens + given)
        self.seen = now
        return self.tokens


@given(
    ratio=st.sampled_from([0.0, 0.25, 1.0]),
    per_second=st.sampled_from([0.001, 0.5, 3.0]),
    burst=st.integers(1, 3),
    steps=st.lists(st.tuples(st.sampled_from(["take", "earn", "give back"]), st.integers(0, 3 * SECOND))),
)
def test_the_budget_is_what_its_words_say(
    ratio: float, per_second: float, burst: int, steps: list[tuple[str, int]]
) -> None:
    """`ratio` for each success, `per_second` with time, at most `burst`; a retry takes one, and gives it back if it
    succeeds."""
    policy = RetryBudget(ratio=ratio, per_second=per_second, burst=burst)
    budget, counted, now = Budget(policy), Counted(policy), START
    for what, wait in steps:
        now += wait
        tokens = counted.look(now)
        assert budget.at(now) == pytest.approx(float(tokens), abs=1e-6)
        if what == "earn":
            budget.next_at(now)  # it looks at the clock, which `earn` does not
            budget.earn()
            counted.tokens = min(Fraction(burst), tokens + Fraction(str(ratio)))
        elif what == "give back":
            budget.next_at(now)
            budget.give_back()
            counted.tokens = min(Fraction(burst), tokens + 1)
        elif abs(tokens - 1) > Fraction(1, 10**6):
            assert budget.take(now) == (tokens > 1)
            counted.tokens -= tokens > 1
        else:
            return  # by rounding it may be either
        assert budget.full == (budget.available == burst)
        assert budget.available == pytest.approx(float(counted.tokens), abs=1e-6)


def test_a_storm_that_has_passed_leaves_no_queue_of_retries() -> None:
    """Each of many is refused once, and the server is well: retries that succeed pay for themselves, so that they go as
    fast as it answers, although twenty times what the budget ever holds. (A trickle would take a minute and a half.)"""
    budget = RetryBudget(ratio=0.2, per_second=1.0, burst=5)
    driver = Driver(DispatcherConfig(max_in_flight=4, retry_budget=budget, breaker=None))
    entries = many(driver, 100)
    while (entry := driver.start()) is not None:
        driver.fail(entry, RETRY, delay=1.0)
    driver.advance(1.0)
    while (entry := driver.start()) is not None:
        driver.advance(0.01)
        driver.succeed(entry)
    assert all(entry.state is CallState.SUCCEEDED for entry in entries)
    driver.finish()


def test_a_retry_that_fails_gives_nothing_back() -> None:
    """While a server refuses all, no more is sent to it than the budget gives."""
    driver = Driver(DispatcherConfig(retry_budget=RetryBudget(ratio=1.0, per_second=0.001, burst=3), breaker=None))
    many(driver, 1)
    sent = 0
    for _ in range(20):
        while (entry := driver.start()) is not None:
            sent += 1
            driver.fail(entry, RETRY, delay=0.5)
        driver.advance(1.0)
    assert sent == 1 + 3


def test_the_urgent_are_retried_first() -> None:
    """L6, L9: in the order in which they would start; also one whose rank became better while it waited."""
    driver = Driver(DispatcherConfig(retry_budget=RetryBudget(ratio=0.0, per_second=1.0, burst=1), breaker=None))
    (spender,) = many(driver, 1)
    low = many(driver, 3, priority=-1_000)
    (high,) = many(driver, 1, priority=2_000_000_000)
    driver.start_all()
    for entry in (spender, *low, high):
        driver.fail(entry, RETRY, delay=0.5)
    driver.advance(0.5)
    assert driver.start() is spender
    heir = driver.submit(target=low[2].call.target, priority=2_000_000_000)
    order = []
    for _ in range(4):
        driver.advance(1.0)
        order += driver.start_all()
    assert order == [high, low[2], low[0], low[1]]
    for entry in (spender, *order):
        driver.succeed(entry)
    assert driver.start() is heir
    driver.succeed(heir)
    driver.finish()


def test_a_retry_that_waits_for_the_budget_closes_the_short_way() -> None:
    """Each success may let it go, so that seats pass on the long way, which looks."""
    driver = Driver(DispatcherConfig(max_in_flight=2, retry_budget=RetryBudget(ratio=0.5, per_second=1.0, burst=1)))
    failing = [driver.submit(target=pod(name)) for name in ("one", "two")]
    for entry in failing:
        driver.start()
        driver.fail(entry, delay=1.0)
    good = driver.submit(target=pod("good"))
    assert driver.start() is good
    driver.succeed(good)
    was_calm = driver.core.calm
    driver.advance(1.1)
    assert len(driver.core.budget.waiting) == 1
    assert (was_calm, driver.core.calm) == (True, False)
    driver.advance(1.0)
    assert driver.start_all() == failing
    driver.finish()


@pytest.mark.parametrize("per_second", [1e-12, 0.3, 1.0, 7.0])
def test_the_next_retry_is_told_to_the_nanosecond(per_second: float) -> None:
    """Whoever waits for it is woken when it is there, not before and not after; a trickle is never nothing (L19)."""
    early, punctual = (Budget(RetryBudget(ratio=0.0, per_second=per_second, burst=1)) for _ in range(2))
    assert early.next_at(START) == START, "there is one"
    assert Budget(RetryBudget(burst=3)).next_at(START) == START, "there are three"
    assert early.take(START)
    assert punctual.take(START)
    due = punctual.next_at(START)
    assert due > START
    assert early.next_at((START + due) // 2) == pytest.approx(due, abs=10), "whenever it is asked"
    assert not early.take(due - 1)
    assert punctual.take(due)


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


@pytest.mark.parametrize("answer", ["applied", "again", "refused", "unknown"])
def test_a_probe_that_reconciles_gives_way_to_another(answer: str) -> None:
    """L19: a create in doubt reads first, and whatever that says, nobody waits for it any more."""
    driver = Driver(BREAKER)
    doubtful = driver.submit(target=pod("doubtful"), effect=Effect.CREATE)
    driver.start()
    assert driver.fail(doubtful, RETRY, maybe=True, signal=Signal.FAULT)
    driver.fail_reconcile(doubtful, RETRY, signal=Signal.FAULT)
    (other,) = many(driver, 1)
    driver.start_all()
    if doubtful.ticket in driver.reconciling:
        driver.fail_reconcile(doubtful, RETRY, signal=Signal.FAULT)
    driver.fail(other, RETRY, delay=0.0, signal=Signal.FAULT)
    assert driver.start() is None
    driver.advance(5.0)
    assert driver.start_all() == [doubtful]
    assert doubtful.ticket in driver.reconciling
    found = {
        "applied": Applied(None),
        "again": Again(doubtful.call),
        "refused": Refused(ValueError("gone")),
        "unknown": Unknown(),
    }
    driver.reconcile(doubtful, found[answer])
    assert driver.start() is not None
    driver.finish()


def test_only_the_probe_itself_lets_another_follow() -> None:
    """Exactly one at a time: an old attempt that ends meanwhile and says nothing changes nothing."""
    driver = Driver(BREAKER)
    (old,) = many(driver, 1)
    driver.start()
    opened(driver)
    driver.advance(5.0)
    assert len(driver.start_all()) == 1
    driver.fail(old, RETRY, delay=90.0, signal=Signal.SILENT)
    assert driver.start() is None
    driver.finish()


def test_a_probe_that_has_failed_is_none_while_it_reconciles() -> None:
    """It keeps its seat, but the next probe does not wait for what its reconcile says (L19)."""
    driver = Driver(BREAKER)
    opened(driver)
    urgent = driver.submit(target=pod("urgent"), effect=Effect.CREATE, priority=LEVELS["high"])
    driver.advance(5.0)
    assert driver.start_all() == [urgent]
    assert driver.fail(urgent, RETRY, maybe=True, signal=Signal.FAULT)
    assert driver.start() is None
    driver.advance(5.0)
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


def test_a_breaker_that_holds_others_is_not_dropped_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """L19: at the cap only one that blocks nobody makes room; if there is none, the newcomer has no breaker."""
    monkeypatch.setattr(parking, "MAX_BREAKERS", 2)
    driver = Driver(BREAKER)
    opened(driver, flow="a")
    opened(driver, flow="b")
    opened(driver, flow="c")
    many(driver, 3, flow="a")
    many(driver, 3, flow="b")
    assert [entry.call.flow for entry in driver.start_all()] == ["c"] * 3
    driver.finish()


def test_a_breaker_that_counts_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """L19: at the cap, one with some failures is forgotten, an open one is not."""
    monkeypatch.setattr(parking, "MAX_BREAKERS", 2)
    driver = Driver(BREAKER)
    opened(driver, flow="a")
    (counting,) = many(driver, 1, flow="b")
    driver.start()
    driver.fail(counting, RETRY, delay=90.0, signal=Signal.FAULT)
    opened(driver, flow="c")
    many(driver, 1, flow="a")
    many(driver, 1, flow="c")
    assert driver.start() is None
    assert {flow for flow, _ in driver.core.breakers.table} == {"a", "c"}
    driver.finish()


def test_a_closed_breaker_counts_from_nothing() -> None:
    """After the probe's success it takes as many failures in a row as at first."""
    driver = Driver(BREAKER)
    opened(driver)
    driver.advance(5.0)
    (probe,) = driver.start_all()
    driver.succeed(probe)
    started = driver.start_all()
    for entry in started:
        driver.fail(entry, RETRY, delay=90.0, signal=Signal.FAULT)
    assert len(started) == 2
    assert many(driver, 1) == driver.start_all()
    driver.finish()


def test_another_answer_during_a_probe_closes_the_breaker() -> None:
    """An old attempt that ends well meanwhile says as much as the probe would."""
    driver = Driver(BREAKER)
    old = many(driver, 1)[0]
    driver.start()
    opened(driver)
    many(driver, 2)
    driver.advance(5.0)
    assert len(driver.start_all()) == 1
    driver.succeed(old)
    assert len(driver.start_all()) == 4
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
