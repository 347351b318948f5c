"""A dispatcher driven by hand: real calls, a real API server, and each request as the test would have it."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from kubernetes_asyncio import client as kubernetes

from asyncdispatch import (
    Again,
    APICall,
    Attempt,
    CallHandle,
    Cancelled,
    ConfigurationError,
    DispatcherConfig,
    Effect,
    Expired,
    Failed,
    FunctionCall,
    ObjectRef,
    Overwritten,
    StaleContext,
    Succeeded,
)
from asyncdispatch.testing import Flight, LawBroken, SteppedDispatcher, answers, instead, lost, strategies, unsent

POD = strategies.pod("p")


@pytest.fixture
def steps() -> SteppedDispatcher:
    """With one Pod on its server."""
    dispatcher = SteppedDispatcher(DispatcherConfig(max_in_flight=2))
    dispatcher.server.put(POD)
    return dispatcher


def pod_of(steps: SteppedDispatcher) -> Any:
    return steps.server.get(POD)


def node_of(steps: SteppedDispatcher) -> Any:
    return pod_of(steps)["spec"].get("nodeName")


def bind(steps: SteppedDispatcher, **fields: Any) -> tuple[CallHandle[Any], Flight]:
    """A bind, whose request is under way."""
    handle = steps.submit(steps.cluster.bind(pod_of(steps), "n1", **fields))
    flight = steps.start()
    assert flight is not None
    return handle, flight


def test_a_call_goes_its_way(steps: SteppedDispatcher) -> None:
    """Submitted, started, landed, answered: each when the test says so."""
    handle, flight = bind(steps)
    assert (node_of(steps), handle.done()) == (None, False)
    assert repr(flight) == "<Flight call 1: POST /api/v1/namespaces/default/pods/p/binding>"
    flight.land()
    assert (node_of(steps), handle.done()) == ("n1", False)
    flight.answer()
    assert flight.over
    assert handle.result() == "n1"
    assert steps.start() is None
    steps.finish()


def test_an_answer_that_is_lost(steps: SteppedDispatcher) -> None:
    """The write landed: `reconcile` reads the Pod, and nothing is sent twice."""
    handle, flight = bind(steps)
    flight.answer(lost(applied=True))
    (reconcile,) = steps.flights
    assert reconcile.reconciling
    reconcile.answer()
    assert steps.expect(handle, Succeeded).attempts == 1
    steps.finish()


def test_a_request_that_never_left(steps: SteppedDispatcher) -> None:
    """Nothing is in doubt: it waits, without jitter, and is sent again."""
    handle, flight = bind(steps)
    flight.answer(unsent())
    steps.advance(0.099)
    assert (node_of(steps), steps.flights, steps.start()) == (None, [], None)
    steps.advance(0.001)
    steps.go_on()
    assert steps.expect(handle, Succeeded).attempts == 2
    steps.finish()


def test_a_refusal(steps: SteppedDispatcher) -> None:
    """An answer of the test's choice means what it means on a real server."""
    handle, flight = bind(steps)
    flight.answer(instead(answers.webhook_denied("policy.example.com", "no")))
    assert "policy.example.com" in str(steps.expect(handle, Failed).error)
    assert node_of(steps) is None
    steps.finish()


def test_an_error_after_which_the_write_stands(steps: SteppedDispatcher) -> None:
    """A 500 of etcd, whose write has landed."""
    handle, flight = bind(steps)
    flight.answer(instead(answers.etcd_timeout(), applied=True))
    assert node_of(steps) == "n1"
    steps.settle()
    assert steps.expect(handle, Succeeded).attempts == 1
    steps.finish()


def test_a_write_that_arrives_late(steps: SteppedDispatcher) -> None:
    """It was given up and is on its way still: its fence keeps it from the Pod that has the name by then."""
    handle, flight = bind(steps)
    flight.answer(lost(late=True))
    handle.cancel()
    (straggler,) = steps.stragglers
    steps.server.finish(POD)
    steps.server.put(POD)
    steps.arrive(straggler)
    assert (steps.stragglers, node_of(steps)) == ([], None)
    steps.finish()


def test_what_is_applied_does_not_arrive_later() -> None:
    """Such a trouble can't be meant."""
    with pytest.raises(ConfigurationError, match="leave one out"):
        lost(applied=True, late=True)


def test_an_attempt_is_cut_off(steps: SteppedDispatcher) -> None:
    """By virtual time, as in a prompt loop; its request may still arrive."""
    handle, _ = bind(steps, timeout=20.0)
    steps.advance(19.9)
    assert not handle.done()
    steps.advance(0.1)
    assert steps.expect(handle, Expired).ambiguous
    assert [str(each) for each in steps.stragglers] == ["POST /api/v1/namespaces/default/pods/p/binding"]
    steps.finish()


def test_an_attempt_is_stopped(steps: SteppedDispatcher) -> None:
    """Cancelled in flight, it is told once the attempt has ended: by the test, or with the next moment."""
    handle, flight = bind(steps)
    with pytest.raises(ConfigurationError, match="nobody has asked it to stop"):
        flight.stop()
    handle.cancel()
    assert (flight.stopping, handle.done()) == (True, False)
    flight.stop()
    assert steps.expect(handle, Cancelled).ambiguous
    assert flight.over
    with pytest.raises(ConfigurationError, match="it is over"):
        flight.answer()
    steps.finish()


def test_a_success_that_comes_too_late(steps: SteppedDispatcher) -> None:
    """It was asked to stop, and its answer was faster."""
    handle, flight = bind(steps)
    handle.cancel()
    flight.answer()
    assert steps.expect(handle, Cancelled).late_success == "n1"
    steps.finish()


def test_contexts(steps: SteppedDispatcher) -> None:
    """A new one ends the object's older one, and with it what was decided there."""
    first = steps.contexts.begin(pod_of(steps), requires=["volume"])
    handle = steps.submit(steps.cluster.bind(pod_of(steps), "n1", context=first))
    assert steps.start() is None
    first.confirm("volume")
    assert steps.start() is not None
    steps.contexts.begin(pod_of(steps), valid_until=steps.clock() + 5.0)
    with pytest.raises(StaleContext):
        steps.submit(steps.cluster.bind(pod_of(steps), "n2", context=first))
    steps.advance(0.1)
    steps.expect(handle, Cancelled)
    steps.finish()


def test_observing(steps: SteppedDispatcher) -> None:
    """Own writes are shown; a waiting patch is decided anew on what was seen, and the history knows it."""
    seen = pod_of(steps)
    steps.submit(steps.cluster.patch(seen, lambda pod: {"metadata": {"labels": {"v": pod["metadata"]["uid"][:2]}}}))
    newer = steps.server.patch_object(POD, {"metadata": {"annotations": {"rival": "1"}}})
    assert steps.observe(newer)["metadata"]["labels"] == {"v": seen["metadata"]["uid"][:2]}
    assert "call 1 is now Patch of Pod default/p" in steps.history_of()
    assert len(steps.overlay([newer], api_version="v1", kind="Pod")) == 1
    assert steps.forget(ObjectRef.of(newer), "gone") == 1
    steps.finish()


def test_a_typed_client_works_as_well(steps: SteppedDispatcher) -> None:
    """The generated methods of the client library, over the same connections."""
    api = kubernetes.CoreV1Api(steps.api_client)

    async def read(attempt: Attempt) -> Any:
        return (await api.read_namespaced_pod("p", "default")).metadata.name

    handle = steps.submit(FunctionCall(read, call_type="read", target=ObjectRef.of(POD), effect=Effect.READ))
    flight = steps.start()
    assert flight is not None
    flight.answer(instead(answers.throttled()))
    steps.settle()
    assert handle.result() == "p"
    steps.finish()


def test_code_that_needs_an_event_loop(steps: SteppedDispatcher) -> None:
    """Is told so at once, instead of failing as a call."""

    async def sleeps(attempt: Attempt) -> None:
        await asyncio.sleep(1.0)

    async def yields(attempt: Attempt) -> None:
        await asyncio.sleep(0)

    for number, function in enumerate((sleeps, yields)):
        steps.submit(FunctionCall(function, call_type="x", target=ObjectRef("v1", "Pod", "default", f"x{number}")))
        with pytest.raises(ConfigurationError, match="there is no event loop"):
            steps.start()


def test_nobody_waits_for_a_handle(steps: SteppedDispatcher) -> None:
    """But its callbacks are called, after the step in which it was settled."""
    handle, flight = bind(steps)
    with pytest.raises(RuntimeError, match="no event loop to wait in"):
        handle.outcome().send(None)
    told: list[Any] = []
    handle.add_done_callback(lambda settled: told.append(settled.result()))
    flight.answer()
    assert told == ["n1"]
    handle.add_done_callback(told.append)
    steps.finish()
    assert told == ["n1", handle]


def test_an_error_tells_the_history(steps: SteppedDispatcher) -> None:
    """Of the object that it is about, and of no other."""
    other = steps.submit(steps.cluster.read(ObjectRef("v1", "Pod", "default", "other")))
    handle, _ = bind(steps)
    steps.note("the test has something in mind", handle.call.target)
    with pytest.raises(AssertionError, match="call 2 ended as None, not as Overwritten") as caught:
        steps.expect(handle, Overwritten)
    (text,) = caught.value.__notes__
    assert "call 2 accepted: PodBinding of Pod default/p" in text
    assert "the test has something in mind" in text
    assert "Read of" not in text
    error = ValueError(f"something about call {other.ticket}")
    steps.explain(error)
    assert "Read of Pod default/other" in error.__notes__[0]
    assert "PodBinding" not in error.__notes__[0]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None])
def test_time_does_not_go_back(steps: SteppedDispatcher, seconds: Any) -> None:
    """Nor anywhere but on by a number of seconds."""
    for advance in (steps.advance, steps.stall, steps.driver.advance, steps.driver.stall, steps.driver.drain):
        with pytest.raises(ConfigurationError, match="seconds"):
            advance(seconds)


# -- what is checked on the way -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Make(APICall[Any]):
    """Creates a ConfigMap with a name of the server's choice; takes every lost answer for "not applied"."""

    call_type: str = "make"
    target: ObjectRef = ObjectRef("v1", "ConfigMap", "default", "made-*")
    effect: Effect = Effect.CREATE
    cluster: Any

    async def execute(self, attempt: Attempt) -> Any:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}}
        path = "/api/v1/namespaces/default/configmaps"
        return await self.cluster.transport.request("POST", path, attempt, body=body)

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Any:
        return Again(self)


@pytest.mark.parametrize("trouble", [lost(applied=True), lost(late=True)])
def test_a_create_that_is_done_twice(steps: SteppedDispatcher, trouble: Any) -> None:
    """L10, whether its first request lands before the second or after it."""
    steps.submit(Make(cluster=steps.cluster))
    flight = steps.start()
    assert flight is not None
    flight.answer(trouble)

    def go_on() -> None:
        steps.settle()
        steps.arrive(steps.stragglers[0])

    with pytest.raises(LawBroken, match="L10: call 1, a create, was applied twice"):
        go_on()


def test_the_laws_of_the_core_are_checked(steps: SteppedDispatcher) -> None:
    """L1: whoever tells the core of an attempt that there is not."""
    handle, flight = bind(steps)
    flight.answer()
    with pytest.raises(LawBroken, match="L1: call 1 is not in flight"):
        steps.driver.succeed(handle)


def test_settling_does_not_wait_for_what_it_could_answer(steps: SteppedDispatcher) -> None:
    """A call of several requests, one after another, takes none of its time."""
    api = kubernetes.CoreV1Api(steps.api_client)

    async def reads(attempt: Attempt) -> int:
        for _ in range(5):
            await api.read_namespaced_pod("p", "default")
        return 5

    handle = steps.submit(FunctionCall(reads, call_type="read", target=ObjectRef.of(POD), effect=Effect.READ))
    steps.settle()
    assert steps.expect(handle, Succeeded).elapsed_seconds == 0.0
