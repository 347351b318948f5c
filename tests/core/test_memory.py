"""Law L8, rule R9: the memory of keys that have succeeded; off unless configured."""

from typing import Any

import pytest

from asyncdispatch.config import DispatcherConfig, IdempotencyPolicy
from asyncdispatch.outcomes import Succeeded
from tests.core.driver import Driver
from tests.core.words import GONE, PERMANENT, READ, answer, pod

KEYED: dict[str, Any] = {"idempotency_key": "k"}


def remembering(**policy: Any) -> Driver:
    return Driver(DispatcherConfig(idempotency=IdempotencyPolicy(**{"ttl": 10.0, **policy})))


def done(driver: Driver, value: Any = "value", **fields: Any) -> None:
    entry = driver.submit(**{**KEYED, **fields})
    driver.start()
    driver.succeed(entry, value)


def test_a_remembered_key_is_answered_at_once() -> None:
    """L8: within its TTL, with the same value and no attempt; not for `fresh`, not for another operation."""
    driver = remembering()
    done(driver)
    outcome = driver.outcome(driver.submit(**KEYED), Succeeded)
    assert (outcome.value, outcome.attempts) == ("value", 0)
    assert not driver.submit(fresh=True, **KEYED).done()
    assert not driver.submit(version="9", **KEYED).done()
    assert not driver.submit(call_type="other", **KEYED).done()
    driver.finish()


def test_the_memory_ends() -> None:
    """L8: after the TTL nothing is left of it."""
    driver = remembering()
    done(driver)
    driver.advance(9.9)
    assert driver.submit(**KEYED).done()
    driver.advance(0.2)
    assert len(driver.core.memory) == 0
    assert not driver.submit(**KEYED).done()
    driver.finish()


def test_the_memory_is_bounded() -> None:
    """Law L19: the oldest key makes room."""
    driver = remembering(max_keys=2)
    for name in "abc":
        done(driver, name, target=pod(name))
    assert len(driver.core.memory) == 2
    assert not driver.submit(target=pod("a"), **KEYED).done()
    assert driver.submit(target=pod("c"), **KEYED).done()
    driver.finish()


@pytest.mark.parametrize("how", ["forget", "deleting", "other uid", "gone"])
def test_the_memory_never_outlives_the_object(how: str) -> None:
    """L8, rule R9: forgotten, seen deleted, seen with another uid, or said to be gone."""
    driver = remembering()
    done(driver, answer("p", "u1", 5))
    assert driver.submit(**KEYED).done()
    if how == "forget":
        driver.forget()
    elif how == "deleting":
        driver.observe(pod("p", "u1"), 6, deleting=True)
    elif how == "other uid":
        driver.observe(pod("p", "u2"), 6)
    else:
        entry = driver.submit(call_type="other")
        driver.start()
        driver.fail(entry, GONE)
    assert not driver.submit(**KEYED).done()
    driver.finish()


def test_reads_and_failures_are_not_remembered() -> None:
    """L8: the memory is of succeeded writes with a key; off unless configured."""
    driver = remembering()
    done(driver, effect=READ)
    entry = driver.submit(**KEYED)
    driver.start()
    driver.fail(entry, PERMANENT)
    assert len(driver.core.memory) == 0
    driver.finish()
    forgetful = Driver()
    done(forgetful)
    assert not forgetful.submit(**KEYED).done()
    forgetful.finish()
