"""Laws L2 and L12: one lane for each object; writes wait in line; superseding; another uid; gone."""

import pytest

from asyncdispatch._core.states import CallState
from asyncdispatch.calls import Effect, ObjectRef
from asyncdispatch.config import CallTypePolicy, DispatcherConfig
from asyncdispatch.errors import Backpressure
from asyncdispatch.outcomes import Cancelled, Failed, Overwritten, Skipped, Succeeded
from tests.core.driver import Driver
from tests.core.words import CREATE, GONE, LATER, LEVELS, PERMANENT, READ, RETRY, WRITE, answer, pod

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


def test_an_ordered_read_waits_for_older_writes_only() -> None:
    """`ordered`: for those accepted before it, in flight or in line; one accepted after it may fly beside it."""
    driver = Driver(DispatcherConfig(max_in_flight=2))
    blocker = driver.submit(target=pod("blocker"))
    older = driver.submit(priority=LEVELS["high"])
    assert driver.start_all() == [older, blocker]
    read = driver.submit(effect=READ, ordered=True)
    driver.succeed(blocker)
    assert driver.start() is None, "it waits for the older one, which is in flight"
    second = driver.submit(target=pod("q"))
    assert driver.start() is second
    newer = driver.submit(priority=LEVELS["high"])
    driver.succeed(older)
    assert driver.start() is newer
    driver.succeed(second)
    assert driver.start() is read, "the newer one is in flight, and may be"
    driver.finish()


def test_the_first_read_of_all_can_be_joined() -> None:
    """L8: an ordered read joins one that no write has come after, also if nothing was ever written."""
    driver = Driver()
    first = driver.submit(effect=READ, ordered=True)
    driver.submit(effect=READ, version="7")
    assert driver.submit(effect=READ, ordered=True).lead is first
    driver.finish()


def test_all_that_waits_for_an_object_counts() -> None:
    """L4: in line, delayed, and reads, for `lane_capacity`; what is in flight does not."""
    driver = Driver(DispatcherConfig(lane_capacity=3))
    driver.submit()
    driver.submit(effect=READ, version="1")
    assert len(driver.start_all()) == 2
    driver.submit()
    driver.submit(not_before=9.0)
    driver.submit(effect=READ, ordered=True)
    assert driver.start() is None
    with pytest.raises(Backpressure) as full:
        driver.submit()
    assert (full.value.scope, full.value.depth) == ("object", 3)
    driver.finish()


def test_a_seat_that_passes_on_leaves_the_line_as_it_is() -> None:
    """L2, L12: who has succeeded passes its seat on at once, also if a second call of its object waits behind it."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    zero, first, *others = (driver.submit(target=pod(name)) for name in ("zero", "p", "a", "b", "c"))
    assert driver.start() is zero
    assert driver.turn(zero) is first
    behind = driver.submit(target=pod("p"))
    started = [driver.turn(first)]
    while started[-1] is not None:
        started.append(driver.turn(started[-1]))
    assert started[:-1] == [*others, behind] or started[:-1] == [behind, *others]
    assert all(isinstance(driver.outcomes[handle.ticket], Succeeded) for handle in (first, behind, *others))
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


def test_a_failed_call_stands_before_all_that_came_later() -> None:
    """L12: however many have queued up behind it."""
    driver = Driver()
    handles = [driver.submit(call_type=call_type) for call_type in "abc"]
    assert driver.start() is handles[0]
    driver.fail(handles[0], RETRY, delay=0.0)
    for handle in handles:
        assert driver.start() is handle
        driver.succeed(handle)
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


@pytest.mark.parametrize("uid", [None, "u1"])
def test_gone_by_its_uid_says_nothing_of_who_asks_for_none(uid: str | None) -> None:
    """It may be that another object has the name now, which will do for a call that names no uid."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    entry = driver.submit(target=pod("p", uid))
    driver.start()
    waiting = driver.submit(target=pod("p"))
    driver.fail(entry, GONE)
    assert waiting.done() == (uid is None)
    driver.finish()
