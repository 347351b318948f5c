"""Completion events: they ask to look at an object again, and are never a licence to bind (design section 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncdispatch._broadcast import Broadcast, Subscription

if TYPE_CHECKING:
    from asyncdispatch.calls import ObjectRef
    from asyncdispatch.outcomes import AnyOutcome

__all__ = ["Completion", "CompletionStream", "Completions"]


@dataclass(frozen=True, slots=True)
class Completion:
    """A call about `ref`, decided in `epoch` (None: in no context), has ended with `outcome`: look at `ref` again.

    `needs_read`: an own write is in doubt, or was not seen for too long. Read the object and hand it to
    `dispatcher.observe(obj, fresh=True)`. For the latter reason there is no `outcome`. `lost`: so many completions
    were dropped just before this one, because this subscriber was too slow; list again.
    """

    ref: ObjectRef
    epoch: int | None
    ticket: int
    call_type: str
    outcome: AnyOutcome | None
    needs_read: bool = False
    lost: int = 0


class CompletionStream(Subscription[Completion]):
    """One subscription: an async context manager, and an async iterator that ends when the dispatcher is closed."""


class Completions(Broadcast[Completion]):
    """All subscriptions of one dispatcher."""

    def subscribe(self, maxsize: int) -> CompletionStream:
        return CompletionStream(self, maxsize)

    def publish(self, *args: Any, **fields: Any) -> None:
        if self.streams:
            self.send(Completion(*args, **fields))
