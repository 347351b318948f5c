"""The core that the shell uses: the machine, with short ways for common calls.

A common call is a write of a free object that nothing binds: no key, context, delay, uid, version, hook or quota. Most
are of this kind, and what the machine does for them in many small steps is done here in one piece: they are accepted,
and, while nothing holds calls back (`calm`), a seat passes from one to the next. Each short way looks before it changes
anything; if the call is not common, the machine has it. The property tests hold the two equal, decision by decision, so
nothing is decided here that is not decided there.
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
    from asyncdispatch._core.ordering import FlowQueue
    from asyncdispatch.calls import APICall

INT32 = 1 << 31

_new = object.__new__

# The only writer of a phase beside `Entry.move`, and by the same table.
assert allowed(ACCEPTED, QUEUED, IN_FLIGHT, SUCCEEDED)


class DispatchCore(Machine):
    """The machine with its short ways."""

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
                free = call._common and ref.plain and flow.free and group.limit is None
            else:
                flow, free = queue.flow, call._common and ref.plain and queue.free
        except (AttributeError, KeyError, TypeError):
            return None  # the first of its flow or type, or there is something wrong with it
        table, admission, deadlines = self.lanes.table, self.admission, self.deadlines
        depth = admission.depth + 1
        if (
            not free
            or not (self.calm or self._only_starts_wait(queue))
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
        bucket = deadlines.buckets.get(deadline >> BUCKET_BITS)
        if bucket is None:
            bucket = deadlines.open(deadline)
            admission.drained_per_second(now)  # often enough to ask
        admission.tickets = ticket = admission.tickets + 1
        place = now << PLACE_SHIFT | (ticket & TICKET_MASK)
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
        return entry

    def _only_starts_wait(self, queue: FlowQueue | None) -> bool:
        """What holds calls back does so when they start, but for a rate, and a breaker, which may block a new queue."""
        return self.closed is None and self.rate is None and (queue is not None or not self.breakers.table)

    def turn(self, entry: Entry, value: Any, now: int) -> Entry | None:
        """`succeed` and `next` in one, if both calls are common: what starts now, in the seat of `entry`.

        None says that nothing was done. Else `entry` has its outcome, which is not told in `settled`, and nothing else
        has come of it.
        """
        if not entry.common or not self.calm or type(value) not in PLAIN or now >= self.timers.due:
            return None
        follower = self.ordering.take_common(now)
        if follower is None:
            return None
        group, admission = entry.group, self.admission
        # succeed
        if self.earning:
            self._earn()
        took = now - entry.started
        group.usual += (took - group.usual) >> 3
        tally = group.tally
        if tally is not None:
            tally.quick[(took // MILLISECOND).bit_length()] += 1
            tally.waits[follower.level][(now - (follower.accepted >> PLACE_SHIFT)).bit_length()] += 1
            if follower.group is not group:
                tally.seated += now
                follower.group.tally.seated -= now  # type: ignore[union-attr]  # all have one, or none
        del self.lanes.table[entry.call.target.lane], entry.bucket[entry.ticket]
        entry.phase = SUCCEEDED
        entry.value = value
        entry.ended = now
        admission.depth = depth = admission.depth - 1
        if depth <= admission.down:
            admission.aim()
        # next
        follower.phase = IN_FLIGHT
        follower.started = now
        follower.attempts = 1
        return follower
