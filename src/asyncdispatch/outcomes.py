"""The seven ways in which an accepted call can end. Exactly one of them is told to its caller (law L1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

from asyncdispatch.calls import Verdict

__all__ = ["Cancelled", "Expired", "Failed", "Outcome", "Overwritten", "Shed", "Skipped", "Succeeded"]

T = TypeVar("T")

# No slots: a frozen generic class with slots can't be called as `Succeeded[int](3)` on Python 3.11.


@dataclass(frozen=True, kw_only=True)
class Ending(Generic[T]):
    """What every outcome tells.

    `attempts` counts entries into `execute`; `queued_seconds` is the time spent waiting, `elapsed_seconds` the time
    from acceptance to the end. `ambiguous` is True if a request was sent that may have been applied and nothing has
    settled it since (law L10). `late` says that a success came too late to be the outcome, `late_success` is its value
    (law L11). `cause` is the last error that an attempt met, if any.
    """

    attempts: int = 0
    queued_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    ambiguous: bool = False
    late: bool = field(default=False, compare=False)
    late_success: T | None = None
    cause: BaseException | None = None

    def __post_init__(self) -> None:
        if self.late_success is not None:
            object.__setattr__(self, "late", True)


@final
@dataclass(frozen=True)
class Succeeded(Ending[T]):
    """The call was done; a no-op has the value None and no attempts."""

    value: T


@final
@dataclass(frozen=True)
class Failed(Ending[T]):
    """The call was refused for good, or its attempts were used up. `verdict` says how `error` was classified."""

    error: BaseException
    verdict: Verdict


@final
@dataclass(frozen=True)
class Skipped(Ending[T]):
    """The call with ticket `by`, accepted before this one and superseding it, has succeeded."""

    by: int


@final
@dataclass(frozen=True)
class Overwritten(Ending[T]):
    """The call with ticket `by`, accepted after this one, has merged it or has succeeded and supersedes it."""

    by: int


@final
@dataclass(frozen=True)
class Expired(Ending[T]):
    """Its time ran out while it was queued, delayed, line, requirements, backoff, held or in_flight (`where`)."""

    where: str


@final
@dataclass(frozen=True)
class Cancelled(Ending[T]):
    """Its caller, context, object, flow or dispatcher ended it, for `reason`."""

    reason: str


@final
@dataclass(frozen=True)
class Shed(Ending[T]):
    """It was dropped while it waited, to make room; `reason` names the call that took the room."""

    reason: str


Outcome = Succeeded[T] | Failed[T] | Skipped[T] | Overwritten[T] | Expired[T] | Cancelled[T] | Shed[T]
AnyOutcome = Outcome[Any]
