"""What holds calls back after an answer: retry budget, circuit breakers, refused credentials, conditions elsewhere.

All of them delay and none fails a call (but for `hold_limit`, which the machine keeps). A parked call holds no seat
(law L20) and has a timer or a deadline (law L19).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from heapq import heappush
from typing import TYPE_CHECKING

from asyncdispatch._core.states import BACKOFF, SECOND

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from asyncdispatch._core.states import Entry
    from asyncdispatch.calls import Verdict
    from asyncdispatch.config import BreakerPolicy, RetryBudget

FIRST_PROBE = SECOND // 2
NEXT_PROBE = 10 * SECOND
"""After refused credentials: they were just read anew, so look soon; then about every ten seconds."""

LATER_WINDOW = 4
"""How many calls of one scope are tried at a time while its condition has not been seen to pass."""

SAME_ERROR_LIMIT = 5
"""The same 500 without Retry-After so many times in a row will not pass by itself (rule R12)."""

MAX_BREAKERS = 1_024


class Signal(enum.Enum):
    """What an error says about the server's health, apart from what it means for the call."""

    NONE = "none"  # it has answered, and is well
    SILENT = "silent"  # nothing was learned: the caller gave it no time
    PUSHBACK = "pushback"  # its own 429: cut seats, but the server is well
    OVERLOAD = "overload"  # 503 or a time-out: cut seats, count as a fault
    FAULT = "fault"  # 500, 502, transport: count as a fault


class Budget:
    """Retries of all calls together, fed by successes and by time. Kept in whole billionths of a retry.

    A retry that succeeds gives back what it took: once the server is well, retries go as fast as it answers them.
    """

    __slots__ = ("_burst", "_earn", "_per_second", "_seen", "_tokens", "timer", "waiting")

    def __init__(self, policy: RetryBudget) -> None:
        self._earn = int(policy.ratio * SECOND)
        self._per_second = max(1, int(policy.per_second * SECOND))
        self._burst = policy.burst * SECOND
        self._tokens = self._burst
        self._seen = 0
        self.waiting: list[tuple[int, int, Entry]] = []  # a heap by rank; those that wait no more are skipped
        self.timer = 0

    @property
    def full(self) -> bool:
        """True if there is nothing to earn."""
        return self._tokens == self._burst

    @property
    def available(self) -> float:
        return self._tokens / SECOND

    def at(self, now: int) -> float:
        """What is available with what time has given since; changes nothing."""
        gained = (now - self._seen) * self._per_second // SECOND
        return min(self._burst, self._tokens + max(0, gained)) / SECOND

    def earn(self) -> None:
        self._tokens = min(self._burst, self._tokens + self._earn)

    def take(self, now: int) -> bool:
        self._trickle(now)
        if self._tokens < SECOND:
            return False
        self._tokens -= SECOND
        return True

    def give_back(self) -> None:
        """A retry that it gave has succeeded."""
        self._tokens = min(self._burst, self._tokens + SECOND)

    def wait(self, entry: Entry, key: int) -> None:
        """Have an execution wait for its retry; again, if its rank has become better meanwhile."""
        entry.rare().budgeted = True
        heappush(self.waiting, (key, entry.ticket, entry))

    def waiters(self) -> Iterator[Entry]:
        """Those that wait for one, in no particular order."""
        seen: dict[int, None] = {}
        for _, ticket, entry in self.waiting:
            if waits(entry) and ticket not in seen:
                seen[ticket] = None
                yield entry

    def next_at(self, now: int) -> int:
        """When time alone will have given one retry."""
        self._trickle(now)
        lacking = max(0, SECOND - self._tokens)
        return now - (-lacking * SECOND // self._per_second)

    def _trickle(self, now: int) -> None:
        gained = (now - self._seen) * self._per_second // SECOND
        if gained:
            self._tokens = min(self._burst, self._tokens + gained)
            self._seen = now


def waits(entry: Entry) -> bool:
    """True if an execution waits for the budget."""
    return entry.phase is BACKOFF and entry.more is not None and entry.more.budgeted


class Breaker:
    """One flow and call type: closed while failures are few, open for a time, then half-open for one probe."""

    __slots__ = ("failures", "half_open", "open_until", "probe", "timer")

    def __init__(self) -> None:
        self.failures = 0
        self.open_until = 0
        self.half_open = False
        self.probe: Entry | None = None
        self.timer = 0

    @property
    def blocks(self) -> bool:
        """No call may start: it is open, or its one probe is under way."""
        return bool(self.open_until) or self.probe is not None


class Breakers:
    """All breakers that are not as good as new."""

    __slots__ = ("_policy", "table")

    def __init__(self, policy: BreakerPolicy | None) -> None:
        self._policy = policy
        self.table: dict[tuple[str, str], Breaker] = {}

    def blocks(self, flow: str, call_type: str) -> bool:
        breaker = self.table.get((flow, call_type))
        return breaker is not None and breaker.blocks

    def fault(self, flow: str, call_type: str, started: int, now: int) -> Breaker | None:
        """A server-side failure of a call started at `started`. The breaker, if it has just opened."""
        if self._policy is None:
            return None
        breaker = self.table.get((flow, call_type))
        if breaker is None:
            if not self._make_room():
                return None
            breaker = self.table[flow, call_type] = Breaker()
        breaker.failures += 1
        if breaker.open_until or (breaker.failures < self._policy.failures and not breaker.half_open):
            return None
        breaker.half_open = False
        breaker.probe = None
        breaker.open_until = now + int(self._policy.open_for * SECOND)
        return breaker

    def landed(self, flow: str, call_type: str, entry: Entry) -> bool:
        """True if `entry`, which gives its seat back, was the probe. The next one may start."""
        breaker = self.table.get((flow, call_type))
        if breaker is None or breaker.probe is not entry:
            return False
        breaker.probe = None
        return True

    def well(self, flow: str, call_type: str) -> Breaker | None:
        """The server has answered well. The breaker, if that has closed it."""
        return self.table.pop((flow, call_type), None)

    def _make_room(self) -> bool:
        """True if there is room for one more. Only one that blocks nobody is dropped for it."""
        if len(self.table) >= MAX_BREAKERS:
            idle = next((key for key, breaker in self.table.items() if not breaker.blocks), None)
            if idle is None:
                return False
            del self.table[idle]
        return True


class Hold:
    """Refused credentials (rule R4): all starts of a scope wait behind one probe."""

    __slots__ = ("error", "probe", "scope", "since", "timer", "waiting")

    def __init__(self, scope: Hashable, now: int) -> None:
        self.scope = scope
        self.since = now
        self.waiting: dict[int, Entry] = {}
        self.probe: Entry | None = None
        self.timer = 0
        self.error: BaseException | None = None


class LaterScope:
    """Calls refused for the same condition elsewhere (rule R2): tried a few at a time until it has passed."""

    __slots__ = ("awake", "due", "members", "scope", "window")

    def __init__(self, scope: Hashable) -> None:
        self.scope = scope
        self.members: dict[int, Entry] = {}  # all that wait, are due or are awake
        self.due: dict[int, Entry] = {}  # whose delay is over
        self.awake: dict[int, Entry] = {}  # let go, no answer yet
        self.window = LATER_WINDOW

    def next_due(self) -> Entry | None:
        """One more that may be tried now, taken out of the due ones."""
        if not self.due or len(self.awake) >= self.window:
            return None
        ticket = next(iter(self.due))
        entry = self.due.pop(ticket)
        self.awake[ticket] = entry
        return entry

    def answered(self, entry: Entry, *, later: bool) -> None:
        """An awake call has its answer, or has left: open the window if the condition seems to have passed."""
        if self.awake.pop(entry.ticket, None) is not None:
            self.window = LATER_WINDOW if later else min(1_024, self.window * 2)

    def forget(self, entry: Entry) -> None:
        for table in (self.members, self.due, self.awake):
            table.pop(entry.ticket, None)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the shell has classified it: the verdict, how long to wait, and what it says of the server.

    `delay` (ns) is what the wait strategy and Retry-After gave; `exhausted` that the stop strategy said enough.
    `signature` is equal for errors that will not pass by themselves when they repeat (rule R12); None: no such error.
    """

    error: BaseException
    verdict: Verdict
    delay: int = 0
    exhausted: bool = False
    signal: Signal = Signal.NONE
    signature: Hashable = None
