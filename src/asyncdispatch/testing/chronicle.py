"""What has happened to the calls of a running dispatcher, kept by object, for those who look for what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from asyncdispatch.calls import ObjectRef, Verdict
from asyncdispatch.handles import CallHandle
from asyncdispatch.testing.stepping.telling import told, words_of

if TYPE_CHECKING:
    from asyncdispatch.outcomes import AnyOutcome
    from asyncdispatch.statistics import Mode

__all__ = ["Chronicle"]

Handle = CallHandle[Any]
Kind = TypeVar("Kind")


class Chronicle:
    """An observer of a `Dispatcher`: `Dispatcher(observers=[chronicle])`. Keeps a line for all that it is told.

    `time` says what time it is, in seconds: a `VirtualClock`, or the event loop's `time`.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._lines: list[tuple[str | None, str]] = []  # an object's lane, or None for what is about all

    # -- the observer -------------------------------------------------------------------------------------------------

    def accepted(self, handle: Handle) -> None:
        lead = handle.lead.ticket
        joins = "" if lead == handle.ticket else f", joins call {lead}"
        self._add(handle, f"accepted{joins}: {words_of(handle.call)}")

    def started(self, handle: Handle, number: int) -> None:
        self._add(handle, f"starts attempt {number}")

    def attempted(self, handle: Handle, number: int, error: BaseException | None) -> None:
        self._add(handle, f"attempt {number} {'ends well' if error is None else f'fails: {error!r}'}")

    def retried(self, handle: Handle, verdict: Verdict, delay: float) -> None:
        self._add(handle, f"waits for {delay:.3f} s ({verdict.kind.value})")

    def settled(self, handle: Handle, outcome: AnyOutcome) -> None:
        self._add(handle, told(outcome))

    def mode_changed(self, old: Mode, new: Mode, reason: str) -> None:
        self.note(f"mode {old.value} becomes {new.value}: {reason}")

    # -- the test -----------------------------------------------------------------------------------------------------

    def note(self, text: str, ref: ObjectRef | None = None) -> None:
        """Add a line of the test's own, about one object or about all."""
        self._lines.append((None if ref is None else ref.lane, f"{self._time():>10.3f} s  {text}"))

    def of(self, ref: ObjectRef | None = None) -> str:
        """What has happened to an object, or to all of them, line by line."""
        title = "history" if ref is None else f"history of {ref}"
        return "\n".join(
            [f"{title}:", *(line for lane, line in self._lines if ref is None or lane in (None, ref.lane))]
        )

    def expect(self, handle: Handle, kind: type[Kind]) -> Kind:
        """The outcome of a handle. AssertionError, with its object's history, if it is another, or none yet."""
        outcome = handle.settled
        if isinstance(outcome, kind):
            return outcome
        error = AssertionError(f"{handle!r}: expected {kind.__name__}, not {outcome!r}")
        error.add_note(self.of(handle.call.target))
        raise error

    def _add(self, handle: Handle, text: str) -> None:
        self.note(f"call {handle.ticket} {text}", handle.call.target)
