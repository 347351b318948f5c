"""Patch documents: what they do, when two are one, which of them can lose what others have written."""

import copy
import math
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_asyncio.client import V1ObjectMeta, V1Pod

from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.patches import (
    MERGED_LISTS,
    JsonPatch,
    MergePatch,
    StrategicPatch,
    change_of,
    composed,
    merge,
)
from asyncdispatch.testing.apiserver import patches as served

POD = ObjectRef("v1", "Pod", "ns", "p", "u1")
WIDGET = ObjectRef("example.com/v1", "Widget", "ns", "w")


# ---- documents and patches -------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["x", "y"])
KEYS = st.sampled_from("abc")
VALUES = st.recursive(
    SCALARS | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=3)


def rfc_7386(target, patch):
    """MergePatch of RFC 7386, section 2, line by line: the oracle."""
    if isinstance(patch, dict):
        if not isinstance(target, dict):
            target = {}
        target = dict(target)
        for name, value in patch.items():
            if value is None:
                if name in target:
                    del target[name]
            else:
                target[name] = rfc_7386(target.get(name), value)
        return target
    return patch


@given(OBJECTS, VALUES)
def test_merge_is_that_of_the_rfc(obj, patch):
    """For every document and every patch; neither is changed."""
    before = copy.deepcopy((obj, patch))
    assert merge(obj, patch) == rfc_7386(obj, patch)
    assert (obj, patch) == before


@given(OBJECTS, OBJECTS, st.lists(OBJECTS, min_size=1, max_size=4))
def test_one_patch_does_what_two_do(earlier, later, objects):
    """R6: whatever they are sent to, the composed patch does what one after the other does."""
    both = composed(earlier, later)
    if both is None:
        return
    for obj in [*objects, {}, later, earlier]:
        assert merge(obj, both) == merge(merge(obj, earlier), later)


@given(OBJECTS, OBJECTS)
def test_patches_of_different_fields_are_always_one(earlier, later):
    """R6: two patches of different fields are never kept apart, and never replaced by one of them."""
    earlier, later = {"left": earlier, "same": {"x": 1}}, {"right": later, "same": {"y": 2}}
    assert composed(earlier, later) == {"left": earlier["left"], "right": later["right"], "same": {"x": 1, "y": 2}}


@pytest.mark.parametrize(
    ("earlier", "later", "both"),
    [
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": None}, {"a": 1}, {"a": 1}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
        # Removed, then filled anew: no merge patch says that of an object that has other things in it.
        ({"a": None}, {"a": {"x": 1}}, None),
        ({"a": 3}, {"a": {"x": 1}}, None),
        ({"b": {"a": None}}, {"b": {"a": {"x": 1}}}, None),
    ],
)
def test_composing_by_example(earlier, later, both):
    """The later wins for the same leaf; what one patch can't say stays two."""
    assert composed(earlier, later) == both


# ---- what each kind is -----------------------------------------------------------------------------------------------


def test_the_kind_by_what_is_given():
    """A mapping or a model is a merge patch, a list a JSON Patch, a strategic one is asked for."""
    assert change_of({"spec": {"x": 1}}, WIDGET) == MergePatch({"spec": {"x": 1}})
    model = V1Pod(metadata=V1ObjectMeta(labels={"a": "b"}))
    assert change_of(model, POD) == MergePatch({"metadata": {"labels": {"a": "b"}}})
    steps = [{"op": "add", "path": "/metadata/labels/a", "value": "b"}]
    assert change_of(tuple(steps), POD) == JsonPatch(steps)
    assert change_of({"spec": {"x": 1}}, POD, strategic=True) == StrategicPatch({"spec": {"x": 1}})
    types = {change.content_type.split("/")[1] for change in (MergePatch({}), JsonPatch([]), StrategicPatch({}))}
    assert types == {"merge-patch+json", "json-patch+json", "strategic-merge-patch+json"}


def test_fences_go_into_the_body():
    """By merge or by an operation, before what the caller wants; nothing is added without one."""
    change = MergePatch({"metadata": {"labels": {"a": "b"}}, "spec": {}})
    assert change.fenced("u1", "5")["metadata"] == {"labels": {"a": "b"}, "uid": "u1", "resourceVersion": "5"}
    assert MergePatch({"spec": {}}).fenced(None, None) == {"spec": {}}
    steps = JsonPatch([{"op": "remove", "path": "/spec/x"}])
    assert steps.fenced("u1", "5") == [
        {"op": "add", "path": "/metadata/uid", "value": "u1"},
        {"op": "add", "path": "/metadata/resourceVersion", "value": "5"},
        {"op": "remove", "path": "/spec/x"},
    ]
    assert steps.fenced(None, None) == steps.document


def test_what_a_change_shows():
    """`apply` is what the server makes of it; `shown_by` says that there is nothing left to do."""
    obj = {"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"n": 1}}
    unlabelled: Any = MergePatch({"metadata": {"labels": {"a": None}}}).apply(obj)
    assert unlabelled["metadata"]["labels"] == {"b": "2"}
    assert MergePatch({"spec": {"n": 1}}).shown_by(obj)
    assert not MergePatch({"spec": {"n": 2}}).shown_by(obj)
    step = JsonPatch([{"op": "replace", "path": "/spec/n", "value": 2}])
    stepped: Any = step.apply(obj)
    assert stepped["spec"] == {"n": 2}
    assert obj["spec"] == {"n": 1}
    assert not step.shown_by(obj)
    assert step.shown_by(stepped)
    # Strategic: only what both kinds of merge do alike.
    strategic: Any = StrategicPatch({"spec": {"n": 2}}).apply(obj)
    assert strategic["spec"] == {"n": 2}
    unknowns: list[Any] = [{"spec": {"l": []}}, {"spec": {"$patch": "replace"}}, {"$setElementOrder/x": {}}]
    for unknown in unknowns:
        assert StrategicPatch(unknown).apply(obj) is None
        assert not StrategicPatch(unknown).shown_by(obj)


def test_json_patch_that_was_done_already():
    """Its tests were about the object before, and what it removes is gone: it is shown all the same."""
    before = {"metadata": {"labels": {"a": "1"}}, "spec": {"n": 1}}
    change = JsonPatch(
        [
            {"op": "test", "path": "/spec/n", "value": 1},
            {"op": "replace", "path": "/spec/n", "value": 2},
            {"op": "remove", "path": "/metadata/labels/a"},
        ]
    )
    after = change.apply(before)
    assert after == {"metadata": {"labels": {}}, "spec": {"n": 2}}
    assert change.apply(after) is None  # it can't be done twice …
    assert change.shown_by(after)  # … and need not
    assert not change.shown_by(before)
    assert JsonPatch([{"op": "add", "path": "/a/b/c", "value": 1}]).apply({}) is None
    assert not JsonPatch([{"op": "remove", "path": "/metadata/labels/a"}]).shown_by(before)


def test_only_merge_patches_become_one():
    """And only of the same kind: others are sent in order."""
    one, two = {"spec": {"a": 1}}, {"spec": {"b": 2}}
    assert MergePatch(one).then(MergePatch(two)) == MergePatch({"spec": {"a": 1, "b": 2}})
    assert StrategicPatch(one).then(StrategicPatch(two)) == StrategicPatch({"spec": {"a": 1, "b": 2}})
    steps = JsonPatch([{"op": "add", "path": "/spec/a", "value": 1}])
    lists = StrategicPatch({"status": {"conditions": []}})
    for earlier, later in (
        *((MergePatch(one), StrategicPatch(two)), (StrategicPatch(one), MergePatch(two))),
        *((steps, steps), (MergePatch(one), steps), (steps, MergePatch(one))),
        *((StrategicPatch(one), lists), (lists, StrategicPatch(one))),
    ):
        assert earlier.then(later) is None


# ---- what can lose what others have written (R21) --------------------------------------------------------------------


def has_list(value):
    return isinstance(value, list) or (isinstance(value, dict) and any(has_list(item) for item in value.values()))


@given(OBJECTS)
def test_a_merge_patch_with_a_list_anywhere_is_told(document):
    """R21: wherever the list stands, and never without one; the path leads to a list."""
    path = MergePatch(document).hazard(WIDGET)
    assert (path is not None) == has_list(document)
    if path is not None:
        found = document
        for key in path.split("."):
            found = found[key]
        assert isinstance(found, list)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"metadata": {"finalizers": []}}, None),
        ({"metadata": {"ownerReferences": [{"uid": "u"}]}}, None),
        ({"status": {"conditions": [{"type": "Ready"}]}}, None),
        ({"spec": {"containers": [{"name": "c", "env": [{"name": "E"}]}]}}, None),
        ({"spec": {"tolerations": []}}, "spec.tolerations"),
        ({"spec": {"taints": []}}, "spec.taints"),
        ({"spec": {"containers": [{"name": "c", "args": ["x"]}]}}, "spec.containers.args"),
        ({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}, None),
    ],
)
def test_lists_of_strategic_patches(document, path):
    """The server merges some lists by key: those are safe. The others are replaced, as by a merge patch."""
    assert StrategicPatch(document).hazard(POD) == path


def test_lists_that_only_some_types_merge():
    """The types of other groups say so for their metadata alone."""
    definition = ObjectRef("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, "c")
    assert StrategicPatch({"status": {"conditions": []}}).hazard(definition) == "status.conditions"
    assert StrategicPatch({"metadata": {"finalizers": []}}).hazard(definition) is None


def test_the_embedded_server_merges_the_same_lists():
    """The fact stands twice, here and in the server: they agree."""
    assert set(served.MERGE_KEYS) == set(MERGED_LISTS)


@pytest.mark.parametrize(
    ("step", "safe"),
    [
        ({"op": "add", "path": "/metadata/labels/a", "value": "b"}, True),
        ({"op": "remove", "path": "/metadata/annotations/example.com~1x"}, True),
        ({"op": "test", "path": "/spec/schedulingGates/0/name", "value": "g"}, True),
        ({"op": "copy", "from": "/spec/a", "path": "/spec/b"}, True),
        ({"op": "remove", "path": "/spec/schedulingGates/0"}, False),
        ({"op": "add", "path": "/metadata/finalizers/-", "value": "f"}, False),
        ({"op": "add", "path": "/metadata/finalizers", "value": ["f"]}, False),
        ({"op": "replace", "path": "/spec", "value": {"l": [1]}}, False),
        ({"op": "copy", "from": "/spec/l/0", "path": "/spec/b"}, False),
        ({"op": "move", "from": "/spec/a", "path": "/spec/b"}, False),
    ],
)
def test_operations_that_are_about_the_object_as_it_was(step, safe):
    """A place in a list may be another's by now, a whole list may have grown, a move can't be done twice."""
    change = change_of([step], POD)
    assert (change.hazard(POD) is None) == safe


# ---- bad input -------------------------------------------------------------------------------------------------------


class Odd:
    pass


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        (None, "patch"),
        ("x", "patch"),
        (b"x", "patch"),
        (3, "patch"),
        (Odd(), "patch"),
        ({1, 2}, "patch"),
        ({}, "patch"),
        ([], "patch"),
        ({"a": math.nan}, "patch"),
        ({"a": Odd()}, "patch"),
        ({"a": {1}}, "patch"),
        ({"metadata": None}, "patch.metadata"),
        ({"metadata": []}, "patch.metadata"),
        ({"status": {}}, "patch.status"),
        ([None], "patch[0]"),
        (["x"], "patch[0]"),
        ([{}], "patch[0].op"),
        ([{"op": "set", "path": "/a"}], "patch[0].op"),
        ([{"op": ["add"], "path": "/a"}], "patch[0].op"),
        ([{"op": "add", "value": 1}], "patch[0].path"),
        ([{"op": "add", "path": "/a"}], "patch[0].value"),
        ([{"op": "add", "path": "a", "value": 1}], "patch[0].path"),
        ([{"op": "add", "path": 3, "value": 1}], "patch[0].path"),
        ([{"op": "add", "path": "", "value": 1}], "patch[0].path"),
        ([{"op": "remove", "path": "/a~2"}], "patch[0].path"),
        ([{"op": "move", "path": "/a"}], "patch[0].from"),
        ([{"op": "copy", "path": "/a", "from": "b"}], "patch[0].from"),
        ([{"op": "remove", "path": "/a"}, {"op": "remove"}], "patch[1].path"),
        ([{"op": "replace", "path": "/status/phase", "value": "x"}], "patch.status"),
    ],
)
def test_what_is_no_patch(patch, field):
    """A named error that says the field, before anything is queued."""
    with pytest.raises(ConfigurationError) as caught:
        change_of(patch, POD)
    assert caught.value.field == field


def test_patches_that_the_server_refuses_or_ignores():
    """415 for a strategic patch of a custom resource; what `status` ignores."""
    with pytest.raises(ConfigurationError, match="415"):
        change_of({"spec": {}}, WIDGET, strategic=True)
    with pytest.raises(ConfigurationError, match="JSON Patch"):
        change_of([{"op": "remove", "path": "/a"}], POD, strategic=True)
    with pytest.raises(ConfigurationError, match=r"patch\.spec"):
        change_of({"spec": {"x": 1}}, WIDGET, subresource="status")
    change_of({"status": {"x": 1}}, WIDGET)  # it may have no subresource
    change_of({"status": {"x": 1}, "metadata": {"labels": {}}}, POD, subresource="status")


def test_no_message_tells_a_value():
    """There may be a secret in a patch."""
    secret = ObjectRef("v1", "Secret", "ns", "s")
    for patch in ({"data": {"password": "aHVzaA=="}, "x": Odd()}, [{"op": "add", "value": "aHVzaA=="}], "aHVzaA=="):
        with pytest.raises(ConfigurationError) as caught:
            change_of(patch, secret)
        assert "aHVzaA" not in str(caught.value)
    assert repr(MergePatch({"data": {"password": "aHVzaA=="}})) == "<MergePatch>"
    nested = {"data": ["aHVzaA=="]}
    assert MergePatch(nested).hazard(secret) == "data"


@given(OBJECTS)
def test_json_patches_say_what_the_library_says(obj):
    """`apply` of a JSON Patch from one document to another gives the other, and then there is nothing left to do."""
    other = {"a": {"x": 1}, "b": "y"}
    steps = jsonpatch.make_patch(obj, other).patch
    if steps:
        assert JsonPatch(steps).apply(obj) == other
