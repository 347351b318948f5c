"""What a test says of the attempts that a step driver has started: how each has ended."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, cast

from asyncdispatch._core.parking import Failure, Signal
from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import SECOND, Entry
from asyncdispatch.calls import Again, Applied, Refused, Unknown, Verdict, VerdictKind
from asyncdispatch.handles import CallHandle
from asyncdispatch.testing.stepping import events
from asyncdispatch.testing.stepping.history import History, check

if TYPE_CHECKING:
    from asyncdispatch._core.machine import Machine

__all__ = ["Reports", "ns"]

Handle = CallHandle[Any]


def ns(seconds: float) -> int:
    return round(seconds * SECOND)


class Reports:
    """The part of a `StepDriver` that ends attempts. Each is one step."""

    core: Machine
    history: History
    flying: dict[int, Handle]
    reconciling: dict[int, Handle]
    stopping: dict[int, Handle]

    if TYPE_CHECKING:

        @property
        def now(self) -> int: ...
        def _begin(self) -> dict[str, Any]: ...
        def _end(self) -> None: ...
        def _empty(self) -> None: ...
        def _started(self, stamp: dict[str, Any], entry: Entry | None) -> None: ...

    def _leave(self, entry: Entry) -> None:
        found = self.flying.pop(entry.ticket, None) or self.reconciling.pop(entry.ticket, None)
        check(found is entry, "L1", f"call {entry.ticket} is not in flight")
        self.stopping.pop(entry.ticket, None)

    def _ended(self, stamp: dict[str, Any], entry: Entry, how: str, **more: Any) -> None:
        if more.get("goes_on"):
            self.reconciling[entry.ticket] = cast("Handle", entry)
        self.history.add(events.Ended(**stamp, ticket=entry.ticket, how=how, **more))
        self._end()

    def succeed(self, entry: Entry, value: Any = None) -> None:
        """`execute` has returned `value`."""
        stamp = self._begin()
        self._leave(entry)
        self.core.succeed(entry, value, self.now)
        self._ended(stamp, entry, "succeeded", value=value)

    def turn(self, entry: Entry, value: Any = None) -> Handle | None:
        """As `succeed`, and its seat passes on: what starts next, in one step."""
        stamp = self._begin()
        self._leave(entry)
        core = self.core
        following = core.turn(entry, value, self.now) if isinstance(core, DispatchCore) else None
        if following is not None:
            core.settled.append(entry)
        else:
            core.succeed(entry, value, self.now)
            following = core.next(self.now)
        self.history.add(events.Ended(**stamp, ticket=entry.ticket, how="succeeded", value=value))
        self._empty()
        self._started(stamp, following)
        self._end()
        return cast("Handle | None", following)

    def fail(
        self,
        entry: Entry,
        kind: VerdictKind = VerdictKind.RETRY,
        *,
        maybe: bool = False,
        delay: float = 0.0,
        scope: Hashable = None,
        exhausted: bool = False,
        signal: Signal = Signal.NONE,
        signature: Hashable = None,
        error: BaseException | None = None,
    ) -> bool:
        """`execute` has raised, with this verdict. True if its fate is to be asked for at once (`reconcile`)."""
        verdict = Verdict(kind, maybe, scope=scope)
        return self.failed(
            entry, Failure(error or ValueError(kind.value), verdict, ns(delay), exhausted, signal, signature)
        )

    def failed(self, entry: Entry, failure: Failure) -> bool:
        """As `fail`, with everything that the shell reports of an error."""
        stamp = self._begin()
        self._leave(entry)
        goes_on = self.core.fail(entry, failure, self.now)
        self._ended(stamp, entry, "failed", goes_on=goes_on, verdict=failure.verdict)
        return goes_on

    def stop(self, entry: Entry, *, sent: bool = True) -> bool:
        """The attempt has ended because it was asked to. True if its fate is to be asked for at once."""
        stamp = self._begin()
        self._leave(entry)
        goes_on = self.core.stopped(entry, sent, self.now)
        self._ended(stamp, entry, "stopped", goes_on=goes_on, sent=sent)
        return goes_on

    def reconcile(
        self, entry: Entry, found: Any, *, refusal: VerdictKind = VerdictKind.PERMANENT, delay: float = 0.0
    ) -> None:
        """`reconcile` has answered. `delay`: before it is sent, or asked for, again."""
        self.reconciled(entry, found, Verdict(refusal), ns(delay))

    def reconciled(self, entry: Entry, found: Any, refusal: Verdict, delay: int) -> None:
        """As `reconcile`, with everything that the shell reports; `delay` in nanoseconds."""
        stamp = self._begin()
        self._leave(entry)
        how = {Applied: "applied", Again: "again", Refused: "refused", Unknown: "unknown"}.get(type(found), "unknown")
        self.core.reconciled(entry, found, refusal, delay, self.now)
        value = found.value if isinstance(found, Applied) else None
        maybe_applied = isinstance(found, Unknown) and found.maybe_applied
        self._ended(stamp, entry, how, value=value, maybe_applied=maybe_applied)

    def fail_reconcile(
        self,
        entry: Entry,
        kind: VerdictKind = VerdictKind.RETRY,
        *,
        delay: float = 0.0,
        scope: Hashable = None,
        exhausted: bool = False,
        signal: Signal = Signal.NONE,
    ) -> None:
        """`reconcile` has raised, with this verdict."""
        verdict = Verdict(kind, scope=scope)
        self.reconcile_failed(entry, Failure(ValueError(kind.value), verdict, ns(delay), exhausted, signal))

    def reconcile_failed(self, entry: Entry, failure: Failure) -> None:
        """As `fail_reconcile`, with everything that the shell reports of an error."""
        stamp = self._begin()
        self._leave(entry)
        self.core.reconcile_failed(entry, failure, self.now)
        self._ended(stamp, entry, "reconcile_failed", verdict=failure.verdict)
