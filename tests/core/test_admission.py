"""Law L4: capacity, quotas, the reserve, shedding, and what Backpressure and pressure say."""

from random import Random
from typing import Any

import pytest

from asyncdispatch._core.admission import Admission, DrainRate, Pressure, Sheddables
from asyncdispatch._core.ordering import Group
from asyncdispatch._core.seats import Flow
from asyncdispatch._core.states import Entry
from asyncdispatch.config import DispatcherConfig, FlowQuota, RateLimit
from asyncdispatch.errors import Backpressure
from asyncdispatch.outcomes import Expired, Shed
from tests.core.driver import Driver
from tests.core.words import LEVELS, PERMANENT, READ, RETRY, SECOND, START, Call, Patch, pod


def small(**fields: Any) -> Driver:
    return Driver(DispatcherConfig(**{"capacity": 10, "reserve": 0.2, "max_in_flight": 1, **fields}))


def fill(driver: Driver, count: int, **fields: Any) -> list[Entry]:
    done = len(driver.handles)
    return [driver.submit(target=pod(f"p{done + number}"), **fields) for number in range(count)]


def refused(driver: Driver, **fields: Any) -> Backpressure:
    with pytest.raises(Backpressure) as full:
        driver.submit(target=pod("one too many"), **fields)
    return full.value


def test_capacity_counts_handles_without_an_outcome() -> None:
    """L4: ready, delayed, in backoff and in flight alike; the end of one makes room for one."""
    driver = small(reserve=0.0)
    first = fill(driver, 8)[0]
    fill(driver, 2, not_before=50.0)
    driver.start()
    full = refused(driver)
    assert (full.scope, full.depth, full.capacity) == ("total", 10, 10)
    driver.fail(first, RETRY, delay=50.0)
    refused(driver)
    driver.cancel(first)
    fill(driver, 1)
    refused(driver)
    driver.finish()


def test_the_reserve_is_for_prerequisites() -> None:
    """L4: ordinary calls get the capacity less the reserve."""
    driver = small()
    context = driver.begin(requires=("r",))
    fill(driver, 8)
    assert refused(driver).capacity == 8
    fill(driver, 2, context=context, prerequisite="r")
    assert refused(driver, context=context, prerequisite="r").capacity == 10
    driver.finish()


def test_a_flow_has_its_own_quota() -> None:
    """L4: `max_queued` of its handles without an outcome; others are not touched."""
    driver = small(flows={"a": FlowQuota(max_queued=2)})
    fill(driver, 2, flow="a")
    full = refused(driver, flow="a")
    assert (full.scope, full.depth, full.capacity) == ("flow", 2, 2)
    fill(driver, 1, flow="b")
    driver.finish()


def test_one_object_holds_so_many_waiting_calls() -> None:
    """L4: `lane_capacity` of them, what flies aside; merges are taken all the same."""
    driver = small(lane_capacity=2, capacity=100)
    driver.submit()
    driver.start()
    driver.submit()
    driver.submit(effect=READ)
    with pytest.raises(Backpressure) as full:
        driver.submit()
    assert (full.value.scope, full.value.depth, full.value.capacity) == ("object", 2, 2)
    fill(driver, 1)
    driver.finish()


def test_joins_and_merges_are_accepted_when_full() -> None:
    """L4: they add no execution."""
    driver = small(capacity=1, reserve=0.0, lane_capacity=1)
    first = driver.submit(Patch(idempotency_key="k"))
    assert driver.submit(Patch(idempotency_key="k")).lead is first
    driver.finish()
    driver = small(capacity=1, reserve=0.0, lane_capacity=1)
    merged = [driver.submit(Patch(fields=(str(number),))) for number in range(5)]
    assert [handle.done() for handle in merged] == [True] * 4 + [False]
    driver.finish()


@pytest.mark.parametrize("settled", [0, 5, 50])
def test_retry_after_follows_the_drain_rate(settled: int) -> None:
    """The faster calls end, the sooner there is room: at least 0.05 s, at most 30 s, 1 s while nothing is known."""
    driver = small(capacity=100, reserve=0.0)
    for _ in range(2 * settled):
        (entry,) = fill(driver, 1)
        assert driver.start() is entry
        driver.succeed(entry)
        driver.advance(1.0 / settled)
    fill(driver, 100)
    after = refused(driver).retry_after
    if settled == 0:
        assert after == 1.0
    else:
        assert 0.05 <= after <= 30.0
        # One place, and a tenth of the capacity for all who ask meanwhile.
        assert after == pytest.approx(11 / settled, rel=0.4)
    driver.finish()


# -- shedding ---------------------------------------------------------------------------------------------------------


def test_a_less_urgent_sheddable_call_makes_room() -> None:
    """L4: the least urgent first, of it the newest; its handle says for whom."""
    driver = small(reserve=0.0)
    low = fill(driver, 2, priority=LEVELS["low"], sheddable=True)
    lowest = fill(driver, 2, priority=LEVELS["lowest"], sheddable=True)
    fill(driver, 6, priority=LEVELS["lowest"])
    urgent = [driver.submit(target=pod(f"u{i}"), priority=LEVELS["high"]) for i in range(4)]
    order = [ticket for ticket, outcome in driver.outcomes.items() if isinstance(outcome, Shed)]
    assert order == [lowest[1].ticket, lowest[0].ticket, low[1].ticket, low[0].ticket]
    assert str(urgent[0].ticket) in driver.outcome(lowest[1], Shed).reason
    assert refused(driver, priority=LEVELS["high"]).scope == "total"
    driver.finish()


def test_nobody_is_shed_for_an_equal_or_less_urgent_call() -> None:
    """L4: only for a more urgent one."""
    driver = small(reserve=0.0)
    fill(driver, 10, priority=LEVELS["default"], sheddable=True)
    refused(driver, priority=LEVELS["default"])
    refused(driver, priority=LEVELS["low"])
    assert not driver.outcomes
    driver.finish()


def test_what_cannot_meet_its_deadline_any_more_is_shed_first() -> None:
    """L4: before less urgent ones of the same level that still can."""
    driver = small(reserve=0.0)
    for entry in fill(driver, 5):  # five a second
        assert driver.start() is entry
        driver.succeed(entry)
        driver.advance(0.2)
    driver.advance(0.3)
    late = fill(driver, 1, priority=LEVELS["low"], sheddable=True, timeout=0.5)[0]
    fill(driver, 9, priority=LEVELS["low"], sheddable=True)
    fill(driver, 1, priority=LEVELS["high"])
    driver.outcome(late, Shed)
    driver.finish()


def test_what_flies_was_joined_or_is_a_prerequisite_is_not_shed() -> None:
    """L4: somebody else waits for it."""
    driver = small(capacity=4, reserve=0.25)
    context = driver.begin(pod("ctx"), requires=("r",))
    low = {"priority": LEVELS["low"], "sheddable": True}
    fill(driver, 1, **low)
    driver.start()
    driver.submit(idempotency_key="k", **low)
    driver.submit(idempotency_key="k", **low)
    fill(driver, 1, context=context, prerequisite="r", **low)
    refused(driver, priority=LEVELS["high"])
    driver.finish()


def test_a_sheddable_call_that_came_back_can_be_shed_again() -> None:
    """L4: between two attempts it waits."""
    driver = small(capacity=1, reserve=0.0)
    low = driver.submit(priority=LEVELS["low"], sheddable=True)
    driver.start()
    refused(driver, priority=LEVELS["high"])
    driver.fail(low, RETRY, delay=5.0)
    fill(driver, 1, priority=LEVELS["high"])
    driver.outcome(low, Shed)
    driver.finish()


def test_a_full_flow_sheds_from_itself() -> None:
    """L4: another flow's call would not make room in it."""
    driver = small(flows={"a": FlowQuota(max_queued=2)})
    other = driver.submit(target=pod("other"), flow="b", priority=LEVELS["lowest"], sheddable=True)
    mine = driver.submit(target=pod("mine"), flow="a", priority=LEVELS["low"], sheddable=True)
    fill(driver, 1, flow="a")
    fill(driver, 1, flow="a", priority=LEVELS["high"])
    driver.outcome(mine, Shed)
    assert not other.done()
    driver.finish()


# -- pressure ---------------------------------------------------------------------------------------------------------


def test_pressure_has_hysteresis() -> None:
    """HIGH above 80 %, until it falls below 60 %; FULL at the top, until it falls to 90 %; the reserve aside."""
    config = DispatcherConfig(capacity=125, reserve=0.2, max_in_flight=1)  # a hundred for ordinary calls
    driver = Driver(config, check=False)
    handles: list[Entry] = []
    levels = {}
    up = [(80, "ok"), (81, "high"), (99, "high"), (100, "full")]
    down = [(91, "full"), (95, "full"), (91, "full"), (90, "high"), (95, "high"), (60, "high"), (59, "ok")]
    for depth, expected in [*up, *down, (80, "ok"), (81, "high")]:
        if depth > len(handles):
            handles += fill(driver, depth - len(handles))
        while len(handles) > depth:
            driver.cancel(handles.pop())
        levels[depth] = expected
        assert driver.core.admission.pressure is Pressure(expected), depth
    driver.finish()


def test_case_d3_deadlines_shorter_than_the_queue() -> None:
    """Case D3: what the rate can't serve in time expires, queued, by second 10.1, and costs no token."""
    driver = Driver(DispatcherConfig(capacity=500, reserve=0.0, rate=RateLimit(10.0, 1)), check=False)
    handles = fill(driver, 500, timeout=10.0)
    assert driver.core.admission.pressure is Pressure.FULL
    for _ in range(101):
        for entry in driver.start_all():
            driver.succeed(entry)
        driver.advance(0.1)
    assert len(driver.outcomes) == 500
    expired = [handle for handle in handles if isinstance(driver.outcomes[handle.ticket], Expired)]
    assert {driver.outcome(handle, Expired).where for handle in expired} == {"queued"}
    assert 99 <= 500 - len(expired) <= 101
    assert len(driver.history.starts) == 500 - len(expired)
    driver.finish()


def test_case_k5_offered_ten_times_the_throughput() -> None:
    """Case K5: every accepted call succeeds or expires, queued; the counts add up; pressure says FULL."""
    driver = Driver(DispatcherConfig(capacity=100, reserve=0.0, max_in_flight=1), check=False)
    turned_away = 0
    seen = set()
    for number in range(600):
        try:
            driver.submit(target=pod(f"p{number}"), timeout=8.0)
        except Backpressure:
            turned_away += 1
        if number % 10 == 0:
            for entry in list(driver.flying.values()):
                driver.succeed(entry)
            driver.start()
        driver.advance(0.01)
        seen.add(driver.core.admission.pressure)
    driver.advance(10.0)
    for entry in list(driver.flying.values()):
        driver.fail(entry, PERMANENT)
    assert Pressure.FULL in seen
    assert turned_away + len(driver.outcomes) == 600
    assert driver.core.admission.pressure is Pressure.OK
    driver.finish()


@pytest.mark.parametrize("reserve", [0.0, 0.1, 0.25, 0.5])
def test_pressure_is_what_its_words_say(reserve: float) -> None:
    """HIGH above 80 %, until it falls below 60 %; FULL at 100 %, until it falls to 90 %: whatever the capacity is."""
    random, flow = Random(1), Flow("f", FlowQuota())
    for capacity in [*range(1, 41), 100]:
        admission = Admission(DispatcherConfig(capacity=capacity, reserve=reserve), 1)
        ordinary, words, goal = admission.ordinary, Pressure.OK, 0
        for _ in range(12 * capacity):
            if admission.depth == goal:
                goal = random.randrange(admission.total + 1)
            elif admission.depth < goal or not random.randrange(4):
                admission.entered(flow)
            elif admission.depth:
                admission.left(flow)
            tenths = 10 * admission.depth  # of what ordinary calls may take, times that
            if tenths >= 10 * ordinary or (words is Pressure.FULL and tenths > 9 * ordinary):
                words = Pressure.FULL
            elif tenths > 8 * ordinary or (words is not Pressure.OK and tenths >= 6 * ordinary):
                words = Pressure.HIGH
            else:
                words = Pressure.OK
            assert admission.pressure is words, (capacity, admission.depth)


# -- how soon there will be room --------------------------------------------------------------------------------------


def test_the_drain_rate_is_what_was_settled_in_a_second() -> None:
    """Nothing at first; while no second is over, what was settled so far; then the first second as it was."""
    rate = DrainRate()
    assert rate.per_second(7, START) == 0.0
    assert rate.per_second(37, START + SECOND - 1) == 30.0
    assert rate.per_second(47, START + SECOND) == 40.0


def test_the_drain_rate_follows_over_ten_seconds() -> None:
    """A second counts for a tenth; between two looks nothing changes."""
    rate = DrainRate()
    rate.per_second(0, START)
    rate.per_second(40, START + SECOND)
    assert rate.per_second(90, START + 2 * SECOND - 1) == 40.0
    assert rate.per_second(90, START + 2 * SECOND) == pytest.approx(41.0)
    assert rate.per_second(190, START + 7 * SECOND) == pytest.approx(30.5), "half of it: twenty a second"
    assert rate.per_second(190, START + 17 * SECOND - 1) == pytest.approx(0.0, abs=1e-6)


def test_a_drain_rate_of_long_ago_is_forgotten() -> None:
    """A night without calls is no slow server: who is refused in the morning is not told to wait for half a minute."""
    rate = DrainRate()
    rate.per_second(0, START)
    assert rate.per_second(40, START + SECOND) == 40.0
    assert rate.per_second(50, START + 11 * SECOND) == 0.0
    assert rate.per_second(80, START + 12 * SECOND) == 30.0


def test_places_that_come_free_are_known_without_counting_them() -> None:
    """All that were accepted, but joiners, which take no place, and those that have no outcome."""
    core = Driver(DispatcherConfig(max_in_flight=8))
    core.submit(target=pod("first"))
    for number in range(8):
        core.submit(target=pod(str(number)), idempotency_key="k" if number > 5 else None)
    core.submit(target=pod("7"), idempotency_key="k")
    for _ in range(4):
        started = core.start()
        assert started is not None
        core.succeed(started)
    admission = core.core.admission
    assert (admission.tickets, admission.joins, admission.depth) == (10, 1, 5)
    assert admission.drained_per_second(core.now) == 4.0
    core.finish()


def settling(rate: float, depth: int, **fields: Any) -> Admission:
    """So many calls are accepted; so many have ended in each of the last four seconds, up to START + 4 s."""
    admission = Admission(DispatcherConfig(**{"capacity": 100, "reserve": 0.0, **fields}), 1)
    admission.drained_per_second(START)
    for _ in range(depth):
        admission.entered(Flow("f", FlowQuota()))
    admission.tickets = depth + round(rate * 4)
    return admission


@pytest.mark.parametrize(
    ("rate", "depth", "seconds"),
    [
        (5.0, 100, 11 / 5.0),
        (5.0, 104, 15 / 5.0),  # four more must leave before
        (0.25, 100, 30.0),
        (1_000.0, 100, 0.05),
        (0.0, 100, 1.0),
    ],
)
def test_retry_after_is_exact(rate: float, depth: int, seconds: float) -> None:
    """(places + a tenth of the capacity) / rate, between 0.05 and 30 s; 1 s while nothing is known."""
    with pytest.raises(Backpressure) as full:
        settling(rate, depth).admit(Flow("f", FlowQuota()), 0, False, START + 4 * SECOND)
    assert full.value.retry_after == pytest.approx(seconds)


def test_one_place_is_enough_for_a_flow_an_object_or_a_joiner() -> None:
    """`retry_after` of these, however much else waits."""
    admission, now, flow = settling(5.0, 90, max_joined=1), START + 4 * SECOND, Flow("f", FlowQuota(max_queued=1))
    flow.accepted = admission.joined = 1
    with pytest.raises(Backpressure) as of_flow:
        admission.admit(flow, 0, False, now)
    with pytest.raises(Backpressure) as of_joiner:
        admission.admit_joiner(now)
    refusals = [of_flow.value, of_joiner.value, admission.refuse_object(now, 32, 32)]
    assert [refusal.scope for refusal in refusals] == ["flow", "joined", "object"]
    assert [refusal.retry_after for refusal in refusals] == [pytest.approx(11 / 5.0)] * 3


@pytest.mark.parametrize("seed", range(40))
def test_who_is_shed_is_what_the_law_names(seed: int) -> None:
    """L4: of the levels below, lowest first: one with a deadline before `hopeless`, the nearest; else the newest of the
    lowest. Within a flow that is full only the second."""
    random = Random(seed)
    sheddables, waiting = Sheddables(3), dict[int, Entry]()
    flows = [Flow(name, FlowQuota()) for name in "fg"]
    group = Group("write", None, 3)
    for ticket in range(1, 40):
        if random.randrange(3) or not waiting:
            level, deadline, flow = random.randrange(3), random.randrange(7), random.choice(flows)
            entry = waiting[ticket] = Entry(None, Call(), ticket, ticket, level, deadline, flow, group)
            sheddables.add(entry)
        else:
            sheddables.remove(waiting.pop(random.choice(list(waiting))))
        level, hopeless, within = random.randrange(4), random.randrange(8), random.choice([None, *flows])
        below = [entry for entry in waiting.values() if entry.level < level and within in (None, entry.flow)]
        late = [entry for entry in below if entry.deadline < hopeless and within is None]
        chosen = sheddables.choose(level, hopeless, within)
        if late:
            assert chosen is min(late, key=lambda entry: (entry.level, entry.deadline, entry.ticket))
        else:
            assert chosen is min(below, key=lambda entry: (entry.level, -entry.ticket), default=None)
        assert len(sheddables) == len(waiting)


def test_the_deadlines_of_what_is_gone_are_dropped_in_time() -> None:
    """L19: no more of them are kept than of what waits, and eight; and not before that are they looked through."""
    sheddables, flow, group = Sheddables(1), Flow("f", FlowQuota()), Group("write", None, 1)
    entries = [Entry(None, Call(), ticket, ticket, 0, 1, flow, group) for ticket in range(1, 100)]
    for entry in entries[:5]:
        sheddables.add(entry)
    kept = []
    for entry in entries[5:]:
        sheddables.add(entry)
        kept.append(len(sheddables._deadlines[0]))
        sheddables.remove(entry)
    assert max(kept) == 2 * (5 + 1) + 8
    assert min(kept) == 5 + 1


def test_a_full_flow_makes_room_for_itself_when_all_is_full() -> None:
    """L4: one call goes for one: the flow's own, which makes room in both."""
    driver = small(reserve=0.0, flows={"a": FlowQuota(max_queued=2)})
    (less,) = fill(driver, 1, priority=LEVELS["lowest"], sheddable=True)
    fill(driver, 7)
    mine = fill(driver, 2, flow="a", priority=LEVELS["low"], sheddable=True)[-1]
    fill(driver, 1, flow="a", priority=LEVELS["high"])
    driver.outcome(mine, Shed)
    assert less.settled is None
    driver.finish()


@pytest.mark.parametrize(("timeout", "shed_first"), [(0.9, True), (1.1, False)])
def test_too_late_is_what_the_queue_takes(timeout: float, shed_first: bool) -> None:
    """L4: a call is hopeless whose deadline comes before all that is accepted will have ended at the present rate."""
    driver = small(reserve=0.0)
    for entry in fill(driver, 10):  # ten a second
        assert driver.start() is entry
        driver.succeed(entry)
        driver.advance(0.1)
    urgent = {"priority": LEVELS["low"], "sheddable": True}
    near = fill(driver, 1, timeout=timeout, **urgent)[0]
    last = fill(driver, 9, **urgent)[-1]
    fill(driver, 1, priority=LEVELS["high"])
    driver.outcome(near if shed_first else last, Shed)
    assert (near if not shed_first else last).settled is None
    driver.finish()


def test_a_hopeless_call_of_a_lower_level_goes_before_the_newest() -> None:
    """L4: of all levels below, but not of its own, and not one that has left already."""
    driver = small(reserve=0.0)
    for entry in fill(driver, 5):
        assert driver.start() is entry
        driver.succeed(entry)
        driver.advance(0.2)
    own = fill(driver, 1, priority=LEVELS["elevated"], sheddable=True, timeout=0.2)[0]
    left = fill(driver, 1, priority=LEVELS["low"], sheddable=True, timeout=0.3)[0]
    late = fill(driver, 1, priority=LEVELS["default"], sheddable=True, timeout=0.5)[0]
    fill(driver, 6, priority=LEVELS["lowest"], sheddable=True)
    driver.cancel(left)
    fill(driver, 2, priority=LEVELS["lowest"], sheddable=True)
    fill(driver, 1, priority=LEVELS["elevated"])
    driver.outcome(late, Shed)
    assert own.settled is None
    driver.finish()


def test_a_full_flow_tells_who_is_sheddable_in_it() -> None:
    """L4: within a full flow the newest of the lowest level; a full flow is shed from also when there is room."""
    driver = small(flows={"a": FlowQuota(max_queued=3)})
    low = [driver.submit(target=pod(n), flow="a", priority=LEVELS["low"], sheddable=True) for n in ("one", "two")]
    lowest = driver.submit(target=pod("three"), flow="a", priority=LEVELS["lowest"], sheddable=True)
    driver.submit(target=pod("four"), flow="a", priority=LEVELS["high"])
    driver.outcome(lowest, Shed)
    driver.submit(target=pod("five"), flow="a", priority=LEVELS["high"])
    driver.outcome(low[1], Shed)
    assert low[0].settled is None
    assert refused(driver, flow="a", priority=LEVELS["low"]).scope == "flow"
    driver.finish()


@pytest.mark.parametrize(("capacity", "reserve", "ordinary"), [(10, 0.25, 8), (10, 0.0, 10), (7, 0.2, 6)])
def test_the_reserve_is_rounded_down(capacity: int, reserve: float, ordinary: int) -> None:
    """L4: ordinary calls get what is left of the capacity."""
    driver = small(capacity=capacity, reserve=reserve)
    fill(driver, ordinary)
    assert refused(driver).depth == ordinary
    driver.finish()
