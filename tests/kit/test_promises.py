"""What call types promise by their hooks: each promise broken is told, with its law and the place."""

from dataclasses import dataclass, replace
from typing import Any, Self

import pytest

from asyncdispatch import APICall, Effect, ObjectRef
from asyncdispatch.testing import LawBroken
from asyncdispatch.testing.stepping.promises import check_done, check_merge, difference

NODE = ObjectRef("v1", "Node", None, "n")


@dataclass(frozen=True, kw_only=True)
class Label(APICall[Any]):
    call_type: str = "label"
    target: ObjectRef = NODE
    labels: tuple[str, ...] = ("a",)

    def merge(self, pending: Self) -> Self:
        return replace(self, labels=pending.labels + self.labels)

    def apply(self, obj: Any) -> Any:
        meta = obj["metadata"]
        labels = {**meta.get("labels", {}), **dict.fromkeys(self.labels, "yes")}
        return {**obj, "metadata": {**meta, "labels": labels}}


class Count(Label):
    """Does more each time."""

    def apply(self, obj: Any) -> Any:
        return {**obj, "count": obj.get("count", 0) + 1}


class InPlace(Label):
    def apply(self, obj: Any) -> Any:
        obj["metadata"]["labels"] = {"a": "yes"}
        return obj


class Forgetful(Label):
    def merge(self, pending: Self) -> Self:
        return self


@dataclass(frozen=True, kw_only=True)
class Remove(APICall[Any]):
    call_type: str = "remove"
    target: ObjectRef = NODE

    def apply(self, obj: Any) -> Any:
        return None


@dataclass(frozen=True, kw_only=True)
class Silent(APICall[Any]):
    """No `apply`: no promise."""

    call_type: str = "silent"
    target: ObjectRef = NODE


def node(labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    meta = {"name": "n", "resourceVersion": "7"}
    return {"metadata": {**meta, "labels": labels} if labels is not None else meta, **more}


def test_done_as_promised() -> None:
    """What the server adds, and the fields that are its own, count for nothing."""
    after = node({"a": "yes", "b": "yes"}, status={})
    after["metadata"]["resourceVersion"] = "8"
    check_done(Label(), 1, node({"b": "yes"}), after)
    check_done(Silent(), 1, node(), {})
    check_done(Remove(), 1, node(), None)
    check_done(Remove(), 1, node(), {"metadata": {"deletionTimestamp": "now"}})


@pytest.mark.parametrize(
    ("call", "after", "told"),
    [
        (Label(), node({"a": "yes"}), r"L18: call 3: .*metadata.labels.b is missing"),
        (Label(), node({"b": "yes"}), r"metadata.labels.a is missing"),
        (Label(), node({"a": "no", "b": "yes"}), r"metadata.labels.a is 'no', not 'yes'"),
        (Label(), None, "the object is not there"),
        (Remove(), node(), "the object is still there"),
        (Count(), node(), "L10: call 3: `apply` twice does more than once"),
        (InPlace(), node(), "L18: call 3: `apply` has changed the object that it was given"),
    ],
)
def test_done_otherwise(call: APICall[Any], after: Any, told: str) -> None:
    """A lost update reads like the first: `b` was there before, and is not after."""
    with pytest.raises(LawBroken, match=told):
        check_done(call, 3, node({"b": "yes"}), after)


def test_what_is_created_once_may_do_more_each_time() -> None:
    """Only what may be repeated must be as good once as twice."""
    check_done(Count(effect=Effect.CREATE), 1, node(), node(count=1))


def test_merges() -> None:
    """Both calls' doings, or it is told."""
    older, newer = Label(labels=("old",)), Label(labels=("new",))
    check_merge(older, newer, newer.merge(older), 2, node())
    forgetful = Forgetful(labels=("new",))
    with pytest.raises(LawBroken, match=r"L13: call 2: `merge` does not .*labels.old is missing"):
        check_merge(older, forgetful, forgetful.merge(Forgetful(labels=("old",))), 2, node())
    with pytest.raises(LawBroken, match=r"labels.more is missing"):
        check_merge(older, newer, Label(labels=("old", "new", "more")), 2, node())
    check_merge(older, forgetful, forgetful, 2, None)  # there is nothing on the server to compare by


@pytest.mark.parametrize(
    ("before", "wanted", "found", "where"),
    [
        ({}, {"a": 1}, {"a": 1, "b": 2}, ""),
        ({"b": 2}, {"a": 1}, {"a": 1, "b": 2}, "b is still there"),
        ({}, {"a": None, "b": {}, "c": []}, {}, ""),
        ({}, {"a": [1, 2]}, {"a": [2, 1, 3]}, ""),
        ({}, {"a": [1, 2]}, {"a": [1]}, "a lacks 2"),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1, 2]}, "a still has 2"),
        ({}, {"a": [{"type": "A", "status": "True"}]}, {"a": [{"type": "A", "status": "True", "reason": "x"}]}, ""),
        ({}, {"deletionTimestamp": 1}, {"deletionTimestamp": 2}, ""),
        ({}, {"deletionTimestamp": 1}, {}, "deletionTimestamp is missing (it should be 1)"),
        ({}, {"a": {"lastTransitionTime": 1}}, {"a": {"lastTransitionTime": 2}}, ""),
        ({}, 1, 2, "it is 2, not 1"),
    ],
)
def test_differences(before: Any, wanted: Any, found: Any, where: str) -> None:
    """What is missing, or was not removed; what the server adds is its own affair."""
    assert difference(before, wanted, found) == where
