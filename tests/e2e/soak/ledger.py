"""What was accepted and how it ended, on disk: whoever asks whether memory is flat can't keep it all in memory."""

from __future__ import annotations

import asyncio
import pickle
import queue
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from asyncdispatch import outcomes as endings
from asyncdispatch.calls import Verdict, VerdictKind
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.kubernetes.transport import Transport
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Overwritten, Shed, Skipped, Succeeded
from tests.e2e.audit import Ledger

Expected = Callable[[Any, Any], bool]
SHOWN = 20
"""So many unexpected ends are told."""


class DiskLedger:
    """An observer. `expected(call, outcome)` says whether a call may end so; those that may not are `unexpected`."""

    def __init__(self, path: Path, agent: str, expected: Expected) -> None:
        self.agent = agent
        self.counts: Counter[tuple[str, str]] = Counter()
        """Outcomes by call type and kind."""
        self.unexpected: list[str] = []
        self._path = path
        self._expected = expected
        self._records: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._writer = threading.Thread(target=self._write, name=f"ledger {agent}", daemon=True)
        self._writer.start()

    def accepted(self, handle: Any) -> None:
        self._records.put((handle.ticket, handle.call, None))

    def settled(self, handle: Any, outcome: Any) -> None:
        call = handle.call
        kind = f"{'ambiguous ' if outcome.ambiguous else ''}{type(outcome).__name__}"
        self.counts[call.call_type, kind] += 1
        if not self._expected(call, outcome) and len(self.unexpected) < SHOWN:
            self.unexpected.append(f"{call!r} of {self.agent} (ticket {handle.ticket}): {outcome!r}")
        self._records.put((handle.ticket, None, _brief(outcome)))

    def _write(self) -> None:
        """In a thread, so that what the ledger costs is not held against the event loop."""
        with self._path.open("wb") as file:
            pickler = _Pickler(file)
            while (record := self._records.get()) is not None:
                try:
                    pickler.dump(record)
                except Exception as error:
                    self._error = error
                pickler.clear_memo()

    async def close(self) -> None:
        self._records.put(None)
        await asyncio.to_thread(self._writer.join)
        if self._error is not None:
            raise self._error

    def load(self, cluster: Cluster) -> Ledger:
        """All of it again. What belonged to the dispatcher's own world, its contexts, is None; outcomes are brief."""
        ledger = Ledger()
        with self._path.open("rb") as file:
            while file.peek(1):
                ticket, call, brief = _Unpickler(file, cluster).load()  # each was pickled by itself
                if call is not None:
                    ledger.calls[ticket] = call
                else:
                    ledger.outcomes[ticket].append(_whole(*brief))
        return ledger


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> str | None:
        """What is not a call's own, but of the process that makes it."""
        for kind in (Transport, Cluster, SchedulingContext):
            if isinstance(obj, kind):
                return kind.__name__
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], cluster: Cluster) -> None:
        super().__init__(file)
        self._known = {"Transport": cluster.transport, "Cluster": cluster, "SchedulingContext": None}

    def persistent_load(self, pid: str) -> Any:
        return self._known[pid]


def _brief(outcome: Any) -> tuple[str, dict[str, Any], Any]:
    """Its kind, what it shares with others, and what is its own; an error as text."""
    cause = None if outcome.cause is None else str(outcome.cause)[:300]
    shared = {"attempts": outcome.attempts, "ambiguous": outcome.ambiguous, "late": outcome.late, "cause": cause}
    own: Any
    match outcome:
        case Succeeded(value=value):
            named = isinstance(value, dict) and "uid" in value.get("metadata", {})
            own = {"metadata": {"uid": value["metadata"]["uid"]}} if named else None
        case Failed(error=error):
            own = str(error)[:300]
        case Skipped(by=by) | Overwritten(by=by):
            own = by
        case Expired(where=why) | Cancelled(reason=why) | Shed(reason=why):
            own = why
    return type(outcome).__name__, shared, own


def _whole(kind: str, shared: dict[str, Any], own: Any) -> Any:
    cause = None if shared["cause"] is None else RuntimeError(shared["cause"])
    if kind == "Failed":
        return Failed(RuntimeError(own), Verdict(VerdictKind.PERMANENT), **{**shared, "cause": cause})
    return getattr(endings, kind)(own, **{**shared, "cause": cause})
