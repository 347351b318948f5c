"""Laws L6 and L7 in the ordering alone: its dense lists say what plain lists say, after whatever happened to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from asyncdispatch._core.ordering import Group, Older, Ordering
from asyncdispatch._core.seats import Flow
from asyncdispatch._core.states import QUEUED, Entry, place_of
from asyncdispatch.config import FlowQuota
from tests.core.words import START, Call

LEVELS = 8
AGING = 2
"""Nanoseconds, so that ties and what is next to a tie are frequent."""

USUAL = 10
"""Nanoseconds that an attempt usually takes."""

WEIGHTS = {"f": 1.0, "g": 0.5, "h": 3.0}


@dataclass
class Turns:
    """How the flows of one call type and level take turns: start-time fair queueing, read literally."""

    service: int = 0
    tags: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # who wins a tie of tags

    def enter(self, flow: Flow) -> None:
        if flow.name not in self.tags:
            self.order.append(flow.name)
            self.tags[flow.name] = self.service + flow.increment

    def start(self, flow: Flow) -> None:
        self.service = max(self.service, self.tags[flow.name])
        self.tags[flow.name] += flow.increment

    def leave(self, flow: Flow) -> None:
        last = self.order.pop()
        if last != flow.name:
            self.order[self.order.index(flow.name)] = last
        del self.tags[flow.name]
        if not self.order:
            self.service = 0

    def come_back(self, flow: Flow) -> None:
        if flow.name in self.tags:
            self.tags[flow.name] = self.service + flow.increment


class Play:
    """An `Ordering` and plain lists, side by side."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.ordering = Ordering(LEVELS, AGING)
        self.levels = random.choice(((7,), (0, 7), range(LEVELS)))
        names = random.choice(("f", "fg", "fgh"))
        self.flows = {name: Flow(name, FlowQuota(weight=WEIGHTS[name])) for name in names}
        self.crowd = random.choice((8, 40))  # how many wait before others start
        self.groups = {name: self.group(name, random.choice((None, 2))) for name in random.choice(("x", "xy"))}
        self.waiting: list[Entry] = []
        self.turns: dict[tuple[str, int], Turns] = {}
        self.blocked: set[str] = set()
        self.now = START
        self.ticket = 0

    @staticmethod
    def group(name: str, limit: int | None) -> Group:
        group = Group(name, limit, LEVELS)
        group.usual = USUAL
        return group

    # -- the plain reading ----------------------------------------------------------------------------------------

    def key(self, entry: Entry) -> tuple[int, int, int]:
        """L6: place − level·A; a tie goes to the more urgent, then to the older."""
        when, ticket = entry.rank >> 27, entry.rank & (1 << 24) - 1
        return when - entry.level * AGING, -entry.level, ticket

    def startable(self) -> list[Entry]:
        return [e for e in self.waiting if e.flow.name not in self.blocked and not e.group.full]

    def next(self) -> Entry | None:
        startable = self.startable()
        if not startable:
            return None
        first = min(startable, key=self.key)
        band = [e for e in startable if (e.group, e.level) == (first.group, first.level)]
        turns = self.band(first)
        flows = [name for name in turns.order if name not in self.blocked]
        turn = min(flows, key=lambda name: turns.tags[name])
        return min((e for e in band if e.flow.name == turn), key=lambda e: e.rank)

    def band(self, entry: Entry) -> Turns:
        return self.turns.setdefault((entry.group.name, entry.level), Turns())

    def gone(self, entry: Entry) -> None:
        self.waiting.remove(entry)
        if not any((e.flow, e.group, e.level) == (entry.flow, entry.group, entry.level) for e in self.waiting):
            self.band(entry).leave(entry.flow)

    # -- what happens ---------------------------------------------------------------------------------------------

    def push(self, entry: Entry) -> None:
        self.band(entry).enter(entry.flow)
        self.waiting.append(entry)
        self.ordering.push(entry, entry.flow.name in self.blocked)

    def submit(self) -> None:
        pick = self.random.choice
        self.ticket += 1
        self.now += pick((0, 1, 2, 20))
        flow, group = pick(list(self.flows.values())), pick(list(self.groups.values()))
        place = place_of(self.now, self.ticket)
        deadline = self.now + pick((USUAL, 1_000, 1_000, 1_000))
        entry = Entry(None, Call(), self.ticket, place, pick(self.levels), deadline, flow, group)
        entry.phase = QUEUED
        entry.common = self.random.random() < 0.9
        if self.random.random() < 0.1:
            entry.rare()
        self.push(entry)

    def leave(self) -> None:
        """One is cancelled, or comes back with an older place, perhaps at another level (law L9)."""
        if not self.waiting:
            return
        entry = self.random.choice(self.waiting)
        queue = entry.at.queue if isinstance(entry.at, Older) else entry.at
        assert queue is not None
        self.ordering.remove(entry)
        assert len(queue.fifo) + len(queue.heap) <= 2 * queue.live + 8 or not queue.live, "P7: the dead outnumber it"
        self.gone(entry)
        what = self.random.choice(("gone", "again", "again", "older", "level"))
        if what == "older":
            entry.rank = min(entry.rank, place_of(self.now - self.random.randrange(40), entry.ticket))
        elif what == "level":
            entry.level = self.random.choice(self.levels)
        if what != "gone":
            self.push(entry)

    def start(self) -> None:
        expected = self.next()
        entry = self.ordering.pick()
        assert entry is expected
        if entry is not None:
            short = self.random.random() < 0.8
            simple = entry.common and entry.more is None and entry.deadline - self.now > 2 * USUAL
            taken = self.ordering.take_common(self.now) if short else None
            if taken is None:
                self.ordering.take(entry)
            else:
                assert taken is entry, "the short way has taken another one"
                assert simple, "the short way is for common calls with time enough"
            assert entry.at is None
            self.band(entry).start(entry.flow)
            self.gone(entry)
            entry.group.in_flight += 1
            if entry.group.full:
                self.ordering.refresh_group(entry.group)

    def end(self) -> None:
        group = self.random.choice(list(self.groups.values()))
        if group.in_flight:
            group.in_flight -= 1
            self.ordering.refresh_group(group)

    def block(self) -> None:
        """A flow becomes full, or has a seat again; it comes back without credit (law L7)."""
        flow = self.random.choice(list(self.flows.values()))
        self.blocked ^= {flow.name}
        blocked = flow.name in self.blocked
        if not blocked:
            for turns in self.turns.values():
                turns.come_back(flow)
        for queue in flow.queues:
            self.ordering.refresh(queue, blocked)
            self.ordering.refresh(queue, blocked)  # to be told twice changes nothing

    def drop(self) -> None:
        """A call type that has nothing ready is forgotten, and comes back as a new one."""
        for name, group in self.groups.items():
            if not any(e.group is group for e in self.waiting):
                self.ordering.drop(group)
                self.groups[name] = self.group(name, group.limit)
                for band in [band for band in self.turns if band[0] == name]:
                    del self.turns[band]

    def step(self) -> None:
        full = len(self.waiting) > self.random.randrange(self.crowd)
        weights = {
            self.submit: 2 if full else 20,
            self.leave: 9 if full else 3,
            self.start: 9,
            self.end: 9,
            self.block: 2,
            self.drop: 1,
        }
        self.random.choices(list(weights), list(weights.values()))[0]()
        assert self.ordering.pick() is self.next()
        assert self.ordering.startable == bool(self.startable())
        assert len(self.ordering) == len(self.waiting)
        assert {e.ticket for e in self.ordering.entries()} == {e.ticket for e in self.waiting}
        assert len(list(self.ordering.entries())) == len(self.waiting)


@pytest.mark.parametrize("seed", range(4))
def test_the_dead_are_few_and_the_order_stays(seed: int) -> None:
    """P7: of a hundred calls most leave, or come back with an older place; what is left of them is at most as much
    again as lives, and eight; and the oldest goes first (L6)."""
    random = Random(seed)
    ordering, group, flow = Ordering(LEVELS, AGING), Play.group("x", None), Flow("f", FlowQuota())
    waiting = []
    for ticket in range(1, 101):
        entry = Entry(None, Call(), ticket, place_of(START + 100 * ticket, ticket), 3, 1 << 90, flow, group)
        waiting.append(entry)
        ordering.push(entry, False)
    (queue,) = flow.queues
    for _ in range(160):
        entry = random.choice(waiting[1:])
        ordering.remove(entry)
        if random.randrange(2):
            entry.rank = place_of((entry.rank >> 27) - random.randrange(100), entry.ticket)
            ordering.push(entry, False)
        else:
            waiting.remove(entry)
            assert len(queue.fifo) + len(queue.heap) <= 2 * queue.live + 8
        assert sorted(e.ticket for e in ordering.entries()) == sorted(e.ticket for e in waiting)
        if len(waiting) < 9:
            break
    for expected in sorted(waiting, key=lambda entry: entry.rank):
        assert ordering.pick() is expected
        ordering.take(expected)
    assert ordering.pick() is None


@pytest.mark.parametrize("dropped", ["x", "y", "z", "xz", "zyx"])
def test_a_dropped_call_type_leaves_nothing(dropped: str) -> None:
    """L19: none of its levels; and the order of the others, and of a new one of that name, is what it was (L6)."""
    ordering, flow = Ordering(LEVELS, AGING), Flow("f", FlowQuota())
    groups = {name: Play.group(name, None) for name in "xyz"}
    tickets = iter(range(1, 100))

    def push(name: str, level: int) -> Entry:
        ticket = next(tickets)
        entry = Entry(None, Call(), ticket, place_of(START, ticket), level, 1 << 90, flow, groups[name])
        ordering.push(entry, False)
        return entry

    def taken() -> list[Entry]:
        found = []
        while (entry := ordering.pick()) is not None:
            ordering.take(entry)
            found.append(entry)
        return found

    for name in "xyz":
        push(name, 2)
        push(name, 6)
    assert len(taken()) == 6
    kept = [push(name, 6) for name in "xyz" if name not in dropped]
    for name in dropped:
        ordering.drop(groups[name])
        groups[name] = Play.group(name, None)
    assert {band.group.name for band in ordering.bands()} == {*"xyz"} - {*dropped}
    low = [push(name, 2) for name in "xyz"]
    high = [push(name, 6) for name in "xyz"]
    assert taken() == [*kept, *high, *low]
    lists = [value for name in Ordering.__slots__ if isinstance(value := getattr(ordering, name), list)]
    assert {len(each) for each in lists} == {6}, "three types, two levels"


@pytest.mark.parametrize("flows", ["f", "fg", "fgh"])
@pytest.mark.parametrize("levels", [(3,), (3, 5)])
def test_common_calls_take_the_short_way(flows: str, levels: tuple[int, ...]) -> None:
    """What most starts cost: nothing common is refused by it, neither the first nor the last of a flow."""
    ordering, group = Ordering(LEVELS, AGING), Play.group("x", None)
    owners = [Flow(name, FlowQuota()) for name in flows]
    for ticket in range(1, 13):
        flow, level = owners[ticket % len(owners)], levels[ticket % len(levels)]
        entry = Entry(None, Call(), ticket, place_of(START, ticket), level, START + 2 * USUAL + 1, flow, group)
        entry.common = True
        ordering.push(entry, False)
    served = []
    for _ in range(12):
        expected = ordering.pick()
        assert expected is not None
        served.append(expected.level)
        assert ordering.take_common(START + 1) is None, "there is just no time enough"
        assert ordering.take_common(START) is expected
    assert ordering.take_common(START) is None
    assert len(ordering) == 0
    assert served == sorted(served, reverse=True)


@pytest.mark.parametrize("seed", range(14))
def test_the_dense_lists_say_what_plain_lists_say(seed: int) -> None:
    """L6, L7: which call is next, after any pushes, starts, departures, full flows and full call types."""
    play = Play(Random(seed))
    for _ in range(200):
        play.step()
    while play.waiting:
        play.blocked.clear()
        for flow in play.flows.values():
            for queue in flow.queues:
                if queue.blocked:
                    play.band(next(iter(queue.entries()))).come_back(flow)
                play.ordering.refresh(queue, False)
        for group in play.groups.values():
            group.in_flight = 0
            play.ordering.refresh_group(group)
        play.start()
    assert not len(play.ordering)
    assert not any(flow.queues for flow in play.flows.values())
