"""What Prometheus is told of a dispatcher: exactly what has happened, under names that stay few (case K3)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families

from asyncdispatch import (
    AdaptiveLimit,
    Backpressure,
    CallTypePolicy,
    Cancelled,
    ConfigurationError,
    Dispatcher,
    DispatcherConfig,
    Expired,
    FlowQuota,
    IdempotencyPolicy,
    Mode,
    RetryPolicy,
)
from asyncdispatch.metrics import FAMILIES, DispatcherMetrics
from asyncdispatch.metrics.labels import Names
from asyncdispatch.requeue import LookAgain, Requeue
from asyncdispatch.rollout import Baseline, Guard, GuardPolicy, Measured, Threshold
from tests.shell import Script, StatusError, after, at_once, call, for_ever, raising, turns

NAME = "asyncdispatch_"
BIND = "pod_binding"


class Shown:
    """A dispatcher with a registry, and what that shows of it."""

    def __init__(self, *observers: Any, **fields: Any) -> None:
        self.registry = CollectorRegistry()
        self.dispatcher = Dispatcher(DispatcherConfig(**fields), registry=self.registry, observers=observers)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(NAME + name, labels)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """All samples of one name that are not 0, by the values of their labels."""
        return {
            tuple(sample.labels.values()): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == NAME + name and sample.value
        }


async def test_attempts_are_counted_as_upstream_counts_them() -> None:
    """By call type and result, with their durations in upstream's buckets, bounds and sum."""
    shown = Shown(max_in_flight=1)
    async with shown.dispatcher as dispatcher:
        for number in range(10):
            dispatcher.submit(call(after(0.003), f"p{number}", call_type=BIND))
        dispatcher.submit(call(raising(ValueError()), "bad", call_type="patch"))
        await asyncio.sleep(1)
        name = "async_api_call_execution"
        assert shown.series(f"{name}_total") == {(BIND, "success"): 10, ("patch", "error"): 1}
        labels = {"call_type": BIND, "result": "success"}
        bounds = ["0.001", "0.002", "0.004", "0.008", "0.016", "0.032", "0.064", "0.128", "0.256", "0.512"]
        bounds += ["1.024", "2.048", "4.096", "8.192", "16.384", "+Inf"]
        found = [shown(f"{name}_duration_seconds_bucket", **labels, le=bound) for bound in bounds]
        assert found == [0, 0] + [10] * 14
        assert shown(f"{name}_duration_seconds_count", **labels) == 10
        assert shown(f"{name}_duration_seconds_sum", **labels) == pytest.approx(0.03)
        assert shown.series("calls_total") == {(BIND, "succeeded", ""): 10, ("patch", "failed", "permanent"): 1}


async def test_the_sum_of_durations_holds_while_calls_fly() -> None:
    """Also in the middle, when seats have passed from type to type."""
    shown = Shown(max_in_flight=2)
    async with shown.dispatcher as dispatcher:
        for number in range(41):
            dispatcher.submit(call(after(0.5), f"p{number}", call_type="xyz"[number % 3]))
        for _ in range(20):
            await asyncio.sleep(0.375)
            for call_type in "xyz":
                labels = {"call_type": call_type, "result": "success"}
                count = shown("async_api_call_execution_total", **labels) or 0
                total = shown("async_api_call_execution_duration_seconds_sum", **labels) or 0.0
                assert total == pytest.approx(count * 0.5)
        await dispatcher.drain()


async def test_what_waits_and_flies() -> None:
    """By level and flow, type and state; what the statistics say, so that both may be trusted."""
    shown = Shown(
        max_in_flight=AdaptiveLimit(initial=2, minimum=1, maximum=8),
        flows={"slow": FlowQuota(max_in_flight=1)},
        call_types={"x": CallTypePolicy(max_in_flight=1)},
    )
    async with shown.dispatcher as dispatcher:
        for number in range(4):
            dispatcher.submit(call(for_ever, f"p{number}", call_type="x", flow="slow"))
        dispatcher.submit(call(for_ever, "q", call_type="y", priority=2_000_001_000))
        dispatcher.submit(call(for_ever, "q", call_type="y"))
        dispatcher.submit(call(for_ever, "r", call_type="y", not_before=60.0))
        dispatcher.submit(call(for_ever, "p3", call_type="x", flow="slow"))  # behind one that is ready
        await asyncio.sleep(5)
        told = dispatcher.statistics()
        assert shown.series("queue_depth") == {("default", "slow"): 4, ("default", "default"): 2}
        assert shown.series("waiting_calls") == {(state,): count for state, count in told.waiting.items()}
        assert shown.series("pending_async_api_calls") == {("x",): 4, ("y",): 2}
        assert shown.series("in_flight") == {("x",): 1, ("y",): 1}
        assert shown.series("flow_in_flight") == {("slow",): 1, ("default",): 1}
        assert (shown("seats"), shown("seats_maximum")) == (2, 8)
        assert shown("flow_seats", flow="slow") == 1
        assert shown("call_type_seats", call_type="x") == 1
        assert (shown("depth"), shown("capacity")) == (told.depth, 10_000) == (8, 10_000)
        assert shown("oldest_wait_seconds", level="default") == pytest.approx(5)
        assert shown("oldest_wait_seconds", level="high") == 0
        assert shown("oldest_in_flight_seconds") == pytest.approx(5)
        assert shown("pressure", pressure="ok") == 1
        assert shown("mode", mode="async") == 1
        await dispatcher.aclose()


async def test_ready_calls_are_counted_by_queue() -> None:
    """Not one by one, and yet the same; those that have ended in the middle of it are not counted."""
    shown = Shown(max_in_flight=2, capacity=5_000)
    async with shown.dispatcher as dispatcher:
        handles = [dispatcher.submit(call(for_ever, f"p{n}", flow=f"f{n % 7}")) for n in range(1_000)]
        await turns()
        for handle in handles[100:900:3]:
            handle.cancel()
        told = dispatcher.statistics()
        assert shown.series("queue_depth") == {("default", flow): n for flow, n in told.waiting_by_flow.items()}
        await dispatcher.aclose()


async def test_waits_are_counted_by_level() -> None:
    shown = Shown(max_in_flight=1)
    async with shown.dispatcher as dispatcher:
        for number in range(4):
            dispatcher.submit(call(after(1.0), f"p{number}"))
        dispatcher.submit(call(after(1.0), "urgent", priority=2_000_001_000))
        await dispatcher.drain()
        name, level = "queue_wait_seconds_bucket", "default"
        assert shown(name, level="system-node-critical", le="0.000131072") == 1
        found = [shown(name, level=level, le=le) for le in ("0.536870912", "1.073741824", "2.147483648", "4.294967296")]
        assert found == [0, 1, 2, 4]


async def test_refusals_duplicates_merges_and_retries() -> None:
    shown = Shown(
        capacity=4,
        max_in_flight=1,
        idempotency=IdempotencyPolicy(ttl=60, max_keys=10),
        retry=RetryPolicy(),
        breaker=None,
    )
    async with shown.dispatcher as dispatcher:
        first = dispatcher.submit(call(Script(StatusError(503), "done", seconds=1.0), "a", idempotency_key="k"))
        dispatcher.submit(call(at_once, "a", idempotency_key="k"))
        await first
        dispatcher.submit(call(at_once, "a", idempotency_key="k"))
        for number in range(4):
            dispatcher.submit(call(after(0.1), f"p{number}"))
        for _ in range(16):
            with pytest.raises(Backpressure):
                dispatcher.submit(call(at_once))
        assert shown.series("duplicate_calls_total") == {("joined",): 1, ("remembered",): 1}
        assert shown.series("refused_calls_total") == {("total",): 16}
        assert shown.series("retries_total") == {("write", "retry"): 1}
        assert shown("accepted_calls_total") == 7
        await dispatcher.drain()
        assert shown.series("async_api_call_execution_total") == {("write", "success"): 5, ("write", "error"): 1}
        with pytest.raises(Exception, match="drained"):
            dispatcher.submit(call(at_once))
    assert sum(shown.series("calls_total").values()) == 7


async def test_a_cancelled_write_in_flight_is_ambiguous() -> None:
    shown = Shown()
    async with shown.dispatcher as dispatcher:
        handle = dispatcher.submit(call(for_ever, call_type=BIND))
        await turns()
        handle.cancel()
        await handle.outcome()
        assert shown.series("ambiguous_calls_total") == {(BIND,): 1}
        assert shown.series("calls_total") == {(BIND, "cancelled", "caller"): 1}
        assert shown.series("async_api_call_execution_total") == {(BIND, "cancelled"): 1}


async def test_an_attempt_that_was_stopped_before_it_began_is_none() -> None:
    """An observer may cancel the very call that is about to start: nothing was executed then."""

    class Meddler:
        def settled(self, handle: Any, outcome: Any) -> None:
            if isinstance(outcome, Expired):
                last.cancel()

    shown = Shown(Meddler(), max_in_flight=1)
    async with shown.dispatcher as dispatcher:
        dispatcher.submit(call(after(1.0), "a"))
        dispatcher.submit(call(at_once, "b", timeout=0.999))  # noticed as it is to start, and the next one starts
        last = dispatcher.submit(call(at_once, "c"))
        await asyncio.sleep(2)
        assert isinstance(last.settled, Cancelled)
        assert last.settled.attempts == 0
        assert shown.series("async_api_call_execution_total") == {("write", "success"): 1}


async def test_a_breaker_that_opens_is_counted_and_shown() -> None:
    shown = Shown(max_in_flight=1)
    async with shown.dispatcher as dispatcher:
        for number in range(10):
            dispatcher.submit(call(raising(StatusError(500)), f"p{number}", call_type=BIND))
        await asyncio.sleep(0.5)
        assert shown("open_breakers", call_type=BIND) == 1
        assert (shown("breaker_openings_total", call_type=BIND) or 0) >= 1
        await dispatcher.aclose()


async def test_modes_are_counted() -> None:
    shown = Shown()
    async with shown.dispatcher as dispatcher:
        await dispatcher.switch(Mode.SYNC, "by hand")
        assert shown.series("mode") == {("sync",): 1}
        assert shown.series("mode_changes_total") == {("draining",): 1, ("sync",): 1}


async def test_a_guard_is_shown_with_what_it_was_told() -> None:
    """The P99 of scheduling, its limit, its state, and rollbacks by the signal that was breached."""
    thresholds: dict[str, Any] = {"scheduling_p99": Threshold(absolute=0.1)}
    baseline = Baseline({"scheduling_p99": Measured(0.01, 10_000)})
    others: dict[str, Any] = dict.fromkeys(
        ("queue_depth", "queue_wait_p99", "api_latency_p99", "failure_rate", "duplicate_rate", "binding_errors")
    )
    policy = GuardPolicy(**thresholds, **others, unschedulable_retries=None, half_open=None)
    guard = Guard(policy, baseline=baseline)
    shown = Shown(guard)
    async with shown.dispatcher as dispatcher, guard.watch(dispatcher):
        for _ in range(500):
            guard.scheduled(0.05)
        assert shown("guard_signal", signal="scheduling_p99") == pytest.approx(0.05, rel=0.2)
        assert shown("guard_limit", signal="scheduling_p99") == 0.1
        assert shown.series("guard_state") == {("armed",): 1}
        for _ in range(500):
            guard.scheduled(0.5)
        await asyncio.sleep(5)
        assert shown.series("rollbacks_total") == {("scheduling_p99",): 1}
        assert shown.series("guard_state") == {("tripped",): 1}
        assert shown.series("mode") == {("sync",): 1}


async def test_k3_names_that_never_end_share_one_series(caplog: pytest.LogCaptureFixture) -> None:
    """One plugin puts the Pod's name into call type and flow. Series stay under a cap, what the config names keeps its
    own, nothing is left uncounted, and the log names the label once."""
    shown = Shown(max_in_flight=3, flows={"volumes": FlowQuota()}, call_types={"patch": CallTypePolicy()})
    sizes = []
    async with shown.dispatcher as dispatcher:
        for turn in range(25):
            for number in range(turn * 100, turn * 100 + 100):
                dispatcher.submit(call(after(0.001), f"p{number}", call_type=f"type{number}", flow=f"flow{number}"))
            dispatcher.submit(call(after(0.001), call_type="patch", flow="volumes"))
            await turns()
            flows = {sample[1] for sample in shown.series("queue_depth")}
            assert "volumes" in flows
            await asyncio.sleep(1)
            sizes.append(sum(len(metric.samples) for metric in shown.registry.collect()))
        assert sizes[-1] == sizes[3]
        assert len(flows) <= 102
        done = shown.series("async_api_call_execution_total")
        assert len(done) <= 103
        assert sum(done.values()) == 2_525
        assert done["patch", "success"] == 25
        assert done["other", "success"] >= 2_300
        assert (shown("label_overflow_total", label="flow") or 0) >= 2_300
        assert (shown("label_overflow_total", label="call_type") or 0) >= 2_300
    told = [record for record in caplog.records if "too many values" in record.message]
    assert sorted(record.__dict__["label"] for record in told) == ["call_type", "flow"]


def test_a_name_that_shares_a_label_is_counted_once_while_it_stays() -> None:
    """Not at every scrape. Known names always stand for themselves."""
    names = Names("flow", ("known",), most=1)
    for _ in range(3):
        assert names.shown(["a", "b", "known"]) == {"a": "a", "b": "other", "known": "known"}
    assert names.overflows == 1
    assert names.shown(["c"]) == {"c": "other"}
    assert names.overflows == 2


async def test_flows_that_have_gone_leave_no_gauge() -> None:
    shown = Shown(max_in_flight=1)
    async with shown.dispatcher as dispatcher:
        for number in range(50):
            dispatcher.submit(call(after(0.1), f"p{number}", flow=f"flow{number}"))
        await turns()
        assert len(shown.series("queue_depth")) == 49
        await dispatcher.drain()
        assert shown.series("queue_depth") == {}


async def test_the_longest_attempt_is_an_exemplar() -> None:
    """With its ticket, in the OpenMetrics format; after five minutes it is no longer shown."""
    shown = Shown()
    async with shown.dispatcher as dispatcher:
        await dispatcher.run(call(after(0.01)))
        slow = dispatcher.submit(call(after(3.0)))
        await slow

        def exemplars() -> list[Any]:
            text = exposition.generate_latest(shown.registry).decode()
            found = [s for metric in parser.text_string_to_metric_families(text) for s in metric.samples]
            return [(s.labels["le"], s.exemplar) for s in found if s.exemplar is not None]

        ((bound, exemplar),) = exemplars()
        assert bound == "4.096"
        assert exemplar.labels == {"ticket": str(slow.ticket)}
        assert exemplar.value == pytest.approx(3.0)
        await asyncio.sleep(301)
        assert exemplars() == []


async def test_every_metric_is_in_the_table_and_only_those() -> None:
    """Whatever format it is asked for, the names, types and labels are those that are documented."""
    shown = Shown()
    async with shown.dispatcher as dispatcher:
        await dispatcher.run(call(after(0.01)))
        text = generate_latest(shown.registry).decode()
        families = {metric.name: metric for metric in text_string_to_metric_families(text)}
        expected = {family.full_name.removesuffix("_total"): family for family in FAMILIES.values()}
        assert families.keys() == expected.keys()
        for name, family in expected.items():
            assert families[name].type == family.kind
            for sample in families[name].samples:
                assert sample.name in family.series
                assert sample.labels.keys() - {"le"} == set(family.labels)


# -- registries ---------------------------------------------------------------------------------------------------


async def test_a_registry_shows_one_dispatcher_at_a_time() -> None:
    """A second one is refused while the first is not closed; then it takes its place."""
    registry = CollectorRegistry()
    async with Dispatcher(registry=registry) as dispatcher:
        with pytest.raises(ConfigurationError, match="shows another dispatcher: give each its own"):
            Dispatcher(registry=registry)
        await dispatcher.run(call())
    assert registry.get_sample_value("asyncdispatch_accepted_calls_total") == 1
    assert registry.get_sample_value("asyncdispatch_up") == 0
    async with Dispatcher(registry=registry):
        assert registry.get_sample_value("asyncdispatch_accepted_calls_total") == 0
        assert registry.get_sample_value("asyncdispatch_up") == 1


async def test_a_name_that_is_taken_is_refused() -> None:
    registry = CollectorRegistry()
    Counter("asyncdispatch_calls", "of somebody else", registry=registry)
    with pytest.raises(ConfigurationError, match=r"has metrics of our names already.*asyncdispatch_calls"):
        Dispatcher(registry=registry)


@pytest.mark.parametrize("registry", [object(), "default", CollectorRegistry])
def test_a_registry_is_prometheus_clients(registry: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a prometheus_client\.CollectorRegistry or None"):
        Dispatcher(registry=registry)


def test_without_a_registry_nothing_is_counted() -> None:
    dispatcher = Dispatcher()
    assert dispatcher.metrics is None
    assert dispatcher._core.meter is None


def test_a_dispatcher_that_was_not_entered_is_shown_as_down() -> None:
    registry = CollectorRegistry()
    dispatcher = Dispatcher(registry=registry)
    assert isinstance(dispatcher.metrics, DispatcherMetrics)
    assert registry.get_sample_value("asyncdispatch_up") == 0


# -- other threads ------------------------------------------------------------------------------------------------


async def test_a_scrape_from_another_thread_is_answered_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core belongs to its event loop: nothing of it is read while it changes."""
    shown = Shown()
    seen: list[str] = []
    async with shown.dispatcher as dispatcher:
        metrics = dispatcher.metrics
        assert metrics is not None
        collected = metrics._collected

        def looked() -> list[Any]:
            seen.append(threading.current_thread().name)
            return collected()

        monkeypatch.setattr(metrics, "_collected", looked)
        text = await asyncio.to_thread(generate_latest, shown.registry)
    assert b"asyncdispatch_up 1.0" in text
    assert seen == [threading.main_thread().name]


async def test_a_loop_that_does_not_answer_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is shown, since nothing else is known."""
    monkeypatch.setattr("asyncdispatch.metrics.collector.PATIENCE", 0.01)
    shown = Shown()
    async with shown.dispatcher:
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.append(generate_latest(shown.registry)))
        thread.start()
        thread.join()  # which holds the loop
        await turns()
    assert b"asyncdispatch_up 0.0" in found[0]
    assert found[0].count(b"\n") == 3


# -- what is handed in --------------------------------------------------------------------------------------------


class Told:
    def __init__(self, **fields: Any) -> None:
        self.__dict__ = fields

    def statistics(self) -> Any:
        return self


async def test_leases_and_reflectors_are_shown_if_they_are_handed_in() -> None:
    shown = Shown()
    metrics = shown.dispatcher.metrics
    assert metrics is not None
    metrics.watch_lease("mine", Told(valid_for=7.5, terms=2, failures=1))
    metrics.watch_lease("theirs", Told(valid_for=None, terms=0, failures=0))
    metrics.watch_reflector("pods", Told(objects=9, stale_for=0.5, failures=0, lists=1, events=20, drifts=0))
    assert shown("lease_leader", lease="mine") == 1
    assert shown("lease_leader", lease="theirs") == 0
    assert shown("lease_valid_seconds", lease="mine") == 7.5
    assert shown("reflector_objects", reflector="pods") == 9
    assert shown("reflector_stale_seconds", reflector="pods") == 0.5
    for name, what, message in (
        ("mine", Told(), "is that of another lease"),
        ("", Told(), "must be a short text"),
        ("x", object(), "must be a lease"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            metrics.watch_lease(name, what)  # type: ignore[arg-type]
    for number in range(62):
        metrics.watch_lease(f"lease-{number}", Told(valid_for=1, terms=1, failures=0))
    with pytest.raises(ConfigurationError, match="is one too many: 64"):
        metrics.watch_lease("another", Told())


async def test_scheduling_retries_are_counted_apart() -> None:
    """A call that has failed is an object to be looked at again, and no retry of the API call."""
    shown, queue = Shown(), list[LookAgain]()
    async with shown.dispatcher as dispatcher, Requeue(dispatcher, queue.append, relist=lambda lost: None):
        await dispatcher.submit(call(raising(ValueError()))).outcome()
        await turns()
        assert len(queue) == 1
        assert shown.series("scheduling_retries_total") == {("failed",): 1}
        assert shown.series("retries_total") == {}
