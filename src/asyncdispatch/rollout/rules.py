"""Rollout: which calls are dispatched asynchronously, by flow, namespace, priority level and share of Pods.

A call outside of it is treated as in mode SYNC. All calls of one scheduling context are treated alike, since they are
judged by the context's object: a bind never goes another way than its prerequisites.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from asyncdispatch.calls import APICall, ObjectRef
from asyncdispatch.config import PriorityLevels
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.rollout.gates import ASYNC_API_CALLS, FeatureGates

__all__ = ["Explanation", "Rollout", "Rule", "bucket_of"]

BUCKETS = 10_000
"""Shares are told apart to a hundredth of a percent."""


def bucket_of(ref: ObjectRef) -> int:
    """Where an object falls, from 0 to 9,999: by its uid (without one by its lane), alike in every process and version.

    An object is within a percentage p if its bucket is below 100·p. So whoever is in at 5 % is in at 10 %.
    """
    mixed = zlib.crc32((ref.uid or ref.lane).encode()) * 0x9E3779B1 & 0xFFFFFFFF  # a CRC alone is linear in its bits
    return mixed * BUCKETS >> 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """For calls of these flows, namespaces and priority levels (empty: of any), the share that is asynchronous.

    `percentage` from 0 (none: a rule that keeps them out) to 100 (all), of objects by a stable hash of their uid.
    """

    name: str
    percentage: float = 100.0
    flows: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    share: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigurationError("Rule.name", self.name, "must be a string that is not empty")
        object.__setattr__(self, "share", share_of(f"Rule {self.name!r}: percentage", self.percentage))
        for what in ("flows", "namespaces", "levels"):
            names = getattr(self, what)
            if isinstance(names, str) or not isinstance(names, Iterable):
                raise ConfigurationError(f"Rule {self.name!r}: {what}", names, "must be a tuple of names")
            names = tuple(names)
            if not all(isinstance(name, str) and name for name in names):
                raise ConfigurationError(f"Rule {self.name!r}: {what}", names, "must be a tuple of names")
            object.__setattr__(self, what, names)


def share_of(label: str, percentage: Any) -> int:
    """A percentage as a number of buckets. Raises `ConfigurationError` if it is out of range."""
    number = isinstance(percentage, (int, float)) and not isinstance(percentage, bool)
    if not number or not 0 <= percentage <= 100:
        raise ConfigurationError(label, percentage, "must be a percentage from 0 to 100")
    share = int(percentage * BUCKETS / 100 + 0.5)
    if not share and percentage:
        raise ConfigurationError(label, percentage, "is too fine: shares are told apart to 0.01 %")
    return share


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a call is within the rollout, and why. `rule` is the first that matched, or None."""

    admitted: bool
    rule: Rule | None
    reason: str

    def __bool__(self) -> bool:
        return self.admitted

    def __str__(self) -> str:
        return f"{'asynchronous' if self.admitted else 'synchronous'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that decides, in one value, so that a change is one assignment."""

    gates: FeatureGates | None
    rules: tuple[Rule, ...]
    cap: int
    why_capped: str

    @property
    def off(self) -> bool:
        return self.gates is not None and not self.gates[ASYNC_API_CALLS]

    @property
    def everything(self) -> bool:
        """Every call is in: nothing needs to be looked at."""
        whole = not self.rules or _matches_all(self.rules[0])
        return not self.off and self.cap == BUCKETS and whole


class Rollout:
    """Which calls are asynchronous. `Rollout()` is all of them; give it to `Dispatcher(rollout=…)`.

    The first rule that matches decides; with rules, a call that none matches stays synchronous. `gates` with
    `AsyncAPICalls` off keep all out. `levels` are the dispatcher's. Raises `ConfigurationError` for a percentage out
    of range, a level that does not exist, a name used twice, or a rule that can never match.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        gates: FeatureGates | None = None,
        levels: PriorityLevels = PriorityLevels(),
    ) -> None:
        if not isinstance(levels, PriorityLevels):
            raise ConfigurationError("levels", levels, "must be PriorityLevels, the dispatcher's")
        self._levels = levels
        self._names = levels.names
        self._lock = threading.Lock()
        self._plan = self._checked(_Plan(gates, tuple(rules), BUCKETS, ""))
        self._everything = self._plan.everything

    # -- deciding ---------------------------------------------------------------------------------------------------

    def admits(self, call: APICall[Any]) -> bool:
        """True if the call is to be asynchronous. On the way of every submission: nothing is looked up in vain."""
        if self._everything:
            return True
        context = call.context
        ref = call.target if context is None else context.ref
        return self._decide(self._plan, ref, call.flow, call.priority)[0]

    def _decide(self, plan: _Plan, ref: ObjectRef, flow: str, priority: int) -> tuple[bool, Rule | None]:
        if plan.off:
            return False, None
        rule = self._first(plan, flow, ref.namespace, priority) if plan.rules else None
        share = rule.share if rule is not None else 0 if plan.rules else BUCKETS
        if share > plan.cap:
            share = plan.cap
        return share == BUCKETS or (share > 0 and bucket_of(ref) < share), rule

    def _first(self, plan: _Plan, flow: str, namespace: str | None, priority: int) -> Rule | None:
        level = None
        for rule in plan.rules:
            if (rule.flows and flow not in rule.flows) or (rule.namespaces and namespace not in rule.namespaces):
                continue
            if rule.levels:
                level = level or self._level(priority)
                if level not in rule.levels:
                    continue
            return rule
        return None

    def _level(self, priority: int) -> str:
        return self._names[self._levels.level_of(priority)]

    def explain(self, what: Any, *, flow: str = "default", priority: int | None = None) -> Explanation:
        """Why a call, or a Pod (dict, client model or ObjectRef) in `flow`, is in or out.

        A dict that says of no kind, as in the items of a list, is taken for a Pod. The priority is the call's or the
        Pod's own unless given. Raises `ConfigurationError` for what is neither.
        """
        if isinstance(what, APICall):
            ref = what.target if what.context is None else what.context.ref
            flow, own = what.flow, what.priority
        else:
            ref, own = ObjectRef.of(_as_pod(what)), _priority_of(what)
        priority = own if priority is None else priority
        plan = self._plan
        admitted, rule = self._decide(plan, ref, flow, priority)
        return Explanation(admitted, rule, self._reason(plan, rule, ref, flow, priority))

    def _reason(self, plan: _Plan, rule: Rule | None, ref: ObjectRef, flow: str, priority: int) -> str:
        if plan.off:
            return f"feature gate {ASYNC_API_CALLS} is off"
        if rule is None and plan.rules:
            where = f"namespace {ref.namespace}" if ref.namespace else "no namespace"
            return f"no rule matches (flow {flow}, {where}, level {self._level(priority)})"
        share = BUCKETS if rule is None else rule.share
        if rule is None:
            what = "there are no rules"
        else:
            what = f"rule {rule.name!r} ({rule.percentage:g} %) is the first that matches"
        if share in (0, BUCKETS) and plan.cap >= share:
            return what
        by = "uid" if ref.uid else "name, for want of a uid"
        place = f"{ref} falls at {bucket_of(ref) * 100 / BUCKETS:.2f} % by {by}"
        capped = f"; held to {plan.cap * 100 / BUCKETS:g} % ({plan.why_capped})" if plan.cap < share else ""
        return f"{what}; {place}{capped}"

    # -- changing ---------------------------------------------------------------------------------------------------

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self._plan.rules

    @property
    def gates(self) -> FeatureGates | None:
        return self._plan.gates

    def replace(self, rules: Iterable[Rule] | None = None, *, gates: FeatureGates | None = None) -> None:
        """Change at run time, all at once: calls submitted from now on are decided anew, those accepted stay.

        None keeps what is there. If anything is wrong it raises `ConfigurationError` and nothing has changed. May be
        called from any thread.
        """
        with self._lock:
            old = self._plan
            new_rules = old.rules if rules is None else tuple(rules)
            self._set(_Plan(old.gates if gates is None else gates, new_rules, old.cap, old.why_capped))

    def hold_to(self, percentage: float, reason: str) -> None:
        """Let at most this percentage of objects in, whatever the rules say; 100 lifts it. The guard uses it."""
        with self._lock:
            old = self._plan
            self._set(_Plan(old.gates, old.rules, share_of("percentage", percentage), reason))

    def _set(self, plan: _Plan) -> None:
        self._plan = self._checked(plan)
        self._everything = self._plan.everything

    def _checked(self, plan: _Plan) -> _Plan:
        if plan.gates is not None and not isinstance(plan.gates, FeatureGates):
            raise ConfigurationError("gates", plan.gates, "must be FeatureGates")
        if plan.gates is not None:
            plan.gates[ASYNC_API_CALLS]  # raises if it is not among the known ones
        names: set[str] = set()
        for index, rule in enumerate(plan.rules):
            if not isinstance(rule, Rule):
                raise ConfigurationError("rules", rule, "must be Rules")
            if rule.name in names:
                raise ConfigurationError("rules", rule.name, "is the name of two rules")
            names.add(rule.name)
            for level in rule.levels:
                if level not in self._names:
                    raise ConfigurationError(f"Rule {rule.name!r}: levels", level, f"is none of {self._names}")
            if index and (wider := next((r for r in plan.rules[:index] if _covers(r, rule)), None)) is not None:
                raise ConfigurationError("rules", rule.name, f"can never match after {wider.name!r}: put it before")
        return plan

    def __repr__(self) -> str:
        plan = self._plan
        return f"<Rollout {'off' if plan.off else 'everything' if plan.everything else list(plan.rules)}>"


def _matches_all(rule: Rule) -> bool:
    return rule.share == BUCKETS and not (rule.flows or rule.namespaces or rule.levels)


def _covers(wider: Rule, rule: Rule) -> bool:
    """True if every call that `rule` matches is matched by `wider` as well."""
    pairs = ((wider.flows, rule.flows), (wider.namespaces, rule.namespaces), (wider.levels, rule.levels))
    return all(not wide or (bool(narrow) and set(narrow) <= set(wide)) for wide, narrow in pairs)


def _as_pod(obj: Any) -> Any:
    """Items of a list carry neither `kind` nor `apiVersion`."""
    if isinstance(obj, dict) and not obj.get("kind") and not obj.get("apiVersion"):
        return {**obj, "kind": "Pod", "apiVersion": "v1"}
    return obj


def _priority_of(obj: Any) -> int:
    if isinstance(obj, ObjectRef):
        return 0
    spec = obj.get("spec") if isinstance(obj, dict) else getattr(obj, "spec", None)
    value = spec.get("priority") if isinstance(spec, dict) else getattr(spec, "priority", None)
    return value if isinstance(value, int) else 0
