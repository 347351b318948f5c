"""Random programs of calls through the real dispatcher in virtual time; the laws by a bookkeeping of its own.

What is checked is what a user can see: when `execute` is entered and left, what handles are told and when. Nothing is
asked of the core but, at the very end, whether its tables are empty.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import looptime
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch import (
    Attempt,
    Cancelled,
    Dispatcher,
    DispatcherConfig,
    Effect,
    Expired,
    Failed,
    FlowQuota,
    FunctionCall,
    Mode,
    Overwritten,
    RefusedError,
    RetryPolicy,
    SchedulingContext,
    Shed,
    Skipped,
    Succeeded,
)
from asyncdispatch._core.invariants import check_invariants
from asyncdispatch.rollout import Rollout, Rule
from tests.shell import START, StatusError, pod, turns

GIVE_UP = 5.0
SLACK = 0.11
"""Waiting calls whose deadline is over settle within a tenth of a second (law L5)."""


@dataclass(frozen=True, kw_only=True)
class Merging(FunctionCall[Any]):
    """A call that takes over what the waiting one would have done."""

    parts: tuple[int, ...] = ()

    def merge(self, pending: Merging) -> Merging:
        return replace(self, parts=pending.parts + self.parts)


@dataclass
class Plan:
    """What one call does: its attempts in turn, and how it takes to being stopped."""

    number: int
    seconds: float
    results: list[str]
    deaf: float
    """For so long it swallows a cancellation."""


@dataclass
class Visit:
    """One entry into `execute`."""

    plan: Plan
    ticket: int
    number: int
    began: float
    deadline: float
    ended: float | None = None
    value: Any = None


@dataclass
class Known:
    """What we know of an accepted handle."""

    handle: Any
    call: FunctionCall[Any]
    accepted: float
    plan: Plan
    told: list[tuple[float, Any]] = field(default_factory=list)
    cancelled: float | None = None
    context_ended: float | None = None

    @property
    def deadline(self) -> float:
        return self.accepted + (self.call.timeout or 300.0)


class Program:
    """Plays random steps, and writes down what happens.

    `watched`: by an observer, call by call; else only what handles tell, so that the shell may take its shortest ways.
    `switching`: between modes, and with a rollout, also by `dispatch`.
    """

    def __init__(self, random: Random, *, watched: bool = True, switching: bool = False) -> None:
        self.random = random
        self.watched = watched
        self.switching = switching
        self.gentle = not watched and random.random() < 0.7  # no faults: nothing holds calls back
        self.visits: list[Visit] = []
        self.flying: Counter[str] = Counter()
        self.keys: Counter[Any] = Counter()
        self.known: dict[int, Known] = {}
        self.contexts: list[tuple[SchedulingContext, list[float]]] = []
        self.plans = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.switches: list[asyncio.Task[None]] = []
        self.modes: dict[int, Mode] = {}
        """By ticket: the mode in which it was accepted."""
        self.settled: dict[int, list[tuple[float, Any]]] = {}
        self.closed: float | None = None

    # -- what the calls do ------------------------------------------------------------------------------------------

    def execute(self, plan: Plan, effect: Effect, key: Any) -> Any:
        async def run(attempt: Attempt) -> Any:
            now = asyncio.get_running_loop().time()
            visit = Visit(plan, attempt.ticket, attempt.number, now, attempt.deadline)
            self.visits.append(visit)
            lane = attempt.call.target.lane
            if effect is not Effect.READ:
                self.flying[lane] += 1
                assert self.flying[lane] == 1, f"L2: two writes of {lane} are in flight"
            if key is not None:
                self.keys[lane, key] += 1
                assert self.keys[lane, key] == 1, f"L8: two executions of key {key} on {lane}"
            self._check_start(visit, attempt, now)
            try:
                visit.value = await self._work(plan, visit)
                return visit.value
            finally:
                visit.ended = asyncio.get_running_loop().time()
                if effect is not Effect.READ:
                    self.flying[lane] -= 1
                if key is not None:
                    self.keys[lane, key] -= 1

        return run

    async def _work(self, plan: Plan, visit: Visit) -> Any:
        loop = asyncio.get_running_loop()
        until = loop.time() + plan.seconds
        patience: float | None = None
        while (left := until - loop.time()) > 1e-5:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                patience = patience if patience is not None else loop.time() + plan.deaf
                if loop.time() >= patience:
                    raise
                until = patience
        result = plan.results.pop(0) if plan.results else "ok"
        if result == "ok":
            return (plan.number, visit.number)
        raise {
            "fault": OSError("reset"),
            "busy": StatusError(429, Retry_After="1"),
            "down": StatusError(503),
            "wrong": ValueError("wrong"),
        }[result]

    def _check_start(self, visit: Visit, attempt: Attempt, now: float) -> None:
        """L5: there is a living handle that may have it."""
        assert self.closed is None or now <= self.closed, "L15: an attempt starts after the close"
        assert now < visit.deadline + 1e-6, "L5: it starts after its deadline"
        known = self.known.get(visit.ticket)
        if known is None or attempt.call.idempotency_key is not None or attempt.call.effect is Effect.READ:
            return  # it may have been joined
        assert known.cancelled is None, "L5: it starts after its cancellation"
        assert known.context_ended is None, "L5: it starts after the end of its context"
        assert not known.told, "L5: it starts after its outcome"
        assert now < known.deadline + 1e-6, "L5: it starts after its time-out"
        if known.call.not_before:
            assert now >= known.accepted + known.call.not_before - 1e-6, "L5: it starts before its time"

    # -- the observer -----------------------------------------------------------------------------------------------

    def settled_(self, handle: Any, outcome: Any) -> None:
        self.settled.setdefault(handle.ticket, []).append((asyncio.get_running_loop().time(), outcome))

    def accepted_(self, handle: Any) -> None:
        """Known before anything can be told of it."""
        now = asyncio.get_running_loop().time()
        self.modes[handle.ticket] = handle.owner.mode
        self.known[handle.ticket] = Known(handle, handle.call, now, self._plan_of(handle.call))

    @staticmethod
    def _plan_of(call: Any) -> Plan:
        plan: Plan = call.fn.plan
        return plan

    # -- steps ------------------------------------------------------------------------------------------------------

    def make(self) -> FunctionCall[Any]:
        random = self.random
        self.plans += 1
        effect = random.choices([Effect.IDEMPOTENT_WRITE, Effect.READ, Effect.CREATE], [6, 2, 1])[0]
        merging = effect is Effect.IDEMPOTENT_WRITE and random.random() < 0.4
        key = random.choice(["a", "b"]) if not merging and random.random() < 0.3 else None
        plan = Plan(
            self.plans,
            random.choice([0.0, 0.0, 0.1, 1.0, 3.0]),
            []
            if self.gentle
            else random.choices(["ok", "fault", "busy", "down", "wrong"], [6, 2, 1, 1, 1], k=random.randrange(3)),
            random.choice([0.0, 0.0, 0.0, 0.5, 8.0]),
        )
        run = self.execute(plan, effect, key)
        run.plan = plan
        fields: dict[str, Any] = {
            "call_type": random.choice(["pod_binding", "pod_status_patch", "other"]) if not merging else "merging",
            "target": pod(random.choice(["p", "q", "r"])),
            "effect": effect,
            "idempotency_key": key,
            "timeout": random.choice([0.5, 2.0, 10.0, None]),
            "not_before": random.choice([None, None, None, 0.3, 1.0]),
            "priority": random.choice([-5_000, 0, 0, 2_000_000]),
            "flow": random.choice(["default", "small"]),
            "sheddable": random.random() < 0.2,
        }
        if self.contexts and random.random() < 0.4:
            fields["context"] = random.choice(self.contexts)[0]
        if merging:
            return Merging(run, parts=(self.plans,), **fields)
        if not self.watched and random.random() < 0.8:  # a common call, most often of a free object
            fields = {"call_type": "other", "target": pod(f"{random.choice('pqr')}{random.randrange(5)}")}
        return FunctionCall(run, **fields)

    async def step(self, dispatcher: Dispatcher) -> None:
        random = self.random
        now = asyncio.get_running_loop().time()
        steps = {"submit": 8, "run": 2, "sleep": 4, "cancel": 2, "begin": 1, "end": 1, "stop task": 1}
        if not self.watched:
            steps |= {"submit": 20, "run": 0}
        if self.switching:
            steps |= {"dispatch": 8, "switch": 2}
        kind = random.choices(list(steps), list(steps.values()))[0]
        if kind == "submit":
            before = dispatcher.statistics()
            try:
                handle = dispatcher.submit(self.make())
                if not self.watched:
                    self.accepted_(handle)
                    handle.add_done_callback(lambda handle: self.settled_(handle, handle.settled))
            except RefusedError:
                after = dispatcher.statistics()
                assert (after.depth, after.joined) == (before.depth, before.joined), "L1: a refused call left a trace"
        elif kind == "run":
            self.tasks.append(asyncio.create_task(dispatcher.run(self.make())))
        elif kind == "dispatch":
            self.tasks.append(asyncio.create_task(self._dispatch(dispatcher, self.make())))
        elif kind == "switch":
            mode = random.choice([Mode.ASYNC, Mode.SYNC, Mode.DRAINING])
            self.switches.append(asyncio.create_task(dispatcher.switch(mode, "by the program")))
        elif kind == "sleep":
            await asyncio.sleep(random.choice([0.0, 0.05, 0.5, 2.0]))
        elif kind == "cancel" and self.known:
            known = random.choice(list(self.known.values()))
            if known.handle.cancel("by the program"):
                known.cancelled = now
        elif kind == "begin":
            self.contexts.append((dispatcher.contexts.begin(pod(random.choice(["p", "q", "r"]))), []))
        elif kind == "end" and self.contexts:
            random.choice(self.contexts)[0].end("by the program")
        elif kind == "stop task" and self.tasks:
            random.choice(self.tasks).cancel()
        self._note_contexts(now)

    async def _dispatch(self, dispatcher: Dispatcher, call: FunctionCall[Any]) -> None:
        handle = await dispatcher.dispatch(call)
        if not handle.done():
            assert self.modes[handle.ticket] is Mode.ASYNC, "promise 5: in SYNC it returns once the outcome is there"
            assert call.flow != "small", "promise 5: outside of the rollout it is as in SYNC"

    def _note_contexts(self, now: float) -> None:
        for context, ended in self.contexts:
            if context.ended is not None and not ended:
                ended.append(now)
                for known in self.known.values():
                    if known.call.context is context and not known.told and not known.handle.done():
                        known.context_ended = now

    # -- the whole --------------------------------------------------------------------------------------------------

    async def play(self, steps: int) -> None:
        config = DispatcherConfig(
            capacity=12,
            max_joined=6,
            lane_capacity=5,
            max_in_flight=3,
            flows={"small": FlowQuota(max_in_flight=1, max_queued=4)},
            retry=RetryPolicy(wait=lambda state: 0.3, stop=lambda state: state.attempt_number >= 4),
            attempt_timeout=2.5,
            drain_timeout=6.0,
            give_up=GIVE_UP,
            breaker=None,
        )
        observers = (Watching(self),) if self.watched else ()
        outside = Rule(name="outside", flows=("small",), percentage=0)
        rollout = Rollout([outside, Rule(name="the rest")]) if self.switching else None
        tasks = asyncio.all_tasks()
        async with Dispatcher(config, rollout=rollout, observers=observers) as dispatcher:
            for _ in range(steps):
                await self.step(dispatcher)
            ending = self.random.choice(["leave", "drain", "close"])
            if ending == "drain":
                await dispatcher.drain(2.0)
            elif ending == "close":
                self.closed = asyncio.get_running_loop().time()
                await dispatcher.aclose("by the program")
        assert all(known.handle.done() for known in self.known.values()), "L15: a handle without an outcome"
        for ended in await asyncio.gather(*self.tasks, *self.switches, return_exceptions=True):
            if isinstance(ended, AssertionError):
                raise ended
        await asyncio.sleep(10.0)  # the deaf ones
        await turns()
        assert asyncio.all_tasks() == tasks, "L15: a task is left"
        check_invariants(dispatcher._core, dispatcher._now())
        self.check(dispatcher)

    def check(self, dispatcher: Dispatcher) -> None:
        statistics = dispatcher.statistics()
        assert (statistics.depth, statistics.joined, statistics.in_flight) == (0, 0, 0), "L19: something is left"
        assert set(self.settled) == set(self.known), "L1: told are exactly the accepted ones"
        assert sum(statistics.outcomes.values()) == statistics.accepted == len(self.known)
        visits: dict[int, list[Visit]] = {}
        for visit in self.visits:
            visits.setdefault(visit.ticket, []).append(visit)
        for ticket, known in self.known.items():
            assert len(self.settled[ticket]) == 1, "L1: told once"
            self._check_outcome(known, *self.settled[ticket][0], visits)

    def _check_outcome(self, known: Known, at: float, outcome: Any, visits: dict[int, list[Visit]]) -> None:
        handle = known.handle
        assert handle.settled == outcome or isinstance(outcome, Succeeded), "L1: and it stays so"
        bound = known.deadline + SLACK + GIVE_UP
        assert at <= bound, f"L1: call {handle.ticket} was told {at - known.deadline:.2f} s after its time-out"
        if known.cancelled is not None:
            assert at <= known.cancelled + GIVE_UP + 1e-3, "L11: told when the attempt has ended, or was given up"
            assert not isinstance(outcome, Succeeded), "L11: cancelled, but told a success"
        if known.context_ended is not None:
            assert not isinstance(outcome, Succeeded), "L11: a success in a context that had ended"
            assert isinstance(outcome, (Cancelled, Expired)), "L11"
        own = visits.get(handle.lead.ticket, [])
        if isinstance(outcome, Succeeded):
            values = [visit.value for visit in own if visit.value is not None]
            assert [outcome.value] == values, "L8: the one success of the execution is every handle's"
        if isinstance(outcome, (Overwritten, Skipped)):
            other = self.known[outcome.by]
            assert outcome.by != handle.ticket
            assert other.call.target.lane == known.call.target.lane
            flying = [v for v in own if v.began <= at and (v.ended is None or v.ended > at)]
            assert not flying, "L13: overwritten while its request is on the wire"
            if isinstance(known.call, Merging):
                assert set(known.call.parts) <= set(other.handle.call.parts), "L13: what was merged is not done"
        if isinstance(outcome, Shed):
            assert known.call.sheddable
            assert not [visit for visit in own if visit.ended is None or visit.ended > at]
        if isinstance(outcome, Failed) and not outcome.ambiguous:
            assert outcome.cause is outcome.error
        before, until = (len([v for v in own if test(v.began)]) for test in (at.__gt__, at.__ge__))
        assert before <= outcome.attempts <= until, f"every entry of call {handle.ticket} is counted"


class Watching:
    """Two methods are enough."""

    def __init__(self, program: Program) -> None:
        self.accepted = program.accepted_
        self.settled = program.settled_


def play(program: Program, steps: int) -> None:
    with asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(start=START, noop_cycles=1)) as runner:
        runner.run(program.play(steps))


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(5, 80))
def test_random_programs_keep_the_laws(seed: int, steps: int):
    """L1, L2, L5, L8, L11, L13, L15 (and L19 at the end), whatever calls, cancellations and contexts there are."""
    play(Program(Random(seed)), steps)


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(5, 80))
def test_random_programs_that_nobody_watches(seed: int, steps: int):
    """The same, where workers pass on their seats without a look at what nobody waits for."""
    play(Program(Random(seed), watched=False), steps)


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(5, 80))
def test_random_programs_that_switch_keep_the_laws(seed: int, steps: int):
    """Promise 5: switches in either direction, with calls queued and in flight, lose and double nothing; and calls
    outside of the rollout are treated as in SYNC."""
    play(Program(Random(seed), switching=True), steps)
