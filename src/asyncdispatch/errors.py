"""Every exception that the library raises on purpose. This module imports nothing.

::

    DispatchError
    ├── ConfigurationError        a value that can't be meant (also a ValueError)
    │   └── MissingField          a call is made without what it needs (also a TypeError)
    ├── RefusedError              a call that was not accepted; nothing was queued
    │   ├── Backpressure          no room: come back after `retry_after` seconds
    │   ├── StaleContext          its scheduling context has ended
    │   ├── AsyncDisabled         asynchronous submission is switched off
    │   ├── DispatcherClosed      not started, draining for good, or closed
    │   └── MergeFailed           `merge` raised or returned something else; the waiting call is untouched
    └── OutcomeError              what `await handle` raises; carries `.outcome`
        ├── CallFailed            raised from the original error
        │   ├── AmbiguousOutcome  it failed, and a request of it may have been applied
        │   └── PrerequisiteFailed  what it waited for ended other than well
        ├── CallSkipped           a call that supersedes it had succeeded already
        ├── CallOverwritten       a later call took its place
        ├── DeadlineExpired       its time ran out
        ├── CallCancelled         its caller, context, object or dispatcher ended it
        └── CallShed              it made room for a more urgent call
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from asyncdispatch.outcomes import Outcome

__all__ = [
    "AmbiguousOutcome",
    "AsyncDisabled",
    "Backpressure",
    "CallCancelled",
    "CallFailed",
    "CallOverwritten",
    "CallShed",
    "CallSkipped",
    "ConfigurationError",
    "DeadlineExpired",
    "DispatchError",
    "DispatcherClosed",
    "MergeFailed",
    "MissingField",
    "OutcomeError",
    "PrerequisiteFailed",
    "RefusedError",
    "StaleContext",
]


class DispatchError(Exception):
    """Root of all errors of this library. They can be copied, and pickled where what they tell of can be."""

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__.__new__, (self.__class__, *self.args), self.__dict__


class ConfigurationError(DispatchError, ValueError):
    """A value that can't be meant. The message names the field, the value and the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}={value!r}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class MissingField(ConfigurationError, TypeError):
    """A call was made without a field that it needs."""


class RefusedError(DispatchError):
    """The call was not accepted: there is no handle, and nothing was queued."""


class Backpressure(RefusedError):
    """There is no room. Nothing was queued; submit again after `retry_after` seconds, or drop the work.

    `scope` says what was full: "total", "flow", "joined" or "object"; `depth` of `capacity` places were taken there.
    """

    def __init__(self, retry_after: float, depth: int, capacity: int, scope: str) -> None:
        super().__init__(f"{scope} is full ({depth} of {capacity}); retry after {retry_after:.3g} s")
        self.retry_after = retry_after
        self.depth = depth
        self.capacity = capacity
        self.scope = scope


class StaleContext(RefusedError):
    """The scheduling context has ended, so nothing may be decided in it any more: begin a new one."""


class AsyncDisabled(RefusedError):
    """Asynchronous submission is switched off (mode DRAINING or SYNC): use `dispatch` or `run`."""


class DispatcherClosed(RefusedError):
    """The dispatcher is not running: it was not entered yet, is draining for good, or is closed."""


class MergeFailed(RefusedError):
    """`merge` raised or returned something that is not a call of its type. The waiting call is untouched."""


class OutcomeError(DispatchError):
    """The call ended other than well. `outcome` says how."""

    def __init__(self, message: str, outcome: Outcome[Any]) -> None:
        super().__init__(message)
        self.outcome = outcome


class CallFailed(OutcomeError):
    """The call failed for good. `__cause__` is the original error."""


class AmbiguousOutcome(CallFailed):
    """The call failed, and one of its requests may have been applied: read the object before deciding anew."""


class PrerequisiteFailed(CallFailed):
    """A requirement that the call waited for ended other than well. `name` is the requirement's."""

    outcome: Outcome[Any]

    def __init__(self, message: str, name: str) -> None:
        DispatchError.__init__(self, message)
        self.name = name


class CallSkipped(OutcomeError):
    """A call that supersedes this one, accepted earlier, has succeeded."""


class CallOverwritten(OutcomeError):
    """A later call took this one's place, by merging or by superseding it."""


class DeadlineExpired(OutcomeError):
    """The call's time ran out. `outcome.where` says what it was doing then."""


class CallCancelled(OutcomeError):
    """The caller, the context, the object or the dispatcher ended the call. `outcome.reason` says which."""


class CallShed(OutcomeError):
    """The call was dropped, still waiting, to make room for a more urgent one."""
