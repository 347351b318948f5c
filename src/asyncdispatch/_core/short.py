"""The core that the shell uses: the machine, with short ways for common calls.

A common call is a write of a free object that nothing binds: no key, context, delay, uid, version, hook or quota. Most
are of this kind, and what the machine does for them in many small steps is done here in one piece, while nothing holds
calls back (`calm`). Each short way looks before it changes anything; if the call is not common, the machine has it. The
property tests hold the two equal, decision by decision, so nothing is decided here that is not decided there.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.knowing import PLAIN
from asyncdispatch._core.machine import Machine
from asyncdispatch._core.metering import MILLISECOND
from asyncdispatch._core.states import (
    ACCEPTED,
    IN_FLIGHT,
    PLACE_SHIFT,
    QUEUED,
    SUCCEEDED,
    TICKET_MASK,
    Entry,
    allowed,
)
from asyncdispatch._core.timers import BUCKET_BITS
from asyncdispatch.calls import validate_call

if TYPE_CHECKING:
    from asyncdispatch.calls import APICall

INT32 = 1 << 31

_new = object.__new__

# The only writer of a phase beside `Entry.move`, and by the same table.
assert allowed(ACCEPTED, QUEUED, IN_FLIGHT, SUCCEEDED)


class DispatchCore(Machine):
    """The machine with its short ways."""

    quick = False
    """The last `turn` took the short way: it has settled its own call, told nobody, and nothing else came of it."""

    def submit(self, call: APICall[Any], now: int, since: int | None = None) -> Entry:
        entry = self.submit_common(call, now) if since is None else None
        return self.submit_any(call, now, since) if entry is None else entry

    def submit_any(self, call: APICall[Any], now: int, since: int | None = None) -> Entry:
        """`submit`, for what `submit_common` has not taken."""
        validate_call(call)
        return super().submit(call, now, since)

    def submit_common(self, call: APICall[Any], now: int) -> Entry | None:
        """Accept a common call. None for any other, for one that can't be meant, and when there is no room."""
        try:
            ref, priority, timeout, group = call.target, call.priority, call.timeout, self.groups[call.call_type]
            if type(priority) is not int:
                return None
            level = self._level_of_zero if priority == 0 else bisect_right(self._floors, priority)
            band, lane = group.bands[level], ref.lane
            queue = None if band is None else band.named.get(call.flow)
            if queue is None:  # nobody of its flow waits at this level
                flow = self.flows[call.flow]
                free = call.common and ref.plain and flow.free and group.limit is None
            else:
                flow, free = queue.flow, call.common and ref.plain and queue.free
        except (AttributeError, KeyError, TypeError):
            return None  # the first of its flow or type, or there is something wrong with it
        table, admission, deadlines = self.lanes.table, self.admission, self.deadlines
        depth = admission.depth + 1
        if (
            not free
            or not self.calm
            or now >= deadlines.due
            or now >= self.timers.due
            or lane in table
            or depth >= admission.up
            or (priority and not -INT32 <= priority < INT32)
        ):
            return None
        if timeout is None:
            deadline = now + self._timeout
        elif type(timeout) is float and 0.0 < timeout < 1e9:
            deadline = now + nanoseconds(timeout)
        else:
            return None
        self.tickets = ticket = self.tickets + 1
        place = now << PLACE_SHIFT | (ticket & TICKET_MASK)
        bucket = deadlines.buckets.get(deadline >> BUCKET_BITS)
        if bucket is None:
            bucket = deadlines.open(deadline)
        # Made part by part: calling the class costs as much as half of the rest.
        entry: Entry = _new(self._entry_class)
        entry.owner = self._owner
        entry.call = call
        entry.common = True
        entry.ticket = ticket
        entry.accepted = entry.rank = place
        entry.level = level
        entry.deadline = deadline
        entry.flow = flow
        entry.group = group
        entry.phase = QUEUED
        entry.bucket = bucket
        entry.attempts = 0
        entry.started = -1
        entry.ended = 0
        entry.value = entry.more = entry.waiter = None
        table[lane] = bucket[ticket] = entry
        admission.depth = depth
        if queue is None:
            self.ordering.push(entry, False)
        else:  # behind all others of its flow and level, so that nothing else changes
            entry.at = queue
            queue.last = place
            queue.fifo.append(entry)
            queue.live += 1
            self.ordering.ready += 1
        return entry

    def turn(self, entry: Entry, value: Any, now: int) -> Entry | None:
        """The attempt of `entry` has succeeded, and its worker goes on: its seat passes to what starts next."""
        follower = None
        if (
            entry.common
            and entry.more is None
            and self.calm
            and type(value) in PLAIN
            and now < self.deadlines.due
            and now < self.timers.due
        ):
            follower = self.ordering.take_common(now)
        if follower is None:
            self.quick = False
            self.succeed(entry, value, now)
            return self.next(now)
        self.quick = True
        flow, group, seats, admission = entry.flow, entry.group, self.seats, self.admission
        # succeed
        if seats.limit < seats.maximum:
            seats.succeeded()
        took = now - entry.started
        group.usual += (took - group.usual) >> 3
        tally = group.tally
        if tally is not None:
            tally.quick[(took // MILLISECOND).bit_length()] += 1
            tally.waits[follower.level][(now - (follower.accepted >> PLACE_SHIFT)).bit_length()] += 1
        del self.lanes.table[entry.call.target.lane], entry.bucket[entry.ticket]
        entry.phase = SUCCEEDED
        entry.value = value
        entry.ended = now
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
        if follower.flow is not flow:
            flow.in_flight -= 1
            follower.flow.in_flight += 1
        if follower.group is not group:
            group.in_flight -= 1
            follower.group.in_flight += 1
            if tally is not None:
                tally.seated += now
                follower.group.tally.seated -= now  # type: ignore[union-attr]  # all have one, or none
        return follower
