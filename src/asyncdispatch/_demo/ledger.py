"""What was lost and what was doubled: the dispatcher's calls joined to the server's audit list by `Audit-ID`.

The ledger writes down every call that was accepted and what its caller was told. The server writes down every request
and whether it changed anything. Nothing is lost if both tell the same story; nothing is doubled if no story is told
twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncdispatch import (
    APICall,
    CallHandle,
    Effect,
    Failed,
    Outcome,
    Overwritten,
    Skipped,
    Succeeded,
    VerdictKind,
)
from asyncdispatch.kubernetes import PodBinding
from asyncdispatch.testing import AuditRecord

__all__ = ["Count", "Ledger", "Told", "count"]

_AUDIT_ID = re.compile(r"(\d+)-(\d+)")
"""`<ticket>-<attempt>`."""


@dataclass(slots=True)
class Told:
    """One accepted call, and what its caller was told."""

    call: APICall[Any]
    outcome: Outcome[Any] | None = None
    times: int = 0
    """How often an outcome was told."""


class Ledger:
    """An observer of a dispatcher."""

    def __init__(self) -> None:
        self.calls: dict[int, Told] = {}

    def accepted(self, handle: CallHandle[Any]) -> None:
        self.calls[handle.ticket] = Told(handle.call)

    def settled(self, handle: CallHandle[Any], outcome: Outcome[Any]) -> None:
        told = self.calls[handle.ticket]
        told.outcome = outcome
        told.times += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What was found: `lost` and `doubled` have a sentence for each case."""

    requests: int
    """Sent for calls; listing is apart."""
    retried: int
    """Requests that were a second or later try of their call."""
    stale: int
    """Calls that were cancelled or too late, and whose write landed all the same: nobody got its result."""
    merged: int
    """Calls that a newer one of their type took in while they waited."""
    joined: int
    """Calls that were answered by the request of another."""
    superseded: int
    """Calls that were settled by the success of a more important type on the same object."""
    lost: tuple[str, ...]
    doubled: tuple[str, ...]


def count(
    calls: Mapping[int, Told], audit: Iterable[AuditRecord], pods: Sequence[Mapping[str, Any]], expected: int
) -> Count:
    """Join calls and audit. `pods` are all that there are in the end, of which there must be `expected`."""
    records = _by_ticket(audit)
    bound = Counter(
        (record.uid, record.body["target"]["name"])
        for found in records.values()
        for record in found
        if record.applied and record.verb == "bind"
    )
    lost = [*_lost_calls(calls, records, bound), *_lost_pods(pods, expected)]
    doubled = [*_doubled_calls(calls, records), *_doubled_pods(bound)]
    stale = sum(
        any(record.applied for record in records.get(ticket, ()))
        for ticket, told in calls.items()
        if told.outcome is not None and not isinstance(told.outcome, (Succeeded, Overwritten, Skipped, Failed))
    )
    merged = sum(_was_merged(told, calls) for told in calls.values())
    return Count(
        requests=sum(len(found) for found in records.values()),
        retried=sum(_is_retry(record, calls.get(ticket)) for ticket, found in records.items() for record in found),
        stale=stale,
        merged=merged,
        joined=sum(_was_joined(told, records.get(ticket, ())) for ticket, told in calls.items()),
        superseded=sum(isinstance(told.outcome, (Overwritten, Skipped)) for told in calls.values()) - merged,
        lost=tuple(lost),
        doubled=tuple(doubled),
    )


def _was_merged(told: Told, calls: Mapping[int, Told]) -> bool:
    if not isinstance(told.outcome, Overwritten):
        return False
    other = calls.get(told.outcome.by)
    return other is not None and other.call.call_type == told.call.call_type


def _was_joined(told: Told, own: Sequence[AuditRecord]) -> bool:
    return isinstance(told.outcome, Succeeded) and told.outcome.attempts > 0 and not own


def _by_ticket(audit: Iterable[AuditRecord]) -> dict[int, list[AuditRecord]]:
    found: dict[int, list[AuditRecord]] = {}
    for record in audit:
        matched = _AUDIT_ID.fullmatch(record.audit_id or "")
        if matched is not None:
            found.setdefault(int(matched[1]), []).append(record)
    return found


def _is_retry(record: AuditRecord, told: Told | None) -> bool:
    """A later try of the call itself. What a write reads is beside it."""
    matched = _AUDIT_ID.fullmatch(record.audit_id or "")
    beside = record.method == "GET" and told is not None and told.call.effect is not Effect.READ
    return matched is not None and int(matched[2]) > 1 and not beside


def _lost_calls(
    calls: Mapping[int, Told],
    records: Mapping[int, list[AuditRecord]],
    bound: Mapping[tuple[str | None, str], int],
) -> Iterable[str]:
    for ticket, told in calls.items():
        what = f"call {ticket} ({told.call!r})"
        outcome, own = told.outcome, records.get(ticket, [])
        if outcome is None:
            yield f"{what} has no outcome"
        elif isinstance(outcome, (Overwritten, Skipped)):
            if outcome.by not in calls:
                yield f"{what} gave way to call {outcome.by}, which was never accepted"
        elif isinstance(outcome, Succeeded):
            if told.call.effect is not Effect.READ and not _proven(told.call, outcome, own, bound):
                yield f"{what} succeeded, but the server has no such write"
        elif any(record.applied for record in own) and not _admitted(outcome, own):
            yield f"{what} ended as {type(outcome).__name__}, but the server has its write"


def _proven(
    call: APICall[Any],
    outcome: Succeeded[Any],
    own: Sequence[AuditRecord],
    bound: Mapping[tuple[str | None, str], int],
) -> bool:
    """The server applied the write, or showed that all was as it should be already."""
    if isinstance(call, PodBinding):
        return (call.target.uid, call.node) in bound
    if not outcome.attempts:
        return True  # the object that it was decided on showed it
    return any(record.applied or record.status in (200, 201) for record in own)


def _admitted(outcome: Outcome[Any], own: Sequence[AuditRecord]) -> bool:
    """The caller knows that the write may be there, or was told by a later look that it is not there any more."""
    if outcome.ambiguous or outcome.late:
        return True
    if not isinstance(outcome, Failed):
        return False
    landed = max(record.number for record in own if record.applied)
    looked = any(record.number > landed and record.status == 200 and record.method == "GET" for record in own)
    return looked or outcome.verdict.kind is VerdictKind.GONE


def _lost_pods(pods: Sequence[Mapping[str, Any]], expected: int) -> Iterable[str]:
    for pod in pods:
        if not pod["spec"].get("nodeName"):
            yield f"Pod {pod['metadata']['name']} is on no node"
    for _ in range(expected - len(pods)):
        yield "a Pod is gone"


def _doubled_calls(calls: Mapping[int, Told], records: Mapping[int, list[AuditRecord]]) -> Iterable[str]:
    for ticket, found in records.items():
        applied = sum(record.applied for record in found)
        if applied > 1:
            yield f"call {ticket} was applied {applied} times"
    for ticket, told in calls.items():
        if told.times > 1:
            yield f"call {ticket} was told {told.times} outcomes"


def _doubled_pods(bound: Mapping[tuple[str | None, str], int]) -> Iterable[str]:
    bindings: Counter[str | None] = Counter()
    for (uid, _), times in bound.items():
        bindings[uid] += times
    for uid, times in bindings.items():
        if times > 1:
            yield f"the Pod with uid {uid} was bound {times} times"
