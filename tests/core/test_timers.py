"""Laws L1, L5 and L19: what is due happens when it is due, and nothing waits for an event alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch._core.states import NEVER, CallState
from asyncdispatch._core.timers import Timers
from asyncdispatch.calls import VerdictKind
from asyncdispatch.config import DispatcherConfig, IdempotencyPolicy, RateLimit
from asyncdispatch.outcomes import Cancelled, Expired, Succeeded
from tests.core.driver import Driver
from tests.core.words import HOLD, LATER, READ, RETRY, SECOND, Call, ns, pod


class Subject:
    """Something that can have a timer."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.timer = 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 9), st.integers(1, 50)),
            st.tuples(st.just("void"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("pass"), st.just(0), st.integers(0, 20)),
        ),
        max_size=300,
    )
)
def test_timers_against_a_plain_dict(steps: list[tuple[str, int, int]]) -> None:
    """L19: each subject has one live timer; setting it again or voiding it undoes the one before; none is lost."""
    timers, subjects = Timers(), [Subject(number) for number in range(10)]
    expected: dict[int, int] = {}
    now = 0
    for what, number, value in steps:
        if what == "set":
            timers.set(subjects[number], now + value, (lambda _, __: None, number))
            expected[number] = now + value
        elif what == "void":
            timers.void(subjects[number])
            expected.pop(number, None)
        else:
            now += value
            fired = []
            while (action := timers.pop(now)) is not None:
                fired.append(action[1])
            due = [key for key, when in expected.items() if when <= now]
            assert sorted(fired) == sorted(due)
            assert [expected[key] for key in fired] == sorted(expected[key] for key in due)
            for key in due:
                del expected[key]
        assert len(timers) == len(expected)
        assert timers.due <= min(expected.values(), default=NEVER)


# -- deadlines --------------------------------------------------------------------------------------------------------


def test_a_deadline_is_told_within_a_tenth_of_a_second() -> None:
    """L5: in every waiting state, with the word for where it was."""
    driver = Driver(DispatcherConfig(max_in_flight=1, timeout=2.0))
    context = driver.begin(pod("ctx"), requires=("r",))
    refused = driver.submit(target=pod("refused"), scope="s")
    held = driver.submit(target=pod("held"), scope="s")
    driver.start()
    driver.fail(refused, HOLD)
    assert driver.start() is None
    blocker = driver.submit(target=pod("blocker"), timeout=99.0)
    assert driver.start() is blocker
    expected = {
        "held": held,
        "line": driver.submit(target=pod("blocker")),
        "queued": driver.submit(target=pod("q")),
        "requirements": driver.submit(target=pod("r"), context=context, awaits_prerequisites=True),
    }
    driver.advance(2.0)
    driver.advance(0.1)
    for where, handle in expected.items():
        assert driver.outcome(handle, Expired).where == where
    driver.finish()


@given(st.floats(0.001, 20.0), st.floats(0.0, 5.0))
def test_deadlines_at_any_time(timeout: float, late: float) -> None:
    """L5: never before its time, never more than 0.1 s after, as a prompt loop sees it."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    driver.submit(target=pod("blocker"))
    driver.start()
    driver.advance(late)
    handle = driver.submit(timeout=timeout)
    driver.advance(timeout - 0.001)
    assert not handle.done()
    driver.advance(0.101)
    elapsed = driver.outcome(handle, Expired).elapsed_seconds
    assert timeout - 1e-9 <= elapsed <= timeout + 0.1
    driver.finish()


def test_nothing_starts_at_its_deadline() -> None:
    """L5: even if nobody has looked since; it expires as queued, and the next one starts."""
    driver = Driver()
    late = driver.submit(timeout=1.0)
    other = driver.submit(target=pod("q"), timeout=2.0)
    driver.stall(1.0)
    assert driver.start() is other
    assert driver.outcome(late, Expired).where == "queued"
    driver.finish()


def test_an_expired_attempt_is_stopped_and_told_when_it_has_ended() -> None:
    """L1, L11: within its timeout plus the time that it needs to stop."""
    driver = Driver()
    entry = driver.submit(timeout=1.0)
    driver.start()
    driver.advance(1.1)
    assert entry.ticket in driver.stopping
    assert entry.state is CallState.STOPPING
    driver.advance(2.0)
    driver.succeed(entry, "late")
    outcome = driver.outcome(entry, Expired)
    assert (outcome.where, outcome.late_success, outcome.ambiguous) == ("in_flight", "late", False)
    driver.finish()


def test_an_attempt_that_ignores_its_stop_is_given_up() -> None:
    """L11, L19: five seconds after it was asked; of a read nothing is in doubt."""
    driver = Driver()
    entry = driver.submit(effect=READ, timeout=1.0)
    driver.start()
    driver.advance(1.1)
    driver.advance(4.9)
    assert not entry.done()
    driver.advance(0.1)
    assert not driver.outcome(entry, Expired).ambiguous
    driver.stop(entry)
    driver.finish()


def test_a_success_in_time_that_is_reported_late_counts() -> None:
    """L1: an answer within the bucket of its deadline is still an answer."""
    driver = Driver()
    entry = driver.submit(timeout=1.0)
    driver.start()
    driver.advance(0.99)
    driver.succeed(entry, 1)
    driver.outcome(entry, Succeeded)
    driver.finish()


# -- delays -----------------------------------------------------------------------------------------------------------


def test_a_delayed_call_starts_when_its_delay_is_over() -> None:
    """L5: not before; its place is that of its acceptance."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    delayed = driver.submit(not_before=1.0)
    driver.advance(0.5)
    later = driver.submit(target=pod("q"), not_before=0.5)
    driver.advance(0.499)
    assert driver.start() is None
    driver.advance(0.001)
    assert driver.start() is delayed
    driver.succeed(delayed)
    assert driver.start() is later
    driver.finish()


def test_a_delay_beyond_the_deadline_expires_at_once() -> None:
    """L20: it says so, instead of waiting for what can't come."""
    driver = Driver()
    assert driver.outcome(driver.submit(not_before=5.0, timeout=5.0), Expired).where == "delayed"
    driver.finish()


# -- waking up --------------------------------------------------------------------------------------------------------


def test_an_idle_core_wants_no_wake_up() -> None:
    """L19: nothing to look for, nothing to wait for."""
    driver = Driver()
    assert driver.core.wake_at(driver.now) == NEVER
    entry = driver.submit()
    assert driver.core.wake_at(driver.now) < NEVER
    driver.start()
    driver.succeed(entry)
    driver.advance(301.0)
    assert driver.core.wake_at(driver.now) == NEVER
    driver.finish()


@pytest.mark.parametrize(("kind", "delay"), [(RETRY, 3.0), (LATER, 4.0), (HOLD, 0.5)])
def test_every_pause_wakes_the_loop(kind: VerdictKind, delay: float) -> None:
    """L19: the loop that sleeps until `wake_at` misses nothing."""
    driver = Driver()
    entry = driver.submit()
    driver.start()
    driver.fail(entry, kind, delay=delay)
    assert driver.core.wake_at(driver.now) <= driver.now + ns(delay)
    driver.advance(delay)
    assert driver.start() is entry
    driver.finish()


def test_one_tick_does_all_that_is_due() -> None:
    """L5: also what the first things due have made due themselves."""
    driver = Driver(DispatcherConfig(rate=RateLimit(100.0, 10), idempotency=IdempotencyPolicy(ttl=1.0)))
    first = driver.submit(scope="s", timeout=2.0)
    other = driver.submit(target=pod("q"), scope="s")
    driver.start()
    driver.fail(first, HOLD)
    driver.start()
    driver.advance(0.5)
    driver.stall(5.0)
    driver.core.tick(driver.now)
    assert driver.core.wake_at(driver.now) > driver.now
    driver.advance(0.0)
    driver.outcome(first, Expired)
    assert driver.start() is other
    driver.finish()


def test_cancelling_clears_every_timer() -> None:
    """L19: nothing of it wakes anybody later."""
    driver = Driver()
    handles = [driver.submit(target=pod(f"p{number}"), not_before=float(number)) for number in range(1, 90)]
    for handle in handles:
        driver.cancel(handle)
        driver.outcome(handle, Cancelled)
    assert len(driver.core.timers) == 0
    assert len(driver.core.deadlines) == 0
    driver.finish()


def test_a_timeout_may_count_from_before_the_submission() -> None:
    """L5: `run` waits for room first, and its time-out counts from its call; the place is that of the acceptance."""
    driver = Driver()
    earlier = driver.now
    driver.advance(1.5)
    core = driver.core
    handle = core.submit(Call(timeout=2.0), driver.now, since=earlier)
    assert core.handle_limit(handle) == earlier + 2 * SECOND
    other = core.submit(Call(timeout=2.0, target=pod("q")), driver.now)
    assert core.handle_limit(other) == driver.now + 2 * SECOND
    assert handle.accepted < other.accepted
