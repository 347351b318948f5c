"""Helpers for the tests of the asyncio shell: calls made of a line, and a dispatcher that is checked as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from asyncdispatch import Attempt, Dispatcher, DispatcherConfig, FunctionCall, ObjectRef
from asyncdispatch._core.invariants import check_invariants

START = 1_000.0
"""What the loop's clock says when a test begins."""

Function = Callable[[Attempt], Awaitable[Any]]


def pod(name: str = "p", uid: str | None = None) -> ObjectRef:
    return ObjectRef("v1", "Pod", "ns", name, uid)


def node(name: str = "n", uid: str | None = None) -> ObjectRef:
    return ObjectRef("v1", "Node", None, name, uid)


def pod_dict(name: str = "p", uid: str | None = "u1", version: int | None = None, **more: Any) -> dict[str, Any]:
    """A Pod as the API server sends it."""
    meta: dict[str, Any] = {"name": name, "namespace": "ns"}
    if uid is not None:
        meta["uid"] = uid
    if version is not None:
        meta["resourceVersion"] = str(version)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, **more}


async def at_once(attempt: Attempt) -> str:
    return "done"


async def for_ever(attempt: Attempt) -> None:
    await asyncio.get_running_loop().create_future()


def after(seconds: float, value: Any = "done") -> Function:
    """An `execute` that takes its time."""

    async def execute(attempt: Attempt) -> Any:
        await asyncio.sleep(seconds)
        return value

    return execute


def stubborn(seconds: float, value: Any = "late") -> Function:
    """An `execute` that swallows every cancellation until its time is over."""

    async def execute(attempt: Attempt) -> Any:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 1e-5:  # finer than the clock of virtual time
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                pass
        return value

    return execute


def raising(error: BaseException) -> Function:
    async def execute(attempt: Attempt) -> Any:
        raise error

    return execute


class Script:
    """An `execute` that follows a script: each attempt takes the next entry, an exception to raise or a value."""

    def __init__(self, *steps: Any, seconds: float = 0.0) -> None:
        self.steps = list(steps)
        self.seconds = seconds
        self.times: list[float] = []
        """When each attempt began."""
        self.attempts: list[Attempt] = []

    async def __call__(self, attempt: Attempt) -> Any:
        self.times.append(now())
        self.attempts.append(attempt)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, BaseException):
            raise step
        return step


class StatusError(Exception):
    """An API error as plain functions raise it."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def call(fn: Function = at_once, name: str = "p", **fields: Any) -> FunctionCall[Any]:
    fields.setdefault("target", pod(name))
    fields.setdefault("call_type", "write")
    return FunctionCall(fn, **fields)


def block(seconds: float) -> None:
    """Hold the event loop."""
    until = perf_counter() + seconds
    while perf_counter() < until:
        pass


async def turns(count: int = 10) -> None:
    """Let everything run that is ready; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)


def shown(value: Any) -> str:
    """For the name of a test: no address, no space."""
    text = getattr(value, "__name__", None) or repr(value)
    return (type(value).__name__ if " at 0x" in text else text).replace(" ", "_")[:40]


def now() -> float:
    """Seconds since the test began."""
    return asyncio.get_running_loop().time() - START


def just_after(seconds: float) -> bool:
    """True if it is so late now: what is due by a deadline is done within a tenth of a second (law L5)."""
    return seconds <= now() <= seconds + 0.1


@asynccontextmanager
async def running(*, observers: tuple[Any, ...] = (), **fields: Any) -> AsyncIterator[Dispatcher]:
    """A dispatcher; when it is left well, every law must hold and no task of it may be left."""
    tasks = asyncio.all_tasks()
    async with Dispatcher(DispatcherConfig(**fields), observers=observers) as dispatcher:
        yield dispatcher
    await turns(3)
    assert asyncio.all_tasks() <= tasks
    check_invariants(dispatcher._core, dispatcher._now())
    assert dispatcher.statistics().depth == 0


class Recorder:
    """An observer that writes down everything."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def accepted(self, handle: Any) -> None:
        self.events.append(("accepted", handle.ticket))

    def started(self, handle: Any, number: int) -> None:
        self.events.append(("started", handle.ticket, number))

    def attempted(self, handle: Any, number: int, error: BaseException | None) -> None:
        self.events.append(("attempted", handle.ticket, number, error))

    def retried(self, handle: Any, verdict: Any, delay: float) -> None:
        self.events.append(("retried", handle.ticket, verdict.kind.value, delay))

    def settled(self, handle: Any, outcome: Any) -> None:
        self.events.append(("settled", handle.ticket, type(outcome).__name__))

    def mode_changed(self, old: Any, new: Any, reason: str) -> None:
        self.events.append(("mode_changed", old.value, new.value, reason))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [event for event in self.events if event[0] == kind]
