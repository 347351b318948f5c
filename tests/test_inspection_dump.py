"""What `dump` tells: everything that waits, flies and holds calls back, bounded, and no body or message of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch import (
    AdaptiveLimit,
    BreakerPolicy,
    CallTypePolicy,
    ConfigurationError,
    Dispatcher,
    DispatcherConfig,
    FlowQuota,
    Mode,
    RateLimit,
    Verdict,
    VerdictKind,
)
from asyncdispatch._core.parking import Signal
from asyncdispatch._core.states import QUEUED
from asyncdispatch._dumping import SCHEMA_VERSION, dump
from asyncdispatch._reasons import REASONS
from asyncdispatch.config import RetryBudget, RetryPolicy
from asyncdispatch.rollout import FeatureGates, Rollout, Rule
from tests.core.driver import Driver
from tests.core.operations import begun
from tests.core.words import HOLD, LATER, RETRY, Patch
from tests.core.words import pod as core_pod
from tests.shell import StatusError, after, call, for_ever, node, pod, pod_dict, raising, running, turns

SECRET = "s3cr3t-token"


def rows(dumped: dict[str, Any], section: str) -> dict[int, dict[str, Any]]:
    return {row["ticket"]: row for row in dumped[section]["rows"]}


# -- what waits, flies and comes next ---------------------------------------------------------------------------------


async def test_what_flies_and_what_waits() -> None:
    """Ticket, object, type, flow, attempt, since when, until when; and what a waiting call waits for."""
    async with running(max_in_flight=1, timeout=60.0) as dispatcher:
        handle = dispatcher.submit(call(for_ever, "a", flow="f", priority=1_000_000))
        queued = dispatcher.submit(call(name="b", timeout=10.0))
        behind = dispatcher.submit(call(name="b", call_type="other"))
        await turns()
        dumped = dispatcher.dump()
        flying = rows(dumped, "in_flight")[handle.ticket]
        assert flying["object"] == "Pod ns/a"
        assert flying["type"] == "write"
        assert flying["flow"] == "f"
        assert flying["level"] == "high"
        assert flying["attempts"] == 1
        assert flying["doing"] == "execute"
        assert flying["cut_off_in"] == 30.0
        assert flying["deadline_in"] == 60.0
        waiting = rows(dumped, "waiting")
        assert waiting[queued.ticket]["reason"] == "seats"
        assert waiting[queued.ticket]["why"] == "all 1 seats are taken"
        assert waiting[queued.ticket]["deadline_in"] == 10.0
        assert waiting[behind.ticket]["reason"] == "line"
        assert waiting[behind.ticket]["why"] == f"behind call {queued.ticket} (write, queued) of the same object"
        assert [row["ticket"] for row in dumped["next"]] == [queued.ticket]
        assert dumped["capacity"]["depth"] == 3
        assert dumped["seats"] == {"taken": 1, "limit": 1, "maximum": 1}
        handle.cancel()


async def test_since_when() -> None:
    """Seconds since it was accepted, since its attempt began, and until its end."""
    async with running(max_in_flight=1) as dispatcher:
        first = dispatcher.submit(call(after(5.0), "a", timeout=20.0))
        second = dispatcher.submit(call(after(5.0), "b", timeout=20.0))
        await asyncio.sleep(7.0)
        flying = rows(dispatcher.dump(), "in_flight")[second.ticket]
        assert flying["since_seconds"] == 7.0
        assert flying["in_flight_seconds"] == 2.0
        assert flying["deadline_in"] == 13.0
        assert first.done()


async def test_levels_by_states_the_most_urgent_first() -> None:
    """How many calls of each level are in which state."""
    async with running(max_in_flight=1) as dispatcher:
        dispatcher.submit(call(after(1.0), "a"))
        await turns()
        for number in range(3):
            dispatcher.submit(call(name=f"b{number}", priority=1_000_000))
        dispatcher.submit(call(name="c", not_before=2.0))
        levels = {level["name"]: level["states"] for level in dispatcher.dump()["levels"]}
        assert next(iter(levels)) == "system-node-critical"
        assert levels["high"] == {"queued": 3}
        assert levels["default"] == {"in_flight": 1, "delayed": 1}
        assert levels["lowest"] == {}


async def test_the_oldest_of_each_reason() -> None:
    """The most frequent reason first, with how long its oldest call has waited."""
    async with running(max_in_flight=1) as dispatcher:
        for number in range(3):
            dispatcher.submit(call(after(60.0), f"p{number}", timeout=100.0))
            await asyncio.sleep(2.0)
        dispatcher.submit(call(name="late", not_before=20.0))
        assert dispatcher.dump()["reasons"] == [
            {"reason": "seats", "count": 2, "oldest_seconds": 4.0},
            {"reason": "delayed", "count": 1, "oldest_seconds": 0.0},
        ]
        await dispatcher.aclose()


# -- every reason -----------------------------------------------------------------------------------------------------


def reasons_of(driver: Driver) -> dict[str, str]:
    """What each waiting object waits for."""
    dumped = dump(driver.core, driver.now)
    return {row["object"].partition("/")[2]: f"{row['reason']}: {row['why']}" for row in dumped["waiting"]["rows"]}


def test_delayed() -> None:
    driver = Driver()
    driver.submit(target=core_pod("p"), not_before=2.0)
    assert reasons_of(driver) == {"p": "delayed: may start in 2 s"}


def test_requirements() -> None:
    """By the names that are not confirmed, each once."""
    driver = Driver()
    context = driver.begin(requires=("volume", "quota", "node"))
    driver.submit(target=core_pod("p"), context=context, awaits_prerequisites=True)
    driver.require(context, "quota", True)
    assert reasons_of(driver) == {"p": "requirements: waits for volume, node"}


def test_line_behind_what_flies() -> None:
    driver = Driver()
    driver.submit(target=core_pod("p"))
    driver.start()
    driver.submit(target=core_pod("p"), call_type="second")
    driver.submit(target=core_pod("p"), call_type="third")
    whys = [row["why"] for row in dump(driver.core, driver.now)["waiting"]["rows"]]
    assert whys == ["behind call 1 (write, in_flight) of the same object"] * 2


def test_backoff_names_the_error_and_quotes_nothing() -> None:
    """Class, status and one-word reason; a message may hold what was sent."""
    driver = Driver()
    driver.submit(target=core_pod("p"))
    entry = driver.start()
    assert entry is not None
    error = StatusError(503)
    error.args = (SECRET,)
    error.reason = "Unavailable"  # type: ignore[attr-defined]
    driver.fail(entry, RETRY, delay=3.0, error=error)
    assert reasons_of(driver) == {"p": "backoff: tried again in 3 s, after StatusError 503 Unavailable"}


def test_a_reason_of_many_words_is_not_shown() -> None:
    driver = Driver()
    driver.submit(target=core_pod("p"))
    entry = driver.start()
    assert entry is not None
    error = StatusError(500)
    error.reason = f"token={SECRET}"  # type: ignore[attr-defined]
    driver.fail(entry, RETRY, delay=3.0, error=error)
    assert reasons_of(driver) == {"p": "backoff: tried again in 3 s, after StatusError 500"}


def test_budget() -> None:
    driver = Driver(DispatcherConfig(retry_budget=RetryBudget(0.0, 0.001, 1)))
    for name in ("a", "b"):
        driver.submit(target=core_pod(name))
    for entry in driver.start_all():
        driver.fail(entry, RETRY, delay=0.1)
    driver.advance(0.2)
    assert reasons_of(driver)["b"] == "budget: the retry budget is empty; the last attempt: ValueError"
    assert dump(driver.core, driver.now)["retry_budget"]["waiting"] == 1


def test_later() -> None:
    """By the condition that they wait for, which the dump lists."""
    driver = Driver()
    scope = ("quota", "ns", object())
    for number in range(6):
        driver.submit(target=core_pod(f"p{number}"))
    for entry in driver.start_all():
        driver.fail(entry, LATER, scope=scope, delay=1.0)
    assert reasons_of(driver)["p5"] == "later: quota ns object; tried again in 1 s, after ValueError"
    driver.advance(1.0)
    assert reasons_of(driver)["p5"].startswith("later: quota ns object; waits for its turn among 6")
    [row] = dump(driver.core, driver.now)["later"]["rows"]
    assert row == {"scope": "quota ns object", "waiting": 2, "awake": 4, "window": 4}


def test_held() -> None:
    """With whom, since when, and who probes; also for a call that is ready and of the same credentials."""
    driver = Driver()
    first = driver.submit(target=core_pod("a"), scope="cluster")
    driver.submit(target=core_pod("b"), scope="cluster")
    assert driver.start() is first
    driver.fail(first, HOLD, scope="cluster", error=StatusError(401))
    driver.advance(0.25)
    text = "held: credentials of cluster refused for 0.25 s after StatusError 401; to be probed"
    assert reasons_of(driver) == {"a": text, "b": text}
    [hold] = dump(driver.core, driver.now)["held"]["rows"]
    expected = {"scope": "cluster", "since_seconds": 0.25, "waiting": 1, "probe": None, "error": "StatusError 401"}
    assert hold == expected


def test_breaker() -> None:
    driver = Driver(DispatcherConfig(breaker=BreakerPolicy(failures=1, open_for=5.0)))
    for name in ("a", "b", "c"):
        driver.submit(target=core_pod(name))
    first = driver.start()
    assert first is not None
    driver.fail(first, RETRY, delay=60.0, signal=Signal.FAULT)
    assert reasons_of(driver)["b"] == "breaker: the breaker is open for 5 s more"
    driver.advance(5.0)
    assert driver.start() is not None
    assert reasons_of(driver)["c"] == "breaker: the breaker is half-open, and its probe under way: call 2"
    [breaker] = dump(driver.core, driver.now)["breakers"]["rows"]
    assert breaker["state"] == "half_open"
    assert breaker["probe"] == 2


def test_full_flows_and_types() -> None:
    config = DispatcherConfig(
        flows={"few": FlowQuota(max_in_flight=1, weight=2.0)}, call_types={"one": CallTypePolicy(("x",), 1)}
    )
    driver = Driver(config)
    for name in ("a", "b"):
        driver.submit(target=core_pod(f"f{name}"), flow="few")
        driver.submit(target=core_pod(f"t{name}"), call_type="one")
    driver.start_all()
    assert reasons_of(driver) == {
        "fb": "flow_full: flow few has all of its 1 in flight",
        "tb": "type_full: type one has all of its 1 in flight",
    }
    dumped = dump(driver.core, driver.now)
    [few] = [flow for flow in dumped["flows"]["rows"] if flow["name"] == "few"]
    assert few == {"name": "few", "waiting": 1, "in_flight": 1, "max_in_flight": 1, "max_queued": None, "weight": 2.0}
    [one] = [row for row in dumped["types"]["rows"] if row["name"] == "one"]
    assert one["supersedes"] == ["x"]


def test_rate_and_turn() -> None:
    driver = Driver(DispatcherConfig(rate=RateLimit(qps=2.0, burst=1)))
    driver.submit(target=core_pod("a"))
    assert reasons_of(driver) == {"a": "turn: nothing but its turn: it is about to start"}
    driver.start()
    driver.submit(target=core_pod("b"))
    assert reasons_of(driver) == {"b": "rate: a token in 0.5 s"}
    assert dump(driver.core, driver.now)["rate"] == {"qps": 2.0, "burst": 1, "next_in": 0.5}


# -- contexts, own writes, the rest -----------------------------------------------------------------------------------


async def test_contexts_and_their_requirements() -> None:
    async with running() as dispatcher:
        parent = dispatcher.contexts.begin(node("n"))
        context = dispatcher.contexts.begin(
            pod("p"), parent=parent, valid_until=1_060.0, requires=("volume", "quota", "claim")
        )
        context.confirm("volume")
        context.fail("quota", StatusError(403))
        row = dispatcher.dump()["contexts"]["rows"][1]
        assert row["object"] == "Pod ns/p"
        assert row["parent"] == parent.epoch
        assert row["valid_for"] == 60.0
        assert [each["state"] for each in row["requirements"]] == ["confirmed", "failed: StatusError 403", "missing"]


async def test_own_writes_not_yet_seen() -> None:
    """They are listed until an observation shows them."""
    driver = Driver()
    driver.submit(Patch(target=core_pod("p"), fields=("f",)))
    entry = driver.start()
    assert entry is not None
    driver.succeed(entry, {"metadata": {"name": "p", "namespace": "ns", "uid": "u1", "resourceVersion": "7"}})
    [write] = dump(driver.core, driver.now)["own_writes"]["rows"]
    assert write["object"] == "Pod ns/p"
    assert write["version"] == 7
    driver.observe(core_pod("p", "u1"), 7)
    assert dump(driver.core, driver.now)["own_writes"]["count"] == 0


async def test_mode_rollout_and_totals() -> None:
    async with Dispatcher(rollout=Rollout([Rule(name="half", percentage=50)])) as dispatcher:
        await dispatcher.switch(Mode.SYNC, "by hand")
        dumped = dispatcher.dump()
        assert dumped["mode"] == "sync"
        assert dumped["rollout"] == {"gate": True, "rules": [{"name": "half", "percentage": 50}]}
        assert dumped["state"] == "running"
    gated = Dispatcher(rollout=Rollout(gates=FeatureGates({"AsyncAPICalls": False})))
    assert gated.dump()["rollout"] == {"gate": False, "rules": []}


async def test_totals() -> None:
    async with running() as dispatcher:
        await dispatcher.run(call())
        totals = dispatcher.dump()["totals"]
        assert totals["accepted"] == 1
        assert totals["outcomes"]["succeeded"] == 1


# -- bounded, plain, harmless -----------------------------------------------------------------------------------------


async def test_bounded_by_limit() -> None:
    """At most `limit` rows of everything, and the number that was left out; the oldest are kept."""
    async with running(max_in_flight=2) as dispatcher:
        handles = [dispatcher.submit(call(after(1.0), f"p{number}", flow=f"f{number}")) for number in range(50)]
        contexts = [dispatcher.contexts.begin(pod(f"c{number}")) for number in range(30)]
        await turns()
        dumped = dispatcher.dump(limit=3)
        waiting = dumped["waiting"]
        assert (waiting["count"], waiting["left_out"], len(waiting["rows"])) == (48, 45, 3)
        assert [row["ticket"] for row in waiting["rows"]] == [
            handle.ticket for handle in handles if handle.state is QUEUED
        ][:3]
        assert dumped["contexts"]["left_out"] == len(contexts) - 3
        assert dumped["flows"]["left_out"] == 47
        assert len(dumped["next"]) == 3
        nothing = dispatcher.dump(limit=0)
        assert nothing["waiting"] == {"count": 48, "left_out": 48, "rows": []}
        assert nothing["next"] == []


@pytest.mark.parametrize("limit", [-1, 1.0, True, "5", None])
async def test_a_limit_that_can_not_be_meant(limit: Any) -> None:
    async with running() as dispatcher:
        with pytest.raises(ConfigurationError, match="limit="):
            dispatcher.dump(limit=limit)


async def test_closed_or_not_entered() -> None:
    """It works, and says so."""
    dispatcher = Dispatcher()
    assert dispatcher.dump()["state"] == "not entered yet"
    async with dispatcher:
        await dispatcher.run(call())
        await dispatcher.aclose("the end of the day")
    dumped = dispatcher.dump()
    assert dumped["state"] == "closed"
    assert dumped["reason"] == "the end of the day"
    assert dumped["totals"]["accepted"] == 1


async def test_draining_for_good() -> None:
    async with Dispatcher() as dispatcher:
        dispatcher.submit(call(after(1.0)))
        task = asyncio.create_task(dispatcher.drain())
        await turns()
        assert dispatcher.dump()["state"] == "draining for good"
        await task


async def test_closed_and_outside_of_its_loop() -> None:
    """A thread without a loop may look at a dispatcher that is closed, not at one that runs."""
    async with Dispatcher() as dispatcher:
        with pytest.raises(ConfigurationError, match="loop"):
            await asyncio.to_thread(dispatcher.dump)
    assert (await asyncio.to_thread(dispatcher.dump))["state"] == "closed"


async def test_no_body_and_no_message() -> None:
    """Of objects only their names, of errors only their class and status."""

    def refuse(call: Any, attempt: Any, error: BaseException) -> Verdict:
        return Verdict(VerdictKind.LATER, retry_after=60.0, reason=SECRET)

    async with running(retry=RetryPolicy(classify=refuse)) as dispatcher:
        dispatcher.observe(pod_dict("q", data={"password": SECRET}))
        dispatcher.submit(call(raising(ValueError(SECRET)), idempotency_key=SECRET))
        context = dispatcher.contexts.begin(pod("r"), requires=("x",))
        context.fail("x", ValueError(SECRET))
        await turns()
        dumped = dispatcher.dump()
        assert dumped["waiting"]["count"] == 1
        assert SECRET not in json.dumps(dumped)
        await dispatcher.aclose()


async def test_hostile_names_are_cut_and_cleaned() -> None:
    """Names of any length and of any characters: what is shown is one line, printable and bounded."""
    name = "x\x1b[31m\n\u202e\ud800" + "y" * 10_000
    async with running(max_in_flight=1) as dispatcher:
        dispatcher.submit(call(for_ever, name, flow=name, call_type=name))
        await turns()
        text = json.dumps(dispatcher.dump(), ensure_ascii=False)
        assert text.isprintable()
        assert len(text) < 6_000
        text.encode()
        await dispatcher.aclose()


@given(st.integers(0, 2**32), st.integers(1, 120))
def test_any_state_can_be_dumped(seed: int, steps: int) -> None:
    """After random operations over all features: JSON without loss, every call in it once, and nothing changed."""
    driver = begun(seed, steps)
    dumped = dump(driver.core, driver.now, limit=1_000)
    assert json.loads(json.dumps(dumped, allow_nan=False)) == dumped
    assert dump(driver.core, driver.now, limit=1_000) == dumped
    assert dumped["version"] == SCHEMA_VERSION
    tickets = [row["ticket"] for section in ("in_flight", "waiting") for row in dumped[section]["rows"]]
    assert sorted(tickets) == sorted(entry.ticket for entry in driver.core.executions())
    assert {row["reason"] for row in dumped["waiting"]["rows"]} <= set(REASONS)
    assert sum(row["count"] for row in dumped["reasons"]) == dumped["waiting"]["count"]
    counted = sum(count for level in dumped["levels"] for count in level["states"].values())
    assert counted == len(tickets)
    if dumped["next"]:
        assert {row["state"] for row in dumped["next"]} == {"queued"}


def test_adaptive_seats() -> None:
    """What the server has made of the limit, and how far it may grow."""
    driver = Driver(DispatcherConfig(max_in_flight=AdaptiveLimit(8, 1, 20)))
    assert dump(driver.core, driver.now)["seats"] == {"taken": 0, "limit": 8, "maximum": 20}
