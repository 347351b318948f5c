"""A Lease as others see it: who holds it, and for how long.

A Lease names its holder by an identity. Two lives of one process may have the same, so a participant also tells its own
name in an annotation: what it reads back under that name is its own, and nothing else is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["HOLDER", "Record", "identity_of"]

Json = dict[str, Any]

HOLDER = "asyncdispatch.dev/holder"
"""The annotation of a Lease in which a participant tells its own name: its identity, and what nobody else has."""


def identity_of(own: str) -> str:
    """The identity in a participant's own name."""
    return own.rpartition("_")[0]


@dataclass(frozen=True, slots=True)
class Record:
    """A Lease as the server sent it. Every field may be missing or senseless: others write it too."""

    obj: Json = field(repr=False)

    @property
    def spec(self) -> Json:
        spec = self.obj.get("spec")
        return spec if isinstance(spec, dict) else {}

    @property
    def named(self) -> str:
        """The identity of who holds it; "" for nobody."""
        holder = self.spec.get("holderIdentity")
        return holder if isinstance(holder, str) else ""

    @property
    def holder(self) -> str:
        """Which participant holds it: its own name if it has told one behind its identity, else `named`."""
        metadata = self.obj.get("metadata")
        notes = metadata.get("annotations") if isinstance(metadata, dict) else None
        own = notes.get(HOLDER) if isinstance(notes, dict) else None
        return own if isinstance(own, str) and self.named and identity_of(own) == self.named else self.named

    @property
    def transitions(self) -> int:
        count = self.spec.get("leaseTransitions")
        return count if isinstance(count, int) else 0

    def duration(self, default: float) -> float:
        """How long it is its holder's after a change, in seconds."""
        seconds = self.spec.get("leaseDurationSeconds")
        return float(seconds) if isinstance(seconds, int) and seconds > 0 else default
