"""Passes on what a nominator sees to its study and its metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from asyncdispatch.config import PriorityLevels
from asyncdispatch.kubernetes.objects import field_of
from asyncdispatch.nomination.actions import Answer, Write
from asyncdispatch.nomination.judging import misplaced
from asyncdispatch.nomination.metrics import NominationMetrics
from asyncdispatch.nomination.scraped import Spread
from asyncdispatch.nomination.states import Life
from asyncdispatch.nomination.study import NominationReport, RollbackRule, Study

if TYPE_CHECKING:
    from asyncdispatch.nomination.machine import Nominations

__all__ = ["Observing"]

log = logging.getLogger("asyncdispatch.nomination")

Json = dict[str, Any]


class Observing:
    """One study, and metrics if there is a registry."""

    def __init__(
        self,
        machine: Nominations,
        rule: RollbackRule | None,
        registry: CollectorRegistry | None,
        cluster: str,
        levels: PriorityLevels,
    ) -> None:
        self._machine = machine
        self._judges = rule is not None
        self._study = Study(machine.policy, rule if rule is not None else RollbackRule())
        self._metrics = None if registry is None else NominationMetrics(registry, cluster, levels)
        self._now = 0.0
        self._suspects: list[tuple[Life, str]] = []
        if self._metrics is not None:
            self._metrics.show(self._live, self._oldest, lambda: machine.off is not None)

    def _live(self, state: Any) -> int:
        return sum(life.phase is state for life in list(self._machine.lives.values()))

    def _oldest(self) -> float:
        begun = [life.planned_at for life in list(self._machine.lives.values())]
        return self._now - min(begun) if begun else 0.0

    def saw(self, pod: Json, now: float) -> None:
        self._now = now
        bound = self._study.see(pod, now)
        if bound is not None and self._metrics is not None:
            self._metrics.bound(*bound)

    def lost(self, pod: Json, now: float) -> None:
        """A Pod is gone."""
        seconds = self._study.gone(pod, now)
        if seconds is not None and self._metrics is not None:
            self._metrics.terminated(seconds)

    def ended(self, life: Life, now: float) -> None:
        outcome = life.outcome
        assert outcome is not None
        self._study.ended(outcome, now)
        if outcome.hit and outcome.written:
            why = misplaced(life, self._machine.room)
            if why is not None:
                self._suspects.append((life, why))
        if self._metrics is not None:
            seen = self._machine.room.pod_of(life)
            obj = seen.obj if seen is not None else life.decision.whole
            self._metrics.ended(outcome, life.priority, field_of(obj, "spec", "schedulerName") or "default-scheduler")

    def wrote(self, write: Write, answer: Answer) -> None:
        if self._metrics is not None:
            self._metrics.wrote("clear" if write.node is None else "set", answer.fate.value)

    def verdict(self, now: float) -> str | None:
        """Why nomination is to be rolled back by itself, or None."""
        self._now = now
        suspects, self._suspects = self._suspects, []
        for life, why in suspects:
            self._weigh(life, why, now)
        return self._study.verdict(now) if self._judges and self._machine.off is None else None

    def _weigh(self, life: Life, why: str, now: float) -> None:
        """A binding that looked wrong as it came.

        By now the watches have told what was under way then: if it still does, or the Pod has failed there, it was.
        """
        room = self._machine.room
        pod = room.pod_of(life)
        failed = pod is not None and field_of(pod.obj, "status", "phase") == "Failed"
        if failed or misplaced(life, room) is not None:
            ref, node = life.decision.ref, life.node
            extra = {"decision_id": life.decision_id, "pod": str(ref), "node": node}
            log.warning("%s was bound to the hinted node %s, which %s", ref, node, why, extra=extra)
            self._study.misplaced(now)

    def begin_anew(self, now: float) -> None:
        self._study.reset(now)

    def report(self, now: float, filtering: Spread | None) -> NominationReport:
        return self._study.report(now, len(self._machine.lives), self._machine.off, filtering)
