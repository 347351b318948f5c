"""How executions end and handles are told (laws L1, L8, L11, L12, L21), and how handles leave before that."""

from __future__ import annotations

from typing import Any

from asyncdispatch._core.executions import MOVABLE, Executions, nanoseconds
from asyncdispatch._core.lanes import Lane
from asyncdispatch._core.parking import Hold, LaterScope
from asyncdispatch._core.states import _OUTCOME_STATES, IN_FLIGHT, QUEUED, READ, STOPPING, Entry, More
from asyncdispatch.calls import APICall, Verdict, VerdictKind
from asyncdispatch.errors import OutcomeError, PrerequisiteFailed
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Overwritten, Skipped, Succeeded

NOT_DONE: Any = object()


class Endings(Executions):
    """Endings, on top of the tables."""

    # -- an execution ends --------------------------------------------------------------------------------------------

    def _remove(self, entry: Entry, now: int) -> None:
        """An execution has ended: out of every table but those of its handles."""
        call = entry.call
        if entry.phase is QUEUED:
            self.ordering.remove(entry)
        if call.sheddable:
            self.admission.sheddables.remove(entry)
        more = entry.more
        if more is not None:
            self.timers.void(more)
            self.keys.remove(entry)
            self._unpark(entry, now)
        if more is not None and more.doubt and not more.forgotten and entry.attempts and _can_be_seen(call):
            self.objects.doubtful(self.lane_key(entry), self.executable(entry), entry.ticket, now)
            self._time_overlay()
        lane = self.lanes.discard(self.lane_key(entry), entry)
        if lane is not None:
            self._advance(lane)

    def _conclude(self, entry: Entry, now: int, kind: type, *args: Any) -> None:
        """The execution has ended: its handles are told `kind`, its leavers what they left with."""
        handles = list(self.living(entry))
        self._remove(entry, now)
        if entry.more is not None:
            for handle in entry.more.leavers:
                self._tell(handle, now, *leaving(handle))
        for handle in handles:
            self._tell(handle, now, kind, args)
        self._close(entry)

    @staticmethod
    def _close(entry: Entry) -> None:
        """The execution is over; if its own handle had left before, it ends as that was told."""
        if not entry.phase.terminal:
            assert entry.more is not None
            entry.move(_OUTCOME_STATES[type(entry.more.own)])

    def _tell(
        self,
        handle: Entry,
        now: int,
        kind: type,
        args: tuple[Any, ...],
        *,
        late: Any = NOT_DONE,
        going_on: bool = False,
        sent: bool = False,
    ) -> None:
        """Give a handle its one outcome (law L1). `late`: the value of a success that came too late to be it (law L11).
        `going_on`: its execution is not over with it. `sent`: a write of it may yet be applied (law L10)."""
        more = handle.more
        lead = handle if more is None or more.lead is None else more.lead
        handle.ended = now
        doubt = False
        if kind is Succeeded:
            result = args[0]
        else:
            done = late is not NOT_DONE
            doubt = not done and (sent or (lead.more is not None and lead.more.doubt))
            result = kind(*args, **handle.story(now), ambiguous=doubt, late=done, late_success=late if done else None)
        if (tally := handle.group.tally) is not None:
            tally.told(kind, args, doubt)
        if going_on and handle is lead:
            handle.rare().own = result
        else:
            handle.move(_OUTCOME_STATES[kind])
            handle.value = result
        self.deadlines.remove(handle)
        if more is not None and more.lead is not None:
            self.admission.joined -= 1
        else:
            self.admission.left(handle.flow)
        self.settled.append(handle)
        if more is not None:
            self._untie(handle, kind, result)

    def _untie(self, handle: Entry, kind: type, outcome: Any) -> None:
        """Out of its context and of the index of dependents; its requirement is confirmed or has failed (law L21)."""
        more, call = handle.more, handle.call
        assert more is not None
        for ref in call.depends_on:
            table = self.dependents.get(ref.lane, {})
            table.pop(handle.ticket, None)
            if not table:
                self.dependents.pop(ref.lane, None)
        epoch = more.epoch
        if epoch is not None:
            epoch.handles.pop(handle.ticket, None)
            if call.prerequisite is not None and epoch.context.ended is None:
                state = True if kind is Succeeded else _error_of(call.prerequisite, outcome)
                self._requirements.append((epoch, call.prerequisite, state))

    def _settle_superseded(self, winner: Entry, now: int) -> None:
        """A write has succeeded for a living handle: what it supersedes and waits is settled (law L12)."""
        found = self.lanes.table.get(self.lane_key(winner))
        if found is None:
            return
        waiting = [found] if isinstance(found, Entry) else [*found.line, *found.outside.values()]
        call_type, uid = winner.call.call_type, winner.call.target.uid
        for entry in waiting:
            other = entry.call
            if other.effect is READ or not self.lanes.supersedes(call_type, other.call_type):
                continue
            if uid is not None and other.target.uid not in (None, uid):
                continue
            handles = list(self.living(entry))
            self._remove(entry, now)
            for handle in handles:
                self._tell(handle, now, Overwritten if handle.ticket < winner.ticket else Skipped, (winner.ticket,))
            self._close(entry)

    # -- a handle leaves ----------------------------------------------------------------------------------------------

    def _depart(self, handle: Entry, now: int, kind: type, *args: Any) -> None:
        """A handle ends before its execution (laws L8, L11)."""
        entry = handle.lead
        others = [other for other in self.living(entry) if other is not handle]
        if not others and entry.phase.flying:
            self._let_leave(entry, handle, kind, args)
            if entry.phase is IN_FLIGHT:
                entry.move(STOPPING)
                self.stops.append(entry)
            if not entry.rare().timer:  # who leaves later does not make the others wait for longer
                self.timers.set(entry.rare(), now + nanoseconds(self.config.give_up), (self.give_up, entry))
        elif not others:
            self._conclude(entry, now, kind, *args)
        else:
            entry.rare().handles = others
            # Who leaves others behind in flight does not wait for the answer: what was sent may yet be applied.
            self._tell(handle, now, kind, args, going_on=True, sent=self._on_wire(entry))
            if entry.phase in MOVABLE:
                self.place(entry, now)

    def _let_leave(self, entry: Entry, handle: Entry, kind: type, args: tuple[Any, ...]) -> None:
        """A handle wants to leave an attempt in flight: it is told when that has ended."""
        more = entry.rare()
        more.handles = [other for other in self.living(entry) if other is not handle]
        more.leavers.append(handle)
        handle.rare().leaving = (kind, args)
        self.deadlines.remove(handle)

    @staticmethod
    def _on_wire(entry: Entry) -> bool:
        """True if a write of it has no answer yet; a reconcile sends nothing (law L10)."""
        reconciling = entry.more is not None and entry.more.reconciling
        return entry.phase.flying and entry.call.effect is not READ and not reconciling

    def _tell_leavers(self, entry: Entry, more: More, now: int, *, sent: bool = False) -> None:
        """The attempt has ended: now those who wanted to leave it know what became of it (law L11)."""
        self.timers.void(more)
        leavers, more.leavers = more.leavers, []
        for handle in leavers:
            self._tell(handle, now, *leaving(handle), going_on=handle is entry, sent=sent)

    def _expire_handles(self, entry: Entry, horizon: int, now: int) -> bool:
        """Expire the handles of a waiting execution whose deadline is over by `horizon`, when it can start at last, or
        which end by now. True if that changed where it waits. The end of a context may still be moved (rule R7)."""
        if entry.more is None:
            if entry.deadline > horizon:
                return False
            self._conclude(entry, now, Expired, entry.phase.value)
            return True
        changed = False
        for handle in list(self.living(entry)):
            if handle.deadline <= horizon or self.handle_limit(handle) <= now:
                self._depart(handle, now, Expired, entry.phase.value)
                changed = True
        if changed:
            self._after(now)
        return changed

    def _expire_flying(self, entry: Entry, now: int) -> None:
        """The attempt has ended: handles whose time is over by now leave with it."""
        for handle in list(self.living(entry)):
            if self.handle_limit(handle) <= now:
                self._let_leave(entry, handle, Expired, ("in_flight",))

    def give_up(self, entry: Entry, now: int) -> None:
        """The attempt does not end although it was asked to: its callers have waited long enough (laws L11, L19)."""
        self._tell_leavers(entry, entry.rare(), now, sent=self._on_wire(entry))
        self._after(now)

    def cancel(self, handle: Entry, reason: str, now: int) -> bool:
        """Cancel one handle. False if it has its outcome, or is leaving, already."""
        if handle.leaves:
            return False
        self._depart(handle, now, Cancelled, reason)
        self._after(now)
        return True

    def fail_call(self, handle: Entry, error: BaseException, now: int) -> None:
        """User code of a call has raised outside of an attempt (law L14): the call ends with it."""
        if handle.leaves:
            return
        self._depart(handle, now, Failed, error, Verdict(VerdictKind.PERMANENT, reason="user code raised"))
        self._after(now)

    def cancel_flow(self, flow: str, reason: str, now: int) -> int:
        return sum(self.cancel(handle, reason, now) for handle in self.handles() if handle.call.flow == flow)

    # -- requirements (law L21) ---------------------------------------------------------------------------------------

    def _after(self, now: int) -> None:
        """The consequences of requirements that changed during a step, until there are no more (law L21)."""
        while self._requirements:
            epoch, name, state = self._requirements.pop(0)
            if epoch.context.ended is not None:
                continue
            epoch.set_requirement(name, state)
            for handle in list(epoch.handles.values()):
                if not handle.call.awaits_prerequisites or handle.lead.phase not in MOVABLE:
                    continue
                if isinstance(state, BaseException):
                    self._fail_requirement(handle, name, state, now)
                else:
                    self.place(handle.lead, now)

    def _fail_requirement(self, handle: Entry, name: str, error: BaseException, now: int) -> None:
        failed = PrerequisiteFailed(f"requirement {name!r} failed: {error!r}", name)
        failed.__cause__ = error
        self._depart(handle, now, Failed, failed, Verdict(VerdictKind.PERMANENT, reason=f"requirement {name!r} failed"))

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """All that is due: timers, then deadlines, then what those have made due."""
        timers = self.timers
        while now >= timers.due:
            while (action := timers.pop(now)) is not None:
                action[0](action[1], now)
            while handles := timers.deadlines.pop(now):
                for handle in handles:
                    if not handle.leaves:
                        self._depart(handle, now, Expired, handle.lead.where)
        if self._requirements:
            self._after(now)

    def _time_overlay(self) -> None:
        due = self.objects.due
        if due is not None and not self.objects.timer:
            self.timers.set(self.objects, due, (self._overlay_due, None))

    def _overlay_due(self, _: Any, now: int) -> None:
        self.objects.ask_for_old(now)
        self._time_overlay()

    # -- out of what held it back -------------------------------------------------------------------------------------

    def _unpark(self, entry: Entry, now: int) -> None:
        """Out of whatever scope holds it."""
        more = entry.more
        if more is None:
            return
        if more.later is not None:
            self._leave_later(entry, more.later, now)
        if more.hold is not None:
            hold, more.hold = more.hold, None
            hold.waiting.pop(entry.ticket, None)
            if hold.probe is entry:  # nobody waits on an event alone: look for another probe
                hold.probe = None
                self._time_probe(hold, now)

    def _leave_later(self, entry: Entry, scope: LaterScope, now: int) -> None:
        entry.rare().later = None
        scope.forget(entry)
        self._pump_later(scope, now)

    def _pump_later(self, scope: LaterScope, now: int) -> None:
        while (entry := scope.next_due()) is not None:
            self.place(entry, now)
        if not scope.members:
            self.laters.pop(scope.scope, None)

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


def _can_be_seen(call: APICall[Any]) -> bool:
    """It is a write that is shown until it is seen. A create whose name nobody knows would be shown for good."""
    return call.effect is not READ and "apply" in call._hooks and not call.target.generated


def leaving(handle: Entry) -> tuple[type, tuple[Any, ...]]:
    """With what a leaver leaves: its outcome's class and arguments."""
    assert handle.more is not None
    assert handle.more.leaving is not None
    return handle.more.leaving


def _error_of(name: str, outcome: Any) -> BaseException:
    """Why a requirement failed: the error of its call, or what became of it."""
    if isinstance(outcome, Failed):
        return outcome.error
    return OutcomeError(f"prerequisite {name!r} ended as {type(outcome).__name__}: {outcome}", outcome)
