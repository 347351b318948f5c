"""Law L13: merging with the last in line, and being absorbed by a newer call; never what is on the wire."""

import dataclasses
from typing import Any

import pytest

from asyncdispatch._core.states import CallState
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.errors import MergeFailed
from asyncdispatch.outcomes import Overwritten, Succeeded
from tests.core.driver import Driver
from tests.core.words import CREATE, RETRY, Call, Patch, node, pod

BIND, STATUS = "pod_binding", "pod_status_patch"


def busy() -> Driver:
    """A driver whose only seat is taken, so that everything else waits."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    driver.submit(target=pod("blocker"))
    driver.start()
    return driver


def release(driver: Driver) -> None:
    for entry in list(driver.flying.values()):
        driver.succeed(entry)


def test_the_newcomer_takes_the_place_of_the_last_in_line() -> None:
    """L13: at once Overwritten(by the newcomer), whose control fields count, and one request sends both."""
    driver = busy()
    first = driver.submit(Patch(fields=("a",), priority=5, timeout=3.0))
    second = driver.submit(Patch(fields=("b",), priority=7, timeout=50.0))
    assert driver.outcome(first, Overwritten).by == second.ticket
    release(driver)
    assert driver.start() is second
    sent = driver.core.executable(second)
    assert isinstance(sent, Patch)
    assert (sent.fields, sent.priority, sent.timeout) == (("a", "b"), 7, 50.0)
    driver.finish()


def test_nobody_is_overwritten_by_what_is_added_during_its_flight() -> None:
    """L13, upstream's first fault: the request is on the wire, so its caller is told what comes of it."""
    driver = Driver()
    first = driver.submit(Patch(fields=("a",)))
    driver.start()
    second = driver.submit(Patch(fields=("b",)))
    assert not first.done()
    driver.succeed(first, 1)
    assert isinstance(driver.outcomes[first.ticket], Succeeded)
    assert driver.start() is second
    driver.finish()


def test_every_waiter_has_an_outcome_when_a_third_call_comes() -> None:
    """L1, L13, upstream's second fault: A in flight, B waiting, a third of another type: nobody is lost."""
    driver = Driver()
    flying = driver.submit(Patch(call_type=STATUS, fields=("a",)))
    driver.start()
    waiting = driver.submit(Patch(call_type=STATUS, fields=("b",)))
    bind = driver.submit(call_type=BIND)
    driver.succeed(flying)
    assert driver.start() is bind
    driver.succeed(bind)
    assert isinstance(driver.outcomes[waiting.ticket], Overwritten)
    driver.finish()


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({}, {"idempotency_key": "k"}),
        ({"idempotency_key": "k"}, {}),
        ({}, {"version": "7"}),
        ({}, {"target": pod("p", "u1")}),
        ({}, {"call_type": "other"}),
        ({}, {"effect": CREATE}),
        ({"effect": CREATE}, {}),
        ({}, {"not_before": 1.0}),
        ({"not_before": 1.0}, {}),
        ({}, {"scope": "other credentials"}),
    ],
)
def test_what_may_not_be_merged(older: dict[str, object], newer: dict[str, object]) -> None:
    """L13: only idempotent writes of equal type, object, uid and version, in line, both without a key."""
    driver = busy()
    first = driver.submit(Patch(fields=("a",), **older))  # type: ignore[arg-type]
    second = driver.submit(Patch(fields=("b",), **newer))  # type: ignore[arg-type]
    assert not first.done()
    assert not second.done()
    driver.finish()


@pytest.mark.parametrize("which", ["older", "newer"])
def test_a_prerequisite_is_not_merged(which: str) -> None:
    """L13: its success confirms a requirement, so it must be its own."""
    driver = busy()
    context = driver.begin(pod("q"), requires=("r",))
    mark = {"context": context, "prerequisite": "r"}
    first = driver.submit(Patch(fields=("a",), **(mark if which == "older" else {})))  # type: ignore[arg-type]
    second = driver.submit(Patch(fields=("b",), **(mark if which == "newer" else {})))  # type: ignore[arg-type]
    assert not first.done()
    assert not second.done()
    driver.finish()


def test_only_the_last_in_line_is_asked() -> None:
    """L13: what stands between would otherwise be overtaken."""
    driver = busy()
    first = driver.submit(Patch(fields=("a",)))
    driver.submit(call_type="between")
    last = driver.submit(Patch(fields=("b",)))
    assert not first.done()
    newest = driver.submit(Patch(fields=("c",)))
    assert driver.outcome(last, Overwritten).by == newest.ticket
    assert not first.done()
    driver.finish()


def test_a_merged_call_keeps_the_older_place() -> None:
    """L9, L13: the execution's rank never gets worse through a merge."""
    driver = busy()
    driver.submit(Patch(fields=("a",)))
    driver.advance(1.0)
    driver.submit(target=pod("q"))
    driver.advance(1.0)
    newest = driver.submit(Patch(fields=("b",)))
    release(driver)
    assert driver.start() is newest
    driver.finish()


def test_a_failed_attempt_is_absorbed_by_a_newer_call() -> None:
    """L13: coming back it meets a mergeable call: one request sends both, at the older place, after the backoff."""
    driver = busy()
    release(driver)
    first = driver.submit(Patch(fields=("a",)))
    assert driver.start() is first
    driver.advance(1.0)
    other = driver.submit(target=pod("q"))
    driver.advance(1.0)
    second = driver.submit(Patch(fields=("b",)))
    driver.fail(first, RETRY, maybe=True, delay=1.0)
    outcome = driver.outcomes[first.ticket]
    assert isinstance(outcome, Overwritten)
    assert outcome.by == second.ticket
    assert outcome.ambiguous
    assert second.state is CallState.BACKOFF
    driver.advance(1.1)
    assert driver.start() is second
    sent = driver.core.executable(second)
    assert isinstance(sent, Patch)
    assert sent.fields == ("a", "b")
    driver.succeed(second)
    assert driver.start() is other
    driver.finish()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backwards(Patch):
    """A call whose merge adds its fields to the older one and returns that."""

    def merge(self, pending: Any) -> Any:
        return dataclasses.replace(pending, fields=pending.fields + self.fields)


def test_the_newcomers_control_fields_count_whatever_merge_returns() -> None:
    """L13: priority, time-out, flow and all else that says when, not what."""
    driver = busy()
    older = Backwards(fields=("a",), priority=5, timeout=3.0, flow="old", sheddable=True)
    newer = Backwards(fields=("b",), priority=7, timeout=50.0, flow="new", depends_on=(node("n"),))
    first, second = driver.submit(older), driver.submit(newer)
    assert driver.outcome(first, Overwritten).by == second.ticket
    release(driver)
    assert driver.start() is second
    assert driver.core.executable(second) == dataclasses.replace(newer, fields=("a", "b"))
    assert older.fields == ("a",)
    driver.finish()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadMerge(Patch):
    """A call whose merge raises, or returns something else."""

    returns: object = None

    def merge(self, pending: object) -> object:  # type: ignore[override]
        if self.returns is None:
            raise ValueError("no")
        return self.returns


@pytest.mark.parametrize("returns", [None, 7, Call(), BadMerge(target=pod("other")), BadMerge(version="7")])
def test_a_bad_merge_refuses_the_newcomer(returns: object) -> None:
    """L14: the waiting call is untouched, and nothing is left of the newcomer."""
    driver = busy()
    first = driver.submit(BadMerge())
    with pytest.raises(MergeFailed):
        driver.submit(BadMerge(returns=returns))
    release(driver)
    assert driver.start() is first
    driver.finish()


def test_a_merge_that_raises_at_a_retry_counts_as_none() -> None:
    """L14: both are sent, in order."""
    driver = Driver()
    first = driver.submit(BadMerge())
    driver.start()
    second = driver.submit(BadMerge())
    driver.fail(first, RETRY)
    driver.advance(0.1)
    assert driver.start() is first
    driver.succeed(first)
    assert driver.start() is second
    driver.finish()
