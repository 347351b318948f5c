"""Law L10: a write that was sent is in doubt until something settles it, and a create is never sent twice in doubt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch.calls import Again, Applied, Effect, Refused, Unknown, VerdictKind
from asyncdispatch.config import DispatcherConfig, RetryPolicy
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Succeeded
from tests.core.driver import Driver
from tests.core.words import CREATE, GONE, HOLD, LATER, PERMANENT, READ, RECONCILE, RETRY, WRITE, Call, pod


@pytest.mark.parametrize("kind", [RETRY, LATER, HOLD, RECONCILE, PERMANENT])
def test_a_create_in_doubt_is_reconciled_whatever_the_verdict(kind: VerdictKind) -> None:
    """L10: if it may have been applied, its fate is asked for before anything else; then it is not sent again."""
    driver = Driver()
    entry = driver.submit(effect=CREATE)
    driver.start()
    assert driver.fail(entry, kind, maybe=True, delay=1.0)
    driver.reconcile(entry, Applied("there"))
    outcome = driver.outcomes[entry.ticket]
    assert isinstance(outcome, Succeeded)
    assert outcome.value == "there"
    assert outcome.attempts == 1
    driver.finish()


@pytest.mark.parametrize("kind", [RETRY, LATER, PERMANENT])
def test_a_create_that_was_refused_needs_no_reconcile(kind: VerdictKind) -> None:
    """L10: an answer that proves the refusal leaves no doubt."""
    driver = Driver()
    entry = driver.submit(effect=CREATE)
    driver.start()
    assert not driver.fail(entry, kind, maybe=False, delay=1.0)
    if kind is PERMANENT:
        outcome = driver.outcomes[entry.ticket]
        assert isinstance(outcome, Failed)
        assert not outcome.ambiguous
    else:
        driver.advance(1.1)
        assert driver.start() is entry
    driver.finish()


@pytest.mark.parametrize("kind", [RETRY, LATER, HOLD, PERMANENT])
def test_an_idempotent_write_in_doubt_is_repeated(kind: VerdictKind) -> None:
    """L10: it may be sent again; what ends it then is ambiguous."""
    driver = Driver()
    entry = driver.submit(effect=WRITE)
    driver.start()
    assert not driver.fail(entry, kind, maybe=True, delay=1.0)
    if kind is not PERMANENT:
        driver.advance(1.1)
        assert driver.start() is entry
        driver.fail(entry, PERMANENT)
    outcome = driver.outcomes[entry.ticket]
    assert isinstance(outcome, Failed)
    assert outcome.ambiguous
    driver.finish()


def test_gone_ends_a_create_in_doubt() -> None:
    """L10: it is not sent again either; its caller is told that it may have been applied."""
    driver = Driver()
    entry = driver.submit(effect=CREATE)
    driver.start()
    assert not driver.fail(entry, GONE, maybe=True)
    assert driver.outcomes[entry.ticket].ambiguous
    driver.finish()


def test_again_sends_the_new_call_and_ends_the_doubt() -> None:
    """L10: reconcile has said that it was not applied."""
    driver = Driver()
    entry = driver.submit(effect=CREATE)
    driver.start()
    assert driver.fail(entry, RETRY, maybe=True)
    newer = Call(effect=CREATE, version="7")
    driver.reconcile(entry, Again(newer))
    assert driver.start() is entry
    assert driver.core.executable(entry) is newer
    driver.fail(entry, PERMANENT)
    assert not driver.outcomes[entry.ticket].ambiguous
    driver.finish()


@pytest.mark.parametrize("refusal", [PERMANENT, GONE])
def test_refused_fails_the_call_with_its_own_error(refusal: VerdictKind) -> None:
    """L10: Refused(e) is Failed with e, PERMANENT, or GONE if another uid or none is there; nothing is in doubt."""
    driver = Driver()
    entry = driver.submit(effect=CREATE)
    driver.start()
    assert driver.fail(entry, RECONCILE, maybe=True)
    error = ValueError("bound elsewhere")
    driver.reconcile(entry, Refused(error), refusal=refusal)
    outcome = driver.outcomes[entry.ticket]
    assert isinstance(outcome, Failed)
    assert outcome.error is error
    assert outcome.verdict.kind is refusal
    assert not outcome.ambiguous
    driver.finish()


@pytest.mark.parametrize("unknown", [Unknown, Unknown()])
def test_an_unknown_create_fails_as_ambiguous(unknown: object) -> None:
    """L10: a CREATE of which nothing can be found out is not sent again."""
    driver = Driver()
    entry = driver.submit(effect=CREATE)
    driver.start()
    first = ValueError("time-out")
    assert driver.fail(entry, RETRY, maybe=True, error=first)
    driver.reconcile(entry, unknown)
    outcome = driver.outcomes[entry.ticket]
    assert isinstance(outcome, Failed)
    assert outcome.error is first
    assert outcome.ambiguous
    driver.finish()


def test_an_idempotent_write_refused_by_409_fails_on_unknown() -> None:
    """L10: it was not applied, and repeating it would only meet the same conflict."""
    driver = Driver()
    entry = driver.submit(effect=WRITE)
    driver.start()
    assert driver.fail(entry, RECONCILE, maybe=False)
    driver.reconcile(entry, Unknown())
    outcome = driver.outcomes[entry.ticket]
    assert isinstance(outcome, Failed)
    assert not outcome.ambiguous
    driver.finish()


def test_an_idempotent_write_in_doubt_is_repeated_on_unknown() -> None:
    """L10: one that may be applied is sent again, after its delay."""
    driver = Driver()
    entry = driver.submit(effect=WRITE)
    driver.start()
    assert driver.fail(entry, RECONCILE, maybe=True)
    driver.reconcile(entry, Unknown(), delay=0.5)
    assert driver.start() is None
    driver.advance(0.6)
    assert driver.start() is entry
    assert entry.attempts == 2
    driver.finish()


def test_reconciles_are_bounded() -> None:
    """L10: `max_reconciles` in all; a conflict without end ends as Failed."""
    driver = Driver(DispatcherConfig(retry=RetryPolicy(max_reconciles=3)))
    entry = driver.submit(effect=WRITE)
    for _ in range(3):
        assert driver.start() is entry
        assert driver.fail(entry, RECONCILE)
        driver.reconcile(entry, Again(entry.call))
    assert driver.start() is entry
    assert not driver.fail(entry, RECONCILE)
    assert isinstance(driver.outcomes[entry.ticket], Failed)
    driver.finish()


@pytest.mark.parametrize("kind", [RETRY, LATER, HOLD])
def test_a_failed_reconcile_waits_and_reconciles_again(kind: VerdictKind) -> None:
    """L14: it waits as its verdict says; the next thing is a reconcile, and nothing is sent before it."""
    driver = Driver()
    entry = driver.submit(effect=CREATE)
    driver.start()
    assert driver.fail(entry, RETRY, maybe=True)
    driver.fail_reconcile(entry, kind, delay=1.0)
    assert driver.start() is None
    driver.advance(1.1)
    assert driver.start() is entry
    assert entry.ticket in driver.reconciling
    assert entry.attempts == 1
    driver.reconcile(entry, Applied(1))
    assert isinstance(driver.outcomes[entry.ticket], Succeeded)
    driver.finish()


@pytest.mark.parametrize("how", ["permanent", "exhausted", "too many"])
def test_a_reconcile_without_tries_left_is_unknown(how: str) -> None:
    """L14: PERMANENT, or no tries left: as if it had answered Unknown."""
    driver = Driver(DispatcherConfig(retry=RetryPolicy(max_reconciles=2)))
    entry = driver.submit(effect=CREATE)
    driver.start()
    assert driver.fail(entry, RETRY, maybe=True)
    if how == "permanent":
        driver.fail_reconcile(entry, PERMANENT)
    elif how == "exhausted":
        driver.fail_reconcile(entry, RETRY, exhausted=True)
    else:
        for _ in range(2):
            driver.fail_reconcile(entry, RETRY, delay=0.1)
            driver.advance(0.2)
            driver.start()
    outcome = driver.outcomes[entry.ticket]
    assert isinstance(outcome, Failed)
    assert outcome.ambiguous
    driver.finish()


def test_a_read_is_never_in_doubt() -> None:
    """L10 is about writes: a read that conflicts fails, and its end is not ambiguous."""
    driver = Driver()
    entry = driver.submit(effect=READ)
    driver.start()
    assert not driver.fail(entry, RECONCILE, maybe=True)
    outcome = driver.outcomes[entry.ticket]
    assert isinstance(outcome, Failed)
    assert not outcome.ambiguous
    driver.finish()


@given(sent=st.booleans(), effect=st.sampled_from([READ, WRITE, CREATE]))
def test_cancelling_in_flight_is_ambiguous_if_it_was_sent(sent: bool, effect: Effect) -> None:
    """L10, L11: the attempt is stopped; whether its request had left decides what its caller is told."""
    driver = Driver()
    entry = driver.submit(effect=effect)
    driver.start()
    assert driver.cancel(entry)
    assert entry.ticket not in driver.outcomes
    assert entry.ticket in driver.stopping
    driver.stop(entry, sent=sent)
    outcome = driver.outcomes[entry.ticket]
    assert isinstance(outcome, Cancelled)
    assert outcome.ambiguous == (sent and effect is not READ)
    driver.finish()


def test_expiring_in_backoff_after_doubt_is_ambiguous() -> None:
    """L10: the doubt of an earlier attempt stays until something settles it."""
    driver = Driver()
    entry = driver.submit(effect=WRITE, timeout=2.0)
    driver.start()
    driver.fail(entry, RETRY, maybe=True, delay=1.5)
    driver.advance(1.6)
    driver.start()
    driver.fail(entry, RETRY, maybe=False, delay=5.0)
    outcome = driver.outcomes[entry.ticket]
    assert isinstance(outcome, Expired)
    assert outcome.where == "backoff"
    assert outcome.ambiguous
    driver.finish()


def test_the_same_error_five_times_over_is_permanent() -> None:
    """Rule R12: the same 500 without Retry-After does not pass by itself; another error in between starts anew."""
    driver = Driver()
    entry = driver.submit()
    for signature in ("a", "a", "a", "a", "b", "a", "a", "a", "a"):
        driver.start()
        driver.fail(entry, RETRY, signature=signature)
        assert not entry.done()
        driver.advance(0.1)
    driver.start()
    driver.fail(entry, RETRY, signature="a")
    assert driver.outcome(entry, Failed).verdict.kind is VerdictKind.PERMANENT
    driver.finish()


def test_seat_and_lane_are_kept_while_it_is_reconciled() -> None:
    """Design section 6, RECONCILE: nothing else of the object starts before its fate is known."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    entry = driver.submit(effect=CREATE)
    driver.submit()
    driver.submit(target=pod("other"))
    driver.start()
    assert driver.fail(entry, RETRY, maybe=True)
    assert driver.start() is None
    driver.reconcile(entry, Applied(None))
    assert driver.start() is not None
    driver.finish()


@pytest.mark.parametrize(("unknown", "ambiguous"), [(Unknown, False), (Unknown(), False), (Unknown(True), True)])
def test_unknown_may_take_back_an_earlier_again(unknown: object, ambiguous: bool) -> None:
    """L10: what an earlier read took for not applied may have been, after all: `Unknown(maybe_applied=True)`."""
    driver = Driver()
    entry = driver.submit(effect=CREATE)
    driver.start()
    assert driver.fail(entry, RETRY, maybe=True)
    driver.reconcile(entry, Again(entry.call), delay=0.1)
    driver.advance(0.1)
    assert driver.start() is entry
    assert driver.fail(entry, RECONCILE)
    driver.reconcile(entry, unknown)
    assert driver.outcome(entry, Failed).ambiguous == ambiguous
    driver.finish()
