"""The three kinds of patch, without a server."""

import copy
from typing import Any

import pytest

from asyncdispatch.testing import StatusError
from asyncdispatch.testing.apiserver.patches import json_patch, merge, strategic, without_nulls


@pytest.mark.parametrize(
    ("old", "patch", "new"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "d": 3}}, {"a": {"c": 2, "d": 3}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        ({"a": {"b": 1}}, {"a": 1}, {"a": 1}),
        ({}, {"a": None}, {}),
    ],
)
def test_merge(old: Any, patch: Any, new: Any) -> None:
    before = copy.deepcopy(old)
    assert merge(old, patch) == new
    assert old == before


C = "conditions"


@pytest.mark.parametrize(
    ("old", "patch", "new"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2, "b": None}}, {"a": {"c": 2}}, id="mappings"),
        pytest.param(
            {"status": {C: [{"type": "A", "x": 1}, {"type": "B"}]}},
            {"status": {C: [{"type": "A", "y": 2}, {"type": "C"}]}},
            {"status": {C: [{"type": "A", "x": 1, "y": 2}, {"type": "C"}, {"type": "B"}]}},
            id="lists by key",
        ),
        pytest.param(
            {"status": {C: [{"type": "A"}, {"type": "B"}]}},
            {"status": {C: [{"type": "A", "$patch": "delete"}], f"$setElementOrder/{C}": [{"type": "B"}]}},
            {"status": {C: [{"type": "B"}]}},
            id="an item deleted",
        ),
        pytest.param(
            {"status": {C: [{"type": "A"}]}},
            {"status": {C: [{"$patch": "replace"}, {"type": "B"}]}},
            {"status": {C: [{"type": "B"}]}},
            id="a list replaced",
        ),
        pytest.param({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}, id="a mapping replaced"),
        pytest.param({"a": {"b": 1}}, {"a": {"$patch": "delete"}}, {"a": {}}, id="a mapping deleted"),
        pytest.param(
            {"a": {"b": 1, "c": 2}}, {"a": {"$retainKeys": ["c", "d"], "d": 3}}, {"a": {"c": 2, "d": 3}}, id="kept keys"
        ),
        pytest.param(
            {"metadata": {"finalizers": ["a"]}},
            {"metadata": {"finalizers": ["b", "a"]}},
            {"metadata": {"finalizers": ["b", "a"]}},
            id="plain values",
        ),
        pytest.param(
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
            {"metadata": {"finalizers": ["b"]}},
            id="a plain value deleted",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}},
            {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}},
            {
                "spec": {
                    "containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]}]
                }
            },
            id="lists in lists",
        ),
        pytest.param(
            {"spec": {"tolerations": [{"key": "a"}]}},
            {"spec": {"tolerations": [{"key": "b"}]}},
            {"spec": {"tolerations": [{"key": "b"}]}},
            id="a list without a key",
        ),
        pytest.param({}, {"status": {C: [{"type": "A"}]}}, {"status": {C: [{"type": "A"}]}}, id="a new list"),
    ],
)
def test_strategic(old: Any, patch: Any, new: Any) -> None:
    before = copy.deepcopy(old)
    assert strategic(old, patch) == new
    assert old == before


def test_an_item_without_its_key_is_refused() -> None:
    with pytest.raises(StatusError) as caught:
        strategic({}, {"status": {"conditions": [{"status": "True"}]}})
    assert caught.value.code == 500


def test_json_patch_leaves_its_object_alone() -> None:
    old = {"a": {"b": [1]}}
    assert json_patch(old, [{"op": "add", "path": "/a/b/-", "value": 2}]) == {"a": {"b": [1, 2]}}
    assert old == {"a": {"b": [1]}}


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ([{"op": "test", "path": "/a", "value": 2}], 422),
        ([{"op": "remove", "path": "/x"}], 422),
        ([{"op": "add", "path": "/x/y", "value": 1}], 422),
        ([{"op": "add", "path": "/a/b", "value": 1}], 422),
        ([{"op": "replace", "path": "", "value": 1}], 422),
        ([{"op": "nothing", "path": "/a"}], 422),
        ([{"path": "/a"}], 422),
        (["add"], 400),
        ("add", 400),
    ],
)
def test_json_patches_that_fail(patch: Any, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        json_patch({"a": 1}, patch)
    assert caught.value.code == code


def test_without_nulls() -> None:
    assert without_nulls({"a": None, "b": [{"c": None, "d": 1}]}) == {"b": [{"d": 1}]}
