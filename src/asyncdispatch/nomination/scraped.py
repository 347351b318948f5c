"""What a program tells on its page of metrics, and what has come between two looks at it. Pure.

kube-scheduler's own `scheduler_framework_extension_point_duration_seconds` says what a hint saves it: with one, it
filters one node first. Its counts are from its start on, so the time of interest is the difference of two pages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from asyncdispatch.errors import ConfigurationError

__all__ = ["FILTER_SECONDS", "Page", "Spread"]

FILTER_SECONDS = "scheduler_framework_extension_point_duration_seconds"


@dataclass(frozen=True, slots=True)
class Spread:
    """A histogram of seconds. `buckets`: (upper bound, how many were at most that), by bound."""

    count: int
    seconds: float
    buckets: tuple[tuple[float, int], ...] = ()

    def since(self, before: Spread) -> Spread:
        """What has come since `before`. All of it if the program was started anew in between: its counts are less."""
        if before.count > self.count:
            return self
        known = dict(before.buckets)
        return Spread(
            self.count - before.count,
            self.seconds - before.seconds,
            tuple((bound, count - known.get(bound, 0)) for bound, count in self.buckets),
        )

    @property
    def mean(self) -> float | None:
        return self.seconds / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """By linear interpolation within a bucket; what is beyond the last bound counts as that. None: nothing came."""
        lower, under = 0.0, 0
        for bound, count in self.buckets:
            if count >= q * self.count and count > under:
                return (
                    lower if math.isinf(bound) else lower + (bound - lower) * (q * self.count - under) / (count - under)
                )
            if not math.isinf(bound):
                lower, under = bound, count
        return None

    def __str__(self) -> str:
        mean, p90 = self.mean, self.quantile(0.9)
        if mean is None or p90 is None:
            return "none"
        return f"{self.count} times, mean {mean * 1000:.2f} ms, P90 {p90 * 1000:.2f} ms"


class Page:
    """A page of metrics in the text format of Prometheus. Raises `ConfigurationError` for what is none."""

    def __init__(self, text: str, label: str = "page") -> None:
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        if not isinstance(text, str):
            raise ConfigurationError(label, text, "is no page of metrics: give its text, a str")
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    self._samples[sample.name].append((sample.labels, sample.value))
        except ValueError as error:
            raise ConfigurationError(label, text[:80], f"is no page of metrics: {error}") from error

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that have these labels; 0 if there is none."""
        return sum(value for _, value in self._found(name, labels))

    def spread(self, name: str, **labels: str) -> Spread:
        """The histogram of that name, over all its series that have these labels."""
        buckets: dict[float, float] = defaultdict(float)
        for found, value in self._found(f"{name}_bucket", labels):
            buckets[float(found["le"])] += value
        return Spread(
            round(self.total(f"{name}_count", **labels)),
            self.total(f"{name}_sum", **labels),
            tuple((bound, round(count)) for bound, count in sorted(buckets.items())),
        )

    def _found(self, name: str, labels: dict[str, str]) -> list[tuple[dict[str, str], float]]:
        return [(found, value) for found, value in self._samples.get(name, ()) if labels.items() <= found.items()]
