"""Label and field selectors: from their text to a predicate over an object."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from asyncdispatch.testing.apiserver.kinds import child, mapping
from asyncdispatch.testing.apiserver.resources import Resource
from asyncdispatch.testing.apiserver.status import Json, bad_request

Predicate = Callable[[Json], bool]
Labels = dict[str, Any]

_IN = re.compile(r"(?P<key>\S+)\s+(?P<op>in|notin)\s+\((?P<values>[^)]*)\)")
_EQUAL = re.compile(r"(?P<key>[^\s=!]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^\s=!]*)")
_EXISTS = re.compile(r"(?P<no>!?)\s*(?P<key>[^\s=!(),]+)")


def selection(resource: Resource, labels: str, fields: str) -> Predicate | None:
    """One predicate for both selectors; None when there are none. StatusError 400 for what cannot be parsed."""
    by_labels = _label_predicate(labels) if labels.strip() else None
    by_fields = _field_predicate(resource, fields) if fields.strip() else None
    if by_labels is None or by_fields is None:
        return by_labels or by_fields
    both = (by_labels, by_fields)
    return lambda obj: all(predicate(obj) for predicate in both)


def chooses(selector: Json | None, obj: Json) -> bool:
    """A label selector as it stands in objects; None chooses nothing, an empty one everything."""
    if selector is None:
        return False
    labels = mapping(obj, "metadata", "labels")
    if any(labels.get(key) != value for key, value in mapping(selector, "matchLabels").items()):
        return False
    return all(_expression(rule, labels) for rule in selector.get("matchExpressions") or ())


def _expression(rule: Json, labels: Labels) -> bool:
    key, operator = str(rule.get("key")), str(rule.get("operator"))
    values: list[str] = rule.get("values") or []
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) == (operator == "Exists")
    return (labels.get(key) in values) == (operator == "In")


def _label_predicate(text: str) -> Predicate:
    tests = [_requirement(part) for part in _parts(text)]

    def matches(obj: Json) -> bool:
        labels = mapping(obj, "metadata", "labels")
        return all(test(labels) for test in tests)

    return matches


def _parts(text: str) -> Iterator[str]:
    """Split at commas that are not within parentheses."""
    for part in re.findall(r"(?:[^,(]|\([^)]*\))+", text):
        yield part.strip()


def _requirement(text: str) -> Callable[[Labels], bool]:
    if found := _IN.fullmatch(text):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUAL.fullmatch(text):
        key, value = found["key"], found["value"]
        if found["op"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _EXISTS.fullmatch(text):
        key = found["key"]
        if found["no"]:
            return lambda labels: key not in labels
        return lambda labels: key in labels
    raise bad_request(f"unable to parse requirement: {text!r} is no label selector")


def _field_predicate(resource: Resource, text: str) -> Predicate:
    tests = [_field_requirement(resource, part.strip(), text) for part in text.split(",") if part.strip()]
    return lambda obj: all(test(obj) for test in tests)


def _field_requirement(resource: Resource, part: str, whole: str) -> Predicate:
    found = _EQUAL.fullmatch(part)
    if not found:
        raise bad_request(f"invalid selector: '{whole}'; can't understand '{part}'")
    key, wanted, equal = found["key"], found["value"], found["op"] != "!="
    path = resource.selectable.get(key)
    if key in ("metadata.name", "metadata.namespace"):
        path = ("metadata", key.partition(".")[2])
    if path is None:
        what = f'"{resource.api_version}, Resource={resource.plural}"'
        message = f"Unable to find {what} that match field selector {whole!r}: field label not supported: {key}"
        raise bad_request(message)
    where = path
    absent = "false" if wanted in ("true", "false") else ""
    return lambda obj: (_text(child(obj, *where), absent) == wanted) == equal


def _text(value: object, absent: str) -> str:
    if value is None:
        return absent
    return str(value).lower() if isinstance(value, bool) else str(value)
