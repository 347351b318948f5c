"""What stands for recorded calls in a replay: the fields that decide, and the answers that user code has given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from asyncdispatch.calls import APICall, Effect, ObjectRef
from asyncdispatch.config import RetryPolicy
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.traces.format import FLAGS

__all__ = ["StandIn", "answer_of", "ref_of", "stand_in"]


class Answers:
    """What user code says when the core asks for it; shared by all calls of a replay, set before each step."""

    merges: bool | Exception = False
    noop = False

    def merge(self, call: StandIn) -> bool:
        """Whether `call` merges with the one that waits. No step asks twice."""
        if isinstance(self.merges, Exception):
            raise self.merges
        return self.merges


class StandIn(APICall[Any]):
    """A recorded call. Its hooks answer as `answers` says; it does nothing itself."""

    answers: Answers
    deletes = False

    def merge(self, pending: Any) -> Self | None:
        return self if self.answers.merge(self) else None

    def is_noop(self) -> bool:
        return self.answers.noop


_COMMON = frozenset({"type", "object", "priority", "flow", "timeout"})
_SAME = ("priority", "flow", "timeout", "version", "not_before", "prerequisite", *FLAGS, "deletes")


def stand_in(fields: Mapping[str, Any], context: SchedulingContext | None, answers: Answers) -> StandIn:
    """The call of a line's fields. Raises `ValueError` (of which `ConfigurationError` is one) for one that can't be."""
    values: dict[str, Any] = {name: fields[name] for name in _SAME if name in fields}
    values |= {name: bool(values[name]) for name in (*FLAGS, "deletes") if name in values}
    values["call_type"] = fields["type"]
    values["target"] = ref_of(fields["object"])
    values["_hooks"] = frozenset(fields.get("hooks", ()))
    values["answers"] = answers
    if "effect" in fields:
        values["effect"] = Effect(fields["effect"])
    if context is not None:
        values["context"] = context
    if "key" in fields:
        values["idempotency_key"] = fields["key"]
    if "scope" in fields:
        values["scope"] = fields["scope"]
    if "depends_on" in fields:
        values["depends_on"] = tuple(ref_of(each) for each in fields["depends_on"])
    if "reconciles" in fields:
        values["retry"] = RetryPolicy(max_reconciles=fields["reconciles"])
    values["_common"] = _COMMON.issuperset(fields)
    call: StandIn = object.__new__(StandIn)
    call.__dict__.update(values)
    return call


def changed(call: APICall[Any], **values: Any) -> APICall[Any]:
    """A copy with other values."""
    copied: APICall[Any] = object.__new__(type(call))
    copied.__dict__.update(call.__dict__ | values)
    return copied


def ref_of(items: list[Any]) -> ObjectRef:
    return ObjectRef(*items)


def answer_of(identity: list[Any] | bool | None) -> Any:
    """An answer that is this object, some other value, or nothing."""
    if identity is None or isinstance(identity, bool):
        return identity
    name, uid, version = identity
    meta = {"name": name, "uid": uid}
    return {"metadata": meta if version is None else meta | {"resourceVersion": version}}
