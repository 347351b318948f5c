"""What a dispatcher holds at this moment, as plain JSON: what waits and why, what flies, what would start next.

`dump` is a pure function of the core and the time. It names objects and calls and shows none of their bodies. Every
list is bounded: a section is `{"count": all there are, "left_out": how many of them are not listed, "rows": [...]}`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from heapq import nlargest, nsmallest
from typing import TYPE_CHECKING, Any, TypeVar

from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.states import PLACE_SHIFT, SECOND, STOPPING, CallState, Entry
from asyncdispatch._reasons import clean, describe, explain, label, reason_of
from asyncdispatch._upcoming import upcoming
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.rollout.gates import ASYNC_API_CALLS

if TYPE_CHECKING:
    from asyncdispatch._core.epochs import Epoch
    from asyncdispatch._core.machine import Machine
    from asyncdispatch._core.ordering import Group
    from asyncdispatch._core.overlay import OwnWrite
    from asyncdispatch._core.seats import Flow
    from asyncdispatch.dispatcher import Dispatcher
    from asyncdispatch.rollout.rules import Rollout

__all__ = ["SCHEMA_VERSION", "dump", "dump_dispatcher"]

SCHEMA_VERSION = 1
"""Raised when a field of a dump changes its meaning or goes away; fields may be added without."""

RUNNING = "running"

MAX_NEXT = 20
"""How many of those that would start next are named at most."""

MAX_REQUIREMENTS = 20

MAX_RULES = 20

T = TypeVar("T")
Json = dict[str, Any]


def dump_dispatcher(dispatcher: Dispatcher, limit: int) -> Json:
    """`Dispatcher.dump`: the core's dump, and what the shell around it knows. Works in every state."""
    state, reason = state_of(dispatcher)
    if state == RUNNING:
        dispatcher._check_thread()
    statistics = dispatcher.statistics()
    rollout = dispatcher.rollout
    shell = {
        "taken": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "state": state,
        "reason": clean(reason),
        "mode": dispatcher.mode.value,
        "rollout": None if rollout is None else _rollout(rollout),
        "waiting_for_room": len(dispatcher._room),
        "inbox": len(dispatcher._inbox),
        "workers": len(dispatcher._pool.tasks) if hasattr(dispatcher, "_pool") else 0,
        "totals": {
            "accepted": statistics.accepted,
            "refused": statistics.refused,
            "joined": statistics.joined_total,
            "merged": statistics.merged_total,
            "attempts": statistics.attempts,
            "retried": statistics.retried,
            "stale": statistics.stale,
            "ambiguous": statistics.ambiguous,
            "observer_errors": statistics.observer_errors,
            "blocked": statistics.blocked,
            "outcomes": dict(statistics.outcomes),
        },
        "last_completion_seconds": _rounded(statistics.last_completion_age),
    }
    core = dump(dispatcher._core, dispatcher._now(), limit=limit)
    return {"version": core.pop("version"), **shell, **core}


def state_of(dispatcher: Dispatcher) -> tuple[str, str]:
    """`not entered yet`, `running`, `draining for good` or `closed`; and the reason for the last."""
    state, _, reason = dispatcher._state.partition(": ")
    return state or RUNNING, reason


def _rollout(rollout: Rollout) -> Json:
    gates = rollout.gates
    rules = [{"name": clean(rule.name), "percentage": rule.percentage} for rule in rollout.rules[:MAX_RULES]]
    return {"gate": gates is None or gates[ASYNC_API_CALLS], "rules": rules}


def dump(core: Machine, now: int, *, limit: int = 100) -> Json:
    """The state of a core at `now` (ns of its clock); at most `limit` rows in each section.

    Raises `ConfigurationError` for a limit that is not a whole number from 0 on. Costs a look at every live call.
    """
    if type(limit) is not int or limit < 0:
        raise ConfigurationError("limit", limit, "must be a whole number of rows, from 0 on")
    waiting: list[Entry] = []
    flying: list[Entry] = []
    for entry in core.executions():
        (flying if entry.phase.flying else waiting).append(entry)
    return {
        "version": SCHEMA_VERSION,
        "clock": now / SECOND,
        "pressure": core.admission.pressure.value,
        "capacity": _capacity(core),
        "seats": {"taken": core.seats.taken, "limit": core.seats.limit, "maximum": core.seats.maximum},
        "rate": _rate(core, now),
        "retry_budget": {
            "available": round(core.budget.at(now), 3),
            "burst": core.config.retry_budget.burst,
            "waiting": sum(1 for _ in core.budget.waiters()),
        },
        "levels": _levels(core, waiting, flying),
        "reasons": _reasons(core, waiting, now),
        "next": [_call(core, entry, now) for entry in upcoming(core, now, min(limit, MAX_NEXT))],
        "in_flight": _section(flying, limit, lambda e: e.started, lambda e: _flight(core, e, now)),
        "waiting": _section(waiting, limit, lambda e: e.accepted, lambda e: _wait(core, e, now)),
        "flows": _flows(core, waiting, flying, limit),
        "types": _types(core, waiting, flying, limit),
        "held": _section(core.holds.values(), limit, lambda h: h.since, lambda h: _hold(h, now)),
        "later": _section(core.laters.values(), limit, lambda s: -len(s.members), _later),
        "breakers": _section(
            core.breakers.table.items(), limit, lambda item: -item[1].failures, lambda item: _breaker(*item, now)
        ),
        "contexts": _section(core.epochs.table.values(), limit, lambda e: e.context.epoch, lambda e: _context(e, now)),
        "own_writes": _own_writes(core, limit, now),
    }


# -- the whole --------------------------------------------------------------------------------------------------------


def _section(items: Iterable[T], limit: int, key: Callable[[T], Any], row: Callable[[T], Json]) -> Json:
    """The first `limit` of the items by `key`, and how many there are."""
    listed: Sequence[T] = list(items)
    shown = nsmallest(limit, listed, key=key)
    return {"count": len(listed), "left_out": len(listed) - len(shown), "rows": [row(item) for item in shown]}


def _capacity(core: Machine) -> Json:
    admission = core.admission
    return {
        "depth": admission.depth,
        "ordinary": admission.ordinary,
        "total": admission.total,
        "joined": admission.joined,
        "max_joined": core.config.max_joined,
    }


def _rate(core: Machine, now: int) -> Json | None:
    limit = core.config.rate
    if limit is None or core.rate is None:
        return None
    return {"qps": limit.qps, "burst": limit.burst, "next_in": _seconds(core.rate.free_at(now) - now)}


def _levels(core: Machine, waiting: Iterable[Entry], flying: Iterable[Entry]) -> list[Json]:
    """By level, the most urgent first: how many calls in which state."""
    counts: list[dict[CallState, int]] = [defaultdict(int) for _ in range(core.levels)]
    for entries in (waiting, flying):
        for entry in entries:
            counts[entry.level][entry.phase] += 1
    names = core.config.levels.names
    rows = [
        {"name": clean(name), "states": {state.value: number for state, number in states.items()}}
        for name, states in zip(names, counts, strict=True)
    ]
    return rows[::-1]


def _reasons(core: Machine, waiting: Iterable[Entry], now: int) -> list[Json]:
    """Why calls wait, the most frequent first, and for how long the oldest of each has."""
    counts: dict[str, int] = defaultdict(int)
    oldest: dict[str, int] = {}
    for entry in waiting:
        reason = reason_of(core, entry, now)
        counts[reason] += 1
        oldest[reason] = min(oldest.get(reason, entry.accepted), entry.accepted)
    order = nlargest(len(counts), counts, key=lambda reason: counts[reason])
    return [
        {"reason": each, "count": counts[each], "oldest_seconds": _seconds(now - (oldest[each] >> PLACE_SHIFT))}
        for each in order
    ]


# -- calls ------------------------------------------------------------------------------------------------------------


def _call(core: Machine, entry: Entry, now: int) -> Json:
    call = core.executable(entry)
    return {
        "ticket": entry.ticket,
        "object": clean(str(call.target)),
        "type": clean(entry.call.call_type),
        "flow": clean(entry.flow.name),
        "level": clean(core.config.levels.names[entry.level]),
        "effect": call.effect.value,
        "state": entry.phase.value,
        "attempts": entry.attempts,
        "handles": len(core.living(entry)),
        "since_seconds": _seconds(now - (entry.accepted >> PLACE_SHIFT)),
        "deadline_in": _seconds(core.limit(entry) - now),
    }


def _wait(core: Machine, entry: Entry, now: int) -> Json:
    reason = reason_of(core, entry, now)
    return {**_call(core, entry, now), "reason": reason, "why": explain(core, entry, reason, now)}


def _flight(core: Machine, entry: Entry, now: int) -> Json:
    more = entry.more
    error = None if more is None or more.error is None else describe(more.error)
    return {
        **_call(core, entry, now),
        "doing": "reconcile" if more is not None and more.reconciling else "execute",
        "stopping": entry.phase is STOPPING,
        "in_flight_seconds": _seconds(now - entry.started),
        "cut_off_in": _seconds(min(core.limit(entry), entry.started + nanoseconds(core.config.attempt_timeout)) - now),
        "last_error": error,
    }


# -- what calls share -------------------------------------------------------------------------------------------------


def _flows(core: Machine, waiting: Iterable[Entry], flying: Iterable[Entry], limit: int) -> Json:
    def more(flow: Flow) -> Json:
        quota = core.config.flows.get(flow.name)
        return {"max_queued": flow.max_queued, "weight": 1.0 if quota is None else quota.weight}

    waits, flies = (Counter(entry.flow.name for entry in entries) for entries in (waiting, flying))
    return _shared(core.flows.values(), waits, flies, limit, more)


def _types(core: Machine, waiting: Iterable[Entry], flying: Iterable[Entry], limit: int) -> Json:
    def more(group: Group) -> Json:
        policy = core.config.call_types.get(group.name)
        supersedes = [] if policy is None else [clean(name) for name in policy.supersedes]
        return {"usual_seconds": _seconds(group.usual), "supersedes": supersedes}

    waits, flies = (Counter(entry.group.name for entry in entries) for entries in (waiting, flying))
    return _shared(core.groups.values(), waits, flies, limit, more)


def _shared(
    known: Iterable[Any], waiting: Counter[str], flying: Counter[str], limit: int, more: Callable[[Any], Json]
) -> Json:
    """Flows, or call types, that have something waiting or in flight; those for which most wait come first."""

    def row(each: Any) -> Json:
        return {
            "name": clean(each.name),
            "waiting": waiting[each.name],
            "in_flight": flying[each.name],
            "max_in_flight": each.limit,
            **more(each),
        }

    live = [each for each in known if flying[each.name] or waiting[each.name]]
    return _section(live, limit, lambda each: (-waiting[each.name], each.name), row)


def _hold(hold: Any, now: int) -> Json:
    return {
        "scope": label(hold.scope),
        "since_seconds": _seconds(now - hold.since),
        "waiting": len(hold.waiting),
        "probe": None if hold.probe is None else hold.probe.ticket,
        "error": None if hold.error is None else describe(hold.error),
    }


def _later(scope: Any) -> Json:
    return {
        "scope": label(scope.scope),
        "waiting": len(scope.members) - len(scope.awake),
        "awake": len(scope.awake),
        "window": scope.window,
    }


def _breaker(key: tuple[str, str], breaker: Any, now: int) -> Json:
    state = "open" if breaker.open_until else "half_open" if breaker.half_open else "closed"
    return {
        "flow": clean(key[0]),
        "type": clean(key[1]),
        "state": state,
        "failures": breaker.failures,
        "open_for": _seconds(breaker.open_until - now) if breaker.open_until else 0.0,
        "probe": None if breaker.probe is None else breaker.probe.ticket,
    }


def _context(epoch: Epoch, now: int) -> Json:
    context = epoch.context
    ends_in = epoch.limit - now
    named = list(context.requirements.items())
    return {
        "epoch": context.epoch,
        "object": clean(str(context.ref)),
        "parent": None if context.parent is None else context.parent.epoch,
        "since_seconds": _seconds(now - nanoseconds(context.began)),
        "valid_for": None if ends_in > nanoseconds(1e9) else _seconds(ends_in),
        "calls": len(epoch.handles),
        "requirements": [
            {"name": clean(name), "state": _requirement(value)} for name, value in named[:MAX_REQUIREMENTS]
        ],
        "requirements_left_out": max(0, len(named) - MAX_REQUIREMENTS),
    }


def _requirement(value: BaseException | bool | None) -> str:
    if isinstance(value, BaseException):
        return f"failed: {describe(value)}"
    return "confirmed" if value is True else "missing"


def _own_writes(core: Machine, limit: int, now: int) -> Json:
    def row(write: OwnWrite) -> Json:
        return {
            "ticket": write.ticket,
            "object": clean(str(write.call.target)),
            "type": clean(write.call.call_type),
            "since_seconds": _seconds(now - write.since),
            "version": write.version,
        }

    if not core.objects.count:
        return {"count": 0, "left_out": 0, "rows": []}
    writes = [write for known in core.objects.table.values() for write in known.writes]
    return _section(writes, limit, lambda write: write.number, row)


def _seconds(ns: int) -> float:
    return round(max(ns, 0) / SECOND, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
