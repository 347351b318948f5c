"""The election without asyncio: in a world of faults no two hold the Lease at one time, and in the end one does."""

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes._election import (
    TRANSITIONS,
    Election,
    Event,
    Kind,
    LeaseState,
    LeaseTiming,
    Record,
    Refusal,
    Refused,
)
from tests.kubernetes.election_world import TIMING, Machine, World

CONFLICT = Refused(Refusal.CONFLICT, "")
MISSING = Refused(Refusal.MISSING, "")
FAILED = Refused(Refusal.FAILED, "")


def disturb(world: World, names: Any) -> None:
    """One event that nobody has asked for."""
    draw = world.random
    process = draw.choice(world.processes)
    there = "lease" in world.server.leases
    what = draw.choice(["stall", "crash", "release", "seek", "delete", "nothing"])
    if what == "stall":
        process.stall(draw.uniform(0, 40))
    elif what == "crash" and there:
        process.machine.crashed = True
        world.processes.remove(process)
        world.add(next(names))
    elif what == "release":
        process.release()
    elif what == "seek":
        process.wants = True
        process.step()
    elif what == "delete" and there and all(p.election.view.present for p in world.processes):
        # Who has not seen this Lease can't know that there was one: see the docs.
        del world.server.leases["lease"]


@given(seed=st.integers(0, 2**32), count=st.integers(2, 4), trouble=st.sampled_from([0.0, 0.05, 0.2, 0.5]))
def test_no_two_hold_it_and_in_the_end_one_does(seed, count, trouble):
    """Lost, late and repeated requests, stalls, crashes, deletions, clocks that differ: never two terms at one time.

    (Each process checks that whenever a term of its own begins or is extended.) Once the trouble is over, one leads
    within the duration of the Lease and what a slow clock adds.
    """
    world = World(seed)
    world.trouble = trouble
    names = (f"p{number}" for number in itertools.count())
    for _ in range(count):
        world.add(next(names))
    for _ in range(20):
        world.run(world.now + world.random.uniform(0, 15))
        disturb(world, names)
    world.trouble = 0.0
    for process in world.processes:
        process.machine.stalled_until = 0.0
        process.wants = True
        process.step()
    world.run(world.now + 60)
    assert sum(process.valid() for process in world.processes) == 1


@given(seed=st.integers(0, 2**32))
def test_who_holds_it_keeps_it(seed):
    """In peace there is one term and no other: candidates look, and leave it alone."""
    world = World(seed)
    first = world.add("a")
    world.run(3)
    world.add("b")
    world.add("c")
    world.run(60)
    assert first.valid()
    assert [sum(event == "acquired" for _, event in p.terms) for p in world.processes] == [1, 0, 0]


@given(seed=st.integers(0, 2**32))
def test_a_release_is_taken_up_soon(seed):
    """Who gives it back makes way within a candidate's pause."""
    world = World(seed)
    first = world.add("a")
    world.run(3)
    second = world.add("b")
    world.run(20)
    first.release()
    world.run(20 + 6)
    assert second.valid()
    assert first.election.state is LeaseState.IDLE


def test_the_world_notices_two_leaders():
    """The check can fail: a candidate that doesn't wait for the duration is found out."""
    world = World(1)
    world.add("a")
    world.run(3)
    rival = world.add("b")
    rival.election._free_at = lambda: -1e9  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="a"):
        world.run(30)


# ---- single scenes ---------------------------------------------------------------------------------------------------


class Scene:
    """An election and a server of one's own hand."""

    def __init__(self, timing: LeaseTiming = TIMING) -> None:
        self.election = Election("me", timing, lambda: 0.0)
        self.version = 0

    def lease(self, holder: str = "me", **spec: Any) -> Record:
        self.version += 1
        filled = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": self.version, **spec}
        return Record({"metadata": {"resourceVersion": str(self.version)}, "spec": filled})

    def asks(self, now: float) -> Kind | None:
        request = self.election.next(now)
        return request.kind if request is not None else None

    def events(self) -> list[Event]:
        changes, self.election.changes = self.election.changes, []
        return [change.event for change in changes]

    def leading(self) -> "Scene":
        """The term of who found no Lease at 0."""
        self.election.seek(0)
        assert self.asks(0) is Kind.READ
        self.election.answered(MISSING, 0.1)
        assert self.asks(0.1) is Kind.CREATE
        self.election.answered(self.lease(), 0.5)
        self.events()
        return self


def test_the_term_counts_from_the_sending():
    """The answer took 0.4 s: the term is that much shorter (rule R7)."""
    scene = Scene().leading()
    assert scene.election.state is LeaseState.LEADING
    assert scene.election.valid_until == pytest.approx(10.1)
    assert scene.asks(2.0) is None
    assert scene.asks(2.1) is Kind.RENEW
    scene.election.answered(scene.lease(), 4)
    assert scene.election.valid_until == pytest.approx(12.1)


def test_an_answer_after_the_end_is_no_extension():
    """A stalled loop finds a good answer and a term that is over: the clock is compared first."""
    scene = Scene().leading()
    assert scene.asks(9) is Kind.RENEW
    scene.election.answered(scene.lease(), 10.2)
    assert scene.events() == [Event.LOST]
    assert scene.election.state is LeaseState.IDLE


def test_an_acquisition_that_took_too_long_is_none():
    """Its term would be over already: it is renewed first, and leads by that."""
    scene = Scene()
    scene.election.seek(0)
    scene.asks(0)
    scene.election.answered(MISSING, 0)
    scene.asks(0)
    scene.election.answered(scene.lease(), 11)
    assert scene.election.state is LeaseState.CANDIDATE
    assert scene.asks(11) is Kind.CLAIM
    scene.election.answered(scene.lease(), 11.1)
    assert scene.election.valid_until == 21


def test_a_conflict_with_ourselves():
    """409 on a renewal: read; we hold it, so go on with the new version at once, and with the old end until then."""
    scene = Scene().leading()
    scene.asks(2.1)
    scene.election.answered(CONFLICT, 2.2)
    assert scene.asks(2.2) is Kind.READ
    renewed = scene.lease()
    scene.election.answered(renewed, 2.3)
    assert scene.election.valid_until == pytest.approx(10.1)
    request = scene.election.next(2.3)
    assert request is not None
    assert (request.kind, request.base) == (Kind.RENEW, renewed)
    scene.election.answered(scene.lease(), 2.4)
    assert scene.events() == [Event.EXTENDED]


def test_conflicts_do_not_go_in_circles():
    """Somebody writes to the Lease without pause: a read and a write, twice per retry period, are all there is."""
    scene = Scene().leading()
    requests, now = 0, 2.1
    while now < 10:
        if (kind := scene.asks(now)) is not None:
            requests += 1
            scene.election.answered(scene.lease() if kind is Kind.READ else CONFLICT, now)
        now += 0.05
    assert requests <= 4 * (8 / TIMING.retry_period)


@pytest.mark.parametrize("answer", ["other", "nobody", "deleted"])
@pytest.mark.parametrize("first", [CONFLICT, MISSING, FAILED])
def test_lost_at_once(first, answer):
    """What is read after a failed renewal is somebody else's, nobody's or nothing: the term is over now."""
    scene = Scene().leading()
    scene.asks(2.1)
    scene.election.answered(first, 3)
    now = scene.election.wake_at()
    assert scene.asks(now) is Kind.READ
    answers: dict[str, Record | Refused] = {
        "other": scene.lease("other"),
        "nobody": scene.lease(""),
        "deleted": MISSING,
    }
    scene.election.answered(answers[answer], now)
    assert scene.events() == [Event.LOST]
    assert scene.asks(now + 60) is None


def test_renewals_are_tried_until_the_deadline():
    """No answer comes: each try has a third of the deadline, the last one what is left, and then it is lost."""
    scene = Scene().leading()
    now, sent = 2.1, []
    while scene.election.state is LeaseState.LEADING:
        request = scene.election.next(now)
        if request is None:
            now = scene.election.wake_at()
            continue
        sent.append((round(request.sent, 2), round(request.deadline - request.sent, 2)))
        now = request.deadline
        scene.election.answered(FAILED, now)
    assert sent == [(2.1, 3.33), (5.43, 3.33), (8.77, 1.33)]
    assert now == pytest.approx(10.1)


def test_a_candidate_waits_from_what_it_saw():
    """The clock of the holder is years off: what counts is for how long we have seen no change."""
    scene = Scene()
    scene.election.seek(100)
    scene.asks(100)
    old = scene.lease("other", renewTime="1999-01-01T00:00:00Z")
    scene.election.answered(old, 100)
    now = 100.0
    kinds: list[Kind | None] = []
    while not kinds or kinds[-1] is not Kind.CLAIM:
        now = scene.election.wake_at()
        kinds.append(scene.asks(now))
        if kinds[-1] is Kind.READ:
            scene.election.answered(old, now)
    assert now == 115
    assert kinds.count(Kind.READ) <= 8


def test_a_label_is_no_sign_of_life():
    """Only what the holder writes counts as a change."""
    scene = Scene()
    scene.election.seek(0)
    scene.asks(0)
    scene.election.answered(scene.lease("other", renewTime="x"), 0)
    scene.asks(2)
    scene.election.answered(scene.lease("other", renewTime="x"), 2)
    assert scene.election.view.since == 0


def test_a_deleted_lease_is_waited_out():
    """Its holder may not have noticed yet: who had seen it takes a deleted Lease only after its duration."""
    scene = Scene()
    scene.election.seek(0)
    scene.asks(0)
    scene.election.answered(scene.lease("other"), 0)
    scene.asks(2)
    scene.election.answered(MISSING, 2)
    assert scene.asks(4) is Kind.READ
    scene.election.answered(MISSING, 4)
    while (kind := scene.asks(now := scene.election.wake_at())) is Kind.READ:
        scene.election.answered(MISSING, now)
    assert (kind, now) == (Kind.CREATE, 17)


@pytest.mark.parametrize(
    "spec",
    [{}, {"holderIdentity": 3}, {"leaseDurationSeconds": -1, "holderIdentity": "x"}, None, {"leaseTransitions": "x"}],
)
def test_a_senseless_lease(spec):
    """Others may write anything: what makes no sense counts as not said."""
    record = Record({"spec": spec} if spec is not None else {})
    assert record.holder in ("", "x")
    assert record.transitions == 0
    assert record.duration(15) == 15


@pytest.mark.parametrize("claimed", ["in flight", "in doubt", "unknown"])
def test_a_candidate_that_withdraws(claimed):
    """What it has asked for may be granted late: then it is given back. Who has asked for nothing is done at once."""
    scene = Scene()
    scene.election.seek(0)
    scene.asks(0)
    if claimed == "unknown":
        scene.election.release(0.5)
        assert scene.events() == [Event.SEEK, Event.RELEASE, Event.RELEASED]
        scene.election.answered(MISSING, 1)
        assert scene.asks(60) is None
        return
    scene.election.answered(MISSING, 0)
    assert scene.asks(0) is Kind.CREATE
    if claimed == "in doubt":
        scene.election.answered(FAILED, 0.5)
    scene.election.release(1)
    if claimed == "in flight":
        scene.election.answered(scene.lease(), 1.1)
    else:
        assert scene.asks(1) is Kind.READ
        scene.election.answered(scene.lease(), 1.1)
    assert scene.asks(1.2) is Kind.RELEASE
    scene.election.answered(scene.lease(""), 1.3)
    assert scene.election.state is LeaseState.IDLE


def test_a_release_does_not_take_for_ever():
    """The server does not answer: after the time of one request it is left to run out."""
    scene = Scene().leading()
    scene.election.release(3)
    assert scene.election.valid_until < 0
    assert scene.asks(3) is Kind.RELEASE
    scene.election.answered(FAILED, 4)
    scene.election.tick(3 + TIMING.request_timeout)
    assert scene.events() == [Event.RELEASE, Event.RELEASED]


def test_the_table_is_all_there_is():
    """Each state can be left, each event happens somewhere, and what is not in the table is a defect."""
    assert {state for state, _ in TRANSITIONS} == set(LeaseState)
    assert {event for _, event in TRANSITIONS} == set(Event)
    with pytest.raises(KeyError):
        Scene().election._go(Event.LOST)


# ---- timing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "field"),
    [
        ({"lease_duration": 10}, "lease_duration"),
        ({"lease_duration": 15.5}, "lease_duration"),
        ({"lease_duration": "15"}, "lease_duration"),
        ({"renew_deadline": 0}, "renew_deadline"),
        ({"renew_deadline": 2.4}, "renew_deadline"),
        ({"retry_period": 9}, "renew_deadline"),
        ({"retry_period": float("nan")}, "retry_period"),
        ({"retry_period": True}, "retry_period"),
    ],
)
def test_timings_that_can_not_be_meant(given_, field):
    """As client-go has it: duration above deadline above the jittered period; the error says which and why."""
    with pytest.raises(ConfigurationError) as caught:
        LeaseTiming(**given_)
    assert caught.value.field == field


def test_the_usual_timing():
    """client-go's numbers, and a request's time-out of a third of the deadline."""
    timing = LeaseTiming()
    assert (timing.lease_duration, timing.renew_deadline, timing.retry_period) == (15, 10, 2)
    assert timing.request_timeout == pytest.approx(10 / 3)


def test_processes_have_clocks_of_their_own():
    """So that the random runs mean something: no two agree on the time, nor on how fast it goes."""
    world = World(random.Random(0).randrange(100))
    first, second = Machine(world), Machine(world)
    assert first.rate != second.rate
    assert first.now() != second.now()
