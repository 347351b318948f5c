"""What a call type promises by its hooks, held against what its requests did.

`apply` says what the object looks like once the call is done: so it must be what `execute` leaves behind, whoever else
has written meanwhile (law L18), twice must be as good as once where a write may be repeated (law L10), and a merge must
do what both calls would have done (law L13). A call type without `apply` promises nothing here.
"""

from __future__ import annotations

import copy
from typing import Any

from asyncdispatch.calls import APICall, Effect
from asyncdispatch.testing.stepping.history import LawBroken

__all__ = ["check_done", "check_merge", "difference"]

UNCOMPARED = frozenset(
    {
        "creationTimestamp",
        "generation",
        "lastHeartbeatTime",
        "lastProbeTime",
        "lastTransitionTime",
        "managedFields",
        "observedGeneration",
        "resourceVersion",
    }
)
"""Fields that the server writes by itself, or that say only when."""

Call = APICall[Any]


def check_done(call: Call, ticket: int, before: Any, after: Any) -> None:
    """`execute` has made `after` out of `before`: as `apply` says? Raises `LawBroken` if it does not."""
    if "apply" not in call._hooks:
        return
    wanted = _applied(call, ticket, before)
    if call.effect is Effect.IDEMPOTENT_WRITE and wanted is not None:
        where = difference(wanted, wanted, _applied(call, ticket, wanted))
        if where:
            raise LawBroken(f"L10: call {ticket}: `apply` twice does more than once, but it may be repeated: {where}")
    if wanted is None:
        gone = after is None or "deletionTimestamp" in after["metadata"]
        where = "" if gone else "the object is still there"
    else:
        where = "the object is not there" if after is None else difference(before or {}, wanted, after)
    if where:
        raise LawBroken(f"L18: call {ticket}: `execute` did not leave behind what `apply` says: {where}")


def check_merge(pending: Call, newer: Call, both: Call, ticket: int, obj: Any) -> None:
    """`both` is the merge of `pending` into `newer`, which is call `ticket`: does it do, to `obj`, what they would?"""
    if "apply" not in newer._hooks or obj is None:
        return
    wanted = _applied(newer, ticket, _applied(pending, ticket, obj))
    found = _applied(both, ticket, obj)
    where = difference(obj, wanted, found) or difference(obj, found, wanted)
    if where:
        raise LawBroken(f"L13: call {ticket}: `merge` does not do what both calls would have done: {where}")


def _applied(call: Call, ticket: int, obj: Any) -> Any:
    given = copy.deepcopy(obj)
    result = call.apply(given)
    if given != obj:
        raise LawBroken(f"L18: call {ticket}: `apply` has changed the object that it was given, not a copy")
    return result


def difference(before: Any, wanted: Any, found: Any, path: str = "") -> str:
    """Where `found` lacks what `wanted` has, or has still what `wanted` has removed from `before`; "" if nowhere.

    What `found` has beyond that is the server's own affair.
    """
    if isinstance(wanted, dict) and isinstance(found, dict):
        return _in_dicts(before if isinstance(before, dict) else {}, wanted, found, path)
    if isinstance(wanted, list) and isinstance(found, list):
        for item in wanted:
            if not any(not difference(None, item, other) for other in found):
                return f"{path or 'it'} lacks {item!r}"
        for item in before if isinstance(before, list) else []:
            if item in found and item not in wanted:
                return f"{path} still has {item!r}"
        return ""
    return "" if wanted == found else f"{path or 'it'} is {found!r}, not {wanted!r}"


def _in_dicts(before: dict[str, Any], wanted: dict[str, Any], found: dict[str, Any], path: str) -> str:
    for key, value in wanted.items():
        if key in UNCOMPARED or (value in (None, {}, []) and key not in found):
            continue
        place = f"{path}.{key}" if path else key
        if key not in found:
            return f"{place} is missing (it should be {value!r})"
        if key == "deletionTimestamp":
            continue  # that it is there is what counts
        if where := difference(before.get(key), value, found[key], place):
            return where
    for key in before:
        if key not in wanted and key in found and key not in UNCOMPARED:
            return f"{path}.{key} is still there".lstrip(".")
    return ""
