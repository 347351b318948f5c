"""What callers may hand in, and what is refused with a word on what to do."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from kubernetes_asyncio.client import V1Container, V1Node, V1ObjectMeta, V1Pod, V1PodSpec

from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.kubernetes.objects import (
    annotations_of,
    field_of,
    node_name,
    pod_ref,
    priority_of,
    timestamp,
    to_json,
)
from tests.kubernetes.support import FakeClient, pod_dict

OFFLINE: Any = Cluster(FakeClient())


def model(**meta):
    given = {"name": "p", "namespace": "ns", "uid": "u1", "resource_version": "5", **meta}
    return V1Pod(metadata=V1ObjectMeta(**given), spec=V1PodSpec(containers=[V1Container(name="c")], priority=7))


def test_json_is_copied():
    """The caller may go on changing what it handed in."""
    given = {"a": {"b": [1, "x", None, True]}}
    result = to_json(given, "obj")
    assert result == given
    result["a"]["b"].append(2)
    assert given == {"a": {"b": [1, "x", None, True]}}


def test_models_become_json():
    """By the API's own names, without what is not set, with times as the API writes them."""
    pod = model(creation_timestamp=datetime(2026, 1, 2, 3, 4, 5, 678, UTC))
    assert to_json({"day": date(2026, 1, 2), "pod": pod}, "obj") == {
        "day": "2026-01-02",
        "pod": {
            "metadata": {
                "name": "p",
                "namespace": "ns",
                "uid": "u1",
                "resourceVersion": "5",
                "creationTimestamp": "2026-01-02T03:04:05Z",
            },
            "spec": {"containers": [{"name": "c"}], "priority": 7},
        },
    }


def test_times_are_in_utc():
    """A moment without a zone is taken for UTC, as clients give them."""
    east = timezone(timedelta(hours=2))
    assert timestamp(datetime(2026, 1, 2, 3, 0, tzinfo=east)) == "2026-01-02T01:00:00Z"
    assert timestamp(datetime(2026, 1, 2, 3, 0)) == "2026-01-02T03:00:00Z"


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, {"a": float("nan")}, {"a": b"x"}])
def test_what_is_not_json_is_refused(value):
    """When the call is made, not when it is sent."""
    with pytest.raises(ConfigurationError, match=r"^obj="):
        to_json(value, "obj")
    recursive: dict = {}
    recursive["self"] = recursive
    with pytest.raises(ConfigurationError, match=r"^obj="):
        to_json(recursive, "obj")


def test_fields_of_dicts_and_models():
    """One path of JSON keys for both; None where anything is missing."""
    for pod in (model(), to_json(model(), "pod")):
        assert field_of(pod, "metadata", "resourceVersion") == "5"
        assert field_of(pod, "spec", "nodeName") is None
        assert field_of(pod, "status", "phase", "x") is None
        assert priority_of(pod) == 7
    assert priority_of({"spec": {"priority": True}}) == 0
    assert priority_of({}) == 0


def test_pods_are_told_by_their_metadata():
    """Dicts, models and refs; an item of a list has neither kind nor version."""
    ref = ObjectRef("v1", "Pod", "ns", "p", "u1")
    item = {key: value for key, value in pod_dict().items() if key not in ("kind", "apiVersion")}
    for pod in (pod_dict(), item, model(), ref):
        assert pod_ref(pod) == ref


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        ({**pod_dict(), "kind": "Node"}, r"pod\.kind='Node'"),
        (ObjectRef("v1", "Node", None, "n1", "u1"), r"pod\.kind='Node'"),
        (ObjectRef("example.com/v1", "Pod", "ns", "p", "u1"), r"pod\.kind"),
        (pod_dict(uid=None), r"pod\.metadata\.uid"),
        (ObjectRef("v1", "Pod", "ns", "p"), r"pod\.metadata\.uid"),
        (model(namespace=None), r"pod\.metadata\.namespace"),
        (model(name=None), r"pod\.metadata\.name"),
        ({}, r"pod\.metadata\.name"),
        ("p", r"pod\.metadata\.name"),
        (None, r"pod\.metadata\.name"),
    ],
)
def test_what_is_no_pod_is_refused(pod, field):
    """By an error that names the field."""
    with pytest.raises(ConfigurationError, match=field):
        pod_ref(pod)


def test_nodes_are_told_by_name():
    """A name, an object, a model or a ref."""
    nodes = ("n1.example", {"metadata": {"name": "n1.example"}}, V1Node(metadata=V1ObjectMeta(name="n1.example")))
    for node in (*nodes, ObjectRef("v1", "Node", None, "n1.example")):
        assert node_name(node) == "n1.example"


@pytest.mark.parametrize(
    "node", ["", "N1", "n_1", "-n", "n-", "n..1", "n1\n", "n" * 254, None, 7, {}, {"metadata": {}}]
)
def test_what_no_node_could_be_named_is_refused(node):
    """The API server accepts a bind to a node that does not exist, so a slip would not come to light."""
    with pytest.raises(ConfigurationError, match=r"^node="):
        node_name(node)


def test_annotations():
    """Copied; and strings only, as the API server has them."""
    given = {"a": "1"}
    assert annotations_of(given) == given
    assert annotations_of(given) is not given
    assert annotations_of(None) == {}
    for bad in (["a"], {"a": 1}, {1: "a"}, {"": "a"}):
        with pytest.raises(ConfigurationError, match="annotations"):
            annotations_of(bad)


def _named(**meta):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "u", **meta}}


MAKES: dict[str, Any] = {
    "create": lambda obj: OFFLINE.create({**obj, "metadata": {**obj["metadata"], "uid": None}}),
    "read": OFFLINE.read,
    "patch": lambda obj: OFFLINE.patch(obj, {"metadata": {"labels": {"a": "1"}}}),
    "replace": lambda obj: OFFLINE.replace({**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}}),
    "delete": OFFLINE.delete,
    "evict": OFFLINE.evict,
    "bind": lambda obj: OFFLINE.bind(obj, "n1"),
    "patch_status": lambda obj: OFFLINE.patch_status(obj, nominated_node="n1"),
    "event": lambda obj: OFFLINE.event(obj, reason="R", message="m"),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())
@pytest.mark.parametrize(
    "meta",
    [{"name": name} for name in (".", "..", "a/b", "../x", "a%2Fb", 3, ["p"])]
    + [{"namespace": name} for name in ("..", "a/../b", "a%b", 3)],
    ids=str,
)
def test_names_that_can_stand_in_no_path_are_refused_at_once(make, meta):
    """As a call is made, by the field: the server has no such object, and a path would lead elsewhere."""
    assert make(_named()).target
    (field,) = meta
    with pytest.raises(ConfigurationError, match=rf"{field}="):
        make(_named(**meta))


def test_refs_plurals_and_subresources_stand_in_paths_as_well():
    """What a ref or a keyword says is looked at in the same way; a generated name's beginning, too."""
    for make in (OFFLINE.read, OFFLINE.delete, lambda ref: OFFLINE.bind(ref, "n1")):
        with pytest.raises(ConfigurationError, match=r"metadata\.name='a/b'"):
            make(ObjectRef("v1", "Pod", "ns", "a/b", "u"))
    with pytest.raises(ConfigurationError, match="plural='a/b'"):
        OFFLINE.read(_named(), plural="a/b")
    with pytest.raises(ConfigurationError, match=r"subresource='\.\./x'"):
        OFFLINE.patch(_named(), {"a": 1}, subresource="../x")
    with pytest.raises(ConfigurationError, match=r"metadata\.name='a/\*'"):
        OFFLINE.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "a/", "namespace": "ns"}})
    assert OFFLINE.read(
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:a"}}
    )
