"""All that the core looks at in a call or a failure is in the trace: else a replay decides otherwise (law L16)."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import asyncdispatch._core
from asyncdispatch import APICall, Effect, RetryPolicy, Verdict, VerdictKind
from asyncdispatch._core.parking import Failure, Signal
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.traces.format import call_text, failure_fields, failure_of, number_of
from asyncdispatch.traces.replaying import Nobody
from asyncdispatch.traces.standins import Answers, stand_in
from tests.shell import pod

CONTEXT = SchedulingContext(Nobody(), 7, pod("c"), None, None, ("ready",))

GIVEN: dict[str, Any] = {
    "call_type": "kind",
    "target": pod("p", "u1"),
    "effect": Effect.CREATE,
    "idempotency_key": "key",
    "priority": 3,
    "flow": "flow",
    "timeout": 2.0,
    "not_before": 1.5,
    "context": CONTEXT,
    "prerequisite": "ready",
    "awaits_prerequisites": True,
    "sheddable": True,
    "depends_on": (pod("q"), pod("r", "u2")),
    "version": "12",
    "fresh": True,
    "ordered": True,
    "scope": "scope",
    "retry": RetryPolicy(max_reconciles=9),
}
"""Every field of a call, other than by default."""

WRITTEN: dict[str, Any] = GIVEN | {"idempotency_key": number_of("key"), "scope": number_of("scope")}

ASKED = {"_hooks", "_common", "merge", "is_noop"}
"""What else of a call the core reads: hooks are recorded, with their answers; `_common` follows from the fields."""

BY_NAME = {"deletes"}
"""What it asks for of a call that need not have it."""


class Removal(APICall[Any]):
    deletes = True

    def merge(self, pending: Any) -> Any:
        return self


def carried(call: APICall[Any]) -> APICall[Any]:
    """A call, written and read back."""
    return stand_in(json.loads(call_text(call)), call.context, Answers())


def test_every_field_of_a_call_is_carried() -> None:
    """A new field needs a value here, and a place in the format."""
    assert GIVEN.keys() == {field.name for field in dataclasses.fields(APICall)}
    found = carried(Removal(**GIVEN))
    assert {name: getattr(found, name) for name in GIVEN} == WRITTEN
    assert found._hooks == {"merge"}
    assert found.deletes  # type: ignore[attr-defined]


def test_every_field_alone() -> None:
    """Also where it is the only one that is uncommon."""
    needed = {name: GIVEN[name] for name in ("call_type", "target")}
    for name, value in GIVEN.items():
        assert getattr(carried(APICall(**needed | {name: value})), name) == WRITTEN[name]


@pytest.mark.parametrize("deletes", [True, False])
def test_a_common_call_may_delete(deletes: bool) -> None:
    """`deletes` is of a class, and no field that makes a call uncommon."""

    class Common(APICall[Any]):
        pass

    Common.deletes = deletes  # type: ignore[attr-defined]
    call = Common(call_type="t", target=pod())
    assert call._common
    assert carried(call).deletes is deletes  # type: ignore[attr-defined]


def test_the_core_reads_nothing_else_of_a_call() -> None:
    """Fields, hooks, and by name what a call need not have. Type checks let it read nothing else."""
    read, asked = set(), []
    for path in Path(asyncdispatch._core.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and not _of_a_flow(node):
                read.add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                asked.append(node.args[1])
    inherited = {name for name in dir(APICall) if not name.startswith("__")}
    assert read & inherited <= GIVEN.keys() | ASKED | BY_NAME
    assert {node.value for node in asked if isinstance(node, ast.Constant)} <= BY_NAME
    assert {ast.unparse(node) for node in asked if not isinstance(node, ast.Constant)} <= {"name"}  # of a field


def _of_a_flow(node: ast.Attribute) -> bool:
    return node.attr == "free" and ast.unparse(node.value).endswith(("flow", "queue", "self"))


def test_every_field_of_a_failure_is_carried() -> None:
    """But for what people read, and the pause that the server asked for: `delay` is what came of that."""
    verdict = Verdict(VerdictKind.LATER, True, 7.0, "scope", "reason")
    failure = Failure(OSError("x"), verdict, 5, True, Signal.PUSHBACK, ("same", 500))
    found = failure_of(json.loads(json.dumps(failure_fields(failure))))
    assert _differing(found, failure) == {"error", "verdict", "signature"}
    assert found.signature == number_of(failure.signature)
    assert _differing(found.verdict, verdict) == {"retry_after", "scope", "reason"}
    assert found.verdict.scope == number_of("scope")


def _differing(one: Any, other: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(one) if getattr(one, field.name) != getattr(other, field.name)}
