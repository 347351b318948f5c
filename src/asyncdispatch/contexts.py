"""Scheduling contexts: the epochs in which decisions are taken (design section 6, laws L5, L11, L21).

A context is begun with `dispatcher.contexts.begin(obj)`, which ends the object's older one. What was decided in a
context that has ended never starts any more, and a success that arrives too late reaches nobody as a result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncdispatch.calls import ObjectRef

__all__ = ["ContextOwner", "SchedulingContext"]


class ContextOwner(Protocol):
    """Who keeps contexts: the dispatcher, or a driver of the bare core in tests."""

    def extend(self, context: SchedulingContext, valid_until: float) -> None: ...
    def end(self, context: SchedulingContext, reason: str) -> None: ...
    def confirm(self, context: SchedulingContext, name: str) -> None: ...
    def fail(self, context: SchedulingContext, name: str, error: BaseException) -> None: ...


class Requirements(dict[str, "BaseException | bool | None"]):
    """What a context requires, by name; whoever changes one wakes its context's watchers."""

    __slots__ = ("watchers",)

    def __init__(self, names: tuple[str, ...], watchers: list[Callable[[], None]]) -> None:
        super().__init__(dict.fromkeys(names))
        self.watchers = watchers

    def __setitem__(self, name: str, state: BaseException | bool | None) -> None:
        super().__setitem__(name, state)
        for watcher in self.watchers:
            watcher()


class SchedulingContext:
    """One attempt to schedule one object. Made by `dispatcher.contexts.begin`; used from its event loop only.

    `epoch` is counted per dispatcher and never used twice. `ended` is None while the context lives, then the reason.
    `requirements` maps each required name to None (pending), True (confirmed) or the error with which it failed.
    `began` is when, in seconds of the event loop's clock.

    `watchers` are called when a requirement changes and when the context ends, in the midst of a step of the core: all
    that they may do is to take a note and look later.
    """

    __slots__ = ("_ended", "_owner", "began", "epoch", "parent", "ref", "requirements", "valid_until", "watchers")

    def __init__(
        self,
        owner: ContextOwner,
        epoch: int,
        ref: ObjectRef,
        parent: SchedulingContext | None,
        valid_until: float | None,
        requires: tuple[str, ...],
    ) -> None:
        self._owner = owner
        self.epoch = epoch
        self.ref = ref
        self.parent = parent
        self.valid_until = valid_until
        self.watchers: list[Callable[[], None]] = []
        self.requirements: dict[str, BaseException | bool | None] = Requirements(requires, self.watchers)
        self.began = 0.0
        self._ended: str | None = None

    @property
    def ended(self) -> str | None:
        return self._ended

    @ended.setter
    def ended(self, reason: str | None) -> None:
        self._ended = reason
        for watcher in self.watchers:
            watcher()

    def extend(self, valid_until: float) -> None:
        """Move the end of validity to `valid_until` (seconds of the event loop's monotonic clock).

        Raises `StaleContext` if the context has ended, also when its old `valid_until` has just passed.
        """
        self._owner.extend(self, valid_until)

    def end(self, reason: str) -> None:
        """End the context and all its children: what waits in it is cancelled, what flies is asked to stop."""
        self._owner.end(self, reason)

    def confirm(self, name: str) -> None:
        """Confirm the requirement `name` from outside. Raises `ConfigurationError` for a name not required."""
        self._owner.confirm(self, name)

    def fail(self, name: str, error: BaseException) -> None:
        """Fail the requirement `name`: the calls that await it end as Failed with `PrerequisiteFailed`."""
        self._owner.fail(self, name, error)

    def missing(self) -> list[str]:
        """The requirements that are not confirmed, in the order in which they were declared."""
        return [name for name, state in self.requirements.items() if state is not True]

    def __repr__(self) -> str:
        state = f"ended: {self.ended}" if self.ended else "live"
        return f"<SchedulingContext {self.epoch} of {self.ref} {state}>"
