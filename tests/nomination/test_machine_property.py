"""The laws N1 to N16 on random histories: a scheduler that does what it likes, lost and doubled answers, restarts."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch.nomination.states import TERMINAL
from asyncdispatch.nomination.states import NominationState as S
from tests.nomination.world import OPERATIONS, SLACK, World, populate, require


def run(random: Random, steps: int, *, recomputes: bool) -> World:
    world = World(random, recomputes=recomputes)
    populate(world)
    for _ in range(steps):
        random.choice(OPERATIONS)(world)
        world.step()
    return world


def finish(world: World) -> None:
    """Calm for longer than any TTL: nothing of ours is left (N8, N12), all is told (N9)."""
    longest = world.policy.max_ttl + 30.0 + world.policy.adoption_slack + SLACK
    world.settle(2 * longest)
    machine = world.machine
    left = {name: key for name, key in world.own_values().items() if key not in world.adopted}
    require(not left, "N8", f"hints that outlive their TTL: {left}")
    require(not machine.lives, "N9", f"decisions without an outcome: {list(machine.lives.values())}")
    require(all(count == 1 or key for key, count in world.settled.items()), "N9")
    require(set(world.outcomes) <= set(TERMINAL), "N9")


@given(random=st.randoms(use_true_random=False), steps=st.integers(1, 150), recomputes=st.booleans())
def test_laws_on_random_histories(random: Random, steps: int, recomputes: bool) -> None:
    """Whatever happens, in whatever order."""
    finish(run(random, steps, recomputes=recomputes))


@pytest.mark.parametrize("seed", range(60))
def test_laws_on_long_histories(seed: int) -> None:
    """Longer ones, by seed."""
    finish(run(Random(seed), 300, recomputes=bool(seed % 2)))


def test_every_outcome_is_reached() -> None:
    """The random histories go through the whole table."""
    seen: set[S] = set()
    for seed in range(60):
        seen |= set(run(Random(seed), 300, recomputes=bool(seed % 2)).outcomes)
    assert set(TERMINAL) - seen <= {S.LEFT}
