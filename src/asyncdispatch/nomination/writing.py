"""From a decision to the field in the status, and out of it again: looks, guards, writes and their answers. Pure."""

from __future__ import annotations

import math

from asyncdispatch.nomination.actions import URGENT, Answer, Ask, Fate, Write
from asyncdispatch.nomination.book import FIRST_BACKOFF, Json
from asyncdispatch.nomination.decisions import Decision
from asyncdispatch.nomination.judging import Judgement, refusal
from asyncdispatch.nomination.standing import Standing, hinted_before
from asyncdispatch.nomination.states import Flight, Life, NominationState
from asyncdispatch.nomination.views import NodeView, PodView, is_older

__all__ = ["CLEARED_ANNOTATIONS", "Writing"]

S = NominationState
MIN_TTL = 1.0
"""Seconds: less is no use to a scheduler."""
CLEARED_ANNOTATIONS = ("decision-id", "algorithm-version", "reason", "node", "nominated-at", "expires-at")
"""What goes with the field. `hinted-seconds` stays: it is how the budget (N16) outlives us."""


class Writing(Standing):
    """All that leads to a write, and what comes of it."""

    def looked(self, number: int, pod: Json | None, node: Json | None, now: float, *, objection: str | None) -> None:
        """The answer to `Look`: Pod and node as they are (None: not there), and what `precheck` has against it.

        Of the node only before a set.
        """
        found = self._answered(number)
        if found is not None:
            life = found[0]
            seen = None if pod is None else PodView(pod, self.policy.prefix)
            self._refresh(seen, node, life.node if life.phase is S.PLANNED else "", now)
            if life.outcome is None:
                self._decide(life, seen, objection, now)
        self._step(now)

    def _refresh(self, pod: PodView | None, node: Json | None, name: str, now: float) -> None:
        """What was read is newer than what the watches have told. What they have not told of yet, or have told is
        gone, is theirs to bring."""
        if pod is not None:
            known = self.room.pods.get(pod.key)
            if known is not None and known.uid == pod.uid and self.room.see(pod):
                self._review_nodes(pod, known, now)
        if name in self.room.nodes:
            if node is None:
                del self.room.nodes[name]
            else:
                view = NodeView(node)
                if not is_older(view.version, self.room.nodes[name].version):
                    self.room.nodes[name] = view
            self._review_node(name, now)

    def looked_in_vain(self, number: int, reason: str, now: float) -> None:
        """Pod or node could not be read."""
        found = self._answered(number)
        if found is not None:
            self._again(found[0], now)
        self._step(now)

    def _decide(self, life: Life, pod: PodView | None, objection: str | None, now: float) -> None:
        """A fresh read of the Pod is there."""
        if life.phase in (S.PLANNED, S.WRITING):
            if pod is None or pod.uid != life.uid:
                self._end(life, Judgement(S.GONE, "the Pod is gone"), now)
            elif life.doubt or life.phase is S.WRITING or (life.asks and pod.node):
                self._settle_doubt(life, pod, objection, now)
            else:
                self._consider(life, pod, objection, now)
            return
        self._review(life, pod, now, fresh=True)
        if life.phase is S.RELEASING and pod is not None:
            number = self._ask(life, Flight.CLEAR)
            life.clear_sent = True
            annotations: dict[str, str | None] = dict.fromkeys(CLEARED_ANNOTATIONS)
            annotations["hinted-seconds"] = str(math.ceil(self._hinted_by(life.uid) + life.hinted_seconds(now)))
            self.actions.append(
                Write(number, life.decision, life.decision.ref, life.version, None, annotations, 0.0, URGENT)
            )

    def _settle_doubt(self, life: Life, pod: PodView, objection: str | None, now: float) -> None:
        """What became of a set that has not been answered, or that was refused since others had written or bound it."""
        if pod.shows(life.decision_id, life.node):
            if life.phase is S.PLANNED:
                life.move(S.WRITING)
            self._stands(life, pod, now)
        elif pod.node:
            if life.phase is S.PLANNED:
                life.move(S.WRITING)
            state = S.HIT if pod.node == life.node else S.FALLBACK
            self._end(life, Judgement(state, f"bound to {pod.node} while it was being written", pod.node), now)
        else:
            life.doubt = life.doubt and pod.version == life.version  # else the fence keeps it out for good
            if life.phase is S.WRITING:
                self._conflict(life, "the write was not applied", now)
            else:
                self._consider(life, pod, objection, now)

    def _consider(self, life: Life, pod: PodView, objection: str | None, now: float) -> None:
        """The guards, and then the write."""
        node = self.room.nodes.get(life.node)
        if life.decision.priority is None:
            life.priority = pod.priority
        life.requests = pod.requests
        if not life.doubt:
            life.hinted_since = None
        if life.pod_grounds is None:
            if life.decision.observed_version not in (None, pod.version):
                why = f"decided on version {life.decision.observed_version}, but it is at {pod.version}"
                self._decided_on_another(life, pod, why, now)
                return
            life.pod_grounds = pod.grounds
        elif life.pod_grounds != pod.grounds:
            self._decided_on_another(life, pod, "the Pod has changed since the decision", now)
            return
        refused = self._budget_over(life, pod, now) or refusal(life, pod, node, self.room, self.policy) or objection
        if refused is not None:
            self._end(life, Judgement(S.REJECTED, refused), now)
        elif life.asks and self._recomputes and not life.doubt:
            self.actions.append(Ask(self._ask(life, Flight.ASK), life.decision, pod.obj))
        else:
            assert node is not None
            life.node_grounds = node.grounds
            self._set(life, pod, now)

    def _decided_on_another(self, life: Life, pod: PodView, reason: str, now: float) -> None:
        life.conflicts += 1
        if not self._recomputes or life.conflicts > self.policy.max_conflicts:
            self._end(life, Judgement(S.ABANDONED, reason), now)
        else:
            self.actions.append(Ask(self._ask(life, Flight.ASK), life.decision, pod.obj))

    def _budget_over(self, life: Life, pod: PodView, now: float) -> str | None:
        """N13 and N16: what this Pod has had already. Shortens the TTL to what is left of the budget."""
        if self._sets[life.uid] >= self.policy.writes_per_pod:
            return f"{self._sets[life.uid]} writes to this Pod: no more"
        if life.uid not in self._hinted and (before := hinted_before(pod)):
            self._hinted[life.uid] = before
        left = self.policy.hint_budget - self._hinted_by(life.uid)
        life.expires_at = min(life.expires_at, now + left)
        if life.expires_at - now < min(MIN_TTL, life.decision.ttl / 2):
            over = left < life.decision.ttl
            return "its hint budget is used up" if over else "hardly any of its TTL is left"
        return None

    def _set(self, life: Life, pod: PodView, now: float) -> None:
        number = self._ask(life, Flight.SET)
        life.move(S.WRITING)
        life.version = pod.version
        self._sets[life.uid] += 1
        if life.hinted_since is None:
            life.hinted_since = now
        ttl = life.expires_at - now
        decision = life.decision
        annotations: dict[str, str | None] = {
            "decision-id": decision.decision_id,
            "algorithm-version": decision.algorithm_version,
            "reason": decision.reason,
            "node": decision.node,
            # as if it were never taken back: what we have not seen ends counts in full after a restart
            "hinted-seconds": str(math.ceil(self._hinted_by(life.uid) + ttl)),
        }
        self.actions.append(
            Write(number, decision, decision.ref, life.version, decision.node, annotations, ttl, life.priority)
        )

    def recomputed(self, number: int, decision: Decision | None, now: float) -> None:
        """The answer to `Ask`: a fresh decision for the same Pod with an id of its own, or None."""
        found = self._answered(number)
        if found is not None:
            self._replace(found[0], decision, now)
        self._step(now)

    def _replace(self, life: Life, decision: Decision | None, now: float) -> None:
        if decision is None:
            self._end(life, Judgement(S.ABANDONED, "a fresh calculation found no node"), now)
            return
        if decision.ref.uid != life.uid or decision.decision_id in self.lives or decision.decision_id in self.ended:
            self._end(life, Judgement(S.ABANDONED, "the fresh decision is for another Pod, or has an old id"), now)
            return
        self.room.leave(life)
        self.ended[life.decision_id] = self.lives.pop(life.decision_id)
        fresh = self._new(decision, now)
        life.decision = decision
        life.pod_grounds, life.node_grounds, life.requests = fresh.pod_grounds, None, fresh.requests or life.requests
        life.priority = life.priority if decision.priority is None else decision.priority
        life.expires_at = now + decision.ttl
        life.asks, life.again_at = False, now
        self._enter(life)
        self._queue(life)

    def answered(self, number: int, answer: Answer, now: float) -> None:
        """The answer to `Write`."""
        found = self._answered(number)
        if found is not None:
            life, flight = found
            pod = None if answer.pod is None else PodView(answer.pod, self.policy.prefix)
            if pod is not None:
                self._refresh(pod, None, "", now)
            if flight is Flight.SET:
                self._after_set(life, answer, pod, now)
            else:
                self._after_clear(life, answer, pod, now)
        self._step(now)

    def _after_set(self, life: Life, answer: Answer, pod: PodView | None, now: float) -> None:
        fate = answer.fate
        if fate is Fate.APPLIED and pod is not None:
            self._stands(life, pod, now)
        elif fate is Fate.GONE:
            self._end(life, Judgement(S.GONE, answer.reason or "the Pod is gone"), now)
        elif fate in (Fate.UNKNOWN, Fate.APPLIED, Fate.BOUND):
            life.doubt = fate is not Fate.BOUND or life.doubt
            self._again(life, now, first=0.0)
        elif fate is Fate.CONFLICT:
            life.asks = True
            self._conflict(life, answer.reason or "others wrote in between", now)
        elif fate is Fate.NOT_SENT:
            self._back(life)
            if not self._given_up(life, now):
                self._again(life, now)
        else:
            if fate is Fate.FORBIDDEN:
                self._forbidden_until = now + self.policy.forbidden_hold
                self._note(life, "NominationForbidden", answer.reason, alert=True)
            self._end(life, Judgement(S.REJECTED, answer.reason or fate.value), now)

    def _conflict(self, life: Life, reason: str, now: float) -> None:
        """It was not applied: read again, and run the guards again; so often, and no more."""
        life.conflicts += 1
        self._back(life)
        if self._given_up(life, now):
            return
        if life.conflicts > self.policy.max_conflicts:
            self._end(life, Judgement(S.ABANDONED, f"{life.conflicts} conflicts, the last: {reason}"), now)
        else:
            self._again(life, now, first=0.0)

    def _back(self, life: Life) -> None:
        life.move(S.PLANNED)
        if not life.doubt:
            life.hinted_since = None

    def _given_up(self, life: Life, now: float) -> bool:
        """Somebody wanted it no more while its write was under way."""
        if life.release is None and now >= life.expires_at:
            life.release = (S.EXPIRED, "its TTL was over before it was written")
        if life.release is None:
            return False
        self._end(life, Judgement(*life.release), now)
        return True

    def _stands(self, life: Life, pod: PodView, now: float) -> None:
        """The hint was written. The guards run once more: what does not fit any more is taken back."""
        life.move(S.NOMINATED)
        life.written_at = now
        life.gated = pod.gated
        life.doubt = False
        life.failures = 0
        life.version = pod.version
        self._note(life, "Nominated", f"{life.decision.reason} ({life.decision.algorithm_version})")
        newest = self.room.pods.get(pod.key)
        newer = newest is not None and newest.uid == pod.uid and not is_older(newest.version, pod.version)
        self._review(life, newest if newer else pod, now, fresh=True)
        if life.outcome is None and life.release is not None:
            self._release(life, *life.release, now)
        if life.phase is S.NOMINATED:
            self._review_node(life.node, now)
        self._arm(life)

    def _after_clear(self, life: Life, answer: Answer, pod: PodView | None, now: float) -> None:
        assert life.release is not None
        fate = answer.fate
        if fate is Fate.APPLIED:
            self._end(life, Judgement(*life.release), now)
        elif fate is Fate.GONE:
            self._end(life, Judgement(S.GONE, answer.reason or "the Pod is gone"), now)
        else:
            if fate in (Fate.FORBIDDEN, Fate.REFUSED) and not life.failures:
                self._note(life, "NominationStuck", f"it can't be taken back: {answer.reason}", alert=True)
            if fate is not Fate.UNKNOWN:
                life.clear_sent = False
            self._again(life, now, first=0.0 if fate is Fate.CONFLICT else FIRST_BACKOFF)
