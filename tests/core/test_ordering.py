"""Law L7 in single scenes: how flows take turns, enter, leave and come back. `test_order_oracle.py` has the rest."""

import gc
from collections import Counter
from weakref import ref

import pytest

from asyncdispatch.config import CallTypePolicy, DispatcherConfig, FlowQuota
from tests.core.driver import Driver
from tests.core.words import LEVELS, RETRY, pod


def serve(driver: Driver, count: int) -> str:
    """Start and end so many calls, one after the other; the names of their flows."""
    order = ""
    for _ in range(count):
        entry = driver.start()
        assert entry is not None
        order += entry.call.flow
        driver.succeed(entry)
    return order


def many(driver: Driver, flow: str, count: int, **fields: object) -> None:
    for _ in range(count):
        driver.submit(target=pod(f"p{len(driver.handles)}"), flow=flow, **fields)


def weighted(**weights: float) -> Driver:
    flows = {flow: FlowQuota(weight=weight) for flow, weight in weights.items()}
    return Driver(DispatcherConfig(max_in_flight=1, flows=flows), check=False)


def test_equal_flows_take_turns() -> None:
    """L7: however much one of them has submitted before the other."""
    driver = weighted(a=1.0, b=1.0)
    many(driver, "a", 50)
    serve(driver, 10)
    many(driver, "b", 10)
    order = serve(driver, 20)
    assert Counter(order) == {"a": 10, "b": 10}
    assert "aaa" not in order
    assert "bbb" not in order
    driver.finish()


def test_weights_are_shares() -> None:
    """L7: starts divided by weights stay within one turn of each other."""
    driver = weighted(a=3.0, b=1.0, c=0.5)
    for flow in "abc":
        many(driver, flow, 100)
    assert Counter(serve(driver, 90)) == {"a": 60, "b": 20, "c": 10}
    driver.finish()


@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0])
def test_coming_and_going_saves_no_credit(weight: float) -> None:
    """L7: a flow that submits one call at a time enters at the tag in service + 1/w: no more than its share."""
    driver = weighted(a=1.0, b=weight)
    many(driver, "a", 210)
    order = ""
    for _ in range(200):
        if order[-1:] != "a":  # its last one was just served, or it has had none
            many(driver, "b", 1)
        order += serve(driver, 1)
    share = weight / (1.0 + weight)
    assert 200 * share - 2 <= order.count("b") <= 200 * share + 2
    driver.finish()


def test_a_newcomer_enters_a_whole_turn_behind() -> None:
    """L7: at the tag in service + 1/w, as if it had just been served."""
    driver = weighted(a=1.0, b=0.25)
    many(driver, "a", 30)
    serve(driver, 5)
    many(driver, "b", 5)
    assert serve(driver, 10).index("b") in (3, 4)
    driver.finish()


def test_a_newcomer_takes_turns_with_who_was_alone() -> None:
    """L7: also where a seat is passed on at once; nobody is charged less for having been alone."""
    driver = weighted(a=1.0, b=1.0)
    many(driver, "a", 20)
    entry = driver.start()
    for _ in range(5):
        assert entry is not None
        entry = driver.turn(entry)
    many(driver, "b", 10)
    order = ""
    for _ in range(10):
        assert entry is not None
        entry = driver.turn(entry)
        assert entry is not None
        order += entry.call.flow
    assert Counter(order) == {"a": 5, "b": 5}
    assert "aaa" not in order
    driver.finish()


def test_a_flow_that_idled_does_not_catch_up() -> None:
    """L7: no credit is saved while it had nothing to do."""
    driver = weighted(a=1.0, b=1.0)
    many(driver, "b", 1)
    many(driver, "a", 100)
    serve(driver, 60)
    many(driver, "b", 20)
    order = serve(driver, 20)
    assert Counter(order) == {"a": 10, "b": 10}
    driver.finish()


def test_a_full_flow_comes_back_without_credit() -> None:
    """L7: as long as it lacks a seat of its own it does not wait for a turn; then it enters anew."""
    quotas = {"a": FlowQuota(weight=1.0), "b": FlowQuota(weight=0.5, max_in_flight=1)}
    driver = Driver(DispatcherConfig(max_in_flight=2, flows=quotas))
    many(driver, "b", 9)
    first = driver.start()
    assert first is not None
    many(driver, "a", 30)
    assert serve(driver, 10) == "a" * 10
    driver.succeed(first)
    assert serve(driver, 6) in ("aabaab", "abaaba")
    driver.finish()


def test_levels_have_turns_of_their_own() -> None:
    """L7 is within a level and type: what a flow got above is not counted below."""
    driver = weighted(a=1.0, b=1.0)
    many(driver, "a", 10, priority=LEVELS["high"])
    many(driver, "a", 10)
    many(driver, "b", 10)
    assert serve(driver, 10) == "a" * 10
    assert Counter(serve(driver, 20)) == {"a": 10, "b": 10}
    driver.finish()


def test_a_full_type_is_passed_over_whole() -> None:
    """L6: no call of it stands in the way of another type's, however old it is."""
    driver = Driver(DispatcherConfig(max_in_flight=4, call_types={"x": CallTypePolicy(max_in_flight=1)}))
    many(driver, "a", 5, call_type="x", priority=LEVELS["high"])
    driver.advance(1.0)
    many(driver, "a", 5, call_type="y")
    assert [entry.call.call_type for entry in driver.start_all()] == ["x", "y", "y", "y"]
    driver.finish()


def test_a_seat_passes_on_only_within_the_limits_of_types_and_flows() -> None:
    """L3: who has succeeded passes its seat on at once; never to a type or a flow that has all of its own in use."""
    flows = {"b": FlowQuota(max_in_flight=1)}
    driver = Driver(DispatcherConfig(max_in_flight=3, flows=flows, call_types={"x": CallTypePolicy(max_in_flight=1)}))
    many(driver, "a", 4, call_type="x")
    many(driver, "b", 4, call_type="y")
    many(driver, "a", 4, call_type="y")
    started = driver.start_all()
    assert sorted(entry.call.call_type + entry.call.flow for entry in started) == ["xa", "ya", "yb"]
    last = next(entry for entry in started if entry.call.flow == "a" and entry.call.call_type == "y")
    for _ in range(3):
        following = driver.turn(last)
        assert following is not None
        assert (following.call.call_type, following.call.flow) == ("y", "a")
        last = following
    assert driver.turn(last) is None
    driver.finish()


def test_what_comes_back_keeps_its_place() -> None:
    """L9: a retried call goes before those that were accepted after it."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    many(driver, "a", 5)
    entry = driver.start()
    assert entry is not None
    driver.fail(entry, RETRY, delay=0.0)
    assert driver.start() is entry
    driver.fail(entry, RETRY, delay=1.0)
    serve(driver, 2)
    driver.advance(1.0)
    assert driver.start() is entry
    driver.finish()


def test_a_full_flow_that_had_nobody_waiting_is_full_all_the_same() -> None:
    """L3: its next call waits for a seat of its own, and holds nobody up."""
    driver = Driver(DispatcherConfig(flows={"b": FlowQuota(max_in_flight=1)}))
    many(driver, "b", 1)
    first = driver.start()
    assert first is not None
    many(driver, "b", 1)
    assert driver.start() is None
    many(driver, "a", 1)
    assert serve(driver, 1) == "a"
    driver.succeed(first)
    assert serve(driver, 1) == "b"
    driver.finish()


def test_an_execution_is_as_urgent_as_its_most_urgent_caller() -> None:
    """L9: who joins it at a higher level brings that along, though it came later."""
    driver = Driver(DispatcherConfig(max_in_flight=1))
    many(driver, "a", 3)
    joined = driver.submit(target=pod("joined"), idempotency_key="k", priority=LEVELS["low"])
    driver.submit(target=pod("joined"), idempotency_key="k", priority=LEVELS["lowest"])
    first = driver.start()
    assert first is not joined
    driver.submit(target=pod("joined"), idempotency_key="k", priority=LEVELS["high"])
    assert first is not None
    driver.succeed(first)
    assert driver.start() is joined
    driver.finish()


def test_a_light_flow_does_not_wait_for_a_flood() -> None:
    """L7: thousands of calls of one flow hold a light one up by about one turn."""
    driver = Driver(DispatcherConfig(max_in_flight=1, capacity=5_000), check=False)
    many(driver, "flood", 2_000)
    serve(driver, 5)
    many(driver, "light", 1)
    assert "light" in [serve(driver, 1) for _ in range(3)]


def test_a_queue_that_is_left_is_gone_at_once() -> None:
    """A flow that comes and goes leaves nothing to the garbage collector, also of calls that came back older."""
    driver = weighted(a=1.0)
    many(driver, "a", 2)
    first = driver.start()
    assert first is not None
    driver.fail(first, RETRY)
    driver.advance(10.0)
    queue = ref(driver.core.flows["a"].queues[0].fifo)
    assert queue() is not None
    gc.disable()
    try:
        serve(driver, 2)
        assert driver.core.flows["a"].queues == []
        assert queue() is None
    finally:
        gc.enable()
    driver.finish()
