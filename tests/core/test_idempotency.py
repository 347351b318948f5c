"""Law L8: equal operations are one execution, which every handle shares."""

import dataclasses
from typing import Any

import pytest

from asyncdispatch._core.idempotency import KeyIndex
from asyncdispatch._core.states import CallState, Entry
from asyncdispatch.calls import Applied, Effect
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.errors import Backpressure, ConfigurationError
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Succeeded
from tests.core.driver import Driver
from tests.core.words import CREATE, HOLD, LEVELS, PERMANENT, READ, RECONCILE, RETRY, WRITE, node, pod

KEYED: dict[str, Any] = {"idempotency_key": "k"}


# -- one execution ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [READ, WRITE, CREATE])
@pytest.mark.parametrize("ending", ["success", "failure"])
def test_every_handle_gets_the_same_outcome(effect: Effect, ending: str) -> None:
    """L8: one execution for all who ask for the same, whether they came before its start or during it."""
    driver = Driver()
    handles = [driver.submit(effect=effect, **KEYED) for _ in range(2)]
    assert driver.start_all() == handles[:1]
    handles.append(driver.submit(effect=effect, **KEYED))
    assert len({handle.ticket for handle in handles}) == 3
    assert driver.start() is None
    value, error = object(), ValueError()
    if ending == "success":
        driver.succeed(handles[0], value)
        assert all(driver.outcome(handle, Succeeded).value is value for handle in handles)
    else:
        driver.fail(handles[0], PERMANENT, error=error)
        assert all(driver.outcome(handle, Failed).error is error for handle in handles)
    driver.finish()


@pytest.mark.parametrize(
    "other",
    [
        {"idempotency_key": "other"},
        {"idempotency_key": None},
        {"call_type": "other"},
        {"target": pod("q")},
        {"target": pod("p", "u1")},
        {"version": "7"},
        {"effect": CREATE},
        {"scope": "other credentials"},
    ],
)
def test_different_operations_are_not_joined(other: dict[str, Any]) -> None:
    """L8: key, type, object, version and uid must be equal (and what they would be sent with)."""
    driver = Driver()
    one = driver.submit(**KEYED)
    two = driver.submit(**{**KEYED, **other})
    assert one.lead is not two.lead
    driver.finish()


@pytest.mark.parametrize(
    "other",
    [
        {"idempotency_key": "other"},
        {"call_type": "other"},
        {"target": pod("q")},
        {"target": pod("p", "u1")},
        {"version": "7"},
        {"effect": CREATE},
        {"effect": READ},
        {"scope": "other credentials"},
    ],
)
def test_equal_hashes_are_not_equal_operations(other: dict[str, Any]) -> None:
    """L8: two operations may have one hash; each finds its own execution, and leaves the other's alone as it ends."""
    driver = Driver()
    one, two = driver.submit(**KEYED), driver.submit(**{**KEYED, **other})
    index = KeyIndex()
    index.add(7, one)
    assert index.find(7, two.call) is None
    index.add(7, two)
    assert index.find(7, one.call) is one
    assert index.find(7, two.call) is two
    index.remove(one)
    assert index.find(7, one.call) is None
    assert index.find(7, two.call) is two
    index.remove(one)
    assert len(index) == 1
    index.remove(two)
    index.remove(two)
    assert len(index) == 0


def test_keyless_writes_never_join_but_reads_of_one_version_do() -> None:
    """L8: without a key a write is meant each time; a read is not."""
    driver = Driver()
    assert driver.submit().lead is not driver.submit().lead
    one, two = driver.submit(effect=READ, version="7"), driver.submit(effect=READ, version="7")
    other = driver.submit(effect=READ, version="8")
    assert two.lead is one
    assert other.lead is other
    driver.finish()


def test_an_equal_call_after_the_end_is_a_new_execution() -> None:
    """L8 is about live calls: without a memory the next one is sent again."""
    driver = Driver()
    first = driver.submit(**KEYED)
    driver.start()
    driver.succeed(first)
    second = driver.submit(**KEYED)
    assert second.lead is second
    assert driver.start() is second
    driver.finish()


def test_each_handle_keeps_its_own_deadline_and_cancellation() -> None:
    """L8: the execution goes on while one handle wants it, also if that is not the first."""
    driver = Driver()
    first = driver.submit(timeout=1.0, **KEYED)
    second = driver.submit(timeout=9.0, **KEYED)
    third = driver.submit(timeout=9.0, **KEYED)
    driver.start()
    driver.advance(1.1)
    assert driver.outcome(first, Expired).where == "in_flight"
    assert driver.cancel(second)
    driver.outcome(second, Cancelled)
    assert not driver.stopping
    driver.succeed(first, 7)
    assert driver.outcome(third, Succeeded).value == 7
    driver.finish()


def test_leaving_a_write_on_the_wire_is_ambiguous() -> None:
    """L10, L11: who leaves others behind settles at once, and a request of it may yet be applied."""
    driver = Driver()
    first, second = driver.submit(**KEYED), driver.submit(**KEYED)
    driver.cancel(first)
    assert not driver.outcome(first, Cancelled).ambiguous
    driver.start()
    third = driver.submit(**KEYED)
    driver.cancel(second)
    assert driver.outcome(second, Cancelled).ambiguous
    driver.succeed(first)
    assert not driver.outcome(third, Succeeded).ambiguous
    driver.finish()


def test_joiners_have_room_of_their_own() -> None:
    """L4: a join is accepted when full, up to `max_joined`; then Backpressure(scope="joined")."""
    driver = Driver(DispatcherConfig(capacity=1, reserve=0.0, max_joined=2))
    driver.submit(**KEYED)
    driver.submit(**KEYED)
    second = driver.submit(**KEYED)
    with pytest.raises(Backpressure) as full:
        driver.submit(**KEYED)
    assert (full.value.scope, full.value.depth, full.value.capacity) == ("joined", 2, 2)
    driver.cancel(second)
    driver.submit(**KEYED)
    driver.finish()


def test_the_first_call_that_may_start_is_sent() -> None:
    """L5: an execution starts when a living handle may start by itself, with that handle's call."""
    driver = Driver()
    first = driver.submit(not_before=5.0, **KEYED)
    second = driver.submit(not_before=1.0, flow="other", **KEYED)
    assert driver.start() is None
    driver.advance(1.0)
    assert driver.start() is first
    assert driver.core.executable(first) is second.call
    driver.finish()


def test_an_attempt_is_clipped_to_the_latest_limit_of_all() -> None:
    """L5: among living handles, later joiners included."""
    driver = Driver()
    first = driver.submit(timeout=2.0, **KEYED)
    driver.start()
    assert driver.core.limit(first) == driver.now + 2_000_000_000
    last = driver.submit(timeout=7.0, **KEYED)
    assert driver.core.limit(first) == driver.now + 7_000_000_000
    driver.cancel(last)
    assert driver.core.limit(first) == driver.now + 2_000_000_000
    driver.finish()


@pytest.mark.parametrize("own", [{"not_before": 3.0}, {"awaits_prerequisites": True}])
def test_a_joiner_that_could_not_start_itself_shares_what_flies(own: dict[str, Any]) -> None:
    """L8, L20: its own delay says nothing about an execution that another handle has started."""
    driver = Driver()
    first = driver.submit(not_before=2.0, **KEYED)
    driver.submit(**KEYED)
    context = driver.begin(pod("q"), requires=("r",)) if "awaits_prerequisites" in own else None
    assert driver.start() is first
    joiner = driver.submit(timeout=0.5, context=context, **own, **KEYED)
    assert not joiner.done()
    driver.succeed(first, 7)
    assert driver.outcome(joiner, Succeeded).value == 7
    driver.finish()


def test_a_joiner_that_cannot_wait_for_the_backoff_expires_at_once() -> None:
    """L20: the next attempt comes after its deadline."""
    driver = Driver()
    first = driver.submit(**KEYED)
    driver.start()
    driver.fail(first, RETRY, delay=5.0)
    joiner = driver.submit(timeout=2.0, **KEYED)
    assert driver.outcome(joiner, Expired).where == "backoff"
    assert not first.done()
    driver.finish()


# -- ranks (law L9) ---------------------------------------------------------------------------------------------------


def test_an_urgent_joiner_makes_the_execution_urgent_for_good() -> None:
    """L9: also once it has left; its flow stays that of the first caller."""
    driver = Driver(DispatcherConfig(max_in_flight=1, aging=10.0))
    driver.submit(target=pod("blocker"))
    blocker = driver.start()
    assert blocker is not None
    other = driver.submit(target=pod("q"), priority=LEVELS["default"])
    low = driver.submit(priority=LEVELS["low"], flow="a", **KEYED)
    urgent = driver.submit(priority=LEVELS["high"], flow="b", **KEYED)
    driver.cancel(urgent)
    driver.succeed(blocker)
    assert driver.start() is low
    assert low.flow.name == "a"
    driver.succeed(low)
    assert driver.start() is other
    driver.finish()


# -- taking over ------------------------------------------------------------------------------------------------------


def stopping(effect: Effect) -> tuple[Driver, Entry, Entry]:
    """An attempt that was asked to stop, and a call that has come meanwhile."""
    driver = Driver()
    first = driver.submit(effect=effect, **KEYED)
    driver.start()
    driver.cancel(first)
    second = driver.submit(effect=effect, **KEYED)
    assert second.lead is first
    return driver, first, second


def test_a_success_during_a_stop_answers_who_took_it_over() -> None:
    """L8, L11: who had left is told of the late success."""
    driver, first, second = stopping(WRITE)
    driver.succeed(first, 7)
    assert driver.outcome(first, Cancelled).late_success == 7
    assert driver.outcome(second, Succeeded).value == 7
    driver.finish()


def test_a_stopped_write_is_tried_again_for_who_took_it_over() -> None:
    """L8: at once, and with the newcomer's call."""
    driver, first, second = stopping(WRITE)
    driver.stop(first)
    assert driver.outcome(first, Cancelled).ambiguous
    assert driver.start_all() == [first]
    assert driver.core.executable(first) is second.call
    driver.succeed(first, 7)
    assert driver.outcome(second, Succeeded).value == 7
    assert second.state is CallState.SUCCEEDED
    assert first.state is CallState.CANCELLED
    driver.finish()


@pytest.mark.parametrize("sent", [True, False])
def test_a_stopped_create_is_ambiguous(sent: bool) -> None:
    """L8, L10: it is reconciled before it is sent again, unless it never left."""
    driver, first, second = stopping(CREATE)
    assert driver.stop(first, sent=sent) == sent
    if sent:
        driver.reconcile(first, Applied("there"))
        assert driver.outcome(second, Succeeded).value == "there"
    else:
        assert driver.start() is first
    driver.finish()


def test_leaving_again_does_not_put_off_who_has_left_before() -> None:
    """L11: five seconds after the attempt was asked to stop, all are told that it did not."""
    driver, first, second = stopping(WRITE)
    driver.advance(3.0)
    driver.cancel(second)
    driver.advance(2.1)
    assert driver.outcome(first, Cancelled).ambiguous
    assert driver.outcome(second, Cancelled).ambiguous
    driver.finish()


def test_a_given_up_write_that_was_refused_leaves_no_doubt() -> None:
    """L10: given up it is in doubt; its answer settles that for who took it over."""
    driver, first, second = stopping(WRITE)
    driver.advance(5.1)
    assert driver.outcome(first, Cancelled).ambiguous
    driver.fail(first, PERMANENT)
    assert not driver.outcome(second, Failed).ambiguous
    driver.finish()


def test_giving_up_a_reconcile_raises_no_doubt() -> None:
    """L10: its write was refused by the server, and reconciling sends nothing."""
    driver = Driver()
    entry = driver.submit()
    driver.start()
    assert driver.fail(entry, RECONCILE)
    driver.cancel(entry)
    driver.advance(5.1)
    assert not driver.outcome(entry, Cancelled).ambiguous
    driver.finish()


# -- ordered reads ----------------------------------------------------------------------------------------------------


def test_an_ordered_read_waits_for_the_writes_before_it() -> None:
    """L8, L12: it starts once those accepted before it have ended, whatever came after."""
    driver = Driver()
    write = driver.submit()
    read = driver.submit(effect=READ, ordered=True)
    plain = driver.submit(effect=READ, version="1")
    later = driver.submit()
    assert driver.start_all() == [write, plain]
    assert read.state is CallState.LINE
    driver.fail(write, RETRY, delay=1.0)
    assert driver.start() is None
    driver.advance(1.1)
    assert driver.start() is write
    driver.succeed(write)
    assert {entry.ticket for entry in driver.start_all()} == {read.ticket, later.ticket}
    driver.finish()


def test_an_ordered_read_joins_only_what_has_seen_its_writes() -> None:
    """L8: a write accepted in between makes it a read of its own."""
    driver = Driver()
    driver.submit()
    first = driver.submit(effect=READ, ordered=True)
    assert driver.submit(effect=READ, ordered=True).lead is first
    driver.submit()
    third = driver.submit(effect=READ, ordered=True)
    assert third.lead is third
    driver.finish()


def test_an_ordered_read_does_not_join_a_plain_one() -> None:
    """L8: the plain one may have begun before a write that has ended since."""
    driver = Driver()
    write = driver.submit()
    plain = driver.submit(effect=READ)
    driver.start_all()
    driver.succeed(write)
    ordered = driver.submit(effect=READ, ordered=True)
    assert ordered.lead is ordered
    assert not plain.done()
    driver.finish()


def test_an_ordered_read_makes_the_writes_before_it_urgent() -> None:
    """L9: they stand in its way."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    blocker = driver.submit(target=pod("blocker"))
    driver.start()
    other = driver.submit(target=pod("q"), priority=LEVELS["default"])
    write = driver.submit(priority=LEVELS["low"])
    driver.submit(effect=READ, ordered=True, priority=LEVELS["high"])
    driver.succeed(blocker)
    assert driver.start() is write
    assert not other.done()
    driver.finish()


# -- keys with a mind of their own (law L14) --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class BadKey:
    """A key whose equality raises."""

    number: int

    def __eq__(self, other: object) -> bool:
        raise ValueError("no")

    def __hash__(self) -> int:
        return 1


def test_a_key_that_cannot_be_compared_refuses_the_newcomer() -> None:
    """L14: what waits is untouched."""
    driver = Driver()
    first = driver.submit(idempotency_key=BadKey(1))
    with pytest.raises(ConfigurationError, match="mend it"):
        driver.submit(idempotency_key=BadKey(2))
    assert driver.start() is first
    driver.succeed(first)
    driver.finish()


def test_a_joined_call_stays_joined_in_every_waiting_state() -> None:
    """L8: held, in backoff, delayed: there is one execution, and `state` tells all where it is."""
    driver = Driver()
    first = driver.submit(not_before=1.0, **KEYED)
    second = driver.submit(not_before=1.0, **KEYED)
    states = [second.state]
    driver.advance(1.0)
    states.append(second.state)
    driver.start()
    states.append(second.state)
    driver.fail(first, HOLD)
    states.append(second.state)
    assert states == [CallState.DELAYED, CallState.QUEUED, CallState.IN_FLIGHT, CallState.HELD]
    driver.finish()


def test_a_dependency_of_a_joiner_is_its_own() -> None:
    """L8, rule R18: when its node goes, it alone is cancelled."""
    driver = Driver()
    first = driver.submit(**KEYED)
    second = driver.submit(depends_on=(node("n1"),), **KEYED)
    assert driver.forget(node("n1")) == 1
    driver.outcome(second, Cancelled)
    assert not first.done()
    driver.finish()
