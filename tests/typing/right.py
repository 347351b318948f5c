"""A user's code that both type checkers must accept, and what they must make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Self, assert_never, assert_type

from asyncdispatch import (
    Again,
    APICall,
    Applied,
    Attempt,
    Backpressure,
    CallFailed,
    CallHandle,
    CallState,
    CallTypePolicy,
    Cancelled,
    Completion,
    Dispatcher,
    DispatcherConfig,
    DispatcherStatistics,
    DrainReport,
    Effect,
    Expired,
    Failed,
    FlowQuota,
    FunctionCall,
    Mode,
    ObjectRef,
    Outcome,
    Overwritten,
    Pressure,
    RateLimit,
    Refused,
    RetryPolicy,
    SchedulingContext,
    Shed,
    Skipped,
    Succeeded,
    Unknown,
    Verdict,
    VerdictKind,
)
from asyncdispatch.kubernetes import ApiError, Cluster
from asyncdispatch.prerequisites import BindGate
from asyncdispatch.requeue import LookAgain, Requeue
from asyncdispatch.rollout import FeatureGates, Guard, GuardPolicy, Rollout, Rule
from asyncdispatch.traces import Comparison, Trace, TraceRecorder, read_trace, replay, what_if

POD = ObjectRef("v1", "Pod", "default", "web-0")


# -- call types of one's own ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Label(APICall[dict[str, str]]):
    """A subclass with fields of its own, class attributes for others, and hooks."""

    call_type: str = "label"
    labels: tuple[tuple[str, str], ...] = ()

    async def execute(self, attempt: Attempt) -> dict[str, str]:
        assert_type(attempt.remaining, float)
        assert_type(attempt.context, SchedulingContext | None)
        return dict(self.labels)

    def merge(self, pending: Self) -> Self | None:
        return replace(self, labels=pending.labels + self.labels)

    def is_noop(self) -> bool:
        return not self.labels

    def rebase_onto(self, observed: Any) -> Self:
        return self

    async def reconcile(
        self, attempt: Attempt, error: BaseException
    ) -> Applied[dict[str, str]] | Again[dict[str, str]] | Refused | Unknown:
        if isinstance(error, TimeoutError):
            return Again(self)
        return Applied({}) if attempt.number > 1 else Unknown()


@dataclass(frozen=True, kw_only=True)
class Mark(APICall[None]):
    """With class attributes, annotated or not."""

    call_type: str = "mark"
    effect = Effect.CREATE

    async def execute(self, attempt: Attempt) -> None:
        return None


class Bare(APICall[int]):
    """No dataclass."""

    call_type = "bare"

    async def execute(self, attempt: Attempt) -> int:
        return attempt.number


async def count(attempt: Attempt) -> int:
    return attempt.number


def classify(call: APICall[Any], attempt: Attempt, error: BaseException) -> Verdict | None:
    return Verdict(VerdictKind.RETRY, maybe_applied=True) if isinstance(error, OSError) else None


CONFIG = DispatcherConfig(
    max_in_flight=32,
    flows={"batch": FlowQuota(max_in_flight=4, weight=0.5)},
    call_types={"label": CallTypePolicy(supersedes=("mark",))},
    rate=RateLimit(100.0, burst=10),
    retry=RetryPolicy(classify=classify, wait=lambda state: 0.5),
)


# -- a dispatcher -----------------------------------------------------------------------------------------------------


async def use(dispatcher: Dispatcher) -> None:
    label = Label(target=POD, labels=(("a", "b"),), priority=5, timeout=3)
    handle = dispatcher.submit(label)
    assert_type(handle, CallHandle[dict[str, str]])
    assert_type(await handle, dict[str, str])
    assert_type(handle.result(), dict[str, str])
    assert_type(handle.state, CallState)
    assert_type(handle.ticket, int)
    assert_type(handle.done(), bool)
    assert_type(handle.cancel("no longer"), bool)
    assert_type(await dispatcher.run(FunctionCall(count, call_type="count", target=POD)), int)
    assert_type(await dispatcher.run(Bare(target=POD)), int)
    assert_type(await dispatcher.dispatch(Mark(target=POD)), CallHandle[None])
    assert_type(dispatcher.submit_threadsafe(label), Future[dict[str, str]])
    handle.add_done_callback(told)
    assert_type(text_of(await handle.outcome()), str)
    assert_type(dispatcher.pressure, Pressure)
    assert_type(dispatcher.mode, Mode)
    assert_type(dispatcher.statistics(), DispatcherStatistics)
    assert_type(dispatcher.forget(POD, "gone"), int)
    assert_type(dispatcher.cancel_flow("batch", "over"), int)
    await dispatcher.switch(Mode.SYNC, "by hand")
    assert_type(await dispatcher.drain(), DrainReport)


def told(handle: CallHandle[dict[str, str]]) -> None:
    assert_type(handle.settled, Outcome[Any] | None)


def text_of(outcome: Outcome[dict[str, str]]) -> str:
    """Every kind of outcome is named: a checker says when one is missing."""
    match outcome:
        case Succeeded(value=value):
            assert_type(value, dict[str, str])
            return str(value)
        case Failed(error=error, verdict=verdict):
            return f"{error} {verdict.kind.value}"
        case Skipped(by=by) | Overwritten(by=by):
            return str(by)
        case Expired(where=where):
            return where
        case Cancelled(reason=reason) | Shed(reason=reason):
            return reason
        case _:
            assert_never(outcome)


async def refused(dispatcher: Dispatcher, call: APICall[int]) -> int:
    """A generic call keeps its type."""
    try:
        return await dispatcher.run(call)
    except Backpressure as full:
        assert_type(full.retry_after, float)
        assert_type(full.scope, str)
    except CallFailed as failed:
        assert_type(failed.outcome, Outcome[Any])
    return 0


async def contexts(dispatcher: Dispatcher) -> None:
    context = dispatcher.contexts.begin(POD, valid_until=5.0, requires=("volume",))
    assert_type(context, SchedulingContext)
    assert_type(context.ended, str | None)
    context.confirm("volume")
    await BindGate(dispatcher).ready(context, timeout=1.0)
    context.end("preempted")
    async with dispatcher.completions(maxsize=10) as stream:
        async for completion in stream:
            assert_type(completion, Completion)
            assert_type(completion.needs_read, bool)


# -- what stands above ------------------------------------------------------------------------------------------------


class Watcher:
    """An observer has what methods it likes."""

    def settled(self, handle: CallHandle[Any], outcome: Outcome[Any]) -> None:
        assert_type(outcome.queued_seconds, float)


async def everything(put: Callable[[LookAgain], None]) -> None:
    rollout = Rollout([Rule(name="some", percentage=10)], gates=FeatureGates("AsyncAPICalls=true"))
    with TraceRecorder("calls.trace.gz", max_bytes=1_000) as recorder:
        async with Dispatcher(CONFIG, rollout=rollout, observers=(Watcher(), recorder)) as dispatcher:
            assert_type(dispatcher, Dispatcher)
            async with Requeue(dispatcher, put, relist=lambda lost: None):
                await use(dispatcher)
    assert_type(recorder.ended, str | None)
    assert_type(Guard(GuardPolicy(), rollout=rollout), Guard)


async def on_kubernetes(cluster: Cluster, dispatcher: Dispatcher, pods: Sequence[dict[str, Any]]) -> None:
    for pod in pods:
        try:
            await dispatcher.run(cluster.bind(pod, "node-1", timeout=5.0))
            await dispatcher.run(cluster.patch_status(pod, conditions=[{"type": "Ready", "status": "True"}]))
            await dispatcher.run(cluster.evict(pod))
        except CallFailed as failed:
            if isinstance(failed.__cause__, ApiError):
                assert_type(failed.__cause__.status, int)


def traces() -> None:
    trace = read_trace("calls.trace.gz")
    assert_type(trace, Trace)
    assert_type(what_if(trace, replace(trace.config, aging=5.0)), Comparison)
    for call in replay(trace).calls.values():
        assert_type(call.outcome, Outcome[Any] | None)
