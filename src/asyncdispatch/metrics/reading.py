"""What a dispatcher's core knows at one moment, added up. Nothing here changes anything."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asyncdispatch._core.lanes import Lane
from asyncdispatch._core.states import NEVER, PLACE_SHIFT, QUEUED, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncdispatch._core.ordering import FlowQueue, Group
    from asyncdispatch._core.short import DispatchCore
    from asyncdispatch._core.states import Entry

__all__ = ["Reading", "read"]


@dataclass(slots=True)
class Reading:
    """Counts of what waits and flies; times are seconds. Keys are the core's own names, which may be many."""

    waiting: dict[tuple[int, str], int] = field(default_factory=dict)  # by level and flow
    waiting_by_type: dict[str, int] = field(default_factory=dict)  # by the name of the type's tally
    states: dict[str, int] = field(default_factory=dict)
    oldest_wait: dict[int, float] = field(default_factory=dict)  # by level
    flying: Counter[str] = field(default_factory=Counter)  # by tally
    flying_by_flow: Counter[str] = field(default_factory=Counter)
    flying_since: Counter[str] = field(default_factory=Counter)  # by tally: the sum of when attempts began, ns
    oldest_flight: float = 0.0
    budget_waiting: int = 0


def read(core: DispatchCore, now: int) -> Reading:
    """Add it up. Ready calls are counted by queue, so that a hundred thousand of them hold nobody up."""
    reading = Reading()
    oldest: dict[int, int] = {}
    for band in core.ordering.bands():
        for queue in band.queues:
            _count(reading, band.level, queue.flow.name, _tally_of(band.group), QUEUED.value, queue.live)
            oldest[band.level] = min(oldest.get(band.level, now), _oldest(queue) >> PLACE_SHIFT)
    began = now
    for entry in _elsewhere(core):
        if not entry.phase.flying:
            _count(reading, entry.level, entry.flow.name, _tally_of(entry.group), entry.phase.value, 1)
            oldest[entry.level] = min(oldest.get(entry.level, now), entry.rank >> PLACE_SHIFT)
        else:
            name = _tally_of(entry.group)
            reading.flying_since[name] += entry.started
            reading.flying[name] += 1
            reading.flying_by_flow[entry.flow.name] += 1
            began = min(began, entry.started)
    reading.oldest_wait = {level: (now - since) / SECOND for level, since in oldest.items()}
    reading.oldest_flight = (now - began) / SECOND
    reading.budget_waiting = sum(1 for _ in core.budget.waiters())
    return reading


def _count(reading: Reading, level: int, flow: str, call_type: str, state: str, count: int) -> None:
    waiting, types, states = reading.waiting, reading.waiting_by_type, reading.states
    waiting[level, flow] = waiting.get((level, flow), 0) + count
    types[call_type] = types.get(call_type, 0) + count
    states[state] = states.get(state, 0) + count


def _tally_of(group: Group) -> str:
    assert group.tally is not None
    return group.tally.name


def _elsewhere(core: DispatchCore) -> Iterator[Entry]:
    """All executions that are not ready in a queue."""
    for found in core.lanes.table.values():
        if isinstance(found, Lane):
            yield from (entry for entry in found.entries() if entry.phase is not QUEUED)
        elif found.at is None:
            yield found


def _oldest(queue: FlowQueue) -> int:
    """The smallest rank in a queue, leaving the ended ones in it where they are."""
    first = next((entry.rank for entry in queue.fifo if entry.at is queue), NEVER)
    older = (rank for rank, _, entry in queue.heap if entry.at is queue.older and entry.rank == rank)
    return min(first, min(older, default=NEVER))
