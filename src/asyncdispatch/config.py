"""Frozen, validated configuration. Every value is checked when it is made; a wrong one names its remedy.

Times are seconds. Nothing here imports a clock, an event loop or a retry library: strategies travel as objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from asyncdispatch.errors import ConfigurationError

if TYPE_CHECKING:
    from asyncdispatch.calls import APICall, Attempt, Verdict

    Classify = Callable[["APICall[Any]", "Attempt", BaseException], "Verdict | None"]

__all__ = [
    "AdaptiveLimit",
    "BreakerPolicy",
    "CallTypePolicy",
    "DispatcherConfig",
    "FlowQuota",
    "IdempotencyPolicy",
    "PriorityLevels",
    "RateLimit",
    "RetryBudget",
    "RetryPolicy",
]


# -- checks -------------------------------------------------------------------------------------------------------


def check_seconds(label: str, value: Any, *, zero: bool = False) -> None:
    """A finite number of seconds, above 0 (or from 0 on)."""
    _check_number(label, value, "seconds", zero=zero)


def check_count(label: str, value: Any, *, least: int = 1) -> None:
    """A whole number, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(label, value, f"must be a whole number, {least} or more")


def _check_number(label: str, value: Any, unit: str, *, zero: bool = False) -> None:
    good = not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
    if not good or value < 0 or (value == 0 and not zero):
        raise ConfigurationError(
            label, value, f"must be a finite number of {unit}, {'0 or more' if zero else 'above 0'}"
        )


def _check_share(label: str, value: Any, *, least: float = 0.0) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1:
        raise ConfigurationError(label, value, f"must be a share, {least} or more and below 1")


def _check_type(label: str, value: Any, *types: type) -> None:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        names = " or ".join("None" if t is type(None) else t.__name__ for t in types)
        raise ConfigurationError(label, value, f"must be {names}")


def _check_names(label: str, names: Any) -> None:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigurationError(label, names, "must be a tuple of names")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(label, name, "must be a string that is not empty")


# -- parts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdaptiveLimit:
    """A limit on calls in flight that follows the server (AIMD): cut on its overload, grown on success.

    It starts at `initial`, stays within `minimum` and `maximum`, is multiplied by `backoff` when the server answers
    429 or 503 or lets a call time out (at most once for the calls in flight at one time), and grows by one each time
    that a whole limit of calls has succeeded while it was used up. Keep `maximum` within the connection pool.
    """

    initial: int = 64
    minimum: int = 4
    maximum: int = 100
    backoff: float = 0.7

    def __post_init__(self) -> None:
        for name in ("initial", "minimum", "maximum"):
            check_count(f"AdaptiveLimit.{name}", getattr(self, name))
        if not self.minimum <= self.initial <= self.maximum:
            raise ConfigurationError(
                "AdaptiveLimit.initial", self.initial, f"must be from {self.minimum} to {self.maximum}"
            )
        _check_share("AdaptiveLimit.backoff", self.backoff, least=0.1)


DEFAULT_LEVELS: tuple[tuple[str, int], ...] = (
    ("lowest", -(2**31)),
    ("low", -1_000),
    ("default", 0),
    ("raised", 1),
    ("elevated", 1_000),
    ("high", 1_000_000),
    ("system-cluster-critical", 2_000_000_000),
    ("system-node-critical", 2_000_001_000),
)


@dataclass(frozen=True, slots=True)
class PriorityLevels:
    """Maps a Pod's priority (any int32) to one of at most eight levels, the least urgent first.

    Each level is (name, floor): the lowest priority that belongs to it. The first floor catches all that is below.
    """

    levels: tuple[tuple[str, int], ...] = DEFAULT_LEVELS

    def __post_init__(self) -> None:
        label = "PriorityLevels.levels"
        if not isinstance(self.levels, tuple) or not 1 <= len(self.levels) <= 8:
            raise ConfigurationError(label, self.levels, "must be a tuple of 1 to 8 pairs (name, floor)")
        for pair in self.levels:
            if not isinstance(pair, tuple) or len(pair) != 2 or type(pair[1]) is not int:
                raise ConfigurationError(label, pair, "must be a pair (name, floor)")
            _check_names(label, (pair[0],))
        floors = [floor for _, floor in self.levels]
        if sorted(set(floors)) != floors:
            raise ConfigurationError(label, floors, "floors must rise, the least urgent level first")
        if len(dict(self.levels)) != len(self.levels):
            raise ConfigurationError(label, self.levels, "names must differ")

    def level_of(self, priority: int) -> int:
        """Index of the level of `priority`; 0 is the least urgent."""
        found = 0
        for index, (_, floor) in enumerate(self.levels):
            if priority >= floor:
                found = index
        return found

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.levels)


@dataclass(frozen=True, slots=True)
class FlowQuota:
    """What one flow (plugin or tenant) may take: calls in flight, calls waiting, and its weight in the fair share."""

    max_in_flight: int | None = None
    max_queued: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.max_in_flight is not None:
            check_count("FlowQuota.max_in_flight", self.max_in_flight)
        if self.max_queued is not None:
            check_count("FlowQuota.max_queued", self.max_queued)
        _check_number("FlowQuota.weight", self.weight, "shares")
        if not 1e-3 <= self.weight <= 1e6:
            raise ConfigurationError("FlowQuota.weight", self.weight, "must be from 0.001 to 1000000")


@dataclass(frozen=True, slots=True)
class CallTypePolicy:
    """What one call type may do: which types its success settles (`supersedes`), and how many may be in flight."""

    supersedes: tuple[str, ...] = ()
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        _check_names("CallTypePolicy.supersedes", self.supersedes)
        object.__setattr__(self, "supersedes", tuple(self.supersedes))
        if self.max_in_flight is not None:
            check_count("CallTypePolicy.max_in_flight", self.max_in_flight)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `burst` starts at once and `qps` in a second on the long run. Tokens are taken at start (law L20)."""

    qps: float
    burst: int = 1

    def __post_init__(self) -> None:
        _check_number("RateLimit.qps", self.qps, "starts per second")
        check_count("RateLimit.burst", self.burst)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How attempts of one call are repeated. Scheduling retries are another matter.

    `wait` and `stop` are tenacity's strategies (`wait_*`, `stop_*`) or callables on its `RetryCallState`; None means
    full jitter from 0.1 s doubling to 30 s, and no stop before the deadline. `classify(call, attempt, error)` returns
    a `Verdict`, or None for the default table. `reconcile_timeout` bounds one reconcile, `max_reconciles` their
    number in a row. `max_wait` caps what a server may ask for by Retry-After.
    """

    wait: Callable[[Any], float] | None = None
    stop: Callable[[Any], bool] | None = None
    classify: Classify | None = None
    reconcile_timeout: float = 5.0
    max_reconciles: int = 10
    max_wait: float = 120.0

    def __post_init__(self) -> None:
        for name in ("wait", "stop", "classify"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ConfigurationError(f"RetryPolicy.{name}", value, "must be callable or None")
        check_seconds("RetryPolicy.reconcile_timeout", self.reconcile_timeout)
        check_count("RetryPolicy.max_reconciles", self.max_reconciles)
        check_seconds("RetryPolicy.max_wait", self.max_wait)


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """Retries of all calls together: `ratio` of successes earn one, `per_second` more trickle in, up to `burst`.

    A retry that succeeds gives back what it took. An empty budget delays retries, the urgent ones least; it never fails
    a call.
    """

    ratio: float = 0.2
    per_second: float = 1.0
    burst: int = 100

    def __post_init__(self) -> None:
        _check_number("RetryBudget.ratio", self.ratio, "retries per success", zero=True)
        _check_number("RetryBudget.per_second", self.per_second, "retries per second")
        check_count("RetryBudget.burst", self.burst)


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """Per flow and call type: after `failures` server-side failures in a row, hold starts for `open_for` seconds.

    Then exactly one probe goes through: its success closes the breaker, its failure opens it again. Never fails a call.
    """

    failures: int = 10
    open_for: float = 5.0

    def __post_init__(self) -> None:
        check_count("BreakerPolicy.failures", self.failures)
        check_seconds("BreakerPolicy.open_for", self.open_for)


@dataclass(frozen=True, slots=True)
class IdempotencyPolicy:
    """Remember the success of keyed writes for `ttl` seconds, at most `max_keys` of them, in memory only (rule R9)."""

    ttl: float
    max_keys: int = 10_000

    def __post_init__(self) -> None:
        check_seconds("IdempotencyPolicy.ttl", self.ttl)
        check_count("IdempotencyPolicy.max_keys", self.max_keys)


DEFAULT_CALL_TYPES: Mapping[str, CallTypePolicy] = MappingProxyType(
    {
        "pod_binding": CallTypePolicy(supersedes=("pod_status_patch",)),
        "event": CallTypePolicy(max_in_flight=4),  # told at best effort: a flood of them takes no other call's seat
    }
)


# -- the whole ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DispatcherConfig:
    """All that a dispatcher can be told. The defaults suit a scheduler of some thousand Pods.

    `capacity` accepted calls without an outcome, of which the share `reserve` is for prerequisites; `max_joined` more
    that joined another; `lane_capacity` waiting for one object. `aging`: seconds of waiting that lift a call by one
    level. `timeout`: of a call, from submission to its end; `attempt_timeout`: of one try. `drain_timeout`: for
    leaving, draining and switching. `hold_limit`: how long a call is held by refused credentials. `give_up`: how long
    an attempt that was asked to stop is waited for. `blocking_threshold`: one step of user code that holds the event
    loop for longer is reported. `max_unobserved` completed writes are shown by `observe` until they are seen; older
    than `unobserved_age`, a fresh read is asked for.
    """

    capacity: int = 10_000
    max_joined: int = 10_000
    lane_capacity: int = 32
    reserve: float = 0.05
    max_in_flight: AdaptiveLimit | int = AdaptiveLimit()
    levels: PriorityLevels = PriorityLevels()
    aging: float = 10.0
    flows: Mapping[str, FlowQuota] = field(default_factory=dict)
    call_types: Mapping[str, CallTypePolicy] = field(default_factory=dict)
    rate: RateLimit | None = None
    retry: RetryPolicy = RetryPolicy()
    retry_budget: RetryBudget = RetryBudget()
    breaker: BreakerPolicy | None = BreakerPolicy()
    idempotency: IdempotencyPolicy | None = None
    timeout: float = 300.0
    attempt_timeout: float = 30.0
    drain_timeout: float = 30.0
    hold_limit: float = 120.0
    give_up: float = 5.0
    blocking_threshold: float = 0.1
    max_unobserved: int = 10_000
    unobserved_age: float = 300.0

    def __post_init__(self) -> None:
        for name in ("capacity", "lane_capacity", "max_unobserved"):
            check_count(f"DispatcherConfig.{name}", getattr(self, name))
        check_count("DispatcherConfig.max_joined", self.max_joined, least=0)
        check_seconds("DispatcherConfig.drain_timeout", self.drain_timeout, zero=True)
        for name in (
            "aging",
            "timeout",
            "attempt_timeout",
            "hold_limit",
            "give_up",
            "blocking_threshold",
            "unobserved_age",
        ):
            check_seconds(f"DispatcherConfig.{name}", getattr(self, name))
        _check_share("DispatcherConfig.reserve", self.reserve)
        for name, types in _PART_TYPES.items():
            _check_type(f"DispatcherConfig.{name}", getattr(self, name), *types)
        if isinstance(self.max_in_flight, int):
            check_count("DispatcherConfig.max_in_flight", self.max_in_flight)
        object.__setattr__(self, "flows", _frozen_table("flows", self.flows, FlowQuota))
        policies = _frozen_table("call_types", self.call_types, CallTypePolicy)
        object.__setattr__(self, "call_types", MappingProxyType({**DEFAULT_CALL_TYPES, **policies}))
        _check_acyclic(self.call_types)


_PART_TYPES: dict[str, tuple[type, ...]] = {
    "max_in_flight": (AdaptiveLimit, int),
    "levels": (PriorityLevels,),
    "rate": (RateLimit, type(None)),
    "retry": (RetryPolicy,),
    "retry_budget": (RetryBudget,),
    "breaker": (BreakerPolicy, type(None)),
    "idempotency": (IdempotencyPolicy, type(None)),
}


def _frozen_table(name: str, table: Any, value_type: type) -> Mapping[str, Any]:
    label = f"DispatcherConfig.{name}"
    if not isinstance(table, Mapping):
        raise ConfigurationError(label, table, f"must be a mapping of names to {value_type.__name__}")
    _check_names(label, table)
    for key, value in table.items():
        _check_type(f"{label}[{key!r}]", value, value_type)
    return MappingProxyType(dict(table))


def _check_acyclic(call_types: Mapping[str, CallTypePolicy]) -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circle = " > ".join((*path[path.index(name) :], name))
            raise ConfigurationError("DispatcherConfig.call_types", circle, "superseding must not go in a circle")
        if name in done:
            return
        for other in call_types.get(name, CallTypePolicy()).supersedes:
            visit(other, (*path, name))
        done.add(name)

    for name in call_types:
        visit(name, ())
