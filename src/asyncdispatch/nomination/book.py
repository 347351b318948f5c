"""What the machine of decisions keeps: the live ones and the ended, what was asked, timers, tokens, budgets. Pure."""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

from asyncdispatch.nomination.actions import URGENT, Action, Look, Note
from asyncdispatch.nomination.decisions import Decision, NominationOutcome, NominationPolicy
from asyncdispatch.nomination.judging import Judgement
from asyncdispatch.nomination.room import Room
from asyncdispatch.nomination.states import Flight, Life, NominationError, NominationState
from asyncdispatch.nomination.views import PodView

__all__ = ["Book"]

Json = dict[str, Any]
S = NominationState

FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
TINY = 1e-6
"""Of a token: a clock that is asked just when one is due may be a rounding error short of it."""
REMEMBERED = 10_000
"""Decisions that have ended and are still known."""


def everybody(pod: Json) -> bool:
    return True


class Book:
    """The tables, and how a decision enters and leaves them."""

    def __init__(
        self,
        policy: NominationPolicy,
        *,
        recomputes: bool = False,
        owns: Callable[[Json], bool] = everybody,
    ) -> None:
        """`recomputes`: there is somebody to ask for a fresh decision. `owns`: whose hints are ours to keep."""
        self.policy = policy
        self.room = Room()
        self.lives: dict[str, Life] = {}
        self.by_uid: dict[str, Life] = {}
        self.ended: OrderedDict[str, Life] = OrderedDict()
        """By decision id, those that have ended, and ids that a fresh calculation has replaced."""
        self.off: str | None = None
        """Why no new hint is written (N10), or None."""
        self.accepted = 0
        self.rebuilt = 0
        self.counts: Counter[NominationState] = Counter()
        self.actions: list[Action] = []
        self.settled: list[Life] = []
        self.notes: list[Note] = []
        self._recomputes = recomputes
        self._owns = owns
        self._numbers = 0
        self._flights: dict[int, Life] = {}
        self._timers: list[tuple[float, int, Life]] = []
        self._plans: deque[Life] = deque()
        self._releases: deque[Life] = deque()
        self._tokens, self._refilled = float(policy.burst), 0.0
        self._hinted: dict[str, float] = {}  # by uid (N16), until the Pod is gone
        self._sets: Counter[str] = Counter()  # likewise (N13)
        self._forbidden_until = -math.inf

    @property
    def started(self) -> int:
        """Decisions that were taken in, and hints that were found."""
        return self.accepted + self.rebuilt

    # -- in and out ---------------------------------------------------------------------------------------------------

    def _new(self, decision: Decision, now: float, state: NominationState = S.PLANNED) -> Life:
        self._numbers += 1
        life = Life(decision, self._numbers, now, state)
        known = self.room.pods.get((decision.ref.namespace or "", decision.ref.name))
        if decision.whole is not None:
            pod: PodView | None = PodView(decision.whole, self.policy.prefix)
            assert pod is not None
            life.pod_grounds = pod.grounds
        else:
            pod = known if known is not None and known.uid == life.uid else None
        if pod is not None:
            life.requests = pod.requests
            if decision.priority is None:
                life.priority = pod.priority
        return life

    def _enter(self, life: Life) -> None:
        self.lives[life.decision_id] = life
        self.by_uid[life.uid] = life
        self.room.enter(life)
        self._arm(life)

    def _end(self, life: Life, judgement: Judgement, now: float) -> None:
        """Its one outcome (N9)."""
        self._wake(life, now)
        life.move(judgement.state)
        hinted = life.hinted_seconds(now)
        since = life.written_at if life.written_at is not None else life.hinted_since
        early = not life.gated and (since is None or now - since <= self.policy.raced_within)
        raced = judgement.bound_to is not None and early
        life.outcome = NominationOutcome(
            decision=life.decision,
            state=judgement.state,
            reason=judgement.reason,
            bound_to=judgement.bound_to,
            raced=raced,
            written=life.written,
            hinted_seconds=hinted,
            elapsed_seconds=now - life.planned_at,
        )
        self._flights.pop(life.flight_number, None)
        life.flight = None
        if self.lives.get(life.decision_id) is life:
            del self.lives[life.decision_id]
            del self.by_uid[life.uid]
            self.room.leave(life)
        if judgement.state is S.GONE:
            self._hinted.pop(life.uid, None)
            self._sets.pop(life.uid, None)
        elif hinted:
            self._hinted[life.uid] = self._hinted_by(life.uid) + hinted
        self.ended[life.decision_id] = life
        while len(self.ended) > REMEMBERED:
            self.ended.popitem(last=False)
        self.counts[judgement.state] += 1
        self.settled.append(life)
        if life.written or judgement.state is S.ADOPTION_ENDED:
            alert = judgement.state is S.ADOPTION_ENDED
            self._note(life, "NominationEnded", f"{judgement.state.value}: {judgement.reason}", alert=alert)

    def _note(self, life: Life, what: str, text: str, *, alert: bool = False) -> None:
        self.notes.append(Note(life.decision, what, text, alert))

    def _wake(self, life: Life, now: float) -> None:
        """The TTL goes on where it stood."""
        if life.slept_since is not None:
            slept = now - life.slept_since
            life.adopted_seconds += slept
            life.expires_at += slept
            life.slept_since = None

    # -- asking the shell ---------------------------------------------------------------------------------------------

    def _ask(self, life: Life, flight: Flight) -> int:
        if life.flight is not None:
            raise NominationError(f"{life!r} waits for {life.flight.value}, and is to {flight.value}")
        self._numbers += 1
        life.flight, life.flight_number = flight, self._numbers
        self._flights[self._numbers] = life
        return self._numbers

    def _answered(self, number: int) -> tuple[Life, Flight] | None:
        """Whom an answer is for; None if nobody waits for it any more."""
        life = self._flights.pop(number, None)
        if life is None or life.flight is None:
            return None
        flight, life.flight = life.flight, None
        return life, flight

    # -- time ---------------------------------------------------------------------------------------------------------

    def _again(self, life: Life, now: float, first: float = FIRST_BACKOFF) -> None:
        """Look again, after a while."""
        wait = min(LONGEST_BACKOFF, (FIRST_BACKOFF if life.failures else first) * 2.0 ** min(life.failures, 10))
        life.failures += 1
        life.again_at = now + wait
        if wait:
            self._arm(life)
        else:
            self._queue(life)

    def _queue(self, life: Life) -> None:
        (self._releases if life.phase is not S.PLANNED else self._plans).append(life)

    def _arm(self, life: Life) -> None:
        due = self._due(life)
        if due < math.inf:
            self._numbers += 1
            heapq.heappush(self._timers, (due, self._numbers, life))

    def _due(self, life: Life) -> float:
        """When something is to happen to it next by time alone."""
        if life.outcome is not None:
            return math.inf
        waits = life.again_at if life.flight is None else math.inf
        if life.phase is S.PLANNED:
            return min(waits, life.expires_at)
        if life.phase is S.NOMINATED:
            return life.expires_at
        if life.phase is S.ADOPTED:
            assert life.adoption_deadline is not None
            return life.adoption_deadline
        return waits

    def wake_at(self) -> float:
        """When `tick` is to be called next, at the latest."""
        token = math.inf
        if self._plans or self._releases:
            token = self._refilled + (1 - self._tokens) / self.policy.writes_per_second
        return min(self._timers[0][0] if self._timers else math.inf, token)

    def _pump(self, now: float) -> None:
        """Begin with what there are tokens for (N13); what is to be taken back goes first."""
        earned = (now - self._refilled) * self.policy.writes_per_second
        self._tokens = min(float(self.policy.burst), self._tokens + max(0.0, earned))
        self._refilled = now
        while self._tokens >= 1 - TINY and (queue := self._releases or self._plans):
            life = queue.popleft()
            ready = life.phase in (S.PLANNED, S.WRITING, S.RELEASING) and life.flight is None
            if ready and life.again_at <= now:
                self._tokens -= 1
                number, before_set = self._ask(life, Flight.LOOK), life.phase is S.PLANNED
                self.actions.append(Look(number, life.decision, before_set, life.priority if before_set else URGENT))

    def _hinted_by(self, uid: str) -> float:
        return self._hinted.get(uid, 0.0)
