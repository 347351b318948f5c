"""The audit that ends each proof: one outcome for every accepted call, and a cluster that agrees with the outcomes.

It takes nobody's word: outcomes come from an observer, the cluster's state from reads past the dispatcher, and what was
carried out from the server's own log, where requests are known by their Audit-ID, which begins with the call's ticket.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncdispatch.calls import Effect
from asyncdispatch.kubernetes.creation import Create
from asyncdispatch.kubernetes.events import Event
from asyncdispatch.kubernetes.marks import MARK, is_dying
from asyncdispatch.kubernetes.objects import field_of
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


@dataclass(frozen=True)
class Violation:
    """Where the cluster, or the ledger itself, does not agree with an outcome."""

    kind: str
    """lost: no outcome, or not done; doubled: more than once; untold: done, and told as not done."""
    text: str


async def audit(ledger: Ledger, items: LIST_ITEMS, carried: Iterable[Carried]) -> None:
    """Assert that the cluster agrees with the ledger. `items` lists what is at a collection's path."""
    found = await violations(ledger, items, list(carried))
    assert not found, "\n".join(f"{one.kind}: {one.text}" for one in found[:20])


async def violations(ledger: Ledger, items: LIST_ITEMS, writes: Iterable[Carried]) -> list[Violation]:
    """Where the cluster does not agree with the ledger.

    A call that succeeded is done, one that did not is not, one whose end is ambiguous is either; and however it ended,
    nothing was created or bound twice for it. Each write of a proof must ask for something of its own.
    """
    assert ledger.calls, "no call was accepted: there is nothing to prove"
    done_for: Counter[int | None] = Counter()
    posted: Counter[int | None] = Counter()
    for write in writes:
        done_for[write.ticket] += 1
        posted[write.ticket] += write.verb in ("create", "bind")
    state = {path: _Objects(await items(path)) for path in {_collection(call) for call in ledger.calls.values()}}
    removals = [call.target for ticket, call in ledger.calls.items() if _removes(call, ledger.outcomes[ticket])]
    removed = {target.name for target in removals} | {target.uid for target in removals if target.uid}
    found: list[Violation] = []
    for ticket, call in ledger.calls.items():
        ends = ledger.outcomes[ticket]
        about = f"{call!r} (ticket {ticket}): {', '.join(map(repr, ends))}"
        if len(ends) != 1:
            found.append(Violation("doubled" if ends else "lost", f"not one outcome each: {about}"))
        elif call.effect is not Effect.READ:
            gone = not removed.isdisjoint((call.target.name, _uid(ends[0])))
            shown = state[_collection(call)]
            found += _compare(call, ends[0], shown, done_for[ticket], posted[ticket], about, gone=gone)
    return found


def _compare(
    call: Any, end: Any, objects: _Objects, done_for: int, posted: int, about: str, *, gone: bool
) -> Iterator[Violation]:
    """One write with one outcome; `gone` says that its object was removed."""
    if posted > 1:
        yield Violation("doubled", f"carried out {posted} times: {about}")
    there = _done(call, end, objects)
    if there > 1:
        yield Violation("doubled", f"there {there} times: {about}")
    if isinstance(end, Succeeded):
        if not there and (not gone or isinstance(call, (Delete, Evict))):
            yield Violation("lost", f"succeeded, and the cluster does not show it: {about}")
    elif not (end.ambiguous or end.late):
        if done_for:
            yield Violation("untold", f"carried out all the same: {about}")
        # What was merged into a later call is done by that one; what was to go may have gone before.
        others = isinstance(end, (Overwritten, Skipped)) or isinstance(call, (Delete, Evict))
        if there and not others:
            yield Violation("untold", f"did not succeed, and the cluster shows it: {about}")


class _Objects:
    """What is in a collection, by name, and how often by mark."""

    def __init__(self, objects: list[Json]) -> None:
        self.named = {obj["metadata"]["name"]: obj for obj in objects}
        self.marked = Counter(field_of(obj, "metadata", "annotations", MARK) for obj in objects)


def _removes(call: Any, ends: list[Any]) -> bool:
    return isinstance(call, (Delete, Evict)) and any(
        isinstance(end, Succeeded) or end.ambiguous or end.late for end in ends
    )


def _uid(end: Any) -> Any:
    """Of the object that a success has answered with."""
    return field_of(end.value, "metadata", "uid") if isinstance(end, Succeeded) else None


def _collection(call: Any) -> str:
    resource = builtin(call.target)
    assert resource is not None, f"the audit knows built-in kinds only, not {call.target}"
    return collection_path(call.target, resource)


def _done(call: Any, end: Any, objects: _Objects) -> int:
    """How often the cluster shows what the call asks for."""
    if isinstance(call, Create) and call.idempotency_key is not None:
        return objects.marked[str(call.idempotency_key)]
    if isinstance(call, Event):
        return int(call.body()["metadata"]["name"] in objects.named)
    named = objects.named.get(call.target.name)
    if isinstance(call, Create):
        return int(named is not None and named["metadata"]["uid"] == _uid(end))
    ours = named if named is not None and call.target.uid in (None, named["metadata"]["uid"]) else None
    if isinstance(call, (Delete, Evict)):
        return int(ours is None or is_dying(ours))
    if ours is None:
        return 0
    if isinstance(call, PodBinding):
        return int(ours["spec"].get("nodeName") == call.node)
    head = {"apiVersion": call.target.api_version, "kind": call.target.kind}  # items of a list lack both
    return int(call.apply({**head, **ours}) == {**head, **ours})


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
        whole = "--audit-log-maxsize=100000"  # else it begins another file after 100 MB
        self.flags = [f"--audit-policy-file={policy}", f"--audit-log-path={self._path}", whole]

    def carried(self, namespace: str) -> list[Carried]:
        """The writes in a namespace that were answered as done. A server that was killed may owe some."""
        found = []
        with self._path.open("rb") as log:
            for line in log:
                if not line.endswith(b"\n") or namespace.encode() not in line:
                    continue
                entry = _read(line)
                if entry.get("objectRef", {}).get("namespace") == namespace and _answered_well(entry):
                    found.append(Carried(entry["auditID"], _verb(entry), entry["userAgent"]))
        return found


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
