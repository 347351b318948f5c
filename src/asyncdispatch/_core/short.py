"""The core that the shell uses: the machine, with short ways for common calls.

A common call is a write of a free object that nothing binds: no key, context, delay, uid, version or hook. Most are of
this kind, and what the machine does for them in many small steps is done here in one piece, while nothing holds calls
back (`calm`). Each short way looks before it changes anything; if the call is not common, the machine has it. The
property tests hold the two equal, decision by decision, so nothing is decided here that is not decided there.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.knowing import PLAIN
from asyncdispatch._core.lanes import Lane
from asyncdispatch._core.machine import Machine
from asyncdispatch._core.states import (
    ACCEPTED,
    CREATE,
    IDEMPOTENT_WRITE,
    IN_FLIGHT,
    PLACE_SHIFT,
    QUEUED,
    SUCCEEDED,
    TICKET_MASK,
    Entry,
    allowed,
)
from asyncdispatch._core.timers import BUCKET_BITS
from asyncdispatch.calls import ObjectRef, validate_call

if TYPE_CHECKING:
    from asyncdispatch.calls import APICall

COMMON = frozenset({"call_type", "target", "effect", "priority", "flow", "timeout", "fn"})
"""Fields that a call may give and still be a common one: what it is and when it is urgent, nothing that binds it."""

INT32 = 1 << 31

# The only writer of a phase beside `Entry.move`, and by the same table.
assert allowed(ACCEPTED, QUEUED, IN_FLIGHT, SUCCEEDED)


class DispatchCore(Machine):
    """The machine with its short ways."""

    quick = False
    """The last `turn` took the short way: it has settled one handle, and nothing else came of it."""

    def submit(self, call: APICall[Any], now: int, since: int | None = None) -> Entry:
        if since is None and self.calm and now < self.deadlines.due and now < self.timers.due:
            entry = self._submit_common(call, now)
            if entry is not None:
                return entry
        validate_call(call)
        return super().submit(call, now, since)

    def _submit_common(self, call: APICall[Any], now: int) -> Entry | None:
        """Accept a common call. None for any other, for one that can't be meant, and when there is no room."""
        try:
            fields, common, ref, effect, priority = call.__dict__, call.common, call.target, call.effect, call.priority
            flow, group, timeout = self.flows[call.flow], self.groups[call.call_type], call.timeout
        except (AttributeError, KeyError, TypeError):
            return None
        table, admission = self.lanes.table, self.admission
        if (
            not common
            or not COMMON.issuperset(fields)
            or type(ref) is not ObjectRef
            or ref.uid is not None
            or ref.lane in table
            or ref.lane[-1] == "*"
            or (effect is not IDEMPOTENT_WRITE and effect is not CREATE)
            or type(priority) is not int
            or flow.max_queued is not None
            or admission.depth >= admission.ordinary
        ):
            return None
        if timeout is None:
            deadline = now + self._timeout
        elif type(timeout) is float and 0.0 < timeout < 1e9:
            deadline = now + nanoseconds(timeout)
        else:
            return None
        if priority == 0:
            level = self._level_of_zero
        elif -INT32 <= priority < INT32:
            level = bisect_right(self._floors, priority)
        else:
            return None
        self._tickets = ticket = self._tickets + 1
        place = now << PLACE_SHIFT | (ticket & TICKET_MASK)
        table[ref.lane] = entry = self._new_entry(call, ticket, place, level, deadline, flow, group)
        entry.phase = QUEUED
        flow.accepted += 1
        group.waiting += 1
        admission.depth = depth = admission.depth + 1
        if depth >= admission.up:
            admission.aim()
        deadlines = self.deadlines
        entry.bucket = bucket = deadlines.buckets.get(deadline >> BUCKET_BITS) or deadlines.open(deadline)
        bucket[ticket] = entry
        band = group.bands[level]
        queue = None if band is None else band.named.get(flow.name)
        if queue is None or place <= queue.last:
            self.ordering.push(entry, False)
        else:  # behind all others of its flow and level, so that nothing else changes
            queue.fifo.append(entry)
            queue.last = place
            queue.live += 1
            self.ordering.ready += 1
            entry.at = queue
        return entry

    def turn(self, entry: Entry, value: Any, now: int) -> Entry | None:
        """The attempt of `entry` has succeeded, and its worker goes on: its seat passes to what starts next."""
        flow, group, call, seats = entry.flow, entry.group, entry.call, self.seats
        table, lane = self.lanes.table, call.target.lane
        follower = None
        if (
            self.calm
            and entry.more is None
            and type(value) in PLAIN
            and now < self.deadlines.due
            and now < self.timers.due
            and flow.limit is None
            and group.limit is None
            and table.get(lane) is entry
            and seats.taken <= seats.limit
            and not call.hooks
        ):
            follower = self.ordering.take_common(now)
        if follower is None:
            self.quick = False
            self.succeed(entry, value, now)
            return self.next(now)
        self.quick = True
        # succeed
        if seats.taken == seats.limit < seats.maximum:
            seats.succeeded()
        group.usual += (now - entry.started - group.usual) >> 3
        flow.in_flight -= 1
        group.in_flight -= 1
        del table[lane], entry.bucket[entry.ticket]
        self.objects.ended += 1
        entry.phase = SUCCEEDED
        entry.value = value
        entry.ended = now
        self.settled.append(entry)
        flow.accepted -= 1
        admission = self.admission
        admission.depth = depth = admission.depth - 1
        drain = admission.drain
        if now >= drain.roll_at:
            drain.roll(now)
        drain.count += 1
        if depth <= admission.down:
            admission.aim()
        # next
        follower.phase = IN_FLIGHT
        follower.started = now
        follower.attempts = 1
        follower.flow.in_flight += 1
        group = follower.group
        group.in_flight += 1
        group.waiting -= 1
        ahead = table.get(follower.call.target.lane)
        if ahead is not follower and isinstance(ahead, Lane):
            ahead.leave_line(follower)
            ahead.flying = follower
        return follower
