"""Times at which something must happen: a heap with lazy deletion, and deadlines in buckets.

Law L19: every waiting state has a timer here or a deadline. Law L5: a deadline is told within a bucket's width.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

from asyncdispatch._core.states import NEVER, NO_BUCKET

if TYPE_CHECKING:
    from asyncdispatch._core.states import Entry

BUCKET_BITS = 26
"""A bucket spans 2^26 ns: 67 ms."""


class Timed(Protocol):
    """What can have a timer. `timer` is the number of its live one; any other number is void."""

    timer: int


Action = tuple[Callable[[Any, int], None], Any]
"""What is due: a function, called with its argument and the time."""


class Timers:
    """One live timer for each subject. Setting it again voids the one before."""

    __slots__ = ("_heap", "_live", "_seq", "deadlines", "due")

    def __init__(self) -> None:
        self.due = NEVER  # when to look next: never later than the first live timer, or the first bucket's end
        self.deadlines = Deadlines(self)
        self._heap: list[tuple[int, int, Timed, Action]] = []
        self._seq = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def set(self, subject: Timed, when: int, action: Action) -> None:
        self._seq += 1
        self._live += subject.timer == 0
        subject.timer = self._seq
        heappush(self._heap, (when, self._seq, subject, action))
        if when < self.due:
            self.due = when
        if len(self._heap) > 64 and len(self._heap) > 2 * self._live:
            self._compact()

    def void(self, subject: Timed) -> None:
        if subject.timer:
            subject.timer = 0
            self._live -= 1
            if not self._live:
                self._heap.clear()
                self.due = self.deadlines.due

    def pop(self, now: int) -> Action | None:
        """The next action that is due, or None once there is no more."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, seq, subject, action = heappop(heap)
            if subject.timer == seq:
                subject.timer = 0
                self._live -= 1
                return action
        self.due = self.deadlines.due if not heap else min(heap[0][0], self.deadlines.due)
        return None

    def _compact(self) -> None:
        self._heap = [item for item in self._heap if item[2].timer == item[1]]
        heapify(self._heap)


class Deadlines:
    """Deadlines of handles, by bucket: setting and clearing cost a dict operation, firing is at most 67 ms late."""

    __slots__ = ("_order", "_timers", "buckets", "due")

    def __init__(self, timers: Timers) -> None:
        self.buckets: dict[int, dict[int, Entry]] = {}
        self._order: list[int] = []
        self._timers = timers
        self.due = NEVER

    def __len__(self) -> int:
        return sum(map(len, self.buckets.values()))

    def add(self, entry: Entry) -> None:
        entry.bucket = self.open(entry.deadline)
        entry.bucket[entry.ticket] = entry

    def open(self, deadline: int) -> dict[int, Entry]:
        """The bucket of a deadline."""
        index = deadline >> BUCKET_BITS
        bucket = self.buckets.get(index)
        if bucket is None:
            bucket = self.buckets[index] = {}
            heappush(self._order, index)
            self.due = (self._order[0] + 1) << BUCKET_BITS
            self._timers.due = min(self._timers.due, self.due)
        return bucket

    def remove(self, entry: Entry) -> None:
        entry.bucket.pop(entry.ticket, None)
        entry.bucket = NO_BUCKET

    def pop(self, now: int) -> list[Entry]:
        """All handles of one bucket that is over, in order of acceptance; empty when none is."""
        while self._order and (self._order[0] + 1) << BUCKET_BITS <= now:
            bucket = self.buckets.pop(heappop(self._order))
            self.due = (self._order[0] + 1) << BUCKET_BITS if self._order else NEVER
            if bucket:
                return list(bucket.values())
        return []
