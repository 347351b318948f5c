"""What would another configuration have done with the recorded calls? A simulation on the real core.

The calls come when they came; each attempt takes the time and ends the way it did. What the trace can't know is taken
to be usual: an attempt that was not made, or was cut short, then takes its call type's median time and succeeds.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.parking import Failure, Signal
from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import NEVER, READ, Entry
from asyncdispatch.calls import Verdict, VerdictKind
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.errors import Backpressure, ConfigurationError, DispatchError
from asyncdispatch.traces.comparing import Comparison, compare
from asyncdispatch.traces.format import failure_of
from asyncdispatch.traces.reading import Step, Trace
from asyncdispatch.traces.replaying import Fate, Nobody, Player, ReplayedCall, replayed_calls, tell_reconciled
from asyncdispatch.traces.standins import Answers, StandIn, answer_of, ref_of, stand_in

__all__ = ["what_if"]

BURST = 200_000
"""Nanoseconds: what comes closer together than this came while the submitting code held the event loop."""


def what_if(trace: Trace, config: DispatcherConfig) -> Comparison:
    """Replay a trace under another configuration, and compare how long calls wait.

    Raises `TraceError` if the trace does not replay under its own, and `ConfigurationError` for a wrong argument.
    """
    if not isinstance(trace, Trace):
        raise ConfigurationError("trace", trace, "must be a Trace: see read_trace")
    if not isinstance(config, DispatcherConfig):
        raise ConfigurationError("config", config, "must be a DispatcherConfig, such as replace(trace.config, …)")
    player = Player(trace)
    for step in trace.steps:
        player.play(step)
    before = player.result()
    simulation = Simulation(trace, config, player)
    simulation.run()
    return compare(
        list(before.calls.values()),
        simulation.calls(),
        sum(before.refused.values()),
        simulation.refused,
        simulation.attempts,
        simulation.guessed,
    )


class Usual(Answers):
    """Of two calls that were not asked to merge in the trace: types that have merged do, others don't."""

    def __init__(self, merging: frozenset[str]) -> None:
        self.merging = merging

    def merge(self, call: StandIn) -> bool:
        return call.call_type in self.merging


@dataclass(slots=True)
class Flight:
    """An attempt under way, or a reconcile."""

    entry: Entry
    fate: Fate
    began: int
    ends: int
    cut: bool  # it does not get as far as its fate


WORLD = frozenset(
    {"submit", "refused", "cancel", "cancel_flow", "forget", "broken", "observe"}
    | {"begin", "extend", "end", "require", "drain", "close"}
)
"""Lines that tell what others did."""


class Simulation:
    """The calls of a trace through a core of another configuration."""

    def __init__(self, trace: Trace, config: DispatcherConfig, player: Player) -> None:
        """`player` has replayed the trace under its own configuration."""
        fates, startable = player.fates, player.startable
        self.trace = trace
        self.config = config
        self.core = DispatchCore(config)
        self.answers = Usual(_merging(trace))
        self.fates = {key: list(reversed(each)) for key, each in fates.items()}
        self.usual = _usual(trace, fates)
        self.handles: dict[int, Entry] = {}  # by the recorded ticket; of calls that were refused then, minus their line
        self.recorded: dict[int, int] = {}  # the recorded ticket, by the one here
        self.contexts: dict[int, SchedulingContext] = {}
        self.flights: dict[int, Flight] = {}
        self.refused = self.attempts = self.guessed = 0
        self._numbers = 0
        self._flying: list[tuple[int, int, int, Flight]] = []  # by its end; a line and a number break ties
        self._world: list[tuple[int, int, int, Step]] = []  # likewise, what others do
        self._bursts = _bursts(trace, startable)
        for step in _world(trace):
            since = step.more.get("since")
            heapq.heappush(
                self._world, (step.at if since is None else trace.began + since, *self._tie(step.line), step)
            )

    def _tie(self, line: int) -> tuple[int, int]:
        self._numbers += 1
        return line, self._numbers

    # -- time ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """What is next is the end of an attempt, something that others do, or a time that the core waits for."""
        core, now = self.core, self.trace.began
        while True:
            flying = self._flying[0][:3] if self._flying else (NEVER, 0, 0)
            world = self._world[0][:3] if self._world else (NEVER, 0, 0)
            at, due = min(flying, world)[0], core.wake_at(now)
            live = core.admission.depth + core.admission.joined
            if at >= NEVER and (not live or due >= NEVER):
                return  # own writes that nobody has seen would be asked for for ever
            if due < at:
                now = max(now, due)
                core.tick(now)
                self._settle(now)
            elif flying < world:
                now = max(now, at)
                self._land(heapq.heappop(self._flying)[3], now)
            else:
                now = self._burst(now)
            self._start(now)

    def _burst(self, now: int) -> int:
        """What comes next, and what came before the event loop turned."""
        while True:
            at, line, _, step = heapq.heappop(self._world)
            now = max(now, at)
            self._happen(step, now)
            if not self._world or self._bursts.get(line) != self._world[0][1]:
                return now

    def _start(self, now: int) -> None:
        while (entry := self.core.next(now)) is not None:
            self._fly(entry, now)
            self._settle(now)
        self._settle(now)

    def _settle(self, now: int) -> None:
        """Attempts that are asked to stop do so at once."""
        core = self.core
        core.settled.clear()
        core.objects.wanted.clear()
        while core.stops:
            stops, core.stops = core.stops, []
            for entry in stops:
                flight = self.flights.pop(entry.ticket, None)
                if flight is not None and core.stopped(entry, True, now):
                    self._fly(entry, now)
        core.settled.clear()

    # -- attempts -----------------------------------------------------------------------------------------------------

    def _fly(self, entry: Entry, now: int) -> None:
        reconciling = entry.more is not None and entry.more.reconciling
        fate = self._fate(entry, reconciling)
        flight = Flight(entry, fate, now, now + fate.took, False)
        self._limit(flight, reconciling)
        self.attempts += 1
        self.flights[entry.ticket] = flight
        heapq.heappush(self._flying, (flight.ends, *self._tie(fate.line), flight))

    def _limit(self, flight: Flight, reconciling: bool) -> None:
        """Cut it off where its time-out or its last handle's deadline says so (law L5)."""
        policy = flight.entry.call.retry or self.config.retry
        seconds = policy.reconcile_timeout if reconciling else self.config.attempt_timeout
        until = min(flight.began + nanoseconds(seconds), self.core.limit(flight.entry))
        flight.ends = min(flight.began + flight.fate.took, max(until, flight.began))
        flight.cut = flight.ends < flight.began + flight.fate.took

    def _fate(self, entry: Entry, reconciling: bool) -> Fate:
        known = self.fates.get((self.recorded[entry.ticket], reconciling))
        fate: Fate | None = known.pop() if known else None
        if fate is not None and not _cut_short(fate):
            return fate
        self.guessed += 1
        took = self.usual.get(entry.call.call_type, self.usual[""])
        name, items = ("reconciled", (0, ["applied", None], 0)) if reconciling else ("success", (0, None))
        return Fate(name, 0, max(took, 0 if fate is None else fate.took + 1), items)  # it takes longer than was seen

    def _land(self, flight: Flight, now: int) -> None:
        entry = flight.entry
        if self.flights.get(entry.ticket) is not flight:
            return  # it was stopped
        reconciling = entry.more is not None and entry.more.reconciling
        if flight.cut:
            self._limit(flight, reconciling)
            if flight.ends > now:  # a later caller has moved its limit
                heapq.heappush(self._flying, (flight.ends, *self._tie(flight.fate.line), flight))
                return
        del self.flights[entry.ticket]
        if self._tell(flight, reconciling, now):
            self._fly(entry, now)
        self._settle(now)

    def _tell(self, flight: Flight, reconciling: bool, now: int) -> bool:
        """Report it. True if the fate of its request is to be asked for now, in the same seat."""
        core, entry, fate = self.core, flight.entry, flight.fate
        if flight.cut:
            failure = self._timed_out(flight, now)
            if reconciling:
                core.reconcile_failed(entry, failure, now)
                return False
            return core.fail(entry, failure, now)
        if fate.name in ("success", "turn"):
            core.succeed(entry, answer_of(fate.items[1]), now)
        elif fate.name == "failure":
            return core.fail(entry, failure_of(fate.items[1]), now)
        elif fate.name == "reconciled":
            tell_reconciled(core, entry, fate.items[1], fate.items[2], now)
        else:
            core.reconcile_failed(entry, failure_of(fate.items[1]), now)
        return False

    def _timed_out(self, flight: Flight, now: int) -> Failure:
        entry = flight.entry
        failures = 0 if entry.more is None else entry.more.failures
        own = now < flight.began + nanoseconds(self.config.attempt_timeout)
        verdict = Verdict(VerdictKind.RETRY, entry.call.effect is not READ)
        delay = nanoseconds(min(30.0, 0.1 * 2.0 ** min(failures, 16)) / 2)  # the mean of the default strategy
        return Failure(TimeoutError("cut off"), verdict, delay, signal=Signal.SILENT if own else Signal.OVERLOAD)

    # -- what others did ----------------------------------------------------------------------------------------------

    def _happen(self, step: Step, now: int) -> None:
        if step.name in ("submit", "refused"):
            self._submit(step, now)
        else:
            try:
                getattr(self, f"_on_{step.name}")(now, *step.items)
            except DispatchError:
                pass  # it is not as it was: a context has ended, or has not begun
        self._settle(now)

    def _submit(self, step: Step, now: int) -> None:
        fields = step.items[1]
        since = step.more.get("since")
        ticket = step.items[0] if step.name == "submit" else -step.line
        self.answers.noop = bool(step.more.get("noop"))
        epoch = fields.get("context")
        context = None if epoch is None else self.contexts.get(epoch)
        if epoch is not None and context is None:
            self.refused += 1
            return
        call = stand_in(fields, context, self.answers)
        try:
            handle = self.core.submit(call, now, None if since is None else self.trace.began + since)
        except Backpressure as full:
            timeout = self.config.timeout if call.timeout is None else call.timeout
            if since is None or now >= self.trace.began + since + nanoseconds(timeout):
                self.refused += 1
            else:
                again = now + max(1, nanoseconds(full.retry_after))  # as `run` does
                heapq.heappush(self._world, (again, *self._tie(step.line), step))
            return
        except DispatchError:
            self.refused += 1
            return
        self.handles[ticket] = handle
        self.recorded[handle.ticket] = ticket

    def _on_cancel(self, now: int, ticket: int) -> None:
        if (handle := self.handles.get(ticket)) is not None:
            self.core.cancel(handle, "cancelled", now)

    def _on_cancel_flow(self, now: int, flow: str) -> None:
        self.core.cancel_flow(flow, "flow cancelled", now)

    def _on_broken(self, now: int, ticket: int) -> None:
        if (handle := self.handles.get(ticket)) is not None:
            self.core.fail_call(handle, RuntimeError("user code raised"), now)

    def _on_forget(self, now: int, items: list[Any]) -> None:
        self.core.forget(ref_of(items), "forgotten", now)

    def _on_observe(self, now: int, items: list[Any], version: int | None, deleting: int, fresh: int) -> None:
        self.core.observe(ref_of(items), version, bool(deleting), bool(fresh), now)

    def _on_begin(
        self,
        now: int,
        epoch: int | None,
        items: list[Any],
        version: int | None,
        parent: int | None,
        valid_until: float | None,
        requires: list[str],
    ) -> None:
        above = None if parent is None else self.contexts.get(parent)
        if epoch is not None and (parent is None or above is not None):
            ref, names = ref_of(items), tuple(requires)
            self.contexts[epoch] = self.core.begin(Nobody(), ref, version, above, valid_until, names, now)

    def _on_extend(self, now: int, epoch: int, valid_until: float) -> None:
        if (context := self.contexts.get(epoch)) is not None:
            self.core.extend(context, valid_until, now)

    def _on_end(self, now: int, epoch: int) -> None:
        if (context := self.contexts.get(epoch)) is not None:
            self.core.end(context, "ended", now)

    def _on_require(self, now: int, epoch: int, name: str, confirmed: int) -> None:
        if (context := self.contexts.get(epoch)) is not None:
            self.core.require(context, name, bool(confirmed) or RuntimeError("failed"), now)

    def _on_drain(self, now: int, until: int) -> None:
        self.core.drain(self.trace.began + until, now)

    def _on_close(self, now: int) -> None:
        self.core.close("closed", now)

    def calls(self) -> list[ReplayedCall]:
        return replayed_calls(self.core, self.handles)


def _cut_short(fate: Fate) -> bool:
    """What it would have come to is not known: it was asked to stop, or its callers' time was over."""
    if fate.name in ("failure", "reconcile_failed"):
        return bool(fate.items[1].get("signal") == Signal.SILENT.value)
    return fate.name == "stopped"


def _world(trace: Trace) -> Iterator[Step]:
    """What others did, whatever the dispatcher did."""
    drained = False
    for step in trace.steps:
        if step.name == "close" and drained:
            continue  # what was left at the end of draining has expired
        if step.name == "refused" and "since" in step.more:
            continue  # `run` has tried again; what became of that is in another line
        drained = drained or step.name == "drain"
        if step.name in WORLD:
            yield step


def _bursts(trace: Trace, startable: set[int]) -> dict[int, int]:
    """Lines that came before the event loop could turn, by the line before each: nothing starts between them.

    It had not turned if a call that could have started had not, or if there was no time to.
    """
    found: dict[int, int] = {}
    before: Step | None = None
    for step in trace.steps:
        if step.name in WORLD:
            if before is not None and (before.line in startable or step.at - before.at <= BURST):
                found[before.line] = step.line
            before = step
        elif step.name not in ("seen", "rebase"):
            before = None
    return found


def _merging(trace: Trace) -> frozenset[str]:
    return frozenset(step.items[1]["type"] for step in trace.steps if step.name == "submit" and step.more.get("merged"))


def _usual(trace: Trace, fates: Mapping[tuple[int, bool], list[Fate]]) -> dict[str, int]:
    """The median time of a success, by call type; under "" that of all. Attempts that ended otherwise if none did."""
    types = {step.items[0]: step.items[1]["type"] for step in trace.steps if step.name == "submit"}
    times: dict[str, list[int]] = {"": []}
    for (ticket, _), each in fates.items():
        for fate in each:
            if fate.name in ("success", "turn"):
                times.setdefault(types[ticket], []).append(fate.took)
                times[""].append(fate.took)
    return {name: round(statistics.median(found)) if found else 0 for name, found in times.items()}
