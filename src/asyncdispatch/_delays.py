"""How long to wait before the next attempt: tenacity's strategies, asked with our clock, and the server's word."""

from __future__ import annotations

import random
from typing import Any

import tenacity

from asyncdispatch.calls import Verdict, VerdictKind
from asyncdispatch.config import RetryPolicy

__all__ = ["Delays"]

DEFAULT_WAIT = tenacity.wait_random_exponential(multiplier=0.1, max=30)
"""Full jitter: from nothing to 0.1 s, doubling up to 30 s."""

RETRY_FLOOR = 0.05
"""Seconds: what the default strategy, or a Retry-After of 0, waits at least (rule R17)."""

LATER_FLOOR = 0.5
LATER_CAP = 60.0
"""Seconds: the schedule of LATER starts at the first, or at what its verdict asks for, and doubles to the second."""


class Delays:
    """Answers how long to wait, and whether to stop. `rng` gives the jitter of LATER."""

    def __init__(self, policy: RetryPolicy, rng: random.Random | None = None) -> None:
        self._policy = policy
        self._rng = rng or random.Random()

    def next(
        self, own: RetryPolicy | None, verdict: Verdict, error: BaseException, failures: int, started: float, now: float
    ) -> tuple[float, bool]:
        """Seconds to wait and whether the attempts are used up. Raises what a user's strategy raises.

        `failures` counts this one; `started` is when the call was accepted, `now` when the attempt ended.
        """
        policy = own or self._policy
        state = _state(error, failures, started, now)
        stop = policy.stop if policy.stop is not None else self._policy.stop
        exhausted = bool(stop(state)) if stop is not None else False
        asked = verdict.retry_after
        if verdict.kind is VerdictKind.LATER:
            base = max(LATER_FLOOR, min(asked or 0.0, policy.max_wait))
            delay = min(max(LATER_CAP, base), base * 2.0 ** min(failures - 1, 16))
            return delay * self._rng.uniform(1.0, 1.25), exhausted
        wait = policy.wait if policy.wait is not None else self._policy.wait
        delay = max(RETRY_FLOOR, DEFAULT_WAIT(state)) if wait is None else _seconds(wait(state))
        if asked is not None:
            # Never before the time asked for; the strategy's jitter spreads those who were all told the same.
            delay += max(RETRY_FLOOR, min(asked, policy.max_wait))
        return delay, exhausted


def _seconds(delay: Any) -> float:
    seconds = float(delay)
    if not 0.0 <= seconds < float("inf"):
        raise ValueError(f"the wait strategy gave {delay!r}: it must give a finite number of seconds, 0 or more")
    return seconds


def _state(error: BaseException, failures: int, started: float, now: float) -> tenacity.RetryCallState:
    state = tenacity.RetryCallState(None, None, (), {})  # type: ignore[arg-type]
    state.start_time = started
    state.attempt_number = failures
    state.outcome = tenacity.Future.construct(failures, error, True)
    state.outcome_timestamp = now
    return state
