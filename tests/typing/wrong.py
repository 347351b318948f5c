"""A user's mistakes that both type checkers must find: a comment that ignores no error is an error itself."""

from __future__ import annotations

from typing import Any

from asyncdispatch import (
    APICall,
    Applied,
    Attempt,
    Dispatcher,
    DispatcherConfig,
    FlowQuota,
    FunctionCall,
    Mode,
    ObjectRef,
    RateLimit,
    Verdict,
)
from asyncdispatch.rollout import Rollout, Rule
from asyncdispatch.traces import TraceRecorder, what_if

POD = ObjectRef("v1", "Pod", "default", "web-0")


class Read(APICall[str]):
    async def execute(self, attempt: Attempt) -> int:  # type: ignore[override]
        return 1

    def is_noop(self) -> str:  # type: ignore[override]
        return ""

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Applied[int]:  # type: ignore[override]
        return Applied(1)


async def count(attempt: Attempt) -> int:
    return attempt.number


async def no_attempt() -> int:
    return 1


def not_async(attempt: Attempt) -> int:
    return 1


async def mistakes(dispatcher: Dispatcher) -> None:
    call = FunctionCall(count, call_type="count", target=POD)
    dispatcher.submit(count)  # type: ignore[arg-type]
    dispatcher.submit(call, timeout=3)  # type: ignore[call-arg]
    await dispatcher.submit(call).outcome  # type: ignore[misc]
    text: str = await dispatcher.run(call)  # type: ignore[arg-type]
    dispatcher.run_all([call])  # type: ignore[attr-defined]
    dispatcher.contexts.begin(POD, requires=(1,))  # type: ignore[arg-type]
    await dispatcher.switch("sync", "by hand")  # type: ignore[arg-type]
    dispatcher.mode = Mode.SYNC  # type: ignore[misc]
    dispatcher.forget("default/web-0", "gone")  # type: ignore[arg-type]
    text.upper()


def calls() -> None:
    Read(call_type="read")  # type: ignore[call-arg]
    FunctionCall(no_attempt, call_type="count", target=POD)  # type: ignore[arg-type]
    FunctionCall(not_async, call_type="count", target=POD)  # type: ignore[arg-type]
    FunctionCall(count, call_type="count", target="web-0")  # type: ignore[arg-type]
    FunctionCall(count, call_type="count")  # type: ignore[call-arg]
    FunctionCall(count, call_type="count", target=POD, deadline=3.0)  # type: ignore[call-arg]
    FunctionCall(count, call_type="count", target=POD, priority="high")  # type: ignore[arg-type]
    call = FunctionCall(count, call_type="count", target=POD)
    call.priority = 3  # type: ignore[misc]


def configurations(trace: Any) -> None:
    DispatcherConfig(max_in_flight="many")  # type: ignore[arg-type]
    DispatcherConfig(64)  # type: ignore[call-arg]
    DispatcherConfig(flows={"a": 3})  # type: ignore[dict-item]
    DispatcherConfig(rate=100)  # type: ignore[arg-type]
    FlowQuota(seats=3)  # type: ignore[call-arg]
    RateLimit()  # type: ignore[call-arg]
    Verdict("retry")  # type: ignore[arg-type]
    Rollout([Rule("some")])  # type: ignore[call-arg]
    TraceRecorder("trace", 1_000)  # type: ignore[call-arg]
    what_if(trace)  # type: ignore[call-arg]
