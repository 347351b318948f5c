"""Attempts: `execute` and `reconcile` of real calls, moved along by hand from one request to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.parking import Failure, Signal
from asyncdispatch._core.states import SECOND
from asyncdispatch._judging import answer_of, failure_of, refusal_of
from asyncdispatch.calls import Again, Attempt, Unknown
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.testing.stepping.reports import ns
from asyncdispatch.testing.stepping.wire import Exchange, Trouble, error_of

if TYPE_CHECKING:
    from asyncdispatch.handles import CallHandle
    from asyncdispatch.testing.stepping.stepped import SteppedDispatcher

__all__ = ["Flight"]

NO_LOOP = "there is no event loop: send requests by the cluster, or a client, of this dispatcher, or use a real one"

STOP, TIME_OUT = "asked to stop", "timed out"


class Flight:
    """One attempt of one call, between two of its steps. It is over once its `execute`, or `reconcile`, has ended.

    `exchange` is the request whose answer it waits for. `deadline`, in ns, is when it is cut off.
    """

    def __init__(self, owner: SteppedDispatcher, handle: CallHandle[Any]) -> None:
        driver, more = owner.driver, handle.more
        self.handle = handle
        self.reconciling = handle.ticket in driver.reconciling
        self.call = driver.core.executable(handle)
        self.exchange: Exchange | None = None
        self.exchanges: list[Exchange] = []
        """All of its requests so far."""
        self.over = False
        self._owner = owner
        self._began = driver.now
        self._cause: str | None = None
        error = None if more is None else more.error
        self.attempt = Attempt(owner.clock, self.call, handle.ticket, handle.attempts, self.deadline / SECOND, error)
        self._last_error = error or RuntimeError("unknown")
        if self.reconciling:
            self._steps: Any = self.call.reconcile(self.attempt, self._last_error)
        else:
            self._steps = self.call.execute(self.attempt)

    def __repr__(self) -> str:
        what = "reconcile of " if self.reconciling else ""
        return f"<Flight {what}call {self.handle.ticket}: {self.exchange or 'over'}>"

    @property
    def deadline(self) -> int:
        config = self._owner.driver.config
        policy = self.call.retry or config.retry
        most = policy.reconcile_timeout if self.reconciling else config.attempt_timeout
        return min(self._began + ns(most), self._owner.driver.core.limit(self.handle))

    @property
    def stopping(self) -> bool:
        """The core has asked it to stop."""
        return self.handle.ticket in self._owner.driver.stopping

    # -- steps ------------------------------------------------------------------------------------------------------

    def take_off(self) -> None:
        """Run to the first request. Called by `SteppedDispatcher.start`."""
        if not hasattr(self._steps, "send"):
            self._steps = self._steps.__await__()
        self._go_on(self._steps.send, None)

    def land(self) -> None:
        """Its request arrives, and the server does what it asks for; the answer is still on its way."""
        self._owner._carry_out(self._waiting())

    def answer(self, trouble: Trouble | None = None) -> None:
        """Its request is answered, by the server or as `trouble` has it; run to the next request, or to the end.

        A request that has landed already can't be undone by a trouble that would have kept it from landing.
        """
        exchange = self._waiting()
        if trouble is None or trouble.applied:
            self._owner._carry_out(exchange)
        if trouble is None:
            self._go_on(self._steps.send, exchange.carry_out(self._owner.server).answer)
            return
        self._owner._note(self, f"call {self.handle.ticket}: {exchange} meets {trouble}")
        if trouble.how != "unsent" or exchange.result is not None:
            exchange.depart()
        if trouble.late and exchange.result is None and exchange.write:
            self._owner.stragglers.append(exchange)
        if trouble.answer is not None:
            self._go_on(self._steps.send, trouble.answer)
        else:
            self._go_on(self._steps.throw, error_of(trouble, exchange))

    def stop(self) -> None:
        """It is cancelled, as the core has asked. Its request is on its way and may arrive late.

        Raises `ConfigurationError` if nobody has asked.
        """
        if not self.stopping:
            raise ConfigurationError("flight", self, "nobody has asked it to stop: see `stopping`")
        self._cut(STOP)

    def time_out(self) -> None:
        """Its time is over. Called by `SteppedDispatcher.advance`."""
        self._cut(TIME_OUT)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _cut(self, cause: str) -> None:
        exchange = self._waiting()
        exchange.depart()
        if exchange.result is None and exchange.write:
            self._owner.stragglers.append(exchange)
        self._cause = cause
        self._owner._note(self, f"call {self.handle.ticket}: {exchange} is {cause}")
        self._go_on(self._steps.throw, asyncio.CancelledError())

    def _waiting(self) -> Exchange:
        if self.exchange is None:
            raise ConfigurationError("flight", self, "it is over: look at what `flights` still has")
        return self.exchange

    def _go_on(self, step: Callable[[Any], Any], given: Any) -> None:
        self.exchange = None
        try:
            waits_for = step(given)
        except StopIteration as stop:
            self._leave()
            self._returned(stop.value)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, RuntimeError) and "no running event loop" in str(error):
                raise ConfigurationError("execute", type(self.call).__name__, NO_LOOP) from error
            self._leave()
            self._raised(error)
        else:
            if not isinstance(waits_for, Exchange):
                self._steps.close()
                raise ConfigurationError("execute", waits_for, NO_LOOP)
            waits_for.handle, waits_for.call = self.handle, self.call
            self.exchange = waits_for
            self.exchanges.append(waits_for)

    def _leave(self) -> None:
        self.over = True
        self._owner._flights.pop(self.handle.ticket, None)

    def _returned(self, value: Any) -> None:
        if not self.reconciling:
            self._owner._succeeded(self, value)
            return
        try:
            answer = answer_of(value, self.call)
        except ConfigurationError as error:
            self._raised(error)
            return
        delay = self._failure(self._last_error).delay if isinstance(answer, (Again, Unknown)) else 0
        self._owner._reconciled(self, answer, refusal_of(answer), delay)

    def _raised(self, error: BaseException) -> None:
        driver, again = self._owner.driver, False
        if isinstance(error, asyncio.CancelledError) and self._cause == STOP:
            again = driver.stop(self.handle, sent=self.attempt.sent)
        else:
            if isinstance(error, asyncio.CancelledError) and self._cause == TIME_OUT:
                error = TimeoutError(f"call {self.handle.ticket} did not end in time")
            failure = self._failure(error)
            if self._cause == TIME_OUT and driver.now < self._began + ns(driver.config.attempt_timeout):
                failure = replace(failure, signal=Signal.SILENT)  # our caller's time was over, not the server's
            if self.reconciling:
                driver.reconcile_failed(self.handle, failure)
            else:
                again = self._owner._failed(self, failure)
        if again:
            self._owner._take_off(self.handle)

    def _failure(self, error: BaseException) -> Failure:
        owner = self._owner
        return failure_of(
            self.handle, self.call, self.attempt, error, owner.driver.config.retry, owner._delays, owner.driver.now
        )
