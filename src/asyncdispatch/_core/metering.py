"""What is counted for each call, if somebody measures: integers only, named and summed up by whoever reads them.

Times are nanoseconds. What the core knows anyway (depth, seats, waiting calls, budget, breakers) is not counted here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncdispatch._core.states import _OUTCOME_STATES, PLACE_SHIFT, CallState, Entry
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Succeeded

if TYPE_CHECKING:
    from asyncdispatch.calls import VerdictKind

MILLISECOND = 1_000_000
SIZE = 64
"""Buckets of a histogram: more doublings than there is time."""

SUCCESS, ERROR, CANCELLED = "success", "error", "cancelled"
RESULTS = (SUCCESS, ERROR, CANCELLED)

OTHER = "other"
"""What names beyond the bound share, and reasons that are not known."""

CANCEL_REASONS = {
    "a newer context began": "newer_context",
    "its validity is over": "context_expired",
    "cancelled by its caller": "caller",
    "dispatch was cancelled": "caller",
    "run was cancelled": "caller",
    "its future was cancelled": "caller",
    "rollback": "rollback",
}
"""Reasons are words for people, and may name a Pod: a metric knows these few."""


class Attempts:
    """How long attempts took: bucket 0 counts those below 1 ms, bucket n those from 2**(n-1) ms to below 2**n ms."""

    __slots__ = ("counts", "longest", "total")

    def __init__(self) -> None:
        self.counts = [0] * SIZE
        self.total = 0
        self.longest: tuple[int, int, int] | None = None  # of late: time taken, ticket, when it ended

    def add(self, took: int, ticket: int, now: int) -> None:
        self.counts[(took // MILLISECOND).bit_length()] += 1
        self.total += took
        if self.longest is None or took > self.longest[0]:
            self.longest = (took, ticket, now)


class Tally:
    """What is counted of one call type, or of all those that share the name "other".

    The short way (`DispatchCore.turn`) counts into `quick` and `waits` only: each attempt there is a success, and each
    success one of a call. How long those took in all is not added up there but follows from when seats were taken and
    given back otherwise: see `quick_total`.
    """

    __slots__ = (
        "ambiguous",
        "attempts",
        "late",
        "name",
        "openings",
        "outcomes",
        "quick",
        "reconciles",
        "retries",
        "seated",
        "waits",
    )

    def __init__(self, name: str, waits: list[list[int]]) -> None:
        self.name = name
        self.waits = waits  # by level, of all types: bucket n counts waits from 2**(n-1) ns to below 2**n ns
        self.quick = [0] * SIZE  # buckets as in `Attempts`
        self.seated = 0
        self.attempts = {result: Attempts() for result in RESULTS}  # without the quick ones
        self.outcomes: dict[tuple[CallState, str], int] = {}  # with the reason; without the quick ones
        self.retries: dict[str, int] = {}  # by verdict
        self.reconciles: dict[str, int] = {}  # by answer
        self.ambiguous = 0
        self.late = 0  # successes that reached nobody
        self.openings = 0  # of breakers

    def quick_total(self, flying: int) -> int:
        """How long the quick attempts took in all. `flying`: the sum of when those in flight have begun.

        Where a seat passes on, one attempt ends as the next begins. So what they took, all together, is when the last
        of them began less when the first did: `seated` adds the time at which each attempt began that gave its seat
        back, and takes off the time at which a seat was taken.
        """
        return self.seated + flying

    def waited(self, entry: Entry, now: int) -> None:
        """Its first attempt starts: since it was accepted, or its delay was over."""
        since = entry.accepted >> PLACE_SHIFT
        if entry.more is not None and entry.more.ready_at > since:
            since = entry.more.ready_at
        self.waits[entry.level][(now - since).bit_length()] += 1

    def attempted(self, entry: Entry, result: str, now: int) -> None:
        """An attempt has ended. A reconcile is none."""
        self.attempts[result].add(max(0, now - entry.started), entry.ticket, now)

    def told(self, kind: type, args: tuple[Any, ...], ambiguous: bool) -> None:
        """A handle got its outcome."""
        key = (_OUTCOME_STATES[kind], "" if kind is Succeeded else _reason(kind, args))
        self.outcomes[key] = self.outcomes.get(key, 0) + 1
        self.ambiguous += ambiguous

    def retried(self, kind: VerdictKind | None) -> None:
        """It waits for another attempt, or (None) goes again at once."""
        name = "again" if kind is None else kind.value
        self.retries[name] = self.retries.get(name, 0) + 1

    def reconciled(self, answer: str) -> None:
        self.reconciles[answer] = self.reconciles.get(answer, 0) + 1


class Meter:
    """All tallies, and the waits by level. Beyond `most` of them, types that are not `known` share one.

    Those that are known have one from the start, so that whatever happens to them first is seen as a change.
    """

    def __init__(self, levels: int, known: tuple[str, ...], most: int) -> None:
        self.waits = [[0] * SIZE for _ in range(levels)]
        self.tallies = {name: Tally(name, self.waits) for name in known}  # shown from the start
        self.overflows = 0  # how often a name had to do without a tally of its own
        self.overflowed: str | None = None  # the first of these names
        self._most = most + len(known)

    def tally(self, name: str) -> Tally:
        """Of a call type that has come up."""
        found = self.tallies.get(name)
        if found is None:
            if len(self.tallies) >= self._most and name != OTHER:
                self.overflows += 1
                self.overflowed = self.overflowed or name
                return self.tally(OTHER)
            found = self.tallies[name] = Tally(name, self.waits)
        return found


def _reason(kind: type, args: tuple[Any, ...]) -> str:
    """Why it ended so, in one of few words."""
    if kind is Failed:
        return str(args[1].kind.value)
    if kind is Expired:
        return str(args[0])
    if kind is Cancelled:
        return CANCEL_REASONS.get(args[0], OTHER)
    return ""
