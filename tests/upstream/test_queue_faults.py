"""Known faults of controller-runtime's priority queue and client-go's workqueue: the fault, then our law."""

import asyncio
import random

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig, DispatchError, Effect, FunctionCall, ObjectRef
from asyncdispatch.outcomes import Succeeded
from tests.cases.support import Log, config_map, now


def named(name, fn=None, **fields):
    async def nothing(attempt):
        await asyncio.sleep(0.01)
        return name

    target = fields.pop("target", None) or ObjectRef("v1", "Pod", "ns", name)
    return FunctionCall(fn or nothing, call_type=fields.pop("call_type", "t"), target=target, **fields)


class Unwell(Exception):
    def __init__(self, status=503, retry_after=None):
        self.status = status
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


async def test_depth_gauges_became_negative():
    """Depth gauges were counted up and down in different places, and drifted below zero.

    They are read from the state itself: never negative, never more than accepted, and zero in the end.
    """
    dice = random.Random(1)

    async def moody(attempt):
        await asyncio.sleep(dice.random() / 20)
        if dice.random() < 0.3:
            raise Unwell(dice.choice([409, 404, 429, 500, 503, 422]))
        return "well"

    async with Dispatcher(DispatcherConfig(max_in_flight=3, capacity=50, drain_timeout=300)) as dispatcher:
        handles = []
        for number in range(400):
            fields = {
                "priority": dice.choice([-(2**31), 0, 2_000_000_000]),
                "sheddable": dice.random() < 0.5,
                "effect": dice.choice(list(Effect)),
                "flow": f"f{dice.randrange(3)}",
                "idempotency_key": dice.choice([None, None, number % 7]),
                "timeout": dice.choice([0.05, 5, 30]),
                "not_before": dice.choice([None, 0.01]),
            }
            try:
                handles.append(dispatcher.submit(named(f"p{number % 15}", moody, **fields)))
            except DispatchError:
                pass
            if dice.random() < 0.2 and handles:
                dice.choice(handles).cancel()
            if dice.random() < 0.3:
                await asyncio.sleep(0.01)
            seen = dispatcher.statistics()
            pending = sum(not handle.done() for handle in handles)
            assert 0 <= seen.depth <= 50
            assert seen.depth + seen.joined == pending
            assert 0 <= seen.in_flight <= 3
            tables = (seen.waiting, seen.waiting_by_flow, seen.waiting_by_level, seen.waiting_by_type)
            assert len({sum(table.values()) for table in tables}) == 1
            assert all(value > 0 for table in tables for value in table.values())
        for handle in handles:
            await handle.outcome()
        seen = dispatcher.statistics()
    assert (seen.depth, seen.joined, seen.in_flight, seen.waiting, seen.in_flight_by_flow) == (0, 0, 0, {}, {})


async def test_rate_limit_delay_of_one_item_leaked_to_others():
    """The delay of one item that was limited was laid on the items that were added after it.

    L20: what backs off waits by itself, holds no seat, and delays nobody else, of its own flow and type or not.
    """

    async def pushed_back(attempt):
        if attempt.number == 1:
            raise Unwell(503, retry_after=60)
        return "late"

    async with Dispatcher(DispatcherConfig(max_in_flight=1, breaker=None)) as dispatcher:
        slow = dispatcher.submit(named("slow", pushed_back))
        await asyncio.sleep(0.1)
        began = now()
        for number in range(20):
            await dispatcher.run(named(f"p{number}"))
        assert now() - began < 0.3
        assert await slow == "late"
        assert now() >= 60


async def test_getters_were_stuck_after_shutdown():
    """Whoever waited for an item when the queue was shut down waited for ever.

    L15: workers, those who wait for room, for an outcome, for completions or for another mode: all are told.
    """
    before = asyncio.all_tasks()

    async def never(attempt):
        await asyncio.sleep(10_000)

    async def listen(stream):
        return [completion async for completion in stream]

    async with Dispatcher(DispatcherConfig(capacity=1, reserve=0)) as dispatcher, dispatcher.completions() as stream:
        handle = dispatcher.submit(named("p", never))
        waiting = [
            asyncio.create_task(coroutine)
            for coroutine in (handle.outcome(), listen(stream), dispatcher.run(named("q")), dispatcher.run(named("r")))
        ]
        await asyncio.sleep(1)
        await dispatcher.aclose()
        done, pending = await asyncio.wait(waiting, timeout=1)
    assert not pending
    assert [type(task.exception()).__name__ for task in waiting[2:]] == ["DispatcherClosed"] * 2
    assert len(done) == 4
    assert not {task for task in asyncio.all_tasks() - before if not task.done()}


async def test_high_priority_was_stuck_behind_ready_low_ones():
    """An item of high priority waited until the low ones that were ready before it had been handed out.

    L6: the next start is the most urgent one's.
    """
    log = Log()
    async with Dispatcher(DispatcherConfig(max_in_flight=1), observers=[log]) as dispatcher:
        for number in range(50):
            dispatcher.submit(named(f"low{number}", priority=-500))
        await asyncio.sleep(0.055)
        dispatcher.submit(named("high", priority=2_000_000_000))
    order = [call.target.name for call in log.order]
    assert order.index("high") == 6


async def test_fifo_was_lost_when_priorities_changed():
    """Items whose priority was raised lost their order among each other.

    L9: a call has the best rank of its callers: the urgent callers' order counts, and the others keep theirs.
    """
    log = Log()
    async with Dispatcher(DispatcherConfig(max_in_flight=1), observers=[log]) as dispatcher:
        dispatcher.submit(named("busy"))
        await asyncio.sleep(0.001)
        for number in range(6):
            dispatcher.submit(named(f"p{number}", idempotency_key=f"k{number}"))
        for number in (4, 1, 2):
            dispatcher.submit(named(f"p{number}", idempotency_key=f"k{number}", priority=5_000))
    assert [call.target.name for call in log.order] == ["busy", "p4", "p1", "p2", "p0", "p3", "p5"]


@pytest.mark.parametrize("change", ["joined", "a write behind it"])
async def test_priority_was_lost_on_requeue(change):
    """An item that failed came back with the default priority, behind everything else.

    L9: the rank never gets worse, neither by a retry nor by the urgent caller's leaving.
    """
    log = Log()

    async def once(attempt):
        await asyncio.sleep(0.01)
        if attempt.number == 1:
            raise Unwell(503, retry_after=0.05)
        return "well"

    async with Dispatcher(DispatcherConfig(max_in_flight=1), observers=[log]) as dispatcher:
        for number in range(3):
            dispatcher.submit(named(f"first{number}"))
        if change == "joined":
            handle = dispatcher.submit(named("p", once, idempotency_key="k"))
            urgent = dispatcher.submit(named("p", once, idempotency_key="k", priority=5_000))
            urgent.cancel()
        else:
            handle = dispatcher.submit(named("p", once))
            dispatcher.submit(named("p", priority=5_000))
        for number in range(60):
            dispatcher.submit(named(f"other{number}"))
        assert await handle == "well"
    order = [call.target.name for call in log.order]
    assert order[0] == "p"
    assert order[1:].index("p") < 20  # as soon as its delay was over, before the many that waited longer than that


async def test_items_at_minus_100_starved():
    """Items at -100, as an initial list adds them, were never taken while others kept coming: there was no aging.

    L6: the bound is levels apart times A, plus what was in flight.
    """
    log = Log()
    async with Dispatcher(DispatcherConfig(max_in_flight=1, aging=0.5), observers=[log]) as dispatcher:
        dispatcher.submit(named("busy"))
        low = dispatcher.submit(named("low", priority=-100))
        number = 0
        while not low.done():
            number += 1
            dispatcher.submit(named(f"p{number}"))
            await asyncio.sleep(0.009)
        await dispatcher.aclose()
    assert log.started_at[low.ticket][0] <= 0.5 * 10 / 9 + 0.03


async def test_drain_waited_only_for_what_was_in_process():
    """Shutting down with a drain waited for the items in process and dropped those queued, delayed or in backoff.

    L15: all that was accepted finishes or expires within the drain's time, and the report tells.
    """

    async def once(attempt):
        if attempt.number == 1:
            raise Unwell(503, retry_after=5)
        return "well"

    async with Dispatcher(DispatcherConfig(max_in_flight=1, drain_timeout=30)) as dispatcher:
        handles = [dispatcher.submit(named(f"p{number}")) for number in range(20)]
        handles.append(dispatcher.submit(named("delayed", not_before=10)))
        handles.append(dispatcher.submit(named("backoff", once)))
        handles += [dispatcher.submit(named("line")) for _ in range(3)]
        late = dispatcher.submit(named("too late", not_before=100))
        await asyncio.sleep(0.005)
        report = await dispatcher.drain()
    assert all(isinstance(handle.settled, Succeeded) for handle in handles)
    assert report.finished == len(handles)
    assert late.settled is not None
    assert report.never_started == (late,)
    assert not report.clean
    assert 10 <= report.seconds <= 30.1


async def test_http_requests_of_the_drain_are_all_answered(server, cluster):
    """The same over HTTP: after the drain there is no request without an answer."""
    server.latency = 0.5
    async with Dispatcher(DispatcherConfig(max_in_flight=3)) as dispatcher:
        for number in range(10):
            dispatcher.submit(cluster.create(config_map(f"c{number}")))
    assert len(server.objects.of("ConfigMap")) == 10
    assert all(record.answered and record.status == 201 for record in server.audit)
