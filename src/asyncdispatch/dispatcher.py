"""The dispatcher: the core under an event loop.

Everything here decides nothing. It tells the core the time, performs what the core hands out, and passes on what the
core has settled. All of it runs on one event loop; `submit_threadsafe` is the one door for other threads.
"""

from __future__ import annotations

import asyncio
import bisect
import concurrent.futures
import contextvars
import functools
import logging
import random
import time
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from asyncdispatch._closing import Closing
from asyncdispatch._contexts import Contexts
from asyncdispatch._core.admission import Pressure
from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import FAILED, NEVER, READ, SECOND, SUCCEEDED, TERMINAL, CallState, Entry, place_of
from asyncdispatch._delays import Delays
from asyncdispatch._dumping import dump_dispatcher
from asyncdispatch._observing import Observing
from asyncdispatch._workers import WorkerPool, extra_of
from asyncdispatch.calls import APICall, ObjectRef, validate_call
from asyncdispatch.completions import Completions, CompletionStream
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.errors import (
    AsyncDisabled,
    Backpressure,
    ConfigurationError,
    DeadlineExpired,
    DispatcherClosed,
    DispatchError,
)
from asyncdispatch.handles import CallHandle
from asyncdispatch.outcomes import Expired
from asyncdispatch.rollout.rules import Rollout
from asyncdispatch.statistics import DispatcherStatistics, DrainReport, Mode, Totals, take_statistics

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from prometheus_client import CollectorRegistry

    from asyncdispatch.metrics import DispatcherMetrics

__all__ = ["Contexts", "Dispatcher"]

T = TypeVar("T")
log = logging.getLogger("asyncdispatch")

NOT_ENTERED = "not entered yet: use `async with Dispatcher() as dispatcher`"


OBSERVER_METHODS = ("entered", "accepted", "started", "attempted", "retried", "settled", "mode_changed")


class Dispatcher(Closing, Observing):
    """Takes API calls off the scheduling loop. Use it as `async with Dispatcher(config) as dispatcher`.

    Leaving the block drains within `drain_timeout`; an exception inside closes at once instead. `observers` implement
    any of entered(dispatcher), accepted(handle), started(handle, number), attempted(handle, number, error or None),
    retried(handle, verdict, delay), settled(handle, outcome) and mode_changed(old, new, reason): they run on the event
    loop after each step; their errors are logged and counted. `registry` is prometheus_client's, and shows this one
    dispatcher's metrics (see `asyncdispatch.metrics`). All methods but `submit_threadsafe` belong to the event loop
    that entered it.
    """

    def __init__(
        self,
        config: DispatcherConfig = DispatcherConfig(),
        *,
        rollout: Rollout | None = None,
        registry: CollectorRegistry | None = None,
        observers: Sequence[Any] = (),
    ) -> None:
        if not isinstance(config, DispatcherConfig):
            raise ConfigurationError("config", config, "must be a DispatcherConfig")
        if rollout is not None and not isinstance(rollout, Rollout):
            raise ConfigurationError("rollout", rollout, "must be a Rollout or None")
        self.config = config
        self.rollout = rollout
        self._admits = None if rollout is None else rollout.admits
        self.contexts = Contexts(self)
        self.metrics = None if registry is None else _metrics_of(self, registry)
        self._core = DispatchCore(config, CallHandle, self, None if self.metrics is None else self.metrics.meter)
        self._delays = Delays(config.retry, random.Random())
        self._totals = Totals()
        # But successes, which are what is left of all that was accepted.
        self._outcomes: dict[CallState, int] = dict.fromkeys(TERMINAL, 0)
        self._last_settled: int | None = None
        self._more_attempts = 0  # of handles that were settled, beyond one for each
        self._mode = Mode.ASYNC
        self._mode_event: asyncio.Event
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._room: list[tuple[int, int, asyncio.Future[None]]] = []  # who waits for room, as they will be accepted
        self._room_timer: asyncio.TimerHandle | None = None
        self._arrivals = 0
        self._inbox: deque[tuple[APICall[Any], concurrent.futures.Future[Any], contextvars.Context]] = deque()
        self._inbox_called = False
        self._completions = Completions()
        self._loop: asyncio.AbstractEventLoop
        self._admitting: asyncio.AbstractEventLoop | None = None  # in which any call is dispatched, without a look
        self._now: Callable[[], int] = int  # the loop's clock in nanoseconds, once there is a loop
        self._pool: WorkerPool
        self._state = NOT_ENTERED
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = NEVER
        self._closer: asyncio.Task[DrainReport] | None = None
        self._switches: set[asyncio.Task[None]] = set()  # of switches that were cancelled while they drained
        self._hurried = False  # somebody has no time to drain
        self._watched: list[CallHandle[Any]] | None = None
        self._hooks: dict[str, list[Callable[..., Any]]] = {
            name: [getattr(observer, name) for observer in observers if hasattr(observer, name)]
            for name in OBSERVER_METHODS
        }
        self._on_accepted = bool(self._hooks["accepted"])
        self._on_started = bool(self._hooks["started"])
        self._on_attempted = bool(self._hooks["attempted"])
        self._on_retried = bool(self._hooks["retried"])
        self._on_settled = bool(self._hooks["settled"])
        if self.metrics is not None:
            self.metrics.register(observers)

    # -- entering and leaving -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._state != NOT_ENTERED:
            raise DispatcherClosed("a dispatcher is entered once: make another")
        self._loop = asyncio.get_running_loop()
        self._now = _nanoseconds_of(self._loop)
        self._mode_event = asyncio.Event()
        self._pool = WorkerPool(self)
        self._state = ""
        self._set_admitting()
        self._observe("entered", self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.drain()
        else:
            await self.aclose(f"left by {kind.__name__}")

    # -- submitting ---------------------------------------------------------------------------------------------

    def submit(self, call: APICall[T]) -> CallHandle[T]:
        """Accept the call or refuse it at once; never waits. Always a new handle, for a joiner too.

        Raises `Backpressure` (no room), `StaleContext`, `AsyncDisabled` (mode DRAINING or SYNC, or outside of the
        rollout), `DispatcherClosed`, `MergeFailed`, or `ConfigurationError` for a call that can't be meant. A refused
        call leaves no trace.
        """
        if _get_running_loop() is not self._admitting:
            self._check_admits(call)
        core, pool = self._core, self._pool
        handle: CallHandle[T] | None = core.submit_common(call, self._now())  # type: ignore[assignment]
        if handle is None:
            return self._accept(core.submit_any, call, None)
        if self._on_accepted:
            self._observe("accepted", handle)
        if core.seats.taken + pool.waking < core.seats.limit:
            pool.kick()
        if core.timers.due < self._armed_at:
            self._arm()
        return handle

    def _check_admits(self, call: APICall[Any]) -> None:
        """Raises what `submit` does for a call that may not be dispatched now, or not here."""
        if self._mode is not Mode.ASYNC:
            raise AsyncDisabled(f"mode is {self._mode.value}: use dispatch or run, which know how to wait")
        if self._admits is not None and self._outside(call):
            raise AsyncDisabled("outside of the rollout (see rollout.explain): use dispatch or run")
        self._check_loop()

    def _set_admitting(self) -> None:
        """After each change of what `_check_admits` looks at."""
        every = self._mode is Mode.ASYNC and self._admits is None and not self._state
        self._admitting = self._loop if every else None

    def _submit(self, call: APICall[T], since: int | None) -> CallHandle[T]:
        self._check_loop()
        return self._accept(self._core.submit, call, since)

    def _accept(self, submit: Callable[..., Entry], call: APICall[T], since: int | None) -> CallHandle[T]:
        """Hand it to the core, and pass on what came of that."""
        try:
            handle: CallHandle[T] = submit(call, self._now(), since)  # type: ignore[assignment]
        except DispatchError as error:
            self._totals.refused += 1
            if self.metrics is not None:
                self.metrics.refused(error)
            self._flush()
            raise
        if self._on_accepted:
            self._observe("accepted", handle)
        self._flush()
        return handle

    async def dispatch(self, call: APICall[T]) -> CallHandle[T]:
        """As `submit` in mode ASYNC; in SYNC it returns once the outcome is there; in DRAINING it waits for either.

        A call outside of the rollout is treated as in SYNC.

        Raises what `submit` raises, but `DeadlineExpired` instead of `AsyncDisabled` if it drains for longer than the
        call has time. Cancelling it while it waits in SYNC cancels the call.
        """
        if self._mode is Mode.DRAINING:
            self._check_loop()
            validate_call(call)
            await self._mode_settled(call, self._now(), self._deadline(call))
        outside = self._admits is not None and self._outside(call)
        handle = self._submit(call, None)
        if outside or self._mode is Mode.SYNC:
            try:
                await handle.outcome()
            except asyncio.CancelledError:
                handle.cancel("dispatch was cancelled")
                raise
        return handle

    def _outside(self, call: APICall[Any]) -> bool:
        """True if the rollout leaves it out."""
        self._check_loop()
        validate_call(call)
        return self._admits is not None and not self._admits(call)

    async def run(self, call: APICall[T]) -> T:
        """Wait for room, then for the result. The call's time-out counts from here. Cancelling it cancels the call."""
        self._check_loop()
        validate_call(call)
        since = self._now()
        deadline = self._deadline(call)
        self._arrivals = arrival = self._arrivals + 1
        while True:
            if self._mode is Mode.DRAINING:
                await self._mode_settled(call, since, deadline)
            try:
                handle = self._submit(call, since)
                break
            except Backpressure as full:
                await self._wait_for_room(call, full, arrival, since, deadline)
        try:
            return await handle
        except asyncio.CancelledError:
            handle.cancel("run was cancelled")
            raise

    def _deadline(self, call: APICall[Any]) -> int:
        timeout = getattr(call, "timeout", None)
        return self._now() + nanoseconds(self.config.timeout if timeout is None else timeout)

    async def _mode_settled(self, call: APICall[Any], since: int, deadline: int) -> None:
        while self._mode is Mode.DRAINING and not self._state:
            remaining = (deadline - self._now()) / SECOND
            if remaining <= 0:
                raise self._too_late(call, "waited for the mode to settle", since)
            with anyio.move_on_after(remaining):
                await self._mode_event.wait()

    def _too_late(self, call: APICall[Any], what: str, since: int) -> DeadlineExpired:
        """Its time was over before it could be accepted."""
        elapsed = (self._now() - since) / SECOND
        outcome: Expired[Any] = Expired("queued", queued_seconds=elapsed, elapsed_seconds=elapsed)
        return DeadlineExpired(f"{call.call_type} of {call.target} {what} until its time was over", outcome)

    async def _wait_for_room(
        self, call: APICall[Any], full: Backpressure, arrival: int, since: int, deadline: int
    ) -> None:
        now = self._now()
        if now >= deadline:
            raise self._too_late(call, "waited for room", since) from full
        future: asyncio.Future[None] = self._loop.create_future()
        # By the key that they will have in the queue: the urgent first, and nobody waits for ever (law L6).
        level = self._core.level_of(call.priority)
        place = (self._core.ordering.key_of(level, place_of(since, 0)), arrival, future)
        bisect.insort(self._room, place)
        if self._room_timer is None:  # one for all, so that they look for room in their order
            self._room_timer = self._loop.call_later(full.retry_after, self._made_room)
        timer = self._loop.call_later((deadline - now) / SECOND, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            if place in self._room:
                self._room.remove(place)
            if not self._room:
                self._stop_room_timer()

    def submit_threadsafe(self, call: APICall[T]) -> concurrent.futures.Future[T]:
        """Submit from another thread. The future gets the value, or the error that `submit` or `await handle` raises.

        Cancelling the future cancels the call. Raises `Backpressure` if as many as the capacity wait to be taken in.
        """
        if self._state:
            raise DispatcherClosed(self._state)
        if len(self._inbox) >= self.config.capacity:
            raise Backpressure(1.0, len(self._inbox), self.config.capacity, "total")
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._inbox.append((call, future, contextvars.copy_context()))  # observers see the submitter's own
        if not self._inbox_called:
            self._inbox_called = True
            self._loop.call_soon_threadsafe(self._take_in)
        return future

    def _take_in(self) -> None:
        self._inbox_called = False
        while self._inbox:
            call, future, context = self._inbox.popleft()
            if future.cancelled():
                future.set_running_or_notify_cancel()
                continue
            try:
                handle = context.run(self.submit, call)
            except Exception as error:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            else:
                handle.add_done_callback(functools.partial(_hand_over, future))
                future.add_done_callback(functools.partial(self._cancelled_outside, handle))

    def _cancelled_outside(self, handle: CallHandle[Any], future: concurrent.futures.Future[Any]) -> None:
        """In any thread: the future is done, perhaps because it was cancelled."""
        if future.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(handle.cancel, "its future was cancelled")

    def _fail_inbox(self) -> None:
        while self._inbox:
            _, future, _ = self._inbox.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(DispatcherClosed(self._state))

    # -- ending calls -------------------------------------------------------------------------------------------

    def _cancel(self, handle: Entry, reason: str) -> bool:
        self._check_thread()
        done = self._core.cancel(handle, reason, self._now())
        self._flush()
        return done

    def forget(self, ref: ObjectRef, reason: str) -> int:
        """The object is gone: cancel what waits or flies for it or depends on it. Returns how many were cancelled.

        With a uid, only that object is meant: calls for a newer one of the same name go on. A deletion that was sent is
        left to its answer.
        """
        if not isinstance(ref, ObjectRef):
            raise ConfigurationError("ref", ref, "must be an ObjectRef: see ObjectRef.of")
        core, now = self._step()
        count = core.forget(ref, reason, now)
        self._flush()
        return count

    def cancel_flow(self, flow: str, reason: str) -> int:
        """Cancel all calls of one flow. Returns how many."""
        core, now = self._step()
        count = core.cancel_flow(flow, reason, now)
        self._flush()
        return count

    # -- looking ------------------------------------------------------------------------------------------------

    def completions(self, maxsize: int = 1024) -> CompletionStream:
        """Subscribe to completions: `async with dispatcher.completions() as stream: async for completion in stream`."""
        return self._completions.subscribe(maxsize)

    def statistics(self) -> DispatcherStatistics:
        """Frozen counts of this moment. Costs a look at every waiting call: not for the hot path."""
        now = self._now() if not self._state or self._closer is not None else 0
        outcomes = {**self._outcomes, SUCCEEDED: self._succeeded}
        attempts = self._more_attempts + sum(outcomes.values())
        retried = 0
        if hasattr(self, "_pool"):
            attempts += sum(entry.attempts for entry in self._pool.flying())
            retried = self._pool.retried
        return take_statistics(
            self._core, self._mode, self._totals, outcomes, attempts, retried, self._last_settled, now
        )

    def dump(self, *, limit: int = 100) -> dict[str, Any]:
        """What waits and why, what flies, what would start next, and what holds calls back, as JSON (see the docs).

        At most `limit` rows of each. No bodies and no messages of errors. Works in every state; costs a few looks at
        each live call. Raises `ConfigurationError` for a wrong limit, and outside of its event loop while it runs.
        """
        return dump_dispatcher(self, limit)

    @property
    def _succeeded(self) -> int:
        """How many calls have succeeded: all that were accepted, but those without an outcome or with another."""
        core = self._core
        return core.admission.tickets - core.admission.depth - core.admission.joined - sum(self._outcomes.values())

    @property
    def pressure(self) -> Pressure:
        """OK, HIGH or FULL, of what ordinary calls may take."""
        return self._core.admission.pressure

    @property
    def mode(self) -> Mode:
        return self._mode

    async def switch(self, mode: Mode, reason: str) -> None:
        """Switch by hand. To SYNC it goes through DRAINING until the accepted calls end, or `drain_timeout`.

        Cancelled meanwhile, it goes on by itself: nothing but another switch, or closing, leaves it DRAINING.
        """
        if not isinstance(mode, Mode):
            raise ConfigurationError("mode", mode, "must be a Mode")
        self._check_thread()
        if mode is Mode.SYNC and self._mode is not Mode.SYNC:
            self._set_mode(Mode.DRAINING, reason)
            until = self._now() + nanoseconds(self.config.drain_timeout)
            try:
                await self._drained_to_sync(until, reason)
            except asyncio.CancelledError:
                going_on = self._loop.create_task(self._drained_to_sync(until, reason), name="asyncdispatch-switch")
                self._switches.add(going_on)
                going_on.add_done_callback(self._switches.discard)
                raise
        else:
            self._set_mode(mode, reason)

    async def _drained_to_sync(self, until: int, reason: str) -> None:
        """Wait for the accepted calls; unless somebody else has switched meanwhile, the mode is SYNC then."""
        while self._core.admission.depth and self._now() < until and self._mode is Mode.DRAINING and not self._state:
            if not await self._idle_or(until):
                break
        if self._mode is Mode.DRAINING and not self._state:
            self._set_mode(Mode.SYNC, reason)

    def _set_mode(self, mode: Mode, reason: str) -> None:
        old, self._mode = self._mode, mode
        if mode is old:
            return
        self._set_admitting()
        log.info("mode %s -> %s: %s", old.value, mode.value, reason, extra={"mode": mode.value, "reason": reason})
        if self.metrics is not None:
            self.metrics.mode_changed(mode)
        self._observe("mode_changed", old, mode, reason)
        self._mode_event.set()
        self._mode_event = asyncio.Event()
        self._wake_idle()

    def __repr__(self) -> str:
        core = self._core
        state = self._state or self._mode.value
        return f"<Dispatcher {state} depth={core.admission.depth}/{core.admission.total} in_flight={core.seats.taken}>"

    # -- one step -----------------------------------------------------------------------------------------------

    def _step(self) -> tuple[DispatchCore, int]:
        self._check_thread()
        return self._core, self._now()

    def _check_thread(self) -> None:
        """The right loop, also while closing."""
        if not hasattr(self, "_loop"):
            raise DispatcherClosed(self._state)
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            where = "no event loop (another thread?)" if running is None else "another event loop"
            raise ConfigurationError("loop", where, "belongs to the loop that entered it; use submit_threadsafe")

    def _check_loop(self) -> None:
        """The right loop, and running."""
        self._check_thread()
        if self._state:
            raise DispatcherClosed(self._state)

    def _flush(self) -> None:
        """Pass on what the last step has settled, stopped or asked for; wake who may work; set the timer."""
        core = self._core
        while core.settled:
            batch, core.settled = core.settled, []
            for handle in batch:
                self._settle(handle)  # type: ignore[arg-type]  # the core's entries are our handles
        if core.stops or core.objects.wanted:
            self._pass_on()
        if core.seats.taken + self._pool.waking < core.seats.limit:
            self._pool.kick()
        if core.timers.due < self._armed_at:
            self._arm()

    def _pass_on(self) -> None:
        core = self._core
        while core.stops:
            stops, core.stops = core.stops, []
            self._pool.stop(stops)
        while core.objects.wanted:
            wanted, core.objects.wanted = core.objects.wanted, []
            for ref, ticket, call_type in wanted:
                self._completions.publish(ref, None, ticket, call_type, None, needs_read=True)

    def _made_room(self) -> None:
        """Handles have ended: whoever waits for room, or for the last of them, may look again."""
        self._stop_room_timer()
        room = self._room.copy()
        self._room.clear()
        for *_, future in room:
            _wake(future)
        self._wake_idle()

    def _stop_room_timer(self) -> None:
        if self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None

    def _wake_idle(self) -> None:
        for future in list(self._idle_waiters):
            _wake(future)

    def _settle(self, handle: CallHandle[Any]) -> None:
        """Tell whoever waits for a handle, or for the room that it leaves."""
        self._last_settled = handle.ended
        self._more_attempts += handle.attempts - 1
        if handle.phase is not SUCCEEDED:
            self._settle_badly(handle)
        if self._completions.streams:
            self._publish(handle)
        if self._on_settled:
            self._observe("settled", handle, handle.settled)
        waiters = handle.waiter
        if waiters is not None:
            handle.waiter = None
            for waiter in waiters:
                if isinstance(waiter, asyncio.Future):
                    if not waiter.done():
                        waiter.set_result(None)
                else:
                    self._call_back(handle, waiter)
        if self._room or self._idle_waiters:
            self._made_room()

    def _publish(self, handle: CallHandle[Any]) -> None:
        more, call, outcome = handle.more, handle.call, handle.settled
        assert outcome is not None
        epoch = more.epoch.context.epoch if more is not None and more.epoch is not None else None
        doubt = outcome.ambiguous and call.effect is not READ
        self._completions.publish(call.target, epoch, handle.ticket, call.call_type, outcome, doubt)

    def _settle_badly(self, handle: CallHandle[Any]) -> None:
        outcome = handle.settled
        assert outcome is not None
        if handle.state is not SUCCEEDED:  # a joiner succeeds where its lead has left
            self._outcomes[handle.state] += 1
        if self._watched is not None:
            self._watched.append(handle)
        if outcome.ambiguous:
            self._totals.ambiguous += 1
        if outcome.ambiguous or handle.state is FAILED:
            harmless = handle.call.effect is READ  # often a question whether something is there
            log.log(
                logging.DEBUG if harmless else logging.WARNING,
                "call %d ended: %s%s",
                handle.ticket,
                type(outcome).__name__,
                " and may have been applied" if outcome.ambiguous else "",
                extra=extra_of(handle) | {"outcome": type(outcome).__name__, "cause": repr(outcome.cause)},
            )

    # -- user code ----------------------------------------------------------------------------------------------

    def _call_back(self, handle: CallHandle[Any], fn: Callable[[CallHandle[Any]], object]) -> None:
        self._loop.call_soon(self._guarded, fn, handle)

    def _guarded(self, fn: Callable[[CallHandle[Any]], object], handle: CallHandle[Any]) -> None:
        try:
            fn(handle)
        except BaseException:
            self._totals.observer_errors += 1
            log.exception("a done callback of call %d raised", handle.ticket, extra=extra_of(handle))

    def _observe(self, method: str, *args: Any) -> None:
        for hook in self._hooks[method]:
            try:
                hook(*args)
            except BaseException:
                self._totals.observer_errors += 1
                log.exception("observer method %s raised", method)

    def _blocked(self, call: APICall[Any], seconds: float) -> None:
        """One step of user code has held the event loop (rule R20)."""
        self._totals.blocked += 1
        log.warning(
            "%s of %s blocked the event loop for %.3f s: await instead, or use a thread",
            call.call_type,
            call.target,
            seconds,
            extra={"object": str(call.target), "flow": call.flow, "call_type": call.call_type, "seconds": seconds},
        )

    def _broken(self, error: BaseException) -> None:
        """A worker has died of a defect of ours: nothing must wait for it for ever."""
        log.critical("a worker has failed, the dispatcher closes: %r", error, exc_info=error)
        if self._closer is None:
            self._closer = self._loop.create_task(self._close(f"internal error: {error!r}", 0.0, False))

    # -- the one timer ------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        self._arm_at(min(self._core.wake_at(self._now()), self._armed_at))

    def _arm_at(self, when: int) -> None:
        if when >= self._armed_at and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_at = when
        if when < NEVER:
            self._timer = self._loop.call_at(when / SECOND, self._ring)

    def _ring(self) -> None:
        """The timer: what is due in the core, then the attempts whose time is over."""
        self._timer = None
        self._armed_at = NEVER
        now = max(self._now(), 0)
        self._core.tick(now)
        soonest = self._pool.sweep(now)
        self._flush()
        self._arm_at(min(soonest, self._core.wake_at(now), self._armed_at))


def _nanoseconds_of(loop: asyncio.AbstractEventLoop) -> Callable[[], int]:
    """The loop's clock. asyncio's own is the monotonic one, which can be read three times as fast."""
    if getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time:
        return time.monotonic_ns
    return lambda: int(loop.time() * SECOND + 0.5)  # not below a whole time that the timer was set for


def _metrics_of(dispatcher: Dispatcher, registry: CollectorRegistry) -> DispatcherMetrics:
    from asyncdispatch.metrics import DispatcherMetrics  # who has no registry need not wait for its import

    return DispatcherMetrics(dispatcher, registry)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _hand_over(future: concurrent.futures.Future[Any], handle: CallHandle[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        value = handle.result()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(value)
