"""Finding out what became of a request: the answers of `reconcile`, and what each leads to (law L10)."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from asyncdispatch import (
    Again,
    AmbiguousOutcome,
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
    Unknown,
    VerdictKind,
)
from tests.shell import StatusError, call, now, pod, pod_dict, running

FAST = RetryPolicy(wait=lambda state: 1.0)


@dataclass(frozen=True, kw_only=True)
class Create(APICall[Any]):
    """Fails with its error, and reconciles as it is told."""

    call_type: str = "create"
    effect: Effect = Effect.CREATE
    error: Exception = OSError("reset")
    answer: Any = Unknown
    seconds: float = 0.0
    log: Any = None
    good: bool = False

    async def execute(self, attempt: Attempt) -> Any:
        self.log.append(f"execute {attempt.number}")
        if self.good:
            return "sent again"
        raise self.error

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Any:
        self.log.append("reconcile")
        assert error is self.error
        await asyncio.sleep(self.seconds)
        answer = self.answer.pop(0) if isinstance(self.answer, list) else self.answer
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("unknown", [Unknown, Unknown()])
async def test_a_create_that_may_be_there_is_not_sent_again(unknown: Any):
    """Law L10: with Unknown it fails as AmbiguousOutcome."""
    log: list[str] = []
    async with running(retry=FAST) as dispatcher:
        with pytest.raises(AmbiguousOutcome):
            await dispatcher.run(Create(target=pod(), log=log, answer=unknown))
    assert log == ["execute 1", "reconcile"]


async def test_reconcile_may_find_that_it_was_applied():
    log: list[str] = []
    async with running(retry=FAST) as dispatcher:
        handle = dispatcher.submit(Create(target=pod(), log=log, answer=Applied(pod_dict())))
        assert await handle == pod_dict()
        assert handle.settled == Succeeded(pod_dict(), attempts=1, cause=handle.call.error)  # type: ignore[attr-defined]


async def test_reconcile_may_ask_for_another_call():
    log: list[str] = []
    async with running(retry=FAST) as dispatcher:
        first = Create(target=pod(), log=log)
        again = replace(first, good=True)
        assert await dispatcher.run(replace(first, answer=Again(again))) == "sent again"
    assert log == ["execute 1", "reconcile", "execute 2"]


@pytest.mark.parametrize(
    "other", [call(), Create(target=pod("q"), log=[]), "again"], ids=["other class", "other object", "no call"]
)
async def test_again_must_be_of_the_same_class_and_object(other: Any):
    log: list[str] = []
    async with running(retry=FAST) as dispatcher:
        outcome = await dispatcher.submit(Create(target=pod(), log=log, answer=Again(other))).outcome()
        assert isinstance(outcome, Failed)
        assert outcome.ambiguous
    assert log == ["execute 1", "reconcile"]


async def test_reconcile_may_say_that_it_was_refused():
    """Then nothing is in doubt, and the error is the one that reconcile found."""
    error = ValueError("bound elsewhere")
    log: list[str] = []
    async with running(retry=FAST) as dispatcher:
        with pytest.raises(CallFailed) as caught:
            await dispatcher.run(Create(target=pod(), log=log, answer=Refused(error)))
    assert not isinstance(caught.value, AmbiguousOutcome)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(("error", "kind"), [(StatusError(404), VerdictKind.GONE), (OSError(), VerdictKind.PERMANENT)])
async def test_a_refusal_because_the_target_is_gone_is_gone(error: Exception, kind: VerdictKind):
    async with running() as dispatcher:
        outcome = await dispatcher.submit(Create(target=pod(), log=[], answer=Refused(error))).outcome()
        assert isinstance(outcome, Failed)
        assert (outcome.verdict.kind, outcome.ambiguous) == (kind, False)


async def test_a_reconcile_that_fails_is_asked_again_and_sends_nothing_first():
    """Law L14: it waits as its verdict says."""
    log: list[str] = []
    answers = [OSError("reset"), StatusError(503), Applied("found")]
    async with running(retry=FAST) as dispatcher:
        assert await dispatcher.run(Create(target=pod(), log=log, answer=answers)) == "found"
        assert now() == 2.0
    assert log == ["execute 1", "reconcile", "reconcile", "reconcile"]


async def test_reconcile_has_a_short_time_out_of_its_own():
    """Rule R1: `reconcile_timeout`, not the attempt's."""
    log: list[str] = []
    policy = replace(FAST, reconcile_timeout=2.0, max_reconciles=2)
    async with running(retry=policy) as dispatcher:
        outcome = await dispatcher.submit(Create(target=pod(), log=log, seconds=60.0)).outcome()
        assert isinstance(outcome, Failed)
        assert outcome.ambiguous
    assert log.count("execute 1") == 1
    assert 2 <= log.count("reconcile") <= 3


async def test_a_cancelled_reconcile_leaves_the_doubt():
    log: list[str] = []
    async with running() as dispatcher:
        handle = dispatcher.submit(Create(target=pod(), log=log, seconds=60.0))
        await asyncio.sleep(1.0)
        handle.cancel("enough")
        outcome = await handle.outcome()
        assert now() == 1.0
        assert isinstance(outcome, Cancelled)
        assert outcome.ambiguous
