"""Drives the real core by hand, in virtual time: no event loop, no task, no waiting.

Each operation is one step: the core decides, the driver empties the core's lists, lets it do what is due, checks every
invariant, and records what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar, cast

from asyncdispatch._core.invariants import check_invariants
from asyncdispatch._core.machine import Machine
from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import SECOND, Entry
from asyncdispatch.calls import APICall, ObjectRef, validate_call
from asyncdispatch.config import DispatcherConfig, check_seconds
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.errors import DispatchError, RefusedError
from asyncdispatch.handles import CallHandle
from asyncdispatch.outcomes import AnyOutcome
from asyncdispatch.testing.clock import VirtualClock
from asyncdispatch.testing.stepping import events
from asyncdispatch.testing.stepping.history import History, LawBroken, check
from asyncdispatch.testing.stepping.reports import Reports, ns

__all__ = ["StepDriver"]

Kind = TypeVar("Kind")
Handle = CallHandle[Any]


class Owner:
    """What a context asks when its own methods are called: `ContextOwner`."""

    def __init__(self, driver: StepDriver) -> None:
        self.driver = driver

    def extend(self, context: SchedulingContext, valid_until: float) -> None:
        self.driver.extend(context, valid_until)

    def end(self, context: SchedulingContext, reason: str) -> None:
        self.driver.end(context, reason)

    def confirm(self, context: SchedulingContext, name: str) -> None:
        self.driver.require(context, name, True)

    def fail(self, context: SchedulingContext, name: str, error: BaseException) -> None:
        self.driver.require(context, name, error)


class StepDriver(Reports):
    """A core, its virtual time, what it has in flight, and the history of it all.

    You say what becomes of each attempt that `start` gives you: `succeed`, `fail`, `stop`, and for one in `reconciling`
    `reconcile` or `fail_reconcile`. Times that you give are seconds; `now` is in nanoseconds, as the core counts.
    Whatever breaks a law raises `LawBroken` or the core's `InvariantError`, both an AssertionError, with its number.
    """

    def __init__(
        self,
        config: DispatcherConfig | None = None,
        *,
        clock: VirtualClock | None = None,
        check: bool = True,
        core: Machine | None = None,
    ) -> None:
        """`check=False` leaves out the look at every table after every step, which costs most of the time."""
        self.config = config or DispatcherConfig()
        self.clock = clock or VirtualClock()
        self.core: Machine = core or DispatchCore(self.config, CallHandle, self)
        self.check = check
        self.step = 0
        self.history = History(self.config)
        self.handles: dict[int, Handle] = {}
        self.outcomes: dict[int, AnyOutcome] = {}
        self.flying: dict[int, Handle] = {}  # attempts inside `execute`
        self.reconciling: dict[int, Handle] = {}  # attempts inside `reconcile`
        self.stopping: dict[int, Handle] = {}  # attempts that were asked to stop
        self.contexts: dict[int, SchedulingContext] = {}  # those that have not ended
        self.wanted: list[Any] = []  # objects that are to be read afresh (law L18)
        self._callbacks: list[tuple[Handle, Callable[[Handle], object]]] = []

    @property
    def now(self) -> int:
        return self.clock.ns

    # -- steps --------------------------------------------------------------------------------------------------

    def _begin(self) -> dict[str, Any]:
        self.step += 1
        return {"step": self.step, "at": self.now}

    def _end(self) -> None:
        """Empty the core's lists, do what is due, look at everything, then tell those who asked to be told."""
        self._empty()
        self.core.tick(self.now)
        self._empty()
        if self.check:
            check_invariants(self.core, self.now)
        self.history.add(events.Looked(step=self.step, at=self.now))
        while self._callbacks:
            handle, fn = self._callbacks.pop(0)
            fn(handle)

    def _empty(self) -> None:
        core = self.core
        for epoch, context in list(self.contexts.items()):
            if context.ended is not None:
                del self.contexts[epoch]
                self.history.add(events.Finished(step=self.step, at=self.now, epoch=epoch, reason=context.ended))
        for handle in core.settled:
            self._settled(cast("Handle", handle))
        core.settled.clear()
        for entry in core.stops:
            if entry.ticket not in self.flying and entry.ticket not in self.reconciling:
                continue  # asked for what was due, in the step that reports its end
            self.stopping[entry.ticket] = cast("Handle", entry)
            self.history.add(events.Stopping(step=self.step, at=self.now, ticket=entry.ticket))
        core.stops.clear()
        self.wanted.extend(core.objects.wanted)
        core.objects.wanted.clear()

    def _settled(self, handle: Handle) -> None:
        outcome = handle.settled
        if outcome is None or not handle.done():
            raise LawBroken(f"L1: call {handle.ticket} was settled without an outcome")
        check(handle.ticket not in self.outcomes, "L1", f"call {handle.ticket} was told twice")
        self.outcomes[handle.ticket] = outcome
        if handle.ticket in self.handles:  # else: told inside `submit`, recorded there
            self.history.add(events.Settled(step=self.step, at=self.now, ticket=handle.ticket, outcome=outcome))
        waiters, handle.waiter = handle.waiter or [], None
        self._callbacks.extend((handle, waiter) for waiter in waiters)

    # -- what handles ask of whom they belong to ------------------------------------------------------------------

    def _cancel(self, handle: Handle, reason: str) -> bool:
        return self.cancel(handle, reason)

    def _call_back(self, handle: Handle, fn: Callable[[Handle], object]) -> None:
        self._callbacks.append((handle, fn))

    @property
    def _loop(self) -> NoReturn:
        raise RuntimeError("a step driver has no event loop to wait in: look at handle.done(), handle.settled")

    # -- calls --------------------------------------------------------------------------------------------------

    def submit(self, call: APICall[Any]) -> Handle:
        """As `Dispatcher.submit`."""
        validate_call(call)
        stamp = self._begin()
        self.core.tick(self.now)
        self._empty()
        before = self._counts()
        try:
            handle = cast("Handle", self.core.submit(call, self.now))
        except DispatchError as error:
            check(self._counts() == before, "L1", "a refused call left a trace")
            if isinstance(error, RefusedError):
                self.history.add(events.Refused(**stamp, call=call, error=error))
            self._end()
            raise
        check(handle.ticket not in self.handles, "L1", f"ticket {handle.ticket} was used twice")
        # What was settled in the same step is told after its handle is known.
        self.handles[handle.ticket] = handle
        self.history.add(events.Accepted(**stamp, ticket=handle.ticket, call=call, lead=handle.lead.ticket))
        self._end()
        return handle

    def submit_all(self, calls: Iterable[APICall[Any]]) -> list[Handle]:
        return [self.submit(call) for call in calls]

    def _counts(self) -> tuple[int, ...]:
        core = self.core
        admission = core.admission
        return (
            *(admission.depth, admission.joined, len(admission.sheddables), len(core.ordering), core.seats.taken),
            *(len(core.lanes.table), len(core.keys), len(core.deadlines), len(core.dependents), len(core.memory)),
            *(len(core.executions()), len(core.timers)),
        )

    def start(self) -> Handle | None:
        """The next execution to start, now in flight; None if nothing may start."""
        stamp = self._begin()
        entry = self.core.next(self.now)
        self._started(stamp, entry)
        self._end()
        return cast("Handle | None", entry)

    def _started(self, stamp: dict[str, Any], entry: Entry | None) -> None:
        if entry is not None:
            reconcile = entry.more is not None and entry.more.reconciling
            (self.reconciling if reconcile else self.flying)[entry.ticket] = cast("Handle", entry)
            sent = self.core.executable(entry)
            self._empty()
            self.history.add(
                events.Started(
                    **stamp, ticket=entry.ticket, reconcile=reconcile, sent=sent, seats=self.core.seats.limit
                )
            )

    def start_all(self) -> list[Handle]:
        """Start what may start."""
        started = []
        while (entry := self.start()) is not None:
            started.append(entry)
        return started

    def cancel(self, handle: Entry, reason: str = "cancelled") -> bool:
        """As `CallHandle.cancel`."""
        stamp = self._begin()
        took = self.core.cancel(handle, reason, self.now)
        if took:
            self.history.add(events.Left(**stamp, ticket=handle.ticket))
        self._end()
        return took

    def cancel_flow(self, flow: str, reason: str = "flow") -> int:
        """As `Dispatcher.cancel_flow`."""
        self._begin()
        count = self.core.cancel_flow(flow, reason, self.now)
        self._end()
        return count

    # -- time ---------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass as a prompt loop sees it: everything is done when it is due."""
        check_seconds("seconds", seconds, zero=True)
        end = self.now + ns(seconds)
        looks = 0
        while (due := self.core.wake_at(self.now)) <= end:
            looks = looks + 1 if due <= self.now else 0
            check(looks < 20, "L19", "what is due stays due: a busy loop")
            self._begin()
            self.clock.move_to(max(self.now, due))
            self._end()
        self._begin()
        self.clock.move_to(end)
        self._end()

    def stall(self, seconds: float) -> None:
        """Let time pass while nobody looks: the loop was blocked."""
        self.clock.advance(seconds)

    # -- contexts ------------------------------------------------------------------------------------------------

    def begin(
        self,
        ref: ObjectRef,
        *,
        version: int | None = None,
        parent: SchedulingContext | None = None,
        valid_for: float | None = None,
        requires: tuple[str, ...] = (),
    ) -> SchedulingContext:
        stamp = self._begin()
        until = None if valid_for is None else (self.now + ns(valid_for)) / SECOND
        try:
            context = self.core.begin(Owner(self), ref, version, parent, until, requires, self.now)
        except Exception:
            self._end()
            raise
        self._empty()
        self.contexts[context.epoch] = context
        self.history.add(
            events.Began(
                **stamp,
                epoch=context.epoch,
                ref=ref,
                parent=None if parent is None else parent.epoch,
                valid_until=None if until is None else ns(until),
                requires=requires,
            )
        )
        self._end()
        return context

    def extend(self, context: SchedulingContext, valid_until: float) -> None:
        stamp = self._begin()
        try:
            self.core.extend(context, valid_until, self.now)
        except Exception:
            self._end()
            raise
        self._empty()
        self.history.add(events.Extended(**stamp, epoch=context.epoch, valid_until=ns(valid_until)))
        self._end()

    def end(self, context: SchedulingContext, reason: str = "ended") -> None:
        self._begin()
        self.core.end(context, reason, self.now)
        self._end()

    def require(self, context: SchedulingContext, name: str, state: BaseException | bool) -> None:
        stamp = self._begin()
        try:
            self.core.require(context, name, state, self.now)
        except Exception:
            self._end()
            raise
        self.history.add(events.Required(**stamp, epoch=context.epoch, name=name, state=state))
        self._end()

    # -- objects ------------------------------------------------------------------------------------------------

    def observe(
        self, ref: ObjectRef, version: int | None = None, *, deleting: bool = False, fresh: bool = False
    ) -> tuple[bool, list[Any]]:
        self._begin()
        found = self.core.observe(ref, version, deleting, fresh, self.now)
        self._end()
        return found

    def replace(self, entry: Entry, call: APICall[Any]) -> None:
        stamp = self._begin()
        self.core.replace(entry, call)
        self.history.add(events.Changed(**stamp, ticket=entry.ticket, call=entry.call))
        self._end()

    def forget(self, ref: ObjectRef, reason: str = "gone") -> int:
        self._begin()
        count = self.core.forget(ref, reason, self.now)
        self._end()
        return count

    # -- the end ------------------------------------------------------------------------------------------------

    def drain(self, seconds: float) -> None:
        check_seconds("seconds", seconds, zero=True)
        stamp = self._begin()
        self.core.drain(self.now + ns(seconds), self.now)
        self.history.add(events.Closed(**stamp, until=self.now + ns(seconds)))
        self._end()

    def close(self, reason: str = "closed") -> None:
        stamp = self._begin()
        self.core.close(reason, self.now)
        self.history.add(events.Closed(**stamp, until=None))
        self._end()

    def finish(self) -> None:
        """Close, end what flies, forget every object: then nothing may be left (laws L1, L15, L19)."""
        self.close()
        for entry in [*self.flying.values(), *self.reconciling.values()]:
            check(not self.stop(entry), "L15", f"call {entry.ticket} goes on after close")
        self.advance(self.config.timeout + self.config.give_up + 1.0)
        self.history.over()
        check(set(self.outcomes) == set(self.handles), "L1", "a handle got no outcome")
        known = [handle.call.target.lane for handle in self.handles.values()]
        for lane in dict.fromkeys([*known, *self.core.objects.table]):
            group, kind, namespace, name = lane.split("/")
            version = f"{group}/v1" if group else "v1"
            self.forget(ObjectRef(version, kind, namespace or None, name))
        # The memory of keys and the breakers end by time or are capped; contexts and objects are gone now.
        left = self.leftovers()
        check(not left, "L19", f"left behind: {left}")

    def outcome(self, handle: Entry, kind: type[Kind]) -> Kind:
        """The outcome of a handle, which must be of this kind."""
        outcome = self.outcomes.get(handle.ticket)
        if not isinstance(outcome, kind):
            raise AssertionError(f"call {handle.ticket} ended as {outcome!r}, not as {kind.__name__}")
        return outcome

    def leftovers(self) -> dict[str, int]:
        """What the core's tables hold that are not at a stated cap."""
        core = self.core
        tables = {
            "lanes": len(core.lanes.table),
            "contexts": len(core.epochs.table),
            "contexts by object": len(core.epochs.by_lane),
            "keys": len(core.keys),
            "deadlines": len(core.deadlines),
            "dependents": len(core.dependents),
            "holds": len(core.holds),
            "laters": len(core.laters),
            "budget": len(core.budget.waiting),
            "sheddables": len(core.admission.sheddables),
            "own writes": core.objects.count,
            "ready": len(core.ordering),
            "seats": core.seats.taken,
            "depth": core.admission.depth,
            "joined": core.admission.joined,
        }
        return {name: count for name, count in tables.items() if count}
