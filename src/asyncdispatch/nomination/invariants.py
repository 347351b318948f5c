"""What must be true of the machine between two steps. The numbers are those of the laws in `states.py`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncdispatch.nomination.states import LIVE, Flight, Life, NominationError, NominationState

if TYPE_CHECKING:
    from asyncdispatch.nomination.machine import Nominations

__all__ = ["check_invariants"]

S = NominationState


def check_invariants(machine: Nominations, now: float) -> None:
    """Raise `NominationError` for the first law that is broken."""
    _check_tables(machine)
    for life in machine.lives.values():
        _check_life(machine, life, now)
    if machine.off is not None:
        _require(
            all(life.phase is not S.PLANNED for life in machine.lives.values()), "N10: something waits to be written"
        )
    for uid, count in machine._sets.items():
        _require(count <= machine.policy.writes_per_pod, f"N13: {count} sets of Pod {uid}")
    for uid, hinted in machine._hinted.items():
        _require(hinted >= 0, f"N16: Pod {uid} was hinted for {hinted} s")


def _require(good: bool, what: str) -> None:
    if not good:
        raise NominationError(what)


def _check_tables(machine: Nominations) -> None:
    by_uid = {life.uid: life for life in machine.lives.values()}
    _require(len(by_uid) == len(machine.lives), "N6: two live decisions for one Pod")
    _require(by_uid == machine.by_uid, "N6: the table by uid differs")
    held = {key: life for hints in machine.room.hints.values() for key, life in hints.items()}
    _require(held == machine.lives, "N11: the ledger differs from the live decisions")
    ended = sum(machine.counts.values())
    _require(machine.started == ended + len(machine.lives), "N9: the counters do not add up")
    flying = {life.flight_number: life for life in machine.lives.values() if life.flight is not None}
    _require(flying == machine._flights, "something is asked for a decision that is over, or twice")
    entries = sum(len(pods) for pods in [*machine.room._bound.values(), *machine.room._nominated.values()])
    expected = sum(1 for pod in machine.room.pods.values() if (pod.node or pod.nominated) and not pod.finished)
    _require(entries == expected, "N11: the ledger of Pods differs from the Pods")


def _check_life(machine: Nominations, life: Life, now: float) -> None:
    _require(life.phase in LIVE and life.outcome is None, f"N9: {life!r} is live and has ended")
    _require((life.phase is S.ADOPTED) == (life.slept_since is not None), f"N15: {life!r} sleeps, or does not")
    if life.phase is S.ADOPTED:
        _require(life.flight is None, f"N5: {life!r} is written to while ADOPTED")
        assert life.adoption_deadline is not None
        _require(now < life.adoption_deadline, f"N15: {life!r} is ADOPTED for too long")
    if life.phase is S.NOMINATED:
        _require(life.flight is None, f"{life!r} waits for {life.flight}")
        _require(now < life.expires_at, f"N8: {life!r} stands beyond its TTL")
        _require(life.release is None, f"N14: {life!r} is to be taken back, and stands")
    if life.flight is Flight.SET:
        _require(life.phase is S.WRITING and bool(life.version), f"N1: {life!r} writes without a fence")
    if life.flight is Flight.CLEAR:
        _require(life.phase is S.RELEASING and bool(life.version), f"N1: {life!r} writes without a fence")
    waiting = life.phase in (S.PLANNED, S.WRITING, S.RELEASING) and life.flight is None
    queued = life in machine._plans or life in machine._releases
    timed = any(other is life for _, _, other in machine._timers)
    _require(not waiting or queued or timed, f"{life!r} waits for nothing")
