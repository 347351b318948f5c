"""Laws L2, L12, L13: one lane for each object; writes wait in line; superseding; merging."""

import dataclasses

import pytest

from asyncdispatch._core.states import CallState
from asyncdispatch.calls import Effect, ObjectRef
from asyncdispatch.config import CallTypePolicy, DispatcherConfig
from asyncdispatch.errors import Backpressure, MergeFailed
from asyncdispatch.outcomes import Cancelled, Failed, Overwritten, Skipped, Succeeded
from tests.core.driver import CREATE, GONE, LATER, PERMANENT, READ, RETRY, WRITE, Call, Driver, Patch, answer, pod

BIND, STATUS = "pod_binding", "pod_status_patch"


# -- one write at a time (law L2) -----------------------------------------------------------------------------------


def test_writes_of_one_object_fly_one_at_a_time() -> None:
    """L2, L12: in order of acceptance, whatever their types; another object does not wait."""
    driver = Driver()
    first, second = driver.submit(call_type="a"), driver.submit(call_type="b")
    other = driver.submit(target=pod("other"))
    assert driver.start_all() == [first, other]
    assert second.state is CallState.LINE
    driver.succeed(first)
    assert driver.start() is second
    driver.finish()


def test_refs_with_and_without_uid_meet_in_one_lane() -> None:
    """L2: the uid is a fence, not a part of the identity; nor is the version within the group."""
    driver = Driver()
    driver.submit(target=pod("p"))
    driver.submit(target=pod("p", "u1"))
    driver.submit(target=ObjectRef("v2", "Pod", "ns", "p"))
    assert len(driver.start_all()) == 1
    driver.finish()


def test_a_write_that_is_being_stopped_keeps_its_lane() -> None:
    """L2: until it has really ended, even after its caller was told and given up."""
    driver = Driver()
    first, second = driver.submit(), driver.submit()
    driver.start()
    driver.cancel(first)
    assert driver.start() is None
    driver.advance(6.0)
    assert isinstance(driver.outcomes[first.ticket], Cancelled)
    assert driver.start() is None
    driver.stop(first)
    assert driver.start() is second
    driver.finish()


def test_reads_do_not_wait_for_writes() -> None:
    """L2 is about writes; reads of one object fly beside them and beside each other."""
    driver = Driver()
    driver.submit()
    driver.submit(effect=READ, version="1")
    driver.submit(effect=READ, version="2")
    assert len(driver.start_all()) == 3
    driver.finish()


def test_generated_names_have_a_lane_each() -> None:
    """Rule R5: a create whose name the server chooses waits for nothing."""
    driver = Driver(DispatcherConfig(lane_capacity=1))
    for _ in range(3):
        driver.submit(effect=CREATE, target=pod("p-*"))
    assert len(driver.start_all()) == 3
    driver.finish()


# -- another uid (law L2) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["observe", "begin", "answer", "version"])
def test_a_call_for_an_older_uid_is_gone(how: str) -> None:
    """L2: the uid known last is that of the newest version from any source; a call for another one is Failed(GONE)."""
    driver = Driver()
    if how == "observe":
        driver.observe(pod("p", "u2"), 5)
    elif how == "begin":
        driver.begin(pod("p", "u2"), version=5)
    elif how == "answer":
        entry = driver.submit()
        driver.start()
        driver.succeed(entry, answer("p", "u2", 5))
    else:
        driver.submit(target=pod("p", "u2"), version="5")
    for version in (None, "4"):
        outcome = driver.outcomes[driver.submit(target=pod("p", "u1"), version=version).ticket]
        assert isinstance(outcome, Failed)
        assert outcome.verdict.kind is GONE
        assert outcome.attempts == 0
    assert not driver.submit(target=pod("p", "u2")).done()
    assert not driver.submit(target=pod("p")).done()
    driver.finish()


def test_a_call_with_a_newer_version_brings_a_newer_uid() -> None:
    """L2: then what waits for the older uid is GONE."""
    driver = Driver()
    driver.observe(pod("p", "u1"), 5)
    old, nameless = driver.submit(target=pod("p", "u1")), driver.submit(target=pod("p"))
    create = driver.submit(target=pod("p", "u1"), effect=CREATE)
    new = driver.submit(target=pod("p", "u2"), version="6")
    assert isinstance(driver.outcomes[old.ticket], Failed)
    assert not new.done()
    assert not nameless.done()
    assert not create.done()
    driver.finish()


def test_an_attempt_in_flight_is_not_ended_by_a_newer_uid() -> None:
    """L2: its answer tells; only what waits is GONE."""
    driver = Driver()
    entry = driver.submit(target=pod("p", "u1"))
    driver.start()
    driver.observe(pod("p", "u2"), 7)
    assert not entry.done()
    driver.succeed(entry)
    assert isinstance(driver.outcomes[entry.ticket], Succeeded)
    driver.finish()


def test_a_refused_call_ends_nobody() -> None:
    """L1: a refused call leaves no trace, not even by the version that it was decided on."""
    driver = Driver(DispatcherConfig(capacity=1, reserve=0.0))
    waiting = driver.submit(target=pod("p", "u1"))
    with pytest.raises(Backpressure):
        driver.submit(target=pod("p", "u2"), version="6")
    assert not waiting.done()
    assert driver.start() is waiting
    driver.finish()


# -- the line (law L12) ---------------------------------------------------------------------------------------------


def chain() -> DispatcherConfig:
    """`a` supersedes `b`, `b` supersedes `c`; superseding is not inherited."""
    return DispatcherConfig(
        call_types={"a": CallTypePolicy(supersedes=("b",)), "b": CallTypePolicy(supersedes=("c",))}, max_in_flight=1
    )


@pytest.mark.parametrize(
    ("accepted", "sent"),
    [
        ("ccb", "bcc"),
        ("bca", "bca"),  # a meets c, which it does not supersede
        ("cba", "bca"),  # b has moved past c; a meets c
        ("bba", "abb"),
        ("aab", "aab"),
        ("cacb", "cabc"),
    ],
)
def test_a_call_moves_forward_past_what_it_supersedes(accepted: str, sent: str) -> None:
    """L12: until it meets one that it does not supersede, else FIFO."""
    driver = Driver(chain())
    blocker = driver.submit(call_type="z")
    driver.start()
    for call_type in accepted:
        driver.submit(call_type=call_type)
    driver.fail(blocker, PERMANENT)
    order = ""
    while (entry := driver.start()) is not None:
        order += entry.call.call_type
        driver.fail(entry, PERMANENT)
    assert order == sent
    driver.finish()


def test_a_success_settles_what_it_supersedes() -> None:
    """L12: Overwritten if accepted before it, Skipped if after, by its ticket; others of the lane go on."""
    driver = Driver()
    other = driver.submit(call_type="z")
    before = driver.submit(call_type=STATUS)
    bind = driver.submit(call_type=BIND)
    after = driver.submit(call_type=STATUS)
    elsewhere = driver.submit(call_type=STATUS, target=pod("q"))
    read = driver.submit(call_type=STATUS, effect=READ)
    driver.start_all()
    driver.succeed(other)
    assert driver.start() is bind
    driver.succeed(bind)
    assert driver.outcome(before, Overwritten).by == bind.ticket
    assert driver.outcome(after, Skipped).by == bind.ticket
    assert not elsewhere.done()
    assert not read.done()
    driver.finish()


def test_a_failed_bind_settles_nobody() -> None:
    """L12, upstream's lost skip: with any end but success the next in line runs."""
    driver = Driver()
    bind = driver.submit(call_type=BIND)
    driver.start()
    status = driver.submit(call_type=STATUS)
    driver.fail(bind, PERMANENT)
    assert driver.start() is status
    driver.finish()


def test_a_late_success_of_an_ended_context_settles_nobody() -> None:
    """L11, L12: only a success for a living handle supersedes."""
    driver = Driver()
    context = driver.begin()
    bind = driver.submit(call_type=BIND, context=context)
    driver.start()
    status = driver.submit(call_type=STATUS)
    context.end("preempted")
    driver.succeed(bind, "bound")
    outcome = driver.outcomes[bind.ticket]
    assert isinstance(outcome, Cancelled)
    assert outcome.late_success == "bound"
    assert driver.core.stale == 1
    assert driver.start() is status
    driver.finish()


def test_a_success_settles_only_calls_of_its_uid() -> None:
    """L2, L12: a bind of uid 1 says nothing about what is meant for uid 2."""
    driver = Driver()
    bind = driver.submit(call_type=BIND, target=pod("p", "u1"))
    driver.start()
    same, nameless, other = (driver.submit(call_type=STATUS, target=pod("p", uid)) for uid in ("u1", None, "u2"))
    driver.succeed(bind)
    assert isinstance(driver.outcomes[same.ticket], Skipped)
    assert isinstance(driver.outcomes[nameless.ticket], Skipped)
    assert not other.done()
    driver.finish()


def test_a_superseded_call_outside_of_the_line_is_settled_too() -> None:
    """L12: delayed or waiting for requirements, it waits all the same."""
    driver = Driver()
    context = driver.begin(pod("q"), requires=("volume",))
    delayed = driver.submit(call_type=STATUS, not_before=5.0)
    waiting = driver.submit(call_type=STATUS, context=context, awaits_prerequisites=True)
    bind = driver.submit(call_type=BIND)
    assert driver.start() is bind
    driver.succeed(bind)
    assert isinstance(driver.outcomes[delayed.ticket], Overwritten)
    assert isinstance(driver.outcomes[waiting.ticket], Overwritten)
    driver.finish()


def test_what_may_not_start_yet_blocks_nobody() -> None:
    """L12: it enters the line once its delay is over, behind what came meanwhile."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    delayed = driver.submit(call_type="a", not_before=1.0)
    first, second = driver.submit(call_type="b"), driver.submit(call_type="c")
    assert driver.start() is first
    driver.advance(1.1)
    driver.succeed(first)
    assert driver.start() is second
    driver.succeed(second)
    assert driver.start() is delayed
    driver.finish()


def test_a_call_in_backoff_keeps_its_place_in_line() -> None:
    """L12: nothing of its object passes it, though others go on."""
    driver = Driver()
    first, second = driver.submit(call_type="a"), driver.submit(call_type="b")
    driver.start()
    driver.fail(first, RETRY, delay=1.0)
    assert driver.start() is None
    driver.advance(1.1)
    assert driver.start() is first
    driver.succeed(first)
    assert driver.start() is second
    driver.finish()


def test_a_superseding_call_passes_one_in_backoff() -> None:
    """L12: it moves forward past what it supersedes, also if that has been tried already."""
    driver = Driver()
    status = driver.submit(call_type=STATUS)
    driver.start()
    bind = driver.submit(call_type=BIND)
    driver.fail(status, LATER, delay=10.0)
    assert driver.start() is bind
    driver.succeed(bind)
    assert isinstance(driver.outcomes[status.ticket], Overwritten)
    driver.finish()


# -- merging (law L13) ----------------------------------------------------------------------------------------------


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


# -- gone (design section 6) ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [READ, WRITE, CREATE])
def test_gone_cancels_what_waits_for_that_uid_but_never_a_create(effect: Effect) -> None:
    """GONE ends its own call as Failed; a create makes the next object of that name."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    entry = driver.submit(target=pod("p", "u1"))
    driver.start()
    waiting = driver.submit(target=pod("p", "u1"), effect=effect)
    elsewhere = driver.submit(target=pod("q", "u1"))
    driver.fail(entry, GONE)
    assert isinstance(driver.outcomes[entry.ticket], Failed)
    assert waiting.done() == (effect is not CREATE)
    assert not elsewhere.done()
    driver.finish()
