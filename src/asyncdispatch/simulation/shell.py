"""What a dispatcher does around its core, without an event loop: sends what may start, and reports how it ended.

It decides nothing. As `asyncdispatch.dispatcher` and its workers do, it tells the core the time, sends what the core
hands out, classifies errors by the library's own table, asks the library's own `Delays` how long to wait, and passes on
what the core has settled. Workers are not modelled: an attempt is a request and the time at which it is cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from asyncdispatch._core.invariants import check_invariants
from asyncdispatch._core.parking import Failure, Signal
from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import SECOND, SUCCEEDED, TERMINAL, Entry
from asyncdispatch._delays import Delays
from asyncdispatch._judging import failure_of, refusal_of
from asyncdispatch.calls import Again, APICall, Attempt, ObjectRef, Unknown
from asyncdispatch.errors import DispatchError
from asyncdispatch.outcomes import Overwritten, Skipped
from asyncdispatch.simulation.calls import Get, SimulatedCall
from asyncdispatch.simulation.history import NEVER, CallRecord, ContextRecord, History, RequestRecord, State
from asyncdispatch.simulation.scenario import Scenario
from asyncdispatch.simulation.server import TIMED_OUT, Clock, Problem, Server

__all__ = ["Shell"]

STOPS_WITHIN = SECOND // 1_000
_WORDS = {state: state.value for state in TERMINAL}
IGNORES_FOR = 4 * SECOND
"""A stubborn attempt goes on for so long after it was asked to stop."""


class Shell:
    """One dispatcher of one process. `alive` is False once its process has crashed."""

    def __init__(
        self,
        number: int,
        clock: Clock,
        server: Server,
        scenario: Scenario,
        history: History,
        random: Random,
        core: type[DispatchCore] = DispatchCore,
    ) -> None:
        config = scenario.config
        self.number = number
        self.clock = clock
        self.server = server
        self.scenario = scenario
        self.history = history
        self.random = random
        self.core = core(config)
        self._seats = self.core.seats
        self._calls = history.calls
        self._requests = history.requests
        self._take = server.take
        self._land = server.land
        self.alive = True
        self.paused_until = 0
        self.told: list[CallRecord] = []
        """Outcomes that its scheduler wants to hear of and has not looked at yet."""
        self.wanted: list[ObjectRef] = []
        """Objects of which the core wants to see a fresh read (law L18)."""
        self._attempt_timeout = round(config.attempt_timeout * SECOND)
        self._reconcile_timeout = round(config.retry.reconcile_timeout * SECOND)
        self._named: dict[str, ObjectRef] = {}
        """Objects that were looked at, by lane: whoever has the name."""
        self._armed = NEVER
        self._delays = Delays(replace(config.retry, wait=_jitter(random)), random)
        self._steps = 0
        self._check_at = scenario.check_every or NEVER

    @property
    def busy(self) -> bool:
        """Some call has no outcome yet, or is in flight."""
        core = self.core
        return bool(core.admission.depth or core.admission.joined or core.seats.taken)

    # -- submitting ---------------------------------------------------------------------------------------------------

    def submit(
        self, call: SimulatedCall, now: int, context: ContextRecord | None = None, *, heard: bool = False
    ) -> CallRecord | None:
        """None if it was refused. `heard`: its outcome is put among those `told`.

        `after` has to follow, once for all that is submitted and cancelled in one moment.
        """
        core = self.core
        try:
            entry = core.submit_common(call, now) if call._common else None
            if entry is None:
                entry = core.submit_any(call, now)
        except DispatchError as error:
            self.history.refused[type(error).__name__] += 1
            return None
        record = entry.waiter = CallRecord(self.number, entry.ticket, call, now, entry.deadline, entry)
        if context is not None:
            record.context = context
        if heard:
            record.heard = True
        more = entry.more
        if more is not None and more.lead is not None:
            record.lead = more.lead.waiter
        self._calls.append(record)
        return record

    def cancel(self, record: CallRecord, now: int) -> None:
        """Its caller takes it back, unless it has succeeded already."""
        if record.entry is not None:
            self.core.cancel(record.entry, "no longer wanted", now)

    def close(self, how: int, now: int) -> None:
        """The run comes to its end: wait for everything (0), drain (1), or cancel it all (2)."""
        if how == 1:
            self.core.drain(now + round(self.scenario.config.drain_timeout * SECOND), now)
        elif how == 2:
            self.core.close("the run is over", now)
        self.after(now)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, entry: Entry, now: int) -> None:
        more, record = entry.more, entry.waiter
        call: Any
        if more is None:
            call, limit = entry.call, entry.deadline
        elif more.reconciling:
            self._look(entry, now)
            return
        else:
            call, limit = self.core.executable(entry), self.core.limit(entry)
        cut_off = now + self._attempt_timeout
        request = RequestRecord(call, record, now, cut_off if cut_off < limit else limit)
        record.requests.append(request)
        self._requests.append(request)
        self._take(request, self, now)

    def _look(self, entry: Entry, now: int) -> None:
        """Ask by one fresh read what became of the last request; who can't tell by reading says so at once."""
        record, call = entry.waiter, self.core.executable(entry)
        if "reconcile" not in call._hooks:
            self._answer_look(entry, call, Unknown(), now)
            return
        ref = self._named.get(call.target.lane)
        if ref is None:
            ref = self._named[call.target.lane] = replace(call.target, uid=None)
        cut_off = min(now + self._reconcile_timeout, self.core.limit(entry))
        request = RequestRecord(Get(target=ref), record, now, cut_off)
        request.look = True
        record.requests.append(request)
        self._requests.append(request)
        self._take(request, self, now)

    # -- how requests end ---------------------------------------------------------------------------------------------

    def served(self, request: RequestRecord, now: int) -> None:
        """It is carried out, and answered in the same moment."""
        answer = self._land(request, now)
        if request.ended != NEVER or not self.alive or now < self.paused_until or answer.__class__ is Problem:
            self.answered((request, answer), now)
        else:
            self._succeeded(request, answer, now)

    def answered(self, what: tuple[RequestRecord, Any], now: int) -> None:
        """An answer comes in, maybe for nobody."""
        request, answer = what
        if request.ended != NEVER or not self.alive:
            return
        if now < self.paused_until:
            self.clock.at(self.paused_until, self.answered, what)
        elif request.look:
            self._found(request, answer, now)
        elif answer.__class__ is Problem:
            self._failed(request, answer, now)
        else:
            self._succeeded(request, answer, now)

    def _succeeded(self, request: RequestRecord, value: Any, now: int) -> None:
        request.ended = now
        core = self.core
        record: Any = request.record
        follower = core.turn(record.entry, value, now)
        if follower is None:
            core.succeed(record.entry, value, now)
            self.after(now)
            return
        record.told = now
        record.tellings += 1
        record.how = "succeeded"
        record.value = value
        record.entry = None
        self._send(follower, now)
        if self._seats.taken < self._seats.limit:  # else it was one for one, and nothing else can have changed
            self.after(now)

    def _failed(self, request: RequestRecord, problem: Problem, now: int) -> None:
        """The attempt has raised: classify, and report."""
        request.ended = now
        request.error = problem.name
        entry, core = _entry(request), self.core
        failure = self._failure(entry, request.call, problem, now)
        if problem is TIMED_OUT and now < request.sent + self._attempt_timeout:
            failure = replace(failure, signal=Signal.SILENT)
        if request.look:
            core.reconcile_failed(entry, failure, now)
        elif core.fail(entry, failure, now):
            self._look(entry, now)
        self.after(now)

    def _found(self, request: RequestRecord, answer: Any, now: int) -> None:
        """A look has its answer: what the object says."""
        if answer.__class__ is Problem and answer.name != "not found":
            self._failed(request, answer, now)
            return
        request.ended = now
        entry = _entry(request)
        call: Any = self.core.executable(entry)
        state: State | None = None
        if answer.__class__ is not Problem:
            meta = answer["metadata"]
            state = (meta["uid"], int(meta["resourceVersion"]), answer["content"])
        doubtful = entry.more is not None and entry.more.doubt
        self._answer_look(entry, call, call.settled_by(state, doubtful), now)
        self.after(now)

    def _answer_look(self, entry: Entry, call: APICall[Any], answer: Any, now: int) -> None:
        delay = 0
        if isinstance(answer, (Again, Unknown)):
            error = entry.more.error if entry.more is not None else None
            problem = Problem(type(error).__name__, error if isinstance(error, Exception) else RuntimeError("unknown"))
            delay = self._failure(entry, call, problem, now).delay
        self.core.reconciled(entry, answer, refusal_of(answer), delay, now)

    def _failure(self, entry: Entry, call: APICall[Any], problem: Problem, now: int) -> Failure:
        """A problem as the core is told of it: the verdict of the library's own table, the delay of its strategies."""
        attempt = Attempt(float, call, 0, 1, 0.0, None)
        attempt.sent = problem.sent
        return failure_of(entry, call, attempt, problem.error, self.scenario.config.retry, self._delays, now)

    # -- time-outs and stops ------------------------------------------------------------------------------------------

    def cut_off(self, request: RequestRecord, now: int) -> None:
        """The attempt's time is over, unless a later joiner has moved that (law L5)."""
        if request.ended != NEVER or request.stopping or not self.alive:
            return
        if now < self.paused_until:
            self.clock.at(self.paused_until, self.cut_off, request)
            return
        timeout = self._reconcile_timeout if request.look else self._attempt_timeout
        cut_off = min(request.sent + timeout, self.core.limit(_entry(request)))
        if cut_off > now:
            request.cut_off = cut_off
            self.clock.at(cut_off, self.cut_off, request)
            return
        self.server.abandon(request, now)
        self._failed(request, TIMED_OUT, now)

    def _stop(self, entry: Entry, now: int) -> None:
        """The core asks an attempt to end. Some do not listen."""
        requests = entry.waiter.requests
        if not requests or (request := requests[-1]).ended != NEVER or request.stopping:
            return
        request.stopping = True
        stubborn = self.random.random() < self.scenario.stubborn
        self.clock.at(now + (IGNORES_FOR if stubborn else STOPS_WITHIN), self._stopped, request)

    def _stopped(self, request: RequestRecord, now: int) -> None:
        if request.ended != NEVER or not self.alive:
            return
        if now < self.paused_until:
            self.clock.at(self.paused_until, self._stopped, request)
            return
        request.ended = now
        request.error = "stopped"
        self.server.abandon(request, now)
        if self.core.stopped(_entry(request), True, now):
            self._look(_entry(request), now)
        self.after(now)

    # -- after each step ----------------------------------------------------------------------------------------------

    def after(self, now: int) -> None:
        """Pass on what the core has settled, send what may start, and look again in time."""
        core, seats = self.core, self._seats
        ordering, timers, due = core.ordering, core.timers, None
        while due is None:
            if core.settled or core.stops:
                self._empty(now)
            if seats.taken >= seats.limit or (now >= timers.due and not ordering.startable):
                due = timers.due
            elif (entry := core.next(now)) is not None:
                self._send(entry, now)
            elif not core.settled and not core.stops:
                due = core.wake_at(now) if core.rate is not None and ordering.startable else timers.due
        if due < self._armed:
            self._armed = due = due if due > now else now
            self.clock.at(due, self._woken, due)
        self._steps += 1
        if self._steps >= self._check_at:
            self._check_at += self.scenario.check_every
            self.check(now)

    def check(self, now: int) -> None:
        """Look at all invariants of the core. Raises `InvariantError`."""
        self.core.tick(now)
        self._empty(now)
        check_invariants(self.core, now)

    def _woken(self, due: int, now: int) -> None:
        if due != self._armed or not self.alive:
            return
        if now < self.paused_until:
            self._armed = self.paused_until
            self.clock.at(self.paused_until, self._woken, self.paused_until)
            return
        self._armed = NEVER
        self.core.tick(now)
        self.after(now)

    def _empty(self, now: int) -> None:
        core = self.core
        if core.settled:
            for handle in core.settled:
                record: CallRecord = handle.waiter
                record.told = now
                record.tellings += 1
                if handle.phase is SUCCEEDED:
                    record.how = "succeeded"
                    record.value = handle.value
                    record.entry = None
                else:
                    self._tell(record, handle)
                if record.heard:
                    self.told.append(record)
            core.settled.clear()
        if core.stops:
            for entry in core.stops:
                self._stop(entry, now)
            core.stops.clear()
        if core.objects.wanted:
            self.wanted.extend(want.ref for want in core.objects.wanted)
            core.objects.wanted.clear()

    @staticmethod
    def _tell(record: CallRecord, handle: Entry) -> None:
        """Its caller gets another outcome than success."""
        outcome: Any = handle.settled
        record.how = _WORDS[handle.state]
        record.ambiguous = outcome.ambiguous
        record.late = outcome.late
        if isinstance(outcome, (Overwritten, Skipped)):
            record.by = outcome.by


def _jitter(random: Random) -> Callable[[Any], float]:
    """Full jitter, as the default strategy: that one draws from a generator that all share."""

    def wait(state: Any) -> float:
        most = min(30.0, 0.1 * 2.0 ** min(state.attempt_number - 1, 16))
        return max(0.05, random.random() * float(most))

    return wait


def _entry(request: RequestRecord) -> Entry:
    assert request.record is not None  # a dispatcher's own
    entry: Entry = request.record.entry
    return entry
