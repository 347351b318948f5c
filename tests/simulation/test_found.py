"""What simulated runs have found, each as a small test of its own."""

from __future__ import annotations

from asyncdispatch.outcomes import Cancelled
from tests.core.driver import Driver


def test_a_late_success_without_a_value_is_told() -> None:
    """Law L11: cancelled in flight and then done, it says so, also where the success has the value None."""
    driver = Driver()
    handle = driver.submit()
    entry = driver.start()
    assert entry is not None
    driver.cancel(handle)
    driver.succeed(entry, None)
    outcome = driver.outcomes[handle.ticket]
    assert isinstance(outcome, Cancelled)
    assert outcome.late
    assert not outcome.ambiguous
