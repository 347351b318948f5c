"""The tree of exceptions, and what each of them carries."""

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

import asyncdispatch
from asyncdispatch import (
    AmbiguousOutcome,
    AsyncDisabled,
    Backpressure,
    CallCancelled,
    CallFailed,
    CallOverwritten,
    CallShed,
    CallSkipped,
    Cancelled,
    ConfigurationError,
    DeadlineExpired,
    DispatcherClosed,
    DispatchError,
    MergeFailed,
    OutcomeError,
    PrerequisiteFailed,
    RefusedError,
    StaleContext,
    errors,
)


def test_all_errors_are_under_one_root():
    found = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]
    assert {error.__name__ for error in found} == set(errors.__all__)
    assert all(issubclass(error, DispatchError) for error in found)
    assert set(errors.__all__) <= set(asyncdispatch.__all__)


def test_the_drawn_tree_is_the_real_one():
    """The picture in the module's docstring names each class below its parent."""
    parents: dict[int, str] = {}
    drawn: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        stripped = line.strip(" │├└─")
        name = stripped.split(" ")[0] if stripped else ""
        if name in errors.__all__:
            depth = line.index(name) // 4
            parents[depth] = name
            if depth > 1:
                drawn[name] = parents[depth - 1]
    actual = {name: getattr(errors, name).__mro__[1].__name__ for name in errors.__all__ if name != "DispatchError"}
    assert drawn == actual


@pytest.mark.parametrize("error", [Backpressure, StaleContext, AsyncDisabled, DispatcherClosed, MergeFailed])
def test_a_refused_call_was_not_accepted(error: type[Exception]):
    assert issubclass(error, RefusedError)
    assert not issubclass(error, OutcomeError)


@pytest.mark.parametrize("error", [CallFailed, CallSkipped, CallOverwritten, DeadlineExpired, CallCancelled, CallShed])
def test_an_outcome_error_carries_the_outcome(error: type[OutcomeError]):
    outcome = Cancelled[None]("why")
    assert issubclass(error, OutcomeError)
    assert error("text", outcome).outcome is outcome


def test_failures_of_both_kinds_are_call_failures():
    assert issubclass(AmbiguousOutcome, CallFailed)
    assert issubclass(PrerequisiteFailed, CallFailed)
    assert PrerequisiteFailed("text", "volume").name == "volume"


def test_backpressure_says_when_to_come_back_and_what_was_full():
    error = Backpressure(1.25, 95, 100, "flow")
    assert (error.retry_after, error.depth, error.capacity, error.scope) == (1.25, 95, 100, "flow")
    assert str(error) == "flow is full (95 of 100); retry after 1.25 s"


def test_a_configuration_error_is_a_value_error_with_a_remedy():
    error = ConfigurationError("capacity", 0, "must be 1 or more")
    assert isinstance(error, ValueError)
    assert str(error) == "capacity=0: must be 1 or more"
    assert (error.field, error.value, error.remedy) == ("capacity", 0, "must be 1 or more")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize(
    "error",
    [
        Backpressure(1.5, 3, 4, "flow"),
        ConfigurationError("field", 3, "must be less"),
        CallCancelled("call 1 was cancelled", Cancelled("enough")),
        PrerequisiteFailed("it failed", "volume"),
        StaleContext("it has ended"),
    ],
)
def test_errors_can_be_copied_and_pickled(error: DispatchError, copied: Callable[[DispatchError], DispatchError]):
    again = copied(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_the_public_names_are_there():
    """The package exports what it lists, sorted as the linter wants it, and nothing else of its own."""
    assert len(set(asyncdispatch.__all__)) == len(asyncdispatch.__all__)
    for name in asyncdispatch.__all__:
        assert getattr(asyncdispatch, name) is not None
