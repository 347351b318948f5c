"""Runs of real dispatchers that are recorded, with what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncdispatch import Dispatcher
from asyncdispatch.outcomes import AnyOutcome, Failed, Succeeded
from asyncdispatch.traces import Replay, TraceRecorder, read_trace, replay


class Kept:
    """What a recorded dispatcher really did: by an observer that is told call by call."""

    def __init__(self) -> None:
        self.handles: dict[int, Any] = {}
        self.outcomes: dict[int, AnyOutcome] = {}
        self.starts: list[tuple[int, int]] = []

    def accepted(self, handle: Any) -> None:
        self.handles[handle.ticket] = handle

    def started(self, handle: Any, number: int) -> None:
        reconciling = handle.more is not None and handle.more.reconciling
        if not reconciling:
            self.starts.append((handle.ticket, number))

    def settled(self, handle: Any, outcome: AnyOutcome) -> None:
        self.outcomes[handle.ticket] = outcome


class Quiet:
    """The same without starts and outcomes told one by one, so that the dispatcher may take its shortest ways."""

    def __init__(self) -> None:
        self.handles: dict[int, Any] = {}

    def accepted(self, handle: Any) -> None:
        self.handles[handle.ticket] = handle


@contextmanager
def recorded(module: str, path: Path, kept: Any) -> Iterator[None]:
    """Whatever dispatcher `module` makes is recorded, and watched by `kept`."""
    with TraceRecorder(path) as recorder, pytest.MonkeyPatch.context() as patch:

        def make(*args: Any, observers: tuple[Any, ...] = (), **more: Any) -> Dispatcher:
            return Dispatcher(*args, observers=(*observers, recorder, kept), **more)

        patch.setattr(f"{module}.Dispatcher", make)
        yield
    assert recorder.ended is None, recorder.ended


def told(outcome: AnyOutcome | None) -> Any:
    """An outcome without what a trace does not hold: values, errors, reasons."""
    if outcome is None:
        return None
    more: tuple[Any, ...] = ()
    if isinstance(outcome, Failed):
        more = (outcome.verdict.kind, outcome.verdict.maybe_applied)
    for name in ("by", "where"):
        more += (getattr(outcome, name, None),)
    late = not isinstance(outcome, Succeeded) and outcome.late
    times = (outcome.attempts, outcome.queued_seconds, outcome.elapsed_seconds)
    return (type(outcome).__name__, outcome.ambiguous, *times, *more, late and "late")


def check_same(path: Path, kept: Any) -> Replay:
    """The replay of a trace gives what was seen: each call's outcome to the nanosecond, and the starts in order."""
    trace = read_trace(path)
    assert trace.note is None
    again = replay(trace)
    assert set(again.calls) == set(kept.handles)
    for ticket, handle in kept.handles.items():
        expected, found = told(handle.settled), told(again.calls[ticket].outcome)
        assert found == expected, f"call {ticket}: {found}, not {expected}"
    if isinstance(kept, Kept):
        assert [(start.ticket, start.number) for start in again.starts if start.number] == kept.starts
    assert replay(trace).starts == again.starts
    return again
