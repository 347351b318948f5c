"""Spans of calls and attempts, recorded by OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tenacity import wait_fixed

from asyncdispatch import (
    APICall,
    Applied,
    Attempt,
    ConfigurationError,
    Dispatcher,
    Effect,
    ObjectRef,
    Verdict,
    VerdictKind,
)
from asyncdispatch.config import RetryPolicy
from asyncdispatch.tracing import MAX_ATTEMPTS, MAX_TEXT, TracingObserver
from tests.shell import Script, StatusError, after, call, for_ever, pod, raising, running, turns

SECRET = "s3cr3t"


class Traces:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = TracingObserver(self.provider)
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str = "write") -> ReadableSpan:
        [span] = self.named(name)
        return span


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    yield made
    assert not made.observer._calls, "a span was never ended"
    made.provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("asyncdispatch."): value for name, value in (span.attributes or {}).items()}


def identity(span: Any) -> int:
    return int(span.get_span_context().span_id)


# -- one span for a call ----------------------------------------------------------------------------------------------


async def test_a_call_and_its_attempt(traces: Traces) -> None:
    """The attempt is a child of the call; success is no status."""
    async with running(observers=(traces.observer,)) as dispatcher:
        await dispatcher.run(call(after(1.0), "a", flow="f", priority=7))
    span, attempt = traces.one(), traces.one("attempt")
    told = attributes(span)
    assert told["call_type"] == "write"
    assert told["flow"] == "f"
    assert told["priority"] == 7
    assert told["object"] == "Pod ns/a"
    assert told["k8s.namespace.name"] == "ns"
    assert told["outcome"] == "succeeded"
    assert told["attempts"] == 1
    assert span.status.status_code is StatusCode.UNSET
    assert span.parent is None
    assert attempt.parent is not None
    assert attempt.parent.span_id == identity(span)
    assert attributes(attempt) == {"attempt": 1}


async def test_retries(traces: Traces) -> None:
    """Each attempt is a span, failed ones with the error's class and status; each retry is an event."""
    script = Script(StatusError(503), "done")
    async with running(observers=(traces.observer,)) as dispatcher:
        await dispatcher.run(call(script))
    first, second = traces.named("attempt")
    assert first.status.status_code is StatusCode.ERROR
    assert attributes(first) == {"attempt": 1, "error.type": "StatusError", "http.response.status_code": 503}
    assert second.status.status_code is StatusCode.UNSET
    span = traces.one()
    [event] = span.events
    assert event.name == "retry"
    assert event.attributes is not None
    assert event.attributes["asyncdispatch.verdict"] == "retry"
    assert attributes(span)["attempts"] == 2


async def test_failure(traces: Traces) -> None:
    async with running(observers=(traces.observer,)) as dispatcher:
        await dispatcher.submit(call(raising(StatusError(403)))).outcome()
    span = traces.one()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "StatusError"
    assert attributes(span)["verdict"] == "permanent"
    assert attributes(span)["http.response.status_code"] == 403


async def test_expiry(traces: Traces) -> None:
    """In flight: the attempt's span is ended with the call's."""
    async with running(observers=(traces.observer,)) as dispatcher:
        await dispatcher.submit(call(for_ever, timeout=1.0)).outcome()
    span = traces.one()
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["where"] == "in_flight"
    assert attributes(span)["ambiguous"] is True
    assert traces.one("attempt").end_time is not None


async def test_cancelled_and_overwritten_are_no_errors(traces: Traces) -> None:
    """Somebody has decided so."""
    async with running(observers=(traces.observer,), max_in_flight=1) as dispatcher:
        flying = dispatcher.submit(call(for_ever, "a", call_type="cancelled"))
        await turns()
        waiting = dispatcher.submit(call(name="b", call_type="cancelled"))
        waiting.cancel()
        flying.cancel()
        await turns()
        bind = call(name="c", call_type="pod_binding")
        dispatcher.submit(call(name="c", call_type="pod_status_patch", not_before=5.0))
        await dispatcher.run(bind)
    assert len(traces.named("attempt")) == 2, "that of the call that was stopped, and the bind's"
    for span in traces.named("cancelled"):
        assert span.status.status_code is StatusCode.UNSET
        assert attributes(span)["outcome"] == "cancelled"
    overwritten = traces.one("pod_status_patch")
    assert overwritten.status.status_code is StatusCode.UNSET
    assert attributes(overwritten)["by"] == 4


async def test_a_noop(traces: Traces) -> None:
    """Accepted and settled in one step, with no attempt."""

    class Nothing(APICall[None]):
        def is_noop(self) -> bool:
            return True

    async with running(observers=(traces.observer,)) as dispatcher:
        dispatcher.submit(Nothing(target=pod("p"), call_type="nothing"))
    assert attributes(traces.one("nothing"))["attempts"] == 0
    assert traces.named("attempt") == []


async def test_reconcile_is_an_event(traces: Traces) -> None:
    """What it reads stands below the call."""
    seen: list[int] = []

    class Made(APICall[None]):
        async def execute(self, attempt: Attempt) -> None:
            raise StatusError(500)

        async def reconcile(self, attempt: Attempt, error: BaseException) -> Any:
            seen.append(identity(trace.get_current_span()))
            return Applied(None)

    async with running(observers=(traces.observer,)) as dispatcher:
        await dispatcher.run(Made(target=pod("p"), call_type="made", effect=Effect.CREATE))
    span = traces.one("made")
    assert [event.name for event in span.events] == ["reconcile"]
    assert seen == [identity(span)]
    assert traces.one("attempt").status.status_code is StatusCode.ERROR


# -- links and parents ------------------------------------------------------------------------------------------------


async def test_linked_to_whoever_submits(traces: Traces) -> None:
    """Each call to its own submitter, by `submit` and by `run`; not its child, since it outlives it."""
    async with running(observers=(traces.observer,), max_in_flight=1) as dispatcher:
        with traces.tracer.start_as_current_span("pass 1") as one:
            dispatcher.submit(call(after(1.0), "a"))
        with traces.tracer.start_as_current_span("pass 2") as two:
            await dispatcher.run(call(name="b"))
        dispatcher.submit(call(name="c"))
    linked = [[link.context.span_id for link in span.links] for span in traces.named("write")]
    assert sorted(linked) == sorted([[identity(one)], [identity(two)], []])
    assert all(span.parent is None for span in traces.named("write"))


async def test_linked_across_threads(traces: Traces) -> None:
    """Calls that are taken in together are linked each to its own submitter, in its own thread."""
    async with running(observers=(traces.observer,)) as dispatcher:
        submitters: dict[str, int] = {}

        def submit(name: str) -> None:
            with traces.tracer.start_as_current_span(name) as span:
                submitters[name] = identity(span)
                dispatcher.submit_threadsafe(call(name=name, call_type=f"call {name}"))

        for name in ("a", "b"):  # the loop is waited for only afterwards
            thread = threading.Thread(target=submit, args=(name,))
            thread.start()
            thread.join()
        await turns()
    for name in ("a", "b"):
        assert [link.context.span_id for link in traces.one(f"call {name}").links] == [submitters[name]]


async def test_a_joiner_is_linked_to_the_call_that_it_joined(traces: Traces) -> None:
    async with running(observers=(traces.observer,)) as dispatcher:
        first = dispatcher.submit(call(after(1.0), "a", idempotency_key="k"))
        second = dispatcher.submit(call(after(1.0), "a", idempotency_key="k"))
        await second
    spans = {attributes(span)["ticket"]: span for span in traces.named("write")}
    joiner = spans[second.ticket]
    assert attributes(joiner)["joined"] == first.ticket
    assert [link.context.span_id for link in joiner.links] == [identity(spans[first.ticket])]
    assert len(traces.named("attempt")) == 1


async def test_current_while_the_attempt_runs(traces: Traces) -> None:
    """What is recorded inside of an attempt stands below it: each below its own, and nothing afterwards."""
    inside: dict[str, int] = {}
    afterwards: list[int] = []

    def recording(name: str, seconds: float) -> Any:
        async def execute(attempt: Attempt) -> None:
            inside[name] = identity(trace.get_current_span())
            await asyncio.sleep(seconds)
            assert identity(trace.get_current_span()) == inside[name]

        return execute

    async with running(observers=(traces.observer,), max_in_flight=2) as dispatcher:
        with traces.tracer.start_as_current_span("outside") as outside:
            for name in "abcd":
                handle = dispatcher.submit(call(recording(name, 1.0), name, call_type=name))
                handle.add_done_callback(lambda _: afterwards.append(identity(trace.get_current_span())))
            await turns()
            assert trace.get_current_span() is outside
    calls = {identity(span): span.name for name in "abcd" for span in traces.named(name)}
    for attempt in traces.named("attempt"):
        assert attempt.parent is not None
        assert inside[calls[attempt.parent.span_id]] == identity(attempt)
    assert len(inside) == len(afterwards) == 4
    assert not set(afterwards) & set(inside.values())


# -- bounded, and harmless --------------------------------------------------------------------------------------------


async def test_no_message_and_no_key(traces: Traces) -> None:
    """Nothing of errors, keys and bodies is recorded."""
    async with running(observers=(traces.observer,)) as dispatcher:
        refused = call(raising(ValueError(SECRET)), "a", idempotency_key=SECRET)
        await dispatcher.submit(refused).outcome()
        dispatcher.submit(call(for_ever, "b")).cancel(SECRET)
    assert len(traces.exporter.get_finished_spans()) == 3
    assert not any(SECRET in span.to_json() for span in traces.exporter.get_finished_spans())


async def test_attributes_are_cut(traces: Traces) -> None:
    long = "x" * 10_000
    async with running(observers=(traces.observer,)) as dispatcher:
        await dispatcher.run(call(target=ObjectRef("v1", "Pod", long, long), flow=long, call_type=long))
    [span] = [span for span in traces.exporter.get_finished_spans() if span.name != "attempt"]
    assert len(span.name) == MAX_TEXT
    assert all(len(value) <= MAX_TEXT for value in attributes(span).values() if isinstance(value, str))


async def test_attempts_are_bounded(traces: Traces) -> None:
    """Later ones are only counted."""

    def again(call: Any, attempt: Any, error: BaseException) -> Verdict:
        return Verdict(VerdictKind.RETRY)

    script = Script(*[ValueError() for _ in range(50)], "done")
    async with running(observers=(traces.observer,), retry=RetryPolicy(wait_fixed(0.1), classify=again)) as dispatcher:
        await dispatcher.run(call(script))
    span = traces.one()
    assert attributes(span)["attempts"] == 51
    assert len(traces.named("attempt")) == MAX_ATTEMPTS
    assert len(span.events) == MAX_ATTEMPTS


class Broken:
    """A tracer whose spans can't be made, or whose every method raises."""

    def __init__(self, spans: bool) -> None:
        self.spans = spans

    def start_span(self, *args: Any, **fields: Any) -> Any:
        if not self.spans:
            raise RuntimeError("no spans")
        return BrokenSpan(trace.INVALID_SPAN_CONTEXT)


class BrokenSpan(trace.NonRecordingSpan):
    def end(self, end_time: int | None = None) -> None:
        raise RuntimeError("no end")


@pytest.mark.parametrize("spans", [True, False])
async def test_its_errors_harm_no_call(spans: bool, caplog: pytest.LogCaptureFixture) -> None:
    """They are logged and counted by the dispatcher; nothing is kept of them."""
    observer = TracingObserver()
    observer._tracer = Broken(spans)  # type: ignore[assignment]
    async with running(observers=(observer,)) as dispatcher:
        assert await dispatcher.run(call(Script(StatusError(503), "done"))) == "done"
        assert dispatcher.statistics().observer_errors > 0
    assert observer._calls == {}


async def test_without_an_sdk() -> None:
    """The API alone records nothing, and costs next to nothing."""
    async with running(observers=(TracingObserver(),)) as dispatcher:
        assert await dispatcher.run(call()) == "done"


async def test_calls_accepted_before_it_was_there(traces: Traces) -> None:
    """What it has not seen accepted it does not record: nothing raises."""
    async with Dispatcher() as dispatcher:
        handle = dispatcher.submit(call())
        traces.observer.started(handle, 1)
        traces.observer.attempted(handle, 1, None)
        traces.observer.retried(handle, Verdict(VerdictKind.RETRY), 1.0)
        await handle
        traces.observer.settled(handle, await handle.outcome())
    assert traces.exporter.get_finished_spans() == ()


def test_a_wrong_provider() -> None:
    with pytest.raises(ConfigurationError, match="tracer_provider"):
        TracingObserver("jaeger")  # type: ignore[arg-type]


def test_nothing_is_imported_unless_used() -> None:
    """Neither OpenTelemetry nor aiohttp comes with the package itself."""
    program = "import sys, asyncdispatch; print([n for n in ('opentelemetry', 'aiohttp') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
