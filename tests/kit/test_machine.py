"""`DispatcherMachine` and the strategies: what they do by themselves, and what they tell of a failure."""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

from asyncdispatch import APICall, ConfigurationError, Dispatcher, DispatcherConfig, FunctionCall, ObjectRef, Verdict
from asyncdispatch.kubernetes import PodBinding
from asyncdispatch.testing import DispatcherMachine, Trouble, strategies

QUICK = settings(
    max_examples=25,
    stateful_step_count=25,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SHRUNK = settings(QUICK, max_examples=100, phases=[Phase.generate, Phase.shrink])


class Shipped(DispatcherMachine):
    """The call types of this library keep what they promise."""

    objects = (strategies.pod("a"), strategies.pod("b"))

    def calls(self) -> SearchStrategy[APICall[Any]]:
        cluster, pods = self.cluster, st.sampled_from(self.stored)
        label = st.sampled_from("xy").map(lambda name: {"metadata": {"labels": {name: "1"}}})
        conditions = st.sampled_from("AB").map(lambda name: [{"type": name, "status": "True"}])
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}}
        return st.one_of(
            st.builds(cluster.bind, pods, st.sampled_from(["n1", "n2"]), context=self.contexts()),
            st.builds(lambda pod, said: cluster.patch_status(pod, conditions=said), pods, conditions),
            st.builds(cluster.patch, pods, label),
            st.builds(cluster.create, st.just(made), idempotency_key=st.sampled_from([None, "k"])),
            st.builds(cluster.read, pods),
            st.builds(cluster.delete, pods),
        )


def test_the_shipped_call_types() -> None:
    """Whatever happens to them."""
    run_state_machine_as_test(Shipped, settings=QUICK)


def test_calls_must_be_defined() -> None:
    """By name."""
    with pytest.raises(NotImplementedError, match="DispatcherMachine does not define `calls`"):
        DispatcherMachine().calls()


class Refuted(Shipped):
    """An author's own rule and expectation, which is wrong: nobody binds Pods."""

    recreates = False

    def calls(self) -> SearchStrategy[APICall[Any]]:
        return st.sampled_from(self.stored).map(lambda pod: self.cluster.bind(pod, "n1"))

    def troubles(self) -> SearchStrategy[Trouble | None]:
        return st.none()

    def settled(self) -> None:
        bound = [handle for handle in self.handles if isinstance(handle.call, PodBinding)]
        for handle in bound:
            assert not handle.done(), f"call {handle.ticket} has ended"


def test_a_failure_is_small_and_tells_the_history() -> None:
    """Hypothesis finds the shortest run; the error tells what happened to the object that it speaks of."""
    with pytest.raises(AssertionError, match="call 1 has ended") as caught:
        run_state_machine_as_test(Refuted, settings=SHRUNK)
    notes = "\n".join(caught.value.__notes__)
    assert "history of Pod default/a" in notes
    assert "call 1 is told Succeeded (value 'n1')" in notes
    assert notes.count("cluster.bind(") == 1
    assert "state.rival_changes(" not in notes


EVENTS = {
    "lost(",
    "unsent(",
    "instead(",
    "(reconcile",
    "a rival writes",
    "anew as",
    "lands (409",
    "begins",
    "starts",
}


class Watched(Shipped):
    """Takes note of what happens, by an invariant of its own."""

    met: set[str] = set()

    @invariant()
    def look(self) -> None:
        happened = self.dispatcher.history_of()
        self.met |= {event for event in EVENTS if event in happened}


def test_runs_meet_everything() -> None:
    """Every kind of trouble, conflicts, reconciling, rivals, contexts: within a few runs."""
    run_state_machine_as_test(Watched, settings=settings(QUICK, max_examples=60))
    assert Watched.met == EVENTS


# -- strategies -----------------------------------------------------------------------------------------------------


@settings(QUICK, max_examples=100)
@given(
    strategies.refs(),
    strategies.pods(),
    strategies.calls(PodBinding, target=ObjectRef("v1", "Pod", "ns", "p", "u"), node=st.just("n"), transport=None),
    strategies.calls(FunctionCall, fn=st.just(print), call_type="x", target=strategies.refs()),
    strategies.verdicts(),
    strategies.errors(),
    strategies.configs(),
    strategies.schedules(strategies.refs()),
)
def test_what_is_drawn_can_be_meant(
    ref: ObjectRef,
    pod: dict[str, Any],
    call: PodBinding,
    own: FunctionCall[Any],
    verdict: Verdict,
    error: Exception,
    config: DispatcherConfig,
    schedule: list[tuple[float, ObjectRef]],
) -> None:
    """By those who check it."""
    assert ref.uid is None
    assert ObjectRef.of(pod).namespace == "default"
    assert call.node == "n"
    assert own.call_type == "x"
    assert isinstance(error, Exception)
    Dispatcher(config)
    assert all(seconds >= 0 for seconds, _ in schedule)


def test_what_is_simple_comes_first() -> None:
    """So that a failing run shrinks to the plain case: no trouble, no pause, nothing but the fields of the test."""
    assert find(strategies.troubles(), lambda _: True) is None
    assert find(strategies.pauses(), lambda _: True) == 0.0
    assert find(strategies.call_fields(), lambda _: True) == {}
    assert find(strategies.priorities(), lambda _: True) == 0


def test_fields_that_are_none() -> None:
    """Are refused by name."""
    with pytest.raises(ConfigurationError, match="'node': is no field of APICall"):
        strategies.call_fields(node=st.just("n"))
