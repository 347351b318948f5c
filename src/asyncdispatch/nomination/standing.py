"""What is done about a hint that stands: it is watched, weighed against its grounds, and taken back. Pure."""

from __future__ import annotations

import heapq
import math
from datetime import datetime

from asyncdispatch.nomination.book import Book
from asyncdispatch.nomination.decisions import Decision
from asyncdispatch.nomination.judging import Judgement, ground_lost, judge
from asyncdispatch.nomination.states import Life, NominationState
from asyncdispatch.nomination.views import PodView, is_older

__all__ = ["Standing", "hinted_before"]

S = NominationState


class Standing(Book):
    """From NOMINATED on, but for the writes."""

    def _release(self, life: Life, state: NominationState, reason: str, now: float) -> None:
        """Take it back; the first reason counts. While ADOPTED or in flight that waits (N5, N6)."""
        if life.release is None:
            life.release = (state, reason)
        if life.phase is S.PLANNED:
            self._end(life, Judgement(*life.release), now)
        elif life.phase is S.NOMINATED:
            self._move_to_releasing(life)

    def _move_to_releasing(self, life: Life) -> None:
        life.move(S.RELEASING)
        life.failures, life.again_at = 0, -math.inf
        self._queue(life)

    def _review(self, life: Life, pod: PodView | None, now: float, *, fresh: bool) -> None:
        """Look at a hint that was written, by its Pod as seen now."""
        if life.phase not in (S.NOMINATED, S.ADOPTED, S.RELEASING):
            return
        if pod is not None and pod.uid == life.uid:
            if is_older(pod.version, life.version):
                return  # a view of before our own write
            life.version = pod.version
        judgement = judge(life, pod)
        if judgement is not None:
            ours = life.phase is S.RELEASING and life.clear_sent
            if judgement.state is S.CLEARED and ours and life.release is not None:
                judgement = Judgement(*life.release)  # by us: only the answer was lost
            self._end(life, judgement, now)
            return
        assert pod is not None
        life.requests = pod.requests
        if life.phase is not S.RELEASING or fresh:
            self._weigh(life, now)
        if life.phase is S.NOMINATED and life.pod_grounds not in (None, pod.grounds):
            self._release(life, S.STALE, "the Pod has changed in what decides where it may go", now)

    def _weigh(self, life: Life, now: float) -> None:
        """Is it adopted, is it any more, and do the grounds still hold?"""
        evidence = self.room.victims_for(life)
        if evidence and life.phase is not S.ADOPTED:
            if life.adoption_deadline is None:
                life.adoption_deadline = now + max(pod.grace for pod in evidence) + self.policy.adoption_slack
            if now < life.adoption_deadline:
                life.move(S.ADOPTED)
                life.slept_since = now
                self._arm(life)
                self._note(life, "NominationAdopted", "the scheduler makes room for it there")
        if life.phase is S.ADOPTED and not evidence:
            self._wake(life, now)
            life.move(S.NOMINATED)
            self._arm(life)
            if life.release is not None:
                self._move_to_releasing(life)
        if evidence and life.adoption_deadline is not None and now >= life.adoption_deadline:
            names = ", ".join("/".join(pod.key) for pod in evidence[:3])
            self._end(life, Judgement(S.ADOPTION_ENDED, f"victims outlive their grace period: {names}"), now)
        if life.phase is S.NOMINATED:
            lost = ground_lost(life, self.room.nodes.get(life.node))
            if lost is not None:
                self._release(life, S.STALE, lost, now)

    def _review_nodes(self, pod: PodView, before: PodView, now: float) -> None:
        """A Pod has changed: look at the nodes that it is on, or nominated to, or was."""
        for name in dict.fromkeys((pod.node, pod.nominated, before.node, before.nominated)):
            self._review_node(name, now)

    def _review_node(self, name: str, now: float) -> None:
        """What has changed on a node, for the hints on it: evidence of adoption first, then the grounds (N14)."""
        held = list(self.room.hints.get(name, {}).values())
        for life in held:
            if life.phase in (S.NOMINATED, S.ADOPTED):
                self._weigh(life, now)
        while self.room.overfull(name) is not None:
            standing = [life for life in held if life.phase is S.NOMINATED]
            if not standing:
                break
            last = min(standing, key=lambda life: (life.priority, -life.number))
            self._release(last, S.STALE, f"{name} has not enough {self.room.overfull(name)} free any more", now)

    # -- without a keeper ---------------------------------------------------------------------------------------------

    def unkept(self, now: float, wall: float) -> None:
        """Look for hints of ours that nobody keeps: after a start, and now and then (N7, N8)."""
        for pod in list(self.room.pods.values()):
            if pod.mark is not None and pod.uid not in self.by_uid:
                self._take_up(pod, now, wall)
        self._step(now)

    def _take_up(self, pod: PodView, now: float, wall: float) -> None:
        """A hint of ours without a keeper: after a restart, from another replica, or landed after we gave it up (N7).

        It lives for what is left of its TTL by the wall clock, and never for more than one TTL, whatever that says.
        """
        if pod.mark is None or pod.node or pod.deleting or pod.finished or not pod.is_ours(pod.mark, pod.nominated):
            return
        if pod.mark in self.lives or not self._owns(pod.obj):
            return  # annotations that were copied from one Pod to another say nothing
        known = self.ended.get(pod.mark)
        if known is not None and not (known.doubt or known.phase is S.LEFT):
            return  # an old view of what is over, or somebody else's value with what is left of ours
        ttl, left = _times_left(pod, wall, self.policy.max_ttl)
        decision = Decision(
            pod=pod.obj,
            node=pod.nominated,
            algorithm_version=(pod.annotation("algorithm-version") or "unknown")[:128],
            reason=pod.annotation("reason") or "unknown",
            ttl=ttl,
            decision_id=pod.mark,
        )
        if known is not None:
            del self.ended[pod.mark]
        life = self._new(decision, now, S.NOMINATED)
        life.expires_at = now + left
        life.hinted_since = life.written_at = now
        life.version = pod.version
        node = self.room.nodes.get(life.node)
        life.node_grounds = None if node is None else node.grounds
        self.rebuilt += 1
        self._hinted.setdefault(pod.uid, max(0.0, hinted_before(pod) - left))
        self._enter(life)
        if known is not None and known.phase is not S.LEFT:
            self._release(life, S.WITHDRAWN, "it landed after it had been given up", now)
        elif self.off is not None:
            self._release(life, S.ROLLED_BACK, self.off, now)
        else:
            self._review(life, pod, now, fresh=False)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _ring(self, life: Life, now: float) -> None:
        if life.phase in (S.PLANNED, S.NOMINATED) and now >= life.expires_at:
            self._release(life, S.EXPIRED, "its TTL is over", now)
        elif life.phase is S.ADOPTED:
            self._weigh(life, now)
        else:
            self._queue(life)

    def _step(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            life = heapq.heappop(self._timers)[2]
            if self._due(life) <= now:
                self._ring(life, now)
        self._pump(now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._step(now)


def hinted_before(pod: PodView) -> float:
    """How long the Pod was hinted already, by its own annotation: what a nominator before us has counted."""
    text = pod.annotation("hinted-seconds") or ""
    return float(text) if text.isdecimal() else 0.0


def _times_left(pod: PodView, wall: float, longest: float) -> tuple[float, float]:
    """The TTL of a hint as it was written, and what is left of it by the wall clock: from 0 to the TTL."""
    begin, end = _seconds(pod.annotation("nominated-at")), _seconds(pod.annotation("expires-at"))
    ttl = longest if begin is None or end is None or not 0 < end - begin <= longest else end - begin
    return ttl, ttl if end is None else min(ttl, max(0.0, end - wall))


def _seconds(text: str | None) -> float | None:
    """An RFC 3339 time as seconds of the epoch; None if it is none."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return None if time.tzinfo is None else time.timestamp()
