"""D: rate, overload, priority, fairness."""

import asyncio

import pytest

import asyncdispatch._workers
from asyncdispatch import (
    Backpressure,
    BreakerPolicy,
    Dispatcher,
    DispatcherConfig,
    FunctionCall,
    ObjectRef,
    Pressure,
    RateLimit,
    RetryPolicy,
    Verdict,
    VerdictKind,
)
from asyncdispatch.outcomes import Expired, Failed, Succeeded
from tests.cases.support import Log, config_map, new_pod, now, sent


def within(starts: list[float], limit: RateLimit) -> bool:
    """In no window are there more starts than the burst and what the rate gives."""
    return all(
        count <= limit.burst + limit.qps * (last - first) + 1e-6
        for index, first in enumerate(starts)
        for count, last in enumerate(starts[index:], 1)
    )


@pytest.mark.parametrize("end", ["expired", "cancelled", "context ended"])
async def test_d1_calls_that_gave_up_leave_no_debt(server, cluster, end):
    """Callers that gave up while they waited for the client's limiter left it so far in debt that nothing went through.

    Right: what never started took no token; with nothing waiting, the bucket is full again after burst/qps seconds.
    """
    server.latency = 0.005
    limit = RateLimit(qps=50, burst=50)
    log = Log()
    async with Dispatcher(DispatcherConfig(rate=limit), observers=[log]) as dispatcher:
        context = dispatcher.contexts.begin(ObjectRef("v1", "Namespace", None, "ns"))
        timeout = 0.2 if end == "expired" else 60
        burst = [
            dispatcher.submit(cluster.create(config_map(f"c{number}"), timeout=timeout, context=context))
            for number in range(5_000)
        ]
        await asyncio.sleep(0.2)
        if end == "cancelled":
            for handle in burst:
                handle.cancel()
        context.end("over")
        for handle in burst:
            await handle.outcome()
        assert sum(isinstance(handle.settled, Succeeded) for handle in burst) <= 60
        await asyncio.sleep(1)
        began = now()
        later = [dispatcher.submit(cluster.create(config_map(f"d{n}"), timeout=5)) for n in range(50)]
        for handle in later:
            await handle
    assert all(log.started_at[handle.ticket][0] - began < 0.1 for handle in later)
    assert within(log.starts, limit)
    assert len(sent(server)) == len(log.starts) <= 111


async def test_d3_deadline_shorter_than_the_queue(server, cluster):
    """Work failed because the limiter's wait alone was longer than the deadline that many calls shared.

    Right: what can be done in time is done, the rest is told when its time is over, and no token is spent on it.
    """
    log = Log()
    config = DispatcherConfig(rate=RateLimit(qps=10), capacity=500, reserve=0)
    async with Dispatcher(config, observers=[log]) as dispatcher:
        began = now()
        handles = [dispatcher.submit(cluster.create(config_map(f"c{n}"), timeout=10)) for n in range(500)]
        assert dispatcher.pressure is Pressure.FULL
        await asyncio.sleep(5)
        for number in range(500 - dispatcher.statistics().depth):
            dispatcher.submit(cluster.create(config_map(f"x{number}"), timeout=4))
        with pytest.raises(Backpressure) as full:
            dispatcher.submit(cluster.create(new_pod()))
        assert full.value.scope == "total"
        assert 0.01 < full.value.retry_after < 10
        outcomes = [await handle.outcome() for handle in handles]
    done = [outcome for outcome in outcomes if isinstance(outcome, Succeeded)]
    late = [outcome for outcome in outcomes if not isinstance(outcome, Succeeded)]
    assert 95 <= len(done) <= 101
    assert all(isinstance(outcome, Expired) and outcome.where == "queued" and not outcome.attempts for outcome in late)
    assert max(log.ended_at[handle.ticket] for handle in handles) - began <= 10.1
    assert len(sent(server)) == len(log.starts)


async def test_d3_start_that_can_only_be_too_late(server, cluster):
    """The same when it is known at once: a delay, or the next token, is after the deadline."""
    async with Dispatcher(DispatcherConfig(rate=RateLimit(qps=0.1))) as dispatcher:
        await dispatcher.run(cluster.create(new_pod()))
        began = now()
        for call, where in (
            (cluster.create(config_map("a"), timeout=5), "queued"),
            (cluster.create(config_map("b"), timeout=5, not_before=6), "delayed"),
        ):
            outcome = await dispatcher.submit(call).outcome()
            assert isinstance(outcome, Expired)
            assert outcome.where == where
        assert now() == began
    assert len(sent(server)) == 1


@pytest.mark.parametrize(("priority", "apart"), [(-(2**31), 2), (-1_001, 2), (-100, 1)])
async def test_d5_lowest_level_under_an_endless_flood(server, cluster, priority, apart):
    """Work at -100 was never taken while ordinary work kept arriving, for half an hour.

    Right: it starts within the bound of aging, in spite of a flood that is more than the server can take.
    """
    seconds = 1.5
    server.latency = 0.01
    log = Log()
    async with Dispatcher(DispatcherConfig(max_in_flight=1, aging=seconds), observers=[log]) as dispatcher:
        flooding = True

        async def flood():
            number = 0
            while flooding:
                number += 1
                dispatcher.submit(cluster.create(config_map(f"c{number}")))
                await asyncio.sleep(1 / 110)

        task = asyncio.create_task(flood())
        await asyncio.sleep(0.05)
        began = now()
        low = [dispatcher.submit(cluster.create(config_map(f"low{n}"), priority=priority)) for n in range(3)]
        for handle in low:
            await handle
        flooding = False
        await task
        await dispatcher.aclose()
    first = [log.started_at[handle.ticket][0] - began for handle in low]
    assert first == sorted(first)
    assert first[-1] <= 1.1 * apart * seconds + 3 * 0.01 + 0.05
    assert first[0] >= apart * seconds * 0.9  # and not before its turn


def cap_reached(call, attempt, error):
    """How a plugin classifies its own "not now"."""
    if getattr(error, "status", None) == 429:
        return Verdict(VerdictKind.LATER, scope=call.flow if call.flow != "default" else None)
    return None


@pytest.mark.parametrize("flow", ["migrations", "default"], ids=["one scope", "each by itself"])
async def test_d7_closed_door_is_not_knocked_at_all_the_time(server, cluster, flow):
    """Work that could not proceed was queued again and again and starved the work that would have opened the door.

    Right: what waits for a condition elsewhere is tried ever more seldom, and what can proceed starts at once.
    """
    server.register("example.com/v1", "Migration", "migrations")
    server.register("example.com/v1", "Finish", "finishes")
    server.latency = 0.01

    def closed(record):
        return len(server.objects.of("Finish")) < 13

    server.fail(status=429, message="cap reached", times=None, path="*/migrations", when=closed)

    def custom(kind, number):
        metadata = {"name": f"{kind.lower()}{number}", "namespace": "ns"}
        return {"apiVersion": "example.com/v1", "kind": kind, "metadata": metadata}

    log = Log()
    config = DispatcherConfig(max_in_flight=4, breaker=BreakerPolicy(failures=3), timeout=600)
    policy = RetryPolicy(classify=cap_reached)
    async with Dispatcher(config, observers=[log]) as dispatcher:
        waiting = [
            dispatcher.submit(
                cluster.create(
                    custom("Migration", n), plural="migrations", flow=flow, retry=policy, call_type="migrate"
                )
            )
            for n in range(80)
        ]
        await asyncio.sleep(10)
        for number in range(15):
            began, tried = now(), len(log.order)
            handle = dispatcher.submit(cluster.create(custom("Finish", number), plural="finishes", call_type="finish"))
            await handle
            before = [call for call in log.order[tried:] if call.call_type == "migrate"]
            assert log.started_at[handle.ticket][0] - began <= 0.011
            assert len(before) <= 4 + 1
            await asyncio.sleep(1)
        assert dispatcher.statistics().open_breakers == ()
        attempts = []
        for handle in waiting:
            attempts.append((await handle.outcome()).attempts)
    assert max(attempts) <= 10  # in a minute or two
    assert len(sent(server, path="/finishes")) == 15


def plain(fn, name: str, **fields):
    return FunctionCall(
        fn, call_type=fields.pop("call_type", "user"), target=ObjectRef("v1", "Pod", "ns", name), **fields
    )


async def test_d9_user_code_that_waits_for_ever(server, cluster):
    """One slow call in the path of binding stopped the whole loop, for up to ten minutes.

    Right: it ends at its attempt's time-out, its seat is free again, and everybody else goes on.
    """
    tries = []

    async def stuck(attempt):
        tries.append(now())
        await asyncio.sleep(600)

    pod = server.create(new_pod("q"))
    async with Dispatcher(DispatcherConfig(max_in_flight=1, attempt_timeout=5)) as dispatcher:
        handle = dispatcher.submit(plain(stuck, "p", timeout=12))
        await asyncio.sleep(1)
        assert await dispatcher.run(cluster.bind(pod, "n1")) == "n1"
        assert now() == pytest.approx(5, abs=0.1)
        outcome = await handle.outcome()
        assert dispatcher.statistics().in_flight == 0
    assert isinstance(outcome, Expired)
    assert isinstance(outcome.cause, TimeoutError)
    assert outcome.ambiguous
    assert 2 <= len(tries) == outcome.attempts <= 4
    assert outcome.elapsed_seconds == pytest.approx(12, abs=0.1)


@pytest.mark.parametrize("where", ["execute", "reconcile"])
async def test_d9_user_code_that_blocks_the_thread(server, cluster, where, monkeypatch, caplog):
    """A step that holds the loop is measured and named, by the call's type and object; nothing else fails."""
    clock = [0]
    monkeypatch.setattr(asyncdispatch._workers, "monotonic_ns", lambda: clock[0])

    class Blocking(FunctionCall):
        async def reconcile(self, attempt, error):
            clock[0] += 2_000_000_000 * (where == "reconcile")
            return await super().reconcile(attempt, error)

    async def execute(attempt):
        clock[0] += 2_000_000_000 * (where == "execute")
        await asyncio.sleep(0.01)
        if where == "reconcile":
            raise ConflictError

    target = ObjectRef("v1", "Pod", "ns", "p")
    async with Dispatcher() as dispatcher:
        outcome = await dispatcher.submit(Blocking(execute, call_type="heavy", target=target)).outcome()
        await dispatcher.run(cluster.create(new_pod("q")))
        assert dispatcher.statistics().blocked == 1
    assert isinstance(outcome, Succeeded if where == "execute" else Failed)
    told = [record for record in caplog.records if "blocked the event loop" in record.message]
    assert len(told) == 1
    assert (told[0].call_type, told[0].object) == ("heavy", "Pod ns/p")
    assert told[0].seconds == 2


class ConflictError(Exception):
    status = 409


@pytest.mark.parametrize("seconds", [3, 40], ids=["ends in time", "given up"])
async def test_d9_user_code_that_swallows_its_cancellation(server, cluster, seconds):
    """Its lane stays shut until it has really ended, other lanes go on, and closing does not hang past its time."""
    ended = []

    async def deaf(attempt):
        until = now() + seconds
        while now() < until:
            try:
                await asyncio.sleep(until - now())
            except asyncio.CancelledError:
                pass
        ended.append(now())

    async def next_one(attempt):
        assert ended
        return "next"

    async with Dispatcher(DispatcherConfig(attempt_timeout=20, give_up=5)) as dispatcher:
        handle = dispatcher.submit(plain(deaf, "p"))
        behind = dispatcher.submit(plain(next_one, "p"))
        await asyncio.sleep(1)
        assert handle.cancel("enough")
        assert (await dispatcher.run(cluster.create(new_pod("q"))))["metadata"]["name"] == "q"
        outcome = await handle.outcome()
        assert now() == pytest.approx(min(seconds, 6), abs=0.1)
        assert outcome.ambiguous == (seconds > 5)
        began = now()
        report = await dispatcher.aclose(timeout=10)
        assert now() - began <= 10.1
    if seconds > 5:
        assert behind.settled is not None
        assert not behind.settled.attempts
        assert report.still_running
        assert not ended
        await asyncio.sleep(seconds)
        assert ended
    else:
        assert not report.still_running
