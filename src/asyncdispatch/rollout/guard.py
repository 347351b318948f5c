"""The guard at work: listens to a dispatcher, asks the judge once a second, and carries out what it decides."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.states import PLACE_SHIFT, SECOND
from asyncdispatch.config import check_seconds
from asyncdispatch.errors import ConfigurationError, DispatcherClosed
from asyncdispatch.outcomes import Expired, Failed, Succeeded
from asyncdispatch.rollout.judging import Decision, GuardReport, GuardState, Judge, Step, require_baseline
from asyncdispatch.rollout.policy import Baseline, GuardPolicy, HalfOpen, Waiting
from asyncdispatch.rollout.rules import Rollout
from asyncdispatch.statistics import Mode

if TYPE_CHECKING:
    from asyncdispatch.calls import Verdict
    from asyncdispatch.dispatcher import Dispatcher
    from asyncdispatch.handles import CallHandle
    from asyncdispatch.outcomes import AnyOutcome

__all__ = ["Guard"]

log = logging.getLogger("asyncdispatch")

Hook = Callable[[Decision], object]


class Guard:
    """Turns asynchronous calls off when they make things worse, and tries them again by and by.

    An observer of the dispatcher that it watches::

        rollout = Rollout(rules)
        guard = Guard(GuardPolicy(), rollout=rollout, baseline=baseline)
        async with Dispatcher(config, rollout=rollout, observers=(guard,)) as dispatcher, guard.watch(dispatcher):
            …

    Without a `baseline` begin in Mode.SYNC: it records one, and `open` goes asynchronous once there are samples enough.
    Without a `rollout`, which the small share of half-open needs, the way back is by hand only, by `open`.
    `on_rollback` and `on_step` are called with the `Decision`, the first at a rollback only (count it by
    `decision.reason`), the second at every step (send an Event). What they return is awaited, if it can be, in a task
    that ends with `watch`. Their errors are logged. Event loop only. Raises `ConfigurationError` for a wrong argument.
    """

    def __init__(
        self,
        policy: GuardPolicy = GuardPolicy(),
        *,
        rollout: Rollout | None = None,
        baseline: Baseline | None = None,
        on_rollback: Hook | None = None,
        on_step: Hook | None = None,
    ) -> None:
        if not isinstance(policy, GuardPolicy):
            raise ConfigurationError("policy", policy, "must be a GuardPolicy")
        if rollout is not None and not isinstance(rollout, Rollout):
            raise ConfigurationError("rollout", rollout, "must be the dispatcher's Rollout, or None")
        if baseline is not None and not isinstance(baseline, Baseline):
            raise ConfigurationError("baseline", baseline, "must be a Baseline")
        for name, hook in (("on_rollback", on_rollback), ("on_step", on_step)):
            if hook is not None and not callable(hook):
                raise ConfigurationError(name, hook, "must be callable")
        if rollout is None:
            if policy.half_open not in (None, HalfOpen()):
                remedy = "half-open needs the dispatcher's: give it, or leave GuardPolicy.half_open out"
                raise ConfigurationError("rollout", None, remedy)
            policy = replace(policy, half_open=None)
        self.policy = policy
        self.rollout = rollout
        self._judge = Judge(policy, baseline)
        self._on_rollback, self._on_step = on_rollback, on_step
        self._dispatcher: Dispatcher | None = None
        self._from = 0  # the place from which on calls count: those of an earlier state don't
        self._own_reason: str | None = None  # of the switch that is under way
        self._hooks: set[asyncio.Task[None]] = set()

    # -- watching ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def watch(self, dispatcher: Dispatcher) -> AsyncIterator[None]:
        """Watch an entered dispatcher until the block is left. One dispatcher at a time.

        Raises `ConfigurationError` if the guard is not its observer, has another rollout, or has no baseline while the
        dispatcher is asynchronous already. Leaving the block cancels hooks that are awaited still; a rollback that is
        draining goes on to its end.
        """
        self._attach(dispatcher)
        task = asyncio.get_running_loop().create_task(self._run(), name="asyncdispatch-guard")
        try:
            yield
        finally:
            tasks = {task, *self._hooks}
            for each in tasks:
                each.cancel()
            self._dispatcher = None
            await asyncio.wait(tasks)

    def _attach(self, dispatcher: Dispatcher) -> None:
        if self._dispatcher is not None:
            raise ConfigurationError("dispatcher", dispatcher, "the guard watches one already")
        if self.settled not in dispatcher._hooks["settled"]:
            raise ConfigurationError("observers", self, "the guard must be one: Dispatcher(observers=(guard,))")
        if self.rollout is not None and getattr(dispatcher, "rollout", None) is not self.rollout:
            raise ConfigurationError("rollout", self.rollout, "must be the dispatcher's: Dispatcher(rollout=rollout)")
        asynchronous = dispatcher.mode is not Mode.SYNC
        if asynchronous:
            require_baseline(self._judge)
        self._dispatcher = dispatcher
        now = self._now()
        self._judge.begin(now)
        if asynchronous:
            self._judge.opened(now)
        self._count_from_now()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.policy.interval)
            try:
                await self._tick()
            except DispatcherClosed:
                return
            except Exception:
                log.exception("the guard has failed at one look, and goes on")

    async def _tick(self) -> None:
        dispatcher = self._dispatcher
        assert dispatcher is not None
        if dispatcher._state:
            raise DispatcherClosed(dispatcher._state)
        if self._heeds():
            admission = dispatcher._core.admission
            self._judge.sample("queue_depth", admission.depth / admission.total)
        decision = self._judge.tick(self._now())
        if decision is not None:
            await self._carry_out(decision)

    # -- listening --------------------------------------------------------------------------------------------------

    def settled(self, handle: CallHandle[Any], outcome: AnyOutcome) -> None:
        """Of the dispatcher: a call has ended."""
        if not self._counts(handle):
            return
        sample, kind = self._judge.sample, type(outcome)
        if kind is Succeeded or kind is Failed or kind is Expired:
            failed = kind is not Succeeded
            sample("failure_rate", failed)
            if handle.call.call_type in self.policy.binding_types:
                sample("binding_errors", failed)
        sample("queue_wait_p99", outcome.queued_seconds)
        if outcome.attempts:
            sample("api_latency_p99", max(0.0, outcome.elapsed_seconds - outcome.queued_seconds) / outcome.attempts)
        sample("duplicate_rate", handle.lead is not handle or outcome.late)
        self._judge.ended()

    def retried(self, handle: CallHandle[Any], verdict: Verdict, delay: float) -> None:
        """Of the dispatcher: an attempt has failed. A server that hangs is noticed before its calls are given up."""
        if handle.more is not None and handle.attempts and self._counts(handle):
            self._judge.sample("api_latency_p99", handle.more.flown / SECOND / handle.attempts)

    def scheduled(self, seconds: float, *, retried: bool = False) -> None:
        """Tell of one pass of the scheduling loop: how long it took, and whether it ended in another try.

        Raises `ConfigurationError` for what is no time.
        """
        check_seconds("seconds", seconds, zero=True)
        if not isinstance(retried, bool):
            raise ConfigurationError("retried", retried, "must be True or False")
        if self._heeds():
            self._judge.sample("scheduling_p99", seconds)
            self._judge.sample("unschedulable_retries", retried)

    def mode_changed(self, old: Mode, new: Mode, reason: str) -> None:
        """Of the dispatcher: who switches by hand is obeyed."""
        if self._dispatcher is None or reason == self._own_reason or new is Mode.DRAINING:
            return
        if new is Mode.SYNC:
            self._step(self._judge.closed(self._now()))
            return
        try:
            self._step(self._judge.opened(self._now()))
        except ConfigurationError as error:
            log.warning("asynchronous without a guard, which can't judge: %s", error, extra={"reason": str(error)})

    def _counts(self, handle: CallHandle[Any]) -> bool:
        """True if this call tells of what is judged: not one of an earlier state, nor one that is outside of it."""
        if handle.accepted < self._from or not self._heeds():
            return False
        rollout = self.rollout
        judged = self._judge.state in (GuardState.ARMED, GuardState.HALF_OPEN)
        return rollout is None or not judged or rollout.admits(handle.call)

    def _heeds(self) -> bool:
        """True while the mode is the one that the state is about."""
        if self._dispatcher is None:
            return False
        synchronous = self._judge.state in (GuardState.RECORDING, GuardState.TRIPPED)
        return self._dispatcher.mode is (Mode.SYNC if synchronous else Mode.ASYNC)

    # -- acting -----------------------------------------------------------------------------------------------------

    async def open(self, reason: str) -> None:
        """Go asynchronous by hand, for all that the rollout lets in: the first time, or back after a rollback.

        The first time it takes what it has recorded for its baseline: raises `ConfigurationError`, and stays
        synchronous, if there are too few samples.
        """
        dispatcher = self._by_hand(reason)
        self._step(self._judge.opened(self._now()))
        await self._switch(dispatcher, Mode.ASYNC, reason)

    async def close(self, reason: str) -> None:
        """Go synchronous by hand, and stay so until somebody calls `open`: also after a rollback."""
        dispatcher = self._by_hand(reason)
        self._step(self._judge.closed(self._now()))
        await self._switch(dispatcher, Mode.SYNC, reason)

    @property
    def baseline(self) -> Baseline:
        """What it judges by; while it records, what it has so far. Keep `to_dict()` of it across restarts."""
        return self._judge.baseline or self._judge.measured()

    def forget_baseline(self) -> None:
        """Record it anew. Raises `ConfigurationError` unless calls are synchronous by hand."""
        if self._judge.state is not GuardState.RECORDING:
            raise ConfigurationError("state", self._judge.state.value, "switch to Mode.SYNC by hand first")
        self._judge.forget_baseline()

    @property
    def state(self) -> GuardState:
        return self._judge.state

    @property
    def rollback_reasons(self) -> Mapping[str, int]:
        """How often it has rolled back, by the signal with the strongest evidence."""
        return self._judge.rollback_reasons

    def report(self) -> GuardReport:
        """What it sees, what it compares that with, and why it did what it did. `str` of it is for people."""
        return self._judge.report(self._now())

    def _step(self, decision: Decision | None) -> None:
        """By hand: whatever share it had held the rollout to is lifted."""
        if decision is None:
            return
        if self.rollout is not None:
            self.rollout.hold_to(100, "")
        self._count_from_now()
        self._tell(decision)

    async def _carry_out(self, decision: Decision) -> None:
        dispatcher, rollout, wanted = self._watched(), self.rollout, self.policy.half_open
        if decision.step is Step.BREACHED and self.policy.waiting is Waiting.CANCEL:
            self._cancel_waiting(dispatcher)
        self._count_from_now()
        self._tell(decision)  # a hook may still submit, an Event for one; what it submits is not cancelled
        if decision.step is Step.BREACHED:
            await self._switch(dispatcher, Mode.SYNC, f"guard: {decision}")
        elif decision.step is Step.HELD_OFF:
            assert rollout is not None
            assert wanted is not None
            rollout.hold_to(wanted.percentage, "guard: half-open")
            await self._switch(dispatcher, Mode.ASYNC, "guard: half-open")
        elif rollout is not None:
            rollout.hold_to(100, "")

    async def _switch(self, dispatcher: Dispatcher, mode: Mode, reason: str) -> None:
        self._own_reason = reason
        try:
            await dispatcher.switch(mode, reason)
        finally:
            self._own_reason = None

    def _cancel_waiting(self, dispatcher: Dispatcher) -> None:
        """What is asynchronous and waits ends as Cancelled("rollback"); what flies lands."""
        core = dispatcher._core
        for handle in list(core.handles()):
            inside = self.rollout is None or self.rollout.admits(handle.call)
            if inside and not handle.done() and not handle.state.flying:
                dispatcher._cancel(handle, "rollback")

    def _tell(self, decision: Decision) -> None:
        breached = decision.step is Step.BREACHED
        log.log(
            logging.WARNING if breached else logging.INFO,
            "guard %s: %s",
            decision.state.value,
            decision,
            extra={
                "guard": decision.state.value,
                "step": decision.step.name.lower(),
                "reason": decision.reason,
                "breaches": [str(breach) for breach in decision.breaches],
                "hold_off": decision.hold_off,
            },
        )
        for hook in (self._on_rollback if breached else None, self._on_step):
            try:
                answer = None if hook is None else hook(decision)
            except Exception:
                log.exception("a hook of the guard raised")
            else:
                if inspect.isawaitable(answer):
                    task = asyncio.get_running_loop().create_task(_finish(answer), name="asyncdispatch-guard-hook")
                    self._hooks.add(task)
                    task.add_done_callback(self._hooks.discard)

    def _by_hand(self, reason: str) -> Dispatcher:
        if not isinstance(reason, str):
            raise ConfigurationError("reason", reason, "must be a string that says why")
        return self._watched()

    def _watched(self) -> Dispatcher:
        if self._dispatcher is None:
            raise ConfigurationError("dispatcher", None, "the guard watches none: async with guard.watch(dispatcher)")
        return self._dispatcher

    def _now(self) -> float:
        return 0.0 if self._dispatcher is None else self._dispatcher._now() / SECOND

    def _count_from_now(self) -> None:
        assert self._dispatcher is not None
        self._from = self._dispatcher._now() << PLACE_SHIFT


async def _finish(answer: Awaitable[object]) -> None:
    """Of a hook that is a coroutine function."""
    try:
        await answer
    except Exception:
        log.exception("a hook of the guard raised")
