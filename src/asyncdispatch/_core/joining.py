"""New handles: made, tied to their contexts, joined to a live execution, or merged with the last in line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncdispatch._core.answers import Answers
from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.lanes import Lane, mergeable, merged
from asyncdispatch._core.states import BACKOFF, DELAYED, HELD, JOINED, LINE, READ, REQUIREMENTS, Entry, place_of
from asyncdispatch._core.timers import BUCKET_BITS
from asyncdispatch.outcomes import Expired, Overwritten

if TYPE_CHECKING:
    from asyncdispatch._core.epochs import Epoch
    from asyncdispatch._core.seats import Flow
    from asyncdispatch.calls import APICall


class Joining(Answers):
    """Handles, and the ways in which a new call shares another's execution or takes it over."""

    _since = 0  # from when the time-out of the call that is being submitted counts

    def _make(self, call: APICall[Any], epoch: Epoch | None, flow: Flow, now: int) -> Entry:
        timeout, admission = call.timeout, self.admission
        deadline = self._since + (self._timeout if timeout is None else nanoseconds(timeout))
        if deadline >> BUCKET_BITS not in self.deadlines.buckets:  # often enough to ask
            admission.drained_per_second(now)
        admission.tickets = ticket = admission.tickets + 1
        group = self._group(call.call_type)
        priority = call.priority
        level = self._level_of_zero if priority == 0 else self.level_of(priority)
        entry = self._entry_class(self._owner, call, ticket, place_of(now, ticket), level, deadline, flow, group)
        if epoch is not None:
            entry.rare().epoch = epoch
        if call.not_before:
            entry.rare().ready_at = now + nanoseconds(call.not_before)
        return entry

    def _tie(self, handle: Entry, epoch: Epoch | None) -> None:
        """To its context, and to the objects that it depends on."""
        call = handle.call
        if epoch is not None:
            epoch.handles[handle.ticket] = handle
            if call.prerequisite is not None:
                self._requirements.append((epoch, call.prerequisite, None))
        for ref in call.depends_on:
            handle.rare()
            self.dependents.setdefault(ref.lane, {})[handle.ticket] = handle

    # -- joining (law L8) ---------------------------------------------------------------------------------------------

    def _joinable(self, found: Entry, call: APICall[Any]) -> bool:
        if call.effect is not READ or not call.ordered:
            return True
        if not self.ordered(found):
            return False
        lane = self.lanes.table.get(call.target.lane)
        return not isinstance(lane, Lane) or lane.last_write < found.ticket

    def _join(self, lead: Entry, call: APICall[Any], epoch: Epoch | None, now: int) -> Entry:
        self.admission.admit_joiner(now)
        handle = self._make(call, epoch, lead.flow, now)
        handle.group = lead.group
        handle.rare().lead = lead
        handle.move(JOINED)
        more = lead.rare()
        if more.handles is None:
            more.handles = [lead]
        more.handles.append(handle)
        self.admission.joined += 1
        self.admission.joins += 1
        self.admission.sheddables.remove(lead)
        self.deadlines.add(handle)
        self._tie(handle, epoch)
        self._raise_rank(lead, handle.level, handle.accepted)
        self._spread_rank(lead)
        if lead.phase in (DELAYED, REQUIREMENTS):
            self.place(lead, now)
        elif handle.deadline <= more.until:  # law L20: the next attempt comes too late for it
            self._depart(handle, now, Expired, lead.phase.value)
        self._after(now)
        return handle

    # -- merging (law L13) --------------------------------------------------------------------------------------------

    def _merge_candidate(
        self, found: Entry | Lane, call: APICall[Any], epoch: Epoch | None
    ) -> tuple[Entry | None, APICall[Any] | None]:
        """The last in line and what it becomes, if the newcomer merges with it. Asks `merge`; changes nothing."""
        if call.not_before or (call.awaits_prerequisites and epoch is not None and epoch.unconfirmed):
            return None, None  # it does not enter the line yet
        last = found.line[-1] if isinstance(found, Lane) and found.line else found
        if not isinstance(last, Entry) or last.phase.flying:
            return None, None
        if last.phase in (DELAYED, REQUIREMENTS) or not mergeable(last, call):
            return None, None
        both = merged(call, self.executable(last))
        return (None, None) if both is None else (last, both)

    def _merge(self, pending: Entry, call: APICall[Any], both: APICall[Any], epoch: Epoch | None, now: int) -> Entry:
        """The newcomer takes over from the last in line, which is at once Overwritten: its place, rank and backoff."""
        entry = self._make(both, epoch, self._flow(call.flow), now)
        self.admission.entered(entry.flow)
        self.deadlines.add(entry)
        self._tie(entry, epoch)
        lane = self.lanes.lane(self.lane_key(pending))
        index = next(i for i, other in enumerate(lane.line) if other is pending)
        lane.line[index] = entry
        lane.last_write = entry.ticket
        phase, more = pending.phase, pending.more
        until, later, hold = (more.until, more.later, more.hold) if more is not None else (0, None, None)
        self._raise_rank(entry, pending.level, pending.rank)
        self.merges += 1
        self._conclude(pending, now, Overwritten, entry.ticket)
        entry.move(LINE)
        self._inherit(lane, index, entry)
        if phase is BACKOFF:
            self._back_off(entry, max(until, now), later, now)
        elif phase is HELD and hold is not None and self.holds.get(hold.scope) is hold:
            self._hold(entry, hold, now)
        self._advance(lane)
        if call.sheddable and not entry.done():
            self._offer(entry)
        self._after(now)
        return entry
