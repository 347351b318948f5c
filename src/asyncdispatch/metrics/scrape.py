"""One scrape: every metric filled from a dispatcher, at one moment, on its event loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.samples import Exemplar

from asyncdispatch._core.admission import Pressure
from asyncdispatch._core.metering import OTHER, RESULTS, SUCCESS, Attempts, Tally
from asyncdispatch._core.states import SECOND, SUCCEEDED, WAITING, CallState
from asyncdispatch.metrics.families import DURATION_BOUNDS, FAMILIES, WAIT_BOUNDS
from asyncdispatch.metrics.labels import warn_of_overflow
from asyncdispatch.metrics.reading import read
from asyncdispatch.rollout.judging import GuardState
from asyncdispatch.rollout.policy import SIGNALS
from asyncdispatch.statistics import Mode

if TYPE_CHECKING:
    from asyncdispatch.metrics.collector import DispatcherMetrics

__all__ = ["Scrape", "empty"]

RECENT = 300 * SECOND
"""An exemplar is of the last five minutes."""

Example = tuple[int, int, int]
"""Of an attempt: the time it took, its ticket, and when it ended."""


def empty(name: str) -> Metric:
    """A metric without samples."""
    family = FAMILIES[name]
    return Metric(family.full_name.removesuffix("_total"), family.what, family.kind)


class Scrape:
    """Fills the metrics one after another."""

    def __init__(self, metrics: DispatcherMetrics) -> None:
        dispatcher = metrics.dispatcher
        self._metrics = metrics
        self._dispatcher = dispatcher
        self._core = dispatcher._core
        self._now = dispatcher._now()
        self._reading = read(self._core, self._now)
        self._tallies = metrics.meter.tallies
        self._levels = dispatcher.config.levels.names
        names = [flow for _, flow in self._reading.waiting]
        names += self._reading.flying_by_flow
        self._flow_names = metrics.flows.shown(list(dict.fromkeys(names)))
        self._filled = {name: empty(name) for name in FAMILIES}

    def all(self) -> dict[str, Metric]:
        """By name, without the prefix."""
        self._attempts()
        self._calls()
        self._waiting()
        self._flying()
        self._holding()
        self._health()
        self._guarding()
        self._handed_in()
        return self._filled

    def _add(self, name: str, value: float, *labels: str) -> None:
        family = FAMILIES[name]
        self._filled[name].add_sample(family.full_name, dict(zip(family.labels, labels, strict=True)), value)

    def _one_of(self, name: str, values: Iterable[str], now: str) -> None:
        for value in values:
            self._add(name, value == now, value)

    def _sum(self, name: str, counts: Iterable[tuple[tuple[str, ...], float]]) -> None:
        """Samples whose labels may be equal, as those of names beyond the bound are."""
        found: dict[tuple[str, ...], float] = {}
        for labels, count in counts:
            found[labels] = found.get(labels, 0) + count
        for labels, count in found.items():
            self._add(name, count, *labels)

    # -- attempts and calls -----------------------------------------------------------------------------------------

    def _attempts(self) -> None:
        for tally in self._tallies.values():
            for result in RESULTS:
                attempts = tally.attempts[result]
                counts, total = attempts.counts, attempts.total
                if result == SUCCESS:
                    counts = [a + b for a, b in zip(counts, tally.quick, strict=True)]
                    total += tally.quick_total(self._reading.flying_since[tally.name])
                count = sum(counts)
                if count:
                    self._add("async_api_call_execution_total", count, tally.name, result)
                    labels = {"call_type": tally.name, "result": result}
                    bounds = [(n, 2**n / 1_000) for n in DURATION_BOUNDS]
                    name = "async_api_call_execution_duration_seconds"
                    self._buckets(name, labels, counts, bounds, self._example(attempts))
                    for end, value in (("_count", count), ("_sum", total / SECOND)):
                        self._filled[name].add_sample(FAMILIES[name].full_name + end, labels, value)
        for level, waits in zip(self._levels, self._metrics.meter.waits, strict=True):
            bounds = [(n, 2**n / SECOND) for n in WAIT_BOUNDS]
            self._buckets("queue_wait_seconds", {"level": level}, waits, bounds, None)

    def _example(self, attempts: Attempts) -> Example | None:
        if attempts.longest is not None and self._now - attempts.longest[2] > RECENT:
            attempts.longest = None
        return attempts.longest

    def _buckets(
        self,
        name: str,
        labels: Mapping[str, str],
        counts: Sequence[int],
        bounds: Iterable[tuple[int, float]],
        example: Example | None,
    ) -> None:
        """`bounds`: of a bucket its number in `counts`, and the seconds that it ends at."""
        metric, full_name = self._filled[name], FAMILIES[name].full_name + "_bucket"
        took, before = (math.nan, 0.0) if example is None else (example[0] / SECOND, -1.0)
        for number, bound in (*bounds, (len(counts), math.inf)):
            exemplar = None
            if example is not None and before <= took < bound:
                exemplar = Exemplar({"ticket": str(example[1])}, took)
            before = bound
            value = sum(counts[: number + 1])
            end = "+Inf" if bound == math.inf else repr(bound)
            metric.add_sample(full_name, {**labels, "le": end}, value, exemplar=exemplar)

    def _calls(self) -> None:
        core, metrics = self._core, self._metrics
        self._add("accepted_calls_total", core.admission.tickets)
        for reason, count in metrics.refusals.items():
            self._add("refused_calls_total", count, reason)
        self._add("duplicate_calls_total", core.admission.joins, "joined")
        self._add("duplicate_calls_total", core.remembered, "remembered")
        self._add("merged_calls_total", core.merges)
        for outcome, count in self._dispatcher._totals.scheduling_retries.items():
            self._add("scheduling_retries_total", count, outcome)
        for tally in self._tallies.values():
            self._outcomes(tally)
            self._add("ambiguous_calls_total", tally.ambiguous, tally.name)
            self._add("late_successes_total", tally.late, tally.name)
            self._add("breaker_openings_total", tally.openings, tally.name)
            for verdict, count in tally.retries.items():
                self._add("retries_total", count, tally.name, verdict)
            for answer, count in tally.reconciles.items():
                self._add("reconciles_total", count, tally.name, answer)

    def _outcomes(self, tally: Tally) -> None:
        outcomes: dict[tuple[CallState, str], int] = {(SUCCEEDED, ""): sum(tally.quick)}
        for key, count in tally.outcomes.items():
            outcomes[key] = outcomes.get(key, 0) + count
        for (state, reason), count in outcomes.items():
            self._add("calls_total", count, tally.name, state.value, reason)

    # -- waiting and flying -----------------------------------------------------------------------------------------

    def _waiting(self) -> None:
        reading, admission, levels = self._reading, self._core.admission, self._levels
        for name in self._tallies:
            self._add("pending_async_api_calls", reading.waiting_by_type.get(name, 0), name)
        self._sum(
            "queue_depth",
            (((levels[level], self._flow_names[flow]), n) for (level, flow), n in reading.waiting.items()),
        )
        for state in WAITING:
            self._add("waiting_calls", reading.states.get(state.value, 0), state.value)
        for number, level in enumerate(levels):
            self._add("oldest_wait_seconds", reading.oldest_wait.get(number, 0.0), level)
        self._add("depth", admission.depth)
        self._add("capacity", admission.total)
        self._add("joined_calls", admission.joined)
        self._one_of("pressure", (pressure.value for pressure in Pressure), admission.pressure.value)

    def _flying(self) -> None:
        core, names = self._core, self._flow_names
        for name in self._tallies:
            self._add("in_flight", self._reading.flying[name], name)
        self._sum("flow_in_flight", (((names[flow],), count) for flow, count in self._reading.flying_by_flow.items()))
        self._add("oldest_in_flight_seconds", self._reading.oldest_flight)
        self._add("seats", core.seats.limit)
        self._add("seats_maximum", core.seats.maximum)
        for name, policy in core.config.call_types.items():
            if policy.max_in_flight is not None:
                self._add("call_type_seats", policy.max_in_flight, name)
        for name, quota in core.config.flows.items():
            if quota.max_in_flight is not None:
                self._add("flow_seats", quota.max_in_flight, name)

    # -- what holds calls back, and health --------------------------------------------------------------------------

    def _holding(self) -> None:
        core = self._core
        self._add("retry_budget", core.budget.at(self._now))
        self._add("retry_budget_waiting_calls", self._reading.budget_waiting)
        blocked = dict.fromkeys(self._tallies, 0)
        for (_, call_type), breaker in core.breakers.table.items():
            group = core.groups.get(call_type)
            name = OTHER if group is None or group.tally is None else group.tally.name
            blocked[name] = blocked.get(name, 0) + breaker.blocks
        for name, count in blocked.items():
            self._add("open_breakers", count, name)
        since = min((hold.since for hold in core.holds.values()), default=self._now)
        self._add("unauthenticated_seconds", (self._now - since) / SECOND)

    def _health(self) -> None:
        dispatcher, core, metrics = self._dispatcher, self._core, self._metrics
        up = hasattr(dispatcher, "_loop") and not dispatcher._state
        self._add("up", up)
        self._add("unobserved_writes", core.objects.count)
        self._add("contexts", len(core.epochs.table))
        last = dispatcher._last_settled
        if last is not None:
            self._add("last_completion_age_seconds", max(0, self._now - last) / SECOND)
        self._add("event_loop_blocked_total", dispatcher._totals.blocked)
        self._add("observer_errors_total", dispatcher._totals.observer_errors)
        self._add("label_overflow_total", metrics.flows.overflows, "flow")
        self._add("label_overflow_total", metrics.meter.overflows, "call_type")
        if metrics.meter.overflowed is not None and not metrics.warned:
            metrics.warned = True
            warn_of_overflow("call_type", metrics.meter.overflowed)
        self._one_of("mode", (mode.value for mode in Mode), dispatcher.mode.value)
        for mode, count in metrics.modes.items():
            self._add("mode_changes_total", count, mode.value)

    # -- what is there if it was given ------------------------------------------------------------------------------

    def _guarding(self) -> None:
        guard = self._metrics.guard
        if guard is None:
            return
        report = guard.report()
        self._one_of("guard_state", (state.value for state in GuardState), report.state.value)
        for signal in report.signals:
            if signal.value is not None:
                self._add("guard_signal", signal.value, signal.name)
            if signal.limit is not None:
                self._add("guard_limit", signal.limit, signal.name)
        for reason in SIGNALS:  # all of them from the start, so that the first rollback is seen as a change
            self._add("rollbacks_total", guard.rollback_reasons.get(reason, 0), reason)

    def _handed_in(self) -> None:
        for name, lease in self._metrics.leases.items():
            told = lease.statistics()
            valid = told.valid_for or 0.0
            self._add("lease_leader", valid > 0, name)
            self._add("lease_valid_seconds", max(0.0, valid), name)
            self._add("lease_terms_total", told.terms, name)
            self._add("lease_request_failures_total", told.failures, name)
        for name, reflector in self._metrics.reflectors.items():
            seen = reflector.statistics()
            self._add("reflector_objects", seen.objects, name)
            self._add("reflector_stale_seconds", seen.stale_for, name)
            self._add("reflector_failures", seen.failures, name)
            self._add("reflector_lists_total", seen.lists, name)
            self._add("reflector_events_total", seen.events, name)
            self._add("reflector_drifts_total", seen.drifts, name)
