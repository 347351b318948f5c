"""What would start next, without starting it: the ordering's own code, run on a small copy of its queues.

Of each queue one call more is copied than was taken from it, so that a look costs the same however many wait.
"""

from __future__ import annotations

from copy import copy
from heapq import merge
from typing import TYPE_CHECKING

from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.lanes import Lane
from asyncdispatch._core.ordering import Group, Ordering
from asyncdispatch._core.states import Entry
from asyncdispatch._reasons import hold_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncdispatch._core.machine import Machine
    from asyncdispatch._core.ordering import FlowQueue
    from asyncdispatch._core.seats import Flow

__all__ = ["upcoming"]


def upcoming(core: Machine, now: int, count: int) -> list[Entry]:
    """The next `count` calls to start, in order, if seats came free one by one and nothing else happened meanwhile.

    A flow or call type that is full starts nothing, and each start takes one of its seats; so does a breaker's probe.
    Calls whose time is over, or whose credentials are held, are left out: they will not start when it is their turn.
    Changes nothing.
    """
    found: list[Entry] = []
    if count < 1:
        return found
    model = _Model(core)
    while len(found) < count and (twin := model.ordering.pick()) is not None:
        model.follow(twin)
        entry: Entry = twin.owner
        if _starts(core, entry, now):
            model.start(twin)
            found.append(entry)
        else:
            model.ordering.remove(twin)
    return found


def _starts(core: Machine, entry: Entry, now: int) -> bool:
    """What the machine checks last, before a start."""
    if core.limit(entry) <= now:
        return False
    if core.holds and (hold := hold_of(core, entry)) is not None and hold.probe is not entry:
        return False
    if core.ordered(entry):
        lane = core.lanes.table.get(core.lane_key(entry))
        return not (isinstance(lane, Lane) and lane.oldest_write(entry.ticket))
    return True


class _Model:
    """Twins of the ready calls, their flows and their types, in an ordering of their own."""

    def __init__(self, core: Machine) -> None:
        self._core = core
        self.ordering = Ordering(core.levels, nanoseconds(core.config.aging))
        self._flows: dict[str, Flow] = {}
        self._groups: dict[str, Group] = {}
        for band in core.ordering.bands():
            for queue in band.queues:
                self._copy(queue)

    def _copy(self, queue: FlowQueue) -> None:
        """The queue with its first call, and its place among the others."""
        flow, group = self._flow(queue.flow), self._group(queue.band.group)
        self._push(_in_order(queue), flow, group, queue.blocked)
        band = group.bands[queue.band.level]
        assert band is not None
        twin = band.named[flow.name]
        band.service, twin.tag = queue.band.service, queue.tag
        if not twin.blocked:
            band.tags[twin.slot] = twin.tag

    def _push(self, rest: Iterator[Entry], flow: Flow, group: Group, blocked: bool) -> None:
        """The next of a queue's calls, which knows the ones behind it."""
        entry = next(rest, None)
        if entry is not None:
            twin = Entry(entry, entry.call, entry.ticket, entry.rank, entry.level, entry.deadline, flow, group)
            twin.value = rest
            self.ordering.push(twin, blocked)

    def follow(self, twin: Entry) -> None:
        """It is about to leave its queue: the one behind it comes first, so that the queue does not run empty."""
        self._push(twin.value, twin.flow, twin.group, False)

    def _flow(self, flow: Flow) -> Flow:
        twin = self._flows.get(flow.name)
        if twin is None:
            twin = self._flows[flow.name] = copy(flow)
            twin.queues = []
        return twin

    def _group(self, group: Group) -> Group:
        twin = self._groups.get(group.name)
        if twin is None:
            twin = self._groups[group.name] = Group(group.name, group.limit, self._core.levels)
            twin.in_flight = group.in_flight
        return twin

    def start(self, twin: Entry) -> None:
        """It leaves its queue, takes a seat of its flow and type, and is the one probe of a half-open breaker."""
        self.ordering.take(twin)
        flow, group = twin.flow, twin.group
        flow.in_flight += 1
        group.in_flight += 1
        breaker = self._core.breakers.table.get((flow.name, group.name))
        probe = breaker is not None and breaker.half_open
        for queue in list(flow.queues):
            if flow.full or (probe and queue.band.group is group):
                self.ordering.refresh(queue, True)
        if group.full:
            self.ordering.refresh_group(group)


def _in_order(queue: FlowQueue) -> Iterator[Entry]:
    """The live calls of a queue, in the order in which they would start."""
    young = (entry for entry in queue.fifo if entry.at is queue)
    if not queue.heap:
        return young
    live = {e.ticket: e for rank, _, e in queue.heap if e.at is queue.older and e.rank == rank}
    return merge(sorted(live.values(), key=_rank), young, key=_rank)


def _rank(entry: Entry) -> int:
    return entry.rank
