"""The dispatcher's decisions: one step after another, each whole before the next (law L14).

The shell calls `submit`, asks `next` for an execution to start, performs it, and reports by `succeed`, `fail`,
`stopped` or `reconciled`. After each step it empties `settled`, `stops` and `objects.wanted`. Times are nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.executions import Executions, leaving, nanoseconds
from asyncdispatch._core.idempotency import key_hash
from asyncdispatch._core.lanes import CONTROL_FIELDS, Lane, mergeable, merged, with_fields_of
from asyncdispatch._core.overlay import integer_version
from asyncdispatch._core.parking import FIRST_PROBE, NEXT_PROBE, SAME_ERROR_LIMIT, Hold, LaterScope, Signal
from asyncdispatch._core.states import NEVER, CallState, Entry, More, place_of
from asyncdispatch.calls import (
    Again,
    APICall,
    Applied,
    Effect,
    ObjectRef,
    Refused,
    Verdict,
    VerdictKind,
    identity_in,
)
from asyncdispatch.contexts import ContextOwner, SchedulingContext
from asyncdispatch.errors import (
    ConfigurationError,
    DispatcherClosed,
    MergeFailed,
    PrerequisiteFailed,
    StaleContext,
)
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Overwritten, Shed, Succeeded

if TYPE_CHECKING:
    from collections.abc import Hashable

    from asyncdispatch._core.epochs import Epoch
    from asyncdispatch._core.overlay import OwnWrite
    from asyncdispatch.config import RetryPolicy

_GONE = Verdict(VerdictKind.GONE, reason="another object has its name now")
_PERMANENT = Verdict(VerdictKind.PERMANENT)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the shell has classified it: the verdict, how long to wait, and what it says of the server.

    `delay` (ns) is what the wait strategy and Retry-After gave; `exhausted` that the stop strategy said enough.
    `signature` is equal for errors that will not pass by themselves when they repeat (rule R12); None: no such error.
    """

    error: BaseException
    verdict: Verdict
    delay: int = 0
    exhausted: bool = False
    signal: Signal = Signal.NONE
    signature: Hashable = None


class DispatchCore(Executions):
    """The machine."""

    closed: str | None = None
    """Why nothing is accepted any more (law L15)."""
    _tickets = 0
    _since = 0

    # -- submitting ---------------------------------------------------------------------------------------------

    def submit(self, call: APICall[Any], now: int, since: int | None = None) -> Entry:
        """Accept a validated call or refuse it. A refused one leaves no trace (laws L1, L4).

        `since`: from when its time-out counts, if that is before now.
        """
        self._since = now if since is None else since
        if now >= self.timers.due or now >= self.deadlines.due:
            self.tick(now)
        if self.closed is not None:
            raise DispatcherClosed(self.closed)
        epoch = self._living_epoch(call, now) if call.context is not None else None
        hashed = None
        if call.idempotency_key is not None or call.effect is Effect.READ:
            hashed = key_hash(call)
            found = self.keys.find(hashed, call)
            if found is not None and self._joinable(found, call):
                return self._join(found, call, epoch, now)
            if len(self.memory) and not call.fresh and call.idempotency_key is not None:
                remembered = self.memory.find(hashed, call, now)
                if remembered is not None:
                    return self._settled_at_once(call, epoch, now, Succeeded, remembered)
        if self._other_uid(call, now):
            gone = RuntimeError(f"{call.target} is gone: another object has its name now")
            return self._settled_at_once(call, epoch, now, Failed, (gone, _GONE))
        return self._accept(call, epoch, hashed, now)

    def _accept(self, call: APICall[Any], epoch: Epoch | None, hashed: int | None, now: int) -> Entry:
        """Merge it, answer it as a no-op, or give it a place of its own. User hooks and refusals come first."""
        lane_key = call.target.lane
        found = self.lanes.table.get(lane_key)
        pending: Entry | None = None
        if found is not None:
            pending, both = self._merge_candidate(found, call, epoch, now)
            if pending is not None:
                assert both is not None
                return self._merge(pending, call, both, epoch, now)
            waiting = found.waiting() if isinstance(found, Lane) else not found.phase.flying
            if waiting >= self.config.lane_capacity and call.target.lane[-1] != "*":
                raise self.admission.refuse_object(now, waiting, self.config.lane_capacity)
        elif "is_noop" in call.hooks and self._is_noop(call, epoch, now):
            return self._settled_at_once(call, epoch, now, Succeeded, (None,))
        level = self.level_of(call.priority)
        flow = self._flow(call.flow)
        victim = self.admission.admit(flow, level, call.prerequisite is not None, now)
        entry = self._make(call, epoch, now, level)
        if victim is not None:
            self._conclude(victim, now, Shed, f"made room for call {entry.ticket}")
        self._register(entry, epoch, hashed, now)
        if self._hopeless(entry, now):
            return entry
        self.place(entry, now)
        if call.sheddable:
            self._offer(entry)
        if self._requirements:
            self._after(now)
        return entry

    def _make(self, call: APICall[Any], epoch: Epoch | None, now: int, level: int) -> Entry:
        self._tickets = ticket = self._tickets + 1
        timeout = call.timeout
        deadline = self._since + nanoseconds(self.config.timeout if timeout is None else timeout)
        flow, group = self._flow(call.flow), self._group(call.call_type)
        entry = self._new_entry(call, ticket, place_of(now, ticket), level, deadline, flow, group)
        if epoch is not None:
            entry.rare().epoch = epoch
        if call.not_before:
            entry.rare().ready_at = now + nanoseconds(call.not_before)
        return entry

    def _register(self, entry: Entry, epoch: Epoch | None, hashed: int | None, now: int) -> None:
        """Into every table; from here on it has exactly one outcome (law L1)."""
        call = entry.call
        self.admission.entered(entry.flow)
        entry.group.waiting += 1
        key = call.target.lane
        if key[-1] == "*":
            key = f"{key}#{entry.ticket}"
        table = self.lanes.table
        if key in table:
            lane = self.lanes.lane(key)
            lane.add(entry)
            if call.effect is not Effect.READ:
                lane.last_write = entry.ticket
        else:
            table[key] = entry
        if hashed is not None:
            self.keys.add(hashed, entry)
        self._register_handle(entry, epoch)

    def _register_handle(self, handle: Entry, epoch: Epoch | None) -> None:
        call = handle.call
        self.deadlines.add(handle)
        if epoch is not None:
            epoch.handles[handle.ticket] = handle
            if call.prerequisite is not None:
                self._requirements.append((epoch, call.prerequisite, None))
        for ref in call.depends_on:
            handle.rare()
            self.dependents.setdefault(ref.lane, {})[handle.ticket] = handle

    def _settled_at_once(
        self, call: APICall[Any], epoch: Epoch | None, now: int, kind: type, args: tuple[Any, ...]
    ) -> Entry:
        """Accepted, and told in the same step: it never waits, so it needs no room."""
        entry = self._make(call, epoch, now, self.level_of(call.priority))
        self.admission.entered(entry.flow)
        self._register_handle(entry, epoch)
        self._tell(entry, now, kind, args)
        self._after(now)
        return entry

    def _hopeless(self, entry: Entry, now: int) -> bool:
        """Law L20: a call that can't start before its deadline expires at once. Law L21: nor can one whose
        requirement has failed already."""
        more = entry.more
        if more is not None and more.epoch is not None and entry.call.awaits_prerequisites:
            failed = more.epoch.failed
            if failed is not None:
                self._fail_requirement(entry, *failed, now)
                return True
        limit = entry.deadline if more is None else self.handle_limit(entry)
        if more is not None and more.ready_at >= limit:
            entry.move(CallState.DELAYED)
            self._conclude(entry, now, Expired, "delayed")
        elif self.rate is not None and self.rate.free_at(now) >= limit:
            self._conclude(entry, now, Expired, "queued")
        else:
            return False
        self._after(now)
        return True

    # -- contexts, uids, no-ops ---------------------------------------------------------------------------------

    def _living_epoch(self, call: APICall[Any], now: int) -> Epoch:
        assert call.context is not None
        epoch = self.epochs.living(call.context, now)
        if call.prerequisite is not None and call.prerequisite not in call.context.requirements:
            known = ", ".join(call.context.requirements) or "none"
            raise ConfigurationError(
                "prerequisite", call.prerequisite, f"its context does not require it (it requires: {known})"
            )
        return epoch

    def _other_uid(self, call: APICall[Any], now: int) -> bool:
        """True if the call is for another uid than the one known last (law L2)."""
        ref = call.target
        if ref.uid is None:
            return False
        if call.version is not None:
            self.see(ref.lane, ref.uid, integer_version(call.version), now)
        known = self.objects.uid_of(ref.lane)
        return known is not None and known != ref.uid

    def _is_noop(self, call: APICall[Any], epoch: Epoch | None, now: int) -> bool:
        """Asked only when nothing else of its object waits, flies or is unobserved."""
        if call.effect is Effect.READ or call.not_before or self.objects.writes(call.target.lane):
            return False
        if call.awaits_prerequisites and epoch is not None and epoch.unconfirmed:
            return False
        try:
            return bool(call.is_noop())
        except Exception as error:
            raise ConfigurationError("is_noop", type(call).__name__, f"it raised {error!r}: mend it") from error

    # -- joining (law L8) ---------------------------------------------------------------------------------------

    def _joinable(self, found: Entry, call: APICall[Any]) -> bool:
        if call.effect is not Effect.READ or not call.ordered:
            return True
        if not self.ordered(found):
            return False
        lane = self.lanes.table.get(call.target.lane)
        return not isinstance(lane, Lane) or lane.last_write < found.ticket

    def _join(self, lead: Entry, call: APICall[Any], epoch: Epoch | None, now: int) -> Entry:
        self.admission.admit_joiner(now)
        handle = self._make(call, epoch, now, self.level_of(call.priority))
        handle.flow, handle.group = lead.flow, lead.group
        handle.rare().lead = lead
        handle.move(CallState.JOINED)
        more = lead.rare()
        if more.handles is None:
            more.handles = [lead]
        more.handles.append(handle)
        self.admission.joined += 1
        self.admission.sheddables.remove(lead)
        self._register_handle(handle, epoch)
        self._raise_rank(lead, handle.level, handle.accepted)
        self._spread_rank(lead)
        if lead.phase in (CallState.DELAYED, CallState.REQUIREMENTS):
            self.place(lead, now)
        elif self.handle_limit(handle) <= max(more.until, more.ready_at if not self.may_start(handle, now) else 0):
            self._depart(handle, now, Expired, lead.phase.value)
        self._after(now)
        return handle

    # -- merging (law L13) --------------------------------------------------------------------------------------

    def _merge_candidate(
        self, found: Entry | Lane, call: APICall[Any], epoch: Epoch | None, now: int
    ) -> tuple[Entry | None, APICall[Any] | None]:
        """The last in line and what it becomes, if the newcomer merges with it. Asks `merge`; changes nothing."""
        if call.not_before or (call.awaits_prerequisites and epoch is not None and epoch.unconfirmed):
            return None, None  # it does not enter the line yet
        last = found.line[-1] if isinstance(found, Lane) and found.line else found
        if not isinstance(last, Entry) or last.phase.flying:
            return None, None
        if last.phase in (CallState.DELAYED, CallState.REQUIREMENTS) or not mergeable(last, call):
            return None, None
        both = merged(call, self.executable(last))
        return (None, None) if both is None else (last, both)

    def _merge(self, pending: Entry, call: APICall[Any], both: APICall[Any], epoch: Epoch | None, now: int) -> Entry:
        """The newcomer takes over from the last in line, which is at once Overwritten: its place, rank and backoff."""
        entry = self._make(both, epoch, now, self.level_of(call.priority))
        self.admission.entered(entry.flow)
        entry.group.waiting += 1
        self._register_handle(entry, epoch)
        lane = self.lanes.lane(self.lane_key(pending))
        index = next(i for i, other in enumerate(lane.line) if other is pending)
        lane.line[index] = entry
        lane.last_write = entry.ticket
        phase, more = pending.phase, pending.more
        until, later, hold = (more.until, more.later, more.hold) if more is not None else (0, None, None)
        self._raise_rank(entry, pending.level, pending.rank)
        self._conclude(pending, now, Overwritten, entry.ticket)
        entry.move(CallState.LINE)
        self._inherit(lane, index, entry)
        if phase is CallState.BACKOFF:
            self._back_off(entry, max(until, now), later, now)
        elif phase is CallState.HELD and hold is not None and self.holds.get(hold.scope) is hold:
            self._hold(entry, hold, now)
        self._advance(lane)
        if call.sheddable and not entry.done():
            self._offer(entry)
        self._after(now)
        return entry

    # -- starting -----------------------------------------------------------------------------------------------

    def next(self, now: int) -> Entry | None:
        """The execution to start now, already counted as in flight; None if nothing may start.

        Time is looked at first: after a stalled loop nothing starts that should have ended meanwhile (law L5).
        """
        if now >= self.timers.due or now >= self.deadlines.due:
            self.tick(now)
        seats = self.seats
        while seats.taken < seats.limit:
            entry = self.ordering.pick()
            if entry is None:
                return None
            rate = self.rate
            if rate is not None:
                free_at = rate.free_at(now)
                if free_at > now:
                    if not self._expire_handles(entry, free_at, now):
                        return None
                    continue
            if self._checked(entry, now):
                self._start(entry, now)
                return entry
        return None

    def _checked(self, entry: Entry, now: int) -> bool:
        """The last look before a start; what may not start is put where it belongs."""
        if self._expire_handles(entry, now, now):
            return False
        if self.holds:
            hold = self.holds.get(self._hold_scope(entry))
            if hold is not None and hold.probe is not entry:
                self.ordering.remove(entry)
                self._hold(entry, hold, now)
                return False
        if self.ordered(entry):
            lane = self.lanes.table.get(self.lane_key(entry))
            if isinstance(lane, Lane) and lane.oldest_write(entry.ticket):
                self._ready_read(lane, entry)
                return False
        return True

    def _expire_handles(self, entry: Entry, horizon: int, now: int) -> bool:
        """Expire the handles of a waiting execution that end by `horizon`. True if that changed where it waits."""
        if entry.more is None:
            if entry.deadline > horizon:
                return False
            self._conclude(entry, now, Expired, entry.phase.value)
            return True
        changed = False
        for handle in list(self.living(entry)):
            if self.handle_limit(handle) <= horizon:
                self._depart(handle, now, Expired, entry.phase.value)
                changed = True
        if changed:
            self._after(now)
        return changed

    def _start(self, entry: Entry, now: int) -> None:
        self.ordering.take(entry)
        entry.move(CallState.IN_FLIGHT)
        entry.started = now
        call, more = entry.call, entry.more
        if more is None or not more.reconciling:
            entry.attempts += 1
        self._take_seat(entry)
        if self.rate is not None:
            self.rate.take(now)
        if self.breakers.table:
            breaker = self.breakers.table.get((entry.flow.name, entry.group.name))
            if breaker is not None and breaker.half_open:
                breaker.probe = entry
                self._unblock(entry.flow)
        if call.sheddable:
            self.admission.sheddables.remove(entry)
        if call.effect is Effect.READ:
            if call.target.lane in self.objects.table:
                entry.rare().mark = self.objects.ended
        else:
            lane = self.lanes.table.get(self.lane_key(entry))
            if isinstance(lane, Lane):
                lane.leave_line(entry)
                lane.flying = entry

    # -- reports of the shell -----------------------------------------------------------------------------------

    def succeed(self, entry: Entry, value: Any, now: int) -> None:
        """The attempt in flight has succeeded with `value`."""
        if now >= self.timers.due or now >= self.deadlines.due:
            self.tick(now)
        self.seats.succeeded()
        self._give_seat(entry)
        self.budget.earn()
        if self.budget.waiting:
            self._pump_budget(None, now)
        if self.breakers.table:
            self._well(entry)
        write = entry.call.effect is not Effect.READ
        if entry.more is None:
            self._remove(entry, now)
            self._note_answer(entry, value, write, now)
            self._tell(entry, now, Succeeded, (value,))
        elif not self._succeed_rare(entry, entry.more, value, write, now):
            self.stale += 1
            write = False
        if write:
            self._settle_superseded(entry, now)
        if self._requirements:
            self._after(now)

    def _succeed_rare(self, entry: Entry, more: More, value: Any, write: bool, now: int) -> bool:
        """A success of an execution that was joined, tried before, or has a context. True if a living handle got it."""
        self._answered(entry, more, VerdictKind.GONE, now)  # any answer shows that the credentials are good
        more.doubt = False
        more.reconciling = False
        hashed, mark, handles = more.hash, more.mark, list(self.living(entry))
        self._remove(entry, now)
        self.memory.remember(entry.ticket, hashed, entry.call, value, now)
        self._time_memory()
        self.objects.settle_doubt(self.lane_key(entry), entry.ticket)
        if mark:
            self.objects.seen_by_read(entry.call.target.lane, mark)
        self._note_answer(entry, value, write, now)
        for handle in more.leavers:
            self._tell(handle, now, *leaving(handle), late=value)
        for handle in handles:
            self._tell(handle, now, Succeeded, (value,))
        self._close(entry)
        return bool(handles)

    def _note_answer(self, entry: Entry, value: Any, write: bool, now: int) -> None:
        """What an answer tells of its object (law L2), and a completed write that is to be shown (law L18)."""
        version = None
        ref = entry.call.target
        lane = ref.lane
        if value is not None and (met := _identity_of(value, ref)) is not None:
            lane, uid, version = met
            self.see(lane, uid, version, now)
        if write and "apply" in entry.call.hooks:
            answer = value if ref.generated else None
            self.objects.completed(lane, self.executable(entry), entry.ticket, version, answer, now)
            self._time_overlay()

    def fail(self, entry: Entry, failure: Failure, now: int) -> bool:
        """The attempt in flight has failed. True: reconcile now, seat and lane are kept (law L10)."""
        if now >= self.timers.due or now >= self.deadlines.due:
            self.tick(now)
        more = entry.rare()
        verdict = failure.verdict
        more.error, more.verdict = failure.error, verdict
        if verdict.maybe_applied and entry.call.effect is not Effect.READ:
            more.doubt = True
        self._heed(entry, failure, now)
        self._answered(entry, more, verdict.kind, now)
        self._expire_flying(entry, now)
        kind = self._consequence(entry, more, failure)
        if kind is VerdictKind.RECONCILE and self.living(entry):
            more.reconciling = True
            more.reconciles += 1
            self._resume(entry, more, now)
            return True
        self._land(entry, more, failure, kind, now)
        return False

    def reconciled(self, entry: Entry, answer: Any, refusal: Verdict, delay: int, now: int) -> None:
        """`reconcile` has answered: Applied, Again, Refused (classified as `refusal`) or Unknown (law L10)."""
        if now >= self.timers.due or now >= self.deadlines.due:
            self.tick(now)
        more = entry.rare()
        more.reconciling = False
        if isinstance(answer, Applied):
            self.succeed(entry, answer.value, now)
            return
        error = more.error or RuntimeError("reconciled without an error")
        if isinstance(answer, Refused):
            more.doubt = False
            more.error = answer.error
            kind = VerdictKind.GONE if refusal.kind is VerdictKind.GONE else VerdictKind.PERMANENT
            failure = Failure(answer.error, Verdict(kind, reason=refusal.reason))
            self._expire_flying(entry, now)
            self._land(entry, more, failure, kind, now)
        elif isinstance(answer, Again):
            more.doubt = False
            more.again = answer.call
            self._expire_flying(entry, now)
            self._land(entry, more, Failure(error, more.verdict or _PERMANENT), None, now)
        else:
            self._unknown(entry, more, error, delay, now)

    def _unknown(self, entry: Entry, more: More, error: BaseException, delay: int, now: int) -> None:
        """Nothing could be found out: an idempotent write that may be applied is repeated, all else fails (law L10)."""
        repeat = entry.call.effect is Effect.IDEMPOTENT_WRITE and more.doubt
        verdict = more.verdict or _PERMANENT
        if repeat and more.reconciles < self._policy(entry).max_reconciles:
            kind, failure = VerdictKind.RETRY, Failure(error, verdict, delay)
        else:
            kind, failure = VerdictKind.PERMANENT, Failure(error, verdict)
        self._expire_flying(entry, now)
        self._land(entry, more, failure, kind, now)

    def reconcile_failed(self, entry: Entry, failure: Failure, now: int) -> None:
        """`reconcile` has raised: it waits as the verdict says and reconciles again, sending nothing first (L14)."""
        if now >= self.timers.due or now >= self.deadlines.due:
            self.tick(now)
        more = entry.rare()
        self._heed(entry, failure, now)
        kind = failure.verdict.kind
        self._answered(entry, more, kind, now)
        waits = kind in (VerdictKind.RETRY, VerdictKind.LATER, VerdictKind.HOLD, VerdictKind.RECONCILE)
        more.reconciles += 1
        if not waits or failure.exhausted or more.reconciles > self._policy(entry).max_reconciles:
            more.reconciling = False
            self._unknown(entry, more, more.error or failure.error, failure.delay, now)
            return
        self._expire_flying(entry, now)
        self._land(entry, more, failure, VerdictKind.RETRY if kind is VerdictKind.RECONCILE else kind, now)

    def stopped(self, entry: Entry, sent: bool, now: int) -> bool:
        """The attempt ended because it was asked to stop. True: reconcile now, for a handle that took it over (L8)."""
        if now >= self.timers.due or now >= self.deadlines.due:
            self.tick(now)
        more = entry.rare()
        if sent and entry.call.effect is not Effect.READ and not more.reconciling:
            more.doubt = True
        breaker = self.breakers.table.get((entry.flow.name, entry.group.name))
        if breaker is not None and breaker.probe is entry:
            breaker.probe = None
            self._unblock(entry.flow)
        self._answered(entry, more, VerdictKind.RETRY, now)
        if not self.living(entry):
            self._land(entry, more, Failure(RuntimeError("stopped"), _PERMANENT), VerdictKind.PERMANENT, now)
            return False
        if more.doubt and entry.call.effect is Effect.CREATE:
            more.reconciling = True
            more.reconciles += 1
            more.error = more.error or RuntimeError("an earlier request was stopped after it was sent")
            self._resume(entry, more, now)
            return True
        self._land(entry, more, Failure(RuntimeError("stopped"), _PERMANENT), None, now)
        return False

    # -- what a failure leads to --------------------------------------------------------------------------------

    def _policy(self, entry: Entry) -> RetryPolicy:
        return entry.call.retry or self.config.retry

    def _consequence(self, entry: Entry, more: More, failure: Failure) -> VerdictKind:
        """What becomes of the call: the verdict's kind, unless law L10, rule R12 or a bound says otherwise."""
        kind = failure.verdict.kind
        effect = entry.call.effect
        if failure.signature is None or failure.signature != more.signature:
            more.signature, more.same = failure.signature, 0
        more.same += failure.signature is not None
        if kind is VerdictKind.RECONCILE and effect is Effect.READ:
            kind = VerdictKind.PERMANENT
        elif kind in (VerdictKind.RETRY, VerdictKind.PERMANENT) and effect is Effect.CREATE and more.doubt:
            kind = VerdictKind.RECONCILE
        if kind is VerdictKind.RECONCILE:
            if more.reconciles < self._policy(entry).max_reconciles:
                return kind
            repeat = effect is Effect.IDEMPOTENT_WRITE and failure.verdict.maybe_applied and not failure.exhausted
            return VerdictKind.RETRY if repeat else VerdictKind.PERMANENT
        if kind is VerdictKind.RETRY and (failure.exhausted or more.same >= SAME_ERROR_LIMIT):
            return VerdictKind.PERMANENT
        if kind is VerdictKind.LATER and failure.exhausted:
            return VerdictKind.PERMANENT
        return kind

    def _heed(self, entry: Entry, failure: Failure, now: int) -> None:
        """What an error says of the server: seats, rate and breakers follow (design section 6, overload)."""
        signal = failure.signal
        if signal in (Signal.PUSHBACK, Signal.OVERLOAD):
            self.seats.overloaded(entry.started, now)
        if signal is Signal.PUSHBACK and self.rate is not None:
            self.rate.empty(now)
        flow, group = entry.flow, entry.group
        if signal in (Signal.FAULT, Signal.OVERLOAD):
            opened = self.breakers.fault(flow.name, group.name, entry.started, now)
            if opened is not None:
                self.timers.set(opened, opened.open_until, (self._half_open, (flow.name, group.name)))
                self._unblock(flow)
        elif signal is Signal.NONE:
            self._well(entry)
        else:
            breaker = self.breakers.table.get((flow.name, group.name))
            if breaker is not None and breaker.probe is entry:
                breaker.probe = None
                self._unblock(flow)

    def _well(self, entry: Entry) -> None:
        breaker = self.breakers.well(entry.flow.name, entry.group.name)
        if breaker is not None:
            self.timers.void(breaker)
            if breaker.blocks or breaker.half_open:
                self._unblock(entry.flow)

    def _half_open(self, key: tuple[str, str], now: int) -> None:
        breaker = self.breakers.table.get(key)
        if breaker is not None:
            breaker.open_until = 0
            breaker.half_open = True
            flow = self.flows.get(key[0])
            if flow is not None:
                self._unblock(flow)

    def _answered(self, entry: Entry, more: More, kind: VerdictKind, now: int) -> None:
        """Tell the scopes that hold others back what came of a call that they had let go."""
        scope = more.later
        if scope is not None:
            if kind is not VerdictKind.RETRY:
                scope.answered(entry, later=kind is VerdictKind.LATER)
            if kind is not VerdictKind.LATER:
                self._leave_later(entry, scope, now)
            else:
                self._pump_later(scope, now)
        hold = more.hold
        if hold is not None and hold.probe is entry and kind is not VerdictKind.HOLD:
            if kind is not VerdictKind.RETRY:
                self._release(hold, now)
            else:
                hold.probe = more.hold = None
                self._time_probe(hold, now + NEXT_PROBE)

    def _land(self, entry: Entry, more: More, failure: Failure, kind: VerdictKind | None, now: int) -> None:
        """The attempt is over and gives back its seat. `kind` None: it goes again at once."""
        newer, both = (None, None) if kind in _FINAL or not self.living(entry) else self._absorber(entry, more)
        self._give_seat(entry)
        self._tell_leavers(entry, more, now)
        if not self.living(entry):
            self._conclude(entry, now, Cancelled, "")
        elif kind is VerdictKind.GONE or kind is VerdictKind.PERMANENT:
            self._conclude(entry, now, Failed, failure.error, failure.verdict)
            if kind is VerdictKind.GONE:
                self._gone(entry, now)
        else:
            self._come_back(entry, more, now)
            if newer is not None and both is not None:
                entry = self._absorb(entry, newer, both, now)
            self._wait(entry, failure, kind, now)
        self._after(now)

    def _tell_leavers(self, entry: Entry, more: More, now: int) -> None:
        """The attempt has ended: now those who wanted to leave it know what became of it (law L11)."""
        self.timers.void(more)
        leavers, more.leavers = more.leavers, []
        for handle in leavers:
            self._tell(handle, now, *leaving(handle), going_on=handle is entry)

    def _resume(self, entry: Entry, more: More, now: int) -> None:
        """An execution that was being stopped goes on, for a handle that came meanwhile (law L8)."""
        self._tell_leavers(entry, more, now)
        if entry.phase is CallState.STOPPING:
            entry.move(CallState.IN_FLIGHT)

    def _expire_flying(self, entry: Entry, now: int) -> None:
        """The attempt has ended: handles whose time is over by now leave with it."""
        for handle in list(self.living(entry)):
            if self.handle_limit(handle) <= now:
                self._let_leave(entry, handle, Expired, ("in_flight",))

    def _let_leave(self, entry: Entry, handle: Entry, kind: type, args: tuple[Any, ...]) -> None:
        """A handle wants to leave an attempt in flight: it is told when that has ended."""
        more = entry.rare()
        more.handles = [other for other in self.living(entry) if other is not handle]
        more.leavers.append(handle)
        handle.rare().leaving = (kind, args)
        self.deadlines.remove(handle)

    def _come_back(self, entry: Entry, more: More, now: int) -> None:
        """A write goes back into its line; its seat is given back, its place is kept (law L12)."""
        more.flown += max(0, now - entry.started)
        entry.started = 0
        if entry.call.sheddable:
            self._offer(entry)
        if entry.call.effect is Effect.READ:
            return
        lane = self.lanes.table.get(self.lane_key(entry))
        if isinstance(lane, Lane):
            lane.flying = None
            index = self.lanes.reinsert(lane, entry)
            self._inherit(lane, index, entry)

    def _absorber(self, entry: Entry, more: More) -> tuple[Entry | None, APICall[Any] | None]:
        """A newer call in line that merges with a failed attempt coming back (law L13). Changes nothing."""
        lane = self.lanes.table.get(self.lane_key(entry))
        if not isinstance(lane, Lane) or more.handles is not None or more.reconciling:
            return None, None
        index = 0
        while index < len(lane.line) and self.lanes.supersedes(lane.line[index].call.call_type, entry.call.call_type):
            index += 1
        if index == len(lane.line):
            return None, None
        newer = lane.line[index]
        if newer.phase is not CallState.LINE or newer.ticket < entry.ticket or not mergeable(entry, newer.call):
            return None, None
        try:
            both = merged(newer.call, self.executable(entry))
        except MergeFailed:
            return None, None
        return (None, None) if both is None else (newer, both)

    def _absorb(self, entry: Entry, newer: Entry, both: APICall[Any], now: int) -> Entry:
        newer.call = both
        newer.rare().failures = entry.rare().failures
        self._raise_rank(newer, entry.level, entry.rank)
        entry.move(CallState.LINE)
        self._conclude(entry, now, Overwritten, newer.ticket)
        return newer

    # -- waiting for a next attempt -----------------------------------------------------------------------------

    def _wait(self, entry: Entry, failure: Failure, kind: VerdictKind | None, now: int) -> None:
        """Park an execution as its verdict says; it keeps its place in line and holds no seat (law L20)."""
        if entry.phase is CallState.QUEUED:  # it has absorbed the one that came back, and is first in line
            self.ordering.remove(entry)
            entry.move(CallState.LINE)
        more = entry.rare()
        if kind is None:
            self.place(entry, now)
        elif kind is VerdictKind.HOLD:
            scope = failure.verdict.scope if failure.verdict.scope is not None else self._hold_scope(entry)
            hold = self.holds.get(scope)
            if hold is None:
                hold = self.holds[scope] = Hold(scope, now)
            hold.error = failure.error
            self._hold(entry, hold, now)
        elif kind is VerdictKind.LATER:
            more.failures += 1
            self._back_off(entry, now + failure.delay, self._later_scope(entry, failure.verdict, now), now)
        else:
            more.failures += 1
            self._back_off(entry, now + failure.delay, None, now)
        lane = self.lanes.table.get(self.lane_key(entry))
        if isinstance(lane, Lane):
            self._advance(lane)

    def _back_off(self, entry: Entry, until: int, later: LaterScope | None, now: int) -> None:
        entry.move(CallState.BACKOFF)
        more = entry.rare()
        more.until = until
        more.later = later
        if later is not None:
            later.members[entry.ticket] = entry
        self.timers.set(more, until, (self._backoff_over, entry))
        self._expire_handles(entry, until, now)

    def _later_scope(self, entry: Entry, verdict: Verdict, now: int) -> LaterScope | None:
        """What the call waits by; None: by itself alone."""
        known = entry.rare().later
        if known is not None and known.scope != verdict.scope:
            self._leave_later(entry, known, now)
            known = None
        if known is None and verdict.scope is not None:
            known = self.laters.get(verdict.scope)
            if known is None:
                known = self.laters[verdict.scope] = LaterScope(verdict.scope)
        return known

    def _backoff_over(self, entry: Entry, now: int) -> None:
        """Its time has come; what else it may need is a place among the few of its scope, or a retry of the budget."""
        more = entry.rare()
        more.until = 0
        if more.later is not None:
            more.later.due[entry.ticket] = entry
            self._pump_later(more.later, now)
        elif more.verdict is None or more.verdict.kind is VerdictKind.LATER:
            self.place(entry, now)
        elif self.budget.waiting or not self.budget.take(now):
            more.budgeted = True
            self.budget.waiting.append(entry)
            self._pump_budget(None, now)
        else:
            self.place(entry, now)

    def _pump_budget(self, _: Any, now: int) -> None:
        """Let go as many retries as the budget has, first come, first served."""
        waiting = self.budget.waiting
        while waiting:
            entry = waiting[0]
            parked = entry.phase is CallState.BACKOFF and entry.more is not None and entry.more.budgeted
            if parked and not self.budget.take(now):
                self.timers.set(self.budget, self.budget.next_at(now), (self._pump_budget, None))
                return
            waiting.popleft()
            if parked:
                entry.rare().budgeted = False
                self.place(entry, now)
        self.timers.void(self.budget)

    # -- refused credentials (rule R4) --------------------------------------------------------------------------

    def _hold_scope(self, entry: Entry) -> Hashable:
        scope = self.executable(entry).scope
        return ("call", entry.ticket) if scope is None else scope

    def _hold(self, entry: Entry, hold: Hold, now: int) -> None:
        entry.move(CallState.HELD)
        more = entry.rare()
        if more.hold is not None and more.hold.probe is entry:
            more.hold.probe = None
            self._time_probe(more.hold, now + NEXT_PROBE)
        more.hold = hold
        more.error = more.error or hold.error
        more.held_since = more.held_since or now
        hold.waiting[entry.ticket] = entry
        self.timers.set(more, more.held_since + nanoseconds(self.config.hold_limit), (self._held_too_long, entry))
        if not hold.timer and hold.probe is None:
            self._time_probe(hold, now + FIRST_PROBE)

    def _held_too_long(self, entry: Entry, now: int) -> None:
        more = entry.rare()
        assert more.hold is not None
        error = more.hold.error or RuntimeError("credentials refused")
        verdict = Verdict(VerdictKind.PERMANENT, scope=more.hold.scope, reason="credentials refused for too long")
        self._conclude(entry, now, Failed, error, verdict)
        self._after(now)

    def _time_probe(self, hold: Hold, when: int) -> None:
        self.timers.set(hold, when, (self._probe, hold))

    def _probe(self, hold: Hold, now: int) -> None:
        """Let exactly one call through, to see whether the credentials are good again."""
        if hold.probe is not None:
            return
        if not hold.waiting:
            self.holds.pop(hold.scope, None)
            return
        entry = min(hold.waiting.values(), key=lambda e: (not self._first_in_line(e), self._key(e)))
        del hold.waiting[entry.ticket]
        hold.probe = entry
        self.timers.void(entry.rare())
        self.place(entry, now)

    def _first_in_line(self, entry: Entry) -> bool:
        lane = self.lanes.table.get(self.lane_key(entry))
        return not isinstance(lane, Lane) or not lane.line or lane.line[0] is entry

    def _key(self, entry: Entry) -> int:
        return self.ordering.key_of(entry.level, entry.rank)

    def _release(self, hold: Hold, now: int) -> None:
        """The credentials are good: all held calls follow."""
        self.holds.pop(hold.scope, None)
        self.timers.void(hold)
        if hold.probe is not None:
            hold.probe.rare().hold = None
            hold.probe.rare().held_since = 0
            hold.probe = None
        held, hold.waiting = list(hold.waiting.values()), {}
        for entry in held:
            more = entry.rare()
            more.hold = None
            more.held_since = 0
            self.timers.void(more)
            self.place(entry, now)

    # -- leaving ------------------------------------------------------------------------------------------------

    def _depart(self, handle: Entry, now: int, kind: type, *args: Any) -> None:
        """A handle ends before its execution (laws L8, L11)."""
        entry = handle.lead
        others = [other for other in self.living(entry) if other is not handle]
        if not others and entry.phase.flying:
            self._let_leave(entry, handle, kind, args)
            if entry.phase is CallState.IN_FLIGHT:
                entry.move(CallState.STOPPING)
                self.stops.append(entry)
            self.timers.set(entry.rare(), now + nanoseconds(self.config.give_up), (self.give_up, entry))
        elif not others:
            self._conclude(entry, now, kind, *args)
        else:
            entry.rare().handles = others
            self._tell(handle, now, kind, args, going_on=True)
            if entry.phase in _MOVABLE:
                self.place(entry, now)

    def give_up(self, entry: Entry, now: int) -> None:
        """The attempt does not end although it was asked to: its callers have waited long enough (laws L11, L19)."""
        more = entry.rare()
        more.doubt = more.doubt or entry.call.effect is not Effect.READ
        self._tell_leavers(entry, more, now)
        self._after(now)

    def cancel(self, handle: Entry, reason: str, now: int) -> bool:
        """Cancel one handle. False if it has its outcome, or is leaving, already."""
        if handle.done() or (handle.more is not None and handle.more.leaving is not None):
            return False
        self._depart(handle, now, Cancelled, reason)
        self._after(now)
        return True

    def fail_call(self, handle: Entry, error: BaseException, now: int) -> None:
        """User code of a call has raised outside of an attempt (law L14): the call ends with it."""
        if handle.done() or (handle.more is not None and handle.more.leaving is not None):
            return
        self._depart(handle, now, Failed, error, Verdict(VerdictKind.PERMANENT, reason="user code raised"))
        self._after(now)

    def cancel_flow(self, flow: str, reason: str, now: int) -> int:
        return sum(self.cancel(handle, reason, now) for handle in self.handles() if handle.call.flow == flow)

    def forget(self, ref: ObjectRef, reason: str, now: int) -> int:
        """The object is gone: cancel what waits or flies for it, and what depends on it (rules R13, R18).

        With a uid that is not the one known last, only calls for that very uid are meant. A CREATE is cancelled only
        when no uid is given: it makes the next object of that name.
        """
        known = self.objects.uid_of(ref.lane)
        current = ref.uid is None or known is None or known == ref.uid
        count = 0
        for entry in self.lanes.entries(ref.lane):
            uid = entry.call.target.uid
            if entry.call.effect is Effect.CREATE and ref.uid is not None:
                continue
            if (uid is None and current) or ref.uid is None or uid == ref.uid:
                count += sum(self.cancel(handle, reason, now) for handle in list(self.living(entry)))
        for handle in list(self.dependents.get(ref.lane, {}).values()):
            if any(
                dep.lane == ref.lane and (dep.uid is None or ref.uid is None or dep.uid == ref.uid)
                for dep in handle.call.depends_on
            ):
                count += self.cancel(handle, reason, now)
        if current:
            self.memory.forget_object(ref.lane)
            epoch = self.epochs.by_lane.get(ref.lane)
            if epoch is not None and (ref.uid is None or epoch.context.ref.uid in (None, ref.uid)):
                self.end(epoch.context, reason, now)
        self.objects.forget(ref.lane, ref.uid)
        self._after(now)
        return count

    def _gone(self, entry: Entry, now: int) -> None:
        """An answer has named the target as gone: what waits for that uid is cancelled, never a CREATE."""
        ref = entry.call.target
        uid = ref.uid if ref.uid is not None else self.objects.uid_of(ref.lane)
        current = self.objects.uid_of(ref.lane) in (None, uid)
        behind_create = False
        for other in self.lanes.entries(ref.lane):
            call = other.call
            behind_create = behind_create or (call.effect is Effect.CREATE and other.phase is not CallState.DELAYED)
            if call.effect is Effect.CREATE or other.phase.flying:
                continue
            nameless = call.target.uid is None and current and not behind_create and call.effect is not Effect.READ
            if nameless or (uid is not None and call.target.uid == uid):
                for handle in list(self.living(other)):
                    self._depart(handle, now, Cancelled, f"{ref} is gone")
        if current:
            self.memory.forget_object(ref.lane)
            self.objects.forget(ref.lane, None)

    def see(self, lane: str, uid: str | None, version: int | None, now: int) -> None:
        """An object was seen with a uid and version: calls for another one of its name are GONE (laws L2, L8)."""
        if not self.objects.meet(lane, uid, version):
            return
        self.memory.forget_object(lane)
        for entry in self.lanes.entries(lane):
            ref = entry.call.target
            if ref.uid in (None, uid) or entry.call.effect is Effect.CREATE or entry.phase.flying:
                continue
            error = RuntimeError(f"{ref} is gone: another object has its name now")
            for handle in list(self.living(entry)):
                self._depart(handle, now, Failed, error, _GONE)

    # -- contexts -----------------------------------------------------------------------------------------------

    def begin(
        self,
        owner: ContextOwner,
        ref: ObjectRef,
        version: int | None,
        parent: SchedulingContext | None,
        valid_until: float | None,
        requires: tuple[str, ...],
        now: int,
    ) -> SchedulingContext:
        """A new scheduling context; the object's older one ends."""
        if self.closed is not None:
            raise DispatcherClosed(self.closed)
        above = self.epochs.living(parent, now) if parent is not None else None
        if above is not None and any(ancestor.context.ref.lane == ref.lane for ancestor in above.ancestors()):
            raise ConfigurationError("parent", parent, f"is of {ref} too, whose older contexts end now: give another")
        limit = nanoseconds(valid_until) if valid_until is not None else NEVER
        if limit <= now:
            raise ConfigurationError(
                "valid_until", valid_until, "is over already; give a time of the loop's clock to come"
            )
        self.see(ref.lane, ref.uid, version, now)
        if ref.uid is not None and self.objects.uid_of(ref.lane) not in (None, ref.uid):
            raise StaleContext(f"{ref} is gone: another object has its name now; read it again")
        older = self.epochs.by_lane.get(ref.lane)
        if older is not None:
            self.end(older.context, "a newer context began", now)
        context = SchedulingContext(owner, self.epochs.number(), ref, parent, valid_until, requires)
        epoch = self.epochs.open(context, above, limit)
        if limit < NEVER:
            self.timers.set(epoch, limit, (self._context_over, epoch))
        self._after(now)
        return context

    def _context_over(self, epoch: Epoch, now: int) -> None:
        self.end(epoch.context, "its validity is over", now)

    def extend(self, context: SchedulingContext, valid_until: float, now: int) -> None:
        self.tick(now)
        epoch = self.epochs.living(context, now)
        epoch.valid_until = nanoseconds(valid_until)
        context.valid_until = valid_until
        self.timers.set(epoch, epoch.valid_until, (self._context_over, epoch))

    def end(self, context: SchedulingContext, reason: str, now: int) -> None:
        """End a context and its children: what waits is cancelled, what flies is asked to stop (law L11)."""
        epoch = self.epochs.table.get(context.epoch)
        if epoch is None:
            return
        ended = list(epoch.line())
        for each in ended:
            self.timers.void(each)
            self.epochs.close(each, reason)
        for each in ended:
            for handle in list(each.handles.values()):
                self.cancel(handle, reason, now)
        self._after(now)

    def require(self, context: SchedulingContext, name: str, state: BaseException | bool, now: int) -> None:
        """A requirement was confirmed (True) or failed (the error) from outside."""
        epoch = self.epochs.living(context, now)
        if name not in context.requirements:
            epoch.set_requirement(name, state)  # raises, and names what is required
        self._requirements.append((epoch, name, state))
        self._after(now)

    def _after(self, now: int) -> None:
        """The consequences of requirements that changed during a step, until there are no more (law L21)."""
        while self._requirements:
            epoch, name, state = self._requirements.pop(0)
            if epoch.context.ended is not None:
                continue
            epoch.set_requirement(name, state)
            for handle in list(epoch.handles.values()):
                if not handle.call.awaits_prerequisites or handle.lead.phase not in _MOVABLE:
                    continue
                if isinstance(state, BaseException):
                    self._fail_requirement(handle, name, state, now)
                else:
                    self.place(handle.lead, now)

    def _fail_requirement(self, handle: Entry, name: str, error: BaseException, now: int) -> None:
        failed = PrerequisiteFailed(f"requirement {name!r} failed: {error!r}", name)
        failed.__cause__ = error
        self._depart(handle, now, Failed, failed, Verdict(VerdictKind.PERMANENT, reason=f"requirement {name!r} failed"))

    # -- observing (law L18) ------------------------------------------------------------------------------------

    def observe(
        self, ref: ObjectRef, version: int | None, deleting: bool, fresh: bool, now: int
    ) -> tuple[bool, list[OwnWrite]]:
        """An object was observed. Whether it changes anything, and the ended writes that it may not show yet."""
        if self.objects.outdated(ref.lane, ref.uid, version):
            return False, self.objects.writes(ref.lane)
        self.see(ref.lane, ref.uid, version, now)
        if deleting:
            self.memory.forget_object(ref.lane)
        writes = self.objects.seen(ref.lane, ref.uid, version, fresh)
        self._after(now)
        return True, writes

    def pending_writes(self, lane: str) -> list[Entry]:
        """Writes that wait or fly, in the order in which they will be sent."""
        return [entry for entry in self.lanes.entries(lane) if entry.call.effect is not Effect.READ]

    def replace(self, entry: Entry, call: APICall[Any]) -> None:
        """A waiting call was rebased. Its control fields stay; only `version` and its own fields may differ."""
        old = self.executable(entry)
        if not isinstance(call, type(old)) or call.target != old.target or call.call_type != old.call_type:
            raise ConfigurationError("rebase_onto", call, "must return a call of the same class, type and target")
        call = with_fields_of(call, old, (*CONTROL_FIELDS, "idempotency_key", "prerequisite", "effect"))
        hashed = key_hash(call) if entry.more is not None and entry.more.hash is not None else None
        more = entry.more
        if more is not None and more.again is not None:
            more.again = call
        elif more is not None and more.carrier is not None:
            more.carrier.call = call
        else:
            if hashed is not None:
                self.keys.remove(entry)
            entry.call = call
            if hashed is not None:
                self.keys.add(hashed, entry)

    # -- time ---------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """All that is due: timers, then deadlines."""
        if now >= self.timers.due:
            while (action := self.timers.pop(now)) is not None:
                action[0](action[1], now)
        if now >= self.deadlines.due:
            while handles := self.deadlines.pop(now):
                for handle in handles:
                    if handle.done() or (handle.more is not None and handle.more.leaving is not None):
                        continue
                    phase = handle.lead.phase
                    self._depart(handle, now, Expired, "in_flight" if phase.flying else phase.value)
        if self._requirements:
            self._after(now)

    def wake_at(self, now: int) -> int:
        """When to look again if nothing is reported before; `NEVER` if there is nothing to look for."""
        when = min(self.timers.due, self.deadlines.due)
        if self.rate is not None and self.ordering.ready and self.seats.taken < self.seats.limit:
            free_at = self.rate.free_at(now)
            if free_at > now:
                when = min(when, free_at)
        return when

    # -- ending it all (law L15) --------------------------------------------------------------------------------

    def executions(self) -> list[Entry]:
        """All live executions, by lane."""
        found: list[Entry] = []
        for lane in self.lanes.table.values():
            if isinstance(lane, Lane):
                found.extend(lane.entries())
            else:
                found.append(lane)
        return found

    def handles(self) -> list[Entry]:
        """All handles without an outcome that have not asked to leave."""
        return [handle for entry in self.executions() for handle in self.living(entry)]

    def drain(self, until: int, now: int) -> None:
        """Accept nothing more; what is there finishes or expires by `until`."""
        self.closed = self.closed or "draining for good"
        for handle in self.handles():
            if handle.deadline > until:
                self.deadlines.remove(handle)
                handle.deadline = until
                self.deadlines.add(handle)

    def close(self, reason: str, now: int) -> None:
        """Accept nothing more and cancel everything; what flies is told when its attempt has ended."""
        self.closed = reason
        for handle in self.handles():
            if self.handle_limit(handle) <= now:
                phase = handle.lead.phase
                self._depart(handle, now, Expired, "in_flight" if phase.flying else phase.value)
            else:
                self.cancel(handle, reason, now)
        for epoch in list(self.epochs.table.values()):
            self.end(epoch.context, reason, now)


_MOVABLE = (CallState.DELAYED, CallState.REQUIREMENTS, CallState.LINE, CallState.QUEUED)
_FINAL = (VerdictKind.GONE, VerdictKind.PERMANENT)


def _identity_of(value: Any, ref: ObjectRef) -> tuple[str, str, int | None] | None:
    """Lane, uid and version of an answer, if it is the object that was asked for."""
    seen = identity_in(value)
    if seen is None:
        return None
    name, uid, version = seen
    if name == ref.name:
        return ref.lane, uid, integer_version(version)
    if ref.generated and name.startswith(ref.name[:-1]):
        return ref.lane[: -len(ref.name)] + name, uid, integer_version(version)
    return None
