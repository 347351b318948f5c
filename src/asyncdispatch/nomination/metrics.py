"""Prometheus metrics of a nominator: `Nominator(…, registry=registry)`. Hits and times to bind prove that it works."""

from __future__ import annotations

import threading
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

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
UNHINTED = ""
"""The algorithm version of a Pod that is bound without a hint."""


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose decision something is about, as metrics tell it."""

    priority: int
    scheduler: str
    version: str = UNHINTED


Standing = tuple[Whose, NominationState, float]
"""A decision without an outcome: whose, where it is, and its age in seconds."""


class NominationMetrics:
    """What a registry shows of a nominator. Raises `ConfigurationError` if it has metrics of these names already."""

    def __init__(
        self,
        registry: CollectorRegistry,
        cluster: str,
        levels: PriorityLevels,
        live: Callable[[], Iterable[Standing]],
        off: Callable[[], bool],
    ) -> None:
        """`live` and `off` are asked when Prometheus asks, in any thread: they read plain values."""
        if not isinstance(registry, CollectorRegistry):
            raise ConfigurationError("registry", registry, "must be a prometheus_client.CollectorRegistry or None")
        self._cluster, self._levels = cluster, levels
        self._schedulers = Names("scheduler", (), MAX_VALUES)
        self._versions = Names("algorithm_version", (UNHINTED,), MAX_VALUES)
        self._naming = threading.Lock()  # a scrape may come in any thread
        try:
            self._make(registry)
            registry.register(_LiveHints(live, self._who))
        except ValueError as error:
            raise ConfigurationError("registry", registry, f"has metrics of our names already: {error}") from error
        self._off.labels(cluster).set_function(lambda: float(off()))

    def _make(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, labels: Iterable[str]) -> Counter:
            return Counter(f"{PREFIX}_{name}", what, labels, registry=registry)

        def histogram(name: str, what: str, labels: Iterable[str]) -> Histogram:
            return Histogram(f"{PREFIX}_{name}", what, labels, registry=registry, buckets=BUCKETS)

        self._outcomes = counter("outcomes_total", "Decisions that have ended.", (*WHO, "outcome", "raced"))
        self._failures = counter(
            "inferred_filter_failures_total", "Hints whose node the scheduler did not take after all.", WHO
        )
        self._hinted = histogram("hinted_seconds", "For how long hints stood.", (*WHO, "outcome"))
        self._fallback = histogram("fallback_scheduling_seconds", "From a hint to a binding elsewhere.", WHO)
        self._writes = counter("writes_total", "Writes of the field.", (*WHO, "kind", "result"))
        self._binding = histogram(
            "pending_to_binding_seconds", "From Pending without gates to the binding.", (*WHO, "rollout")
        )
        self._victims = histogram("victim_termination_seconds", "How long preempted Pods take to go.", WHO[:3])
        self._off = Gauge(f"{PREFIX}_off", "1 if it is rolled back.", ("cluster",), registry=registry)

    def _who(self, whose: Whose) -> tuple[str, ...]:
        """The values of `WHO`."""
        level = self._levels.levels[self._levels.level_of(whose.priority)][0]
        with self._naming:
            scheduler = self._schedulers.shown([whose.scheduler])[whose.scheduler]
            version = self._versions.shown([whose.version])[whose.version]
        return self._cluster, level, scheduler, version

    def ended(self, outcome: NominationOutcome, whose: Whose) -> None:
        who = self._who(whose)
        self._outcomes.labels(*who, outcome.state.value, str(outcome.raced).lower()).inc()
        if not outcome.written:
            return
        self._hinted.labels(*who, outcome.state.value).observe(outcome.hinted_seconds)
        fell_back = outcome.state is NominationState.FALLBACK and not outcome.raced
        if fell_back:
            self._fallback.labels(*who).observe(outcome.hinted_seconds)
        if fell_back or outcome.state in (NominationState.CLEARED, NominationState.OVERWRITTEN):
            self._failures.labels(*who).inc()

    def wrote(self, kind: str, result: str, whose: Whose) -> None:
        self._writes.labels(*self._who(whose), kind, result).inc()

    def bound(self, arm: str, seconds: float, whose: Whose) -> None:
        self._binding.labels(*self._who(whose), arm).observe(seconds)

    def terminated(self, seconds: float, whose: Whose) -> None:
        self._victims.labels(*self._who(whose)[:3]).observe(seconds)


class _LiveHints(Collector):
    """Counts decisions without an outcome as Prometheus asks. What was once shown stays, at 0."""

    def __init__(self, live: Callable[[], Iterable[Standing]], who: Callable[[Whose], tuple[str, ...]]) -> None:
        self._live, self._who = live, who
        self._shown: dict[tuple[str, ...], None] = {}

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield from self._families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        counts: Counts[tuple[str, ...]] = Counts()
        oldest: dict[tuple[str, ...], float] = {}
        for whose, state, age in self._live():
            who = self._who(whose)
            self._shown.setdefault(who)
            counts[*who, state.value] += 1
            oldest[who] = max(oldest.get(who, 0.0), age)
        live, age_of = self._families()
        for who in list(self._shown):
            for state in LIVE:
                live.add_metric([*who, state.value], counts[*who, state.value])
            age_of.add_metric(who, oldest.get(who, 0.0))
        return iter((live, age_of))

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        live = GaugeMetricFamily(f"{PREFIX}_live", "Decisions without an outcome.", labels=[*WHO, "state"])
        age = "Age of the oldest decision without an outcome."
        return live, GaugeMetricFamily(f"{PREFIX}_oldest_live_seconds", age, labels=WHO)
