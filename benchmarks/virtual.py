"""A server in virtual time around the real core: every call takes one service time, and nothing else takes any.

Latencies come out exact and the same on every machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any

from asyncdispatch import APICall, DispatcherConfig
from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import PLACE_SHIFT, SECOND, Entry

SERVICE = SECOND // 1_000
"""One service time: a millisecond, short enough that aging does not enter."""

Arrival = tuple[int, APICall[Any]]
"""When, in nanoseconds, and what."""


def latencies(config: DispatcherConfig, arrivals: Iterable[Arrival]) -> dict[str, list[float]]:
    """From submit to completion, in service times, by flow. `arrivals` in order of time."""
    core = DispatchCore(config)
    ends: list[tuple[int, int, Entry]] = []
    took: dict[str, list[float]] = defaultdict(list)

    def advance(until: int) -> None:
        while ends and ends[0][0] <= until:
            now, _, entry = heappop(ends)
            took[entry.call.flow].append((now - (entry.accepted >> PLACE_SHIFT)) / SERVICE)
            core.succeed(entry, None, now)
            core.settled.clear()
            start(now)

    def start(now: int) -> None:
        while (entry := core.next(now)) is not None:
            heappush(ends, (now + SERVICE, entry.ticket, entry))

    for when, call in arrivals:
        advance(when)
        core.submit(call, when)
        start(when)
    advance(1 << 62)
    return took


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)]
