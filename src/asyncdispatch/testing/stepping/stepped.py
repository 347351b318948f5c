"""A dispatcher that is driven by hand: the real core, the real calls, a real API server, and no event loop."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tenacity

from asyncdispatch._core.overlay import integer_version
from asyncdispatch._delays import Delays
from asyncdispatch._observing import Observing
from asyncdispatch.calls import APICall, Applied, Effect, ObjectRef, validate_call, version_of
from asyncdispatch.config import check_seconds
from asyncdispatch.outcomes import Overwritten
from asyncdispatch.testing.apiserver import EmbeddedAPIServer
from asyncdispatch.testing.clock import VirtualClock
from asyncdispatch.testing.stepping import events
from asyncdispatch.testing.stepping.driver import Kind, StepDriver
from asyncdispatch.testing.stepping.flights import Flight
from asyncdispatch.testing.stepping.history import LawBroken
from asyncdispatch.testing.stepping.promises import check_done, check_merge
from asyncdispatch.testing.stepping.reports import ns
from asyncdispatch.testing.stepping.starving import Chains
from asyncdispatch.testing.stepping.telling import tell, tickets_in
from asyncdispatch.testing.stepping.wire import Exchange, step_client

if TYPE_CHECKING:
    from asyncdispatch._core.admission import Pressure
    from asyncdispatch._core.parking import Failure
    from asyncdispatch._core.short import DispatchCore
    from asyncdispatch.calls import Verdict
    from asyncdispatch.config import DispatcherConfig
    from asyncdispatch.contexts import SchedulingContext
    from asyncdispatch.handles import CallHandle
    from asyncdispatch.kubernetes import Cluster
    from asyncdispatch.testing.apiserver.store import Stored

__all__ = ["SteppedDispatcher"]

WITHOUT_JITTER = tenacity.wait_exponential(multiplier=0.1, max=30)
"""The default strategy's longest waits."""


class SteppedContexts:
    """`contexts` of a stepped dispatcher."""

    def __init__(self, driver: StepDriver) -> None:
        self._driver = driver

    def begin(
        self,
        obj: Any,
        *,
        parent: SchedulingContext | None = None,
        valid_until: float | None = None,
        requires: Iterable[str] = (),
    ) -> SchedulingContext:
        """As `dispatcher.contexts.begin`."""
        version = None if isinstance(obj, ObjectRef) else integer_version(version_of(obj))
        valid_for = None if valid_until is None else valid_until - self._driver.clock()
        return self._driver.begin(
            ObjectRef.of(obj), version=version, parent=parent, valid_for=valid_for, requires=tuple(requires)
        )


class SteppedDispatcher(Observing):
    """Stands in for a `Dispatcher` where the code under test submits, observes and cancels; you move it along.

    `start` begins the next attempt and runs its `execute` to its first request; the `Flight` that it returns is then
    landed, answered, lost or stopped as the test likes. Requests go to `server`, an `EmbeddedAPIServer` that was not
    entered, if they are sent by the `cluster` or by a typed client over `api_client`. Time passes by `advance`.

    After each step the core's invariants and the laws over time are checked, and what call types promise by their hooks
    (see `promises`): whatever is broken raises an AssertionError with the law's number. Retries wait without jitter.
    """

    def __init__(
        self,
        config: DispatcherConfig | None = None,
        *,
        server: EmbeddedAPIServer | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.server = server or EmbeddedAPIServer(now=self.clock.date, auto_namespaces=True)
        self.driver = StepDriver(config, clock=self.clock)
        self.contexts = SteppedContexts(self.driver)
        self.stragglers: list[Exchange] = []
        """Writes that nobody waits for any more, and that may yet arrive: see `arrive`."""
        self._flights: dict[int, Flight] = {}
        self._writes: dict[int, list[str]] = {}  # by ticket: the requests that have changed something
        self._chains = Chains(self.driver)
        policy = self.driver.config.retry
        self._delays = Delays(policy if policy.wait else replace(policy, wait=WITHOUT_JITTER), random.Random(0))
        self._client: Any = None
        self._cluster: Cluster | None = None

    # -- what the code under test uses --------------------------------------------------------------------------------

    @property
    def config(self) -> DispatcherConfig:
        return self.driver.config

    @property
    def api_client(self) -> Any:
        """kubernetes_asyncio's ApiClient, whose requests wait for `Flight.answer`. Needs the extra `kubernetes`."""
        if self._client is None:
            self._client = step_client()
        return self._client

    @property
    def cluster(self) -> Cluster:
        """A `Cluster` over `api_client`."""
        if self._cluster is None:
            from asyncdispatch.kubernetes import Cluster  # here: needs the extra

            self._cluster = Cluster(self.api_client)
        return self._cluster

    @property
    def pressure(self) -> Pressure:
        return self.driver.core.admission.pressure

    def submit(self, call: APICall[Any]) -> CallHandle[Any]:
        """As `Dispatcher.submit`."""
        validate_call(call)
        before = self._pending(call.target.lane)
        handle = self.driver.submit(call)
        for ticket, pending in before.items():
            outcome = self.driver.outcomes.get(ticket)
            if isinstance(outcome, Overwritten) and outcome.by == handle.ticket:
                self._check_merge(pending, call, handle)
        return handle

    def observe(self, obj: Any, *, fresh: bool = False) -> Any:
        """As `Dispatcher.observe`."""
        driver, ref = self.driver, ObjectRef.of(obj)
        before = self._pending(ref.lane)
        driver._begin()
        shown = super().observe(obj, fresh=fresh)
        for ticket, call in self._pending(ref.lane).items():
            if ticket in before and call is not before[ticket]:
                driver.history.add(events.Changed(step=driver.step, at=driver.now, ticket=ticket, call=call))
        driver._end()
        return shown

    def forget(self, ref: ObjectRef, reason: str) -> int:
        """As `Dispatcher.forget`."""
        return self.driver.forget(ref, reason)

    def cancel_flow(self, flow: str, reason: str) -> int:
        """As `Dispatcher.cancel_flow`."""
        return self.driver.cancel_flow(flow, reason)

    def _step(self) -> tuple[DispatchCore, int]:
        return self.driver.core, self.driver.now  # type: ignore[return-value]

    def _flush(self) -> None:
        pass

    # -- what the test does ---------------------------------------------------------------------------------------

    @property
    def flights(self) -> list[Flight]:
        """What is in flight, in order of starting."""
        return list(self._flights.values())

    def start(self) -> Flight | None:
        """Begin the next attempt, and run it to its first request. None if nothing may start.

        The flight is over already if its `execute` asks for nothing.
        """
        self._chains.before_start()
        handle = self.driver.start()
        if handle is None:
            return None
        self._chains.started(handle)
        return self._take_off(handle)

    def start_all(self) -> list[Flight]:
        """Start what may start."""
        started = []
        while (flight := self.start()) is not None:
            started.append(flight)
        return started

    def go_on(self) -> None:
        """A prompt loop and a calm server: start what may start, and answer each request that has been made by now."""
        self.start_all()
        for flight in self.flights:
            if not flight.over:
                flight.stop() if flight.stopping else flight.answer()

    def advance(self, seconds: float) -> None:
        """Let time pass as a prompt loop sees it: what was asked to stop stops, what is due is done, time-outs too."""
        check_seconds("seconds", seconds, zero=True)
        end = self.driver.now + ns(seconds)
        while True:
            for flight in self.flights:
                if flight.stopping and not flight.over:
                    flight.stop()
                elif flight.deadline <= self.driver.now and not flight.over:
                    flight.time_out()
            soonest = min((flight.deadline for flight in self.flights), default=end)
            if self.driver.now >= end:
                return
            self.driver.advance((min(max(soonest, self.driver.now), end) - self.driver.now) / 1e9)

    def stall(self, seconds: float) -> None:
        """Let time pass while nobody looks: the event loop was blocked."""
        self.driver.stall(seconds)

    def arrive(self, straggler: Exchange) -> None:
        """A write that nobody waits for any more arrives after all."""
        self.stragglers.remove(straggler)
        self._carry_out(straggler)

    def settle(self) -> None:
        """Answer everything, without trouble, until nothing waits or flies. What has started may be retried."""
        for _ in range(10_000):
            self.go_on()
            if self.flights or self.start_all():
                continue
            if not self.driver.core.executions():
                return
            due = self.driver.core.wake_at(self.driver.now)
            self.advance(max(due - self.driver.now, 1_000_000) / 1e9)
        raise LawBroken("L1: something neither ends nor waits for a time")

    def finish(self) -> None:
        """Settle, close, forget all: every call has its outcome, and nothing may be left (laws L1, L15, L19)."""
        self.settle()
        self.driver.finish()

    def note(self, text: str, ref: ObjectRef | None = None) -> None:
        """Write `text` into the history: what a rival did, what the test has in mind."""
        self.driver.history.add(events.Noted(step=self.driver.step, at=self.driver.now, ref=ref, text=text))

    # -- looking ------------------------------------------------------------------------------------------------------

    def expect(self, handle: CallHandle[Any], kind: type[Kind]) -> Kind:
        """The outcome of a handle. AssertionError, with the history of its object, if it is of another kind."""
        try:
            return self.driver.outcome(handle, kind)
        except AssertionError as error:
            error.add_note(self.history_of(handle.call.target))
            raise

    def history_of(self, ref: ObjectRef | None = None) -> str:
        """What has happened to an object, or all that has happened, line by line."""
        title = "history" if ref is None else f"history of {ref}"
        return "\n".join([f"{title}:", *tell(self.driver.history.events, ref)])

    def explain(self, error: BaseException) -> None:
        """Add to an error the history of the object that it speaks of, or, if it names no call, all of it."""
        handles = [self.driver.handles[ticket] for ticket in tickets_in(str(error)) if ticket in self.driver.handles]
        error.add_note(self.history_of(handles[0].call.target if handles else None))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _take_off(self, handle: CallHandle[Any]) -> Flight:
        flight = self._flights[handle.ticket] = Flight(self, handle)
        flight.take_off()
        return flight

    def _pending(self, lane: str) -> dict[int, APICall[Any]]:
        core = self.driver.core
        return {entry.ticket: core.executable(entry) for entry in core.pending_writes(lane)}

    def _check_merge(self, pending: APICall[Any], newer: APICall[Any], handle: CallHandle[Any]) -> None:
        both = self.driver.core.executable(handle)
        check_merge(pending, newer, both, handle.ticket, self._find(newer.target))

    def _find(self, ref: ObjectRef) -> Any:
        try:
            return self.server.find(ref)
        except ValueError:
            return None  # a kind that the server does not serve

    def _note(self, flight: Flight, text: str) -> None:
        self.note(text, flight.call.target)

    def _carry_out(self, exchange: Exchange) -> None:
        """The request reaches the server."""
        if exchange.result is not None:
            return
        ref = exchange.call.target
        exchange.before = self._find(ref)
        result = exchange.carry_out(self.server)
        exchange.after = self._find(ref)
        written, code = result.written, result.answer.code
        done = ", applied" if exchange.applied else ""
        self.note(f"call {exchange.handle.ticket}: {exchange} lands ({code}{done})", ref)
        if exchange.applied and written is not None and written.stored is not None:
            self._check_once(exchange, written.stored)

    def _check_once(self, exchange: Exchange, stored: Stored) -> None:
        """A create is done once (law L10), and what is meant for one object is not done to another (law L17)."""
        call, ticket, place = exchange.call, exchange.handle.ticket, str(exchange)
        earlier = self._writes.setdefault(ticket, [])
        if call.effect is Effect.CREATE and place in earlier:
            raise LawBroken(f"L10: call {ticket}, a create, was applied twice: {place}")
        uid = call.target.uid
        if uid not in (None, stored.uid) and stored.resource.kind == call.target.kind:
            raise LawBroken(f"L17: call {ticket} is for uid {uid}, but was applied to uid {stored.uid}: {place}")
        earlier.append(place)

    def _succeeded(self, flight: Flight, value: Any) -> None:
        writes = [each for each in flight.exchanges if each.write and each.result is not None]
        if writes and flight.call.effect is not Effect.READ:
            self._check_done(flight, writes)
        self.driver.succeed(flight.handle, value)

    def _check_done(self, flight: Flight, writes: list[Exchange]) -> None:
        """What `execute` did, if that was one write, and of the call's own object."""
        write, ref = writes[-1], flight.call.target
        written = write.result.written if write.result is not None else None
        if len(writes) != 1 or written is None or ref.generated:
            return
        stored = written.stored
        own = (
            f"/{ref.name}" in write.path
            if stored is None
            else (stored.resource.kind, stored.key[1]) == (ref.kind, ref.name)
        )
        if own:
            check_done(flight.call, flight.handle.ticket, write.before, write.after)

    def _reconciled(self, flight: Flight, answer: Any, refusal: Verdict, delay: int) -> None:
        handle, ticket = flight.handle, flight.handle.ticket
        applied = bool(self._writes.get(ticket))
        if isinstance(answer, Applied) and not applied and "apply" in flight.call._hooks:
            obj = self._find(flight.call.target)
            check_done(flight.call, ticket, obj, obj)
        self.driver.reconciled(handle, answer, refusal, delay)

    def _failed(self, flight: Flight, failure: Failure) -> bool:
        handle = flight.handle
        before = self._pending(handle.call.target.lane)
        again = self.driver.failed(handle, failure)
        outcome = self.driver.outcomes.get(handle.ticket)
        if isinstance(outcome, Overwritten) and outcome.by in before and handle.ticket in before:
            newer = self.driver.handles[outcome.by]
            self._check_merge(before[handle.ticket], before[outcome.by], newer)
        return again
