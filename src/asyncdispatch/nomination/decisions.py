"""What goes in and what comes out: decisions, the policy that they are under, outcomes. All checked when made."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from asyncdispatch.calls import ObjectRef, version_of
from asyncdispatch.config import check_count, check_seconds
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.objects import DNS_SUBDOMAIN, field_of, node_name, pod_ref, priority_of, to_json
from asyncdispatch.nomination.states import NominationState
from asyncdispatch.nomination.views import requests_of
from asyncdispatch.rollout.rules import bucket_of, share_of

__all__ = ["PREFIX", "Decision", "NominationOutcome", "NominationPolicy"]

PREFIX = "nomination.asyncdispatch.dev"
MAX_REASON = 1024
"""Bytes. The annotations of an object share 256 KiB, which are not ours alone."""
MAX_NAME = 128
"""Characters of an id and of an algorithm's version."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_REPORTER = re.compile(rf"({DNS_SUBDOMAIN.pattern}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_OBJECT_NAMES = (
    ("namespaces", _LABEL, 63, "a namespace's name: lower-case letters, digits and '-'"),
    ("priority_classes", DNS_SUBDOMAIN, 253, "a PriorityClass's name: lower-case letters, digits, '-' and '.'"),
)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A recommendation: `pod` should go to `node`.

    `pod` is the Pod as the API server sent it (a dict or a client model), or an `ObjectRef` with its uid. A whole Pod
    is better: what it rests on is then known, and a change of anything else on the Pod does not matter. Of a ref with
    `observed_version`, any change does. `ttl` is in seconds from `nominate`. `priority` is the Pod's unless given.
    `order_version` names the state of your own queue that this was decided in: see `Nominator.reorder`.

    Raises `ConfigurationError` for what can't be meant.
    """

    pod: Any = field(repr=False)
    node: str
    algorithm_version: str
    reason: str
    ttl: float
    decision_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    priority: int | None = None
    observed_version: str | None = None
    order_version: str | None = None
    ref: ObjectRef = field(init=False, compare=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "ref", pod_ref(self.pod))
        set_field(self, "node", node_name(self.node))
        for name in ("algorithm_version", "decision_id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not value.isprintable():
                raise ConfigurationError(name, value, f"must be a printable string of 1 to {MAX_NAME} characters")
        _check_reason(self.reason)
        check_seconds("ttl", self.ttl)
        whole = self.whole
        if whole is not None:
            try:
                requests_of(whole)
            except ValueError as error:
                remedy = f"{error}: pass the Pod as the API server sent it"
                raise ConfigurationError("pod.spec", str(self.ref), remedy) from error
        if self.priority is None and whole is not None:
            set_field(self, "priority", priority_of(self.pod))
        priority: Any = self.priority
        if priority is not None and (type(priority) is not int or not -(2**31) <= priority < 2**31):
            raise ConfigurationError("priority", priority, "must be a Pod's priority, a 32-bit integer")
        if self.observed_version is None and whole is not None:
            set_field(self, "observed_version", version_of(self.pod))
        for name in ("observed_version", "order_version"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigurationError(name, value, "must be a string that is not empty, or None")

    @property
    def whole(self) -> dict[str, Any] | None:
        """The Pod that it was decided on, as JSON; None if only a ref was given."""
        if isinstance(self.pod, ObjectRef) or field_of(self.pod, "spec") is None:
            return None
        return self.pod if isinstance(self.pod, dict) else dict(to_json(self.pod, "pod"))

    def content(self) -> tuple[Any, ...]:
        """What must be equal where the id is."""
        return (self.ref, self.node, self.algorithm_version, self.reason, self.ttl, self.order_version)


@dataclass(frozen=True, kw_only=True)
class NominationPolicy:
    """For whom nominations are made, and how much of them. Times are seconds.

    `namespaces`, `priority_classes` and `schedulers` name what is in the rollout; None: any. `percentage` of those
    Pods, by a stable hash of their uid: the others are who you compare with. `gated`: Pods with scheduling gates are
    welcome.

    `max_ttl` bounds a decision's TTL, `hint_budget` the time that one Pod is hinted in all (N16): an autoscaler does
    nothing for a Pod that is nominated. `writes_per_second` and `burst` bound the writes, `writes_per_pod` those that
    set a hint in one Pod, `max_live` the decisions at one time. `max_conflicts`: so often others may be faster.
    `adoption_slack` is what victims have beyond their grace period (N15). A Pod that is bound within `raced_within` of
    the write was likely decided before it. `max_staleness`: nothing is written by a view of the cluster older than
    that. `call_timeout` is that of one write or read, `drain_timeout` that of taking everything back, and of one write
    or read for that. After a 403, nothing is written for `forbidden_hold`. `prefix` is that of the annotations.
    """

    namespaces: tuple[str, ...] | None = None
    priority_classes: tuple[str, ...] | None = None
    schedulers: tuple[str, ...] | None = ("default-scheduler",)
    percentage: float = 100.0
    gated: bool = True
    max_ttl: float = 300.0
    hint_budget: float = 900.0
    writes_per_second: float = 50.0
    burst: int = 50
    writes_per_pod: int = 10
    max_live: int = 5_000
    max_conflicts: int = 3
    adoption_slack: float = 30.0
    raced_within: float = 2.0
    max_staleness: float = 120.0
    call_timeout: float = 10.0
    drain_timeout: float = 60.0
    forbidden_hold: float = 60.0
    prefix: str = PREFIX
    share: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        for name in ("namespaces", "priority_classes", "schedulers"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        for name, pattern, most, remedy in _OBJECT_NAMES:
            for value in getattr(self, name) or ():
                if len(value) > most or not pattern.fullmatch(value):
                    raise ConfigurationError(name, value, f"matches no Pod: must be {remedy}, at most {most} of them")
        object.__setattr__(self, "share", share_of("percentage", self.percentage))
        if not self.share:
            raise ConfigurationError("percentage", self.percentage, "matches no Pod: use Nominator.rollback to stop")
        for name in ("max_ttl", "hint_budget", "writes_per_second", "max_staleness", "call_timeout", "drain_timeout"):
            check_seconds(name, getattr(self, name))
        for name in ("adoption_slack", "raced_within", "forbidden_hold"):
            check_seconds(name, getattr(self, name), zero=True)
        for name in ("burst", "writes_per_pod", "max_live"):
            check_count(name, getattr(self, name))
        check_count("max_conflicts", self.max_conflicts, least=0)
        if not isinstance(self.gated, bool):
            raise ConfigurationError("gated", self.gated, "must be True or False")
        checked_prefix(self.prefix)
        if self.max_ttl > self.hint_budget:
            raise ConfigurationError("max_ttl", self.max_ttl, f"must not be above hint_budget={self.hint_budget!r}")

    def admits(self, ref: ObjectRef) -> bool:
        """The Pod is in the share of the rollout."""
        return bucket_of(ref) < self.share

    def check(self, decision: Decision) -> None:
        """Raises `ConfigurationError` for what is no decision, or has a TTL beyond `max_ttl`."""
        if not isinstance(decision, Decision):
            raise ConfigurationError("decision", decision, "must be a Decision")
        if decision.ttl > self.max_ttl:
            raise ConfigurationError("ttl", decision.ttl, f"must not be above the policy's {self.max_ttl:g} s")

    def excludes(self, pod: dict[str, Any]) -> str | None:
        """Why the policy leaves a Pod out, its share of the rollout aside; None if it does not."""
        meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
        for what, allowed, found in (
            ("namespace", self.namespaces, meta.get("namespace")),
            ("priorityClassName", self.priority_classes, spec.get("priorityClassName")),
            ("schedulerName", self.schedulers, spec.get("schedulerName") or "default-scheduler"),
        ):
            if allowed is not None and found not in allowed:
                return f"{what} {found} is outside of the policy"
        if spec.get("schedulingGates") and not self.gated:
            return "it has scheduling gates, and the policy leaves those out"
        return None


def _check_reason(reason: Any) -> None:
    """A decision's reason, which becomes an annotation."""
    if not isinstance(reason, str) or not reason:
        raise ConfigurationError("reason", reason, "must be a string that is not empty: it is for people")
    try:
        length = len(reason.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError("reason", reason, "has half a character (a lone surrogate): it is no UTF-8") from error
    if length > MAX_REASON:
        remedy = f"is an annotation of at most {MAX_REASON} bytes: say it shorter"
        raise ConfigurationError("reason", f"{length} bytes", remedy)


def checked_cause(reason: Any) -> str:
    """Why a hint is taken back, for people. `ConfigurationError` if it is no string.

    Any string will do, an empty one too: taking back must not fail for want of words.
    """
    if not isinstance(reason, str):
        raise ConfigurationError("reason", reason, "must be a string: it is for people")
    return reason.encode(errors="replace").decode()


def checked_reporter(name: Any) -> str:
    """`name` as who reports Events; `ConfigurationError` for what the API server would refuse each of them for."""
    if not isinstance(name, str) or len(name) > MAX_NAME or not _REPORTER.fullmatch(name):
        remedy = f"must be as a label's key: letters, digits, '-', '_' and '.', at most {MAX_NAME} of them"
        raise ConfigurationError("name", name, remedy)
    return name


def checked_prefix(prefix: Any) -> str:
    """`prefix` as that of annotations; `ConfigurationError` if it is no DNS subdomain, or is Kubernetes' own."""
    if not isinstance(prefix, str) or len(prefix) > 253 or not _DNS.fullmatch(prefix):
        remedy = "must be a DNS subdomain, as before the slash of a label: 'nomination.example.com'"
        raise ConfigurationError("prefix", prefix, remedy)
    if any(prefix == own or prefix.endswith(f".{own}") for own in ("kubernetes.io", "k8s.io")):
        raise ConfigurationError("prefix", prefix, "is reserved for Kubernetes itself: take a domain of yours")
    return prefix


def _names(label: str, names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigurationError(label, names, "must be a tuple of names, or None for any")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(label, name, "must be a string that is not empty")
    if not found:
        raise ConfigurationError(label, found, "matches no Pod: name one, or None for any")
    if len(set(found)) < len(found):
        raise ConfigurationError(label, found, "has a name twice: was another one meant?")
    return found


@dataclass(frozen=True, kw_only=True)
class NominationOutcome:
    """How a decision ended (N9).

    `state` is one of the outcomes of `NominationState` (what `withdraw` and `rollback` return may stand yet), `reason`
    for people. `bound_to` is the node that the Pod was bound to, if that was seen. `raced`: it had no gates and was
    bound at about the time of the write, so that the hint has most likely not been looked at. `written`: the hint was
    in the Pod for certain. `hinted_seconds` for how long it was, or may have been, `elapsed_seconds` the time since
    `nominate`.
    """

    decision: Decision
    state: NominationState
    reason: str
    bound_to: str | None = None
    raced: bool = False
    written: bool = False
    hinted_seconds: float = 0.0
    elapsed_seconds: float = 0.0

    @property
    def hit(self) -> bool:
        return self.state is NominationState.HIT

    def __str__(self) -> str:
        return f"{self.decision.ref} to {self.decision.node}: {self.state.value}, {self.reason}"
