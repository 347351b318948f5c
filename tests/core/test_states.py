"""The one transition table: complete, acyclic where it must be, enforced, and drawn as it is."""

import runpy
from pathlib import Path

import pytest

from asyncdispatch._core.states import (
    NEVER,
    PLACE_SHIFT,
    TERMINAL,
    TRANSITIONS,
    WAITING,
    CallState,
    InvariantError,
    place_of,
)
from tests.core.driver import Driver
from tests.core.words import START

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    """`python docs/generate_states.py` writes it anew."""
    expected = runpy.run_path(str(DOCS / "generate_states.py"))["page"]()
    assert (DOCS / "design" / "states.md").read_text(encoding="utf-8") == expected


def test_every_state_has_a_row() -> None:
    """No state is forgotten; an outcome is the end (law L1); every other state has a way to each kind of end."""
    assert set(TRANSITIONS) == set(CallState)
    for state in CallState:
        assert (TRANSITIONS[state] == ()) == (state in TERMINAL)
        if state not in TERMINAL and state is not CallState.ACCEPTED:
            assert {CallState.EXPIRED, CallState.CANCELLED, CallState.FAILED} <= set(TRANSITIONS[state])


def test_only_a_queued_call_starts() -> None:
    """Law L5: there is one way into flight, and a call that was being stopped may go on."""
    into = {state for state, following in TRANSITIONS.items() if CallState.IN_FLIGHT in following}
    assert into == {CallState.QUEUED, CallState.STOPPING}


def test_success_needs_an_attempt() -> None:
    """Only what flies, has joined, or is answered at once can succeed; only what waits is shed or skipped."""
    into = {state for state, following in TRANSITIONS.items() if CallState.SUCCEEDED in following}
    assert into == {CallState.ACCEPTED, CallState.IN_FLIGHT, CallState.JOINED}
    shed = {state for state, following in TRANSITIONS.items() if CallState.SHED in following}
    assert shed == set(WAITING)
    skipped = {state for state, following in TRANSITIONS.items() if CallState.SKIPPED in following}
    assert skipped == {*WAITING, CallState.JOINED}


def test_no_other_transition_is_possible() -> None:
    """`Entry.move` refuses what the table does not have, and leaves the state as it is."""
    entry = Driver().submit()
    for state in CallState:
        if state not in TRANSITIONS[CallState.QUEUED]:
            with pytest.raises(InvariantError, match="can't go"):
                entry.move(state)
            assert entry.phase is CallState.QUEUED


def test_places_order_by_time_then_ticket() -> None:
    """Law L6: comparing places compares times of acceptance, then tickets; the time can be read back."""
    assert place_of(START, 2) < place_of(START, 3) < place_of(START + 1, 1) < NEVER
    assert place_of(START, 7) >> PLACE_SHIFT == START
