"""Who gets in (law L4): capacity, the reserve for prerequisites, quotas, shedding, and the pressure signal."""

from __future__ import annotations

import enum
import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from asyncdispatch._core.states import SECOND
from asyncdispatch.errors import Backpressure

if TYPE_CHECKING:
    from asyncdispatch._core.seats import Flow
    from asyncdispatch._core.states import Entry
    from asyncdispatch.config import DispatcherConfig


class Pressure(enum.Enum):
    """How full the dispatcher is, of what ordinary calls may take.

    HIGH above 80 %, until it falls below 60 %; FULL at 100 %, until it falls to 90 %.
    """

    OK = "ok"
    HIGH = "high"
    FULL = "full"


class DrainRate:
    """Places that come free per second, smoothed over ten: `retry_after` and "too late" are guessed from it.

    Nothing is counted for it call by call: it has to be asked now and then, and knows nothing if not for ten seconds.
    """

    __slots__ = ("_rate", "_seen", "_since")

    def __init__(self) -> None:
        self._rate = 0.0
        self._since = self._seen = 0

    def per_second(self, settled: int, now: int) -> float:
        """`settled`: how many have come free so far. 0.0 while it is not known that any have."""
        seconds = (now - self._since) / SECOND
        if seconds >= 1.0:
            if seconds < 10.0:
                share = seconds / 10.0 if self._rate else 1.0
                self._rate += share * ((settled - self._seen) / seconds - self._rate)
            else:
                self._rate = 0.0
            self._since, self._seen = now, settled
        return self._rate or float(settled - self._seen)


class Sheddables:
    """The waiting calls that may be shed, by level: the newest, and the one whose deadline is nearest."""

    __slots__ = ("_deadlines", "_waiting")

    def __init__(self, levels: int) -> None:
        self._waiting: list[dict[int, Entry]] = [{} for _ in range(levels)]
        self._deadlines: list[list[tuple[int, int]]] = [[] for _ in range(levels)]

    def __len__(self) -> int:
        return sum(map(len, self._waiting))

    def add(self, entry: Entry) -> None:
        waiting, heap = self._waiting[entry.level], self._deadlines[entry.level]
        waiting[entry.ticket] = entry
        heappush(heap, (entry.deadline, entry.ticket))
        if len(heap) > 2 * len(waiting) + 8:
            heap[:] = sorted((e.deadline, e.ticket) for e in waiting.values())

    def remove(self, entry: Entry) -> None:
        self._waiting[entry.level].pop(entry.ticket, None)

    def choose(self, level: int, hopeless: int, flow: Flow | None) -> Entry | None:
        """One less urgent than `level`: with a deadline before `hopeless`, else the least urgent, the newest of it."""
        below = self._waiting[:level]
        for waiting, heap in zip(below, self._deadlines, strict=False):
            while heap and heap[0][1] not in waiting:
                heappop(heap)
            if heap and heap[0][0] < hopeless and flow is None:
                return waiting[heap[0][1]]
        for waiting in below:
            for entry in reversed(waiting.values()):
                if flow is None or entry.flow is flow:
                    return entry
        return None


class Admission:
    """Counts what was accepted and has no outcome, and says no when there is no room."""

    __slots__ = (
        "_eased",
        "_high",
        "_low",
        "_max_joined",
        "_reserve",
        "depth",
        "down",
        "drain",
        "joined",
        "joins",
        "ordinary",
        "pressure",
        "sheddables",
        "tickets",
        "total",
        "up",
    )

    def __init__(self, config: DispatcherConfig, levels: int) -> None:
        self.total = config.capacity
        self._reserve = int(config.capacity * config.reserve)
        self.ordinary = config.capacity - self._reserve
        self._max_joined = config.max_joined
        self.tickets = 0  # how many calls were accepted
        self.joins = 0  # how many of them joined another
        self.depth = 0  # handles without an outcome, joiners aside
        self.joined = 0  # joiners without an outcome
        self.drain = DrainRate()
        self.sheddables = Sheddables(levels)
        self.pressure = Pressure.OK
        # HIGH begins at the first depth, and ends below the second; FULL ends at the third.
        self._high = min(self.ordinary, int(self.ordinary * 0.8) + 1)
        self._low = math.ceil(self.ordinary * 0.6)
        self._eased = int(self.ordinary * 0.9)
        # The depths at which the pressure changes next; `up` is 0 while it is FULL, so that every entry looks.
        self.up = self.down = 0

    # -- asking -------------------------------------------------------------------------------------------------

    def admit_joiner(self, now: int) -> None:
        if self.joined >= self._max_joined:
            raise Backpressure(self._retry_after(now, 1), self.joined, self._max_joined, "joined")

    def admit(self, flow: Flow, level: int, prerequisite: bool, now: int) -> Entry | None:
        """Let one more in, or name the call to shed for it, or raise `Backpressure`. Changes nothing."""
        victim = None
        room = self.total if prerequisite else self.ordinary
        if flow.max_queued is not None and flow.accepted >= flow.max_queued:
            victim = self.sheddables.choose(level, 0, flow)
            if victim is None:
                raise Backpressure(self._retry_after(now, 1), flow.accepted, flow.max_queued, "flow")
        if self.depth >= room and victim is None:
            victim = self.sheddables.choose(level, now + self._expected_wait(now), None)
            if victim is None:
                raise Backpressure(self._retry_after(now, self.depth - room + 1), self.depth, room, "total")
        return victim

    def refuse_object(self, now: int, depth: int, capacity: int) -> Backpressure:
        return Backpressure(self._retry_after(now, 1), depth, capacity, "object")

    def drained_per_second(self, now: int) -> float:
        """How fast places come free. Ask now and then, so that it is known when it is needed."""
        return self.drain.per_second(self.tickets - self.joins - self.depth, now)

    def _expected_wait(self, now: int) -> int:
        rate = self.drained_per_second(now)
        return int(self.depth / rate * SECOND) if rate else 0

    def _retry_after(self, now: int, places: int) -> float:
        """Until so many places, and a tenth of the capacity for all who ask meanwhile, will have come free."""
        rate = self.drained_per_second(now)
        return min(30.0, max(0.05, (places + self.total * 0.1) / rate)) if rate else 1.0

    # -- counting -----------------------------------------------------------------------------------------------

    def entered(self, flow: Flow) -> None:
        flow.accepted += flow.max_queued is not None
        self.depth += 1
        if self.depth >= self.up:
            self.aim()

    def left(self, flow: Flow) -> None:
        flow.accepted -= flow.max_queued is not None
        self.depth -= 1
        if self.depth <= self.down:
            self.aim()

    def aim(self) -> None:
        """Set the pressure and the two depths at which it changes next."""
        depth, pressure = self.depth, self.pressure
        if depth >= self.ordinary or (pressure is Pressure.FULL and depth > self._eased):
            self.pressure, self.up, self.down = Pressure.FULL, 0, self._eased
        elif depth >= self._high or (pressure is not Pressure.OK and depth >= self._low):
            self.pressure, self.up, self.down = Pressure.HIGH, self.ordinary, self._low - 1
        else:
            self.pressure, self.up, self.down = Pressure.OK, self._high, -1
