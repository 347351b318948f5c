"""Writes the trace of a dispatcher: `Dispatcher(config, observers=(recorder,))` with a `TraceRecorder`.

What is recorded are the steps of the core, not those that observers are told of: only the core's inputs, at the core's
own times, replay to the same decisions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.overlay import Objects, OwnWrite
from asyncdispatch._core.parking import Failure
from asyncdispatch._core.short import DispatchCore
from asyncdispatch.calls import Again, Applied, ObjectRef, Refused, Unknown
from asyncdispatch.config import check_count
from asyncdispatch.errors import ConfigurationError, DispatchError
from asyncdispatch.outcomes import Succeeded
from asyncdispatch.traces.format import (
    FORMAT,
    VERSION,
    call_text,
    config_fields,
    failure_fields,
    identity_text,
    number_of,
    ref_text,
)
from asyncdispatch.traces.tape import Tape

if TYPE_CHECKING:
    from types import TracebackType

    from asyncdispatch._core.states import Entry
    from asyncdispatch.calls import APICall, Verdict
    from asyncdispatch.contexts import ContextOwner, SchedulingContext
    from asyncdispatch.dispatcher import Dispatcher

__all__ = ["TraceRecorder"]

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("asyncdispatch")


class TraceRecorder:
    """Records one dispatcher: `with TraceRecorder(path) as recorder:` around `Dispatcher(observers=(recorder,))`.

    A path that ends with ".gz" is compressed; an older file is replaced. The event loop never waits for the file: a
    thread writes. Leaving the block waits for that, ten seconds at most. If it can't write, or after `max_bytes` of
    lines, the trace ends there with one line in the log, and `ended` says why; calls go on as if nothing were. Names of
    objects, flows and call types are recorded, and no body, value, key or message. Raises `ConfigurationError` for a
    wrong argument and `OSError` if the file can't be made.
    """

    def __init__(self, path: str | Path, *, max_bytes: int = 1 << 30) -> None:
        if not isinstance(path, (str, Path)) or not str(path):
            raise ConfigurationError("path", path, "must be the path of a file")
        check_count("max_bytes", max_bytes)
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._tape: Tape | None = None
        self._used = False

    def __enter__(self) -> Self:
        if self._tape is not None:
            raise ConfigurationError("path", self._path, "is recorded already: make one recorder for each dispatcher")
        self._tape = Tape(self._path, self._max_bytes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Writes what is left and closes the file."""
        assert self._tape is not None
        self._tape.close()

    @property
    def ended(self) -> str | None:
        """Why the trace has ended before its dispatcher; None if it has not."""
        return None if self._tape is None else self._tape.ended

    def entered(self, dispatcher: Dispatcher) -> None:
        """Told by the dispatcher as it is entered: from here on its core is recorded."""
        if self._tape is None or self._used:
            remedy = "open it first: `with TraceRecorder(path) as recorder`" if not self._used else "record one only"
            raise ConfigurationError("observers", self, remedy)
        self._used = True
        record(dispatcher._core, self._tape, dispatcher._now())


def record(core: DispatchCore, tape: Tape, now: int) -> None:
    """Have a core that has done nothing yet write down its steps."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "library": _library(),
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
        "began": now,
        "config": config_fields(core.config),
    }
    tape.add(json.dumps(header, separators=(",", ":")))
    # In place, since the dispatcher's parts hold this very object.
    core.__class__ = RecordedCore
    assert isinstance(core, RecordedCore)
    core.tape, core.base = tape, now
    core.objects = RecordedObjects(core)


def _library() -> str:
    try:
        return version("asyncdispatch")
    except PackageNotFoundError:
        return "unknown"


class RecordedCore(DispatchCore):
    """The core, each step of which is written down once it is done. What a step does inside is not a step."""

    tape: Tape
    base: int  # ns; the time that the lines count from
    quiet = False  # inside of a step

    # -- the common steps: written in one piece -----------------------------------------------------------------------

    def submit_common(self, call: APICall[Any], now: int) -> Entry | None:
        entry = super().submit_common(call, now)
        if entry is not None and not self.quiet:
            self.tape.add(f'["submit",{now - self.base},{entry.ticket},{self._call(call)}]')
        return entry

    def next(self, now: int) -> Entry | None:
        if self.quiet:
            return super().next(now)
        idle = not len(self.ordering) and now < self.timers.due
        told = len(self.settled)
        self.quiet = True
        try:
            entry = super().next(now)
        finally:
            self.quiet = False
        if entry is not None or not idle:  # else nothing was looked at
            self._write("start", now, "null" if entry is None else str(entry.ticket), told)
        return entry

    def turn(self, entry: Entry, value: Any, now: int) -> Entry | None:
        following = super().turn(entry, value, now)
        if following is not None:
            self.tape.add(f'["turn",{now - self.base},{entry.ticket},{self._identity(value)},{following.ticket}]')
        return following

    def succeed(self, entry: Entry, value: Any, now: int, *, found: bool = False) -> None:
        if self.quiet:
            super().succeed(entry, value, now, found=found)
            return
        told = len(self.settled)
        self.quiet = True
        try:
            super().succeed(entry, value, now, found=found)
        finally:
            self.quiet = False
        self._write("success", now, f"{entry.ticket},{self._identity(value)}", told)

    def tick(self, now: int) -> None:
        due = now >= self.timers.due or self._requirements
        if due:
            self._step(now, ("tick",), super().tick, now)
        else:
            super().tick(now)

    # -- submitting ---------------------------------------------------------------------------------------------------

    def submit(self, call: APICall[Any], now: int, since: int | None = None) -> Entry:
        return self._submitted(super().submit, call, now, since)

    def submit_any(self, call: APICall[Any], now: int, since: int | None = None) -> Entry:
        return self._submitted(super().submit_any, call, now, since)

    def _submitted(self, step: Callable[..., Entry], call: APICall[Any], now: int, since: int | None) -> Entry:
        if self.quiet:
            return step(call, now, since)
        told, merges, remembered = len(self.settled), self.merges, self.remembered
        due = now >= self.timers.due
        more: dict[str, Any] = {} if since is None else {"since": since - self.base}
        self.quiet = True
        try:
            entry = step(call, now, since)
        except DispatchError as error:
            self.quiet = False
            if not isinstance(error, ConfigurationError):
                self._write("refused", now, f'"{type(error).__name__}",{self._call(call)}', told, more)
            elif due and now < self.timers.due:
                self._write("tick", now, "", told)  # it can't be meant, but what was due was done
            raise
        finally:
            self.quiet = False
        if self.merges != merges:
            more["merged"] = 1
        if entry.lead is not entry:
            more["joined"] = entry.lead.ticket
        elif self.remembered != remembered:
            more["remembered"] = 1
        elif entry.ended and isinstance(entry.settled, Succeeded):
            more["noop"] = 1
        self._write("submit", now, f"{entry.ticket},{self._call(call)}", told, more)
        return entry

    # -- what became of attempts --------------------------------------------------------------------------------------

    def fail(self, entry: Entry, failure: Failure, now: int) -> bool:
        line = ("failure", entry.ticket, failure)
        return self._step(now, line, super().fail, entry, failure, now)

    def stopped(self, entry: Entry, sent: bool, now: int, *, begun: bool = True) -> bool:
        line = ("stopped", entry.ticket, int(sent), int(begun))
        return self._step(now, line, super().stopped, entry, sent, now, begun=begun)

    def reconciled(self, entry: Entry, answer: Any, refusal: Verdict, delay: int, now: int) -> None:
        line = ("reconciled", entry.ticket, lambda: _answer(answer, refusal), delay)
        self._step(now, line, super().reconciled, entry, answer, refusal, delay, now)

    def reconcile_failed(self, entry: Entry, failure: Failure, now: int) -> None:
        line = ("reconcile_failed", entry.ticket, failure)
        self._step(now, line, super().reconcile_failed, entry, failure, now)

    def give_up(self, entry: Entry, now: int) -> None:
        self._step(now, ("give_up", entry.ticket), super().give_up, entry, now)

    # -- ending calls -------------------------------------------------------------------------------------------------

    def cancel(self, handle: Entry, reason: str, now: int) -> bool:
        return self._step(now, ("cancel", handle.ticket), super().cancel, handle, reason, now)

    def cancel_flow(self, flow: str, reason: str, now: int) -> int:
        return self._step(now, ("cancel_flow", flow), super().cancel_flow, flow, reason, now)

    def forget(self, ref: ObjectRef, reason: str, now: int) -> int:
        return self._step(now, ("forget", ref), super().forget, ref, reason, now)

    def fail_call(self, handle: Entry, error: BaseException, now: int) -> None:
        self._step(now, ("broken", handle.ticket), super().fail_call, handle, error, now)

    def drain(self, until: int, now: int) -> None:
        self._step(now, ("drain", until - self.base), super().drain, until, now)

    def close(self, reason: str, now: int) -> None:
        self._step(now, ("close",), super().close, reason, now)

    # -- objects ------------------------------------------------------------------------------------------------------

    def observe(
        self, ref: ObjectRef, version: int | None, deleting: bool, fresh: bool, now: int
    ) -> tuple[bool, list[OwnWrite]]:
        line = ("observe", ref, version, int(deleting), int(fresh))
        return self._step(now, line, super().observe, ref, version, deleting, fresh, now)

    def replace(self, entry: Entry, call: APICall[Any]) -> None:
        super().replace(entry, call)
        self._note(None, ("rebase", entry.ticket, self.executable(entry).version), {})

    # -- contexts -----------------------------------------------------------------------------------------------------

    def begin(
        self,
        owner: ContextOwner,
        ref: ObjectRef,
        version: int | None,
        parent: SchedulingContext | None,
        valid_until: float | None,
        requires: tuple[str, ...],
        now: int,
    ) -> SchedulingContext:
        told = len(self.settled)
        self.quiet = True
        epoch = None
        try:
            context = super().begin(owner, ref, version, parent, valid_until, requires, now)
            epoch = context.epoch
            return context
        finally:
            self.quiet = False
            above = None if parent is None else parent.epoch
            self._note(now, ("begin", epoch, ref, version, above, valid_until, list(requires)), self._told(told))

    def extend(self, context: SchedulingContext, valid_until: float, now: int) -> None:
        self._step(now, ("extend", context.epoch, valid_until), super().extend, context, valid_until, now)

    def end(self, context: SchedulingContext, reason: str, now: int) -> None:
        self._step(now, ("end", context.epoch), super().end, context, reason, now)

    def require(self, context: SchedulingContext, name: str, state: BaseException | bool, now: int) -> None:
        line = ("require", context.epoch, name, int(state is True))
        self._step(now, line, super().require, context, name, state, now)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _step(self, now: int, line: tuple[Any, ...], step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it, and write it down, also if it has raised: it may have changed something before."""
        if self.quiet:
            return step(*args, **kwargs)
        told, merges = len(self.settled), self.merges
        self.quiet = True
        try:
            return step(*args, **kwargs)
        finally:
            self.quiet = False
            self._note(now, line, self._told(told) | ({"merged": 1} if self.merges != merges else {}))

    def _told(self, before: int) -> dict[str, Any]:
        """Which handles the step has settled, other than with a success: a replay is compared with it."""
        if len(self.settled) == before:
            return {}
        outcomes = [(handle.ticket, handle.settled) for handle in self.settled[before:]]
        told = [[t, type(o).__name__.lower()] for t, o in outcomes if not isinstance(o, Succeeded)]
        return {"told": told} if told else {}

    def _note(self, now: int | None, line: tuple[Any, ...], more: dict[str, Any]) -> None:
        """Whatever is wrong with it ends the trace, never a call."""
        try:
            at = None if now is None else now - self.base
            items = [line[0], at, *line[1:], *([more] if more else [])]
            self.tape.add(json.dumps(items, default=_fields, separators=(",", ":")))
        except Exception as error:
            self._broken(error)

    def _write(self, name: str, now: int, text: str, told: int, more: dict[str, Any] | None = None) -> None:
        """As `_note`, of text that is JSON already."""
        if len(self.settled) != told:
            more = (more or {}) | self._told(told)
        end = f",{json.dumps(more, separators=(',', ':'))}]" if more else "]"
        self.tape.add(f'["{name}",{now - self.base}{"," if text else ""}{text}{end}')

    def _identity(self, value: Any) -> str:
        try:
            return identity_text(value)
        except Exception as error:  # an answer is anything
            self._broken(error)
            return "null"

    def _call(self, call: APICall[Any]) -> str:
        try:
            return call_text(call)
        except Exception as error:  # a key's hash is user code
            self._broken(error)
            return "null"

    def _broken(self, error: Exception) -> None:
        self.tape.end(f"a step could not be written down: {error!r}")


class RecordedObjects(Objects):
    """Also writes down which own writes were found to be seen, which only the shell can tell."""

    __slots__ = ("_recorded",)

    def __init__(self, core: RecordedCore) -> None:
        super().__init__(core.config.max_unobserved, nanoseconds(core.config.unobserved_age))
        self._recorded = core

    def drop(self, lane: str, writes: list[OwnWrite]) -> None:
        super().drop(lane, writes)
        self._recorded._note(None, ("seen", lane, [write.number for write in writes]), {})


def _answer(answer: Any, refusal: Verdict) -> list[Any]:
    """How `reconcile` has answered, and what the core needs of that."""
    if isinstance(answer, Applied):
        return ["applied", json.loads(identity_text(answer.value))]
    if isinstance(answer, Again):
        call = answer.call
        return ["again", {"version": call.version, "uid": call.target.uid, "scope": number_of(call.scope)}]
    if isinstance(answer, Refused):
        return ["refused", refusal.kind.value]
    return ["unknown", int(isinstance(answer, Unknown) and answer.maybe_applied)]


def _fields(value: Any) -> Any:
    """What json can't write by itself; asked in `_note`, where an error ends the trace and nothing else."""
    if isinstance(value, ObjectRef):
        return json.loads(ref_text(value))
    return failure_fields(value) if isinstance(value, Failure) else value()
