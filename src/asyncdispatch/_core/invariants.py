"""What must hold between any two steps, each check with the number of its law. For tests; costs O(everything)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from asyncdispatch._core.lanes import Lane
from asyncdispatch._core.ordering import Older
from asyncdispatch._core.states import (
    BACKOFF,
    DELAYED,
    HELD,
    LINE,
    NEVER,
    QUEUED,
    READ,
    REQUIREMENTS,
    Entry,
    InvariantError,
)

if TYPE_CHECKING:
    from collections.abc import Sized

    from asyncdispatch._core.machine import Machine


def check_invariants(core: Machine, now: int) -> None:
    """Raise `InvariantError`, naming the law, if the machine contradicts itself."""
    entries = core.executions()
    for check in (_outcomes, _lanes, _seats, _capacity, _limits, _order, _joining, _ranks, _timers, _contexts, _tables):
        check(core, entries, now)


def _require(good: bool, law: str, what: str, entry: Entry | None = None) -> None:
    if not good:
        where = f" (call {entry.ticket}, {entry.phase.value})" if entry is not None else ""
        raise InvariantError(f"{law}: {what}{where}")


def _outcomes(core: Machine, entries: list[Entry], now: int) -> None:
    for entry in entries:
        _require(not entry.phase.terminal, "L1", "a live execution has a terminal phase", entry)
        for handle in core.living(entry):
            _require(not handle.done(), "L1", "a living handle has an outcome already", handle)
        if entry.more is not None and entry.more.handles is not None:
            wanted = entry.more.handles or entry.more.leavers or entry.more.own is not None
            _require(bool(wanted), "L1", "an execution that nobody wants", entry)


def _lanes(core: Machine, entries: list[Entry], now: int) -> None:
    flying: dict[str, int] = {}
    for entry in entries:
        if entry.phase.flying and entry.call.effect is not READ:
            name = core.lane_key(entry)
            flying[name] = flying.get(name, 0) + 1
            _require(flying[name] == 1, "L2", f"two writes of {name} are in flight", entry)
    for key, found in core.lanes.table.items():
        if not isinstance(found, Lane):
            _require(core.lane_key(found) == key, "L2", "an entry in another's lane", found)
            continue
        lane = found
        _require(len(lane) > 0, "L19", f"lane {key} is empty")
        if lane.flying is not None:
            _require(lane.flying.phase.flying, "L2", "the lane's flying write does not fly", lane.flying)
        for index, entry in enumerate(lane.line):
            parked = entry.phase in (BACKOFF, HELD)
            head = index == 0 and lane.flying is None
            expected = QUEUED if head else LINE
            _require(parked or entry.phase is expected, "L12", f"place {index} in line does not fit", entry)
        for entry in lane.outside.values():
            outside = entry.phase in (DELAYED, REQUIREMENTS)
            _require(outside, "L12", "outside of the line but not waiting for time or requirements", entry)


def _seats(core: Machine, entries: list[Entry], now: int) -> None:
    flying = [entry for entry in entries if entry.phase.flying]
    _require(core.seats.taken == len(flying), "L3", f"{core.seats.taken} seats taken, {len(flying)} in flight")
    all_earned = core.seats.limit >= core.seats.maximum and core.budget.full
    _require(core.earning or all_earned, "L3", "successes are not counted, but seats or retries are lacking")
    for flow in core.flows.values():
        count = sum(entry.flow is flow for entry in flying)
        if flow.limit is not None:
            _require(flow.in_flight == count, "L3", f"flow {flow.name} counts {flow.in_flight}, has {count} in flight")
            _require(count <= flow.limit, "L3", f"flow {flow.name} is over its seats")
    for group in core.groups.values():
        count = sum(entry.group is group for entry in flying)
        if group.limit is not None:
            _require(group.in_flight == count, "L3", f"type {group.name} counts {group.in_flight}, has {count}")
            _require(count <= group.limit, "L3", f"type {group.name} is over its seats")


def _capacity(core: Machine, entries: list[Entry], now: int) -> None:
    handles = _unsettled(core, entries)
    own = [handle for handle in handles if handle.more is None or handle.more.lead is None]
    admission = core.admission
    _require(admission.depth == len(own), "L4", f"depth is {admission.depth}, {len(own)} handles are without outcome")
    _require(admission.depth <= admission.total, "L4", "over capacity")
    joined = len(handles) - len(own)
    _require(admission.joined == joined, "L4", f"joined is {admission.joined}, there are {joined}")
    _require(joined <= core.config.max_joined, "L4", "over max_joined")
    for flow in core.flows.values():
        count = sum(handle.flow is flow for handle in own) if flow.max_queued is not None else 0
        _require(flow.accepted == count, "L4", f"flow {flow.name} counts {flow.accepted}, has {count} accepted")
    for key, lane in core.lanes.table.items():
        if isinstance(lane, Lane):
            never_started = sum(not entry.attempts for entry in lane.entries())
            _require(never_started <= core.config.lane_capacity, "L4", f"lane {key} is over its capacity")


def _unsettled(core: Machine, entries: list[Entry]) -> list[Entry]:
    found: list[Entry] = []
    for entry in entries:
        found.extend(core.living(entry))
        if entry.more is not None:
            found.extend(entry.more.leavers)
    return found


def _limits(core: Machine, entries: list[Entry], now: int) -> None:
    for entry in entries:
        for handle in core.living(entry):
            late = now - core.handle_limit(handle)
            _require(late < 100_000_000, "L5", f"still living {late} ns after its limit", handle)


def _order(core: Machine, entries: list[Entry], now: int) -> None:
    queued = [entry for entry in entries if entry.phase is QUEUED]
    standing = {entry.ticket: entry for entry in core.ordering.entries()}
    _require(len(standing) == len(queued) == len(core.ordering), "L6", "queued calls and the queues disagree")
    for entry in queued:
        _require(entry.ticket in standing, "L6", "queued, but in no queue", entry)
        at = entry.at
        queue = at.queue if isinstance(at, Older) else at
        assert queue is not None
        right = queue.flow is entry.flow and queue.band.level == entry.level and queue.band.group is entry.group
        _require(right, "L6", "stands in another's queue", entry)
    for band in core.ordering.bands():
        for queue in band.queues:
            oldest = min(entry.rank for entry in queue.entries())
            blocked = queue.flow.full or core.breakers.blocks(queue.flow.name, band.group.name)
            _require(queue.blocked == blocked, "L3", f"queue of {queue.flow.name} is blocked wrongly")
            expected = NEVER if blocked else oldest
            _require(band.heads[queue.slot] == expected, "L6", f"head of {queue.flow.name} is wrong")
            if not blocked:
                ahead = queue.tag - band.service
                _require(0 <= ahead <= queue.flow.increment, "L7", f"tag of {queue.flow.name} drifted by {ahead}")


def _joining(core: Machine, entries: list[Entry], now: int) -> None:
    keyed = [entry for entry in entries if entry.more is not None and entry.more.hash is not None]
    _require(len(core.keys) == len(keyed), "L8", "the index of keys and the executions disagree")
    for entry in entries:
        for handle in core.living(entry):
            _require(handle.lead is entry, "L8", "a handle of another execution", handle)


def _ranks(core: Machine, entries: list[Entry], now: int) -> None:
    key_of = core.ordering.key_of
    for entry in entries:
        mine = key_of(entry.level, entry.rank)
        for handle in core.living(entry):
            own = key_of(core.level_of(handle.call.priority), handle.accepted)
            _require(mine <= own, "L9", "an execution is less urgent than a handle of it", entry)
    for lane in core.lanes.table.values():
        if isinstance(lane, Lane):
            ahead = [*([lane.flying] if lane.flying else []), *lane.line]
            for before, behind in pairwise(ahead):
                good = key_of(before.level, before.rank) <= key_of(behind.level, behind.rank)
                _require(good, "L9", "less urgent than a call behind it in line", before)


def _timers(core: Machine, entries: list[Entry], now: int) -> None:
    _require(
        len(core.deadlines) == sum(len(core.living(entry)) for entry in entries), "L19", "a handle lacks a deadline"
    )
    for entry in entries:
        more = entry.more
        if entry.phase is HELD:
            _require(more is not None and more.timer != 0, "L19", "held without a timer", entry)
        if entry.phase is BACKOFF:
            assert more is not None
            scoped = more.later is not None and entry.ticket in more.later.due
            _require(more.timer != 0 or more.budgeted or scoped, "L19", "in backoff without a timer", entry)
    if core.budget.waiting:
        _require(core.budget.timer != 0, "L19", "retries wait for the budget without a timer")
    for (flow, call_type), breaker in core.breakers.table.items():
        waits = breaker.probe is not None and not breaker.probe.phase.flying
        _require(not waits, "L19", f"the breaker of {flow} and {call_type} waits for a probe that does not fly")
    for scope in core.laters.values():
        stuck = scope.due and not scope.awake
        _require(not stuck, "L19", f"scope {scope.scope!r} has due calls and tries none")
    for hold in core.holds.values():
        _require(hold.timer != 0 or hold.probe is not None, "L19", f"scope {hold.scope!r} is held without a probe")


def _contexts(core: Machine, entries: list[Entry], now: int) -> None:
    for entry in entries:
        if entry.phase is QUEUED:
            able = any(core.may_start(handle, now) for handle in core.living(entry))
            _require(able, "L21", "queued before its time or its requirements", entry)
        for handle in core.living(entry):
            if handle.more is not None and handle.more.epoch is not None:
                _require(handle.more.epoch.context.ended is None, "L11", "living in an ended context", handle)
                _require(handle.ticket in handle.more.epoch.handles, "L19", "its context does not know it", handle)


def _tables(core: Machine, entries: list[Entry], now: int) -> None:
    if entries:
        return
    tables: dict[str, Sized] = {
        "lanes": core.lanes.table,
        "keys": core.keys,
        "dependents": core.dependents,
        "laters": core.laters,
        "deadlines": core.deadlines,
    }
    for name, table in tables.items():
        _require(not len(table), "L19", f"nothing is live, but {name} holds {len(table)}")
    _require(not len(core.admission.sheddables), "L19", "nothing is live, but sheddables are held")
    _require(
        core.objects.count == sum(len(k.writes) for k in core.objects.table.values()), "L18", "own writes miscounted"
    )
