"""Configuration is frozen and checked when it is made: the error names field, value and remedy."""

import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import tenacity

from asyncdispatch import (
    AdaptiveLimit,
    BreakerPolicy,
    CallTypePolicy,
    ConfigurationError,
    Dispatcher,
    DispatcherConfig,
    FlowQuota,
    IdempotencyPolicy,
    PriorityLevels,
    RateLimit,
    RetryBudget,
    RetryPolicy,
)
from tests.shell import shown

NOT_COUNTS: tuple[Any, ...] = (0, -1, 1.5, "3", True, None, math.nan)
NOT_SECONDS: tuple[Any, ...] = (0, -0.1, math.nan, math.inf, -math.inf, "3", True, None, 1j)
NOT_SHARES: tuple[Any, ...] = (-0.1, 1.0, 2, math.nan, "0.1", True, None)

GOOD: dict[type, dict[str, Any]] = {
    DispatcherConfig: {},
    AdaptiveLimit: {},
    PriorityLevels: {},
    FlowQuota: {},
    CallTypePolicy: {},
    RateLimit: {"qps": 10.0},
    RetryPolicy: {},
    RetryBudget: {},
    BreakerPolicy: {},
    IdempotencyPolicy: {"ttl": 60.0},
}

WRONG: dict[type, dict[str, tuple[Any, ...]]] = {
    DispatcherConfig: {
        **dict.fromkeys(("capacity", "lane_capacity", "max_unobserved"), NOT_COUNTS),
        "max_joined": tuple(v for v in NOT_COUNTS if v != 0 or v is False),
        **dict.fromkeys(("aging", "timeout", "attempt_timeout", "hold_limit"), NOT_SECONDS),
        "drain_timeout": tuple(v for v in NOT_SECONDS if v != 0 or v is False),
        **dict.fromkeys(("give_up", "blocking_threshold", "unobserved_age"), NOT_SECONDS),
        "reserve": NOT_SHARES,
        "max_in_flight": (*NOT_COUNTS, AdaptiveLimit),
        "levels": (None, (("low", 0),), "default"),
        "flows": (None, [("a", FlowQuota())], {"": FlowQuota()}, {3: FlowQuota()}, {"a": 4}, {"a": None}),
        "call_types": (None, ["a"], {"": CallTypePolicy()}, {3: CallTypePolicy()}, {"a": ("b",)}),
        "rate": (10, "10", (10, 1)),
        "retry": (None, tenacity.wait_fixed(1), 3),
        "retry_budget": (None, 10, 0.2),
        "breaker": (10, True, "on"),
        "idempotency": (60, True, "on"),
    },
    AdaptiveLimit: {
        **dict.fromkeys(("initial", "minimum", "maximum"), NOT_COUNTS),
        "backoff": (0.0, 0.05, 1.0, math.nan, "0.5", None, True),
    },
    PriorityLevels: {
        "levels": (
            *((), None, [("a", 0)], "default", tuple((f"l{i}", i) for i in range(9))),
            *((("a", 0), ("b", 0)), (("a", 1), ("b", 0)), (("a", 0), ("a", 1))),
            *((("", 0),), ((3, 0),), (("a", 0.5),), (("a",),), ("a", 0), (["a", 0],), (("a", True),)),
        )
    },
    FlowQuota: {
        **dict.fromkeys(("max_in_flight", "max_queued"), tuple(v for v in NOT_COUNTS if v is not None)),
        "weight": (0, -1, math.nan, math.inf, "1", None, True, 1e-4, 1e7),
    },
    CallTypePolicy: {
        "supersedes": ("pod_status_patch", None, 3, ("",), (3,)),
        "max_in_flight": tuple(v for v in NOT_COUNTS if v is not None),
    },
    RateLimit: {"qps": NOT_SECONDS, "burst": NOT_COUNTS},
    RetryPolicy: {
        **dict.fromkeys(("wait", "stop", "classify"), (1, "fixed", 0.5)),
        **dict.fromkeys(("reconcile_timeout", "max_wait"), NOT_SECONDS),
        "max_reconciles": NOT_COUNTS,
    },
    RetryBudget: {
        "ratio": tuple(v for v in NOT_SECONDS if v != 0 or v is False),
        "per_second": NOT_SECONDS,
        "burst": NOT_COUNTS,
    },
    BreakerPolicy: {"failures": NOT_COUNTS, "open_for": NOT_SECONDS},
    IdempotencyPolicy: {"ttl": NOT_SECONDS, "max_keys": NOT_COUNTS},
}

CASES = [
    pytest.param(kind, name, value, id=f"{kind.__name__}.{name}={shown(value)}")
    for kind, table in WRONG.items()
    for name, values in table.items()
    for value in values
]


def test_every_field_has_wrong_values_to_refuse():
    """A new field of the configuration can't be forgotten here."""
    for kind, table in WRONG.items():
        assert set(table) == {field.name for field in fields(kind)}, kind.__name__


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_a_wrong_value_is_refused_by_name(kind: type, name: str, value: Any):
    """The error names the field, shows the value, and says what it must be."""
    with pytest.raises(ConfigurationError) as caught:
        kind(**{**GOOD[kind], name: value})
    error = caught.value
    assert error.field.startswith(f"{kind.__name__}.{name}") or (
        kind is AdaptiveLimit and "AdaptiveLimit." in str(error)
    )
    assert error.remedy
    assert str(error).startswith(f"{error.field}={error.value!r}: ")
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("kind", list(GOOD), ids=lambda kind: kind.__name__)
def test_every_part_is_a_frozen_value(kind: type):
    one, other = kind(**GOOD[kind]), kind(**GOOD[kind])
    assert one == other
    with pytest.raises(FrozenInstanceError):
        setattr(one, fields(kind)[0].name, 3)


def test_the_defaults_are_those_of_the_design():
    config = DispatcherConfig()
    assert (config.capacity, config.max_joined, config.lane_capacity, config.reserve) == (10_000, 10_000, 32, 0.05)
    assert (config.timeout, config.attempt_timeout, config.drain_timeout, config.hold_limit) == (300, 30, 30, 120)
    assert isinstance(config.max_in_flight, AdaptiveLimit)
    assert config.retry.reconcile_timeout == 5
    assert config.rate is None
    assert config.idempotency is None
    assert config.call_types["pod_binding"].supersedes == ("pod_status_patch",)


def test_what_was_given_as_a_table_can_not_be_changed_later():
    """Neither through the configuration nor through the mapping that was handed in."""
    flows = {"a": FlowQuota(weight=2.0)}
    config = DispatcherConfig(flows=flows, call_types={"x": CallTypePolicy(supersedes=("y",))})
    flows["b"] = FlowQuota()
    assert list(config.flows) == ["a"]
    with pytest.raises(TypeError):
        config.flows["c"] = FlowQuota()  # type: ignore[index]
    with pytest.raises(TypeError):
        config.call_types["c"] = CallTypePolicy()  # type: ignore[index]


def test_own_call_types_come_on_top_of_the_defaults():
    config = DispatcherConfig(call_types={"x": CallTypePolicy()})
    assert set(config.call_types) == {"event", "pod_binding", "x"}
    own = DispatcherConfig(call_types={"pod_binding": CallTypePolicy(max_in_flight=3)})
    assert own.call_types["pod_binding"] == CallTypePolicy(max_in_flight=3)


def test_names_given_in_a_list_are_kept_in_a_tuple():
    names: Any = ["a", "b"]
    assert CallTypePolicy(supersedes=names).supersedes == ("a", "b")


@pytest.mark.parametrize(
    ("supersedes", "circle"),
    [
        ({"a": ("a",)}, "a > a"),
        ({"a": ("b",), "b": ("a",)}, "a > b > a"),
        ({"x": ("a",), "a": ("b", "c"), "c": ("d",), "d": ("a",)}, "a > c > d > a"),
        ({"pod_status_patch": ("pod_binding",)}, "pod_binding > pod_status_patch > pod_binding"),
    ],
)
def test_superseding_must_not_go_in_a_circle(supersedes: dict[str, tuple[str, ...]], circle: str):
    """The error shows the circle; one through the default pair counts as well."""
    policies = {name: CallTypePolicy(supersedes=others) for name, others in supersedes.items()}
    with pytest.raises(ConfigurationError, match=f"call_types='{circle}': superseding must not go in a circle"):
        DispatcherConfig(call_types=policies)


def test_superseding_along_several_ways_is_no_circle():
    policies = {"a": ("b", "c"), "b": ("d",), "c": ("d",)}
    config = DispatcherConfig(call_types={n: CallTypePolicy(supersedes=s) for n, s in policies.items()})
    assert config.call_types["a"].supersedes == ("b", "c")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"initial": 3, "minimum": 4}, "AdaptiveLimit.initial"),
        ({"initial": 200, "maximum": 100}, "AdaptiveLimit.initial"),
        ({"initial": 10, "minimum": 20, "maximum": 5}, "AdaptiveLimit.initial"),
    ],
)
def test_the_adaptive_limit_starts_within_its_bounds(fields: dict[str, int], field: str):
    with pytest.raises(ConfigurationError, match=f"{field}="):
        AdaptiveLimit(**fields)


def test_any_int32_has_a_level():
    """Raw priorities map to at most eight levels, the first of which catches all that is below."""
    levels = PriorityLevels()
    assert len(levels.names) == 8
    named = {priority: levels.names[levels.level_of(priority)] for priority in (-(2**31), -1, 0, 1, 2**31 - 1)}
    assert named == {
        -(2**31): "lowest",
        -1: "low",
        0: "default",
        1: "raised",
        2**31 - 1: "system-node-critical",
    }
    assert levels.names[levels.level_of(2_000_000_000)] == "system-cluster-critical"
    own = PriorityLevels((("low", 0), ("high", 10)))
    assert [own.level_of(p) for p in (-5, 0, 9, 10, 11)] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("value", [None, 3, {"capacity": 10}, DispatcherConfig])
def test_a_dispatcher_takes_nothing_but_a_configuration(value: Any):
    with pytest.raises(ConfigurationError, match=r"config=.*must be a DispatcherConfig"):
        Dispatcher(value)


@pytest.mark.parametrize(("name", "what"), [("rollout", "a Rollout"), ("registry", "a prometheus_client.Coll")])
def test_a_dispatcher_takes_nothing_but_a_rollout_and_a_registry(name: str, what: str):
    wrong: dict[str, Any] = {name: object()}
    with pytest.raises(ConfigurationError, match=f"{name}=.*must be {what}.* or None"):
        Dispatcher(**wrong)


def test_whole_numbers_are_seconds_too():
    assert DispatcherConfig(timeout=10, attempt_timeout=3).timeout == 10
