"""What the guard is told: thresholds, windows, and what to do on a breach. And the baseline that it compares with."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from asyncdispatch.config import check_count, check_seconds
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.rollout.rules import share_of

__all__ = ["SIGNALS", "Baseline", "GuardPolicy", "HalfOpen", "Measured", "Signal", "Threshold", "Waiting"]


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that the guard watches: a quantile of what is measured (`q`), or a share of what is counted (None)."""

    name: str
    what: str
    q: float | None = None

    @property
    def is_share(self) -> bool:
        return self.q is None or self.name == "queue_depth"


SIGNALS = {
    signal.name: signal
    for signal in (
        Signal("scheduling_p99", "seconds of one pass of the scheduling loop, as told by `scheduled`", 0.99),
        Signal("queue_depth", "accepted calls without an outcome, as a share of the capacity (median)", 0.5),
        Signal("queue_wait_p99", "seconds that a call has waited in all", 0.99),
        Signal("api_latency_p99", "seconds of one attempt", 0.99),
        Signal("failure_rate", "calls that have failed or expired, of those that ended by themselves"),
        Signal("duplicate_rate", "calls that joined a live one, or succeeded after they had ended"),
        Signal("binding_errors", "binds that have failed or expired"),
        Signal("unschedulable_retries", "passes of the loop that ended in another try, as told by `scheduled`"),
    )
}
"""All that is watched, by name. A name is also a field of the policy and the reason of a rollback."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """What is too much: above `absolute`, or above `relative` times the baseline; the lower of the two counts.

    A relative limit needs `least`, below which it never is, since twice almost nothing is still almost nothing.
    Raises `ConfigurationError` if nothing is given, or if the numbers contradict each other.
    """

    absolute: float | None = None
    relative: float | None = None
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.absolute is None and self.relative is None:
            raise ConfigurationError("Threshold", None, "needs an absolute limit, a relative one, or both")
        for name in ("absolute", "relative", "least"):
            value = getattr(self, name)
            good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if value is not None and (not good or value < 0 or (value == 0 and name != "least")):
                raise ConfigurationError(f"Threshold.{name}", value, "must be a finite number above 0")
        if self.relative is not None and self.relative < 1.1:
            raise ConfigurationError("Threshold.relative", self.relative, "must be 1.1 or more: less is within noise")
        if (self.relative is None) != (not self.least):
            raise ConfigurationError("Threshold.least", self.least, "goes with a relative limit: give both or neither")
        if self.absolute is not None and self.least >= self.absolute:
            raise ConfigurationError(
                "Threshold.least", self.least, f"contradicts absolute={self.absolute!r}, which is reached first"
            )

    def limit(self, baseline: float | None) -> float:
        """The limit over a baseline, which may be missing if none is needed."""
        limits = [] if self.absolute is None else [self.absolute]
        if self.relative is not None:
            assert baseline is not None
            limits.append(max(self.relative * baseline, self.least))
        return min(limits)


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfOpen:
    """The way back by itself: a small share first, for at least `seconds` and `samples` ended calls of it."""

    percentage: float = 5.0
    seconds: float = 60.0
    samples: int = 100

    def __post_init__(self) -> None:
        if not share_of("HalfOpen.percentage", self.percentage):
            raise ConfigurationError(
                "HalfOpen.percentage", self.percentage, "must be above 0; half_open=None for never"
            )
        check_seconds("HalfOpen.seconds", self.seconds)
        check_count("HalfOpen.samples", self.samples)


class Waiting(enum.Enum):
    """What becomes of accepted calls that wait when the guard rolls back. What is in flight always lands."""

    KEEP = "keep"
    """They keep their course."""
    CANCEL = "cancel"
    """They end as Cancelled("rollback")."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardPolicy:
    """When asynchronous calls make things worse, and what to do then. None for a signal: it is not judged.

    A breach needs `min_samples` within the last `window` seconds, and evidence: at most a probability of
    `false_alarm`, at each look, that a system just at the limit shows so much. Looks are `interval` seconds apart.
    `baseline_samples` are needed of each signal with a relative limit. After a rollback it stays synchronous for
    `hold_off` seconds, `hold_off_factor` times longer with each rollback that follows within `calm` seconds of being
    back, `hold_off_max` at most; then `half_open`, or with None until somebody calls `open`. `binding_types` are the
    call types whose failures are binding errors.
    """

    scheduling_p99: Threshold | None = Threshold(relative=2.0, least=0.05)
    queue_depth: Threshold | None = Threshold(absolute=0.8)
    queue_wait_p99: Threshold | None = Threshold(absolute=30.0)
    api_latency_p99: Threshold | None = Threshold(relative=3.0, least=0.25)
    failure_rate: Threshold | None = Threshold(relative=2.0, least=0.05)
    duplicate_rate: Threshold | None = Threshold(relative=2.0, least=0.05)
    binding_errors: Threshold | None = Threshold(relative=2.0, least=0.05)
    unschedulable_retries: Threshold | None = Threshold(relative=1.5, least=0.2)
    window: float = 60.0
    slices: int = 6
    interval: float = 1.0
    min_samples: int = 20
    baseline_samples: int = 300
    false_alarm: float = 1e-6
    waiting: Waiting = Waiting.KEEP
    half_open: HalfOpen | None = HalfOpen()
    hold_off: float = 60.0
    hold_off_factor: float = 2.0
    hold_off_max: float = 3600.0
    calm: float = 1800.0
    binding_types: tuple[str, ...] = ("pod_binding",)

    def __post_init__(self) -> None:
        for name, signal in SIGNALS.items():
            threshold = getattr(self, name)
            if threshold is not None and not isinstance(threshold, Threshold):
                raise ConfigurationError(f"GuardPolicy.{name}", threshold, "must be a Threshold or None")
            if threshold is not None and signal.is_share:
                _check_share_limits(name, threshold)
        if not self.thresholds:
            raise ConfigurationError("GuardPolicy", None, "judges nothing: give one signal a Threshold")
        for name in ("window", "interval", "hold_off", "hold_off_max", "calm"):
            check_seconds(f"GuardPolicy.{name}", getattr(self, name))
        for name in ("slices", "min_samples", "baseline_samples"):
            check_count(f"GuardPolicy.{name}", getattr(self, name))
        if self.interval > self.window / self.slices:
            raise ConfigurationError("GuardPolicy.interval", self.interval, "must not be longer than window/slices")
        if not isinstance(self.false_alarm, float) or not 0 < self.false_alarm <= 0.01:
            raise ConfigurationError("GuardPolicy.false_alarm", self.false_alarm, "must be above 0, 0.01 at most")
        factor = self.hold_off_factor
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor <= 100:
            raise ConfigurationError("GuardPolicy.hold_off_factor", factor, "must be from 1 to 100")
        if self.hold_off_max < self.hold_off:
            raise ConfigurationError("GuardPolicy.hold_off_max", self.hold_off_max, "must not be below hold_off")
        if not isinstance(self.waiting, Waiting):
            raise ConfigurationError("GuardPolicy.waiting", self.waiting, "must be Waiting.KEEP or Waiting.CANCEL")
        if self.half_open is not None and not isinstance(self.half_open, HalfOpen):
            raise ConfigurationError("GuardPolicy.half_open", self.half_open, "must be a HalfOpen or None")
        types: Any = self.binding_types
        if not isinstance(types, tuple) or not all(isinstance(name, str) and name for name in types):
            raise ConfigurationError("GuardPolicy.binding_types", types, "must be a tuple of call types")

    @property
    def thresholds(self) -> dict[str, Threshold]:
        """Those that are judged, by the name of their signal."""
        return {name: getattr(self, name) for name in SIGNALS if getattr(self, name) is not None}


def _check_share_limits(name: str, threshold: Threshold) -> None:
    for field_name in ("absolute", "least"):
        value = getattr(threshold, field_name)
        if value is not None and value >= 1:
            raise ConfigurationError(f"GuardPolicy.{name}.{field_name}", value, "is a share: it must be below 1")


@dataclass(frozen=True, slots=True)
class Measured:
    """A signal's value while calls were synchronous, and from how many samples."""

    value: float
    samples: int


@dataclass(frozen=True, slots=True)
class Baseline:
    """How things were while calls were synchronous, by signal. `to_dict` and `from_dict` keep it across restarts."""

    signals: Mapping[str, Measured] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, measured in self.signals.items():
            if name not in SIGNALS:
                raise ConfigurationError("Baseline.signals", name, f"is none of {', '.join(SIGNALS)}")
            if not isinstance(measured, Measured):
                raise ConfigurationError(f"Baseline.signals[{name!r}]", measured, "must be a Measured")
            check_seconds(f"Baseline.{name}", measured.value, zero=True)
            check_count(f"Baseline.{name}.samples", measured.samples)
        object.__setattr__(self, "signals", MappingProxyType(dict(self.signals)))

    def value(self, name: str) -> float | None:
        measured = self.signals.get(name)
        return None if measured is None else measured.value

    def to_dict(self) -> dict[str, dict[str, float]]:
        """For JSON."""
        return {name: {"value": each.value, "samples": each.samples} for name, each in self.signals.items()}

    @classmethod
    def from_dict(cls, data: Any) -> Baseline:
        """What `to_dict` gave. Raises `ConfigurationError` for anything else."""
        try:
            return cls({name: Measured(each["value"], each["samples"]) for name, each in data.items()})
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigurationError("Baseline", data, "must be what to_dict gave") from error

    def check(self, policy: GuardPolicy) -> None:
        """Raise `ConfigurationError` if `policy` can't be judged by it."""
        for name, threshold in policy.thresholds.items():
            measured = self.signals.get(name)
            samples = 0 if measured is None else measured.samples
            if threshold.relative is not None and samples < policy.baseline_samples:
                remedy = f"has {samples} samples of the {policy.baseline_samples} needed: stay synchronous for longer"
                if not samples:
                    remedy += f", or set GuardPolicy({name}=None) if nothing tells of it"
                raise ConfigurationError(f"baseline {name}", samples, remedy)
            if measured is not None and measured.value >= threshold.limit(measured.value):
                raise ConfigurationError(
                    f"GuardPolicy.{name}.absolute", threshold.absolute, f"is below the baseline of {measured.value:.4g}"
                )
