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

RANDOM = st.randoms(use_true_random=False)


class CoreMachine(RuleBasedStateMachine):
    """The laws hold after every step, whatever the steps are."""

    driver: Driver
    operations: Operations

    @initialize(random=RANDOM)
    def configure(self, random: Random) -> None:
        self.driver = Driver(draw_config(random))
        self.operations = Operations(self.driver)

    @rule(random=RANDOM)
    def submit(self, random: Random) -> None:
        self.operations.submit(random)

    @rule(random=RANDOM)
    def submit_more(self, random: Random) -> None:
        self.operations.submit(random)
        self.operations.submit(random)

    @precondition(lambda self: self.driver.handles)
    @rule(random=RANDOM)
    def join(self, random: Random) -> None:
        self.operations.join(random)

    @rule(random=RANDOM)
    def start(self, random: Random) -> None:
        self.operations.start(random)

    @precondition(lambda self: self.driver.flying)
    @rule(random=RANDOM)
    def succeed(self, random: Random) -> None:
        self.operations.succeed(random)

    @precondition(lambda self: self.driver.flying)
    @rule(random=RANDOM)
    def turn(self, random: Random) -> None:
        self.operations.turn(random)

    @precondition(lambda self: self.driver.flying)
    @rule(random=RANDOM)
    def fail(self, random: Random) -> None:
        self.operations.fail(random)

    @precondition(lambda self: self.driver.stopping)
    @rule(random=RANDOM)
    def stop(self, random: Random) -> None:
        self.operations.stop(random)

    @precondition(lambda self: self.driver.reconciling)
    @rule(random=RANDOM)
    def reconcile(self, random: Random) -> None:
        self.operations.reconcile(random)

    @precondition(lambda self: self.driver.handles)
    @rule(random=RANDOM)
    def cancel(self, random: Random) -> None:
        self.operations.cancel(random)

    @precondition(lambda self: self.driver.handles)
    @rule(random=RANDOM)
    def cancel_flow(self, random: Random) -> None:
        self.operations.cancel_flow(random)

    @rule(random=RANDOM)
    def advance(self, random: Random) -> None:
        self.operations.advance(random)

    @rule(random=RANDOM)
    def stall(self, random: Random) -> None:
        self.operations.stall(random)

    @precondition(lambda self: not self.driver.core.closed)
    @rule(random=RANDOM)
    def begin_context(self, random: Random) -> None:
        self.operations.begin(random)

    @precondition(lambda self: self.driver.contexts)
    @rule(random=RANDOM)
    def change_context(self, random: Random) -> None:
        self.operations.change_context(random)

    @rule(random=RANDOM)
    def observe(self, random: Random) -> None:
        self.operations.observe(random)

    @precondition(lambda self: self.driver.handles)
    @rule(random=RANDOM)
    def forget(self, random: Random) -> None:
        self.operations.forget(random)

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
