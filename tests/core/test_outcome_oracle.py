"""Laws L1, L8, L12 and L13 against an independent model of one object's lane: plain lists, driven by the same steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch.config import CallTypePolicy, DispatcherConfig
from asyncdispatch.outcomes import Cancelled, Failed, Overwritten, Skipped, Succeeded
from tests.core.driver import Driver
from tests.core.words import PERMANENT, RETRY, Call, Patch

SUPERSEDES = {("bind", "status"), ("bind", "note"), ("evict", "bind")}
TYPES = ("status", "status", "bind", "note", "evict")
CONFIG = DispatcherConfig(
    call_types={
        "bind": CallTypePolicy(supersedes=("status", "note")),
        "evict": CallTypePolicy(supersedes=("bind",)),
    },
    lane_capacity=1000,
    timeout=1e6,
    give_up=1e6,  # nobody is given up here
)
DELAY = 1.0

Told = tuple[type, Any]
"""An outcome, as far as the model tells it: its class, and its value, error, reason or `by`."""


@dataclass
class Execution:
    ticket: int
    call_type: str
    key: str | None
    fields: tuple[str, ...]
    handles: list[int]  # who wants it
    leavers: list[int] = field(default_factory=list)  # who wanted to leave it in flight
    parked: bool = False
    stopping: bool = False

    @property
    def mergeable(self) -> bool:
        return self.call_type == "status" and self.key is None


class Lane:
    """One object, read from the laws: what flies, what waits in line, and who was told what."""

    def __init__(self) -> None:
        self.flying: Execution | None = None
        self.line: list[Execution] = []
        self.told: dict[int, Told] = {}
        self.fields: dict[int, tuple[str, ...]] = {}  # of each handle's own call

    def tell(self, tickets: list[int], kind: type, what: Any) -> None:
        for ticket in tickets:
            assert ticket not in self.told, f"L1: the model itself tells {ticket} twice"
            self.told[ticket] = (kind, what)

    def executions(self) -> list[Execution]:
        return ([self.flying] if self.flying else []) + self.line

    def submit(self, ticket: int, call_type: str, key: str | None, fields: tuple[str, ...]) -> None:
        self.fields[ticket] = fields
        for other in self.executions():
            if key is not None and (other.call_type, other.key) == (call_type, key):
                other.handles.append(ticket)  # L8
                return
        new = Execution(ticket, call_type, key, fields, [ticket])
        if self.line and new.mergeable and self.line[-1].mergeable:  # L13
            last = self.line[-1]
            self.tell(last.handles, Overwritten, ticket)
            new.fields, new.parked = last.fields + fields, last.parked
            self.line[-1] = new
            return
        index = len(self.line)  # L12
        while index and (call_type, self.line[index - 1].call_type) in SUPERSEDES:
            index -= 1
        self.line.insert(index, new)

    def next(self) -> Execution | None:
        """L2, L12: the first in line, if nothing flies and it is not in backoff."""
        if self.flying is not None or not self.line or self.line[0].parked:
            return None
        self.flying = first = self.line.pop(0)
        if first.key is not None:
            first.fields = self.fields[first.handles[0]]  # L5: the call of the first handle that is left
        return first

    def succeed(self, value: Any) -> None:
        done = self._land()
        self.tell(done.handles, Succeeded, value)
        if done.handles:  # L12: only for a living handle
            for other in list(self.line):
                if (done.call_type, other.call_type) in SUPERSEDES:
                    self.line.remove(other)
                    for ticket in other.handles:
                        self.tell([ticket], Overwritten if ticket < done.ticket else Skipped, done.ticket)

    def fail(self, error: BaseException) -> None:
        self.tell(self._land().handles, Failed, error)

    def retry(self, *, parked: bool) -> None:
        """It comes back: in front of the line, but behind what has moved past it; a mergeable newer call absorbs it."""
        back = self._land()
        if not back.handles:
            return
        index = 0
        while index < len(self.line) and (self.line[index].call_type, back.call_type) in SUPERSEDES:
            index += 1
        newer = self.line[index] if index < len(self.line) else None
        if newer is not None and newer.mergeable and back.mergeable and newer.ticket > back.ticket and not newer.parked:
            self.tell(back.handles, Overwritten, newer.ticket)
            newer.fields, newer.parked = back.fields + newer.fields, parked
            return
        back.parked = parked
        self.line.insert(index, back)

    def cancel(self, ticket: int) -> None:
        for execution in self.executions():
            if ticket not in execution.handles:
                continue
            execution.handles.remove(ticket)
            if execution is self.flying and not execution.handles:
                execution.leavers.append(ticket)  # L11: told when the attempt has ended
                execution.stopping = True
                return
            self.tell([ticket], Cancelled, "cancelled")
            if not execution.handles:
                self.line.remove(execution)

    def _land(self) -> Execution:
        landed = self.flying
        assert landed is not None
        self.flying = None
        self.tell(landed.leavers, Cancelled, "cancelled")
        landed.leavers, landed.stopping = [], False
        return landed


def told(outcome: Any) -> Told:
    for name in ("by", "value", "error", "reason"):
        if hasattr(outcome, name):
            return type(outcome), getattr(outcome, name)
    raise AssertionError(outcome)


class Pair:
    """A core and the model, driven together; after each step both must have told the same."""

    def __init__(self) -> None:
        self.driver = Driver(CONFIG)
        self.lane = Lane()
        self.count = 0

    def agree(self) -> None:
        assert {ticket: told(outcome) for ticket, outcome in self.driver.outcomes.items()} == self.lane.told

    def submit(self, random: Random) -> None:
        self.count += 1
        call_type, key = random.choice(TYPES), random.choice((None, None, "k1", "k2"))
        fields = (str(self.count),)
        if call_type == "status":
            handle = self.driver.submit(Patch(call_type=call_type, idempotency_key=key, fields=fields))
        else:
            handle = self.driver.submit(Call(call_type=call_type, idempotency_key=key))
        self.lane.submit(handle.ticket, call_type, key, fields)

    def start(self, random: Random) -> None:
        entry, expected = self.driver.start(), self.lane.next()
        assert (entry.ticket if entry else None) == (expected.ticket if expected else None), "L12: another is next"
        if entry is not None and expected is not None:
            sent = self.driver.core.executable(entry)
            assert not isinstance(sent, Patch) or sent.fields == expected.fields, "L13: it sends other fields"

    def land(self, random: Random) -> None:
        flying = self.lane.flying
        if flying is None:
            return
        entry = self.driver.flying[flying.ticket]
        how = random.choice(("succeed", "succeed", "fail", "retry", "stop"))
        self.count += 1
        if how == "succeed":
            self.driver.succeed(entry, self.count)
            self.lane.succeed(self.count)
        elif how == "fail":
            error = ValueError(self.count)
            self.driver.fail(entry, PERMANENT, error=error)
            self.lane.fail(error)
        elif how == "retry":
            self.driver.fail(entry, RETRY, delay=DELAY)
            self.lane.retry(parked=True)
        elif flying.stopping:
            self.driver.stop(entry)
            self.lane.retry(parked=False)

    def cancel(self, random: Random) -> None:
        tickets = [ticket for execution in self.lane.executions() for ticket in execution.handles]
        if tickets:
            ticket = random.choice(tickets)
            assert self.driver.cancel(self.driver.handles[ticket])
            self.lane.cancel(ticket)

    def wait(self, random: Random) -> None:
        """Every backoff is over."""
        self.driver.advance(DELAY)
        for execution in self.lane.executions():
            execution.parked = False


STEPS = ("submit", "submit", "submit", "start", "start", "land", "land", "cancel", "wait")


def play(random: Random, steps: int) -> None:
    pair = Pair()
    for _ in range(steps):
        getattr(pair, random.choice(STEPS))(random)
        pair.agree()
    for _ in range(10 * pair.count):
        if not pair.lane.executions():
            break
        pair.wait(random)
        pair.start(random)
        pair.land(random)
        pair.agree()
    assert set(pair.lane.told) == set(pair.driver.handles), "L1: somebody was not told"


@given(st.randoms(use_true_random=False))
def test_one_object_tells_what_the_laws_say(random: Random) -> None:
    """L1, L8, L12, L13: every handle's outcome, and the order and content of what is sent, agree with the model."""
    play(random, 80)


def test_seeds() -> None:
    """The same from plain seeds."""
    for seed in range(200):
        play(Random(seed), 120)
