"""Long-lived workers: each asks the core for an execution, performs it, reports, and asks again.

No task and no cancel scope is made per call. An attempt's time-out is a number in its worker's slot, watched by one
timer; when it is over, or the core asks an attempt to stop, the worker's task is cancelled and afterwards uncancelled,
as `asyncio.timeout` does it, and told apart from a cancellation from outside by the worker's `cause`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import types
from collections.abc import Callable, Generator
from dataclasses import replace
from time import monotonic_ns
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.parking import Failure, Signal
from asyncdispatch._core.states import SECOND, STOPPING, Entry
from asyncdispatch._judging import answer_of, failure_of, refusal_of
from asyncdispatch.calls import Again, APICall, Attempt, Unknown, Verdict, VerdictKind
from asyncdispatch.errors import ConfigurationError

if TYPE_CHECKING:
    from asyncdispatch.dispatcher import Dispatcher

log = logging.getLogger("asyncdispatch")

TIMED_OUT = "timed out"
ASKED_TO_STOP = "asked to stop"
SHUT_DOWN = "shut down"

_new = object.__new__

YIELD_EVERY = 64
"""A worker whose calls never suspend gives way to the rest of the loop after so many."""

SUCCESSOR_AFTER = SECOND // 10
"""When another takes up what a worker that was cancelled from outside has left, if nobody has until then."""


class Abandoned(GeneratorExit):
    """The event loop is gone: the worker is closed, it is not user code that has raised."""


class Worker:
    """One long-lived task and the slot that says what it performs."""

    __slots__ = ("begun", "cause", "deadline", "entry", "started", "task", "value", "waker")

    def __init__(self) -> None:
        self.begun = False  # a task may be cancelled before its first step
        self.task: asyncio.Task[None]
        self.entry: Entry | None = None
        self.started = 0  # ns; of a reconcile
        self.deadline = 0  # ns; when its attempt is cut off
        self.value: Any = None  # of a call that has just ended well
        self.cause: str | None = None  # why its task was cancelled by us
        self.waker: asyncio.Future[None] | None = None


class WorkerPool:
    """Workers, parked last in first out; woken one for each call that may start."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._core = dispatcher._core
        self._loop = dispatcher._loop
        self._config = dispatcher.config
        self._clock = dispatcher._loop.time
        self._attempt_timeout = round(dispatcher.config.attempt_timeout * SECOND)
        self._threshold = round(dispatcher.config.blocking_threshold * SECOND)
        self._workers: dict[int, Worker] = {}
        self._numbers = 0
        self._parked: list[Worker] = []
        self.waking = 0
        self._closing = False
        self.retried = 0  # attempts after a call's first

    # -- waking -------------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Wake, or make, one worker for each call that may start and has none yet."""
        core = self._core
        seats = core.seats
        free = seats.limit - seats.taken - self.waking
        if free <= 0 or not core.can_start(self._dispatcher._now):
            return
        wanted = min(free, len(core.ordering) - self.waking)
        while wanted > 0:
            if self._parked:
                worker = self._parked.pop()
                assert worker.waker is not None
                worker.waker.set_result(None)
            elif len(self._workers) < seats.maximum and not self._closing:
                self._spawn()
            else:
                return
            self.waking += 1
            wanted -= 1

    def _spawn(self) -> None:
        worker = Worker()
        self._numbers += 1
        number = self._numbers
        name = f"asyncdispatch-worker-{number}"
        worker.task = self._loop.create_task(self._main(worker), name=name)
        self._workers[number] = worker
        worker.task.add_done_callback(lambda task: self._ended(number, task))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        worker = self._workers.pop(number)
        if not worker.begun:
            self.waking -= 1
        self._dispatcher._wake_idle()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._dispatcher._broken(error)
        elif not self._closing:
            # Cancelled from outside. Soon, not now: it may be asyncio, which cancels all tasks of a loop that ends.
            self._dispatcher._arm_at(self._dispatcher._now() + SUCCESSOR_AFTER)

    def flying(self) -> list[Entry]:
        """The executions that are performed now."""
        return [worker.entry for worker in self._workers.values() if worker.entry is not None]

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [worker.task for worker in self._workers.values()]

    def shut_down(self) -> None:
        """Cancel every worker: parked ones end at once, the others as soon as their attempts let them."""
        self._closing = True
        for worker in list(self._workers.values()):
            worker.cause = SHUT_DOWN
            worker.task.cancel()

    # -- time-outs and stops ------------------------------------------------------------------------------------

    def stop(self, entries: list[Entry]) -> None:
        """Ask the attempts of executions to end."""
        workers = {worker.entry.ticket: worker for worker in self._workers.values() if worker.entry is not None}
        for entry in entries:
            if (worker := workers.get(entry.ticket)) is not None:
                self._cancel(worker, ASKED_TO_STOP)

    def _cancel(self, worker: Worker, cause: str) -> None:
        if worker.cause is not None:
            return
        worker.cause = cause
        if asyncio.current_task(self._loop) is worker.task:
            # It asks itself: not before it has suspended, or the cancellation would hit our own next await.
            self._loop.call_soon(self._cancel_later, worker, worker.entry)
        else:
            worker.task.cancel()

    @staticmethod
    def _cancel_later(worker: Worker, entry: Entry | None) -> None:
        if worker.entry is entry and worker.cause is not None:
            worker.task.cancel()

    def sweep(self, now: int) -> int:
        """Cut off the attempts whose time is over. Returns when the next one's is."""
        soonest = 1 << 120
        for worker in self._workers.values():
            entry = worker.entry
            if entry is None or worker.cause is not None:
                continue
            if worker.deadline <= now:
                # a later joiner may have moved it (law L5)
                reconciling = entry.more is not None and entry.more.reconciling
                began = worker.started if reconciling else entry.started
                worker.deadline = min(began + self._time_for(entry), self._core.limit(entry))
                if worker.deadline <= now:
                    self._cancel(worker, TIMED_OUT)
                    continue
            soonest = min(soonest, worker.deadline)
        return soonest

    def _time_for(self, entry: Entry) -> int:
        """What one try, or one reconcile, may take."""
        if entry.more is None or not entry.more.reconciling:
            return self._attempt_timeout
        return round((entry.call.retry or self._config.retry).reconcile_timeout * SECOND)

    # -- working ------------------------------------------------------------------------------------------------

    async def _main(self, worker: Worker) -> None:
        await self._work(worker)

    @types.coroutine
    def _work(self, worker: Worker) -> Generator[Any, Any, None]:
        """Ask the core, perform, report, tell; park when there is nothing to do.

        The steps of user code are driven from here, as `await` would drive them, without a coroutine of ours for each
        call; and each step is timed, so that one that holds the loop for too long is named (rule R20).
        """
        dispatcher, core, parked = self._dispatcher, self._core, self._parked
        now_of, turn, arm_at, tick = dispatcher._now, core.turn, dispatcher._arm_at, monotonic_ns
        clock, threshold, attempt_timeout = self._clock, self._threshold, self._attempt_timeout
        streams, rooms, idlers = dispatcher._completions.streams, dispatcher._room, dispatcher._idle_waiters
        # Nobody watches call by call.
        plain = not (dispatcher._on_started or dispatcher._on_attempted or dispatcher._on_settled)
        same_clock = now_of is tick
        worker.begun = True
        self.waking -= 1
        runner, send = _start_runner(worker)
        streak = 0
        entry = core.next(now_of())
        while True:
            if core.settled or core.stops:
                self.waking += entry is None  # it looks for work itself: nobody need be woken for the next call
                dispatcher._flush()
                self.waking -= entry is None
            if entry is None:
                if self._closing:
                    return  # it may have swallowed the cancellation that was for us
                if streak >= YIELD_EVERY:  # between two calls: nothing that is decided waits meanwhile
                    streak = 0
                    self.waking += 1
                    try:
                        yield
                    finally:
                        self.waking -= 1
                entry = core.next(now_of())
                if entry is None:
                    yield from self._park(worker).__await__()
                    streak = 0
                    entry = core.next(now_of())
                continue
            if entry.more is not None and entry.more.reconciling:
                yield from self._reconciles(worker, entry).__await__()
                entry = None
                continue
            if entry.phase is STOPPING:  # an observer of the call before has cancelled it: nothing of it was sent
                entry.attempts -= 1
                core.stopped(entry, False, now_of(), begun=False)
                entry = None
                continue
            # From call to call, while one seat passes on.
            began = tick()
            while True:
                current = entry
                streak += 1
                if parked:
                    self.kick()
                if plain and current.more is None:
                    call, cut_off = current.call, current.started + attempt_timeout
                    if cut_off > current.deadline:
                        cut_off = current.deadline
                    worker.entry = current
                    worker.deadline = cut_off
                    if cut_off < dispatcher._armed_at:
                        arm_at(cut_off)
                    # Made part by part: calling the class costs twice as much.
                    attempt = _new(Attempt)
                    attempt._clock = clock
                    attempt.call = call
                    attempt.ticket = current.ticket
                    attempt.number = current.attempts
                    attempt.deadline = cut_off / SECOND
                    attempt.last_error = None
                    attempt.sent = True
                else:
                    attempt = self._begin(worker, current)
                    call = attempt.call
                disturbed = False
                try:
                    steps: Any = call.execute(attempt)
                    if type(steps) is not CoroutineType:
                        steps = _steps_of(steps, call, "execute")
                    waited_for = send(steps)
                    while waited_for is not DONE:
                        if tick() - began > threshold:
                            self._blocked(call, began)
                        try:
                            yield waited_for
                        except GeneratorExit as error:
                            runner.close()
                            raise Abandoned from error
                        except BaseException as thrown:
                            disturbed = True
                            began = tick()
                            waited_for = runner.throw(thrown)
                        else:
                            began = tick()
                            waited_for = send(None)
                except Abandoned:
                    raise
                except BaseException as error:  # what user code raises ends this call, never the dispatcher (law L14)
                    if tick() - began > threshold:
                        self._blocked(call, began)
                    runner, send = _start_runner(worker)
                    if self._raised(worker, current, attempt, error):
                        yield from self._reconciles(worker, current).__await__()
                    else:
                        worker.entry = None
                    entry = None
                    break
                value = worker.value
                ended = tick()
                if ended - began > threshold:
                    self._blocked(call, began)
                if disturbed or worker.cause is not None:
                    self._uncancel(worker)
                now = ended if same_clock else now_of()
                entry = turn(current, value, now) if plain and streak < YIELD_EVERY else None
                if entry is None:
                    worker.entry = None
                    core.succeed(current, value, now)
                    if dispatcher._on_attempted:
                        dispatcher._observe("attempted", current, attempt.number, None)
                    break
                if current.waiter is None and not (streams or rooms or idlers):
                    dispatcher._last_settled = began = ended
                else:
                    dispatcher._settle(current)  # type: ignore[arg-type]  # the core's entries are our handles
                    began = tick()
            # Who looks for work keeps nothing alive.
            attempt = call = current = steps = waited_for = value = worker.value = None  # type: ignore[assignment]

    def _blocked(self, call: APICall[Any], began: int) -> None:
        self._dispatcher._blocked(call, (monotonic_ns() - began) / SECOND)

    async def _park(self, worker: Worker) -> None:
        self._dispatcher._arm()
        worker.waker = self._loop.create_future()
        self._parked.append(worker)
        try:
            await worker.waker
        finally:
            worker.waker = None
            if worker in self._parked:  # cancelled, not woken
                self._parked.remove(worker)
            else:
                self.waking -= 1

    def _begin(self, worker: Worker, entry: Entry) -> Attempt:
        dispatcher, more = self._dispatcher, entry.more
        if more is None:
            now, call, limit, error = entry.started, entry.call, entry.deadline, None
            cut_off = now + self._attempt_timeout
        else:
            now = dispatcher._now() if more.reconciling else entry.started
            call, limit, error = self._core.executable(entry), self._core.limit(entry), more.error
            cut_off = now + self._time_for(entry)
            self.retried += entry.attempts > 1 and not more.reconciling
        if cut_off > limit:
            cut_off = limit
        worker.entry = entry
        worker.started = now
        worker.deadline = cut_off
        attempt = Attempt(self._clock, call, entry.ticket, entry.attempts, cut_off / SECOND, error)
        if cut_off < dispatcher._armed_at:
            dispatcher._arm_at(cut_off)
        if dispatcher._on_started:
            dispatcher._observe("started", entry, attempt.number)
        return attempt

    def _raised(self, worker: Worker, entry: Entry, attempt: Attempt, raised: BaseException) -> bool:
        """Report an attempt that has raised. True if it is to be reconciled next, in the same seat."""
        dispatcher, core, call = self._dispatcher, self._core, attempt.call
        cause, timed_out = worker.cause, worker.cause == TIMED_OUT
        error, outside = self._cancelled(worker, attempt, raised, "the attempt")
        now = dispatcher._now()
        if error is None and cause is None and _interrupted_before(entry):
            error = raised
        if error is None:
            again = core.stopped(entry, attempt.sent, now)
        else:
            failure = self._classified(entry, call, attempt, error, now)
            if timed_out and now < entry.started + self._attempt_timeout:
                failure = replace(failure, signal=Signal.SILENT)  # our caller's time was over, not the server's
            if dispatcher._on_attempted:
                dispatcher._observe("attempted", entry, attempt.number, error)
            again = core.fail(entry, failure, now)
            self._tell_failure(entry, call, attempt, failure, again)
        if outside:
            self._hand_over(entry, again, raised, now)
            raise asyncio.CancelledError
        return again

    def _hand_over(self, entry: Entry, again: bool, raised: BaseException, now: int) -> None:
        """This worker was cancelled: if its execution is to be reconciled, another one does that."""
        if again:
            self._core.reconcile_failed(entry, Failure(raised, Verdict(VerdictKind.RETRY)), now)

    async def _reconciles(self, worker: Worker, entry: Entry) -> None:
        """Reconcile until it has an answer, or has to wait: in one seat."""
        while await self._reconcile(worker, entry):
            pass
        worker.entry = None

    async def _reconcile(self, worker: Worker, entry: Entry) -> bool:
        """Find out what became of the last request. True if it is to be asked again, in the same seat."""
        dispatcher, core = self._dispatcher, self._core
        attempt = self._begin(worker, entry)
        call = attempt.call
        last = attempt.last_error or RuntimeError("unknown")
        try:
            answer = answer_of(await self._timed(call, attempt, last), call)
        except Abandoned:
            raise
        except BaseException as raised:
            error, outside = self._cancelled(worker, attempt, raised, "reconcile")
            now = dispatcher._now()
            if error is None:
                again = core.stopped(entry, attempt.sent, now)
            else:
                again = False
                core.reconcile_failed(entry, self._classified(entry, call, attempt, error, now), now)
            if outside:
                self._hand_over(entry, again, raised, now)
                raise asyncio.CancelledError from None
            return again
        self._uncancel(worker)
        now = dispatcher._now()
        delay = 0
        if isinstance(answer, (Again, Unknown)):
            delay = self._classified(entry, call, attempt, last, now).delay
        core.reconciled(entry, answer, refusal_of(answer), delay, now)
        return False

    @types.coroutine
    def _timed(self, call: APICall[Any], attempt: Attempt, last: BaseException) -> Generator[Any, Any, Any]:
        """Drive `reconcile`, each step timed, as `_work` drives `execute`."""
        began = monotonic_ns()
        steps = _steps_of(call.reconcile(attempt, last), call, "reconcile")
        step: Callable[[Any], Any] = steps.send
        given: Any = None
        while True:
            try:
                waited_for = step(given)
            except StopIteration as stop:
                return stop.value
            finally:
                if monotonic_ns() - began > self._threshold:
                    self._blocked(call, began)
            try:
                step, given = steps.send, (yield waited_for)
            except GeneratorExit as error:
                _close(steps)
                raise Abandoned from error
            except BaseException as error:
                step, given = steps.throw, error
            began = monotonic_ns()

    def _cancelled(
        self, worker: Worker, attempt: Attempt, raised: BaseException, what: str
    ) -> tuple[BaseException | None, bool]:
        """What an error of user code stands for: itself, a time-out, or None if the core has asked for it or the task
        was cancelled from outside; and whether it was."""
        cause, outside = worker.cause, self._uncancel(worker)
        if not isinstance(raised, asyncio.CancelledError) or (cause is None and not outside):
            return raised, outside
        if cause != TIMED_OUT:
            return None, outside
        return TimeoutError(f"{what} did not end in time ({attempt.number} of call {attempt.ticket})"), outside

    def _uncancel(self, worker: Worker) -> bool:
        """Undo our own cancellation. True if the task was cancelled from outside, or for good, as well."""
        cause, worker.cause = worker.cause, None
        task = worker.task
        if cause == SHUT_DOWN:
            return True
        if cause is not None and task.cancelling():
            task.uncancel()
        return bool(task.cancelling())

    # -- errors -------------------------------------------------------------------------------------------------

    def _classified(
        self, entry: Entry, call: APICall[Any], attempt: Attempt, error: BaseException, now: int
    ) -> Failure:
        return failure_of(entry, call, attempt, error, self._config.retry, self._dispatcher._delays, now)

    def _tell_failure(self, entry: Entry, call: APICall[Any], attempt: Attempt, failure: Failure, again: bool) -> None:
        dispatcher = self._dispatcher
        if dispatcher._on_retried and not (again or entry.phase.terminal):
            dispatcher._observe("retried", entry, failure.verdict, failure.delay / SECOND)
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "attempt %d of call %d failed: %s (%r)",
                attempt.number,
                entry.ticket,
                failure.verdict.kind.value,
                failure.error,
                extra=extra_of(entry),
            )


# -- running user code ------------------------------------------------------------------------------------------------


DONE: Any = object()


@types.coroutine
def _runner(worker: Worker) -> Generator[Any, Any, None]:
    """Runs what it is sent, one after another, step by step; `DONE` says that one has ended, with `worker.value`.

    A coroutine that is driven by `send` ends with an exception, whose making costs as much as a fourth of the rest of a
    common call; one that is delegated to ends without.
    """
    told = None
    while True:
        steps = yield told
        worker.value = yield from steps
        told = DONE


def _start_runner(worker: Worker) -> tuple[Any, Any]:
    """A new one for a worker, and its `send`: one through which an error has passed is over."""
    runner: Any = _runner(worker)
    runner.send(None)
    return runner, runner.send


def _steps_of(awaitable: Any, call: APICall[Any], hook: str) -> Any:
    """What can be driven step by step. Raises `ConfigurationError` for what can't be awaited."""
    if not inspect.isawaitable(awaitable):
        raise ConfigurationError(hook, awaitable, f"{type(call).__name__}.{hook} must return an awaitable")
    return _await(awaitable)


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _interrupted_before(entry: Entry) -> bool:
    """True if an attempt of it was cancelled from outside before. Twice, that is the call's own doing (law L14)."""
    more = entry.rare()
    before, more.interrupted = more.interrupted, True
    return before


def _close(steps: Any) -> None:
    if hasattr(steps, "close"):
        steps.close()


def extra_of(entry: Entry) -> dict[str, Any]:
    """The structured fields of a log record about a call."""
    call = entry.call
    return {"ticket": entry.ticket, "object": str(call.target), "flow": call.flow, "call_type": call.call_type}
