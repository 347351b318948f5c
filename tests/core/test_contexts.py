"""Laws L5, L11 and L21: scheduling contexts, their ends, and what they require."""

import pytest

from asyncdispatch._core.states import CallState
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.errors import ConfigurationError, PrerequisiteFailed, StaleContext
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Succeeded
from tests.core.driver import Driver
from tests.core.words import PERMANENT, RETRY, SECOND, pod

# -- their ends (laws L5, L11) ----------------------------------------------------------------------------------------


def test_a_newer_context_ends_the_older_one_of_its_object() -> None:
    """L5, L11: what it had waiting is cancelled, what it has in flight is asked to stop; epochs never repeat."""
    driver = Driver()
    older = driver.begin()
    flying = driver.submit(context=older)
    driver.start()
    waiting = driver.submit(context=older)
    newer = driver.begin()
    assert older.ended is not None
    assert newer.epoch > older.epoch
    driver.outcome(waiting, Cancelled)
    assert flying.ticket in driver.stopping
    with pytest.raises(StaleContext):
        driver.submit(context=older)
    assert driver.begin(pod("q")).ended is None
    assert newer.ended is None
    driver.finish()


def test_a_late_success_is_only_audited() -> None:
    """L11: it reaches no handle of the ended context as a result."""
    driver = Driver()
    context = driver.begin()
    entry = driver.submit(context=context)
    driver.start()
    context.end("preempted")
    assert not entry.done()
    driver.succeed(entry, "bound")
    outcome = driver.outcome(entry, Cancelled)
    assert (outcome.reason, outcome.late_success, outcome.ambiguous) == ("preempted", "bound", False)
    assert driver.core.stale == 1
    driver.finish()


def test_a_success_after_the_end_of_validity_is_late_though_nobody_looked() -> None:
    """L5, L11, case H3: after a stalled loop the first thing compared is the clock."""
    driver = Driver()
    context = driver.begin(valid_for=1.0)
    flying, waiting = driver.submit(context=context), driver.submit(target=pod("q"), context=context)
    assert driver.start() is flying
    driver.stall(19.0)
    assert driver.start() is None
    driver.outcome(waiting, Cancelled)
    driver.succeed(flying, 1)
    assert driver.outcome(flying, Cancelled).late_success == 1
    driver.finish()


@pytest.mark.parametrize("report", ["succeed", "fail", "stop", "submit"])
def test_every_report_looks_at_the_clock_first(report: str) -> None:
    """L5: whatever is done first after a stall."""
    driver = Driver()
    context = driver.begin(valid_for=1.0)
    other = driver.submit(target=pod("other"))
    driver.start()
    waiting = driver.submit(context=context)
    driver.stall(1.0)
    if report == "succeed":
        driver.succeed(other)
    elif report == "fail":
        driver.fail(other, PERMANENT)
    elif report == "stop":
        driver.stop(other)
    else:
        with pytest.raises(StaleContext):
            driver.submit(context=context)
    driver.outcome(waiting, Cancelled)
    driver.finish()


def test_validity_can_be_extended_while_it_lasts() -> None:
    """L5: leadership is a time; what was valid a moment ago is not valid."""
    driver = Driver()
    context = driver.begin(valid_for=1.0)
    driver.advance(0.9)
    context.extend((driver.now + 2 * SECOND) / SECOND)
    driver.advance(1.9)
    assert driver.submit(context=context).state is CallState.QUEUED
    driver.stall(0.1)
    with pytest.raises(StaleContext):
        context.extend((driver.now + SECOND) / SECOND)
    driver.finish()


@pytest.mark.parametrize("why", ["delay", "backoff"])
def test_a_wait_may_outlast_the_validity_that_renewals_move(why: str) -> None:
    """L20, rule R7: only its deadline ends a call that starts too late; the end of its context may still be moved."""
    driver = Driver()
    context = driver.begin(valid_for=1.0)
    entry = driver.submit(context=context, not_before=3.0 if why == "delay" else None)
    if why == "backoff":
        driver.start()
        driver.fail(entry, RETRY, delay=3)
    for _ in range(8):
        assert not entry.done()
        context.extend((driver.now + SECOND) / SECOND)
        driver.advance(0.5)
    assert driver.start() is entry
    driver.succeed(entry)
    driver.finish()


def test_a_parents_end_ends_its_children() -> None:
    """L5: a lease above its Pods; an attempt's time-out is clipped to the lease's end."""
    driver = Driver()
    lease = driver.begin(pod("lease"), valid_for=3.0)
    child = driver.begin(pod("p"), parent=lease)
    grandchild = driver.begin(pod("q"), parent=child, valid_for=9.0)
    entry = driver.submit(target=pod("q"), context=grandchild, timeout=60.0)
    assert driver.start() is entry
    assert driver.core.limit(entry) == driver.now + 3 * SECOND
    waiting = driver.submit(target=pod("q"), context=grandchild)
    driver.advance(3.0)
    assert all(context.ended for context in (lease, child, grandchild))
    driver.outcome(waiting, Cancelled)
    assert entry.ticket in driver.stopping
    with pytest.raises(StaleContext):
        driver.begin(pod("r"), parent=lease)
    driver.finish()


def test_a_childs_end_leaves_its_parent() -> None:
    """L5: only downwards."""
    driver = Driver()
    lease = driver.begin(pod("lease"))
    driver.begin(parent=lease).end("done")
    assert lease.ended is None
    driver.finish()


def test_an_object_has_no_context_above_its_own() -> None:
    """A parent of the same object would end as its child begins: it is refused."""
    driver = Driver()
    parent = driver.begin()
    with pytest.raises(ConfigurationError, match="parent"):
        driver.begin(parent=parent)
    assert parent.ended is None
    driver.finish()


def test_a_context_for_an_older_uid_is_stale() -> None:
    """L2: the object that it was begun for is gone; the living context of the name goes on."""
    driver = Driver()
    driver.observe(pod("p", "u2"), 7)
    living = driver.begin(pod("p", "u2"), version=7)
    with pytest.raises(StaleContext):
        driver.begin(pod("p", "u1"), version=6)
    assert living.ended is None
    driver.finish()


def test_a_foreign_context_is_refused() -> None:
    """A context belongs to the dispatcher that has begun it."""
    context = Driver().begin()
    with pytest.raises(ConfigurationError, match="another dispatcher"):
        Driver().submit(context=context)


def test_ending_in_backoff_resolves_at_once() -> None:
    """L5, case H13: no timer and no further request remains."""
    driver = Driver()
    context = driver.begin()
    entry = driver.submit(context=context)
    driver.start()
    driver.fail(entry, RETRY, delay=60.0)
    context.end("over")
    driver.outcome(entry, Cancelled)
    assert len(driver.core.timers) == 0
    driver.finish()


def test_a_call_that_its_context_does_not_outlast_ends_with_it() -> None:
    """L5: its earliest start is after the end of validity, which nobody has moved."""
    driver = Driver()
    context = driver.begin(valid_for=1.0)
    entry = driver.submit(context=context, not_before=2.0)
    driver.advance(0.9)
    assert not entry.done()
    driver.advance(0.2)
    assert driver.outcome(entry, Cancelled).reason == "its validity is over"
    driver.finish()


# -- requirements (law L21) -------------------------------------------------------------------------------------------


def test_a_call_waits_for_every_requirement_of_its_context() -> None:
    """L21: it starts only when all are confirmed; one that does not await them starts at once."""
    driver = Driver()
    context = driver.begin(requires=("volume", "claim"))
    bind = driver.submit(context=context, awaits_prerequisites=True)
    other = driver.submit(target=pod("q"), context=context)
    assert driver.start_all() == [other]
    assert bind.state is CallState.REQUIREMENTS
    context.confirm("volume")
    assert driver.start() is None
    assert context.missing() == ["claim"]
    context.confirm("claim")
    assert driver.start() is bind
    driver.finish()


def test_the_success_of_a_prerequisite_confirms_it() -> None:
    """L21: by name, in its own context only."""
    driver = Driver()
    context, other = driver.begin(requires=("r",)), driver.begin(pod("q"), requires=("r",))
    bind = driver.submit(context=context, awaits_prerequisites=True)
    elsewhere = driver.submit(target=pod("q"), context=other, awaits_prerequisites=True)
    claim = driver.submit(target=pod("claim"), context=context, prerequisite="r")
    assert driver.start() is claim
    driver.succeed(claim)
    assert driver.start() is bind
    assert elsewhere.state is CallState.REQUIREMENTS
    driver.finish()


@pytest.mark.parametrize("end", ["failed", "cancelled", "expired", "forgotten"])
def test_a_prerequisite_that_ends_otherwise_fails_who_awaits_it(end: str) -> None:
    """L21: as PrerequisiteFailed, with its name and cause."""
    driver = Driver()
    context = driver.begin(requires=("r",))
    bind = driver.submit(context=context, awaits_prerequisites=True)
    claim = driver.submit(target=pod("claim"), context=context, prerequisite="r", timeout=1.0)
    error = ValueError("no room")
    if end == "failed":
        driver.start()
        driver.fail(claim, PERMANENT, error=error)
    elif end == "cancelled":
        driver.cancel(claim)
    elif end == "expired":
        driver.advance(1.1)
    else:
        driver.forget(pod("claim"))
    failed = driver.outcome(bind, Failed).error
    assert isinstance(failed, PrerequisiteFailed)
    assert failed.name == "r"
    if end == "failed":
        assert failed.__cause__ is error
    late = driver.submit(context=context, awaits_prerequisites=True)
    assert isinstance(driver.outcome(late, Failed).error, PrerequisiteFailed)
    driver.finish()


def test_a_requirement_can_fail_from_outside() -> None:
    """L21: the context's owner says so."""
    driver = Driver()
    context = driver.begin(requires=("r", "s"))
    bind = driver.submit(context=context, awaits_prerequisites=True)
    context.fail("s", ValueError("no"))
    failed = driver.outcome(bind, Failed).error
    assert isinstance(failed, PrerequisiteFailed)
    assert failed.name == "s"
    driver.finish()


def test_a_failed_prerequisite_can_be_tried_anew() -> None:
    """L21: a new call for the same requirement makes it pending again, and its success confirms it."""
    driver = Driver()
    context = driver.begin(requires=("r",))
    context.fail("r", ValueError("no"))
    claim = driver.submit(target=pod("claim"), context=context, prerequisite="r")
    bind = driver.submit(context=context, awaits_prerequisites=True)
    assert not bind.done()
    driver.start()
    driver.succeed(claim)
    assert driver.start() is bind
    driver.finish()


def test_a_new_context_starts_from_nothing_confirmed() -> None:
    """L21: what was confirmed in the older epoch says nothing in the new one."""
    driver = Driver()
    driver.begin(requires=("r",)).confirm("r")
    context = driver.begin(requires=("r",))
    bind = driver.submit(context=context, awaits_prerequisites=True)
    assert bind.state is CallState.REQUIREMENTS
    driver.finish()


def test_a_late_prerequisite_of_an_ended_context_confirms_nothing() -> None:
    """L11, L21: its success is audited only."""
    driver = Driver()
    older = driver.begin(requires=("r",))
    claim = driver.submit(target=pod("claim"), context=older, prerequisite="r")
    driver.start()
    newer = driver.begin(requires=("r",))
    driver.succeed(claim)
    driver.outcome(claim, Cancelled)
    assert newer.missing() == ["r"]
    driver.finish()


def test_unknown_requirements_are_named() -> None:
    """A wrong name is refused, and the right ones are told."""
    driver = Driver()
    context = driver.begin(requires=("volume",))
    with pytest.raises(ConfigurationError, match="volume"):
        driver.submit(context=context, prerequisite="claim")
    with pytest.raises(ConfigurationError, match="volume"):
        context.confirm("claim")
    context.confirm("volume")
    driver.finish()


def test_requirements_hold_no_seat() -> None:
    """L20: what waits for its prerequisites leaves the seats to others."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    context = driver.begin(requires=("r",))
    driver.submit(context=context, awaits_prerequisites=True, priority=1_000_000)
    other = driver.submit(target=pod("q"))
    assert driver.start() is other
    driver.succeed(other)
    driver.outcome(other, Succeeded)
    driver.finish()


def test_waiting_for_requirements_has_a_deadline() -> None:
    """L19, case I5: no waiting state lives on an event alone."""
    driver = Driver()
    context = driver.begin(requires=("r",))
    bind = driver.submit(context=context, awaits_prerequisites=True, timeout=2.0)
    driver.advance(2.1)
    assert driver.outcome(bind, Expired).where == "requirements"
    driver.finish()
