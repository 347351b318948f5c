"""What can't be meant is refused at submit by a clear error that names field, value and remedy; nothing is queued."""

import asyncio
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from asyncdispatch import (
    APICall,
    Attempt,
    CallFailed,
    ConfigurationError,
    Dispatcher,
    DispatcherClosed,
    DispatchError,
    Effect,
    Failed,
    FunctionCall,
    MergeFailed,
    RefusedError,
    RetryPolicy,
    StaleContext,
    Succeeded,
    VerdictKind,
)
from tests.shell import after, at_once, call, node, pod, running, shown, turns

NOT_A_NAME: tuple[Any, ...] = ("", 3, b"x", ["x"])
NOT_A_FLAG: tuple[Any, ...] = (None, 0, 1, "yes", [])


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Unhashable()"


WRONG: dict[str, tuple[Any, ...]] = {
    "call_type": (*NOT_A_NAME, None),
    "target": ("Pod ns/p", None, {"kind": "Pod"}, pod),
    "effect": ("read", None, Effect, 0),
    "idempotency_key": ([], {}, Unhashable()),
    "version": (7, "", 1.5),
    "priority": (None, "high", 1.5, True, 2**31, -(2**31) - 1, math.nan),
    "flow": (*NOT_A_NAME, None),
    "timeout": (0, -1, -0.001, math.nan, math.inf, "5", True),
    "not_before": (-1, math.nan, math.inf, "5", True),
    "context": ("context", 3, object()),
    "prerequisite": NOT_A_NAME,
    **dict.fromkeys(("awaits_prerequisites", "sheddable", "ordered", "fresh"), NOT_A_FLAG),
    "depends_on": (None, node(), [node()], ("n",), (None,)),
    "scope": ([], {}, Unhashable()),
    "retry": (3, RetryPolicy, at_once),
}
CASES = [pytest.param(name, value, id=f"{name}={shown(value)}") for name, values in WRONG.items() for value in values]


def test_every_field_of_a_call_has_wrong_values_to_refuse():
    """A new field can't be forgotten here."""
    assert set(WRONG) == {field.name for field in dataclasses.fields(APICall)}


WAYS = ("submit", "dispatch", "run")


async def _give(dispatcher: Dispatcher, way: str, given: Any) -> Any:
    """Submit `given` by one of the three ways."""
    made = getattr(dispatcher, way)(given)
    return made if way == "submit" else await made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "value"), CASES)
async def test_a_wrong_value_of_a_field_is_refused_by_name(name: str, value: Any, way: str):
    """By each way in. The error names the field, shows value or type, says the remedy, and nothing is queued."""
    async with running() as dispatcher:
        with pytest.raises(ConfigurationError) as caught:
            await _give(dispatcher, way, dataclasses.replace(call(), **{name: value}))
        assert caught.value.field == name
        assert caught.value.remedy
        told = value if name not in ("idempotency_key", "scope") else type(value)
        assert f"{name}={told!r}" in str(caught.value)
        statistics = dispatcher.statistics()
        assert (statistics.depth, statistics.accepted, len(dispatcher._core.lanes.table)) == (0, 0, 0)


@pytest.mark.parametrize("value", [None, 3, at_once, APICall, "call", pod()])
async def test_what_is_no_call_is_refused(value: Any):
    async with running() as dispatcher:
        for way in WAYS:
            with pytest.raises(ConfigurationError, match=r"call=.*must be an APICall: subclass it, or use Function"):
                await _give(dispatcher, way, value)
        with pytest.raises(ConfigurationError, match="call="):
            await asyncio.wrap_future(dispatcher.submit_threadsafe(value))


async def test_fields_that_do_not_go_together_are_refused():
    async with running() as dispatcher:
        with pytest.raises(ConfigurationError, match=r"prerequisite='volume': needs the context that requires it"):
            dispatcher.submit(call(prerequisite="volume"))
        with pytest.raises(ConfigurationError, match=r"ordered=True: is for reads"):
            dispatcher.submit(call(ordered=True))
        context = dispatcher.contexts.begin(pod(), requires=("volume",))
        with pytest.raises(ConfigurationError, match=r"prerequisite='disk'.*it requires: volume"):
            dispatcher.submit(call(context=context, prerequisite="disk"))
        assert dispatcher.statistics().depth == 0


async def test_a_context_of_another_dispatcher_is_refused():
    async with running() as one, running() as other:
        context = one.contexts.begin(pod())
        other.contexts.begin(pod())
        with pytest.raises(ConfigurationError, match="belongs to another dispatcher"):
            other.submit(call(context=context))
        with pytest.raises(ConfigurationError, match="belongs to another dispatcher"):
            other.contexts.begin(pod("q"), parent=context)


@pytest.mark.parametrize("value", [None, 3, "not awaitable", [], at_once])
async def test_an_execute_that_returns_no_awaitable_ends_its_call(value: Any):
    """The error names the class and what it returned; nobody else is touched."""

    def execute(attempt: Attempt) -> Any:
        return value

    async with running() as dispatcher:
        handle = dispatcher.submit(call(execute))
        assert await dispatcher.run(call(name="q")) == "done"
        with pytest.raises(CallFailed) as caught:
            await handle
        assert isinstance(caught.value.__cause__, ConfigurationError)
        assert f"execute={value!r}: FunctionCall.execute must return an awaitable" in str(caught.value.__cause__)
        assert isinstance(handle.settled, Failed)
        assert handle.settled.verdict.kind is VerdictKind.PERMANENT


async def test_a_function_that_takes_no_attempt_ends_its_call():
    async def execute() -> None: ...

    wrong: Any = execute
    async with running() as dispatcher:
        with pytest.raises(CallFailed, match="takes 0 positional arguments"):
            await dispatcher.run(call(wrong))


# -- merge ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Merging(APICall[str]):
    call_type: str = "merging"
    how: Callable[[Any, Any], Any] = lambda newer, older: None

    async def execute(self, attempt: Attempt) -> str:
        return "sent"

    def merge(self, pending: Any) -> Any:
        return self.how(self, pending)


def _raise(newer: Any, older: Any) -> Any:
    raise LookupError("in merge")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (_raise, r"Merging.merge raised LookupError\('in merge'\); the waiting call is untouched"),
        (lambda newer, older: "merged", "Merging.merge returned str: return a call of its own type, or None"),
        (lambda newer, older: call(), "Merging.merge returned FunctionCall"),
        (lambda newer, older: Merging, "Merging.merge returned type"),
        (lambda newer, older: True, "Merging.merge returned bool"),
        (lambda newer, older: dataclasses.replace(newer, target=pod("q")), "Merging.merge changed target"),
        (lambda newer, older: dataclasses.replace(newer, effect=Effect.READ), "Merging.merge changed effect"),
        (lambda newer, older: dataclasses.replace(newer, version="9"), "Merging.merge changed version"),
        (lambda newer, older: dataclasses.replace(newer, call_type="other"), "Merging.merge changed call_type"),
    ],
)
async def test_a_merge_that_fails_refuses_the_newcomer_and_leaves_the_waiting_call(how: Any, message: str):
    async with running() as dispatcher:
        blocker = dispatcher.submit(call(after(1.0)))
        waiting = dispatcher.submit(Merging(target=pod()))
        with pytest.raises(MergeFailed, match=message) as caught:
            dispatcher.submit(Merging(target=pod(), how=how))
        assert isinstance(caught.value, RefusedError)
        statistics = dispatcher.statistics()
        assert (statistics.depth, statistics.accepted, statistics.refused) == (2, 2, 1)
        await blocker
        assert await waiting == "sent"


async def test_a_merge_of_an_equal_type_is_taken():
    """The same scene with a good merge: the tests above would fail otherwise for want of a question."""
    async with running() as dispatcher:
        dispatcher.submit(call(after(1.0)))
        waiting = dispatcher.submit(Merging(target=pod()))
        newer = dispatcher.submit(Merging(target=pod(), how=lambda newer, older: newer))
        assert waiting.done()
        assert await newer == "sent"


# -- where and when ---------------------------------------------------------------------------------------------------


async def test_a_dispatcher_that_was_not_entered_takes_nothing():
    dispatcher = Dispatcher()
    for way in (dispatcher.submit, dispatcher.submit_threadsafe):
        with pytest.raises(DispatcherClosed, match="not entered yet: use `async with Dispatcher"):
            way(call())
    for waiting_way in (dispatcher.dispatch, dispatcher.run):
        with pytest.raises(DispatcherClosed, match="not entered yet"):
            await waiting_way(call())
    with pytest.raises(DispatcherClosed, match="not entered yet"):
        dispatcher.contexts.begin(pod())
    with pytest.raises(DispatcherClosed, match="not entered yet"):
        dispatcher.observe({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}})
    with pytest.raises(DispatcherClosed, match="not entered yet"):
        await dispatcher.drain()
    assert dispatcher.statistics().depth == 0
    assert "not entered yet" in repr(dispatcher)


async def test_a_closed_dispatcher_takes_nothing_and_says_why():
    async with running() as dispatcher:
        await dispatcher.aclose("maintenance")
        for way in (dispatcher.submit, dispatcher.submit_threadsafe):
            with pytest.raises(DispatcherClosed, match="closed: maintenance"):
                way(call())
        for waiting_way in (dispatcher.dispatch, dispatcher.run):
            with pytest.raises(DispatcherClosed, match="maintenance"):
                await waiting_way(call())
        with pytest.raises(DispatcherClosed, match="maintenance"):
            dispatcher.contexts.begin(pod())
        assert dispatcher.statistics().accepted == 0


async def test_a_dispatcher_is_entered_once():
    async with running() as dispatcher:
        with pytest.raises(DispatcherClosed, match="entered once: make another"):
            await dispatcher.__aenter__()
        assert await dispatcher.run(call()) == "done"
    with pytest.raises(DispatcherClosed, match="entered once"):
        await dispatcher.__aenter__()


async def test_another_loop_is_refused_and_told_of_the_door_for_threads():
    """From another thread that has a loop of its own, and from one that has none."""
    async with running() as dispatcher:
        handle = dispatcher.submit(call(after(1.0)))

        def attempts() -> list[Callable[[], Any]]:
            return [
                lambda: dispatcher.submit(call(name="q")),
                lambda: handle.cancel(),
                lambda: dispatcher.contexts.begin(pod()),
                lambda: dispatcher.observe({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}),
                lambda: dispatcher.forget(pod(), "gone"),
                lambda: dispatcher.cancel_flow("default", "stop"),
            ]

        def from_a_plain_thread() -> list[str]:
            found = []
            for attempt in attempts():
                with pytest.raises(ConfigurationError) as caught:
                    attempt()
                found.append(str(caught.value))
            return found

        async def inside() -> list[str]:
            found = from_a_plain_thread()
            for way in (dispatcher.dispatch, dispatcher.run):
                with pytest.raises(ConfigurationError) as caught:
                    await way(call(name="q"))
                found.append(str(caught.value))
            return found

        plain = await asyncio.to_thread(from_a_plain_thread)
        other = await asyncio.to_thread(lambda: asyncio.run(inside()))
        assert all("no event loop (another thread?)" in text and "submit_threadsafe" in text for text in plain)
        assert all("another event loop" in text and "submit_threadsafe" in text for text in other)
        assert (len(plain), len(other)) == (6, 8)
        assert dispatcher.statistics().depth == 1
        assert await handle == "done"


async def test_an_ended_context_takes_nothing():
    async with running() as dispatcher:
        ended = dispatcher.contexts.begin(pod())
        ended.end("preempted")
        over = dispatcher.contexts.begin(pod("q"), valid_until=asyncio.get_running_loop().time() + 1.0)
        await asyncio.sleep(2.0)
        for context, reason in ((ended, "preempted"), (over, "its validity is over")):
            for way in WAYS:
                with pytest.raises(StaleContext, match=reason):
                    await _give(dispatcher, way, call(context=context))
        assert dispatcher.statistics().depth == 0


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda d: d.contexts.begin(pod(), requires="volume"), "requires"),
        (lambda d: d.contexts.begin(pod(), requires=("",)), "requires"),
        (lambda d: d.contexts.begin(pod(), requires=(3,)), "requires"),
        (lambda d: d.contexts.begin(pod(), requires=3), "requires"),
        (lambda d: d.contexts.begin(pod(), parent="context"), "parent"),
        (lambda d: d.contexts.begin(pod(), valid_until=-1.0), "valid_until"),
        (lambda d: d.contexts.begin(pod(), valid_until="soon"), "valid_until"),
        (lambda d: d.contexts.begin(pod(), valid_until=math.inf), "valid_until"),
        (lambda d: d.contexts.begin({"kind": "Pod"}), "apiVersion"),
        (lambda d: d.contexts.begin(pod()).extend(math.nan), "valid_until"),
        (lambda d: d.contexts.begin(pod()).extend(None), "valid_until"),
        (lambda d: d.contexts.begin(pod()).confirm("volume"), "volume"),
        (lambda d: d.contexts.begin(pod(), requires=("volume",)).fail("disk", ValueError()), "disk"),
        (lambda d: d.contexts.begin(pod(), requires=("volume",)).fail("volume", "no"), "error"),
        (lambda d: d.completions(0), "maxsize"),
        (lambda d: d.completions("many"), "maxsize"),
        (lambda d: d.forget("Pod ns/p", "gone"), "ref"),
        (lambda d: d.forget(None, "gone"), "ref"),
        (lambda d: d.observe(None), "kind"),
        (lambda d: d.observe({"kind": "Pod", "apiVersion": "v1"}), "metadata.name"),
        (lambda d: d.overlay([{"spec": {}}], api_version="v1", kind="Pod"), "objs"),
        (lambda d: d.overlay([None], api_version="v1", kind="Pod"), "kind"),
        (lambda d: d.overlay([], api_version="", kind="Pod"), "api_version"),
        (lambda d: d.overlay([], api_version="v1", kind=None), "kind"),
        (lambda d: d.overlay([], api_version="v1", kind="Pod", namespace=3), "namespace"),
    ],
)
async def test_wrong_arguments_of_the_other_methods_are_refused_by_name(ask: Any, field: str):
    async with running() as dispatcher:
        with pytest.raises(ConfigurationError, match=field):
            ask(dispatcher)


@pytest.mark.parametrize(("way", "argument"), [("switch", "sync"), ("switch", None)])
async def test_a_mode_is_a_mode(way: str, argument: Any):
    async with running() as dispatcher:
        with pytest.raises(ConfigurationError, match=r"mode=.*must be a Mode"):
            await getattr(dispatcher, way)(argument, "why")


@pytest.mark.parametrize("timeout", [-1, math.nan, math.inf, "5", True])
async def test_the_time_out_of_leaving_is_a_number_of_seconds(timeout: Any):
    """A wrong one closes nothing."""
    async with running() as dispatcher:
        with pytest.raises(ConfigurationError, match="timeout="):
            await dispatcher.drain(timeout)
        with pytest.raises(ConfigurationError, match="timeout="):
            await dispatcher.aclose("why", timeout)
        assert await dispatcher.run(call()) == "done"


async def test_a_key_whose_hash_or_equality_raises_refuses_its_call():
    """Law L14: key equality is user code; nothing is queued, and the live call goes on."""

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise LookupError("in eq")

    class NoHash:
        def __hash__(self) -> int:
            raise LookupError("in hash")

    async with running() as dispatcher:
        live = dispatcher.submit(call(after(1.0), idempotency_key=Key()))
        with pytest.raises(ConfigurationError, match="idempotency_key"):
            dispatcher.submit(call(idempotency_key=Key()))
        with pytest.raises(ConfigurationError, match="idempotency_key"):
            dispatcher.submit(call(idempotency_key=NoHash()))
        assert dispatcher.statistics().depth == 1
        assert isinstance(await live.outcome(), Succeeded)
        await turns()


def test_every_refusal_is_a_dispatch_error():
    assert issubclass(ConfigurationError, DispatchError)
    assert issubclass(RefusedError, DispatchError)
    assert issubclass(FunctionCall, APICall)
