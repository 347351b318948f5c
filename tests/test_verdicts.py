"""Who is asked what an error means, and what it says of the server."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from asyncdispatch import (
    APICall,
    Attempt,
    CallState,
    ConfigurationError,
    Effect,
    RetryPolicy,
    Verdict,
    VerdictKind,
    classify,
    verdicts,
)
from asyncdispatch._core.parking import Signal
from tests.shell import Script, StatusError, call, now, pod, raising, running, turns

NOBODY = RetryPolicy()


def attempt_of(made: Any) -> Attempt:
    return Attempt(lambda: 0.0, made, 1, 1, 5.0, None)


def verdict_on(error: BaseException, made: Any = None, default: RetryPolicy = NOBODY) -> Verdict:
    made = made if made is not None else call()
    return classify(made, attempt_of(made), error, default)


@pytest.fixture
def registered() -> Iterator[list[Any]]:
    """The table of registered classifiers, as it was afterwards."""
    before = list(verdicts._registered)
    verdicts._registered.clear()
    yield verdicts._registered
    verdicts._registered[:] = before


@dataclass(frozen=True, kw_only=True)
class Classifying(APICall[None]):
    call_type: str = "classifying"
    verdict: Verdict | None = None

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        return self.verdict


def test_the_calls_policy_then_the_configurations_then_the_class_then_the_adapters(registered: list[Any]):
    """Each is asked until one gives a verdict; None leaves it to the next."""
    marks = {name: Verdict(VerdictKind.PERMANENT, reason=name) for name in ("own", "config", "class", "adapter")}
    verdicts.register(lambda error, made: marks["adapter"])
    own = RetryPolicy(classify=lambda made, attempt, error: marks["own"])
    config = RetryPolicy(classify=lambda made, attempt, error: marks["config"])
    silent = RetryPolicy(classify=lambda made, attempt, error: None)
    error = OSError()
    spoken = Classifying(target=pod(), verdict=marks["class"], retry=own)
    assert verdict_on(error, spoken, config).reason == "own"
    spoken = Classifying(target=pod(), verdict=marks["class"], retry=silent)
    assert verdict_on(error, spoken, config).reason == "config"
    assert verdict_on(error, spoken, silent).reason == "class"
    assert verdict_on(error, Classifying(target=pod()), silent).reason == "adapter"
    registered.clear()
    assert verdict_on(error, Classifying(target=pod()), silent).reason == "OSError"


def test_an_adapter_is_registered_once(registered: list[Any]):
    def adapter(error: BaseException, made: APICall[Any]) -> Verdict | None:
        return None

    verdicts.register(adapter)
    verdicts.register(adapter)
    assert registered == [adapter]


def test_a_classify_gives_a_verdict_or_none():
    wrong: Any = RetryPolicy(classify=lambda made, attempt, error: VerdictKind.RETRY)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError, match="must return a Verdict, or None for the default table"):
        verdict_on(OSError(), default=wrong)


@pytest.mark.parametrize("error", [OSError(), TimeoutError(), ConnectionResetError(), BrokenPipeError()])
@pytest.mark.parametrize("effect", list(Effect))
def test_faults_of_the_transport_are_retried_and_a_write_may_be_there(error: Exception, effect: Effect):
    verdict = verdict_on(error, call(effect=effect))
    assert (verdict.kind, verdict.maybe_applied) == (VerdictKind.RETRY, effect is not Effect.READ)


@pytest.mark.parametrize("error", [ValueError(), KeyError("x"), RuntimeError(), SystemExit(), KeyboardInterrupt()])
def test_anything_else_is_permanent(error: BaseException):
    verdict = verdict_on(error)
    assert (verdict.kind, verdict.maybe_applied) == (VerdictKind.PERMANENT, False)


@pytest.mark.parametrize(
    ("status", "kind", "maybe"),
    [
        (400, VerdictKind.PERMANENT, False),
        (401, VerdictKind.HOLD, False),
        (403, VerdictKind.PERMANENT, False),
        (409, VerdictKind.RECONCILE, False),
        (422, VerdictKind.PERMANENT, False),
        (429, VerdictKind.RETRY, False),
        (500, VerdictKind.RETRY, True),
        (503, VerdictKind.RETRY, True),
        (504, VerdictKind.RETRY, True),
    ],
)
def test_an_integer_status_is_read_by_the_api_servers_table(status: int, kind: VerdictKind, maybe: bool):
    verdict = verdict_on(StatusError(status))
    assert (verdict.kind, verdict.maybe_applied) == (kind, maybe)


def test_an_answer_with_retry_after_proves_that_nothing_was_stored():
    verdict = verdict_on(StatusError(503, Retry_After="3"))
    assert (verdict.kind, verdict.maybe_applied, verdict.retry_after) == (VerdictKind.RETRY, False, 3.0)


@pytest.mark.parametrize("status", ["503", 503.0, True, None])
def test_a_status_that_is_no_integer_says_nothing(status: Any):
    error = ValueError("odd")
    error.status = status  # type: ignore[attr-defined]
    assert verdict_on(error).kind is VerdictKind.PERMANENT


@pytest.mark.parametrize(
    ("error", "signal"),
    [
        (StatusError(429), Signal.PUSHBACK),
        (StatusError(503), Signal.OVERLOAD),
        (TimeoutError(), Signal.OVERLOAD),
        (StatusError(500), Signal.FAULT),
        (ConnectionResetError(), Signal.FAULT),
        (StatusError(403), Signal.NONE),
        (ValueError(), Signal.NONE),
    ],
)
def test_what_an_error_says_of_the_servers_health(error: Exception, signal: Signal):
    assert verdicts.signal_of(verdict_on(error), error) is signal


async def test_held_calls_wait_behind_one_probe():
    """HOLD (rule R4): refused credentials fail nobody; all of a scope follow once a probe has gone well."""
    good: list[float] = []

    async def execute(attempt: Attempt) -> str:
        if now() < 5.0:
            raise StatusError(401)
        good.append(now())
        return "done"

    async with running() as dispatcher:
        handles = [dispatcher.submit(call(execute, f"p{i}", scope="cluster")) for i in range(5)]
        await turns(30)
        assert {handle.state for handle in handles} == {CallState.HELD}
        other = dispatcher.submit(call(name="q", scope="elsewhere"))
        assert await other == "done"
        late = dispatcher.submit(call(execute, "late", scope="cluster"))
        await turns()
        assert late.state is CallState.HELD
        assert [await handle for handle in [*handles, late]] == ["done"] * 6
        assert max(good) - min(good) < 0.01
        assert dispatcher.statistics().unauthenticated_since is None


async def test_wrong_credentials_end_after_the_hold_limit():
    async with running(hold_limit=30.0) as dispatcher:
        outcome = await dispatcher.submit(call(raising(StatusError(401)), scope="cluster")).outcome()
        assert now() == pytest.approx(30.0, abs=11.0)
        assert type(outcome).__name__ == "Failed"
        assert isinstance(outcome.cause, StatusError)


async def test_the_same_500_five_times_over_will_not_pass():
    """Rule R12."""
    script = Script(StatusError(500))
    async with running(retry=RetryPolicy(wait=lambda _: 1.0)) as dispatcher:
        outcome = await dispatcher.submit(call(script)).outcome()
    assert type(outcome).__name__ == "Failed"
    assert len(script.times) == 5
