"""Drives the real core with a recorded trace, step by step: the same starts and the same outcomes (law L16)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import PLACE_SHIFT, SECOND, Entry
from asyncdispatch.calls import Again, Applied, Refused, Unknown, Verdict, VerdictKind
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.errors import ConfigurationError, DispatchError, MergeFailed
from asyncdispatch.outcomes import AnyOutcome, Succeeded
from asyncdispatch.traces.format import TraceError, failure_of
from asyncdispatch.traces.reading import Step, Trace
from asyncdispatch.traces.standins import Answers, answer_of, changed, ref_of, stand_in

__all__ = ["Replay", "ReplayedCall", "Start", "replay"]

DIVERGED = "it was written by another version, whose decisions differ: replay it with that one, or record it again"


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """An accepted call. `outcome` is None if it had none when the trace ended; its value is never the recorded one."""

    ticket: int
    call_type: str
    flow: str
    level: str
    accepted: float
    outcome: AnyOutcome | None


@dataclass(frozen=True, slots=True)
class Start:
    """An attempt: when it began, in seconds of the recorded clock, and of which call. `number` 0 is a reconcile."""

    at: float
    ticket: int
    number: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a trace, as it came of the recorded run: every call by its ticket, and all starts in order."""

    calls: Mapping[int, ReplayedCall]
    starts: tuple[Start, ...]
    refused: Mapping[str, int]


def replay(trace: Trace) -> Replay:
    """Replay a trace under its own configuration.

    Raises `TraceError` at the first step whose start, ticket or outcome is not the recorded one.
    """
    if not isinstance(trace, Trace):
        raise ConfigurationError("trace", trace, "must be a Trace: see read_trace")
    player = Player(trace)
    for step in trace.steps:
        player.play(step)
    return player.result()


class Fate(NamedTuple):
    """How one attempt, or one reconcile, went: the name and items of the line that ended it, and its nanoseconds."""

    name: str
    line: int
    took: int
    items: tuple[Any, ...]


class Nobody:
    """The owner of a replay's contexts, which nobody holds."""

    def extend(self, context: SchedulingContext, valid_until: float) -> None:
        raise AssertionError

    def end(self, context: SchedulingContext, reason: str) -> None:
        raise AssertionError

    def confirm(self, context: SchedulingContext, name: str) -> None:
        raise AssertionError

    def fail(self, context: SchedulingContext, name: str, error: BaseException) -> None:
        raise AssertionError


class Player:
    """A core and what it is told of; each method named after a kind of line does what that says."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.core = DispatchCore(trace.config)
        self.answers = Answers()
        self.handles: dict[int, Entry] = {}
        self.contexts: dict[int, SchedulingContext] = {}
        self.starts: list[Start] = []
        self.refused: dict[str, int] = {}
        self.fates: dict[tuple[int, bool], list[Fate]] = {}  # by ticket and whether it was a reconcile
        self.startable: set[int] = set()  # lines after which some call could have started
        self._flying: dict[int, tuple[int, bool]] = {}  # when it began, and whether it is a reconcile
        self.step: Step

    def play(self, step: Step) -> None:
        self.step = step
        self.answers.merges, self.answers.noop = bool(step.more.get("merged")), bool(step.more.get("noop"))
        try:
            getattr(self, f"on_{step.name}")(step.at, *step.items)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, DispatchError) as error:
            if isinstance(error, TraceError):
                raise
            raise self.diverged(f"{step.name} is not possible here: {error!r}") from error
        self._check_told(step)
        core = self.core
        if core.seats.taken < core.seats.limit and core.can_start(lambda: step.at):
            self.startable.add(step.line)

    def diverged(self, problem: str) -> TraceError:
        return TraceError(self.trace.path, self.step.line, problem, DIVERGED)

    def result(self) -> Replay:
        calls = dict(zip(self.handles, replayed_calls(self.core, self.handles), strict=True))
        return Replay(calls, tuple(self.starts), self.refused)

    def _check_told(self, step: Step) -> None:
        settled, self.core.settled = self.core.settled, []
        self.core.stops.clear()
        self.core.objects.wanted.clear()
        told = []
        for handle in settled:
            outcome = handle.settled
            if not isinstance(outcome, Succeeded):
                told.append([handle.ticket, type(outcome).__name__.lower()])
        if told != step.more.get("told", []):
            raise self.diverged(f"settled are {told}, recorded were {step.more.get('told', [])}")

    def _started(self, entry: Entry | None, ticket: int | None, at: int) -> None:
        if (None if entry is None else entry.ticket) != ticket:
            raise self.diverged(f"it starts {entry and entry.ticket}, recorded was {ticket}")
        if entry is not None:
            reconciling = entry.more is not None and entry.more.reconciling
            self._flying[entry.ticket] = (at, reconciling)
            self.starts.append(Start(at / SECOND, entry.ticket, 0 if reconciling else entry.attempts))

    def _landed(self, ticket: int, goes_on: bool = False) -> None:
        """An attempt is over; `goes_on`: it is reconciled now, in the same seat."""
        step = self.step
        began, reconciling = self._flying.pop(ticket)
        fate = Fate(step.name, step.line, step.at - began, step.items)
        self.fates.setdefault((ticket, reconciling), []).append(fate)
        if goes_on:
            self._flying[ticket] = (step.at, True)

    # -- submitting and starting --------------------------------------------------------------------------------------

    def _call(self, fields: dict[str, Any]) -> Any:
        context = self.contexts[fields["context"]] if "context" in fields else None
        return stand_in(fields, context, self.answers)

    def on_submit(self, at: int, ticket: int, fields: dict[str, Any]) -> None:
        since = self.step.more.get("since")
        handle = self.core.submit(self._call(fields), at, None if since is None else self.trace.began + since)
        if handle.ticket != ticket:
            raise self.diverged(f"it is call {handle.ticket}, recorded was {ticket}")
        self.handles[ticket] = handle
        if handle.lead.ticket != self.step.more.get("joined", ticket):
            raise self.diverged(f"call {ticket} has joined {handle.lead.ticket}")

    def on_refused(self, at: int, error: str, fields: dict[str, Any]) -> None:
        if error == MergeFailed.__name__:
            self.answers.merges = ValueError("as recorded")
        since = self.step.more.get("since")
        try:
            self.core.submit(self._call(fields), at, None if since is None else self.trace.began + since)
        except DispatchError as raised:
            if type(raised).__name__ != error:
                raise self.diverged(f"it is refused by {raised!r}, recorded was {error}") from raised
        else:
            raise self.diverged(f"it is accepted, recorded was {error}")
        self.refused[error] = self.refused.get(error, 0) + 1

    def on_start(self, at: int, ticket: int | None) -> None:
        self._started(self.core.next(at), ticket, at)

    def on_success(self, at: int, ticket: int, identity: list[Any] | bool | None) -> None:
        self.core.succeed(self.handles[ticket], answer_of(identity), at)
        self._landed(ticket)

    def on_turn(self, at: int, ticket: int, identity: list[Any] | bool | None, following: int | None) -> None:
        entry, value = self.handles[ticket], answer_of(identity)
        follower = self.core.turn(entry, value, at)
        if follower is None:  # a step in one then need not be one now
            self.core.succeed(entry, value, at)
            follower = self.core.next(at)
        self._landed(ticket)
        self._started(follower, following, at)

    def on_failure(self, at: int, ticket: int, fields: dict[str, Any]) -> None:
        self._landed(ticket, self.core.fail(self.handles[ticket], failure_of(fields), at))

    def on_stopped(self, at: int, ticket: int, sent: int, begun: int) -> None:
        entry = self.handles[ticket]
        if not begun:  # it was no attempt, says the shell
            entry.attempts -= 1
            self.starts.remove(next(start for start in reversed(self.starts) if start.ticket == ticket))
        self._landed(ticket, self.core.stopped(entry, bool(sent), at, begun=bool(begun)))

    def on_reconciled(self, at: int, ticket: int, answer: list[Any], delay: int) -> None:
        tell_reconciled(self.core, self.handles[ticket], answer, delay, at)
        self._landed(ticket)

    def on_reconcile_failed(self, at: int, ticket: int, fields: dict[str, Any]) -> None:
        self.core.reconcile_failed(self.handles[ticket], failure_of(fields), at)
        self._landed(ticket)

    def on_give_up(self, at: int, ticket: int) -> None:
        self.core.give_up(self.handles[ticket], at)

    # -- time, ending calls -------------------------------------------------------------------------------------------

    def on_tick(self, at: int) -> None:
        self.core.tick(at)

    def on_cancel(self, at: int, ticket: int) -> None:
        self.core.cancel(self.handles[ticket], "cancelled", at)

    def on_cancel_flow(self, at: int, flow: str) -> None:
        self.core.cancel_flow(flow, "flow cancelled", at)

    def on_broken(self, at: int, ticket: int) -> None:
        self.core.fail_call(self.handles[ticket], RuntimeError("user code raised"), at)

    def on_drain(self, at: int, until: int) -> None:
        self.core.drain(self.trace.began + until, at)

    def on_close(self, at: int) -> None:
        self.core.close("closed", at)

    # -- objects ------------------------------------------------------------------------------------------------------

    def on_forget(self, at: int, items: list[Any]) -> None:
        self.core.forget(ref_of(items), "forgotten", at)

    def on_observe(self, at: int, items: list[Any], version: int | None, deleting: int, fresh: int) -> None:
        self.core.observe(ref_of(items), version, bool(deleting), bool(fresh), at)

    def on_rebase(self, at: int, ticket: int, version: str | None) -> None:
        entry = self.handles[ticket]
        self.core.replace(entry, changed(self.core.executable(entry), version=version))

    def on_seen(self, at: int, lane: str, numbers: list[int]) -> None:
        objects = self.core.objects
        objects.drop(lane, [write for write in objects.writes(lane) if write.number in numbers])

    # -- contexts: what was refused then is refused again -------------------------------------------------------------

    def on_begin(
        self,
        at: int,
        epoch: int | None,
        items: list[Any],
        version: int | None,
        parent: int | None,
        valid_until: float | None,
        requires: list[str],
    ) -> None:
        above = None if parent is None else self.contexts[parent]
        begun = None
        try:
            begun = self.core.begin(Nobody(), ref_of(items), version, above, valid_until, tuple(requires), at)
        except DispatchError:
            pass
        if (None if begun is None else begun.epoch) != epoch:
            raise self.diverged(f"the context is {begun}, recorded was epoch {epoch}")
        if begun is not None:
            self.contexts[begun.epoch] = begun

    def on_extend(self, at: int, epoch: int, valid_until: float) -> None:
        try:
            self.core.extend(self.contexts[epoch], valid_until, at)
        except DispatchError:
            pass

    def on_end(self, at: int, epoch: int) -> None:
        self.core.end(self.contexts[epoch], "ended", at)

    def on_require(self, at: int, epoch: int, name: str, confirmed: int) -> None:
        try:
            self.core.require(self.contexts[epoch], name, bool(confirmed) or RuntimeError("failed"), at)
        except DispatchError:
            pass


def replayed_calls(core: DispatchCore, handles: Mapping[int, Entry]) -> list[ReplayedCall]:
    """What is to be told of calls, by the tickets that they have in the trace."""
    names, calls = core.config.levels.names, []
    for ticket, handle in handles.items():
        call, accepted = handle.call, (handle.accepted >> PLACE_SHIFT) / SECOND
        level = names[core.level_of(call.priority)]
        calls.append(ReplayedCall(ticket, call.call_type, call.flow, level, accepted, handle.settled))
    return calls


def tell_reconciled(core: DispatchCore, entry: Entry, answer: list[Any], delay: int, at: int) -> None:
    """Tell the core what a reconcile has answered, as it is written in a line."""
    how, detail = answer
    found: Any
    refusal = Verdict(VerdictKind.PERMANENT)
    if how == "applied":
        found = Applied(answer_of(detail))
    elif how == "again":
        call = core.executable(entry)
        ref = call.target
        target = ref_of([ref.api_version, ref.kind, ref.namespace, ref.name, detail["uid"]])
        found = Again(changed(call, version=detail["version"], target=target, scope=detail["scope"]))
    elif how == "refused":
        refusal = Verdict(VerdictKind(detail))
        found = Refused(RuntimeError("refused"))
    elif how == "unknown":
        found = Unknown(bool(detail))
    else:
        raise ValueError(f"there is no answer {how!r}")
    core.reconciled(entry, found, refusal, delay, at)
