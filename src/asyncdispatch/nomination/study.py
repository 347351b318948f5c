"""Does it help? Pods in the rollout beside Pods outside of it: same scope, same priority, same window. Pure.

The Pods are told apart by the rollout's share, a stable hash of their uid, and not by whether a hint was written: who
gets one is chosen, and would not compare. The number of writes proves nothing.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from asyncdispatch.calls import ObjectRef
from asyncdispatch.config import check_count, check_seconds
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.nomination.decisions import NominationOutcome, NominationPolicy
from asyncdispatch.nomination.scraped import Spread
from asyncdispatch.nomination.states import NominationState
from asyncdispatch.nomination.views import PREEMPTED

__all__ = ["Arm", "NominationReport", "RollbackRule", "Study"]

Json = dict[str, Any]
S = NominationState
MAX_SAMPLES = 20_000
"""Of each arm; the oldest go first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackRule:
    """When nomination makes things worse, and is switched off by itself. None for what is not judged.

    Within the last `window` seconds, with at least `min_samples` on either side: more than one in ten Pods of the
    rollout takes longer from Pending to its binding than `slower` times the 90th percentile of those outside, of the
    same priority; more than `fallbacks` of the hinted Pods are bound elsewhere; more than `churn` of the hints are
    overwritten or cleared. A breach needs evidence: at most a chance of `false_alarm` that a system just at its limit
    shows so much. `wrong_bindings`: so many Pods were bound to a hinted node that the decision's own
    grounds exclude: it was gone, cordoned or not ready, had a taint that the Pod does not tolerate or not the labels of
    its nodeSelector, or held more than it has room for.
    """

    slower: float | None = 1.5
    fallbacks: float | None = 0.5
    churn: float | None = 0.5
    wrong_bindings: int | None = 3
    window: float = 900.0
    min_samples: int = 30
    false_alarm: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("fallbacks", "churn"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise ConfigurationError(name, value, "must be a share above 0 and below 1, or None")
        if self.slower is not None and not 1 < self.slower < math.inf:
            raise ConfigurationError("slower", self.slower, "must be a factor above 1, or None")
        if self.wrong_bindings is not None:
            check_count("wrong_bindings", self.wrong_bindings)
        check_seconds("window", self.window)
        check_count("min_samples", self.min_samples)
        if not 0 < self.false_alarm <= 0.01:
            raise ConfigurationError("false_alarm", self.false_alarm, "must be above 0, 0.01 at most")


@dataclass(frozen=True, slots=True)
class Arm:
    """Pods that were bound, and the seconds from Pending (without gates) to the binding."""

    pods: int
    median: float | None
    p90: float | None

    def __str__(self) -> str:
        if self.median is None or self.p90 is None:
            return "no Pods"
        return f"{self.pods} Pods, median {self.median:.2f} s, P90 {self.p90:.2f} s"


@dataclass(frozen=True, kw_only=True)
class NominationReport:
    """What nomination has done, and beside it what went without. `str(report)` is for people.

    `hits` and `fallbacks` leave out the *raced*: bound at about the time of the write, the hint was hardly looked at.
    `by_priority`: (inside, outside) for each priority that both have. `verdict`: why it should be rolled back, or None.
    `filtering`: how long the scheduler has filtered nodes for a Pod, by its own account, where that was scraped.
    """

    window: float
    live: int
    off: str | None
    outcomes: dict[str, int]
    hits: int
    fallbacks: int
    raced: int
    field_clears: int
    wrong_bindings: int
    fallback_seconds: float | None
    victim_seconds: float | None
    inside: Arm
    outside: Arm
    by_priority: dict[int, tuple[Arm, Arm]]
    verdict: str | None
    filtering: Spread | None = None

    @property
    def hit_rate(self) -> float | None:
        """Of the hinted Pods that were bound, those bound to the node."""
        bound = self.hits + self.fallbacks
        return self.hits / bound if bound else None

    def __str__(self) -> str:
        rate = "-" if self.hit_rate is None else f"{self.hit_rate:.0%}"
        ended = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items())) or "none"
        lines = [
            f"nomination: {'on' if self.off is None else f'off, {self.off}'}; {self.live} live hints",
            f"ended: {ended}",
            f"hit rate: {rate} ({self.hits} hits, {self.fallbacks} fallbacks; {self.raced} raced)",
            f"field cleared by others: {self.field_clears}; bindings to unfit nodes: {self.wrong_bindings}",
            f"hint to binding elsewhere: {_seconds(self.fallback_seconds)}",
            f"termination of victims: {_seconds(self.victim_seconds)}",
            f"Pending to binding, last {self.window:.0f} s, in the rollout: {self.inside}",
            f"Pending to binding, last {self.window:.0f} s, outside of it: {self.outside}",
        ]
        for priority, (inside, outside) in sorted(self.by_priority.items(), reverse=True):
            lines.append(f"  priority {priority}: in {inside}; outside {outside}")
        if self.filtering is not None:
            lines.append(f"the scheduler's filtering of nodes for a Pod: {self.filtering}")
        lines.append(f"verdict: {self.verdict or 'nothing speaks against it'}")
        return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"median {value:.2f} s"


@dataclass(slots=True)
class _Samples:
    """(when, priority, seconds) of bindings."""

    bound: deque[tuple[float, int, float]] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))

    def since(self, begin: float, priority: int | None = None) -> list[float]:
        return sorted(s for at, p, s in self.bound if at >= begin and priority in (None, p))

    def priorities(self, begin: float) -> set[int]:
        return {p for at, p, _ in self.bound if at >= begin}


class Study:
    """Watches Pods and outcomes. `now` is passed in, in seconds of a monotonic clock."""

    def __init__(self, policy: NominationPolicy, rule: RollbackRule) -> None:
        self.policy, self.rule = policy, rule
        self.begun: float | None = None
        self._pending: dict[str, float] = {}
        self._victims: dict[str, float] = {}
        self._inside, self._outside = _Samples(), _Samples()
        self._ended: deque[tuple[float, NominationOutcome]] = deque(maxlen=MAX_SAMPLES)
        self._wrong: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._victim_seconds: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)
        self.outcomes: Counter[NominationState] = Counter()

    # -- told ---------------------------------------------------------------------------------------------------------

    def see(self, pod: Json, now: float) -> tuple[str, int, float] | None:
        """A Pod came or changed. Returns arm, priority and seconds, if it has just been bound."""
        meta, spec = pod["metadata"], pod.get("spec") or {}
        uid = meta.get("uid", "")
        if meta.get("deletionTimestamp") is not None:
            self._pending.pop(uid, None)
            if spec.get("nodeName") and _preempted(pod):
                self._victims.setdefault(uid, now)
            return None
        if not spec.get("nodeName"):
            fresh = uid not in self._pending and not spec.get("schedulingGates")
            if fresh and self.policy.excludes(pod) is None:
                self._pending[uid] = now
            return None
        since = self._pending.pop(uid, None)
        if since is None:
            return None
        inside = self.policy.admits(ObjectRef("v1", "Pod", meta.get("namespace"), meta["name"], uid))
        samples, priority = self._inside if inside else self._outside, int(spec.get("priority") or 0)
        samples.bound.append((now, priority, now - since))
        return ("inside" if inside else "outside", priority, now - since)

    def gone(self, pod: Json, now: float) -> float | None:
        """A Pod is gone. Returns the seconds that it took to terminate, if it was a victim of a preemption."""
        uid = pod["metadata"].get("uid", "")
        self._pending.pop(uid, None)
        since = self._victims.pop(uid, None)
        if since is None:
            return None
        self._victim_seconds.append((now, now - since))
        return now - since

    def ended(self, outcome: NominationOutcome, now: float) -> None:
        """A decision has its outcome."""
        self.outcomes[outcome.state] += 1
        self._ended.append((now, outcome))

    def misplaced(self, now: float) -> None:
        """A Pod was bound to a hinted node that its decision's own grounds exclude."""
        self._wrong.append(now)

    def reset(self, now: float) -> None:
        """After a rollback: what was before it says nothing about what comes."""
        self.begun = now

    # -- asked --------------------------------------------------------------------------------------------------------

    def report(self, now: float, live: int, off: str | None, filtering: Spread | None = None) -> NominationReport:
        begin = max(now - self.rule.window, self.begun if self.begun is not None else -math.inf)
        ended = [outcome for at, outcome in self._ended if at >= begin]
        fallbacks = [o for o in ended if o.state is S.FALLBACK and o.written and not o.raced]
        shared = self._inside.priorities(begin) & self._outside.priorities(begin)
        return NominationReport(
            window=self.rule.window,
            live=live,
            off=off,
            outcomes={state.value: count for state, count in self.outcomes.items()},
            hits=sum(o.state is S.HIT and o.written and not o.raced for o in ended),
            fallbacks=len(fallbacks),
            raced=sum(o.raced for o in ended),
            field_clears=sum(o.state is S.CLEARED for o in ended),
            wrong_bindings=sum(at >= begin for at in self._wrong),
            fallback_seconds=_quantile(sorted(o.hinted_seconds for o in fallbacks), 0.5),
            victim_seconds=_quantile(sorted(s for at, s in self._victim_seconds if at >= begin), 0.5),
            inside=_arm(self._inside.since(begin)),
            outside=_arm(self._outside.since(begin)),
            by_priority={
                p: (_arm(self._inside.since(begin, p)), _arm(self._outside.since(begin, p))) for p in sorted(shared)
            },
            verdict=self._verdict(begin, ended),
            filtering=filtering,
        )

    def verdict(self, now: float) -> str | None:
        """Why nomination should be rolled back, or None."""
        begin = max(now - self.rule.window, self.begun if self.begun is not None else -math.inf)
        return self._verdict(begin, [outcome for at, outcome in self._ended if at >= begin])

    def _verdict(self, begin: float, ended: list[NominationOutcome]) -> str | None:
        rule = self.rule
        wrong = sum(at >= begin for at in self._wrong)
        if rule.wrong_bindings is not None and wrong >= rule.wrong_bindings:
            return f"{wrong} Pods were bound to hinted nodes that were of no use to them"
        written = [o for o in ended if o.written]
        bound = [o for o in written if o.state in (S.HIT, S.FALLBACK) and not o.raced]
        away = sum(o.state is S.FALLBACK for o in bound)
        if rule.fallbacks is not None and self._surely(away, len(bound), rule.fallbacks):
            return f"{away} of {len(bound)} hinted Pods were bound elsewhere"
        churned = sum(o.state in (S.CLEARED, S.OVERWRITTEN) for o in written)
        if rule.churn is not None and self._surely(churned, len(written), rule.churn):
            return f"{churned} of {len(written)} hints were overwritten or cleared by others"
        return None if rule.slower is None else self._slower(begin, rule.slower)

    def _slower(self, begin: float, factor: float) -> str | None:
        late = count = 0
        for priority in sorted(self._inside.priorities(begin) & self._outside.priorities(begin)):
            outside = self._outside.since(begin, priority)
            limit = _quantile(outside, 0.9)
            if len(outside) < self.rule.min_samples or limit is None:
                continue
            inside = self._inside.since(begin, priority)
            late += sum(seconds > factor * limit for seconds in inside)
            count += len(inside)
        if self._surely(late, count, 0.1):
            return f"{late} of {count} Pods of the rollout took {factor:g} times the P90 of those outside to be bound"
        return None

    def _surely(self, count: int, of: int, limit: float) -> bool:
        """More than `limit` of them, beyond chance (Chernoff's bound, as for the dispatcher's guard)."""
        if of < self.rule.min_samples or count <= limit * of:
            return False
        share = count / of
        divergence = share * math.log(share / limit)
        if share < 1:
            divergence += (1 - share) * math.log((1 - share) / (1 - limit))
        return math.exp(-of * divergence) <= self.rule.false_alarm


def _preempted(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "DisruptionTarget" and c.get("reason") == PREEMPTED for c in conditions)


def _quantile(ordered: list[float], q: float) -> float | None:
    """By nearest rank."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else None


def _arm(ordered: list[float]) -> Arm:
    return Arm(len(ordered), _quantile(ordered, 0.5), _quantile(ordered, 0.9))
