"""The decisions: a pure state machine. Time comes in as `now` (seconds, monotonic); what to do goes out as values.

The shell empties `actions`, `settled` and `notes` after each step, does what they say, and reports back. For each
decision one thing at a time is asked. What is told twice, late, or of something that is over changes nothing (N7).
"""

from __future__ import annotations

from asyncdispatch.nomination.book import Json
from asyncdispatch.nomination.decisions import Decision
from asyncdispatch.nomination.judging import Judgement
from asyncdispatch.nomination.states import Life, NominationError, NominationState
from asyncdispatch.nomination.views import NodeView, PodView, is_older
from asyncdispatch.nomination.writing import Writing

__all__ = ["Nominations"]

S = NominationState


class Nominations(Writing):
    """All decisions of one nominator: what its owner and the world tell it."""

    # -- the owner ----------------------------------------------------------------------------------------------------

    def plan(self, decision: Decision, now: float) -> Life:
        """Take in a decision with a new id. It may be over at once: look at its `phase`."""
        if decision.decision_id in self.lives or decision.decision_id in self.ended:
            raise NominationError(f"decision {decision.decision_id} was planned before")
        life = self._new(decision, now)
        refused = self._refused_at_once(life, now)
        if refused is not None:
            return self.refuse(decision, refused, now)
        self.accepted += 1
        self._enter(life)
        self._queue(life)
        self._step(now)
        return life

    def refuse(self, decision: Decision, reason: str, now: float) -> Life:
        """Take in a decision with a new id that is rejected at once."""
        life = self._new(decision, now)
        self.accepted += 1
        self._end(life, Judgement(S.REJECTED, reason), now)
        return life

    def _refused_at_once(self, life: Life, now: float) -> str | None:
        other = self.by_uid.get(life.uid)
        if self.off is not None:
            return f"nominations are switched off: {self.off}"
        if now < self._forbidden_until:
            return "the API server does not let us nominate (403)"
        if other is not None:
            return f"decision {other.decision_id} for this Pod is live: withdraw it first"
        if len(self.lives) >= self.policy.max_live:
            return f"{len(self.lives)} decisions are live: no more at one time"
        if not self.policy.admits(life.decision.ref):
            return "the Pod is outside of the rollout's share"
        return None

    def withdraw(self, decision_id: str, now: float, reason: str = "withdrawn") -> None:
        """Its owner wants it no more."""
        self._release(self.lives[decision_id], S.WITHDRAWN, reason, now)
        self._step(now)

    def rollback(self, reason: str, now: float) -> None:
        """The kill switch: no new hint from now on, and all of ours are taken back (N10)."""
        self.off = reason
        for life in list(self.lives.values()):
            self._release(life, S.ROLLED_BACK, reason, now)
        self._step(now)

    def close(self, reason: str, now: float) -> None:
        """The end: as `rollback`, but it was our own wish."""
        self.off = reason
        for life in list(self.lives.values()):
            self._release(life, S.WITHDRAWN, reason, now)
        self._step(now)

    def resume(self) -> None:
        self.off = None

    def reorder(self, order_version: str, now: float) -> None:
        """The caller's queue has another order: decisions taken in another one are stale (N14)."""
        for life in list(self.lives.values()):
            if life.decision.order_version not in (None, order_version):
                self._release(life, S.STALE, f"decided in order {life.decision.order_version}", now)
        self._step(now)

    def leave(self, decision_id: str, reason: str, now: float) -> None:
        """It is ours no more; whatever stands in the Pod is found by whoever is next."""
        self._end(self.lives[decision_id], Judgement(S.LEFT, reason), now)
        self._step(now)

    # -- the world ----------------------------------------------------------------------------------------------------

    def observe_pod(self, obj: Json, now: float, wall: float | None = None) -> None:
        """A Pod came or changed. With `wall` (seconds of the epoch), a hint of ours that nobody keeps is taken up."""
        pod = PodView(obj, self.policy.prefix)
        before = self.room.pods.get(pod.key)
        if before is not None and before.uid != pod.uid:
            self.forget_pod(before.obj, now)
        if not self.room.see(pod):
            return
        life = self.by_uid.get(pod.uid)
        if life is not None:
            self._review(life, pod, now, fresh=False)
        elif wall is not None:
            self._take_up(pod, now, wall)
        self._review_nodes(pod, before or pod, now)
        self._step(now)

    def forget_pod(self, obj: Json, now: float) -> None:
        """A Pod is gone."""
        gone = PodView(obj, self.policy.prefix)
        self.room.forget(gone.key, gone.uid)
        self._hinted.pop(gone.uid, None)
        self._sets.pop(gone.uid, None)
        life = self.by_uid.get(gone.uid)
        if life is not None and life.phase is not S.WRITING:
            self._end(life, Judgement(S.GONE, "the Pod is gone"), now)
        self._review_nodes(gone, gone, now)
        self._step(now)

    def observe_node(self, obj: Json, now: float) -> None:
        """A node came or changed."""
        node = NodeView(obj)
        known = self.room.nodes.get(node.name)
        if known is None or not is_older(node.version, known.version):
            self.room.nodes[node.name] = node
            self._review_node(node.name, now)
        self._step(now)

    def forget_node(self, name: str, now: float) -> None:
        """A node is gone."""
        self.room.nodes.pop(name, None)
        self._review_node(name, now)
        self._step(now)

    def confirmed(
        self, decision_id: str, pod: Json | None, node: Json | None, now: float, *, agreed: bool
    ) -> str | None:
        """By a fresh read: None if the decision stands, else why not; then it is being taken back (case Q7)."""
        life = self.lives.get(decision_id)
        if life is None:
            ended = self.ended[decision_id]
            replaced = ended.decision_id != decision_id
            return "it was replaced by a fresh decision" if replaced else self._why_not(ended)
        seen = None if pod is None else PodView(pod, self.policy.prefix)
        self._refresh(seen, node, life.node, now)
        if life.outcome is None and life.phase is not S.RELEASING:
            self._review(life, seen, now, fresh=True)
        if life.outcome is None and not agreed:
            self._release(life, S.STALE, "precheck says no", now)
        self._step(now)
        return self._why_not(life)

    def _why_not(self, life: Life) -> str | None:
        if life.outcome is not None:
            return f"it has ended: {life.outcome.state.value}, {life.outcome.reason}"
        if life.release is not None:
            return f"it is being taken back: {life.release[1]}"
        return None if life.phase in (S.NOMINATED, S.ADOPTED) else "it is not written yet"
