"""How members share shards, without asyncio: never two of one shard, in the end all of them, and fairly."""

import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncdispatch.kubernetes._election import LeaseState
from asyncdispatch.kubernetes._sharing import Sharing, shard_number
from tests.kubernetes.election_world import TIMING, Machine, Process, World


class Member:
    """A replica: its elections on one machine, a list every now and then, and shards handed over after a while."""

    def __init__(self, world: World, identity: str, total: int) -> None:
        self.world = world
        self.machine = Machine(world)
        self.sharing = Sharing(identity, total, TIMING, world.random.random)
        self.processes: dict[str, Process] = {}
        self.leaves = False
        self.look()

    def look(self) -> None:
        """One round."""
        if self.machine.crashed:
            return
        self.world.at(self.world.now + 2 * self.world.random.uniform(1, 2), self.look)
        if not self.machine.runs:
            return
        if self.leaves:
            for process in self.processes.values():
                process.release()
            return
        if not self.world.bad():
            leases = self.world.server.listed()
            shards = {n: record for name, record in leases.items() if (n := _number(name, "shard")) is not None}
            slots = {n: record for name, record in leases.items() if (n := _number(name, "slot")) is not None}
            self.sharing.listed(shards, slots, self.machine.now())
        for number in self.sharing.handing:
            when = self.world.now + self.world.random.uniform(0, 8)
            self.world.at(when, functools.partial(self.hand_over, number))
        self.step()

    def hand_over(self, number: int) -> None:
        if self.machine.runs and number in self.sharing.handing:
            self.sharing.shards[number].release(self.machine.now())
            self.step()

    def step(self) -> None:
        """Run all elections, each under the name of its Lease."""
        for kind, elections in (("shard", self.sharing.shards), ("slot", self.sharing.slots)):
            for number, election in enumerate(elections):
                name = f"{kind}-{number}"
                if name not in self.processes:
                    self.processes[name] = Process(self.world, election, name, self.machine)
                    self.world.processes.append(self.processes[name])
                if election.state is not LeaseState.IDLE:
                    self.processes[name].step()

    def leave(self) -> None:
        """Give everything back."""
        self.leaves = True

    def crash(self) -> None:
        self.machine.crashed = True
        for process in self.processes.values():
            self.world.processes.remove(process)

    def valid(self) -> list[str]:
        return [name for name, process in self.processes.items() if name.startswith("shard") and process.valid()]


def _number(name: str, kind: str) -> int | None:
    prefix, _, number = name.partition("-")
    return int(number) if prefix == kind else None


@settings(max_examples=settings().max_examples // 4)  # each is a world of its own
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 4),
    total=st.integers(1, 7),
    trouble=st.sampled_from([0.0, 0.1, 0.4]),
)
def test_never_two_and_in_the_end_all(seed, count, total, trouble):
    """Members come, leave, crash and stall, requests are lost: no shard has two owners; then all have one, fairly."""
    world = World(seed)
    world.trouble = trouble
    names = (f"m{number}" for number in itertools.count())
    members = [Member(world, next(names), total) for _ in range(count)]
    for _ in range(8):
        world.run(world.now + world.random.uniform(0, 20))
        what = world.random.choice(["join", "leave", "crash", "stall"])
        member = world.random.choice(members)
        if what == "join" or len(members) == 1:
            members.append(Member(world, next(names), total))
        elif what == "stall":
            member.machine.stalled_until = world.now + world.random.uniform(0, 40)
        else:
            members.remove(member)
            member.leave() if what == "leave" else member.crash()
    world.trouble = 0.0
    world.run(world.now + 150)
    owned = [member.valid() for member in members]
    assert sorted(name for names in owned for name in names) == [f"shard-{n}" for n in range(total)]
    sizes = [len(names) for names in owned]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_in_peace_nothing_moves(seed):
    """Once shared, shards stay where they are; the slots are as many as the members."""
    world = World(seed)
    members = [Member(world, name, 7) for name in "abc"]
    world.run(90)
    before = [member.valid() for member in members]
    assert sorted(map(len, before)) == [2, 2, 3]
    world.run(150)
    assert [member.valid() for member in members] == before
    assert sum(name.startswith("slot") for name in world.server.leases) == 3


def test_a_slot_is_taken_again():
    """Twenty members come and go: their slots don't add up."""
    world = World(3)
    for number in range(20):
        member = Member(world, f"m{number}", 2)
        world.run(world.now + 40)
        assert len(member.valid()) == 2
        member.leave() if number % 2 else member.crash()
        world.run(world.now + 10)
    assert sum(name.startswith("slot") for name in world.server.leases) <= 2


def test_a_newcomer_gets_its_share():
    """Those who have more hand over, after they have brought to an end what they had begun."""
    world = World(5)
    first = Member(world, "a", 6)
    world.run(30)
    assert len(first.valid()) == 6
    second = Member(world, "b", 6)
    world.run(60)
    assert (len(first.valid()), len(second.valid())) == (3, 3)
    assert not first.sharing.handing


def test_more_members_than_shards():
    """Some have nothing to do, and are there if another goes."""
    world = World(7)
    members = [Member(world, name, 2) for name in "abc"]
    world.run(60)
    assert sorted(len(member.valid()) for member in members) == [0, 1, 1]
    busy = next(member for member in members if member.valid())
    busy.crash()
    world.run(120)
    assert sorted(len(member.valid()) for member in members if member is not busy) == [1, 1]


def test_without_a_slot_nothing_is_claimed():
    """Others don't count on whom they can't see."""
    sharing = Sharing("me", 3, TIMING, lambda: 0.0)
    sharing.listed({}, {}, 0)
    assert sorted(slot.state.value for slot in sharing.slots) == ["candidate", *["idle"] * 7]
    assert {shard.state for shard in sharing.shards} == {LeaseState.IDLE}


def test_the_hash_is_for_ever():
    """Replicas of different versions must agree on it: these numbers never change."""
    assert [shard_number(f"ns/pod-{n}", 8) for n in range(8)] == HASHES
    counts = [0] * 10
    for number in range(10_000):
        counts[shard_number(f"ns/pod-{number}", 10)] += 1
    assert max(counts) < 1_120
    assert min(counts) > 880


HASHES = [1, 0, 7, 6, 2, 4, 6, 6]


@pytest.mark.parametrize("key", ["", "ns/p", "é/ü", "x" * 10_000])
def test_any_key_has_a_shard(key):
    """Whatever it is made of."""
    assert 0 <= shard_number(key, 3) < 3
