"""Pod conditions and the nominated node as values: checking, merging by type, and what a status patch does. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.objects import Json, field_of, timestamp, to_json

__all__ = ["KEEP", "Conditions", "Keep", "Nomination", "checked", "merged", "patched_status", "status_fields", "timed"]


class Keep(enum.Enum):
    """The type of `KEEP`."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return self.name


KEEP: Final = Keep.KEEP
"""In `patch_status(nominated_node=…)`: leave the field as it is. None clears it."""

Nomination = str | None | Keep


class Conditions(tuple[Json, ...]):
    """Conditions that were checked, so that making a call of them again (a merge, a rebase) costs nothing."""

    __slots__ = ()


_SCALARS = frozenset({str, int, bool, type(None)})


def checked(conditions: Any, label: str = "conditions") -> Conditions:
    """Conditions (dicts or client models) as a tuple of dicts; `ConfigurationError` for what can't be one."""
    if type(conditions) is Conditions:
        return conditions
    if isinstance(conditions, (str, bytes, dict)) or not isinstance(conditions, Iterable):
        raise ConfigurationError(label, conditions, "must be a sequence of conditions")
    found: dict[str, Json] = {}
    for index, item in enumerate(conditions):
        place = f"{label}[{index}]"
        plain = type(item) is dict and _SCALARS.issuperset(map(type, item.values()))
        condition = dict(item) if plain else to_json(item, place)
        if not isinstance(condition, dict):
            raise ConfigurationError(place, condition, "must be a condition: a dict with type and status")
        kind, status = condition.get("type"), condition.get("status")
        if not isinstance(kind, str) or not kind:
            raise ConfigurationError(f"{place}.type", kind, "must be a string that is not empty")
        if status not in ("True", "False", "Unknown"):
            raise ConfigurationError(f"{place}.status", status, "must be 'True', 'False' or 'Unknown', a string")
        if kind in found:
            raise ConfigurationError(f"{place}.type", kind, "stands there twice: give each type once")
        found[kind] = condition
    return Conditions(found.values())


def timed(conditions: Sequence[Json], current: Iterable[Json], now: datetime | None = None) -> Conditions:
    """`conditions` with the lastTransitionTime that each should have.

    One whose status is the current one keeps the current time: nothing has changed. One that changes keeps the time
    that it was given; without one it gets `now`, if given.
    """
    known = {condition.get("type"): condition for condition in current}
    return Conditions(_timed(condition, known.get(condition["type"]), now) for condition in conditions)


def _timed(condition: Json, current: Json | None, now: datetime | None) -> Json:
    if current is not None and current.get("status") == condition["status"]:
        time = current.get("lastTransitionTime")
        return condition if time is None else {**condition, "lastTransitionTime": time}
    if "lastTransitionTime" in condition or now is None:
        return condition
    return {**condition, "lastTransitionTime": timestamp(now)}


def merged(earlier: Conditions, later: Conditions) -> Conditions:
    """One list of conditions that does what sending `earlier`, then `later`, would do: by type, then field by field."""
    result = {condition["type"]: condition for condition in earlier}
    for condition in later:
        result[condition["type"]] = {**result.get(condition["type"], {}), **condition}
    return Conditions(result.values())


def status_fields(conditions: Sequence[Json], nominated_node: Nomination) -> Json:
    """The `status` of a strategic merge patch: conditions are merged by type there, and a null clears."""
    status: Json = {}
    if conditions:
        status["conditions"] = list(conditions)
    if nominated_node is not KEEP:
        status["nominatedNodeName"] = nominated_node
    return status


def patched_status(status: Any, conditions: Sequence[Json], nominated_node: Nomination) -> Json:
    """A Pod's `status` as it is after the patch. Equal to `status` exactly if the patch changes nothing in it.

    A condition whose status is there already keeps its lastTransitionTime, so that a patch timed by an older state of
    the Pod counts as done.
    """
    result: Json = dict(status) if isinstance(status, dict) else {}
    if conditions:
        present = result.get("conditions")
        result["conditions"] = _patched(present if isinstance(present, list) else [], conditions)
    if nominated_node is None:
        result.pop("nominatedNodeName", None)
    elif nominated_node is not KEEP:
        result["nominatedNodeName"] = nominated_node
    return result


def _patched(present: Sequence[Json], conditions: Sequence[Json]) -> list[Json]:
    waiting = {condition["type"]: condition for condition in conditions}
    result = []
    for old in present:
        new = waiting.pop(field_of(old, "type"), None)
        result.append(old if new is None else _patched_condition(old, new))
    return result + [_patched_condition({}, condition) for condition in waiting.values()]


def _patched_condition(old: Json, new: Json) -> Json:
    result = dict(old)
    for key, value in new.items():
        if key == "lastTransitionTime" and key in old and old.get("status") == new["status"]:
            continue
        if value not in (None, ""):
            result[key] = value
        elif result.get(key) not in (None, ""):  # both clear: the server leaves empty fields out, or writes null
            del result[key]
    return result
