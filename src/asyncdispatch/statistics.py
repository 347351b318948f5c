"""What a dispatcher says of itself: frozen counts, and the report of its end."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.states import PLACE_SHIFT, SECOND, CallState

if TYPE_CHECKING:
    from asyncdispatch._core.short import DispatchCore
    from asyncdispatch.handles import CallHandle

__all__ = ["DispatcherStatistics", "DrainReport", "Mode", "Totals"]


class Mode(enum.Enum):
    """How calls are taken: at once; not for the moment; one after another, as if there were no dispatcher."""

    ASYNC = "async"
    DRAINING = "draining"
    SYNC = "sync"


@dataclass(slots=True)
class Totals:
    """What has been counted since the dispatcher was made."""

    refused: int = 0
    ambiguous: int = 0
    observer_errors: int = 0
    blocked: int = 0
    scheduling_retries: Counter[str] = field(default_factory=Counter)
    """What a `Requeue` has put into its queue, by outcome."""


@dataclass(frozen=True, slots=True)
class DispatcherStatistics:
    """Counts at one moment. Seconds are of the event loop's clock; None where there is nothing to tell.

    `waiting` counts executions by state name, `waiting_by_level`, `waiting_by_flow` and `waiting_by_type` all that wait
    together; `in_flight_by_flow` and `in_flight_by_type` those in flight. `depth` is of `capacity`, joiners aside.
    `unobserved` own writes are shown by `observe` and not seen yet. `outcomes` counts handles by outcome. `retried`
    counts attempts of API calls after their first; `scheduling_retries`, what a `Requeue` has put back, by outcome.
    """

    mode: Mode
    depth: int
    capacity: int
    joined: int
    in_flight: int
    seats: int
    waiting: Mapping[str, int]
    waiting_by_level: Mapping[str, int]
    waiting_by_flow: Mapping[str, int]
    waiting_by_type: Mapping[str, int]
    in_flight_by_flow: Mapping[str, int]
    in_flight_by_type: Mapping[str, int]
    oldest_wait: float | None
    last_completion_age: float | None
    outcomes: Mapping[str, int]
    accepted: int
    refused: int
    joined_total: int
    merged_total: int
    attempts: int
    retried: int
    stale: int
    ambiguous: int
    unobserved: int
    open_breakers: tuple[tuple[str, str], ...]
    retry_budget: float
    unauthenticated_since: float | None
    contexts: int
    observer_errors: int
    blocked: int
    scheduling_retries: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How closing went. `may_exist`: ambiguous writes, to be read. `never_started`: nothing of them was sent.

    `not_deleted`: deletes that did not succeed. `still_running`: attempts that ignored being asked to stop.
    """

    reason: str
    seconds: float
    finished: int
    may_exist: tuple[CallHandle[Any], ...]
    never_started: tuple[CallHandle[Any], ...]
    not_deleted: tuple[CallHandle[Any], ...]
    still_running: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """True if everything that was accepted has finished."""
        return not (self.may_exist or self.never_started or self.not_deleted or self.still_running)


def take_statistics(
    core: DispatchCore,
    mode: Mode,
    totals: Totals,
    outcomes: Mapping[CallState, int],
    attempts: int,
    retried: int,
    last_settled: int | None,
    now: int,
) -> DispatcherStatistics:
    names = core.config.levels.names
    states: dict[str, int] = {}
    by_level: dict[str, int] = {}
    by_flow: dict[str, int] = {}
    by_type: dict[str, int] = {}
    flying_by_flow: dict[str, int] = {}
    flying_by_type: dict[str, int] = {}
    oldest = now
    for entry in core.executions():
        if entry.phase.flying:
            _count(flying_by_flow, entry.flow.name)
            _count(flying_by_type, entry.group.name)
            continue
        _count(states, entry.phase.value)
        _count(by_level, names[entry.level])
        _count(by_flow, entry.flow.name)
        _count(by_type, entry.group.name)
        oldest = min(oldest, entry.accepted >> PLACE_SHIFT)
    return DispatcherStatistics(
        mode=mode,
        depth=core.admission.depth,
        capacity=core.admission.total,
        joined=core.admission.joined,
        in_flight=core.seats.taken,
        seats=core.seats.limit,
        waiting=MappingProxyType(states),
        waiting_by_level=MappingProxyType(by_level),
        waiting_by_flow=MappingProxyType(by_flow),
        waiting_by_type=MappingProxyType(by_type),
        in_flight_by_flow=MappingProxyType(flying_by_flow),
        in_flight_by_type=MappingProxyType(flying_by_type),
        oldest_wait=(now - oldest) / SECOND if states else None,
        last_completion_age=None if last_settled is None else (now - last_settled) / SECOND,
        outcomes=MappingProxyType({state.value: count for state, count in outcomes.items()}),
        accepted=core.admission.tickets,
        refused=totals.refused,
        joined_total=core.admission.joins,
        merged_total=core.merges,
        attempts=attempts,
        retried=retried,
        stale=core.stale,
        ambiguous=totals.ambiguous,
        unobserved=core.objects.count,
        open_breakers=tuple(key for key, breaker in core.breakers.table.items() if breaker.blocks),
        retry_budget=core.budget.available,
        unauthenticated_since=min((hold.since / SECOND for hold in core.holds.values()), default=None),
        contexts=len(core.epochs.table),
        observer_errors=totals.observer_errors,
        blocked=totals.blocked,
        scheduling_retries=MappingProxyType(dict(totals.scheduling_retries)),
    )


def _count(table: dict[str, int], key: str) -> None:
    table[key] = table.get(key, 0) + 1
