"""Outcomes are frozen values that tell the same story whatever their kind."""

import typing
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from asyncdispatch import (
    Again,
    Applied,
    Cancelled,
    Expired,
    Failed,
    Outcome,
    Overwritten,
    Shed,
    Skipped,
    Succeeded,
    Verdict,
    VerdictKind,
)
from tests.shell import call

OUTCOMES: list[tuple[type, dict[str, Any]]] = [
    (Succeeded, {"value": 1}),
    (Failed, {"error": OSError("x"), "verdict": Verdict(VerdictKind.PERMANENT)}),
    (Skipped, {"by": 3}),
    (Overwritten, {"by": 3}),
    (Expired, {"where": "queued"}),
    (Cancelled, {"reason": "why"}),
    (Shed, {"reason": "room"}),
]


@pytest.mark.parametrize(("kind", "own"), OUTCOMES)
def test_every_outcome_tells_the_same_story(kind: type, own: dict[str, Any]):
    """Besides its own fields: attempts, times, doubt, a success that came too late, and the last error."""
    story = {"attempts", "queued_seconds", "elapsed_seconds", "ambiguous", "late", "late_success", "cause"}
    assert {field.name for field in fields(kind)} == story | set(own)
    outcome = kind(*own.values())
    assert [getattr(outcome, name) for name in own] == list(own.values())
    assert (outcome.attempts, outcome.queued_seconds, outcome.elapsed_seconds) == (0, 0.0, 0.0)
    assert (outcome.ambiguous, outcome.late, outcome.late_success, outcome.cause) == (False, False, None, None)


@pytest.mark.parametrize(("kind", "own"), OUTCOMES)
def test_an_outcome_is_frozen_and_final(kind: type, own: dict[str, Any]):
    outcome = kind(*own.values())
    assert outcome == kind(*own.values())
    with pytest.raises(FrozenInstanceError):
        outcome.attempts = 3
    assert getattr(kind, "__final__", False)


def test_outcomes_are_matched_by_their_own_field():
    """`case Failed(error=…)` and `case Expired("queued")` both work."""
    match typing.cast("Outcome[int]", Expired("queued", attempts=2)):
        case Expired(where=where, attempts=attempts):
            assert (where, attempts) == ("queued", 2)
        case _:
            pytest.fail("not matched")


@pytest.mark.parametrize(("kind", "own"), [*OUTCOMES, (Applied, {"value": 1}), (Again, {"call": call()})])
def test_generic_values_can_be_made_with_their_type_parameter(kind: Any, own: dict[str, Any]):
    assert kind[int](*own.values()) == kind(*own.values())


def test_outcome_is_the_union_of_the_seven():
    assert {typing.get_origin(part) for part in typing.get_args(Outcome)} == {kind for kind, _ in OUTCOMES}
