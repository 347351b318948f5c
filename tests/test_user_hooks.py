"""Errors in the synchronous hooks refuse the call that is being submitted, else end that call (law L14)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from asyncdispatch import (
    APICall,
    Attempt,
    CallFailed,
    ConfigurationError,
    Failed,
    Overwritten,
    RetryPolicy,
    VerdictKind,
)
from tests.shell import Script, after, call, pod, pod_dict, raising, running, turns


class Own(BaseException):
    """No Exception: as a framework's own signal may be."""


def nothing(*args: Any) -> Any:
    return None


@dataclass(frozen=True, kw_only=True)
class Hooked(APICall[Any]):
    """Each hook is a function."""

    call_type: str = "hooked"
    run: Any = field(default_factory=lambda: after(0.0))
    on_merge: Callable[..., Any] = nothing
    on_noop: Callable[..., Any] = nothing
    on_rebase: Callable[..., Any] = lambda call, obj: call
    on_apply: Callable[..., Any] = lambda call, obj: obj
    on_classify: Callable[..., Any] = nothing

    async def execute(self, attempt: Attempt) -> Any:
        return await self.run(attempt)

    def merge(self, pending: Any) -> Any:
        return self.on_merge(self, pending)

    def is_noop(self) -> Any:
        return self.on_noop(self)

    def rebase_onto(self, observed: Any) -> Any:
        return self.on_rebase(self, observed)

    def apply(self, obj: Any) -> Any:
        return self.on_apply(self, obj)

    def classify(self, attempt: Attempt, error: BaseException) -> Any:
        return self.on_classify(error)


def thrower(error: Any) -> Callable[..., Any]:
    def throw(*args: Any) -> Any:
        raise error("in a hook")

    return throw


async def test_an_is_noop_that_raises_refuses_its_call():
    async with running() as dispatcher:
        with pytest.raises(ConfigurationError, match=r"is_noop='Hooked': it raised LookupError"):
            dispatcher.submit(Hooked(target=pod(), on_noop=thrower(LookupError)))
        assert dispatcher.statistics().depth == 0
        assert await dispatcher.run(call()) == "done"


@pytest.mark.parametrize("error", [LookupError, Own, SystemExit])
async def test_a_merge_that_raises_at_a_retry_counts_as_none(error: Any):
    """Law L14: the failed attempt goes again, then the newer call; nothing is absorbed, nothing is lost."""
    failing = Script(OSError("reset"), "older", seconds=1.0)
    async with running(retry=RetryPolicy(wait=lambda _: 1.0)) as dispatcher:
        older = dispatcher.submit(Hooked(target=pod(), run=failing))
        await turns()
        newer = dispatcher.submit(Hooked(target=pod(), on_merge=thrower(error), run=after(0.0, "newer")))
        assert (await older, await newer) == ("older", "newer")


async def test_a_merge_at_a_retry_absorbs_the_failed_attempt():
    """The scene above with a merge that works: law L13."""
    failing = Script(OSError("reset"), "older", seconds=1.0)
    async with running(retry=RetryPolicy(wait=lambda _: 1.0)) as dispatcher:
        older = dispatcher.submit(Hooked(target=pod(), run=failing))
        await turns()
        newer = dispatcher.submit(Hooked(target=pod(), on_merge=lambda call, _: call, run=after(0.0, "newer")))
        assert await newer == "newer"
        assert isinstance(older.settled, Overwritten)
        assert len(failing.times) == 1


@pytest.mark.parametrize("how", ["raises", "other type", "other target", "nothing"])
async def test_a_rebase_that_fails_ends_its_call(how: str):
    ways: dict[str, Callable[..., Any]] = {
        "raises": thrower(LookupError),
        "other type": lambda one, obj: call(),
        "other target": lambda one, obj: Hooked(target=pod("q")),
        "nothing": nothing,
    }
    async with running() as dispatcher:
        blocker = dispatcher.submit(call(after(1.0)))
        waiting = dispatcher.submit(Hooked(target=pod(), on_rebase=ways[how]))
        other = dispatcher.submit(Hooked(target=pod()))
        assert dispatcher.observe(pod_dict("p", "u1", 5)) == pod_dict("p", "u1", 5)
        outcome = await waiting.outcome()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, LookupError if how == "raises" else ConfigurationError)
        assert await blocker == "done"
        assert await other == "done"


async def test_an_apply_that_raises_ends_the_waiting_call_and_shows_the_rest():
    async with running() as dispatcher:
        dispatcher.submit(call(after(1.0)))
        bad = dispatcher.submit(Hooked(target=pod(), on_apply=thrower(LookupError)))
        good = dispatcher.submit(Hooked(target=pod(), on_apply=lambda call, obj: {**obj, "mine": True}))
        assert dispatcher.observe(pod_dict())["mine"] is True
        assert isinstance(await bad.outcome(), Failed)
        assert await good == "done"


async def test_an_apply_that_raises_after_its_write_is_logged_and_shown_no_more(caplog: pytest.LogCaptureFixture):
    """The write is done: there is no call left to end."""
    async with running() as dispatcher:
        await dispatcher.run(Hooked(target=pod(), on_apply=thrower(LookupError)))
        assert dispatcher.statistics().unobserved == 1
        assert dispatcher.observe(pod_dict()) == pod_dict()
        assert dispatcher.statistics().unobserved == 0
    assert "apply of call 1 raised" in caplog.text


@pytest.mark.parametrize("error", [LookupError, Own, SystemExit])
@pytest.mark.parametrize("way", ["call", "policy of the call", "policy of all"])
async def test_a_classify_that_raises_ends_its_call(way: str, error: Any):
    policy = RetryPolicy(classify=thrower(error))
    fields: dict[str, Any] = {"run": raising(OSError("first"))}
    if way == "call":
        fields["on_classify"] = thrower(error)
    elif way == "policy of the call":
        fields["retry"] = policy
    async with running(retry=policy if way == "policy of all" else RetryPolicy()) as dispatcher:
        outcome = await dispatcher.submit(Hooked(target=pod(), **fields)).outcome()
        assert isinstance(outcome, Failed)
        assert type(outcome.error) is error
        assert isinstance(outcome.error.__cause__, OSError)
        assert outcome.ambiguous, "what was sent may have been applied"
        assert await dispatcher.run(call(name="q")) == "done"


@pytest.mark.parametrize("answer", ["retry", VerdictKind.RETRY, True, 3])
async def test_a_classify_that_answers_something_else_ends_its_call(answer: Any):
    async with running() as dispatcher:
        handle = dispatcher.submit(Hooked(target=pod(), run=raising(OSError()), on_classify=lambda error: answer))
        with pytest.raises(CallFailed) as caught:
            await handle
        assert "must return a Verdict, or None for the default table" in str(caught.value.__cause__)


@pytest.mark.parametrize("error", [LookupError, Own])
@pytest.mark.parametrize("name", ["wait", "stop"])
async def test_a_strategy_that_raises_ends_its_call(name: str, error: Any):
    strategies: dict[str, Any] = {name: thrower(error)}
    async with running(retry=RetryPolicy(**strategies)) as dispatcher:
        outcome = await dispatcher.submit(call(raising(OSError()))).outcome()
        assert isinstance(outcome, Failed)
        assert type(outcome.error) is error
        assert await dispatcher.run(call(name="q")) == "done"


@pytest.mark.parametrize("wait", [-1.0, float("nan"), float("inf"), "soon", None])
async def test_a_wait_that_gives_no_seconds_ends_its_call(wait: Any):
    async with running(retry=RetryPolicy(wait=lambda state: wait)) as dispatcher:
        outcome = await dispatcher.submit(call(raising(OSError()))).outcome()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, (ValueError, TypeError))
