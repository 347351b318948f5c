"""The leadership contexts of one Lease: how its time becomes the validity of scheduling contexts (rule R7)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from asyncdispatch.dispatcher import Dispatcher
from asyncdispatch.errors import DispatchError

if TYPE_CHECKING:
    from asyncdispatch.calls import ObjectRef
    from asyncdispatch.contexts import SchedulingContext

__all__ = ["Terms"]

log = logging.getLogger("asyncdispatch.kubernetes.lease")


class Terms:
    """One context in each dispatcher that works under the Lease. The fence is their `valid_until`, not our calls."""

    def __init__(self, ref: ObjectRef) -> None:
        self._ref = ref
        self._contexts: dict[Dispatcher, SchedulingContext] = {}

    def begin(self, dispatcher: Dispatcher, valid_until: float) -> SchedulingContext:
        """The dispatcher's context of this term, the same until it ends."""
        context = self._contexts.get(dispatcher)
        if context is None or context.ended is not None:
            context = dispatcher.contexts.begin(self._ref, valid_until=valid_until)
            self._contexts[dispatcher] = context
        return context

    def extend(self, valid_until: float) -> str | None:
        """Move the end of the term. Returns why it is over for one of the dispatchers, if it is."""
        over = None
        for dispatcher, context in self._contexts.items():
            try:
                context.extend(valid_until)
            except DispatchError as error:
                if dispatcher._closer is None:  # else it closes, and has ended its contexts itself: nothing is wrong
                    over = context.ended or str(error)
        return over

    def end(self, reason: str) -> None:
        """The term is over: what waits under it is cancelled, what flies is asked to stop."""
        contexts, self._contexts = self._contexts, {}
        for context in contexts.values():
            try:
                context.end(reason)
            except Exception:
                log.exception("the context of %s could not be ended; its time will end it", self._ref)

    def __bool__(self) -> bool:
        """Somebody works under it."""
        return bool(self._contexts)

    def quiet(self) -> bool:
        """Nothing that was sent under this term is under way any more, as far as its dispatchers know."""
        return all(_quiet(dispatcher, context) for dispatcher, context in self._contexts.items())


def _quiet(dispatcher: Dispatcher, context: SchedulingContext) -> bool:
    closer = dispatcher._closer
    if closer is None:
        return not dispatcher.contexts.unsettled(context)
    if not closer.done() or closer.cancelled() or closer.exception() is not None:
        return False
    report = closer.result()
    return not report.may_exist and not report.still_running
