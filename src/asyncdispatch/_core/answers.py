"""What the shell reports of an attempt, and what that leads to (laws L8, L10, L11, L13, L14)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.endings import leaving
from asyncdispatch._core.knowing import Knowing
from asyncdispatch._core.lanes import Lane, mergeable, merged
from asyncdispatch._core.metering import CANCELLED, ERROR, SUCCESS
from asyncdispatch._core.parking import NEXT_PROBE, SAME_ERROR_LIMIT, Failure, Signal
from asyncdispatch._core.states import (
    CREATE,
    IDEMPOTENT_WRITE,
    IN_FLIGHT,
    LINE,
    READ,
    STOPPING,
    Entry,
    More,
)
from asyncdispatch.calls import (
    Again,
    APICall,
    Applied,
    Refused,
    Unknown,
    Verdict,
    VerdictKind,
)
from asyncdispatch.outcomes import Cancelled, Failed, Overwritten, Succeeded

if TYPE_CHECKING:
    from asyncdispatch.config import RetryPolicy

PERMANENT = Verdict(VerdictKind.PERMANENT)
FINAL = (VerdictKind.GONE, VerdictKind.PERMANENT)


class Answers(Knowing):
    """Successes, failures, reconciles and stops."""

    def succeed(self, entry: Entry, value: Any, now: int, *, found: bool = False) -> None:
        """The attempt in flight has succeeded with `value`; or a reconcile has `found` that an earlier one has."""
        if now >= self.timers.due:
            self.tick(now)
        if entry.more is not None and entry.more.paid:
            self.budget.give_back()
        if self.earning:
            self._earn()
        group = entry.group
        group.usual += (now - entry.started - group.usual) >> 3
        tally = group.tally
        if tally is not None and not found:
            tally.attempted(entry, SUCCESS, now)
        self._give_seat(entry)
        if self.budget.waiting:
            self._pump_budget(None, now)
        if self.breakers.table:
            self._well(entry)
        self._calm()
        write = entry.call.effect is not READ
        if write and getattr(entry.call, "deletes", False):
            self.memory.forget_object(entry.call.target.lane)
        if entry.more is None:
            self._remove(entry, now)
            if value is not None or (write and entry.call._hooks):
                self._note_answer(entry, value, write, now)
            self._tell(entry, now, Succeeded, (value,))
        elif not self._succeed_rare(entry, entry.more, value, write, now):
            self.stale += 1
            if tally is not None:
                tally.late += 1
            write = False
        if write and entry.call.target.lane in self.lanes.table:
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

    def fail(self, entry: Entry, failure: Failure, now: int) -> bool:
        """The attempt in flight has failed. True: reconcile now, seat and lane are kept (law L10)."""
        self.tick(now)
        if (tally := entry.group.tally) is not None:
            tally.attempted(entry, ERROR, now)
        more = entry.rare()
        verdict = failure.verdict
        more.paid = False
        more.error, more.verdict = failure.error, verdict
        if verdict.maybe_applied and entry.call.effect is not READ:
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
        self.tick(now)
        more = entry.rare()
        more.reconciling = False
        if (tally := entry.group.tally) is not None:
            tally.reconciled(type(answer).__name__.lower())
        if isinstance(answer, Applied):
            self.succeed(entry, answer.value, now, found=True)
            return
        learned = isinstance(answer, (Refused, Again))  # by a read that the server has answered
        self._answered(entry, more, VerdictKind.RECONCILE if learned else VerdictKind.RETRY, now)
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
            verdict = more.verdict or PERMANENT
            # A conflict may go again at once; after a fault of the server the next request waits like any retry.
            next_step = VerdictKind.RETRY if verdict.maybe_applied else None
            if more.same >= SAME_ERROR_LIMIT:
                next_step = VerdictKind.PERMANENT
            self._land(entry, more, Failure(error, verdict, delay), next_step, now)
        else:
            more.doubt = more.doubt or (isinstance(answer, Unknown) and answer.maybe_applied)
            self._unknown(entry, more, error, delay, now)

    def _unknown(self, entry: Entry, more: More, error: BaseException, delay: int, now: int) -> None:
        """Nothing could be found out: an idempotent write that may be applied is repeated, all else fails (law L10)."""
        repeat = entry.call.effect is IDEMPOTENT_WRITE and more.doubt
        verdict = more.verdict or PERMANENT
        if repeat and more.reconciles < self._policy(entry).max_reconciles:
            kind, failure = VerdictKind.RETRY, Failure(error, verdict, delay)
        else:
            kind, failure = VerdictKind.PERMANENT, Failure(error, verdict)
        self._expire_flying(entry, now)
        self._land(entry, more, failure, kind, now)

    def reconcile_failed(self, entry: Entry, failure: Failure, now: int) -> None:
        """`reconcile` has raised: it waits as the verdict says and reconciles again, sending nothing first (L14)."""
        self.tick(now)
        if (tally := entry.group.tally) is not None:
            tally.reconciled(ERROR)
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

    def stopped(self, entry: Entry, sent: bool, now: int, *, begun: bool = True) -> bool:
        """The attempt ended because it was asked to stop. True: reconcile now, for a handle that took it over (L8).

        `begun`: False if it was asked to before `execute` was entered.
        """
        self.tick(now)
        more = entry.rare()
        if begun and (tally := entry.group.tally) is not None:
            if more.reconciling:
                tally.reconciled(CANCELLED)
            else:
                tally.attempted(entry, CANCELLED, now)
        if sent and entry.call.effect is not READ and not more.reconciling:
            more.doubt = True
        self._answered(entry, more, VerdictKind.RETRY, now)
        if not self.living(entry):
            self._land(entry, more, Failure(RuntimeError("stopped"), PERMANENT), VerdictKind.PERMANENT, now)
            return False
        if more.doubt and entry.call.effect is CREATE:
            more.reconciling = True
            more.reconciles += 1
            more.error = more.error or RuntimeError("an earlier request was stopped after it was sent")
            self._resume(entry, more, now)
            return True
        self._land(entry, more, Failure(RuntimeError("stopped"), PERMANENT), None, now)
        return False

    # -- what a failure leads to --------------------------------------------------------------------------------------

    def _policy(self, entry: Entry) -> RetryPolicy:
        return entry.call.retry or self.config.retry

    def _consequence(self, entry: Entry, more: More, failure: Failure) -> VerdictKind:
        """What becomes of the call: the verdict's kind, unless law L10, rule R12 or a bound says otherwise."""
        kind = failure.verdict.kind
        effect = entry.call.effect
        if failure.signature is None or failure.signature != more.signature:
            more.signature, more.same = failure.signature, 0
        more.same += failure.signature is not None
        if kind is VerdictKind.RECONCILE and effect is READ:
            kind = VerdictKind.PERMANENT
        elif kind is not VerdictKind.GONE and effect is CREATE and more.doubt:
            kind = VerdictKind.RECONCILE  # whatever else it means, it is not sent again before that (law L10)
        if kind is VerdictKind.RECONCILE:
            if more.reconciles < self._policy(entry).max_reconciles:
                return kind
            repeat = effect is IDEMPOTENT_WRITE and failure.verdict.maybe_applied and not failure.exhausted
            return VerdictKind.RETRY if repeat else VerdictKind.PERMANENT
        if kind is VerdictKind.RETRY and (failure.exhausted or more.same >= SAME_ERROR_LIMIT):
            return VerdictKind.PERMANENT
        if kind is VerdictKind.LATER and failure.exhausted:
            return VerdictKind.PERMANENT
        return kind

    def _heed(self, entry: Entry, failure: Failure, now: int) -> None:
        """What an error says of the server: seats, rate and breakers follow (design section 6, overload)."""
        self.calm = False
        self.earning = True
        signal = failure.signal
        if signal in (Signal.PUSHBACK, Signal.OVERLOAD):
            self.seats.overloaded(entry.started, now)
        if signal is Signal.PUSHBACK and self.rate is not None:
            self.rate.empty(now)
        flow, group = entry.flow, entry.group
        if signal in (Signal.FAULT, Signal.OVERLOAD):
            opened = self.breakers.fault(flow.name, group.name, entry.started, now)
            if opened is not None:
                if group.tally is not None:
                    group.tally.openings += 1
                self.timers.set(opened, opened.open_until, (self._half_open, (flow.name, group.name)))
                self._unblock(flow)
        elif signal is Signal.NONE:
            self._well(entry)

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

    # -- the attempt is over ------------------------------------------------------------------------------------------

    def _land(self, entry: Entry, more: More, failure: Failure, kind: VerdictKind | None, now: int) -> None:
        """The attempt is over and gives back its seat. `kind` None: it goes again at once."""
        newer, both = (None, None) if kind in FINAL or not self.living(entry) else self._absorber(entry, more)
        self._give_seat(entry)
        self._tell_leavers(entry, more, now)
        if not self.living(entry):
            self._conclude(entry, now, Cancelled, "")
        elif kind is VerdictKind.GONE or kind is VerdictKind.PERMANENT:
            verdict = failure.verdict
            if kind is VerdictKind.PERMANENT and more.same >= SAME_ERROR_LIMIT:  # rule R12
                verdict = replace(verdict, kind=VerdictKind.PERMANENT, reason="the same error again and again")
            self._conclude(entry, now, Failed, failure.error, verdict)
            if kind is VerdictKind.GONE:
                self._gone(entry, now)
        else:
            if (tally := entry.group.tally) is not None:
                tally.retried(kind)
            self._come_back(entry, more, now)
            if newer is not None and both is not None:
                entry = self._absorb(entry, newer, both, now)
            self._wait(entry, failure, kind, now)
        self._after(now)

    def _resume(self, entry: Entry, more: More, now: int) -> None:
        """An execution that was being stopped goes on, for a handle that came meanwhile (law L8)."""
        self._tell_leavers(entry, more, now)
        if entry.phase is STOPPING:
            entry.move(IN_FLIGHT)

    def _come_back(self, entry: Entry, more: More, now: int) -> None:
        """A write goes back into its line; its seat is given back, its place is kept (law L12)."""
        more.flown += max(0, now - entry.started)
        entry.started = -1
        if entry.call.sheddable:
            self._offer(entry)
        if entry.call.effect is READ:
            return
        lane = self.lanes.table.get(self.lane_key(entry))
        if isinstance(lane, Lane):
            lane.flying = None
            index = self.lanes.place_again(lane, entry)
            lane.line.insert(index, entry)
            self._inherit(lane, index, entry)

    def _absorber(self, entry: Entry, more: More) -> tuple[Entry | None, APICall[Any] | None]:
        """A newer call in line that merges with a failed attempt coming back (law L13). Changes nothing."""
        lane = self.lanes.table.get(self.lane_key(entry))
        if not isinstance(lane, Lane) or more.handles is not None or more.reconciling:
            return None, None
        index = self.lanes.place_again(lane, entry)
        if index == len(lane.line):
            return None, None
        newer = lane.line[index]
        if newer.phase is not LINE or newer.ticket < entry.ticket or not mergeable(entry, newer.call):
            return None, None
        try:
            both = merged(newer.call, self.executable(entry))
        except BaseException:  # whatever it raises, it counts as None here (law L14)
            return None, None
        return (None, None) if both is None else (newer, both)

    def _absorb(self, entry: Entry, newer: Entry, both: APICall[Any], now: int) -> Entry:
        self.merges += 1
        newer.call = both
        newer.rare().failures = entry.rare().failures
        self._raise_rank(newer, entry.level, entry.rank)
        entry.move(LINE)
        self._conclude(entry, now, Overwritten, newer.ticket)
        return newer
