"""How many calls may be in flight (law L3): in total, per flow, per call type. The total follows the server.

Additive increase, multiplicative decrease, as TCP's congestion avoidance (RFC 5681) does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncdispatch.config import AdaptiveLimit

if TYPE_CHECKING:
    from asyncdispatch._core.ordering import FlowQueue
    from asyncdispatch.config import FlowQuota

TAG_UNIT = 1 << 40
"""One share of service, as an integer: fair-share tags are whole numbers of this over the weight."""


class TotalSeats:
    """Seats for all calls together. `taken` may exceed `limit` after a cut: then nothing starts until it does not."""

    __slots__ = ("_cut_at", "_growth", "_policy", "limit", "maximum", "taken")

    def __init__(self, limit: AdaptiveLimit | int) -> None:
        self._policy = limit if isinstance(limit, AdaptiveLimit) else None
        self.limit = limit.initial if isinstance(limit, AdaptiveLimit) else limit
        self.maximum = limit.maximum if isinstance(limit, AdaptiveLimit) else limit
        self.taken = 0
        self._growth = 0
        self._cut_at = 0

    def succeeded(self) -> None:
        """A call has succeeded; called before its seat is given back. Grows by one seat per limit of full successes."""
        if self.taken < self.limit or self.limit >= self.maximum:
            return
        self._growth += 1
        if self._growth >= self.limit:
            self._growth = 0
            self.limit += 1

    def overloaded(self, started: int, now: int) -> None:
        """The server refused for load or let a call time out. Calls that flew together cut once between them."""
        if self._policy is None or started < self._cut_at:
            return
        self._cut_at = now
        self._growth = 0
        self.limit = max(self._policy.minimum, int(self.limit * self._policy.backoff))


class Flow:
    """One plugin or tenant: its quota, and what it has waiting and in flight."""

    __slots__ = ("accepted", "free", "in_flight", "increment", "limit", "max_queued", "name", "queues")

    def __init__(self, name: str, quota: FlowQuota) -> None:
        self.name = name
        self.limit = quota.max_in_flight
        self.max_queued = quota.max_queued
        self.free = quota.max_in_flight is None and quota.max_queued is None  # no quota to look at
        self.increment = round(TAG_UNIT / quota.weight)
        self.accepted = 0  # handles without an outcome, joiners aside; counted only under a `max_queued`
        self.in_flight = 0  # counted only under a `max_in_flight`
        self.queues: list[FlowQueue] = []  # where it has calls ready

    @property
    def full(self) -> bool:
        return self.limit is not None and self.in_flight >= self.limit
