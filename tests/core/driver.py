"""The step driver with the words of these tests: a call and an object may be left out."""

from __future__ import annotations

from typing import Any

from asyncdispatch._core.machine import Machine
from asyncdispatch.calls import APICall, ObjectRef
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.handles import CallHandle
from asyncdispatch.testing import VirtualClock
from asyncdispatch.testing.stepping import StepDriver
from tests.core.words import SECOND, START, Call, pod


class Driver(StepDriver):
    """A driver whose time begins at `now`, in ns. `short=False`: its core does without the short ways."""

    def __init__(
        self, config: DispatcherConfig | None = None, *, now: int = START, check: bool = True, short: bool = True
    ) -> None:
        config = config or DispatcherConfig()
        core = None if short else Machine(config, CallHandle, self)
        super().__init__(config, clock=VirtualClock(now / SECOND), check=check, core=core)

    def submit(self, call: APICall[Any] | None = None, /, **fields: Any) -> CallHandle[Any]:
        return super().submit(call if call is not None else Call(**fields))

    def begin(self, ref: ObjectRef | None = None, **options: Any) -> SchedulingContext:
        return super().begin(ref or pod(), **options)

    def observe(
        self, ref: ObjectRef | None = None, version: int | None = None, *, deleting: bool = False, fresh: bool = False
    ) -> tuple[bool, list[Any]]:
        return super().observe(ref or pod(), version, deleting=deleting, fresh=fresh)

    def forget(self, ref: ObjectRef | None = None, reason: str = "gone") -> int:
        return super().forget(ref or pod(), reason)
