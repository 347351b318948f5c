"""Law L19: nothing grows. What the core holds after ten rounds of work on other objects is what it held before them."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from asyncdispatch._core.parking import Signal
from asyncdispatch.config import BreakerPolicy, DispatcherConfig, IdempotencyPolicy, RetryBudget
from tests.core.driver import Driver
from tests.core.words import CREATE, HOLD, LATER, LEVELS, PERMANENT, READ, RETRY, Patch, answer, node, pod

CONFIG = DispatcherConfig(
    max_in_flight=6,
    capacity=12,
    breaker=BreakerPolicy(failures=2, open_for=1.0),
    retry_budget=RetryBudget(ratio=0.5, per_second=1.0, burst=1),
    idempotency=IdempotencyPolicy(ttl=60.0, max_keys=100),
)


def held(driver: Driver) -> int:
    """How many things the core's tables hold, with all that hangs on them."""
    seen = {id(driver), id(driver.core), id(driver.core.config)}
    waiting: list[Any] = [value for name, value in vars(driver.core).items() if name != "_owner"]
    count = 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, int | float | type | ModuleType | FunctionType | MethodType):
            continue
        seen.add(id(each))
        count += len(each) if isinstance(each, dict | list | deque) else 1
        waiting.extend(gc.get_referents(each))
    return count


def keyed(driver: Driver, name: str) -> None:
    """Joined, remembered, asked for again, replaced, forgotten."""
    for value in (1, 2):
        one = driver.submit(target=pod(name), idempotency_key=name, fresh=True)
        driver.submit(target=pod(name), idempotency_key=name, fresh=True)
        driver.start()
        driver.succeed(one, answer(name, "u1", value))
    driver.submit(target=pod(name), idempotency_key=name)
    driver.forget(pod(name))
    one = driver.submit(target=pod(name + "x"), idempotency_key=name)
    driver.start()
    driver.succeed(one)
    driver.advance(61.0)
    driver.forget(pod(name + "x"))


def in_line(driver: Driver, name: str) -> None:
    """Merged, cancelled, in flight, behind each other, and what depends on something else."""
    first = driver.submit(target=pod(name), depends_on=(node(name),))
    driver.start()
    driver.submit(Patch(target=pod(name), fields=("a",)))
    driver.submit(Patch(target=pod(name), fields=("b",)))
    driver.submit(target=pod(name), effect=READ, ordered=True)
    driver.submit(target=pod(name), not_before=0.5)
    driver.succeed(first)
    driver.forget(node(name))
    driver.advance(1.0)
    while (entry := driver.start()) is not None:
        driver.succeed(entry)
    driver.forget(pod(name))


def in_a_context(driver: Driver, name: str) -> None:
    """A requirement, its owner, a parent, and a context that is not ended by hand."""
    parent = driver.begin(node(name))
    context = driver.begin(pod(name), parent=parent, requires=("r",), valid_for=30.0)
    driver.submit(target=pod(name), context=context, awaits_prerequisites=True)
    first = driver.submit(target=pod(name + "r"), context=context, prerequisite="r")
    driver.start()
    driver.succeed(first)
    driver.submit(target=pod(name), context=context, not_before=5.0)
    driver.end(parent)
    for ref in (pod(name), node(name), pod(name + "r")):
        driver.forget(ref)


def refused(driver: Driver, name: str) -> None:
    """For a condition elsewhere, for credentials, for load; some leave while they wait."""
    pods = [pod(f"{name}{number}") for number in range(6)]
    entries = [driver.submit(target=ref, scope=name, timeout=20.0) for ref in pods]
    later, held, fault, other, budget, last = driver.start_all()
    assert len(entries) == 6
    driver.fail(later, LATER, scope=name, delay=1.0)
    driver.fail(other, LATER, scope=name, delay=2.0)
    driver.fail(fault, RETRY, delay=0.0, signal=Signal.FAULT)
    driver.fail(budget, RETRY, delay=0.0, signal=Signal.FAULT)
    driver.fail(last, RETRY, delay=0.0, signal=Signal.FAULT)
    driver.fail(held, HOLD)
    driver.advance(1.0)
    driver.cancel(other)
    driver.cancel(last)
    for _ in range(40):
        driver.advance(1.0)
        for entry in driver.start_all():
            driver.succeed(entry)
    for ref in pods:
        driver.forget(ref)


def in_doubt(driver: Driver, name: str) -> None:
    """A create that may have been applied, which nothing can be learned about."""
    entry = driver.submit(target=pod(name), effect=CREATE, idempotency_key=name)
    driver.start()
    assert driver.fail(entry, RETRY, maybe=True)
    driver.fail_reconcile(entry, PERMANENT)
    driver.forget(pod(name))


def shed(driver: Driver, name: str) -> None:
    """Sheddable calls of some levels, shed or ended."""
    low = [driver.submit(target=pod(f"{name}{number}"), sheddable=True, priority=LEVELS["low"]) for number in range(11)]
    driver.submit(target=pod(name), priority=LEVELS["high"])
    driver.start_all()
    for entry in [*driver.flying.values()]:
        driver.succeed(entry)
    for entry in low:
        driver.cancel(entry)
    for number in range(11):
        driver.forget(pod(f"{name}{number}"))
    driver.forget(pod(name))


@pytest.mark.parametrize("work", [keyed, in_line, in_a_context, refused, in_doubt, shed])
def test_nothing_grows(work: Callable[[Driver, str], None]) -> None:
    """L19: every table is empty or at its cap once the handles are resolved and the objects forgotten."""
    driver = Driver(CONFIG)
    counts = []
    for number in range(12):
        work(driver, f"{work.__name__}{number:03}")
        driver.advance(100.0)
        counts.append(held(driver))
    assert not driver.leftovers()
    assert max(counts[6:]) <= max(counts[:6]), counts
    driver.finish()
