"""Law L18: own writes are shown until they are seen; what is known of objects; rule R3's bounds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from asyncdispatch.calls import ObjectRef, Unknown
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.outcomes import Cancelled, Failed, Succeeded
from tests.core.driver import Driver
from tests.core.words import CREATE, GONE, PERMANENT, READ, RETRY, Call, Patch, answer, pod


def write(driver: Driver, value: Any = None, **fields: Any) -> int:
    """A patch that has succeeded; its ticket."""
    entry = driver.submit(Patch(**{"fields": ("a",), **fields}))
    assert driver.start() is entry
    driver.succeed(entry, value)
    return entry.ticket


def unseen(driver: Driver, ref: ObjectRef | None = None) -> list[int]:
    return [own.ticket for own in driver.core.objects.writes((ref or pod()).lane)]


# -- until it is seen -------------------------------------------------------------------------------------------------


def test_a_completed_write_is_shown_until_its_version_is_reached() -> None:
    """L18: in an object whose resourceVersion is at least its answer's, and by no older one."""
    driver = Driver()
    ticket = write(driver, answer(version=7))
    for version in (5, 6, None):
        _, writes = driver.observe(pod("p", "u1"), version)
        assert [own.ticket for own in writes] == [ticket]
    changed, writes = driver.observe(pod("p", "u1"), 7)
    assert changed
    assert writes == []
    driver.finish()


def test_an_answer_without_a_version_is_shown_until_something_else_shows_it() -> None:
    """L18: a bind is answered with a Status; `drop` is how the shell says that `apply` changes nothing."""
    driver = Driver()
    ticket = write(driver)
    _, writes = driver.observe(pod("p", "u1"), 99)
    assert [own.ticket for own in writes] == [ticket]
    driver.core.objects.drop(pod().lane, writes)
    assert unseen(driver) == []
    driver.finish()


def test_a_read_begun_after_it_has_seen_it() -> None:
    """L18: one begun before it has not, however late its answer comes."""
    driver = Driver()
    write(driver)
    early = driver.submit(effect=READ)
    driver.start()
    second = write(driver)
    driver.succeed(early, answer(version=8))
    assert unseen(driver) == [second]
    late = driver.submit(effect=READ)
    driver.start()
    driver.succeed(late, answer(version=9))
    assert unseen(driver) == []
    driver.finish()


def test_fresh_settles_every_ended_write() -> None:
    """L18: it is the caller's word that the read began after them; what waits or flies is still shown."""
    driver = Driver()
    write(driver)
    flying = driver.submit(Patch(fields=("b",)))
    driver.start()
    waiting = driver.submit(Patch(fields=("c",)))
    _, writes = driver.observe(pod("p", "u1"), 5, fresh=True)
    assert writes == []
    assert driver.core.pending_writes(pod().lane) == [flying, waiting]
    driver.finish()


def test_only_calls_that_define_apply_are_shown() -> None:
    """L18: of the others nothing can be shown."""
    driver = Driver()
    entry = driver.submit()
    driver.start()
    driver.succeed(entry)
    assert unseen(driver) == []
    driver.finish()


def test_a_refused_write_is_not_shown() -> None:
    """L18: it was not done."""
    driver = Driver()
    entry = driver.submit(Patch())
    driver.start()
    driver.fail(entry, PERMANENT)
    assert unseen(driver) == []
    driver.finish()


# -- in doubt ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_write_in_doubt_is_shown(end: str) -> None:
    """L18, case G1: it may be there, until a read begun after it says."""
    driver = Driver()
    entry = driver.submit(Patch())
    driver.start()
    if end == "failed":
        driver.fail(entry, PERMANENT, maybe=True)
        assert driver.outcome(entry, Failed).ambiguous
    else:
        driver.cancel(entry)
        driver.stop(entry)
        assert driver.outcome(entry, Cancelled).ambiguous
    (own,) = driver.core.objects.writes(pod().lane)
    assert own.version is None
    driver.observe(pod("p", "u1"), 99)
    assert unseen(driver) == [entry.ticket]
    driver.observe(pod("p", "u1"), 100, fresh=True)
    assert unseen(driver) == []
    driver.finish()


def test_a_create_in_doubt_whose_name_nobody_knows_is_not_shown() -> None:
    """L18, L19: no read could be asked for, and none would ever show it."""
    driver = Driver()
    entry = driver.submit(Patch(effect=CREATE, target=pod("p-*")))
    driver.start()
    driver.fail(entry, PERMANENT, maybe=True)
    if entry.ticket in driver.reconciling:
        driver.reconcile(entry, Unknown(maybe_applied=True))
    assert driver.outcome(entry, Failed).ambiguous
    assert driver.core.objects.count == 0
    driver.finish()


@pytest.mark.parametrize("deletes", [True, False])
def test_a_write_whose_object_is_forgotten_in_flight_is_not_shown(deletes: bool) -> None:
    """L19: what is known of the object ends then; nobody would ever see the write."""

    class Write(Patch):
        pass

    Write.deletes = deletes  # type: ignore[attr-defined]
    driver = Driver()
    driver.observe(pod("p", "u1"), 5)
    entry = driver.submit(Write(target=pod("p", "u1")))
    driver.start()
    driver.forget(pod("p", "u1"))
    if deletes:
        driver.succeed(entry)
    else:
        driver.stop(entry)
        assert driver.outcome(entry, Cancelled).ambiguous
    assert driver.core.objects.count == 0
    driver.finish()


def test_a_doubt_that_a_later_attempt_settles_is_over() -> None:
    """L10, L18: the success is recorded, with its version, and nothing else."""
    driver = Driver()
    entry = driver.submit(Patch())
    driver.start()
    driver.fail(entry, RETRY, maybe=True)
    driver.advance(0.1)
    driver.start()
    driver.succeed(entry, answer(version=7))
    (own,) = driver.core.objects.writes(pod().lane)
    assert own.version == 7
    driver.outcome(entry, Succeeded)
    driver.finish()


# -- identities -------------------------------------------------------------------------------------------------------


def test_an_older_observation_changes_nothing() -> None:
    """L18: an older version of the same uid, or an older uid."""
    driver = Driver()
    assert driver.observe(pod("p", "u2"), 9)[0]
    assert not driver.observe(pod("p", "u2"), 8)[0]
    assert not driver.observe(pod("p", "u1"), 9)[0]
    assert driver.core.objects.uid_of(pod().lane) == "u2"
    assert driver.observe(pod("p", "u2"), 9)[0]
    assert driver.observe(pod("p", "u3"), 10)[0]
    assert driver.core.objects.uid_of(pod().lane) == "u3"
    driver.finish()


def test_another_uid_drops_the_writes_of_the_old_one() -> None:
    """L18, case F1: they were done to an object that is gone; a nameless one may be meant for the new."""
    driver = Driver()
    driver.observe(pod("p", "u1"), 5)
    write(driver, target=pod("p", "u1"))
    nameless = write(driver)
    driver.observe(pod("p", "u2"), 6)
    assert unseen(driver) == [nameless]
    driver.finish()


@pytest.mark.parametrize("by", ["read", "write"])
def test_a_late_watch_shows_our_write_of_what_is_gone(by: str) -> None:
    """L18: the server has said that the object is gone, the watch has yet to hear of it: older states change nothing,
    and none is shown without what we did to it (found by the simulation, churn 67)."""
    driver = Driver()
    driver.observe(pod("p", "u1"), 5)
    ticket = write(driver, target=pod("p", "u1"))
    asked = driver.submit(target=pod("p", "u1"), effect=READ) if by == "read" else driver.submit(target=pod("p", "u1"))
    assert driver.start() is asked
    driver.fail(asked, GONE)
    for ref, version in ((pod("p", "u1"), 5), (pod("p", "u1"), 6), (pod("p", "u0"), 4)):
        changed, writes = driver.observe(ref, version)
        assert not changed
        assert [own.ticket for own in writes] == [ticket]
    assert list(driver.core.objects.lanes_with_writes("")) == [], "it is not there: a list does not show it"
    following = driver.submit(target=pod("p", "u2"))
    driver.observe(pod("p", "u1"), 6)
    assert following.settled is None, "the next of its name is let in, and a late state of the old one does not end it"
    changed, writes = driver.observe(pod("p", "u2"), 9)
    assert changed
    assert writes == []
    driver.finish()


@pytest.mark.parametrize("end", ["forget", "time"])
def test_the_writes_of_what_is_gone_do_not_stay(end: str) -> None:
    """L19: until the watch has shown its end, or for `unobserved_age`; nobody is asked to read what is not there."""
    driver = Driver(DispatcherConfig(unobserved_age=10.0))
    driver.observe(pod("p", "u1"), 5)
    write(driver, target=pod("p", "u1"))
    asked = driver.submit(target=pod("p", "u1"))
    assert driver.start() is asked
    driver.fail(asked, GONE)
    assert len(unseen(driver)) == 1
    if end == "forget":
        driver.forget(pod("p", "u0"))
        assert len(unseen(driver)) == 1, "that was another one"
        driver.forget(pod("p", "u1"))
    else:
        driver.advance(9.9)
        assert len(unseen(driver)) == 1
        driver.advance(0.2)
        assert driver.core.objects.wanted == []
    assert unseen(driver) == []
    assert not driver.core.objects.table
    driver.finish()


def test_a_created_object_is_known_by_the_name_that_the_server_chose() -> None:
    """Rule R5, L18: its lane is that of its real name from then on."""
    driver = Driver()
    entry = driver.submit(Patch(effect=CREATE, target=pod("p-*")))
    driver.start()
    driver.succeed(entry, answer("p-x7", "u9", 12))
    assert unseen(driver, pod("p-x7")) == [entry.ticket]
    assert driver.core.objects.uid_of(pod("p-x7").lane) == "u9"
    driver.finish()


def test_an_answer_about_another_object_tells_nothing() -> None:
    """L2: only the object that was asked for is learned of."""
    driver = Driver()
    write(driver, answer("other", "u5", 99))
    assert driver.core.objects.uid_of(pod("other").lane) is None
    assert driver.core.objects.uid_of(pod().lane) is None
    driver.finish()


def test_forget_drops_the_writes() -> None:
    """L19: of that uid; without one all of them."""
    driver = Driver()
    driver.observe(pod("p", "u2"), 5)
    kept = write(driver, target=pod("p", "u2"))
    driver.forget(pod("p", "u1"))
    assert unseen(driver) == [kept]
    driver.forget(pod("p", "u2"))
    assert unseen(driver) == []
    assert driver.core.objects.table == {}
    driver.finish()


# -- bounds (rule R3) -------------------------------------------------------------------------------------------------


def test_at_the_bound_a_read_is_asked_for() -> None:
    """R3: never forgotten in silence; the one that was not seen for longest goes first."""
    driver = Driver(DispatcherConfig(max_unobserved=2))
    first = write(driver, target=pod("a"))
    write(driver, target=pod("b"))
    assert driver.wanted == []
    write(driver, target=pod("c"))
    assert [(want.ref.name, want.ticket) for want in driver.wanted] == [("a", first)]
    assert driver.core.objects.count == 2
    driver.finish()


def test_what_is_not_seen_for_long_is_asked_for_again_and_again() -> None:
    """R3, case F5: a time limit ends in a read, not in amnesia."""
    driver = Driver(DispatcherConfig(unobserved_age=10.0))
    ticket = write(driver)
    driver.advance(9.9)
    assert driver.wanted == []
    driver.advance(0.2)
    assert [want.ticket for want in driver.wanted] == [ticket]
    assert unseen(driver) == [ticket]
    driver.advance(10.0)
    assert len(driver.wanted) == 2
    driver.observe(pod("p", "u1"), 5, fresh=True)
    driver.advance(30.0)
    assert len(driver.wanted) == 2
    driver.finish()


# -- no-ops and rebasing ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoOp(Patch):
    """A patch that changes nothing."""

    def is_noop(self) -> bool:
        return True


def test_a_no_op_is_answered_at_once() -> None:
    """With None and no attempt, when nothing else of its object waits, flies or is unobserved."""
    driver = Driver()
    outcome = driver.outcome(driver.submit(NoOp()), Succeeded)
    assert (outcome.value, outcome.attempts) == (None, 0)
    driver.finish()


@pytest.mark.parametrize("what", ["waits", "flies", "is unobserved", "delayed", "is a read's"])
def test_a_no_op_is_not_believed_while_something_is_under_way(what: str) -> None:
    """Upstream's third fault: what waits may undo what makes it one; and it never deletes a waiting call."""
    driver = Driver()
    if what == "is unobserved":
        write(driver)
    elif what in ("waits", "flies"):
        other = driver.submit(Patch(call_type="other"))
        if what == "flies":
            driver.start()
        assert not driver.submit(NoOp()).done()
        assert not other.done()
    if what == "is a read's":
        assert not driver.submit(NoOp(effect=READ)).done()
    else:
        assert not driver.submit(NoOp(not_before=1.0 if what == "delayed" else None)).done()
    driver.finish()


def test_a_rebased_call_keeps_its_control_fields() -> None:
    """Only `version` and own fields may differ; what is in flight is not touched."""
    driver = Driver()
    entry = driver.submit(Patch(priority=5, timeout=9.0, fields=("a",)))
    driver.replace(entry, Patch(priority=7, fields=("b",), version="8"))
    assert driver.start() is entry
    sent = driver.core.executable(entry)
    assert isinstance(sent, Patch)
    assert (sent.fields, sent.version, sent.priority, sent.timeout) == (("b",), "8", 5, 9.0)
    driver.finish()


@pytest.mark.parametrize("other", [Call(), Patch(target=pod("q")), Patch(call_type="z")])
def test_a_rebase_to_another_call_is_refused(other: Any) -> None:
    """L14: it must be of the same class, type and target."""
    driver = Driver()
    entry = driver.submit(Patch())
    with pytest.raises(ValueError, match="rebase_onto"):
        driver.replace(entry, other)
    assert driver.start() is entry
    driver.finish()
