"""Where executions stand and how handles are told: the tables of the machine and the moves between them.

`DispatchCore` (machine.py) decides what happens; this base keeps every table in step with every phase.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.admission import Admission
from asyncdispatch._core.epochs import Epoch, Epochs
from asyncdispatch._core.idempotency import KeyIndex, Memory
from asyncdispatch._core.lanes import Lane, Lanes
from asyncdispatch._core.ordering import Group, Ordering
from asyncdispatch._core.overlay import Objects
from asyncdispatch._core.parking import Breakers, Budget, Hold, LaterScope, waits
from asyncdispatch._core.rate import TokenBucket
from asyncdispatch._core.seats import Flow, TotalSeats
from asyncdispatch._core.states import DELAYED, LINE, NEVER, QUEUED, READ, REQUIREMENTS, SECOND, CallState, Entry
from asyncdispatch._core.timers import Timers
from asyncdispatch.calls import APICall
from asyncdispatch.config import CallTypePolicy, DispatcherConfig, FlowQuota

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from asyncdispatch._core.metering import Meter

MOVABLE = (DELAYED, REQUIREMENTS, LINE, QUEUED)
"""Waiting states that follow from the call's handles alone."""

MAX_IDLE = 256
"""Call types and flows that have nothing live are remembered up to this number, or half of those known (law L19)."""

MAX_NAMES = 4_096
"""Call types, and flows, that may be live at one time under their own name; beyond, they share "other"."""


def nanoseconds(seconds: float) -> int:
    return round(seconds * SECOND)


class Executions:
    """The tables, and the moves that keep them in step."""

    closed: str | None = None
    """Why nothing is accepted any more (law L15)."""

    def __init__(
        self,
        config: DispatcherConfig,
        entry_class: type[Entry] = Entry,
        owner: Any = None,
        meter: Meter | None = None,
    ) -> None:
        """`entry_class` and `owner`: what accepted calls become, and whose they are. `meter`: what counts them."""
        self.config = config
        self._entry_class = entry_class
        self._owner = owner
        self.meter = meter
        self._floors = [floor for _, floor in config.levels.levels[1:]]  # the first level catches all that is below
        levels = len(config.levels.levels)
        self._timeout = nanoseconds(config.timeout)
        self.levels = levels
        self._level_of_zero = self.level_of(0)
        self.ordering = Ordering(levels, nanoseconds(config.aging))
        self.lanes = Lanes(config.call_types)
        self.admission = Admission(config, levels)
        self.seats = TotalSeats(config.max_in_flight)
        self.rate = TokenBucket(config.rate) if config.rate else None
        self.budget = Budget(config.retry_budget)
        self.breakers = Breakers(config.breaker)
        self.holds: dict[Hashable, Hold] = {}
        self.laters: dict[Hashable, LaterScope] = {}
        self.keys = KeyIndex()
        self.memory = Memory(config.idempotency)
        self.epochs = Epochs()
        self.objects = Objects(config.max_unobserved, nanoseconds(config.unobserved_age))
        self.timers = Timers()
        self.deadlines = self.timers.deadlines
        self.dependents: dict[str, dict[int, Entry]] = {}
        self.flows: dict[str, Flow] = {}
        self.groups: dict[str, Group] = {}
        self.settled: list[Entry] = []  # handles that got their outcome; the shell tells their callers
        self.stops: list[Entry] = []  # executions whose attempt shall end; the shell cancels it
        self.calm = False  # nothing holds calls back: see `_calm`
        self._calm()
        self.earning = True  # successes have to be counted, for seats or retries: see `_earn`
        self.stale = 0  # late successes that reached nobody
        self.merges = 0
        self.remembered = 0  # answered from the memory of succeeded keys
        self._requirements: list[tuple[Epoch, str, BaseException | bool | None]] = []
        self._new_flows = self._new_groups = 0  # names since the idle ones were dropped: that looks at all of them

    # -- names --------------------------------------------------------------------------------------------------------

    def level_of(self, priority: int) -> int:
        return bisect_right(self._floors, priority)

    def _flow(self, name: str) -> Flow:
        flow = self.flows.get(name)
        if flow is None:
            self._new_flows += 1
            if len(self.flows) >= MAX_IDLE and self._new_flows * 2 > len(self.flows):
                self._drop_idle_flows()
            if len(self.flows) >= MAX_NAMES and name not in self.config.flows and name != "other":
                return self._flow("other")
            flow = self.flows[name] = Flow(name, self.config.flows.get(name, FlowQuota()))
        return flow

    def _group(self, call_type: str) -> Group:
        group = self.groups.get(call_type)
        if group is None:
            self._new_groups += 1
            if len(self.groups) >= MAX_IDLE and self._new_groups * 2 > len(self.groups):
                self._drop_idle_groups()
            if len(self.groups) >= MAX_NAMES and call_type not in self.config.call_types and call_type != "other":
                return self._group("other")
            policy = self.config.call_types.get(call_type, CallTypePolicy())
            tally = None if self.meter is None else self.meter.tally(call_type)
            group = self.groups[call_type] = Group(call_type, policy.max_in_flight, self.levels, tally)
        return group

    def _drop_idle_flows(self) -> None:
        self._new_flows = 0
        live = dict.fromkeys(entry.flow.name for entry in self.executions())
        for name in [name for name in self.flows if name not in live]:
            del self.flows[name]

    def _drop_idle_groups(self) -> None:
        self._new_groups = 0
        live = dict.fromkeys(entry.group.name for entry in self.executions())
        for name in [name for name in self.groups if name not in live]:
            self.ordering.drop(self.groups.pop(name))

    @staticmethod
    def lane_key(entry: Entry) -> str:
        key = entry.call.target.lane
        return f"{key}#{entry.ticket}" if key[-1] == "*" else key

    # -- executions and handles ---------------------------------------------------------------------------------------

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

    @staticmethod
    def living(entry: Entry) -> Sequence[Entry]:
        """The handles that want an execution."""
        more = entry.more
        return (entry,) if more is None or more.handles is None else more.handles

    @staticmethod
    def executable(entry: Entry) -> APICall[Any]:
        """The call that an execution sends: decided again, its carrier's, or its own (law L5)."""
        more = entry.more
        if more is None:
            return entry.call
        return more.again or (more.carrier or entry).call

    def ordered(self, entry: Entry) -> bool:
        """True for a read that some handle wants only after the writes accepted before it."""
        if entry.more is None or entry.more.handles is None:
            return entry.call.ordered
        return any(handle.call.ordered for handle in entry.more.handles)

    @staticmethod
    def handle_limit(handle: Entry) -> int:
        """When a handle's wish ends by itself: its deadline, or the end of its context's validity."""
        more = handle.more
        if more is None or more.epoch is None:
            return handle.deadline
        limit = more.epoch.limit
        return limit if limit < handle.deadline else handle.deadline

    def limit(self, entry: Entry) -> int:
        """The latest limit among the living handles: what an attempt's time-out is clipped to (law L5)."""
        more = entry.more
        if more is None or more.handles is None:
            return self.handle_limit(entry)
        return max(map(self.handle_limit, more.handles), default=0)

    @staticmethod
    def may_start(handle: Entry, now: int) -> bool:
        """True if the handle's own delay and requirements let it start (law L5)."""
        more = handle.more
        if more is None:
            return True
        if more.ready_at > now:
            return False
        return not (handle.call.awaits_prerequisites and more.epoch is not None and more.epoch.unconfirmed)

    # -- placing waiting executions -----------------------------------------------------------------------------------

    def place(self, entry: Entry, now: int) -> None:
        """Put a waiting execution where it belongs: ready, or outside until a handle of it may start."""
        more = entry.more
        if more is not None:
            earliest, phase = NEVER, DELAYED
            for handle in self.living(entry):
                if self.may_start(handle, now):
                    more.carrier = None if handle is entry else handle
                    break
                assert handle.more is not None
                if handle.more.ready_at > now:
                    earliest = min(earliest, handle.more.ready_at)
                else:
                    phase = REQUIREMENTS
            else:
                self._outside(entry, phase, earliest)
                return
            self.timers.void(more)
        self._ready(entry)

    def _outside(self, entry: Entry, phase: CallState, wake: int) -> None:
        lane = self._withdraw(entry)
        if entry.phase is not phase:
            entry.move(phase)
        if lane is not None and entry.call.effect is not READ:
            lane.outside[entry.ticket] = entry
            self._advance(lane)
        more = entry.rare()
        if wake < NEVER:
            self.timers.set(more, wake, (self.place, entry))
        else:
            self.timers.void(more)

    def _withdraw(self, entry: Entry) -> Lane | None:
        """Take a waiting execution out of the queue and out of line. Its lane, if it is one in full."""
        if entry.phase is QUEUED:
            self.ordering.remove(entry)
        found = self.lanes.table.get(self.lane_key(entry))
        if not isinstance(found, Lane):
            return None
        if entry.call.effect is not READ:
            found.leave_line(entry)
        return found

    def _ready(self, entry: Entry) -> None:
        """Time and requirements let it start: into line, if it is a write, and into the queue in its turn."""
        found = self.lanes.table.get(self.lane_key(entry))
        if not isinstance(found, Lane):
            if entry.phase is not QUEUED:
                self._enqueue(entry)
        elif entry.call.effect is READ:
            self._ready_read(found, entry)
        else:
            if found.outside.pop(entry.ticket, None) is not None:
                index = self.lanes.insert(found, entry)
                self._inherit(found, index, entry)
            if entry.phase not in (LINE, QUEUED):
                entry.move(LINE)
            self._advance(found)

    def _ready_read(self, lane: Lane, entry: Entry) -> None:
        if not (self.ordered(entry) and lane.oldest_write(entry.ticket)):
            if entry.phase is not QUEUED:
                self._enqueue(entry)
            return
        if entry.phase is QUEUED:
            self.ordering.remove(entry)
        if entry.phase is not LINE:
            entry.move(LINE)
        self._hurry(lane, entry)

    def _advance(self, lane: Lane) -> None:
        """Queue the first in line when nothing of its lane flies, and the ordered reads whose wait is over."""
        line = lane.line
        if line:
            if lane.flying is None and line[0].phase is LINE:
                self._enqueue(line[0])
            for entry in line[1:]:
                if entry.phase is QUEUED:
                    self.ordering.remove(entry)
                    entry.move(LINE)
        if lane.reads:
            for entry in list(lane.reads.values()):
                if entry.phase is LINE and not lane.oldest_write(entry.ticket):
                    self._enqueue(entry)

    def _enqueue(self, entry: Entry) -> None:
        entry.move(QUEUED)
        self._push(entry)

    def _push(self, entry: Entry) -> None:
        self.ordering.push(entry, self.breakers.blocks(entry.flow.name, entry.group.name))

    # -- ranks (law L9) -----------------------------------------------------------------------------------------------

    def _inherit(self, lane: Lane, index: int, entry: Entry) -> None:
        """Whoever stands before a more urgent call in line is as urgent as that."""
        for behind in lane.line[index + 1 :]:
            self._raise_rank(entry, behind.level, behind.rank)
        for ahead in lane.line[:index]:
            self._raise_rank(ahead, entry.level, entry.rank)
        if lane.flying is not None:
            self._raise_rank(lane.flying, entry.level, entry.rank)

    def _spread_rank(self, entry: Entry) -> None:
        """The rank of an execution has become better: so does that of those before it in its lane."""
        lane = self.lanes.table.get(self.lane_key(entry))
        if not isinstance(lane, Lane):
            return
        if entry.call.effect is READ:
            if entry.phase is LINE:
                self._hurry(lane, entry)
            return
        for index, other in enumerate(lane.line):
            if other is entry:
                self._inherit(lane, index, entry)
                return

    def _hurry(self, lane: Lane, read: Entry) -> None:
        """An ordered read waits behind the older writes of its lane: they are as urgent as it is."""
        for ahead in ((lane.flying,) if lane.flying else ()) + tuple(lane.line):
            if ahead.ticket < read.ticket:
                self._raise_rank(ahead, read.level, read.rank)
                self._spread_rank(ahead)

    def _raise_rank(self, entry: Entry, level: int, rank: int) -> None:
        key_of = self.ordering.key_of
        if key_of(level, rank) >= key_of(entry.level, entry.rank):
            return
        queued = entry.phase is QUEUED
        sheddable = entry.call.sheddable and not entry.phase.flying
        if queued:
            self.ordering.remove(entry)
        if sheddable:
            self.admission.sheddables.remove(entry)
        entry.level, entry.rank = level, rank
        if queued:
            self._push(entry)
        elif waits(entry):
            self.budget.wait(entry, key_of(level, rank))
        if sheddable:
            self._offer(entry)

    def _offer(self, entry: Entry) -> None:
        """A waiting sheddable call that nobody else wants may be shed."""
        if entry.call.prerequisite is None and (entry.more is None or entry.more.handles is None):
            self.admission.sheddables.add(entry)

    # -- seats, and what holds calls back -----------------------------------------------------------------------------

    def _give_seat(self, entry: Entry) -> None:
        flow, group = entry.flow, entry.group
        self.seats.taken -= 1
        # However a probe ends, by now it has said what it had to say, and nobody waits for it any more (law L19).
        probed = bool(self.breakers.table) and self.breakers.landed(flow.name, group.name, entry)
        if flow.limit is not None:
            flow.in_flight -= 1
        if probed or flow.limit is not None:
            self._unblock(flow)
        if group.tally is not None:
            group.tally.seated += entry.started
        if group.limit is not None:
            group.in_flight -= 1
            self.ordering.refresh_group(group)

    def _calm(self) -> None:
        free = self.rate is None and not self.breakers.table and not self.holds and not self.budget.waiting
        self.calm = free and self.closed is None and self.seats.taken <= self.seats.limit

    def _earn(self) -> None:
        """A call has succeeded: what seats and retries gain by that. Called before its seat is given back."""
        seats, budget = self.seats, self.budget
        seats.succeeded()
        budget.earn()
        self.earning = seats.limit < seats.maximum or not budget.full

    def _unblock(self, flow: Flow) -> None:
        for queue in flow.queues:
            self.ordering.refresh(queue, flow.full or self.breakers.blocks(flow.name, queue.band.group.name))
