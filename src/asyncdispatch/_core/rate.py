"""Starts per second (law L20): a token bucket kept as one time, after the generic cell rate algorithm (ITU-T I.371).

Tokens are taken when a call starts. A call that waits, expires or is cancelled owes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncdispatch._core.states import SECOND

if TYPE_CHECKING:
    from asyncdispatch.config import RateLimit


class TokenBucket:
    """At most `burst + qps·t` starts in any time t; full again after burst/qps seconds without a start."""

    __slots__ = ("_full_at", "_interval", "_slack")

    def __init__(self, limit: RateLimit) -> None:
        self._interval = -int(-SECOND // limit.qps)  # rounded up, so that rounding never lets one more through
        self._slack = (limit.burst - 1) * self._interval
        self._full_at = 0  # when the bucket is full again

    def free_at(self, now: int) -> int:
        """The earliest time from `now` on at which a call may start."""
        return max(now, self._full_at - self._slack)

    def take(self, now: int) -> None:
        self._full_at = max(self._full_at, now) + self._interval

    def empty(self, now: int) -> None:
        """The server pushed back: no burst is left, starts go on at the steady rate."""
        self._full_at = max(self._full_at, now + self._slack + self._interval)
