"""How long to wait before the next attempt: tenacity's strategies with our clock, Retry-After, LATER."""

import random
from typing import Any

import pytest
import tenacity

from asyncdispatch import Expired, Failed, RetryPolicy, Succeeded, Verdict, VerdictKind
from asyncdispatch._delays import LATER_CAP, LATER_FLOOR, RETRY_FLOOR, Delays
from tests.shell import Script, StatusError, call, now, running

RETRY, LATER = Verdict(VerdictKind.RETRY), Verdict(VerdictKind.LATER)


def waits(policy: RetryPolicy, verdict: Verdict, count: int, own: RetryPolicy | None = None) -> list[float]:
    delays = Delays(policy, random.Random(1))
    return [delays.next(own, verdict, OSError(), n, 100.0, 100.0 + n)[0] for n in range(1, count + 1)]


def asked(kind: VerdictKind, seconds: float) -> Verdict:
    return Verdict(kind, retry_after=seconds)


# -- the numbers ------------------------------------------------------------------------------------------------------


def test_without_a_strategy_it_is_full_jitter_from_a_tenth_of_a_second_to_thirty():
    rows = [waits(RetryPolicy(), RETRY, 14) for _ in range(200)]
    for n, column in enumerate(zip(*rows, strict=True), start=1):
        assert min(column) >= RETRY_FLOOR
        assert max(column) <= max(RETRY_FLOOR, min(30.0, 0.1 * 2.0 ** (n - 1)))
    assert max(row[13] for row in rows) > 20.0
    assert min(row[13] for row in rows) < 10.0


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draw is the most that it may be."""
    monkeypatch.setattr(random, "uniform", lambda low, high: high)


@pytest.mark.usefixtures("longest")
def test_the_schedule_without_a_strategy():
    """At most 0.1 s, doubled each time, never above 30 s; never under 0.05 s."""
    assert waits(RetryPolicy(), RETRY, 11) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_the_least_wait_is_a_twentieth_of_a_second(monkeypatch: pytest.MonkeyPatch):
    """Rule R17: full jitter may draw nothing, and a Retry-After of 0 asks for nothing."""
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    assert waits(RetryPolicy(), RETRY, 3) == [0.05, 0.05, 0.05]
    assert waits(RetryPolicy(wait=tenacity.wait_none()), asked(VerdictKind.RETRY, 0.0), 1) == [0.05]


class Extreme(random.Random):
    """Draws one end of the range: 0 its lower, 1 its upper."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.end = end

    def uniform(self, a: float, b: float) -> float:
        return (a, b)[self.end]


@pytest.mark.parametrize(("end", "factor"), [(0, 1.0), (1, 1.25)])
def test_the_schedule_of_later(end: int, factor: float):
    """Half a second, or what its verdict asks for, doubled each time up to a minute, or to what was asked for if that
    is more; up to a quarter is added (rule R2)."""

    def schedule(verdict: Verdict, count: int) -> list[float]:
        delays = Delays(RetryPolicy(max_wait=90.0), Extreme(end))
        return [delays.next(None, verdict, OSError(), n, 0.0, n)[0] / factor for n in range(1, count + 1)]

    assert schedule(LATER, 9) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert schedule(asked(VerdictKind.LATER, 20.0), 3) == [20.0, 40.0, 60.0]
    assert schedule(asked(VerdictKind.LATER, 75.0), 2) == [75.0, 75.0]
    assert schedule(asked(VerdictKind.LATER, 1e6), 2) == [90.0, 90.0]


@pytest.mark.parametrize("delay", [-0.001, float("inf"), float("nan")])
def test_a_wait_that_is_no_time_is_refused(delay: float):
    """What a strategy gives must be a finite number of seconds, 0 or more."""
    with pytest.raises(ValueError, match="the wait strategy gave"):
        waits(RetryPolicy(wait=lambda _: delay), RETRY, 1)


def test_a_strategy_of_tenacity_is_taken_as_it_is():
    assert waits(RetryPolicy(wait=tenacity.wait_fixed(3)), RETRY, 3) == [3, 3, 3]
    exponential = tenacity.wait_exponential(multiplier=1, max=5)
    assert waits(RetryPolicy(wait=exponential), RETRY, 5) == [1, 2, 4, 5, 5]
    combined = tenacity.wait_fixed(1) + tenacity.wait_incrementing(start=0, increment=2)
    assert waits(RetryPolicy(wait=combined), RETRY, 3) == [1, 3, 5]


def test_a_strategy_may_wait_for_no_time():
    assert waits(RetryPolicy(wait=tenacity.wait_none()), RETRY, 2) == [0, 0]


def test_the_calls_own_policy_comes_first_and_leaves_out_nothing():
    """What it does not say, the configuration's says."""
    config = RetryPolicy(wait=tenacity.wait_fixed(3), stop=tenacity.stop_after_attempt(2))
    own = RetryPolicy(wait=tenacity.wait_fixed(7))
    assert waits(config, RETRY, 2, own) == [7, 7]
    assert waits(config, RETRY, 2, RetryPolicy(stop=tenacity.stop_never)) == [3, 3]
    assert Delays(config).next(own, RETRY, OSError(), 2, 0.0, 1.0) == (7.0, True)
    assert Delays(config).next(RetryPolicy(stop=tenacity.stop_never), RETRY, OSError(), 2, 0.0, 1.0)[1] is False


def test_strategies_see_our_clock_and_our_error():
    seen: list[Any] = []

    def note(state: tenacity.RetryCallState) -> float:
        assert state.outcome is not None
        seen.append((state.attempt_number, state.seconds_since_start, state.outcome.exception()))
        return 1.0

    error = OSError()
    Delays(RetryPolicy(wait=note)).next(None, RETRY, error, 3, 100.0, 107.5)
    assert seen == [(3, 7.5, error)]


def test_stop_after_delay_counts_from_acceptance():
    policy = RetryPolicy(stop=tenacity.stop_after_delay(10))
    delays = Delays(policy)
    assert delays.next(None, RETRY, OSError(), 1, 100.0, 109.9)[1] is False
    assert delays.next(None, RETRY, OSError(), 1, 100.0, 110.0)[1] is True


@pytest.mark.parametrize(("seconds", "least"), [(0.0, RETRY_FLOOR), (0.01, RETRY_FLOOR), (7.0, 7.0), (1e6, 120.0)])
def test_retry_after_has_a_floor_and_a_cap(seconds: float, least: float):
    """Never before the time asked for, which `max_wait` caps; the strategy's jitter comes on top (rule R17)."""
    verdict = asked(VerdictKind.RETRY, seconds)
    assert waits(RetryPolicy(wait=tenacity.wait_none()), verdict, 1) == [least]
    assert waits(RetryPolicy(wait=tenacity.wait_fixed(2)), verdict, 1) == [least + 2]
    assert least <= waits(RetryPolicy(), verdict, 1)[0] <= least + 0.1


def test_the_cap_of_retry_after_is_the_policys():
    policy = RetryPolicy(wait=tenacity.wait_none(), max_wait=5.0)
    assert waits(policy, asked(VerdictKind.RETRY, 60.0), 1) == [5.0]
    assert waits(RetryPolicy(wait=tenacity.wait_none()), asked(VerdictKind.RETRY, 60.0), 1, policy) == [5.0]


def test_later_has_a_slow_schedule_of_its_own():
    """From half a second, doubling to a minute, a quarter of jitter; the wait strategy is not asked."""
    found = waits(RetryPolicy(wait=tenacity.wait_fixed(1_000)), LATER, 12)
    bases = [min(LATER_CAP, LATER_FLOOR * 2.0**n) for n in range(12)]
    for base, seconds in zip(bases, found, strict=True):
        assert base <= seconds <= base * 1.25


def test_later_begins_with_what_its_verdict_asks_for():
    (first, second, *_) = waits(RetryPolicy(), asked(VerdictKind.LATER, 5.0), 9)
    assert 5.0 <= first <= 6.25
    assert 10.0 <= second <= 12.5
    assert waits(RetryPolicy(), asked(VerdictKind.LATER, 0.0), 1)[0] >= LATER_FLOOR
    assert waits(RetryPolicy(), asked(VerdictKind.LATER, 1e6), 2)[0] <= 150.0


def test_later_never_overflows_however_often():
    assert waits(RetryPolicy(), LATER, 3_000)[-1] <= LATER_CAP * 1.25


# -- under the dispatcher ---------------------------------------------------------------------------------------------


async def test_wait_fixed_and_stop_after_attempt():
    script = Script(OSError("reset"))
    policy = RetryPolicy(wait=tenacity.wait_fixed(2), stop=tenacity.stop_after_attempt(3))
    async with running(retry=policy) as dispatcher:
        outcome = await dispatcher.submit(call(script)).outcome()
        assert isinstance(outcome, Failed)
        assert (outcome.attempts, outcome.ambiguous) == (3, True)
    assert script.times == [0.0, 2.0, 4.0]


async def test_stop_after_delay_is_measured_with_the_loops_clock():
    """Not with the machine's: ten minutes pass in no time here."""
    script = Script(OSError("reset"))
    policy = RetryPolicy(wait=tenacity.wait_fixed(60), stop=tenacity.stop_after_delay(240))
    async with running(retry=policy, timeout=900.0) as dispatcher:
        outcome = await dispatcher.submit(call(script)).outcome()
        assert isinstance(outcome, Failed)
    assert script.times == [0.0, 60.0, 120.0, 180.0, 240.0]


async def test_the_policy_of_a_call_counts_for_that_call():
    once = RetryPolicy(stop=tenacity.stop_after_attempt(1))
    async with running(retry=RetryPolicy(wait=tenacity.wait_fixed(1))) as dispatcher:
        outcome = await dispatcher.submit(call(Script(OSError()), retry=once)).outcome()
        assert isinstance(outcome, Failed)
        assert outcome.attempts == 1
        assert await dispatcher.run(call(Script(OSError(), "done"), "q")) == "done"


async def test_retry_after_is_honoured():
    script = Script(StatusError(429, Retry_After="30"), "done")
    async with running(retry=RetryPolicy(wait=tenacity.wait_none())) as dispatcher:
        assert await dispatcher.run(call(script)) == "done"
    assert script.times == [0.0, 30.0]


async def test_a_retry_after_beyond_the_deadline_expires_the_call_at_once():
    """Law L20: a call whose earliest start is after its deadline expires at once and says so."""
    async with running() as dispatcher:
        handle = dispatcher.submit(call(Script(StatusError(503, Retry_After="60")), timeout=20.0))
        outcome = await handle.outcome()
        assert now() == 0.0
        assert isinstance(outcome, Expired)
        assert outcome.where == "backoff"
        assert isinstance(outcome.cause, StatusError)


async def test_a_stop_strategy_is_not_asked_after_a_success():
    stops: list[Any] = []

    def stop(state: Any) -> bool:
        stops.append(state)
        return False

    async with running(retry=RetryPolicy(stop=stop)) as dispatcher:
        assert await dispatcher.submit(call()).outcome() == Succeeded("done", attempts=1)
    assert stops == []
