"""A broadcast with a bounded buffer for each subscriber.

A slow subscriber loses the oldest first and is told how many it has lost, so that it looks at everything again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from asyncdispatch.config import check_count

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Broadcast", "Subscription"]

T = TypeVar("T")
"""A frozen dataclass with a field `lost`."""


class Subscription(Generic[T]):
    """One subscription: an async context manager, and an async iterator that ends when its source does, or is left.

    What was told before is still given out.
    """

    def __init__(self, hub: Broadcast[T], maxsize: int) -> None:
        check_count("maxsize", maxsize)
        self._hub = hub
        self._buffer: deque[T] = deque()
        self._maxsize = maxsize
        self._waiter: asyncio.Future[None] | None = None
        self._unsaid = 0
        self._left = False
        self.lost = 0
        """How many were dropped in all."""

    async def __aenter__(self) -> Self:
        self._hub.streams.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self in self._hub.streams:
            self._hub.streams.remove(self)
        self._left = True
        self.wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._buffer:
            if self._hub.closed or self._left:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._buffer.popleft()
        if self._unsaid:
            told: Any = item
            item, self._unsaid = replace(told, lost=self._unsaid), 0
        return item

    def put(self, item: T) -> None:
        """Add `item`, and drop the oldest if there is no room."""
        if len(self._buffer) >= self._maxsize:
            self._buffer.popleft()
            self.lost += 1
            self._unsaid += 1
        self._buffer.append(item)
        self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Broadcast(Generic[T]):
    """All subscriptions of one source."""

    def __init__(self) -> None:
        self.streams: list[Subscription[T]] = []
        self.closed = False

    def send(self, item: T) -> None:
        """Give `item` to every subscriber."""
        for stream in list(self.streams):
            stream.put(item)

    def close(self) -> None:
        """No more will come: readers get what is left, then their iteration ends."""
        self.closed = True
        for stream in list(self.streams):
            stream.wake()
