"""What a simulated run is made of, as data: the cluster, its schedulers, and everything that goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from asyncdispatch.config import (
    AdaptiveLimit,
    BreakerPolicy,
    CallTypePolicy,
    DispatcherConfig,
    FlowQuota,
    IdempotencyPolicy,
    RateLimit,
    check_count,
    check_seconds,
)
from asyncdispatch.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FAULTS", "SCENARIOS", "TROUBLES", "Scenario"]

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "throttled": "429 with Retry-After",
        "unavailable": "503 without Retry-After; a write may have been applied, but was not",
        "refused": "the connection is refused: nothing was sent",
        "reset": "the connection breaks before anything was done",
        "lost": "done, but the answer is lost",
        "denied": "done, but the answer is a 504 or etcd's time-out under 500",
        "black_hole": "done, and no answer ever comes",
        "slow": "it takes some hundred times as long, so that its sender may stop waiting before it lands",
        "quota": "403: a quota is exceeded for now",
        "invalid": "422: refused for good",
        "dropped_key": "401, once",
    }
)
"""What may happen to a single request, by name."""

TROUBLES: Mapping[str, str] = MappingProxyType(
    {
        "outage": "every connection is refused or breaks",
        "storm": "429 with Retry-After for nearly every request",
        "stall": "etcd is stalled: what arrives lands at the end",
        "expired": "401 for every request: credentials were rotated",
    }
)
"""What may happen to the server for a time, by name."""


_CONFIG = DispatcherConfig(
    capacity=2_000, timeout=60.0, attempt_timeout=5.0, give_up=2.0, max_in_flight=AdaptiveLimit(32, 4, 64)
)


def _share(label: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigurationError(label, value, "must be a share, from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One kind of run. Times are seconds of virtual time, shares are from 0 to 1; 0 for what shall not happen.

    Raises `ConfigurationError` for a value that can't be meant.
    """

    name: str = "custom"
    calls: int = 20_000
    """Accepted calls after which nothing new is begun. Then the run goes on until every call has its outcome."""

    # -- the cluster
    pods: int = 300
    """Names of Pods. Each is used again and again, by Pods with other uids."""
    nodes: int = 40
    wave: int = 60
    """Pods that are created at one time, at most."""
    wave_every: float = 1.0
    lifetime: float = 8.0
    """Mean life of a Pod, bound or not: some are gone before they are scheduled."""
    node_loss_every: float = 0.0

    # -- the schedulers
    replicas: int = 1
    rivals: bool = False
    """Several replicas: all of them schedule, unaware of each other. Otherwise one leads, by a lease."""
    cycle: float = 0.05
    notes: int = 120
    """Notes (writes that nothing binds) at one time, about: once in sixteen cycles."""
    events: int = 1_000
    """Objects that notes are about: the fewer, the more of them meet."""
    unschedulable: float = 0.1
    claims: float = 0.2
    """Pods whose bind waits for a claim to be created."""
    version_fence: float = 0.3
    preemptions: float = 0.02
    reads: float = 0.1
    cancels: float = 0.01
    hurried: float = 0.03
    """Calls with a time-out of a few seconds."""
    stubborn: float = 0.1
    """Attempts that do not end when they are asked to."""
    lease_duration: float = 8.0
    renew_deadline: float = 5.0
    renew_every: float = 1.0
    crash_every: float = 0.0
    pause_every: float = 0.0
    """Between stalls of a replica's whole process."""
    pause: float = 6.0

    # -- the API server
    latency: float = 0.02
    """Mean time that a request takes."""
    faults: Mapping[str, float] = field(default_factory=dict)
    """Share of requests that meet each fault (see `FAULTS`)."""
    troubles: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Mean seconds between two of a trouble (see `TROUBLES`), and how long it lasts."""

    config: DispatcherConfig = _CONFIG
    check_every: int = 20_000
    """Steps between two looks at all of the core's invariants, and one at the end; 0: none."""

    def __post_init__(self) -> None:
        for name in ("calls", "pods", "nodes", "wave", "replicas", "events"):
            check_count(f"Scenario.{name}", getattr(self, name))
        for name in ("notes", "check_every"):
            check_count(f"Scenario.{name}", getattr(self, name), least=0)
        for name in ("wave_every", "lifetime", "cycle", "latency", "renew_every", "renew_deadline", "lease_duration"):
            check_seconds(f"Scenario.{name}", getattr(self, name))
        for name in ("node_loss_every", "crash_every", "pause_every", "pause"):
            check_seconds(f"Scenario.{name}", getattr(self, name), zero=True)
        for name in _SHARES:
            _share(f"Scenario.{name}", getattr(self, name))
        if not isinstance(self.config, DispatcherConfig):
            raise ConfigurationError("Scenario.config", self.config, "must be a DispatcherConfig")
        if self.renew_deadline >= self.lease_duration:
            raise ConfigurationError("Scenario.renew_deadline", self.renew_deadline, "must be below lease_duration")
        object.__setattr__(self, "faults", self._checked_faults())
        object.__setattr__(self, "troubles", self._checked_troubles())

    def _checked_faults(self) -> Mapping[str, float]:
        for name, share in self.faults.items():
            if name not in FAULTS:
                raise ConfigurationError("Scenario.faults", name, f"is unknown; known are {', '.join(FAULTS)}")
            _share(f"Scenario.faults[{name!r}]", share)
        if sum(self.faults.values()) > 1:
            raise ConfigurationError("Scenario.faults", dict(self.faults), "shares must not add up to more than 1")
        return MappingProxyType(dict(self.faults))

    def _checked_troubles(self) -> Mapping[str, tuple[float, float]]:
        for name, times in self.troubles.items():
            if name not in TROUBLES:
                raise ConfigurationError("Scenario.troubles", name, f"is unknown; known are {', '.join(TROUBLES)}")
            if not isinstance(times, tuple) or len(times) != 2:
                raise ConfigurationError(f"Scenario.troubles[{name!r}]", times, "must be (seconds between, seconds)")
            for value in times:
                check_seconds(f"Scenario.troubles[{name!r}]", value)
        return MappingProxyType(dict(self.troubles))

    def but(self, **changes: Any) -> Scenario:
        """This scenario with other values."""
        unknown = changes.keys() - {each.name for each in fields(self)}
        if unknown:
            raise ConfigurationError("Scenario", min(unknown), "is no field of a scenario")
        return replace(self, **changes)


_SHARES = ("unschedulable", "claims", "version_fence", "preemptions", "reads", "cancels", "hurried", "stubborn")

_FEW: Mapping[str, float] = {"throttled": 0.002, "unavailable": 0.001, "lost": 0.001, "reset": 0.001}
_ALL: Mapping[str, float] = {
    "throttled": 0.01,
    "unavailable": 0.005,
    "refused": 0.005,
    "reset": 0.005,
    "lost": 0.01,
    "denied": 0.005,
    "black_hole": 0.002,
    "slow": 0.01,
    "quota": 0.01,
    "invalid": 0.003,
    "dropped_key": 0.0002,
}
_QUOTAS = DispatcherConfig(
    capacity=400,
    max_joined=50,
    lane_capacity=8,
    timeout=30.0,
    attempt_timeout=3.0,
    give_up=1.0,
    hold_limit=20.0,
    aging=2.0,
    max_in_flight=AdaptiveLimit(16, 2, 24),
    flows={"audit": FlowQuota(max_in_flight=3, max_queued=60), "tenant": FlowQuota(weight=3.0)},
    call_types={"eviction": CallTypePolicy(max_in_flight=2)},
    rate=RateLimit(400.0, 40),
    breaker=BreakerPolicy(5, 2.0),
    idempotency=IdempotencyPolicy(20.0, 500),
    max_unobserved=100,
    unobserved_age=10.0,
)

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        scenario.name: scenario
        for scenario in (
            Scenario(
                name="steady",
                faults=_FEW,
                notes=240,
                events=20_000,
                config=replace(_CONFIG, max_in_flight=AdaptiveLimit(8, 4, 12)),
            ),
            Scenario(
                name="storms",
                faults={**_FEW, "throttled": 0.02},
                troubles={"storm": (15.0, 3.0), "outage": (25.0, 4.0), "expired": (40.0, 3.0), "stall": (20.0, 3.0)},
                notes=60,
            ),
            Scenario(
                name="doubt",
                faults={
                    "lost": 0.04,
                    "denied": 0.03,
                    "slow": 0.03,
                    "black_hole": 0.01,
                    "reset": 0.02,
                    "unavailable": 0.02,
                },
                troubles={"stall": (30.0, 7.0)},
                version_fence=0.5,
                claims=0.4,
            ),
            Scenario(name="churn", faults=_FEW, lifetime=1.5, wave_every=0.4, preemptions=0.1, node_loss_every=3.0),
            Scenario(
                name="leaders",
                replicas=3,
                faults=_ALL,
                troubles={"outage": (40.0, 7.0), "stall": (40.0, 4.0)},
                crash_every=12.0,
                pause_every=10.0,
                lease_duration=4.0,
                renew_deadline=2.5,
                renew_every=0.5,
                notes=40,
                version_fence=0.5,
            ),
            Scenario(name="rivals", replicas=3, rivals=True, faults=_ALL, crash_every=25.0, pause_every=25.0, notes=40),
            Scenario(
                name="tight",
                config=_QUOTAS,
                faults=_ALL,
                troubles={"storm": (25.0, 3.0), "outage": (40.0, 4.0), "expired": (50.0, 3.0), "stall": (30.0, 3.0)},
                hurried=0.15,
                cancels=0.03,
                node_loss_every=10.0,
                preemptions=0.05,
            ),
        )
    }
)
"""The named scenarios. A run over many seeds takes them in turn."""
