"""Passes on what a nominator sees to its study and its metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from asyncdispatch.config import PriorityLevels
from asyncdispatch.kubernetes.objects import field_of, priority_of
from asyncdispatch.nomination.actions import Answer, Write
from asyncdispatch.nomination.judging import misplaced
from asyncdispatch.nomination.metrics import UNHINTED, NominationMetrics, Standing, Whose
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
        self.clock: Callable[[], float] = float  # the event loop's, once there is one
        self._suspects: list[tuple[Life, str]] = []
        self._metrics: NominationMetrics | None = None
        if registry is not None:
            self._metrics = NominationMetrics(registry, cluster, levels, self._live, lambda: machine.off is not None)

    def _live(self) -> list[Standing]:
        lives, now = list(self._machine.lives.values()), self.clock()
        return [(self._whose(life), life.phase, max(0.0, now - life.planned_at)) for life in lives]

    def _whose(self, life: Life) -> Whose:
        seen = self._machine.room.pod_of(life)
        obj = seen.obj if seen is not None else life.decision.whole
        return Whose(life.priority, _scheduler(obj), life.decision.algorithm_version)

    def saw(self, pod: Json, now: float) -> None:
        bound = self._study.see(pod, now)
        if bound is not None and self._metrics is not None:
            arm, priority, seconds = bound
            life = self._machine.by_uid.get(field_of(pod, "metadata", "uid"))
            version = life.decision.algorithm_version if life is not None and life.written else UNHINTED
            self._metrics.bound(arm, seconds, Whose(priority, _scheduler(pod), version))

    def lost(self, pod: Json, now: float) -> None:
        """A Pod is gone."""
        seconds = self._study.gone(pod, now)
        if seconds is not None and self._metrics is not None:
            self._metrics.terminated(seconds, Whose(priority_of(pod), _scheduler(pod)))

    def ended(self, life: Life, now: float) -> None:
        outcome = life.outcome
        assert outcome is not None
        self._study.ended(outcome, now)
        if outcome.hit and outcome.written:
            why = misplaced(life, self._machine.room)
            if why is not None:
                self._suspects.append((life, why))
        if self._metrics is not None:
            self._metrics.ended(outcome, self._whose(life))

    def wrote(self, write: Write, answer: Answer) -> None:
        if self._metrics is None:
            return
        decision, machine = write.decision, self._machine
        life = machine.lives.get(decision.decision_id) or machine.ended.get(decision.decision_id)
        whose = Whose(write.priority, _scheduler(decision.whole), decision.algorithm_version)
        whose = whose if life is None else self._whose(life)
        self._metrics.wrote("clear" if write.node is None else "set", answer.fate.value, whose)

    def verdict(self, now: float) -> str | None:
        """Why nomination is to be rolled back by itself, or None."""
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
        self._suspects.clear()
        self._study.reset(now)

    def report(self, now: float, filtering: Spread | None) -> NominationReport:
        return self._study.report(now, len(self._machine.lives), self._machine.off, filtering)


def _scheduler(pod: Json | None) -> str:
    """The name of a Pod's scheduler."""
    return field_of(pod, "spec", "schedulerName") or "default-scheduler"
