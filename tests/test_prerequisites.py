"""BindGate: no bind before what it depends on is confirmed, whatever the order of events (law L21, case I5)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import looptime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch import (
    Attempt,
    CallState,
    ConfigurationError,
    DeadlineExpired,
    Dispatcher,
    Expired,
    Failed,
    PrerequisiteFailed,
    RefusedError,
    RetryPolicy,
    SchedulingContext,
    Shed,
    StaleContext,
    Verdict,
    VerdictKind,
)
from asyncdispatch.errors import CallCancelled, CallFailed, CallShed
from asyncdispatch.outcomes import Cancelled
from asyncdispatch.prerequisites import TRANSITIONS, BindGate, Requirement, RequirementState, Retry, what_to_retry
from tests.shell import START, StatusError, after, call, now, pod, raising, running, turns

DECLARED, PENDING = RequirementState.DECLARED, RequirementState.PENDING
CONFIRMED, FAILED = RequirementState.CONFIRMED, RequirementState.FAILED
PAGE = Path(__file__).parent.parent / "docs" / "prerequisites.md"


# -- looking ----------------------------------------------------------------------------------------------------------


async def test_what_is_missing_and_since_when():
    async with running() as dispatcher:
        gate = BindGate(dispatcher)
        context = dispatcher.contexts.begin(pod(), requires=("volume", "claim", "quota"))
        await asyncio.sleep(2.0)
        handle = dispatcher.submit(call(after(9.0), "pv", context=context, prerequisite="volume"))
        context.confirm("claim")
        await asyncio.sleep(3.0)
        assert gate.look(context) == (
            Requirement("volume", PENDING, 3.0, handle.ticket, CallState.IN_FLIGHT),
            Requirement("claim", CONFIRMED, 5.0),
            Requirement("quota", DECLARED, 5.0),
        )
        assert [str(each) for each in gate.missing(context)] == [
            f"volume pending for 3 s (call {handle.ticket} is in_flight)",
            "quota declared for 5 s",
        ]


async def test_a_failure_says_what_to_repeat():
    """The API call, if the server was at fault; the scheduling attempt, if the answer was about the object."""
    async with running(retry=RetryPolicy(stop=lambda _: True)) as dispatcher:
        gate = BindGate(dispatcher)
        context = dispatcher.contexts.begin(pod(), requires=("volume", "claim"))
        for name, status in (("volume", 503), ("claim", 422)):
            failing = call(raising(StatusError(status)), name, context=context, prerequisite=name)
            await dispatcher.submit(failing).outcome()
        volume, claim = gate.missing(context)
        assert (volume.state, volume.retry) == (FAILED, Retry.CALL)
        assert (claim.state, claim.retry) == (FAILED, Retry.SCHEDULING)
        assert str(volume) == "volume failed for 0 s: StatusError('status 503')"


PERMANENT, LATER = Verdict(VerdictKind.PERMANENT), Verdict(VerdictKind.LATER)


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (StatusError(429), Retry.CALL),
        (StatusError(500), Retry.CALL),
        (StatusError(409), Retry.SCHEDULING),
        (StatusError(404), Retry.SCHEDULING),
        (ConnectionResetError(), Retry.CALL),
        (TimeoutError(), Retry.CALL),
        (ValueError("no room on n1"), Retry.SCHEDULING),
        (DeadlineExpired("late", Expired("queued")), Retry.CALL),
        (CallShed("shed", Shed("for call 3")), Retry.CALL),
        (CallCancelled("gone", Cancelled("deleted")), Retry.SCHEDULING),
        (CallFailed("quota", Failed(StatusError(403), LATER)), Retry.CALL),
        (CallFailed("denied", Failed(StatusError(403), PERMANENT)), Retry.SCHEDULING),
        (CallFailed("used up", Failed(StatusError(503), PERMANENT)), Retry.CALL),
        (PrerequisiteFailed("by nobody", "volume"), Retry.SCHEDULING),
    ],
    ids=lambda value: type(value).__name__ + str(getattr(value, "status", "")),
)
def test_what_to_retry(error: BaseException, retry: Retry):
    assert what_to_retry(error) is retry


# -- waiting ----------------------------------------------------------------------------------------------------------


async def test_ready_when_all_are_confirmed():
    async with running() as dispatcher:
        gate = BindGate(dispatcher)
        context = dispatcher.contexts.begin(pod(), requires=("volume", "claim"))
        waiting = asyncio.create_task(gate.ready(context))
        dispatcher.submit(call(after(2.0), "pv", context=context, prerequisite="volume"))
        await asyncio.sleep(3.0)
        assert not waiting.done()
        context.confirm("claim")
        await waiting
        assert now() == 3.0
        assert gate.missing(context) == ()


async def test_what_happened_before_the_question_counts():
    """Case I5: the success, and the failure, came before anybody asked."""
    async with running() as dispatcher:
        gate = BindGate(dispatcher)
        context = dispatcher.contexts.begin(pod(), requires=("volume", "claim"))
        await dispatcher.run(call(name="pv", context=context, prerequisite="volume"))
        context.confirm("claim")
        await gate.ready(context)
        context.fail("claim", LookupError("gone after all"))
        with pytest.raises(PrerequisiteFailed, match="'claim' failed") as caught:
            await gate.ready(context)
        assert caught.value.name == "claim"
        assert what_to_retry(caught.value) is Retry.SCHEDULING
        assert isinstance(caught.value.outcome, Failed)
        await gate.ready(dispatcher.contexts.begin(pod("q")))
        assert now() == 0.0


async def test_a_failure_ends_the_waiting_at_once():
    """Also while another requirement is still pending; the object of the second was gone (case I5)."""
    async with running(retry=RetryPolicy(stop=lambda _: True)) as dispatcher:
        gate = BindGate(dispatcher)
        context = dispatcher.contexts.begin(pod(), requires=("volume", "claim"))
        waiting = asyncio.create_task(gate.ready(context))
        pending = dispatcher.submit(call(after(9.0), "pv", context=context, prerequisite="volume"))
        await asyncio.sleep(1.0)
        dispatcher.submit(call(raising(StatusError(404)), "pvc", context=context, prerequisite="claim"))
        with pytest.raises(PrerequisiteFailed) as caught:
            await waiting
        assert (caught.value.name, now()) == ("claim", 1.0)
        assert not pending.done()


async def test_a_call_made_again_can_still_confirm():
    """Failed is not the end of a requirement: its API call may be repeated in the same context, which is waited for."""
    async with running(retry=RetryPolicy(stop=lambda _: True)) as dispatcher:
        gate = BindGate(dispatcher)
        context = dispatcher.contexts.begin(pod(), requires=("volume",))
        await dispatcher.submit(call(raising(OSError()), "pv", context=context, prerequisite="volume")).outcome()
        (failed,) = gate.missing(context)
        assert failed.retry is Retry.CALL
        dispatcher.submit(call(after(2.0), "pv", context=context, prerequisite="volume"))
        (pending,) = gate.missing(context)
        assert (pending.state, pending.error) == (PENDING, None)
        await gate.ready(context)
        assert now() == 2.0
        assert await dispatcher.run(call(context=context, awaits_prerequisites=True)) == "done"


@pytest.mark.parametrize("way", ["ended", "newer", "parent", "forgotten", "closed"])
async def test_the_end_of_the_context_ends_the_waiting_at_once(way: str):
    async with running() as dispatcher:
        gate = BindGate(dispatcher)
        lease = dispatcher.contexts.begin(pod("lease"))
        context = dispatcher.contexts.begin(pod(), parent=lease, requires=("volume",))
        waiting = asyncio.create_task(gate.ready(context))
        await asyncio.sleep(1.0)
        match way:
            case "ended":
                context.end("preempted")
            case "newer":
                dispatcher.contexts.begin(pod())
            case "parent":
                lease.end("lost")
            case "forgotten":
                dispatcher.forget(pod(), "deleted")
            case _:
                await dispatcher.aclose("shutdown")
        with pytest.raises(StaleContext, match=f"has ended .{context.ended}"):
            await waiting
        assert now() == 1.0
        assert context.watchers == []


@pytest.mark.parametrize("above", [False, True])
async def test_the_end_of_its_validity_ends_the_waiting(above: bool):
    """Its own, or its parent's: leadership is a time (rule R7). An extension is heeded."""
    async with running() as dispatcher:
        gate = BindGate(dispatcher)
        until = START + 3.0
        lease = dispatcher.contexts.begin(pod("lease"), valid_until=until if above else None)
        context = dispatcher.contexts.begin(
            pod(), parent=lease, valid_until=None if above else until, requires=("volume",)
        )
        waiting = asyncio.create_task(gate.ready(context))
        await asyncio.sleep(2.0)
        (lease if above else context).extend(START + 5.0)
        with pytest.raises(StaleContext, match="validity is over"):
            await waiting
        assert now() == 5.0


async def test_a_confirmation_after_the_end_of_validity_is_too_late():
    """After a stall the clock is compared first, even if the timer has not rung yet (rule R7)."""
    async with running() as dispatcher:
        gate = BindGate(dispatcher)
        context = dispatcher.contexts.begin(pod(), valid_until=START + 3.0, requires=("volume",))
        context.confirm("volume")
        context.valid_until = START  # as it is in a loop that was held up for longer than that
        with pytest.raises(StaleContext, match="validity is over"):
            await gate.ready(context)


async def test_a_time_out_says_what_was_missing():
    async with running() as dispatcher:
        gate = BindGate(dispatcher)
        context = dispatcher.contexts.begin(pod(), requires=("volume", "claim"))
        context.confirm("claim")
        with pytest.raises(TimeoutError, match=r"not ready after 2 s: volume declared for 2 s$"):
            await gate.ready(context, timeout=2.0)
        assert now() == 2.0
        with pytest.raises(TimeoutError):
            await gate.ready(context, timeout=0)
        context.confirm("volume")
        await gate.ready(context, timeout=0)


async def test_cancelling_it_changes_nothing():
    async with running() as dispatcher:
        gate = BindGate(dispatcher)
        context = dispatcher.contexts.begin(pod(), requires=("volume",))
        tasks = [asyncio.create_task(gate.ready(context)) for _ in range(3)]
        await turns()
        assert len(context.watchers) == 3
        tasks[1].cancel()
        await turns()
        assert tasks[1].cancelled()
        assert len(context.watchers) == 2
        context.confirm("volume")
        await asyncio.gather(tasks[0], tasks[2])
        assert context.watchers == []


async def test_bad_input_is_named():
    async with running() as dispatcher:
        gate = BindGate(dispatcher)
        context = dispatcher.contexts.begin(pod(), requires=("volume",))
        for wrong in (None, pod(), "p"):
            with pytest.raises(ConfigurationError, match="must be a SchedulingContext"):
                await gate.ready(wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="must be a SchedulingContext"):
                gate.look(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="timeout=-1"):
            await gate.ready(context, timeout=-1)


# -- whatever the order -----------------------------------------------------------------------------------------------


class Program:
    """Random events on one Pod's contexts; its own book of what was confirmed, in which context, and when."""

    NAMES = ("volume", "claim", "quota")

    def __init__(self, random: Random, dispatcher: Dispatcher) -> None:
        self.random = random
        self.dispatcher = dispatcher
        self.gate = BindGate(dispatcher)
        self.confirmed: dict[int, set[str]] = {}
        self.context = self.begin()
        self.seen: dict[tuple[int, str], RequirementState] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.bound = 0

    def begin(self) -> SchedulingContext:
        names = tuple(name for name in self.NAMES if self.random.random() < 0.7)
        until = START + now() + 5.0 if self.random.random() < 0.2 else None
        self.context = self.dispatcher.contexts.begin(pod(), requires=names, valid_until=until)
        self.confirmed[self.context.epoch] = set()
        return self.context

    def step(self) -> None:
        context = self.context
        names = list(context.requirements) or ["none"]
        name = self.random.choice(names)
        match self.random.choice(("call", "call", "confirm", "fail", "bind", "bind", "ready", "begin", "end")):
            case "call":
                self.dispatcher.submit(call(self.work(context, name), name, context=context, prerequisite=name))
                self.confirmed[context.epoch].discard(name)
            case "confirm":
                context.confirm(name)
                self.confirmed[context.epoch].add(name)
            case "fail":
                self.confirmed[context.epoch].discard(name)
                context.fail(name, ValueError(name))
            case "bind":
                self.dispatcher.submit(call(self.bind(context), context=context, awaits_prerequisites=True))
            case "ready":
                self.tasks.append(asyncio.create_task(self.ready(context)))
            case "begin":
                self.begin()
            case _:
                context.end("preempted")

    def work(self, context: SchedulingContext, name: str) -> Any:
        seconds, good = self.random.choice((0.0, 0.5, 2.0)), self.random.random() < 0.8

        async def execute(attempt: Attempt) -> None:
            await asyncio.sleep(seconds)
            if not good:
                self.confirmed[context.epoch].discard(name)
                raise StatusError(422)
            if context.ended is None:
                self.confirmed[context.epoch].add(name)

        return execute

    def bind(self, context: SchedulingContext) -> Any:
        async def execute(attempt: Attempt) -> None:
            self.may_go(context)
            self.bound += 1

        return execute

    async def ready(self, context: SchedulingContext) -> None:
        try:
            await self.gate.ready(context, self.random.choice((None, 1.0, 4.0)))
        except (PrerequisiteFailed, StaleContext, TimeoutError):
            return
        self.may_go(context)

    def may_go(self, context: SchedulingContext) -> None:
        assert context.ended is None
        assert set(context.requirements) <= self.confirmed[context.epoch]

    def look(self) -> None:
        """Every change of state that can be seen while the context lives is in the table."""
        if self.context.ended is not None:
            return
        for each in self.gate.look(self.context):
            key = (self.context.epoch, each.name)
            before = self.seen.setdefault(key, DECLARED)
            assert each.state is before or each.state in TRANSITIONS[before], (before, each)
            self.seen[key] = each.state


async def play(seed: int) -> int:
    random = Random(seed)
    async with running(retry=RetryPolicy(stop=lambda _: True)) as dispatcher:
        program = Program(random, dispatcher)
        for _ in range(40):
            try:
                program.step()
            except (RefusedError, ConfigurationError):
                pass
            program.look()
            await turns(random.choice((0, 1, 3)))
            program.look()
            await asyncio.sleep(random.choice((0.0, 0.0, 0.25, 1.0)))
            program.look()
        program.context.end("over")
        await asyncio.gather(*program.tasks)
        return program.bound


@given(seed=st.integers(0, 2**32))
def test_no_bind_before_its_requirements_are_confirmed(seed: int):
    """Neither a call that awaits its prerequisites nor a waiter at the gate goes, in any order of events."""
    with asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(start=START, noop_cycles=1)) as runner:
        runner.run(play(seed))


async def test_the_random_programs_do_bind():
    """Else the property above would say nothing."""
    assert sum([await play(seed) for seed in range(10)]) > 10


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_shows_the_table():
    """docs/prerequisites.md has a line for each transition, and no other."""
    lines = [
        f"| {before.value} | {following.value} | {why} |"
        for before, row in TRANSITIONS.items()
        for following, why in row.items()
    ]
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("| from | to | what leads there |\n|---|---|---|\n")[1].split("\n\n")[0]
    assert table.splitlines() == lines
