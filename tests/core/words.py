"""Calls, objects and constants that the tests of the core are written in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from asyncdispatch.calls import APICall, Effect, ObjectRef, VerdictKind

SECOND = 1_000_000_000
START = 1_000 * SECOND

RETRY, LATER, HOLD = VerdictKind.RETRY, VerdictKind.LATER, VerdictKind.HOLD
RECONCILE, GONE, PERMANENT = VerdictKind.RECONCILE, VerdictKind.GONE, VerdictKind.PERMANENT
READ, WRITE, CREATE = Effect.READ, Effect.IDEMPOTENT_WRITE, Effect.CREATE
LEVELS = {"lowest": -(2**31), "low": -1_000, "default": 0, "elevated": 1_000, "high": 1_000_000}
"""A priority in each of some of the default levels (0, 1, 2, 4, 5)."""


def ns(seconds: float) -> int:
    return round(seconds * SECOND)


def pod(name: str = "p", uid: str | None = None) -> ObjectRef:
    return ObjectRef("v1", "Pod", "ns", name, uid)


def node(name: str, uid: str | None = None) -> ObjectRef:
    return ObjectRef("v1", "Node", None, name, uid)


def answer(name: str = "p", uid: str = "u1", version: int | None = None) -> dict[str, Any]:
    """An object as a server would answer with it."""
    meta: dict[str, Any] = {"name": name, "namespace": "ns", "uid": uid}
    if version is not None:
        meta["resourceVersion"] = str(version)
    return {"metadata": meta}


class Call(APICall[Any]):
    """A call with no hook, which stores only the fields that it is given: the core's short ways are for such."""

    call_type = "write"
    target = pod()

    if TYPE_CHECKING:  # the fields that are class attributes need not be given

        def __init__(self, **fields: Any) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Patch(APICall[Any]):
    """A call that merges: the older one's fields, then its own."""

    call_type: str = "patch"
    target: ObjectRef = pod()
    fields: tuple[str, ...] = ()

    def merge(self, pending: Patch) -> Patch | None:
        return replace(self, fields=pending.fields + self.fields)

    def apply(self, obj: Any) -> Any:
        return {**(obj or {}), **dict.fromkeys(self.fields, True)}
