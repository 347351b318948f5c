"""Random operations over all features of the core, in virtual time: every law after every step.

`check_invariants` looks at each state, `history.py` at what led to it; at the end everything is closed, and nothing may
be left. The operations and what they draw are in `operations.py`.
"""

from random import Random
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.core.driver import Driver
from tests.core.operations import Operations, draw_config, play

# One seed for each step: what it draws is spread evenly, and a failing run shrinks to few steps.
RANDOM = st.randoms(use_true_random=True)


class CoreMachine(RuleBasedStateMachine):
    """The laws hold after every step, whatever the steps are."""

    driver: Driver
    operations: Operations

    @initialize(random=RANDOM)
    def configure(self, random: Random) -> None:
        self.driver = Driver(draw_config(random))
        self.operations = Operations(self.driver)

    # Few rules with much in each: Hypothesis leaves some out of every run.

    def do(self, random: Random, *names: str) -> None:
        getattr(self.operations, random.choice(names))(random)

    @rule(random=RANDOM, count=st.integers(1, 4))
    def submit(self, random: Random, count: int) -> None:
        for _ in range(count):
            self.do(random, "submit", "submit", "relate")

    @rule(random=RANDOM)
    def start(self, random: Random) -> None:
        self.operations.start(random)

    @precondition(lambda self: self.driver.flying or self.driver.reconciling)
    @rule(random=RANDOM, count=st.integers(1, 3))
    def report(self, random: Random, count: int) -> None:
        self.operations.stop(random)
        for _ in range(count):
            self.do(random, "succeed", "turn", "fail", "reconcile", "start")

    @rule(random=RANDOM)
    def let_time_pass(self, random: Random) -> None:
        self.do(random, "advance", "advance", "advance", "stall")

    @precondition(lambda self: not self.driver.core.closed)
    @rule(random=RANDOM)
    def meddle(self, random: Random) -> None:
        self.do(random, "begin", "begin", "change_context", "cancel", "cancel", "observe", "forget", "cancel_flow")

    @precondition(lambda self: self.driver.step > 150)
    @rule(random=RANDOM)
    def drain(self, random: Random) -> None:
        self.operations.drain(random)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.finish()


TestCore = cast(type, CoreMachine.TestCase)


@pytest.mark.parametrize("block", range(10))
def test_seeded_runs(block: int) -> None:
    """The same operations from plain seeds, with the frequencies of practice: most calls start and end."""
    for seed in range(block * 20, block * 20 + 20):
        play(seed, check=True)
