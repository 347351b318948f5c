"""Laws that can't be seen in one state, checked from the list of events alone.

This is a second reading of the laws: it keeps a small model of its own and asks nothing of the core.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from asyncdispatch.calls import APICall, Effect
from asyncdispatch.config import DispatcherConfig, FlowQuota
from asyncdispatch.outcomes import AnyOutcome, Expired, Overwritten, Shed, Skipped, Succeeded
from asyncdispatch.testing.stepping import events

SECOND = 1_000_000_000
SLACK = SECOND // 10
"""How late a deadline may be told (law L5)."""

NO_LIMIT = 1 << 100


class LawBroken(AssertionError):
    """The history contradicts a law."""


def check(good: bool, law: str, what: str) -> None:
    if not good:
        raise LawBroken(f"{law}: {what}")


@dataclass
class Context:
    parent: Context | None
    valid_until: int
    states: dict[str, bool]
    ended: int | None = None

    @property
    def limit(self) -> int:
        above = NO_LIMIT if self.parent is None else self.parent.limit
        return min(self.valid_until, above, NO_LIMIT if self.ended is None else self.ended)


@dataclass
class Handle:
    ticket: int
    call: APICall[Any]
    at: int
    deadline: int
    lead: Execution
    context: Context | None
    outcome: AnyOutcome | None = None
    settled_at: int = 0
    overdue: int | None = None  # when somebody first looked after it should have left

    @property
    def limit(self) -> int:
        return self.deadline if self.context is None else min(self.deadline, self.context.limit)

    def may_start(self, at: int) -> bool:
        """It wants to start, and its own time, context and requirements let it (laws L5, L21)."""
        if self.outcome is not None or self.limit <= at or at < self.at + round((self.call.not_before or 0) * SECOND):
            return False
        waits = self.call.awaits_prerequisites and self.context is not None
        return not waits or self.context is None or all(self.context.states.values())


@dataclass
class Execution:
    ticket: int
    call: APICall[Any]
    accepted: int = 0  # the step
    before: int = 0  # the write accepted before it on its object
    handles: list[Handle] = field(default_factory=list)
    since: int | None = None  # in flight since
    attempts: int = 0
    reconciling: bool = False
    doubt: bool = False  # a sent write may have been applied, and nothing has settled it since (law L10)
    unsettled_create: bool = False  # it must be reconciled before it is sent again
    changed: bool = False  # merged, rebased or decided again: what it sends is nobody's own call

    @property
    def write(self) -> bool:
        return self.call.effect is not Effect.READ

    @property
    def lane(self) -> str:
        ref = self.call.target
        return f"{ref.lane}#{self.ticket}" if ref.generated else ref.lane

    @property
    def live(self) -> bool:
        return self.since is not None or any(handle.outcome is None for handle in self.handles)

    @property
    def identity(self) -> tuple[Any, ...] | None:
        """What must be equal to join it (law L8); None: it can't be joined."""
        return identity_of(self.call)


def identity_of(call: APICall[Any]) -> tuple[Any, ...] | None:
    if call.idempotency_key is None and call.effect is not Effect.READ:
        return None
    ref = call.target
    return (call.idempotency_key, call.call_type, ref.lane, ref.uid, call.version, call.effect, call.scope)


class History:
    """Takes one event after another and raises at the first that no law allows."""

    def __init__(self, config: DispatcherConfig) -> None:
        self.config = config
        self.give_up = round(config.give_up * SECOND)
        self.events: list[events.Event] = []
        self.handles: dict[int, Handle] = {}
        self.executions: dict[int, Execution] = {}
        self.contexts: dict[int, Context] = {}
        self.starts: list[int] = []
        self.flying: dict[int, Execution] = {}
        self.waiting: dict[int, Handle] = {}  # those without an outcome
        self.closed = False
        self.looked = 0
        self.late_report = 0  # the last step in which an attempt ended after a stall
        self.until = NO_LIMIT
        self.last_write: dict[str, int] = defaultdict(int)
        self.successes: dict[int, int] = {}  # the step in which an execution succeeded

    def add(self, event: events.Event) -> None:
        self.events.append(event)
        getattr(self, f"_on_{type(event).__name__.lower()}")(event)

    def over(self) -> None:
        """Nothing more will happen: every accepted handle has its outcome (law L1)."""
        check(not self.waiting, "L1", f"without an outcome: {sorted(self.waiting)}")

    # -- accepting ----------------------------------------------------------------------------------------------

    def _on_accepted(self, event: events.Accepted) -> None:
        call = event.call
        check(not self.closed, "L15", f"call {event.ticket} was accepted after close")
        timeout = self.config.timeout if call.timeout is None else call.timeout
        context = self.contexts[call.context.epoch] if call.context is not None else None
        check(context is None or context.limit > event.at, "L5", f"call {event.ticket} in an ended context")
        if event.lead == event.ticket:
            execution = Execution(event.ticket, call, accepted=event.step)
            self._check_no_double(execution)
            self.executions[event.ticket] = execution
        else:
            execution = self.executions[event.lead]
            self._check_join(event, execution)
        deadline = min(event.at + round(timeout * SECOND), self.until)
        handle = Handle(event.ticket, call, event.at, deadline, execution, context)
        execution.handles.append(handle)
        self.handles[event.ticket] = self.waiting[event.ticket] = handle
        if execution.write and event.lead == event.ticket:
            execution.before = self.last_write[execution.lane]
            self.last_write[execution.lane] = event.ticket
        if call.prerequisite is not None and context is not None:
            context.states[call.prerequisite] = False

    def _check_join(self, event: events.Accepted, execution: Execution) -> None:
        """Law L8: it joins a live execution of the same operation, an ordered read none older than a write."""
        what = f"call {event.ticket} joined {execution.ticket}"
        identity = identity_of(event.call)
        check(identity is not None and identity == execution.identity, "L8", f"{what}, which is another operation")
        check(execution.live, "L8", f"{what}, which is over")
        if event.call.ordered:
            good = self.last_write[execution.lane] < execution.ticket
            check(good, "L8", f"{what}, though a write was accepted in between")

    def _check_no_double(self, new: Execution) -> None:
        """Law L8: of equal operations there is one execution at a time, but for ordered reads."""
        if new.identity is None or new.call.ordered:
            return
        for other in self.executions.values():
            # A handle that left behind an execution in flight lets it be joined still: it is live.
            if other.live and other.identity == new.identity:
                raise LawBroken(f"L8: calls {other.ticket} and {new.ticket} are the same operation, not joined")

    def _on_refused(self, event: events.Refused) -> None:
        pass

    # -- attempts -----------------------------------------------------------------------------------------------

    def _on_started(self, event: events.Started) -> None:
        execution, at = self.executions[event.ticket], event.at
        what = f"call {event.ticket}"
        check(execution.since is None, "L2", f"{what} started twice")
        check(not self.closed or at < self.until, "L5", f"{what} started after close")
        able = [handle for handle in execution.handles if handle.may_start(at)]
        check(bool(able), "L5", f"{what} started, but no handle of it may (time, context, requirement, end)")
        if not execution.changed:
            good = any(event.sent is handle.call for handle in able)
            check(good, "L5", f"{what} sends another call than that of a handle that may start")
        check(not (execution.unsettled_create and not event.reconcile), "L10", f"{what}, a create, is sent again")
        self._check_seats(execution, event)
        if execution.write:
            others = [other.ticket for other in self.flying.values() if other.write and other.lane == execution.lane]
            check(not others, "L2", f"{what} started while {others} fly on the same object")
        if event.sent.ordered:
            older = [
                other.ticket
                for other in self.executions.values()
                if other.write and other.lane == execution.lane and other.live and other.ticket < execution.ticket
                and (other.since is not None or any(h.may_start(at) for h in other.handles))
            ]  # fmt: skip
            check(not older, "L8", f"{what}, an ordered read, started before the writes {older}")
        self._check_rate(at)
        execution.since, execution.reconciling = at, event.reconcile
        execution.attempts += not event.reconcile
        self.flying[event.ticket] = execution

    def _check_seats(self, execution: Execution, event: events.Started) -> None:
        """Law L3: in total, per flow, per call type; a flow is that of the execution's first caller (law L9)."""
        flying = list(self.flying.values())
        check(len(flying) < event.seats, "L3", f"call {event.ticket} started without a seat")
        quota = self.config.flows.get(execution.call.flow, FlowQuota()).max_in_flight
        count = sum(other.call.flow == execution.call.flow for other in flying)
        check(quota is None or count < quota, "L3", f"call {event.ticket} started over its flow's seats")
        policy = self.config.call_types.get(execution.call.call_type)
        count = sum(other.call.call_type == execution.call.call_type for other in flying)
        good = policy is None or policy.max_in_flight is None or count < policy.max_in_flight
        check(good, "L3", f"call {event.ticket} started over its type's seats")

    def _check_rate(self, at: int) -> None:
        """Law L20: the starts in any window are at most burst + qps·t."""
        self.starts.append(at)
        rate = self.config.rate
        if rate is None:
            return
        for index in range(max(0, len(self.starts) - 4 * rate.burst - 40), len(self.starts)):
            count = len(self.starts) - index
            most = rate.burst + rate.qps * (at - self.starts[index]) / SECOND
            check(count <= most + 1e-6, "L20", f"{count} starts in {(at - self.starts[index]) / SECOND} s")

    def _on_ended(self, event: events.Ended) -> None:
        execution = self.executions[event.ticket]
        check(execution.since is not None, "L1", f"call {event.ticket} ended, but did not fly")
        if event.at > self.looked:
            self.late_report = event.step
        how, create = event.how, execution.call.effect is Effect.CREATE
        if not event.goes_on:
            execution.since = None
            del self.flying[event.ticket]
        sent = how == "failed" and event.verdict is not None and event.verdict.maybe_applied
        sent = sent or (how == "stopped" and event.sent and not execution.reconciling)
        execution.reconciling = event.goes_on
        if execution.write and (sent or event.maybe_applied):
            execution.doubt = True
            execution.unsettled_create = execution.unsettled_create or create
        if how in ("succeeded", "applied", "again", "refused"):
            execution.doubt = execution.unsettled_create = False
        if how == "again":
            execution.changed = True
        if how in ("succeeded", "applied"):
            self.successes[event.ticket] = event.step

    def _on_stopping(self, event: events.Stopping) -> None:
        check(self.executions[event.ticket].since is not None, "L11", f"call {event.ticket} is stopped, but not flying")

    def _on_changed(self, event: events.Changed) -> None:
        execution = self.executions[event.ticket]
        execution.changed, execution.call = True, event.call

    # -- outcomes -----------------------------------------------------------------------------------------------

    def _on_settled(self, event: events.Settled) -> None:
        handle, outcome = self.handles[event.ticket], event.outcome
        what = f"call {event.ticket}"
        check(handle.outcome is None, "L1", f"{what} has two outcomes")
        execution = handle.lead
        if isinstance(outcome, Succeeded):
            self._check_success(handle, outcome, event)
        else:
            self._check_ambiguity(handle, outcome, event.step)
        if isinstance(outcome, (Overwritten, Skipped)):
            self._check_by(handle, outcome, event)
        if isinstance(outcome, Shed):
            check(handle.call.sheddable, "L4", f"{what} was shed, but is not sheddable")
            check(execution.since is None, "L4", f"{what} was shed in flight")
            check(handle.call.prerequisite is None, "L4", f"{what} was shed, but is a prerequisite")
        if isinstance(outcome, Expired):
            early = event.at < handle.limit and not self._hopeless(handle, outcome.where, event.at)
            check(not early, "L5", f"{what} expired too early ({outcome.where})")
        if self.last_write[execution.lane] == execution.ticket and execution.accepted == event.step:
            self.last_write[execution.lane] = execution.before  # told at once: it never was a write
        check(outcome.attempts == execution.attempts, "L1", f"{what} tells {outcome.attempts} attempts")
        elapsed = (event.at - handle.at) / SECOND
        check(abs(outcome.elapsed_seconds - elapsed) < 1e-6, "L1", f"{what} tells {outcome.elapsed_seconds} s")
        check(0 <= outcome.queued_seconds <= elapsed + 1e-6, "L1", f"{what} queued {outcome.queued_seconds} s")
        handle.outcome, handle.settled_at = outcome, event.at
        del self.waiting[event.ticket]
        context = handle.context
        if handle.call.prerequisite is not None and context is not None and context.ended is None:
            context.states[handle.call.prerequisite] = isinstance(outcome, Succeeded)

    def _hopeless(self, handle: Handle, where: str, at: int) -> bool:
        """Law L20: its earliest start may be after its deadline, so that it expires at once.

        Case K5: at its turn, with next to nothing of its time left, it leaves its seat to another.
        """
        waited, remaining = at - handle.lead.handles[0].at, handle.limit - at
        in_vain = self.config.rate is not None or remaining * 16 < waited
        return where in ("delayed", "backoff") or (where == "queued" and in_vain)

    def _check_success(self, handle: Handle, outcome: Succeeded[Any], event: events.Settled) -> None:
        """Laws L8, L11: one value for all, and none for a context that has ended."""
        what = f"call {handle.ticket}"
        limit = NO_LIMIT if handle.context is None else handle.context.limit
        check(event.at < limit, "L11", f"{what} got a success after its context had ended")
        for other in handle.lead.handles:
            if isinstance(other.outcome, Succeeded):
                check(other.outcome.value is outcome.value, "L8", f"{what} and {other.ticket} got other values")
                check(other.settled_at == event.at, "L8", f"{what} and {other.ticket} succeeded at other times")

    def _check_ambiguity(self, handle: Handle, outcome: AnyOutcome, step: int) -> None:
        """Law L10: ambiguous if a sent attempt was maybe applied and nothing settled it since."""
        execution = handle.lead
        if outcome.late or step == self.late_report:
            return  # after a stall, what was due is told before the report of the same step
        on_wire = execution.since is not None and execution.write and not execution.reconciling
        expected = execution.doubt or on_wire
        check(outcome.ambiguous == expected, "L10", f"call {handle.ticket} says ambiguous={outcome.ambiguous}")

    def _check_by(self, handle: Handle, outcome: Overwritten[Any] | Skipped[Any], event: events.Settled) -> None:
        """Laws L12, L13: who took whose place, and why."""
        what = f"call {handle.ticket}"
        other = self.executions.get(outcome.by)
        check(other is not None, "L12", f"{what} names {outcome.by}, which is no execution")
        assert other is not None
        mine = handle.lead.call
        check(other.lane == handle.lead.lane, "L12", f"{what} names {outcome.by} of another object")
        flew_on = handle.lead.since is not None
        check(not flew_on, "L13", f"{what} is told 'overwritten' about a request that is on the wire")
        policy = self.config.call_types.get(other.call.call_type)
        supersedes = policy is not None and mine.call_type in policy.supersedes
        if self.successes.get(outcome.by) == event.step and supersedes:
            later = handle.ticket > outcome.by
            check(isinstance(outcome, Skipped) == later, "L12", f"{what}: Overwritten if accepted before, else Skipped")
            living = any(isinstance(h.outcome, Succeeded) or h.outcome is None for h in other.handles)
            check(living, "L12", f"{what} was settled by a success that no living handle got")
            return
        check(isinstance(outcome, Overwritten), "L12", f"{what} was skipped by a call that did not succeed")
        check(outcome.by > handle.ticket, "L13", f"{what} was merged into an older call")
        for call in (mine, other.call):
            good = call.effect is Effect.IDEMPOTENT_WRITE and call.idempotency_key is None and call.prerequisite is None
            check(good and "merge" in call._hooks, "L13", f"{what} was merged, but may not be")
        same = (mine.call_type, mine.target.uid, mine.version) == (
            *(other.call.call_type, other.call.target.uid, other.call.version),
        )
        check(same, "L13", f"{what} was merged with a call of another type, uid or version")
        other.changed = True

    # -- contexts, time, the end --------------------------------------------------------------------------------

    def _on_began(self, event: events.Began) -> None:
        parent = None if event.parent is None else self.contexts[event.parent]
        check(event.epoch not in self.contexts, "L5", f"epoch {event.epoch} was used twice")
        until = NO_LIMIT if event.valid_until is None else event.valid_until
        self.contexts[event.epoch] = Context(parent, until, dict.fromkeys(event.requires, False))

    def _on_extended(self, event: events.Extended) -> None:
        context = self.contexts[event.epoch]
        check(context.limit > event.at, "L5", f"context {event.epoch} was extended after its end")
        context.valid_until = event.valid_until

    def _on_finished(self, event: events.Finished) -> None:
        self.contexts[event.epoch].ended = event.at

    def _on_required(self, event: events.Required) -> None:
        self.contexts[event.epoch].states[event.name] = event.state is True

    def _on_left(self, event: events.Left) -> None:
        handle = self.handles[event.ticket]
        handle.deadline = min(handle.deadline, event.at)
        if handle.overdue is None:
            handle.overdue = event.at

    def _on_closed(self, event: events.Closed) -> None:
        self.closed = True
        self.until = min(self.until, event.at if event.until is None else event.until)
        for handle in self.waiting.values():
            handle.deadline = min(handle.deadline, self.until)

    def _on_noted(self, event: events.Noted) -> None:
        pass

    def _on_looked(self, event: events.Looked) -> None:
        """Law L1: outcomes come within 0.1 s of a limit, in flight within the time given to stop."""
        self.looked = event.at
        for handle in self.waiting.values():
            late = handle.deadline + SLACK if handle.overdue is None else handle.deadline
            if event.at < min(late, NO_LIMIT if handle.context is None else handle.context.limit):
                continue
            if handle.overdue is None:
                handle.overdue = event.at
            flying = handle.lead.since is not None and event.at < handle.overdue + self.give_up
            check(flying, "L1", f"call {handle.ticket} has no outcome in time")
