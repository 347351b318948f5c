"""The dispatcher's decisions: one step after another, each whole before the next (law L14).

The shell calls `submit`, asks `next` for an execution to start, performs it, and reports by `succeed`, `fail`,
`stopped` or `reconciled`. After each step it empties `settled`, `stops` and `objects.wanted`. Times are nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncdispatch._core.idempotency import key_hash
from asyncdispatch._core.joining import Joining
from asyncdispatch._core.knowing import OTHER_OBJECT, gone
from asyncdispatch._core.lanes import Lane
from asyncdispatch._core.overlay import integer_version
from asyncdispatch._core.states import DELAYED, IN_FLIGHT, PLACE_SHIFT, READ, Entry
from asyncdispatch.errors import ConfigurationError, DispatcherClosed
from asyncdispatch.outcomes import Expired, Failed, Shed, Succeeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncdispatch._core.epochs import Epoch
    from asyncdispatch.calls import APICall


class Machine(Joining):
    """Every decision, in small steps. `DispatchCore` adds short ways for common calls."""

    # -- submitting ---------------------------------------------------------------------------------------------------

    def submit(self, call: APICall[Any], now: int, since: int | None = None) -> Entry:
        """Accept a validated call or refuse it. A refused one leaves no trace (laws L1, L4).

        `since`: from when its time-out counts, if that is before now.
        """
        self._since = now if since is None else since
        if now >= self.timers.due:
            self.tick(now)
        if self.closed is not None:
            raise DispatcherClosed(self.closed)
        epoch = self._living_epoch(call, now) if call.context is not None else None
        hashed = None
        if call.idempotency_key is not None or call.effect is READ:
            hashed = key_hash(call)
            found = self.keys.find(hashed, call)
            if found is not None and self._joinable(found, call):
                return self._join(found, call, epoch, now)
            if len(self.memory) and not call.fresh and call.idempotency_key is not None:
                remembered = self.memory.find(hashed, call, now)
                if remembered is not None:
                    self.remembered += 1
                    return self._settled_at_once(call, epoch, now, Succeeded, remembered)
        if self._other_uid(call):
            return self._settled_at_once(call, epoch, now, Failed, (gone(call.target), OTHER_OBJECT))
        return self._accept(call, epoch, hashed, now)

    def _accept(self, call: APICall[Any], epoch: Epoch | None, hashed: int | None, now: int) -> Entry:
        """Merge it, answer it as a no-op, or give it a place of its own. User hooks and refusals come first."""
        found = self.lanes.table.get(call.target.lane)
        if found is not None:
            pending, both = self._merge_candidate(found, call, epoch)
            if pending is not None and both is not None:
                return self._merge(pending, call, both, epoch, now)
            waiting = found.waiting() if isinstance(found, Lane) else not found.phase.flying
            if waiting >= self.config.lane_capacity and call.target.lane[-1] != "*":
                raise self.admission.refuse_object(now, waiting, self.config.lane_capacity)
        elif "is_noop" in call._hooks and self._is_noop(call, epoch, now):
            self._see_own(call, now)
            return self._settled_at_once(call, epoch, now, Succeeded, (None,))
        flow = self._flow(call.flow)
        admission = self.admission
        victim: Entry | None = None
        if admission.depth >= admission.ordinary or flow.max_queued is not None:
            victim = admission.admit(flow, self.level_of(call.priority), call.prerequisite is not None, now)
        entry = self._make(call, epoch, flow, now)
        if victim is not None:
            self._conclude(victim, now, Shed, f"made room for call {entry.ticket}")
        self._register(entry, epoch, hashed)
        if call.version is not None:
            self._see_own(call, now)
        if self._hopeless(entry, now):
            return entry
        self.place(entry, now)
        if call.sheddable:
            self._offer(entry)
        if self._requirements:
            self._after(now)
        return entry

    def _register(self, entry: Entry, epoch: Epoch | None, hashed: int | None) -> None:
        """Into every table; from here on it has exactly one outcome (law L1)."""
        call = entry.call
        self.admission.entered(entry.flow)
        key, table = self.lane_key(entry), self.lanes.table
        if key in table:
            lane = self.lanes.lane(key)
            lane.add(entry)
            if call.effect is not READ:
                lane.last_write = entry.ticket
        else:
            table[key] = entry
        if hashed is not None:
            self.keys.add(hashed, entry)
        self.deadlines.add(entry)
        if epoch is not None or call.depends_on:
            self._tie(entry, epoch)

    def _settled_at_once(
        self, call: APICall[Any], epoch: Epoch | None, now: int, kind: type, args: tuple[Any, ...]
    ) -> Entry:
        """Accepted, and told in the same step: it never waits, so it needs no room."""
        entry = self._make(call, epoch, self._flow(call.flow), now)
        self.admission.entered(entry.flow)
        self._tie(entry, epoch)
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
        if more is not None and more.ready_at >= entry.deadline:
            entry.move(DELAYED)
            self._conclude(entry, now, Expired, "delayed")
        elif self.rate is not None and self.rate.free_at(now) >= entry.deadline:
            self._conclude(entry, now, Expired, "queued")
        else:
            return False
        self._after(now)
        return True

    # -- contexts, uids, no-ops ---------------------------------------------------------------------------------------

    def _living_epoch(self, call: APICall[Any], now: int) -> Epoch:
        assert call.context is not None
        epoch = self.epochs.living(call.context, now)
        if call.prerequisite is not None and call.prerequisite not in call.context.requirements:
            known = ", ".join(call.context.requirements) or "none"
            raise ConfigurationError(
                "prerequisite", call.prerequisite, f"its context does not require it (it requires: {known})"
            )
        return epoch

    def _other_uid(self, call: APICall[Any]) -> bool:
        """True if the call is for another uid than the one known last (law L2). Changes nothing."""
        ref = call.target
        if ref.uid is None:
            return False
        known = self.objects.uid_of(ref.lane)
        if known is None or known == ref.uid:
            return False
        return call.version is None or self.objects.outdated(ref.lane, ref.uid, integer_version(call.version))

    def _see_own(self, call: APICall[Any], now: int) -> None:
        """An accepted call has told the version of the object that it was decided on (law L2)."""
        if call.version is not None and call.target.uid is not None:
            self.see(call.target.lane, call.target.uid, integer_version(call.version), now)

    def _is_noop(self, call: APICall[Any], epoch: Epoch | None, now: int) -> bool:
        """Asked only when nothing else of its object waits, flies or is unobserved."""
        if call.effect is READ or call.not_before or self.objects.writes(call.target.lane):
            return False
        if call.awaits_prerequisites and epoch is not None and epoch.unconfirmed:
            return False
        try:
            return bool(call.is_noop())
        except Exception as error:
            raise ConfigurationError("is_noop", type(call).__name__, f"it raised {error!r}: mend it") from error

    # -- starting -----------------------------------------------------------------------------------------------------

    def next(self, now: int) -> Entry | None:
        """The execution to start now, already counted as in flight; None if nothing may start.

        Time is looked at first: after a stalled loop nothing starts that should have ended meanwhile (law L5).
        """
        if now >= self.timers.due:
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
            # An ordered read has a key, so that `more` tells all that is uncommon but for the clock and holds.
            common = entry.more is None and entry.deadline - now > 2 * entry.group.usual and not self.holds
            if common or self._checked(entry, now):
                self._start(entry, now)
                return entry
        return None

    def can_start(self, clock: Callable[[], int]) -> bool:
        """True if some call may start now: no use to wake anybody otherwise."""
        if not self.ordering.startable:
            return False
        return self.rate is None or self.rate.free_at(now := clock()) <= now

    def _checked(self, entry: Entry, now: int) -> bool:
        """The last look before a start; what may not start is put where it belongs."""
        if self._expire_handles(entry, now, now) or self._too_late(entry, now):
            return False
        if self.holds:
            hold = self.holds.get(self.hold_scope(entry))
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

    def _too_late(self, entry: Entry, now: int) -> bool:
        """Under overload the oldest call would start with a moment left, be cut off in flight, and so would the next.

        Who has waited for nearly all of its time, and has less left than an attempt usually takes, leaves its seat to
        one that can still be answered, if one waits. It was not sent, so nothing about it is in doubt. Only deadlines
        count: the end of a context may still be moved, as each renewal of a lease does (rule R7).
        """
        remaining = max([handle.deadline for handle in self.living(entry)], default=0) - now
        waited = now - (entry.accepted >> PLACE_SHIFT)
        usual = entry.group.usual
        if remaining >= usual + usual // 4 or remaining * 16 >= waited or len(self.ordering) < 2:
            return False
        self._conclude(entry, now, Expired, "queued")
        self._after(now)
        return True

    def _start(self, entry: Entry, now: int) -> None:
        self.ordering.take(entry)
        entry.move(IN_FLIGHT)
        entry.started = now
        call, more = entry.call, entry.more
        if more is None or not more.reconciling:
            entry.attempts += 1
        flow, group = entry.flow, entry.group
        self.seats.taken += 1
        if flow.limit is not None:
            flow.in_flight += 1
            if flow.full:
                for queue in flow.queues:
                    self.ordering.refresh(queue, True)
        if (tally := group.tally) is not None:
            tally.seated -= now
            if entry.attempts == 1 and (more is None or not more.reconciling):
                tally.waited(entry, now)
        if group.limit is not None:
            group.in_flight += 1
            if group.full:
                self.ordering.refresh_group(group)
        if self.rate is not None:
            self.rate.take(now)
        if self.breakers.table:
            breaker = self.breakers.table.get((flow.name, group.name))
            if breaker is not None and breaker.half_open:
                breaker.probe = entry
                self._unblock(flow)
        if call.sheddable:
            self.admission.sheddables.remove(entry)
        if call.effect is READ:
            if call.target.lane in self.objects.table:
                entry.rare().mark = self.objects.ended
        else:
            lane = self.lanes.table.get(call.target.lane)  # one whose name the server chooses is alone in its own
            if lane is not entry and isinstance(lane, Lane):
                lane.leave_line(entry)
                lane.flying = entry

    # -- time ---------------------------------------------------------------------------------------------------------

    def wake_at(self, now: int) -> int:
        """When to look again if nothing is reported before; `NEVER` if there is nothing to look for."""
        when = self.timers.due
        if self.rate is not None and len(self.ordering) and self.seats.taken < self.seats.limit:
            free_at = self.rate.free_at(now)
            if free_at > now:
                when = min(when, free_at)
        return when

    # -- ending it all (law L15) --------------------------------------------------------------------------------------

    def drain(self, until: int, now: int) -> None:
        """Accept nothing more; what is there finishes or expires by `until`."""
        self.closed = self.closed or "draining for good"
        self.calm = False
        for handle in self.handles():
            if handle.deadline > until:
                self.deadlines.remove(handle)
                handle.deadline = until
                self.deadlines.add(handle)

    def close(self, reason: str, now: int) -> None:
        """Accept nothing more and cancel everything; what flies is told when its attempt has ended."""
        self.closed = reason
        self.calm = False
        for handle in self.handles():
            if handle.leaves:
                continue  # the end of another has ended it
            if self.handle_limit(handle) <= now:
                self._depart(handle, now, Expired, handle.lead.where)
            else:
                self.cancel(handle, reason, now)
        for epoch in list(self.epochs.table.values()):
            self.end(epoch.context, reason, now)
