"""The dispatcher's side of scheduling contexts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.overlay import integer_version
from asyncdispatch._core.states import SECOND
from asyncdispatch.calls import ObjectRef, version_of
from asyncdispatch.config import check_seconds
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.errors import ConfigurationError

if TYPE_CHECKING:
    from asyncdispatch.dispatcher import Dispatcher


class Contexts:
    """`dispatcher.contexts`: begins scheduling contexts and carries out what they ask. Event loop only."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def begin(
        self,
        obj: Any,
        *,
        parent: SchedulingContext | None = None,
        valid_until: float | None = None,
        requires: Iterable[str] = (),
    ) -> SchedulingContext:
        """A new context for `obj` (a JSON dict, a client model or an ObjectRef); the object's older one ends.

        `valid_until`, in seconds of the loop's clock, ends it by itself, as does the end of `parent`. `requires` names
        what must be confirmed before calls with `awaits_prerequisites` start. Raises `StaleContext` if that time is
        over, the parent has ended or another object has the name by now, `ConfigurationError` for a wrong value.
        """
        if isinstance(requires, str) or not isinstance(requires, Iterable):
            raise ConfigurationError("requires", requires, "must be a tuple of names")
        names = tuple(requires)
        if not all(isinstance(name, str) and name for name in names):
            raise ConfigurationError("requires", names, "must be a tuple of names")
        if parent is not None and not isinstance(parent, SchedulingContext):
            raise ConfigurationError("parent", parent, "must be a SchedulingContext or None")
        if valid_until is not None:
            check_seconds("valid_until", valid_until, zero=True)
        core, now = self._dispatcher._step()
        version = None if isinstance(obj, ObjectRef) else integer_version(version_of(obj))
        context = core.begin(self, ObjectRef.of(obj), version, parent, valid_until, names, now)
        context.began = now / SECOND
        self._dispatcher._flush()
        return context

    def unsettled(self, context: SchedulingContext) -> int:
        """How many calls of `context`, and of the contexts below it, have no outcome yet. 0 once it has ended."""
        core, _ = self._dispatcher._step()
        epoch = core.epochs.table.get(context.epoch)
        return 0 if epoch is None else sum(len(each.handles) for each in epoch.line())

    async def settled(self, context: SchedulingContext, timeout: float) -> bool:
        """Wait until no call of `context` or below it is without an outcome; False if it took more than `timeout` s.

        It is for whoever hands over what the context stands for. New calls are still accepted: submit none.
        """
        check_seconds("timeout", timeout, zero=True)
        until = self._dispatcher._now() + nanoseconds(timeout)
        while self.unsettled(context):
            if not await self._dispatcher._idle_or(until):
                return False
        return True

    def extend(self, context: SchedulingContext, valid_until: float) -> None:
        check_seconds("valid_until", valid_until)
        core, now = self._dispatcher._step()
        try:
            core.extend(context, valid_until, now)
        finally:
            self._dispatcher._flush()

    def end(self, context: SchedulingContext, reason: str) -> None:
        core, now = self._dispatcher._step()
        core.end(context, reason, now)
        self._dispatcher._flush()

    def confirm(self, context: SchedulingContext, name: str) -> None:
        self._require(context, name, True)

    def fail(self, context: SchedulingContext, name: str, error: BaseException) -> None:
        if not isinstance(error, BaseException):
            raise ConfigurationError("error", error, "must be an exception")
        self._require(context, name, error)

    def _require(self, context: SchedulingContext, name: str, state: BaseException | bool) -> None:
        core, now = self._dispatcher._step()
        core.require(context, name, state, now)
        self._dispatcher._flush()
