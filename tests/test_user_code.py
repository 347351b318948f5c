"""User code that misbehaves ends its own call; the dispatcher and every other call go on (law L14, rule R20)."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from asyncdispatch import (
    APICall,
    Applied,
    Attempt,
    CallFailed,
    Cancelled,
    Effect,
    Failed,
    Refused,
    RetryPolicy,
    Succeeded,
    Verdict,
    VerdictKind,
)
from tests.shell import Script, after, block, call, node, now, pod, pod_dict, running, stubborn


class Own(BaseException):
    """No Exception: as a framework's own signal may be."""


BASE: tuple[Callable[[], BaseException], ...] = (
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    Own,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
)


def _by_itself(error: Callable[[], BaseException]) -> Any:
    async def execute(attempt: Attempt) -> None:
        raise error()

    return execute


def _after_a_while(error: Callable[[], BaseException]) -> Any:
    async def execute(attempt: Attempt) -> None:
        await asyncio.sleep(1)
        raise error()

    return execute


def _before_it_awaits(error: Callable[[], BaseException]) -> Any:
    def execute(attempt: Attempt) -> Any:
        raise error()

    return execute


def _from_an_awaitable(error: Callable[[], BaseException]) -> Any:
    class Awaitable:
        def __await__(self) -> Any:
            yield from asyncio.sleep(1).__await__()
            raise error()

    return lambda attempt: Awaitable()


@pytest.mark.parametrize("error", BASE)
@pytest.mark.parametrize("where", [_by_itself, _after_a_while, _before_it_awaits, _from_an_awaitable])
async def test_whatever_execute_raises_ends_its_call_alone(where: Any, error: Any, caplog: pytest.LogCaptureFixture):
    """Its own BaseException, an exit, an interrupt, a cancellation of its own: that call ends, the others go on."""
    async with running(max_in_flight=2) as dispatcher:
        behind = dispatcher.submit(call(after(3.0), "b"))
        handle = dispatcher.submit(call(where(error), "a"))
        queued = dispatcher.submit(call(name="c"))
        outcome = await handle.outcome()
        assert isinstance(outcome, Failed)
        assert outcome.verdict.kind is VerdictKind.PERMANENT
        wrapped = outcome.error if type(outcome.error) is not RuntimeError else outcome.error.__cause__
        assert type(wrapped) is error
        with pytest.raises(CallFailed):
            await handle
        assert await queued == "done"
        assert await behind == "done"
        assert await dispatcher.run(call(name="d")) == "done"
    assert not [record for record in caplog.records if record.levelno >= logging.CRITICAL]


@pytest.mark.parametrize("error", [e for e in BASE if e is not asyncio.CancelledError])
async def test_what_raises_when_it_is_stopped_ends_its_call_alone(error: Any):
    """A clean-up that raises: the call ends with that error's outcome or as it was asked to; the rest goes on."""

    async def execute(attempt: Attempt) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise error()

    async with running() as dispatcher:
        handle = dispatcher.submit(call(execute))
        await asyncio.sleep(1)
        handle.cancel("enough")
        outcome = await handle.outcome()
        assert outcome.attempts == 1
        assert now() == 1.0
        assert await dispatcher.run(call()) == "done"


@pytest.mark.parametrize("error", BASE)
async def test_whatever_reconcile_raises_ends_its_call_alone(error: Any):
    """A create in doubt whose reconcile fails for good is ambiguous."""

    @dataclass(frozen=True, kw_only=True)
    class Create(APICall[str]):
        call_type: str = "create"
        effect: Effect = Effect.CREATE

        async def execute(self, attempt: Attempt) -> str:
            raise OSError("reset")

        async def reconcile(self, attempt: Attempt, last: BaseException) -> Any:
            raise error()

    async with running() as dispatcher:
        outcome = await dispatcher.submit(Create(target=pod())).outcome()
        assert isinstance(outcome, Failed)
        assert outcome.ambiguous
        assert await dispatcher.run(call(name="d")) == "done"


@pytest.mark.parametrize("answer", [None, "yes", Applied, True, Verdict(VerdictKind.RETRY), 3])
async def test_a_reconcile_that_answers_something_else_is_told_so(answer: Any):
    """And counts as Unknown: an answer that can't be read proves nothing."""

    @dataclass(frozen=True, kw_only=True)
    class Create(APICall[str]):
        call_type: str = "create"
        effect: Effect = Effect.CREATE

        async def execute(self, attempt: Attempt) -> str:
            raise OSError("reset")

        async def reconcile(self, attempt: Attempt, last: BaseException) -> Any:
            return answer

    async with running() as dispatcher:
        outcome = await dispatcher.submit(Create(target=pod())).outcome()
        assert isinstance(outcome, Failed)
        assert outcome.ambiguous


# -- late, deaf, blocking ---------------------------------------------------------------------------------------------


async def test_a_call_that_ignores_its_time_out_keeps_its_lane_shut_and_others_go_on():
    """Case D9 (c), law L2: the next write of the object starts when the first has really ended."""
    following = Script("next")
    async with running(attempt_timeout=2.0, retry=RetryPolicy(wait=lambda _: 60.0)) as dispatcher:
        deaf = dispatcher.submit(call(stubborn(7.0, "late after all"), timeout=30.0))
        behind = dispatcher.submit(call(following))
        assert await dispatcher.run(call(after(1.0), "q")) == "done"
        assert now() == 1.0
        assert await behind == "next"
        assert following.times == [7.0]
        assert await deaf == "late after all", "a success after the attempt's time-out is a success"


async def test_a_call_that_does_not_stop_is_given_up_after_five_seconds():
    """Law L11: its caller is told, in doubt; its lane and its seat stay taken until it ends (law L19)."""
    following = Script("next")
    async with running(timeout=20.0) as dispatcher:
        deaf = dispatcher.submit(call(stubborn(12.0, "bound")))
        behind = dispatcher.submit(call(following))
        await asyncio.sleep(1.0)
        deaf.cancel("enough")
        outcome = await deaf.outcome()
        assert now() == 6.0
        assert (outcome.ambiguous, outcome.late_success) == (True, None)
        assert dispatcher.statistics().in_flight == 1
        assert await behind == "next"
        assert following.times == [12.0]
        assert dispatcher.statistics().stale == 1


async def test_who_joins_and_leaves_later_does_not_postpone_the_giving_up():
    """Law L11: five seconds after asking, however many others come and go meanwhile."""
    async with running() as dispatcher:
        first = dispatcher.submit(call(stubborn(30.0), idempotency_key="k"))
        await asyncio.sleep(1.0)
        first.cancel("enough")
        await asyncio.sleep(2.0)
        second = dispatcher.submit(call(stubborn(30.0), idempotency_key="k"))
        second.cancel("enough")
        await asyncio.gather(first.outcome(), second.outcome())
        assert now() == 6.0


async def test_a_call_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture):
    """Rule R20: a warning with type, object and flow, past the threshold; one for each step, none for the others."""

    async def execute(attempt: Attempt) -> str:
        await asyncio.sleep(0)
        block(0.02)
        await asyncio.sleep(0)
        return "done"

    async with running(blocking_threshold=0.01) as dispatcher:
        blocking = call(execute, target=node("n1"), call_type="taint", flow="plugin")
        assert await dispatcher.run(blocking) == "done"
        assert await dispatcher.run(call()) == "done"
        assert dispatcher.statistics().blocked == 1
    (record,) = [record for record in caplog.records if "blocked the event loop" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("taint of Node n1 blocked the event loop for 0.0")
    extra = {name: record.__dict__[name] for name in ("object", "flow", "call_type")}
    assert extra == {"object": "Node n1", "flow": "plugin", "call_type": "taint"}
    assert record.__dict__["seconds"] >= 0.02


@pytest.mark.parametrize("where", ["before it awaits", "reconcile", "when stopped"])
async def test_blocking_is_measured_wherever_user_code_runs(where: str):
    @dataclass(frozen=True, kw_only=True)
    class Create(APICall[str]):
        call_type: str = "create"
        effect: Effect = Effect.CREATE

        def execute(self, attempt: Attempt) -> Any:
            if where == "before it awaits":
                block(0.02)
            return self.really(attempt)

        async def really(self, attempt: Attempt) -> str:
            if where == "reconcile":
                raise OSError("reset")
            try:
                await asyncio.sleep(3)
            except asyncio.CancelledError:
                block(0.02)
                raise
            return "done"

        async def reconcile(self, attempt: Attempt, error: BaseException) -> Any:
            block(0.02)
            return Refused(error)

    async with running(blocking_threshold=0.01) as dispatcher:
        handle = dispatcher.submit(Create(target=pod()))
        await asyncio.sleep(1)
        if where == "when stopped":
            handle.cancel()
        await handle.outcome()
        assert dispatcher.statistics().blocked == 1


async def test_a_call_may_cancel_itself():
    """Asked from inside its own attempt: it is stopped at its next await."""
    handles: list[Any] = []

    async def execute(attempt: Attempt) -> str:
        handles[0].cancel("by itself")
        await asyncio.sleep(1)
        return "never"

    async with running() as dispatcher:
        handles.append(dispatcher.submit(call(execute)))
        outcome = await handles[0].outcome()
        assert isinstance(outcome, Cancelled)
        assert outcome.reason == "by itself"
        assert now() == 0.0


async def test_a_call_that_cancels_itself_and_returns_is_late_and_harms_nobody():
    handles: list[Any] = []

    async def execute(attempt: Attempt) -> str:
        handles[0].cancel("by itself")
        return "done"

    async with running(max_in_flight=1) as dispatcher:
        handles.append(dispatcher.submit(call(execute)))
        following = dispatcher.submit(call(after(1.0), "q"))
        outcome = await handles[0].outcome()
        assert outcome.late_success == "done"
        assert await following == "done"


async def test_a_call_may_submit_observe_and_end_contexts_from_inside():
    """User code runs between two consistent states of the core."""
    async with running() as dispatcher:
        context = dispatcher.contexts.begin(pod())

        async def execute(attempt: Attempt) -> Any:
            assert attempt.context is context
            inner = dispatcher.submit(call(name="inner"))
            dispatcher.observe(pod_dict("p", "u1", 3))
            dispatcher.forget(pod("other"), "gone")
            await inner
            context.end("from inside")
            await asyncio.sleep(1)

        handle = dispatcher.submit(call(execute, context=context))
        outcome = await handle.outcome()
        assert isinstance(outcome, Cancelled)
        assert outcome.reason == "from inside"


async def test_a_call_may_await_another_of_its_dispatcher():
    """With room for both, and with none: then the time-outs end it."""

    async def waiting(attempt: Attempt) -> Any:
        return await dispatcher.run(call(name="inner"))

    async with running() as dispatcher:
        assert await dispatcher.run(call(waiting)) == "done"
    async with running(max_in_flight=1, attempt_timeout=2.0) as dispatcher:
        outcome = await dispatcher.submit(call(waiting, timeout=3.0)).outcome()
        assert not isinstance(outcome, Succeeded)


class Unreadable:
    """Its metadata can't be looked at."""

    def __repr__(self) -> str:
        return "Unreadable()"

    @property
    def metadata(self) -> Any:
        raise RuntimeError("not loaded")


def answer(**meta: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "p", "namespace": "default", "uid": "u1", **meta}}


VERSIONS: tuple[Any, ...] = (5, None, "", "x", "9" * 5_000, b"5", [], 1.5)


@pytest.mark.parametrize(
    "value",
    [
        *(answer(resourceVersion=version) for version in VERSIONS),
        *(answer(name=5), answer(uid=5), {"metadata": 5}, {"metadata": []}, {}, [], 5),
        Unreadable(),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_whatever_a_call_returns_is_its_value(value: Any) -> None:
    """L14: what is made of answers must not depend on their shape."""

    async def returns(attempt: Attempt) -> Any:
        return value

    async with running() as dispatcher:
        assert await dispatcher.run(call(returns)) is value
        context = dispatcher.contexts.begin(pod())
        assert await dispatcher.run(call(returns, context=context)) is value
        assert await dispatcher.run(call()) == "done"
