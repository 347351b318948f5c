"""What the machine asks of the shell, and what the shell answers: plain values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncdispatch.calls import ObjectRef
from asyncdispatch.nomination.decisions import Decision

__all__ = ["URGENT", "Action", "Answer", "Ask", "Fate", "Look", "Note", "Write"]

Json = dict[str, Any]

URGENT = 2**31 - 1
"""The priority of what takes a hint back, and of the read before it: whatever else waits, it must not outlive its TTL
(N8, N10). It is cheap and rare, and bounded by the hints that stand."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something to do for a decision. Its answer carries `number`; one that nobody waits for any more is dropped."""

    number: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Look(Action):
    """Read the Pod afresh. Before a set its node too, and ask `precheck`. Answer: `looked`, or `looked_in_vain`."""

    before_set: bool = False
    priority: int = URGENT


@dataclass(frozen=True, slots=True)
class Write(Action):
    """Patch the Pod's status, fenced by its uid and `version`. `node` None: clear. Answer: `answered`.

    `annotations` are without their prefix; None removes. The shell adds the times, by the wall clock, of a set:
    `nominated-at`, and `expires-at` which is `ttl` seconds later.
    """

    ref: ObjectRef = ObjectRef("v1", "Pod", None, "?")
    version: str = ""
    node: str | None = None
    annotations: Mapping[str, str | None] | None = None
    ttl: float = 0.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Ask(Action):
    """Others were faster: ask the owner for a fresh decision on `pod`. Answer: `recomputed`."""

    pod: Json | None = None


class Fate(enum.Enum):
    """What became of a write."""

    APPLIED = "applied"
    CONFLICT = "conflict"
    """Somebody else wrote in between; not applied."""
    GONE = "gone"
    """No such Pod, or another of its name."""
    BOUND = "bound"
    """Refused since the Pod is bound."""
    REFUSED = "refused"
    """Refused for good: invalid, or denied by a policy."""
    FORBIDDEN = "forbidden"
    UNKNOWN = "unknown"
    """It may have been applied, or may yet be."""
    NOT_SENT = "not_sent"
    """No room, no time, or refused for now."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a `Write`. `pod` is the Pod after it, if it was applied."""

    fate: Fate
    pod: Json | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something to tell people of. `alert`: somebody should look."""

    decision: Decision
    what: str
    text: str
    alert: bool = False
