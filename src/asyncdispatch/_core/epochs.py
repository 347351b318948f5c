"""Scheduling contexts inside the core: what lives in each epoch, who is whose parent, what is confirmed (L5, L21)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncdispatch.errors import ConfigurationError, StaleContext

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncdispatch._core.states import Entry
    from asyncdispatch.contexts import SchedulingContext


class Epoch:
    """One context: its limit, its children, its living handles, and how many requirements are not confirmed yet."""

    __slots__ = ("children", "context", "handles", "parent", "timer", "unconfirmed", "valid_until")

    def __init__(self, context: SchedulingContext, parent: Epoch | None, valid_until: int) -> None:
        self.context = context
        self.parent = parent
        self.valid_until = valid_until
        self.children: dict[int, Epoch] = {}
        self.handles: dict[int, Entry] = {}
        self.unconfirmed = len(context.requirements)
        self.timer = 0

    @property
    def limit(self) -> int:
        """When it ends by itself: its own validity or that of the nearest ancestor to end."""
        limit, above = self.valid_until, self.parent
        while above is not None:
            limit, above = min(limit, above.valid_until), above.parent
        return limit

    def ancestors(self) -> Iterator[Epoch]:
        """Itself, its parent, and so on."""
        epoch: Epoch | None = self
        while epoch is not None:
            yield epoch
            epoch = epoch.parent

    @property
    def failed(self) -> tuple[str, BaseException] | None:
        """The first requirement that failed, with its error."""
        for name, state in self.context.requirements.items():
            if isinstance(state, BaseException):
                return name, state
        return None

    def set_requirement(self, name: str, state: BaseException | bool | None) -> None:
        requirements = self.context.requirements
        if name not in requirements:
            known = ", ".join(requirements) or "none"
            raise ConfigurationError("prerequisite", name, f"its context does not require it (it requires: {known})")
        requirements[name] = state
        self.unconfirmed = sum(value is not True for value in requirements.values())

    def line(self) -> Iterator[Epoch]:
        """Itself and all its descendants, parents first."""
        yield self
        for child in list(self.children.values()):
            yield from child.line()


class Epochs:
    """The living contexts, by epoch and by object."""

    __slots__ = ("_next", "by_lane", "table")

    def __init__(self) -> None:
        self._next = 1
        self.table: dict[int, Epoch] = {}
        self.by_lane: dict[str, Epoch] = {}

    def number(self) -> int:
        """A new epoch, never used before."""
        number = self._next
        self._next += 1
        return number

    def open(self, context: SchedulingContext, parent: Epoch | None, valid_until: int) -> Epoch:
        epoch = Epoch(context, parent, valid_until)
        self.table[context.epoch] = epoch
        self.by_lane[context.ref.lane] = epoch
        if parent is not None:
            parent.children[context.epoch] = epoch
        return epoch

    def living(self, context: SchedulingContext, now: int) -> Epoch:
        """The epoch of a context that lives. Raises `StaleContext`, or `ConfigurationError` for a foreign one."""
        epoch = self.table.get(context.epoch)
        if context.ended is not None or (epoch is not None and epoch.limit <= now):
            reason = context.ended or "its validity is over"
            raise StaleContext(f"context {context.epoch} of {context.ref} has ended ({reason}); begin a new one")
        if epoch is None or epoch.context is not context:
            raise ConfigurationError("context", context, "belongs to another dispatcher")
        return epoch

    def close(self, epoch: Epoch, reason: str) -> None:
        context = epoch.context
        context.ended = reason
        del self.table[context.epoch]
        if self.by_lane.get(context.ref.lane) is epoch:
            del self.by_lane[context.ref.lane]
        if epoch.parent is not None:
            epoch.parent.children.pop(context.epoch, None)
