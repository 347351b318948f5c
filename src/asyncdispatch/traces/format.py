"""The format of a trace: which lines there are, and how calls, failures and configurations are written in them.

A trace is what the core of one dispatcher was told, step by step, at which times. That is all that its decisions depend
on (law L16), so nothing else is written: no body, no value, no message of an error. Idempotency keys and scopes are
written as hashes. `docs/traces.md` has the table of lines.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Mapping
from json.encoder import encode_basestring_ascii as quote
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.knowing import PLAIN
from asyncdispatch._core.parking import Failure, Signal
from asyncdispatch._core.states import IDEMPOTENT_WRITE
from asyncdispatch.calls import APICall, ObjectRef, Verdict, VerdictKind, identity_in
from asyncdispatch.config import (
    AdaptiveLimit,
    BreakerPolicy,
    CallTypePolicy,
    DispatcherConfig,
    FlowQuota,
    IdempotencyPolicy,
    PriorityLevels,
    RateLimit,
    RetryBudget,
    RetryPolicy,
)
from asyncdispatch.errors import DispatchError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMAT", "LINES", "VERSION", "TraceError"]

FORMAT = "asyncdispatch-trace"
VERSION = 1

LINES: Mapping[str, tuple[str, ...]] = {
    "submit": ("ticket", "call"),
    "refused": ("error", "call"),
    "start": ("ticket?",),
    "success": ("ticket", "identity"),
    "turn": ("ticket", "identity", "ticket?"),
    "failure": ("ticket", "failure"),
    "stopped": ("ticket", "flag", "flag"),
    "reconciled": ("ticket", "answer", "delay"),
    "reconcile_failed": ("ticket", "failure"),
    "give_up": ("ticket",),
    "tick": (),
    "cancel": ("ticket",),
    "cancel_flow": ("flow",),
    "forget": ("object",),
    "broken": ("ticket",),
    "observe": ("object", "version?", "flag", "flag"),
    "rebase": ("ticket", "version?"),
    "seen": ("lane", "numbers"),
    "begin": ("epoch?", "object", "version?", "epoch?", "seconds?", "names"),
    "extend": ("epoch", "seconds?"),
    "end": ("epoch",),
    "require": ("epoch", "name", "flag"),
    "drain": ("time",),
    "close": (),
}
"""What stands in each kind of line after its name and its time. One more item may follow: an object of what came of it.
"""


class TraceError(DispatchError):
    """A trace that can't be read or replayed. The message names the line and the remedy; `line` is its number."""

    def __init__(self, where: str, line: int, problem: str, remedy: str) -> None:
        super().__init__(f"{where}, line {line}: {problem}; {remedy}")
        self.line = line
        self.problem = problem
        self.remedy = remedy


def number_of(value: Hashable | None) -> int | None:
    """What stands for a key or scope: equal for equal ones. Python hashes strings with a secret of the process."""
    return None if value is None else hash((value,))


# -- objects and calls ------------------------------------------------------------------------------------------------


def ref_text(ref: ObjectRef) -> str:
    namespace = "null" if ref.namespace is None else quote(ref.namespace)
    uid = "" if ref.uid is None else f",{quote(ref.uid)}"
    return f"[{quote(ref.api_version)},{quote(ref.kind)},{namespace},{quote(ref.name)}{uid}]"


def identity_text(value: Any) -> str:
    """Name, uid and resourceVersion of an answer: all that the core looks at in it. Else whether there is a value."""
    if value is None:
        return "null"
    found = None if type(value) in PLAIN else identity_in(value)
    return "true" if found is None else json.dumps(found, separators=(",", ":"))


def call_text(call: APICall[Any]) -> str:
    """A call, without what is as it is by default. Kept fast: one is written for each call."""
    ref = call.target
    kind = (call.call_type, ref.api_version, ref.kind, ref.namespace)
    text = _KINDS.get(kind) or _kind_text(kind)
    text += f"{quote(ref.name)}]" if ref.uid is None else f"{quote(ref.name)},{quote(ref.uid)}]"
    priority, flow, timeout = call.priority, call.flow, call.timeout
    if priority:
        text += f',"priority":{priority}'
    if flow != "default":
        text += f',"flow":{quote(flow)}'
    if timeout is not None:
        text += f',"timeout":{timeout}'
    if call.effect is not IDEMPOTENT_WRITE:
        text += f',"effect":"{call.effect.value}"'
    if getattr(call, "deletes", False):  # no field, so that it may be so of a common call as well
        text += ',"deletes":true'
    if not call._common:
        for name, value in _uncommon(call).items():
            text += f',"{name}":{json.dumps(value, separators=(",", ":"))}'
    return text + "}"


_KINDS: dict[tuple[str, str, str, str | None], str] = {}
"""How the lines of calls begin, by call type and kind of object. Few, and at most `MAX_KINDS`."""

MAX_KINDS = 1_024


def _kind_text(kind: tuple[str, str, str, str | None]) -> str:
    call_type, api_version, name, namespace = kind
    place = "null" if namespace is None else quote(namespace)
    text = f'{{"type":{quote(call_type)},"object":[{quote(api_version)},{quote(name)},{place},'
    if len(_KINDS) < MAX_KINDS:
        _KINDS[kind] = text
    return text


def _uncommon(call: APICall[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "key": number_of(call.idempotency_key),
        "scope": number_of(call.scope),
        "version": call.version,
        "not_before": call.not_before,
        "context": None if call.context is None else call.context.epoch,
        "prerequisite": call.prerequisite,
        "reconciles": None if call.retry is None else call.retry.max_reconciles,
    }
    fields |= {name: getattr(call, name) for name in FLAGS}
    fields["depends_on"] = [_ref_list(ref) for ref in call.depends_on]
    fields["hooks"] = sorted(call._hooks)
    return {name: value for name, value in fields.items() if not (value is None or value is False or value == [])}


FLAGS = ("awaits_prerequisites", "sheddable", "ordered", "fresh")


def _ref_list(ref: ObjectRef) -> list[str | None]:
    return [ref.api_version, ref.kind, ref.namespace, ref.name, *([] if ref.uid is None else [ref.uid])]


# -- failures ---------------------------------------------------------------------------------------------------------


def failure_fields(failure: Failure) -> dict[str, Any]:
    """What the core needs of a failure; its error by class alone, since a message may quote what was sent."""
    verdict = failure.verdict
    fields: dict[str, Any] = {"kind": verdict.kind.value, "error": type(failure.error).__name__}
    if verdict.maybe_applied:
        fields["maybe_applied"] = 1
    if verdict.scope is not None:
        fields["scope"] = number_of(verdict.scope)
    if failure.delay:
        fields["delay"] = failure.delay
    if failure.exhausted:
        fields["exhausted"] = 1
    if failure.signal is not Signal.NONE:
        fields["signal"] = failure.signal.value
    if failure.signature is not None:
        fields["signature"] = number_of(failure.signature)
    return fields


def failure_of(fields: Mapping[str, Any]) -> Failure:
    verdict = Verdict(VerdictKind(fields["kind"]), bool(fields.get("maybe_applied")), scope=fields.get("scope"))
    return Failure(
        RuntimeError(fields["error"]),
        verdict,
        fields.get("delay", 0),
        bool(fields.get("exhausted")),
        Signal(fields.get("signal", "none")),
        fields.get("signature"),
    )


# -- configurations ---------------------------------------------------------------------------------------------------


def config_fields(config: DispatcherConfig) -> dict[str, Any]:
    """A configuration without its strategies, which are code: the delays that they gave are in the trace."""
    fields: dict[str, Any] = _plain(config)
    return fields


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _plain(each) for name, each in fields.items() if not callable(each)}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def config_of(fields: Mapping[str, Any]) -> DispatcherConfig:
    """Raises `ConfigurationError`, `TypeError` or another error of its parts for what is no configuration."""
    values = dict(fields)
    if isinstance(values["max_in_flight"], dict):
        values["max_in_flight"] = AdaptiveLimit(**values["max_in_flight"])
    values["levels"] = PriorityLevels(tuple((name, floor) for name, floor in values["levels"]["levels"]))
    values["flows"] = {name: FlowQuota(**quota) for name, quota in values["flows"].items()}
    values["call_types"] = {name: CallTypePolicy(**policy) for name, policy in values["call_types"].items()}
    for name, part in _PARTS.items():
        if values[name] is not None:
            values[name] = part(**values[name])
    return DispatcherConfig(**values)


_PARTS: dict[str, Callable[..., Any]] = {
    "rate": RateLimit,
    "retry": RetryPolicy,
    "retry_budget": RetryBudget,
    "breaker": BreakerPolicy,
    "idempotency": IdempotencyPolicy,
}
