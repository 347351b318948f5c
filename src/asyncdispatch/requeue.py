"""From completions to the scheduler's own queue: "look at this object again", never "bind it" (design section 6).

What is put into the queue says which object, in which epoch it was decided, and why. What to do about it is decided
anew, on what is true then.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncdispatch.config import check_count
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.outcomes import Succeeded

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from asyncdispatch.calls import ObjectRef
    from asyncdispatch.completions import Completion, CompletionStream
    from asyncdispatch.dispatcher import Dispatcher

__all__ = ["LookAgain", "Requeue"]

log = logging.getLogger("asyncdispatch")


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Consider `ref` again. `epoch`: the context in which the call was decided that has ended (None: in none).

    `why` is the name of the call's outcome, or "unobserved". `needs_read`: read the object first, and hand it to
    `dispatcher.observe(obj, fresh=True)`: an own write is in doubt or was not seen.
    """

    ref: ObjectRef
    epoch: int | None
    call_type: str
    why: str
    needs_read: bool


def not_succeeded(completion: Completion) -> bool:
    """True for what has to be considered again: all but a success without a doubt."""
    return completion.needs_read or not isinstance(completion.outcome, Succeeded)


class Requeue:
    """Puts what has to be looked at again into a queue of yours. Use it as `async with Requeue(dispatcher, put, …)`.

    `put(look)` and `relist(lost)` may be plain or async. `relist` is called when completions were lost, because the
    buffer of `maxsize` ran over or `put` raised: list the objects again. `wanted(completion)` chooses; it is every
    outcome but an undoubted success, unless given. Errors of the three are logged, and what they were about is lost,
    so that a list is asked for. If `relist` raises, it is asked again with the next completion, and on leaving.

    `scheduling_retries` counts what was put, by outcome, and so do the dispatcher's statistics and metrics; retries of
    API calls are another thing, and counted apart.
    Leaving delivers what was told so far. Completions of a drain come only if it drains inside of the block.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        put: Callable[[LookAgain], object],
        *,
        relist: Callable[[int], object],
        wanted: Callable[[Completion], bool] = not_succeeded,
        maxsize: int = 1024,
    ) -> None:
        for name, value in (("put", put), ("relist", relist), ("wanted", wanted)):
            if not callable(value):
                raise ConfigurationError(name, value, "must be callable")
        check_count("maxsize", maxsize)
        self._put, self._relist, self._wanted = put, relist, wanted
        self._totals = dispatcher._totals
        self._stream: CompletionStream = dispatcher.completions(maxsize)
        self._task: asyncio.Task[None] | None = None
        self._unlisted = 0
        self.scheduling_retries: Counter[str] = Counter()
        self.lost = 0
        self.relists = 0

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise ConfigurationError("Requeue", "entered twice", "is entered once: make another")
        await self._stream.__aenter__()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="asyncdispatch-requeue")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        await self._stream.__aexit__(kind, error, trace)
        await self._task

    async def _run(self) -> None:
        async for completion in self._stream:
            await self._take(completion)
        await self._list_again(0)

    async def _take(self, completion: Completion) -> None:
        lost = completion.lost
        try:
            if self._wanted(completion):
                look = _look(completion)
                await _call(self._put, look)
                self.scheduling_retries[look.why] += 1
                self._totals.scheduling_retries[look.why] += 1
        except Exception:
            log.exception("a completion could not be put into the queue; a list is asked for")
            lost += 1
        await self._list_again(lost)

    async def _list_again(self, lost: int) -> None:
        self.lost += lost
        self._unlisted += lost
        if not self._unlisted:
            return
        try:
            await _call(self._relist, self._unlisted)
        except Exception:
            log.exception("relist raised: %d lost completions are told again with the next one", self._unlisted)
        else:
            self._unlisted = 0
            self.relists += 1


def _look(completion: Completion) -> LookAgain:
    outcome = completion.outcome
    why = "unobserved" if outcome is None else type(outcome).__name__.lower()
    return LookAgain(completion.ref, completion.epoch, completion.call_type, why, completion.needs_read)


async def _call(fn: Callable[[Any], object], argument: Any) -> None:
    answer = fn(argument)
    if inspect.isawaitable(answer):
        waiting: Awaitable[object] = answer
        await waiting
