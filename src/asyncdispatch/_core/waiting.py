"""What an execution does between two attempts: backoff, the budget of retries, conditions elsewhere, credentials."""

from __future__ import annotations

from heapq import heappop
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.endings import Endings
from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.lanes import Lane
from asyncdispatch._core.parking import FIRST_PROBE, NEXT_PROBE, Failure, Hold, LaterScope, waits
from asyncdispatch._core.states import BACKOFF, HELD, LINE, QUEUED, Entry
from asyncdispatch.calls import Verdict, VerdictKind
from asyncdispatch.outcomes import Failed

if TYPE_CHECKING:
    from collections.abc import Hashable


class Waiting(Endings):
    """Waiting for a next attempt. It keeps the place in line and holds no seat (laws L12, L20)."""

    def _wait(self, entry: Entry, failure: Failure, kind: VerdictKind | None, now: int) -> None:
        """Park an execution as its verdict says; it keeps its place in line and holds no seat (law L20)."""
        if entry.phase is QUEUED:  # it has absorbed the one that came back, and is first in line
            self.ordering.remove(entry)
            entry.move(LINE)
        more = entry.rare()
        if kind is None:
            self.place(entry, now)
        elif kind is VerdictKind.HOLD:
            scope = failure.verdict.scope if failure.verdict.scope is not None else self.hold_scope(entry)
            hold = self.holds.get(scope)
            if hold is None:
                hold = self.holds[scope] = Hold(scope, now)
            hold.error = failure.error
            self._hold(entry, hold, now)
        else:
            more.failures += 1
            later = self._later_scope(entry, failure.verdict, now) if kind is VerdictKind.LATER else None
            self._back_off(entry, now + failure.delay, later, now)
        lane = self.lanes.table.get(self.lane_key(entry))
        if isinstance(lane, Lane):
            self._advance(lane)

    def _back_off(self, entry: Entry, until: int, later: LaterScope | None, now: int) -> None:
        entry.move(BACKOFF)
        more = entry.rare()
        more.until = until
        if more.later is not None and more.later is not later:
            self._leave_later(entry, more.later, now)
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
        self.earning = True  # a retry may be taken from the budget
        more = entry.rare()
        more.until = 0
        if more.later is not None:
            more.later.due[entry.ticket] = entry
            self._pump_later(more.later, now)
        elif more.verdict is None or more.verdict.kind is VerdictKind.LATER:
            self.place(entry, now)
        elif self.budget.waiting or not self.budget.take(now):
            self.calm = False
            self.budget.wait(entry, self._key(entry))
            self._pump_budget(None, now)
        else:
            more.paid = True
            self.place(entry, now)

    def _pump_budget(self, _: Any, now: int) -> None:
        """Let go as many retries as the budget has, those first that are started first."""
        waiting = self.budget.waiting
        while waiting:
            entry = waiting[0][2]
            parked = waits(entry)
            if parked and not self.budget.take(now):
                self.timers.set(self.budget, self.budget.next_at(now), (self._pump_budget, None))
                return
            heappop(waiting)
            if parked:
                more = entry.rare()
                more.budgeted, more.paid = False, True
                self.place(entry, now)
        self.timers.void(self.budget)

    # -- refused credentials (rule R4) --------------------------------------------------------------------------------

    def hold_scope(self, entry: Entry) -> Hashable:
        """Whose credentials it uses. Who does not say so is taken to share them with the rest of its flow."""
        scope = self.executable(entry).scope
        return ("flow", entry.flow.name) if scope is None else scope

    def _hold(self, entry: Entry, hold: Hold, now: int) -> None:
        entry.move(HELD)
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
