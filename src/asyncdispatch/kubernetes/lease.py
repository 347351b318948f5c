"""A Lease: leadership among the replicas of a program, with a fence for what they write (rules R5, R7, R8, R16)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Self

from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.dispatcher import Dispatcher
from asyncdispatch.errors import ConfigurationError, StaleContext
from asyncdispatch.kubernetes._apart import ApartTransport
from asyncdispatch.kubernetes._election import Change, Election, Event, LeaseState, LeaseTiming
from asyncdispatch.kubernetes._elector import Elector, LeaseClient, checked_ref, own_name
from asyncdispatch.kubernetes._record import identity_of
from asyncdispatch.kubernetes._terms import Terms
from asyncdispatch.kubernetes.transport import Transport

__all__ = ["Lease", "LeaseState", "LeaseStatistics", "LeaseTiming"]

log = logging.getLogger("asyncdispatch.kubernetes.lease")


@dataclass(frozen=True, slots=True)
class LeaseStatistics:
    """What a lease is doing. Seconds are of the event loop's clock.

    `holder` is who was seen to hold it last ("" for nobody), and for how long nothing has changed about that.
    `valid_for` is how much of the term is left, None without one; `terms` counts those there were.
    """

    state: LeaseState
    identity: str
    holder: str
    unchanged_for: float | None
    valid_for: float | None
    terms: int
    requests: int
    failures: int
    last_error: str | None


def lease_timing(given: Mapping[str, float]) -> LeaseTiming:
    """The timing that keyword arguments ask for; `ConfigurationError` for a name that there is not."""
    known = [field.name for field in fields(LeaseTiming)]
    for name, value in given.items():
        if name not in known:
            raise ConfigurationError(name, value, f"is no option of a lease: there are {', '.join(known)}")
    return LeaseTiming(**given)


class Lease:
    """Leadership by a Lease object. Made by `Cluster.lease`; used from one event loop.

    Enter it *before* the dispatcher that works under it, so that it is left after that: drain first, release after.
    ::

        async with cluster.lease("my-scheduler", "kube-system") as lease, Dispatcher() as dispatcher:
            while True:
                async with lease.leadership(dispatcher) as leading:  # waits until it is ours
                    await schedule(dispatcher, leading)              # cancelled when it is lost

    Requests go over connections of its own, past the dispatcher, so that no backlog delays a renewal.
    `identity` is who this participant is to others, and what stands in the Lease as its holder. No two that live at one
    time may be given the same; one that is started again under it waits until its predecessor's term is surely over.
    """

    def __init__(
        self, transport: Transport, name: str, namespace: str, identity: str | None = None, *, timing: LeaseTiming
    ) -> None:
        self.ref = checked_ref(name, namespace)
        self._own = own_name(identity)
        self.identity = identity_of(self._own)
        self.timing = timing
        self._transport = ApartTransport(transport, connections=2)
        self._election = Election(self._own, timing, random.random)
        self._terms = Terms(self.ref)
        self._limits: set[asyncio.Timeout] = set()
        self._waiting = 0
        self._elector: Elector | None = None
        self._task: asyncio.Task[None] | None = None
        self._left = False

    async def __aenter__(self) -> Self:
        if self._elector is not None:
            raise ConfigurationError("lease", self.ref.name, "is entered once: make another with cluster.lease(…)")
        client = LeaseClient(self._transport, self.ref, self._own)
        self._elector = Elector(self._election, client, self._tell)
        self._task = asyncio.create_task(self._elector.run(), name=f"asyncdispatch-lease {self.ref.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        elector, task = self._elector, self._task
        assert elector is not None
        assert task is not None
        self._left = True
        try:
            self._step_down(elector)
            await elector.released()
        finally:
            task.cancel()
            await asyncio.wait([task])
            elector.wake()
            await self._transport.close()

    def _step_down(self, elector: Elector) -> None:
        """Give the Lease back; but only if nothing that was done under it may yet land."""
        if self._terms.quiet():
            elector.release()
            return
        log.warning(
            "lease %s: left while writes may be under way, so it is left to run out; enter the lease before the "
            "dispatcher to have it drained first",
            self.ref,
            extra={"lease": str(self.ref), "identity": self.identity},
        )
        elector.drop("the lease was left")

    # -- leading ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def leadership(self, dispatcher: Dispatcher) -> AsyncIterator[SchedulingContext]:
        """Wait until the Lease is ours; the block is then one term of leadership.

        It gives a context of `dispatcher` that is valid until the last successful renewal was sent, plus the renew
        deadline, and that each renewal extends; give it to calls as `context`, and to Pods' contexts as `parent`. When
        the lease is lost, first the context ends, with all that waits in it, then the block is cancelled and left
        without an error. A new term needs a new list of the world before its first write: begin the block with one.

        Leaving the block by itself keeps the lease, which ends with `async with lease`; the same term can be entered
        again. Cancelling it while it waits takes the candidature back. Raises `StaleContext` when the lease was left.
        """
        if not isinstance(dispatcher, Dispatcher):
            raise ConfigurationError("dispatcher", dispatcher, "must be the Dispatcher that works under the lease")
        context = await self._acquired(dispatcher)
        limit = asyncio.timeout_at(self._election.valid_until)
        try:
            async with limit:
                self._limits.add(limit)
                try:
                    yield context
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise

    async def _acquired(self, dispatcher: Dispatcher) -> SchedulingContext:
        elector = self._elector
        if elector is None:
            raise ConfigurationError(
                "lease", self.ref.name, "not entered yet: use `async with cluster.lease(…) as lease`"
            )
        self._waiting += 1
        try:
            while not elector.leading:
                if self._left:
                    raise StaleContext(f"lease {self.ref} was left: make another with cluster.lease(…)")
                elector.seek()
                await elector.changed()
            return self._terms.begin(dispatcher, self._election.valid_until)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._terms:
                elector.release()  # nobody works under it, nor waits to

    def _tell(self, change: Change) -> None:
        extra = {"lease": str(self.ref), "identity": self.identity, "reason": change.reason}
        if change.event is Event.ACQUIRED:
            log.info("lease %s: %s leads", self.ref, self.identity, extra=extra)
        elif change.event is Event.EXTENDED:
            self._move_limits(change.valid_until)
            if (over := self._terms.extend(change.valid_until)) is not None and self._elector is not None:
                self._elector.drop(f"its context has ended: {over}")
        elif change.event in (Event.LOST, Event.RELEASE):
            reason = f"the lease {self.ref.name} is over: {change.reason}"
            log.log(logging.WARNING if change.event is Event.LOST else logging.INFO, reason, extra=extra)
            self._terms.end(reason)
            self._move_limits(0)

    def _move_limits(self, when: float) -> None:
        """The blocks under the term are cancelled at `when`. One that is being cancelled is past that."""
        for limit in self._limits:
            with contextlib.suppress(RuntimeError):
                limit.reschedule(when)

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> LeaseState:
        """What it does at this moment. A term that is over by the clock is over."""
        state = self._election.state
        return LeaseState.IDLE if state is LeaseState.LEADING and not self.is_leader else state

    @property
    def is_leader(self) -> bool:
        """The lease is ours at this moment, by the clock."""
        return self._elector is not None and self._elector.leading

    @property
    def holder(self) -> str:
        """Who was seen to hold the Lease last; "" for nobody, or not known yet."""
        view = self._election.view
        return view.record.named if view.record is not None and view.present else ""

    def statistics(self) -> LeaseStatistics:
        """What it is doing, at this moment."""
        elector, election = self._elector, self._election
        now = elector.now() if elector is not None else 0.0
        error = elector.client.last_error if elector is not None else None
        return LeaseStatistics(
            state=self.state,
            identity=self.identity,
            holder=self.holder,
            unchanged_for=now - election.view.since if election.view.record is not None else None,
            valid_for=election.valid_until - now if self.is_leader else None,
            terms=election.terms,
            requests=elector.client.requests if elector is not None else 0,
            failures=elector.client.failures if elector is not None else 0,
            last_error=None if error is None else str(error) or type(error).__name__,
        )

    def __repr__(self) -> str:
        return f"<Lease {self.ref} {self.state.value}>"
