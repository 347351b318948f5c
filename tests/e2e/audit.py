"""The audit that ends each proof: one outcome for every accepted call, and a cluster that agrees with the outcomes.

It takes nobody's word: outcomes come from an observer, the cluster's state from reads past the dispatcher, and what was
carried out from the server's own log, where requests are known by their Audit-ID, which begins with the call's ticket.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncdispatch.kubernetes.creation import Create
from asyncdispatch.kubernetes.marks import is_dying, is_marked
from asyncdispatch.kubernetes.pods import PodBinding
from asyncdispatch.kubernetes.removal import Delete, Evict
from asyncdispatch.kubernetes.resources import builtin, collection_path
from asyncdispatch.outcomes import Failed, Overwritten, Skipped, Succeeded

Json = dict[str, Any]
LIST_ITEMS = Callable[[str], Awaitable[list[Json]]]


@dataclass(frozen=True)
class Carried:
    """A write that the server carried out."""

    audit_id: str
    verb: str
    agent: str
    """The User-Agent. Dispatchers count their tickets alike, so each has a name of its own."""

    @property
    def ticket(self) -> int | None:
        """The call's, if it was sent by a dispatcher."""
        number = self.audit_id.partition("-")[0]
        return int(number) if number.isdigit() and len(number) < 8 else None


@dataclass
class Ledger:
    """An observer that keeps every accepted call and what it is told of its end."""

    calls: dict[int, Any] = field(default_factory=dict)
    outcomes: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def accepted(self, handle: Any) -> None:
        self.calls[handle.ticket] = handle.call

    def settled(self, handle: Any, outcome: Any) -> None:
        self.outcomes[handle.ticket].append(outcome)

    def count(self) -> Counter[str]:
        """How many calls ended in which way; ambiguous ones apart."""
        ends = [found[0] for found in self.outcomes.values()]
        return Counter(f"{'ambiguous ' if end.ambiguous else ''}{type(end).__name__}" for end in ends)


async def audit(ledger: Ledger, items: LIST_ITEMS, carried: Iterable[Carried]) -> None:
    """Assert that the cluster agrees with the ledger. `items` lists what is at a collection's path.

    A call that succeeded is done, one that did not is not, one whose end is ambiguous is either; and however it ended,
    nothing was created or bound twice for it. Each write of a proof must ask for something of its own.
    """
    assert ledger.calls, "no call was accepted: there is nothing to prove"
    told = {ticket: len(ledger.outcomes[ticket]) for ticket in ledger.calls}
    assert set(told.values()) == {1}, f"not one outcome each: { {t: n for t, n in told.items() if n != 1} }"
    writes = list(carried)
    done_for = Counter(write.ticket for write in writes)
    posted = Counter(write.ticket for write in writes if write.verb in ("create", "bind"))
    state = await _state(ledger, items)
    removed = {call.target.name for ticket, call in ledger.calls.items() if _removes(call, ledger.outcomes[ticket][0])}
    for ticket, call in ledger.calls.items():
        (end,) = ledger.outcomes[ticket]
        about = f"{call!r} (ticket {ticket}): {end!r}"
        assert posted[ticket] <= 1, f"carried out {posted[ticket]} times: {about}"
        found = _done(call, end, state[_collection(call)])
        assert found <= 1, f"there {found} times: {about}"
        if isinstance(end, Succeeded):
            undone = call.target.name in removed and not _removes(call, end)
            assert found == 1 or undone, f"succeeded, and the cluster does not show it: {about}"
        elif not end.ambiguous and end.late_success is None:
            assert not done_for[ticket], f"carried out all the same: {about}"
            # What was merged into a later call is done by that one; what was to go may have gone before.
            others = isinstance(end, (Overwritten, Skipped)) or isinstance(call, (Delete, Evict))
            assert others or not found, f"did not succeed, and the cluster shows it: {about}"


async def _state(ledger: Ledger, items: LIST_ITEMS) -> dict[str, list[Json]]:
    return {path: await items(path) for path in {_collection(call) for call in ledger.calls.values()}}


def _removes(call: Any, end: Any) -> bool:
    return isinstance(call, (Delete, Evict)) and isinstance(end, Succeeded)


def _collection(call: Any) -> str:
    resource = builtin(call.target)
    assert resource is not None, f"the audit knows built-in kinds only, not {call.target}"
    return collection_path(call.target, resource)


def _done(call: Any, end: Any, objects: list[Json]) -> int:
    """How often the cluster shows what the call asks for."""
    if isinstance(call, Create) and call.idempotency_key is not None:
        return sum(is_marked(obj, str(call.idempotency_key)) for obj in objects)
    named = [obj for obj in objects if obj["metadata"]["name"] == call.target.name]
    if isinstance(call, Create):
        uid = end.value["metadata"]["uid"] if isinstance(end, Succeeded) else None
        return sum(obj["metadata"]["uid"] == uid for obj in objects)
    ours = [obj for obj in named if call.target.uid in (None, obj["metadata"]["uid"])]
    if isinstance(call, (Delete, Evict)):
        return int(not ours or is_dying(ours[0]))
    if isinstance(call, PodBinding):
        return sum(obj["spec"].get("nodeName") == call.node for obj in ours)
    head = {"apiVersion": call.target.api_version, "kind": call.target.kind}  # items of a list lack both
    return sum(call.apply({**head, **obj}) == {**head, **obj} for obj in ours)


def permanent(end: Any, says: str) -> bool:
    """It failed for good, was not applied, and says why."""
    return isinstance(end, Failed) and not end.ambiguous and says in str(end.error)


class AuditLog:
    """The audit log of a kube-apiserver, which it writes before it answers. `flags` make it write one."""

    def __init__(self, folder: Path) -> None:
        policy = folder / "audit-policy.json"
        rules = [{"level": "Metadata", "verbs": ["create", "update", "patch", "delete"]}, {"level": "None"}]
        head = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
        policy.write_text(json.dumps(head | {"rules": rules}))
        self._path = folder / "audit.log"
        self.flags = [f"--audit-policy-file={policy}", f"--audit-log-path={self._path}"]

    def carried(self, namespace: str) -> list[Carried]:
        """The writes in a namespace that were answered as done. A server that was killed may owe some."""
        with self._path.open("rb") as log:
            lines = [line for line in log if line.endswith(b"\n") and namespace.encode() in line]
        entries = [entry for entry in map(_read, lines) if entry.get("objectRef", {}).get("namespace") == namespace]
        done = [entry for entry in entries if _answered_well(entry)]
        return [Carried(entry["auditID"], _verb(entry), entry["userAgent"]) for entry in done]


def _read(line: bytes) -> Json:
    try:
        entry: Json = json.loads(line)
    except ValueError:  # a server was killed in the middle of it
        return {}
    return entry


def _answered_well(entry: Json) -> bool:
    return bool(entry["stage"] == "ResponseComplete" and entry.get("responseStatus", {}).get("code", 500) < 300)


def _verb(entry: Json) -> str:
    return "bind" if entry["objectRef"].get("subresource") == "binding" else str(entry["verb"])
