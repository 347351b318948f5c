"""Laws L6, L7 and L9 against a brute-force reading of them: which call must start next, by plain lists and `min`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch._core.states import Entry
from asyncdispatch.config import CallTypePolicy, DispatcherConfig, FlowQuota
from tests.core.driver import Driver
from tests.core.words import LEVELS, RETRY, SECOND, ns, pod

URGENCY = {"lowest": 0, "low": 1, "default": 2, "elevated": 4, "high": 5}
TYPES = ("a", "b")
FLOWS = ("f", "g", "h")

Rank = tuple[int, int, int]
"""Of what an execution's order is made: place − level·A, then the urgency that wins a tie, then the ticket."""


@dataclass
class Waiting:
    """One execution, as the laws see it."""

    ticket: int
    call_type: str
    flow: str
    lane: str
    key: str | None
    at: int
    level: int
    rank: Rank
    flying: bool = False

    @property
    def band(self) -> tuple[str, int]:
        return self.call_type, -self.rank[1]


class Reading:
    """The laws of order, read literally: everything is computed anew each time."""

    def __init__(self, config: DispatcherConfig) -> None:
        self.config = config
        self.aging = ns(config.aging)
        self.lanes: dict[str, list[Waiting]] = defaultdict(list)  # in order of acceptance; the first one flies or may
        self.drift: dict[tuple[tuple[str, int], str, str], list[Fraction]] = {}

    def rank(self, at: int, level: int, ticket: int) -> Rank:
        return at - level * self.aging, -level, ticket

    def all(self) -> list[Waiting]:
        return [waiting for lane in self.lanes.values() for waiting in lane]

    def hurry(self, waiting: Waiting, rank: Rank) -> None:
        """L9: an execution and all that stand before it in its lane are as urgent as its most urgent caller."""
        lane = self.lanes[waiting.lane]
        for each in lane[: lane.index(waiting) + 1]:
            each.rank = min(each.rank, rank)

    def accept(self, new: Waiting) -> None:
        self.lanes[new.lane].append(new)
        self.hurry(new, new.rank)

    def flying(self) -> list[Waiting]:
        return [waiting for waiting in self.all() if waiting.flying]

    def flow_is_full(self, flow: str) -> bool:
        limit = self.config.flows[flow].max_in_flight
        return limit is not None and sum(waiting.flow == flow for waiting in self.flying()) >= limit

    def type_is_full(self, call_type: str) -> bool:
        limit = self.config.call_types[call_type].max_in_flight
        return limit is not None and sum(waiting.call_type == call_type for waiting in self.flying()) >= limit

    def startable(self) -> list[Waiting]:
        """What lacks nothing but perhaps a total seat."""
        heads = [lane[0] for lane in self.lanes.values() if lane and not lane[0].flying]
        return [head for head in heads if not self.flow_is_full(head.flow) and not self.type_is_full(head.call_type)]

    def next_band(self) -> tuple[str, int] | None:
        """L6: the (type, level) whose oldest startable call has the smallest place − level·A."""
        startable = self.startable()
        return min(startable, key=lambda waiting: waiting.rank).band if startable else None

    def oldest(self, band: tuple[str, int], flow: str | None) -> Waiting:
        return min(
            (w for w in self.startable() if w.band == band and flow in (None, w.flow)), key=lambda waiting: waiting.rank
        )

    # -- fair share (law L7) ------------------------------------------------------------------------------------

    def backlog(self) -> dict[tuple[str, int], set[str]]:
        """By band: the flows that have a call which lacks at most a total seat (or one of its type)."""
        found = defaultdict(set)
        for lane in self.lanes.values():
            if lane and not lane[0].flying and not self.flow_is_full(lane[0].flow):
                found[lane[0].band].add(lane[0].flow)
        return found

    def charge(self, started: Waiting) -> None:
        """Count a start in every interval in which two flows both wait, and check how far they have drifted."""
        for (band, one, other), values in self.drift.items():
            if band == started.band and started.flow in (one, other):
                share = 1 / Fraction(self.config.flows[started.flow].weight)
                values.append(values[-1] + (share if started.flow == one else -share))
                bound = sum(1 / Fraction(self.config.flows[flow].weight) for flow in (one, other))
                assert max(values) - min(values) <= bound, f"L7: {one} and {other} drifted apart in {band}"

    def renew(self) -> None:
        """An interval lasts while both flows wait; a new one begins at zero."""
        backlog = self.backlog()
        pairs = {
            (band, one, other)
            for band, flows in backlog.items()
            for one, other in combinations([flow for flow in FLOWS if flow in flows], 2)
        }
        self.drift = {pair: self.drift.get(pair, [Fraction(0)]) for pair in pairs}


def play(random: Random, flows: tuple[str, ...], objects: int, steps: int) -> None:
    """Drive a core and the reading of the laws by the same operations."""
    pick = random.choice
    config = DispatcherConfig(
        max_in_flight=pick([1, 1, 2, 4]),
        aging=pick([0.25, 1.0, 4.0]),
        flows={flow: FlowQuota(max_in_flight=pick([None, None, 1, 2]), weight=pick([0.5, 1.0, 3.0])) for flow in FLOWS},
        call_types={name: CallTypePolicy(max_in_flight=pick([None, None, 1, 2])) for name in TYPES},
        lane_capacity=1000,
    )
    driver, reading = Driver(config, check=False), Reading(config)
    count = 0
    for _ in range(steps):
        what = pick(("submit", "submit", "submit", "start", "start", "end", "turn", "turn", "wait"))
        if what == "submit":
            count += 1
            name = f"p{random.randrange(objects)}" if objects else f"p{count}"
            submit(driver, reading, random, name, pick(flows))
        elif what == "start":
            start(driver, reading, one_flow=len(flows) == 1)
        elif what == "turn" and driver.flying:
            turn(driver, reading, random, one_flow=len(flows) == 1)
        elif what == "end" and driver.flying:
            end(driver, reading, random)
        elif what == "wait":
            driver.advance(pick((0.0, 0.1, 0.25, 1.0, 3.0)))
        reading.renew()
    while start(driver, reading, one_flow=len(flows) == 1) or driver.flying:
        reading.renew()
        if driver.flying:
            end(driver, reading, random, again=False)
        reading.renew()
    assert not reading.all(), "L6: something startable was left"


def submit(driver: Driver, reading: Reading, random: Random, name: str, flow: str) -> None:
    level, call_type = random.choice(list(LEVELS)), random.choice(TYPES)
    key = random.choice((None, None, "k"))
    handle = driver.submit(
        target=pod(name), call_type=call_type, flow=flow, priority=LEVELS[level], idempotency_key=key
    )
    rank = reading.rank(driver.now, URGENCY[level], handle.ticket)
    lane = reading.lanes[name]
    same = [waiting for waiting in lane if key is not None and (waiting.key, waiting.call_type) == (key, call_type)]
    if same:
        reading.hurry(same[0], rank)
    else:
        reading.accept(Waiting(handle.ticket, call_type, flow, name, key, driver.now, URGENCY[level], rank))


def start(driver: Driver, reading: Reading, *, one_flow: bool) -> bool:
    """Ask both which call starts; True if one did."""
    limit = reading.config.max_in_flight
    assert isinstance(limit, int)
    band = reading.next_band() if len(reading.flying()) < limit else None
    return check(reading, band, driver.start(), one_flow=one_flow)


def check(reading: Reading, band: tuple[str, int] | None, entry: Entry | None, *, one_flow: bool) -> bool:
    if band is None:
        assert entry is None, "L3: a call started without a seat"
        return False
    assert entry is not None, f"L6: nothing started, though {band} has a startable call"
    started = next(waiting for waiting in reading.all() if waiting.ticket == entry.ticket)
    assert started.band == band, f"L6: {started} started, but it is the turn of {band}"
    expected = reading.oldest(band, None if one_flow else started.flow)
    assert started is expected, f"L6: {started} started before {expected}"
    reading.charge(started)
    started.flying = True
    return True


def end(driver: Driver, reading: Reading, random: Random, *, again: bool = True) -> None:
    """An attempt succeeds, or fails and comes back with its older place (law L9)."""
    entry = random.choice(list(driver.flying.values()))
    waiting = next(waiting for waiting in reading.all() if waiting.ticket == entry.ticket)
    waiting.flying = False
    if again and random.choice((False, False, True)):
        driver.fail(entry, RETRY)
    else:
        driver.succeed(entry)
        reading.lanes[waiting.lane].remove(waiting)


def turn(driver: Driver, reading: Reading, random: Random, *, one_flow: bool) -> None:
    """An attempt succeeds and its seat passes on, in one step."""
    entry = random.choice(list(driver.flying.values()))
    waiting = next(waiting for waiting in reading.all() if waiting.ticket == entry.ticket)
    reading.lanes[waiting.lane].remove(waiting)
    reading.renew()
    limit = reading.config.max_in_flight
    assert isinstance(limit, int)
    band = reading.next_band() if len(reading.flying()) < limit else None
    check(reading, band, driver.turn(entry), one_flow=one_flow)


RANDOM = st.randoms(use_true_random=False)


@given(RANDOM)
def test_one_flow_starts_exactly_the_call_that_the_laws_name(random: Random) -> None:
    """L6: of every call that could start, it is the one with the smallest place − level·A."""
    play(random, ("f",), objects=0, steps=80)


@given(RANDOM)
def test_flows_share_within_the_band_that_aging_picks(random: Random) -> None:
    """L6 picks the (type, level); L7 bounds how far two flows drift apart in it; inside a flow the oldest is next."""
    play(random, FLOWS, objects=0, steps=120)


@given(RANDOM)
def test_ranks_are_inherited_along_a_lane(random: Random) -> None:
    """L9: whoever stands before a more urgent call, or is joined by one, is as urgent as that, and stays so."""
    play(random, ("f",), objects=3, steps=80)


@given(RANDOM)
def test_all_of_it_together(random: Random) -> None:
    """L6, L7, L9: flows, lanes, joins and retries at once."""
    play(random, FLOWS, objects=4, steps=120)


def test_seeds() -> None:
    """The same from plain seeds: longer, and more alike to practice."""
    for seed in range(24):
        random = Random(seed)
        play(random, FLOWS if seed % 2 else ("f",), objects=(0, 5)[seed % 4 // 2], steps=250)


def test_starvation_is_bounded() -> None:
    """L6, case D5: a lowest call is never passed by one accepted more than (levels apart)·A seconds after it."""
    driver = Driver(DispatcherConfig(max_in_flight=1, aging=0.2))
    oldest = [driver.submit(target=pod(f"low{i}"), priority=LEVELS["lowest"]) for i in range(3)]
    ended: list[int] = []
    number, begun = 0, driver.now
    for _ in range(400):
        for _ in range(2):  # two calls arrive in the time that one takes
            number += 1
            driver.submit(target=pod(f"n{number}"), priority=0)
        entry = driver.start()
        assert entry is not None
        driver.advance(0.01)
        if entry in oldest:
            ended.append(entry.ticket)
        elif entry.accepted > oldest[0].accepted:
            late = (driver.history.handles[entry.ticket].at - begun) / SECOND
            assert late <= 2 * 0.2
        driver.succeed(entry)
        if len(ended) == 3:
            break
    assert len(ended) == 3, "L6: starved"
    # The flood of twice the throughput holds them up for as long again as it may pass them.
    assert (driver.now - begun) / SECOND <= 2 * 2 * 0.2 * 1.1 + 0.03


def test_a_tie_goes_to_the_more_urgent_then_to_the_lower_ticket() -> None:
    """L6: accepted at one time A after the other, two calls have equal keys."""
    driver = Driver(DispatcherConfig(max_in_flight=1, aging=1.0))
    low = [driver.submit(target=pod(f"l{i}"), priority=LEVELS["low"]) for i in range(2)]
    driver.advance(1.0)
    urgent = [driver.submit(target=pod(f"u{i}"), priority=0) for i in range(2)]
    order = []
    while (entry := driver.start()) is not None:
        order.append(entry)
        driver.succeed(entry)
    assert order == [*urgent, *low]
