"""Law L8, rule R9: the memory of keys that have succeeded; off unless configured."""

from typing import Any

import pytest

from asyncdispatch._core.idempotency import Memory
from asyncdispatch.config import DispatcherConfig, IdempotencyPolicy
from asyncdispatch.outcomes import Succeeded
from tests.core.driver import Driver
from tests.core.words import GONE, PERMANENT, READ, SECOND, START, Call, answer, pod

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


def test_a_deletion_of_ours_ends_the_memory_but_its_own() -> None:
    """Rule R9: what was created before it is not there any more, and is created anew when somebody asks for it."""
    driver = remembering()
    done(driver, call_type="create")
    deletion = Deletion(idempotency_key="d")
    entry = driver.submit(deletion)
    driver.start()
    driver.succeed(entry)
    assert not driver.submit(call_type="create", **KEYED).done()
    assert driver.submit(deletion).done()
    driver.finish()


class Deletion(Call):
    call_type = "delete"
    deletes = True

    def apply(self, obj: Any) -> Any:
        return None


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


def test_nothing_is_kept_unless_configured() -> None:
    """L19: without a policy the memory stays empty."""
    driver = Driver()
    done(driver)
    assert len(driver.core.memory) == 0
    driver.finish()


def test_the_latest_success_is_remembered() -> None:
    """L8: a `fresh` call has succeeded since; its value is the one."""
    driver = remembering()
    done(driver, "old")
    done(driver, "new", fresh=True)
    assert driver.outcome(driver.submit(**KEYED), Succeeded).value == "new"
    driver.finish()


def test_each_key_is_remembered_for_its_own_time() -> None:
    """L8: `ttl` from its success, to the nanosecond; the older one's end takes nothing else along."""
    driver = remembering(ttl=10.0)
    done(driver, "one", target=pod("one"))
    driver.advance(4.0)
    done(driver, "two", target=pod("two"))
    driver.advance(6.0 - 1e-9)
    assert driver.submit(target=pod("one"), **KEYED).done()
    driver.advance(1e-9)
    assert not driver.submit(target=pod("one"), **KEYED).done()
    assert driver.submit(target=pod("two"), **KEYED).done()
    driver.advance(4.0)
    assert not driver.submit(target=pod("two"), **KEYED).done()
    driver.finish()


def test_equal_hashes_are_not_equal_operations() -> None:
    """L8: what is remembered is compared, whatever its hash."""
    memory = Memory(IdempotencyPolicy(ttl=10.0))
    memory.remember(1, 7, Call(idempotency_key="one"), "value", 0)
    assert memory.find(7, Call(idempotency_key="one"), 1) == ("value",)
    assert memory.find(7, Call(idempotency_key="other"), 1) is None


def test_what_is_too_old_is_not_found() -> None:
    """L8: within the TTL only, also if nobody has looked at the clock since."""
    memory, call = Memory(IdempotencyPolicy(ttl=10.0)), Call(idempotency_key="k")
    memory.remember(1, 7, call, "value", START)
    assert memory.find(7, call, START + 10 * SECOND - 1) == ("value",)
    assert memory.find(7, call, START + 10 * SECOND) is None


def test_keys_of_other_objects_stay_remembered() -> None:
    """L8: only the object that is gone is forgotten, with all its keys."""
    driver = remembering()
    for name, key in (("a", "one"), ("a", "two"), ("b", "one")):
        done(driver, target=pod(name), idempotency_key=key)
    driver.forget(pod("a"))
    assert len(driver.core.memory) == 1
    assert driver.submit(target=pod("b"), idempotency_key="one").done()
    driver.finish()
