"""How a dispatcher ends (law L15, rule R16): it drains, then stops what is left, then waits for that, in one budget."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio

from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.states import SECOND
from asyncdispatch.config import DispatcherConfig, check_seconds
from asyncdispatch.statistics import DrainReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncdispatch._core.short import DispatchCore
    from asyncdispatch._workers import WorkerPool
    from asyncdispatch.completions import Completions
    from asyncdispatch.handles import CallHandle


class Closing:
    """`drain` and `aclose`."""

    if TYPE_CHECKING:
        config: DispatcherConfig
        _core: DispatchCore
        _loop: asyncio.AbstractEventLoop
        _now: Callable[[], int]
        _pool: WorkerPool
        _state: str
        _hurried: bool
        _closer: asyncio.Task[DrainReport] | None
        _switches: set[asyncio.Task[None]]

        @property
        def _succeeded(self) -> int: ...

        _watched: list[CallHandle[Any]] | None
        _idle_waiters: list[asyncio.Future[None]]
        _timer: asyncio.TimerHandle | None
        _completions: Completions
        _mode_event: asyncio.Event

        def _check_thread(self) -> None: ...
        def _set_admitting(self) -> None: ...
        def _flush(self) -> None: ...
        def _fail_inbox(self) -> None: ...
        def _made_room(self) -> None: ...
        def _wake_idle(self) -> None: ...

    async def drain(self, timeout: float | None = None) -> DrainReport:
        """Accept nothing more and let what is there finish or expire within `timeout` seconds; then close. Final.

        Cancelling it closes at once, waits until every attempt has ended or was given up, and is then re-raised.
        """
        return await self._end("drained", timeout, drain=True)

    async def aclose(self, reason: str = "closed", timeout: float | None = None) -> DrainReport:
        """Accept nothing more and cancel everything. Waits for attempts in flight, `timeout` seconds at most."""
        return await self._end(reason, timeout, drain=False)

    async def _end(self, reason: str, timeout: float | None, *, drain: bool) -> DrainReport:
        if timeout is not None:
            check_seconds("timeout", timeout, zero=True)
        self._check_thread()
        if self._closer is None:
            seconds = self.config.drain_timeout if timeout is None else timeout
            self._closer = self._loop.create_task(self._close(reason, seconds, drain), name="asyncdispatch-closer")
        elif not drain:
            self._hurry()
        cancelled: asyncio.CancelledError | None = None
        while not self._closer.done():
            try:
                await asyncio.shield(self._closer)
            except asyncio.CancelledError as error:
                if self._closer.cancelled():
                    raise
                cancelled = error  # we leave nothing behind: close at once, then be cancelled
                self._hurry()
        if cancelled is not None:
            raise cancelled
        return self._closer.result()

    def _hurry(self) -> None:
        """No more time to drain: close at once."""
        self._hurried = True
        self._wake_idle()

    async def _close(self, reason: str, seconds: float, drain: bool) -> DrainReport:
        """One budget for all of it: drain, then stop what is left, then wait for it (rule R16)."""
        began = self._now()
        until = began + nanoseconds(seconds)
        before = self._succeeded
        self._watched = []
        self._state = "draining for good" if drain else f"closed: {reason}"
        self._set_admitting()
        core = self._core
        if drain:
            core.drain(until, began)
            self._flush()
            await self._until_idle(until)
        core.close(reason, self._now())
        self._state = f"closed: {reason}"
        self._flush()
        self._fail_inbox()
        self._made_room()
        grace = max(until, self._now() + nanoseconds(self.config.give_up) if drain else until)
        await self._until_landed(grace)
        running = tuple(
            f"<Attempt {e.ticket}-{e.attempts} of {e.call.call_type} {e.call.target}>" for e in self._pool.flying()
        )
        self._pool.shut_down()
        tasks = [*self._pool.tasks, *self._switches]
        if tasks:
            await asyncio.wait(tasks, timeout=0 if running else None)
        now = self._now()
        for entry in core.executions():
            if entry.phase.flying:
                core.give_up(entry, now)
        self._flush()
        if self._timer is not None:
            self._timer.cancel()
        self._completions.close()
        self._mode_event.set()
        watched, self._watched = self._watched, None
        finished = self._succeeded - before
        return _report(reason, (now - began) / SECOND, finished, watched, running)

    async def _until_idle(self, until: int) -> None:
        while self._core.admission.depth + self._core.admission.joined and not self._hurried:
            if not await self._idle_or(until):
                return

    async def _until_landed(self, until: int) -> None:
        while self._pool.flying():
            if not await self._idle_or(until):
                return

    async def _idle_or(self, until: int) -> bool:
        """Wait for something to end, or for somebody in a hurry. False once `until` has come."""
        remaining = (until - self._now()) / SECOND
        if remaining <= 0:
            return False
        future: asyncio.Future[None] = self._loop.create_future()
        self._idle_waiters.append(future)
        try:
            with anyio.move_on_after(remaining):
                await future
        finally:
            self._idle_waiters.remove(future)
        return True


def _report(
    reason: str, seconds: float, finished: int, watched: list[CallHandle[Any]], running: tuple[str, ...]
) -> DrainReport:
    return DrainReport(
        reason=reason,
        seconds=seconds,
        finished=finished,
        may_exist=tuple(h for h in watched if h.settled is not None and h.settled.ambiguous),
        never_started=tuple(h for h in watched if h.settled is not None and not h.settled.attempts),
        not_deleted=tuple(h for h in watched if getattr(h.call, "deletes", False)),
        still_running=running,
    )
