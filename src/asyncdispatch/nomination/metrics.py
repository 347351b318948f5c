"""Prometheus metrics of a nominator: `Nominator(…, registry=registry)`. Hits and times to bind prove that it works."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from asyncdispatch.config import PriorityLevels
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.metrics.labels import Names
from asyncdispatch.nomination.decisions import NominationOutcome
from asyncdispatch.nomination.states import LIVE, NominationState

__all__ = ["NominationMetrics"]

PREFIX = "asyncdispatch_nomination"
BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, float("inf"))
MAX_VALUES = 20
"""Of algorithm versions, and of scheduler names."""
WHO = ("cluster", "level", "scheduler", "algorithm_version")


class NominationMetrics:
    """What a registry shows of a nominator. Raises `ConfigurationError` if it has metrics of these names already."""

    def __init__(self, registry: CollectorRegistry, cluster: str, levels: PriorityLevels) -> None:
        if not isinstance(registry, CollectorRegistry):
            raise ConfigurationError("registry", registry, "must be a prometheus_client.CollectorRegistry or None")
        self._cluster, self._levels = cluster, levels
        self._schedulers = Names("scheduler", (), MAX_VALUES)
        self._versions = Names("algorithm_version", (), MAX_VALUES)
        try:
            self._make(registry)
        except ValueError as error:
            raise ConfigurationError("registry", registry, f"has metrics of our names already: {error}") from error

    def _make(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, labels: Iterable[str]) -> Counter:
            return Counter(f"{PREFIX}_{name}", what, labels, registry=registry)

        def histogram(name: str, what: str, labels: Iterable[str]) -> Histogram:
            return Histogram(f"{PREFIX}_{name}", what, labels, registry=registry, buckets=BUCKETS)

        def gauge(name: str, what: str, labels: Iterable[str]) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", what, labels, registry=registry)

        self._outcomes = counter("outcomes_total", "Decisions that have ended.", (*WHO, "outcome", "raced"))
        self._failures = counter(
            "inferred_filter_failures_total", "Hints whose node the scheduler did not take after all.", WHO
        )
        self._hinted = histogram("hinted_seconds", "For how long hints stood.", (*WHO, "outcome"))
        self._fallback = histogram("fallback_scheduling_seconds", "From a hint to a binding elsewhere.", WHO)
        self._writes = counter("writes_total", "Writes of the field.", ("cluster", "kind", "result"))
        self._binding = histogram(
            "pending_to_binding_seconds", "From Pending without gates to the binding.", ("cluster", "level", "rollout")
        )
        self._victims = histogram("victim_termination_seconds", "How long preempted Pods take to go.", ("cluster",))
        self._live = gauge("live", "Decisions without an outcome.", ("cluster", "state"))
        self._oldest = gauge("oldest_live_seconds", "Age of the oldest decision without an outcome.", ("cluster",))
        self._off = gauge("off", "1 if it is rolled back.", ("cluster",))

    def show(
        self, live: Callable[[NominationState], int], oldest: Callable[[], float], off: Callable[[], bool]
    ) -> None:
        """Have the gauges read when Prometheus asks. What they read is plain counts: any thread may."""
        for state in LIVE:
            self._live.labels(self._cluster, state.value).set_function(functools.partial(live, state))
        self._oldest.labels(self._cluster).set_function(oldest)
        self._off.labels(self._cluster).set_function(lambda: float(off()))

    def ended(self, outcome: NominationOutcome, priority: int, scheduler: str) -> None:
        version = outcome.decision.algorithm_version
        who = (
            self._cluster,
            self._level(priority),
            self._schedulers.shown([scheduler])[scheduler],
            self._versions.shown([version])[version],
        )
        self._outcomes.labels(*who, outcome.state.value, str(outcome.raced).lower()).inc()
        if not outcome.written:
            return
        self._hinted.labels(*who, outcome.state.value).observe(outcome.hinted_seconds)
        fell_back = outcome.state is NominationState.FALLBACK and not outcome.raced
        if fell_back:
            self._fallback.labels(*who).observe(outcome.hinted_seconds)
        if fell_back or outcome.state in (NominationState.CLEARED, NominationState.OVERWRITTEN):
            self._failures.labels(*who).inc()

    def _level(self, priority: int) -> str:
        return self._levels.levels[self._levels.level_of(priority)][0]

    def wrote(self, kind: str, result: str) -> None:
        self._writes.labels(self._cluster, kind, result).inc()

    def bound(self, arm: str, priority: int, seconds: float) -> None:
        self._binding.labels(self._cluster, self._level(priority), arm).observe(seconds)

    def terminated(self, seconds: float) -> None:
        self._victims.labels(self._cluster).observe(seconds)
