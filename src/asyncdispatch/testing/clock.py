"""Virtual time: a clock that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from asyncdispatch.config import check_seconds
from asyncdispatch.errors import ConfigurationError

__all__ = ["VirtualClock"]

T = TypeVar("T")

SECOND = 1_000_000_000
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
"""What the calendar says when the clock says 0."""


class VirtualClock:
    """Seconds that pass when they are told to, never by waiting. Called, it says what time it is, as `time.monotonic`.

    By itself it is the time of a step driver. `new_event_loop` makes an event loop that lives by it, so that a
    `Dispatcher`, which takes its time from its loop, does too: there time passes as soon as the loop has nothing to do
    but to wait, and `await asyncio.sleep(3600)` takes a moment. Raises `ConfigurationError` if `start` is none.
    """

    def __init__(self, start: float = 1_000.0) -> None:
        check_seconds("start", start, zero=True)
        self._ns = round(start * SECOND)
        self._loop: Any = None

    def __call__(self) -> float:
        return self.ns / SECOND

    @property
    def ns(self) -> int:
        """What time it is, in nanoseconds."""
        return self._ns if self._loop is None else round(self._loop.time() * SECOND)

    def advance(self, seconds: float) -> None:
        """Let time pass while nobody looks, as when the event loop is blocked: what was due meanwhile is late.

        A prompt loop does what is due as it is due: for that, `await asyncio.sleep(…)`, or `advance` of a driver.
        """
        check_seconds("seconds", seconds, zero=True)
        self.move_to(self.ns + round(seconds * SECOND))

    def move_to(self, ns: int) -> None:
        """As `advance`, to a time in nanoseconds. Raises `ConfigurationError` for one in the past."""
        if ns < self.ns:
            raise ConfigurationError("ns", ns, f"time does not go back: it is {self.ns} already")
        if self._loop is None:
            self._ns = ns
        else:
            self._loop.setup_looptime(start=ns / SECOND)

    def date(self) -> datetime:
        """The calendar's time, for what writes timestamps: `EmbeddedAPIServer(now=clock.date)`."""
        return EPOCH + timedelta(seconds=self())

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop that lives by this clock: `asyncio.Runner(loop_factory=clock.new_event_loop)`.

        A clock has one loop at a time: that of the next one begins where the last one's has ended.
        """
        import looptime  # here, since the step driver needs no loop

        self._ns, self._loop = self.ns, None
        loop: asyncio.AbstractEventLoop = looptime.new_event_loop(start=self())
        self._loop = loop
        return loop

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the time of a loop that looptime has made, or has prepared (as it does those of pytest's tests).

        Raises `ConfigurationError` for any other.
        """
        if not hasattr(loop, "setup_looptime"):
            raise ConfigurationError("loop", loop, "its time is real: let `new_event_loop`, or looptime, make it")
        self._loop = loop

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """As `asyncio.run`, in virtual time."""
        with asyncio.Runner(loop_factory=self.new_event_loop) as runner:
            return runner.run(main)

    def __repr__(self) -> str:
        return f"<VirtualClock {self():.6f} s>"
