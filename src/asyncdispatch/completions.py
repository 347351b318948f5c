"""Completion events: they ask to look at an object again, and are never a licence to bind (design section 6).

A broadcast with a bounded buffer for each subscriber. A slow subscriber loses the oldest first and is told how many
it has lost, so that it lists again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from asyncdispatch.config import check_count

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

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


class CompletionStream:
    """One subscription: an async context manager, and an async iterator that ends when the dispatcher is closed."""

    def __init__(self, hub: Completions, maxsize: int) -> None:
        check_count("maxsize", maxsize)
        self._hub = hub
        self._buffer: deque[Completion] = deque()
        self._maxsize = maxsize
        self._waiter: asyncio.Future[None] | None = None
        self._unsaid = 0
        self.lost = 0
        """How many were dropped in all."""

    async def __aenter__(self) -> Self:
        self._hub.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.remove(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Completion:
        while not self._buffer:
            if self._hub.closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        completion = self._buffer.popleft()
        if self._unsaid:
            completion, self._unsaid = replace(completion, lost=self._unsaid), 0
        return completion

    def put(self, completion: Completion) -> None:
        if len(self._buffer) >= self._maxsize:
            self._buffer.popleft()
            self.lost += 1
            self._unsaid += 1
        self._buffer.append(completion)
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Completions:
    """All subscriptions of one dispatcher."""

    def __init__(self) -> None:
        self.streams: list[CompletionStream] = []
        self.closed = False

    def subscribe(self, maxsize: int) -> CompletionStream:
        return CompletionStream(self, maxsize)

    def add(self, stream: CompletionStream) -> None:
        self.streams.append(stream)

    def remove(self, stream: CompletionStream) -> None:
        if stream in self.streams:
            self.streams.remove(stream)

    def publish(self, *args: Any, **fields: Any) -> None:
        if self.streams:
            completion = Completion(*args, **fields)
            for stream in list(self.streams):
                stream.put(completion)

    def close(self) -> None:
        self.closed = True
        for stream in list(self.streams):
            stream.wake()
