"""States of a nomination, their one transition table, and the life of a decision that moves through it. Pure.

The laws, by number; `invariants.py` checks what can be seen in one state, the model of the tests what can't:

N1 every write is fenced by uid and resourceVersion · N2 only the field and our annotations change · N3 only empty →
ours and ours → empty · N4 no write to a Pod that is bound, deleting or finished · N5 no write after OVERWRITTEN,
FOREIGN or while ADOPTED · N6 one live decision per Pod, one set and one clear per decision · N7 lost answers,
duplicates and restarts lead to the same end · N8 no hint outlives its TTL plus slack · N9 one outcome each, and the
counts add up · N10 the kill switch · N11 own hints fit the room that is free · N12 no harm is left behind · N13 writes
are bounded · N14 a decision whose grounds changed is released · N15 an adoption ends by itself · N16 the time hinted
has a budget.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncdispatch.nomination.decisions import Decision, NominationOutcome
    from asyncdispatch.nomination.views import Amounts, Grounds

__all__ = ["LIVE", "TERMINAL", "TRANSITIONS", "Flight", "Life", "NominationError", "NominationState"]


class NominationState(enum.Enum):
    """Where a decision is. All but the first five are outcomes."""

    PLANNED = "planned"
    """Accepted; its guards are about to be asked, its turn to write to come, or it waits to try again."""
    WRITING = "writing"
    """Its write is under way, or nobody knows yet what became of it."""
    NOMINATED = "nominated"
    """The hint stands."""
    ADOPTED = "adopted"
    """The scheduler has acted on it: victims are terminating on the node. The value is the scheduler's now."""
    RELEASING = "releasing"
    """It is being taken back."""

    HIT = "hit"
    """The Pod was bound to the node."""
    FALLBACK = "fallback"
    """The Pod was bound elsewhere."""
    OVERWRITTEN = "overwritten"
    """Somebody, most likely the scheduler, has nominated another node."""
    CLEARED = "cleared"
    """Somebody, most likely the scheduler, has cleared it."""
    FOREIGN = "foreign"
    """The value is as we wrote it, but it is somebody else's by now."""
    GONE = "gone"
    """The Pod is gone, going or finished."""
    ADOPTION_ENDED = "adoption_ended"
    """The scheduler's victims outlived their grace period: what becomes of the value is the scheduler's business."""
    EXPIRED = "expired"
    """Its TTL was over."""
    STALE = "stale"
    """What it rested on has changed."""
    WITHDRAWN = "withdrawn"
    """Its owner took it back."""
    ROLLED_BACK = "rolled_back"
    """The kill switch, or the guard."""
    REJECTED = "rejected"
    """A guard or the API server said no; nothing was written."""
    ABANDONED = "abandoned"
    """Others kept writing in between, or a fresh calculation found no node; nothing was written."""
    LEFT = "left"
    """Its shard is another replica's now, or we had to close: whoever is next finds it by its annotations."""


S = NominationState
_SEEN = (S.HIT, S.FALLBACK, S.OVERWRITTEN, S.CLEARED, S.FOREIGN, S.GONE)
"""What may be seen of a hint that was written."""
_RELEASED = (S.EXPIRED, S.STALE, S.WITHDRAWN, S.ROLLED_BACK)

LIVE = (S.PLANNED, S.WRITING, S.NOMINATED, S.ADOPTED, S.RELEASING)
TERMINAL = tuple(state for state in S if state not in LIVE)

TRANSITIONS: dict[NominationState, tuple[NominationState, ...]] = {
    S.PLANNED: (S.WRITING, S.REJECTED, S.ABANDONED, S.GONE, *_RELEASED, S.LEFT),
    S.WRITING: (S.PLANNED, S.NOMINATED, S.HIT, S.FALLBACK, S.GONE, S.REJECTED, S.ABANDONED, S.LEFT),
    S.NOMINATED: (S.ADOPTED, S.RELEASING, *_SEEN, S.LEFT),
    S.ADOPTED: (S.NOMINATED, S.RELEASING, *_SEEN, S.ADOPTION_ENDED, S.LEFT),
    S.RELEASING: (S.ADOPTED, *_SEEN, S.ADOPTION_ENDED, *_RELEASED, S.LEFT),
    **dict.fromkeys(TERMINAL, ()),
}
"""Which state may follow which. `Life.move` is the only writer of a state and knows no other transition."""


class NominationError(AssertionError):
    """The machine has contradicted itself: a defect of this library, never of its user."""


class Flight(enum.Enum):
    """What was asked of the shell and is not answered yet: one thing at a time for each decision."""

    LOOK = "look"
    SET = "set"
    CLEAR = "clear"
    ASK = "ask"


class Life:
    """One decision on its way to its outcome. Times are seconds of the monotonic clock that is passed in as `now`."""

    __slots__ = (
        "adopted_seconds",  # time spent ADOPTED: it counts neither for the TTL nor for the budget (N15 bounds it)
        "adoption_deadline",  # fixed when it is first ADOPTED (N15); None before
        "again_at",  # not to be tried before
        "asks",  # a fresh calculation is wanted before the next write
        "clear_sent",  # a clear may have been applied
        "conflicts",
        "decision",
        "doubt",  # a set was sent whose fate is unknown; it may land while the Pod is at `version` (N7)
        "expires_at",
        "failures",  # in a row: the exponent of the backoff
        "flight",
        "flight_number",
        "gated",  # when it was written: no scheduler had decided by then
        "hinted_since",
        "node_grounds",
        "number",  # in order of planning
        "outcome",
        "phase",
        "planned_at",
        "pod_grounds",
        "priority",
        "release",  # why it is to be taken back: the outcome and the reason
        "requests",
        "slept_since",  # ADOPTED since
        "version",  # what the last write was fenced by; once NOMINATED, what it left: nothing older is news
        "written_at",
    )

    def __init__(self, decision: Decision, number: int, now: float, state: NominationState = S.PLANNED) -> None:
        self.decision = decision
        self.number = number
        self.phase = state
        self.planned_at = now
        self.expires_at = now + decision.ttl
        self.priority = decision.priority or 0
        self.requests: Amounts = {}
        self.pod_grounds: Grounds | None = None
        self.node_grounds: Grounds | None = None
        self.flight: Flight | None = None
        self.flight_number = 0
        self.gated = False
        self.version = decision.observed_version or ""
        self.doubt = False
        self.clear_sent = False
        self.asks = False
        self.conflicts = 0
        self.failures = 0
        self.again_at = now
        self.release: tuple[NominationState, str] | None = None
        self.hinted_since: float | None = None
        self.written_at: float | None = None
        self.adoption_deadline: float | None = None
        self.slept_since: float | None = None
        self.adopted_seconds = 0.0
        self.outcome: NominationOutcome | None = None

    def move(self, state: NominationState) -> None:
        """The only writer of `phase`."""
        if state not in TRANSITIONS[self.phase]:
            raise NominationError(f"{self.decision_id} can't go from {self.phase.value} to {state.value}")
        self.phase = state

    @property
    def decision_id(self) -> str:
        return self.decision.decision_id

    @property
    def uid(self) -> str:
        uid = self.decision.ref.uid
        assert uid is not None
        return uid

    @property
    def node(self) -> str:
        return self.decision.node

    @property
    def written(self) -> bool:
        """The hint was in the Pod for certain."""
        return self.written_at is not None

    def hinted_seconds(self, now: float) -> float:
        """For how long the Pod was hinted by this decision, or may have been (N16)."""
        if self.hinted_since is None or not (self.written or self.doubt):
            return 0.0
        slept = self.adopted_seconds + (now - self.slept_since if self.slept_since is not None else 0.0)
        return max(0.0, now - self.hinted_since - slept)

    def __repr__(self) -> str:
        return f"<Life {self.decision_id} of {self.decision.ref} to {self.node} {self.phase.value}>"
