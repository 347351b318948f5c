"""Kinds, plurals and paths."""

import re
from pathlib import Path

import kubernetes_asyncio
import pytest

from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.resources import (
    _BUILTIN,
    Resource,
    builtin,
    collection_path,
    group_path,
    object_path,
    regular_plural,
)

PODS = Resource("pods", True)


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("Pod", "pods"),
        ("Endpoints", "endpoints"),
        ("Ingress", "ingresses"),
        ("NetworkPolicy", "networkpolicies"),
        ("Gateway", "gateways"),
        ("Box", "boxes"),
        ("Batch", "batches"),
    ],
)
def test_regular_plurals(kind, plural):
    """The rule by which Kubernetes names almost all of its resources."""
    assert regular_plural(kind) == plural


def paths_of_the_client_library() -> set[str]:
    """Every path that the generated client knows, such as /apis/apps/v1/namespaces/{namespace}/deployments."""
    folder = Path(kubernetes_asyncio.__file__).parent / "client" / "api"
    return {path for file in folder.glob("*_api.py") for path in re.findall(r"'(/apis?/[^']*)'", file.read_text())}


def test_the_table_agrees_with_the_api():
    """Each kind of our table is served under our path, as the client that is generated from the API says."""
    served = paths_of_the_client_library()
    assert "/api/v1/namespaces/{namespace}/pods" in served
    wrong = []
    for (group, kind), resource in _BUILTIN.items():
        start = rf"/apis/{re.escape(group)}/v[a-z0-9]+" if group else "/api/v1"
        place = r"/namespaces/\{namespace\}" if resource.namespaced else ""
        pattern = re.compile(f"{start}{place}/{resource.plural}")
        if not any(pattern.fullmatch(path) for path in served):
            wrong.append((group, kind))
    assert wrong == []


def test_groups_are_told_apart():
    """Two groups may have a kind of one name; an unknown group has none of ours."""
    assert builtin(ObjectRef("events.k8s.io/v1", "Event", "ns", "e")) == Resource("events", True)
    assert builtin(ObjectRef("v1", "Event", "ns", "e")) == Resource("events", True)
    assert builtin(ObjectRef("example.com/v1", "Pod", "ns", "p")) is None


def test_paths():
    """Of the core and of other groups, in and out of namespaces, with subresources."""
    assert group_path("v1") == "/api/v1"
    assert group_path("batch/v1") == "/apis/batch/v1"
    pod, node = ObjectRef("v1", "Pod", "ns", "p"), ObjectRef("v1", "Node", None, "n1")
    assert collection_path(pod, PODS) == "/api/v1/namespaces/ns/pods"
    assert object_path(pod, PODS, "status") == "/api/v1/namespaces/ns/pods/p/status"
    assert object_path(node, Resource("nodes", False)) == "/api/v1/nodes/n1"


@pytest.mark.parametrize(
    ("name", "segment"),
    [("a.b-c", "a.b-c"), ("system:node", "system:node"), ("a/../b", "a%2F..%2Fb"), ("a?b#c%d e", "a%3Fb%23c%25d%20e")],
)
def test_no_name_leaves_its_segment(name, segment):
    """Whatever a name contains, it stays one segment of the path."""
    assert object_path(ObjectRef("v1", "Pod", "ns", name), PODS) == f"/api/v1/namespaces/ns/pods/{segment}"


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_paths_reserve(name):
    """They would walk up the path."""
    with pytest.raises(ConfigurationError, match=r"metadata\.name"):
        object_path(ObjectRef("v1", "Pod", "ns", name), PODS)


def test_namespaces_must_suit_the_kind():
    """A Pod without one and a Node with one could only be a mistake."""
    with pytest.raises(ConfigurationError, match=r"metadata\.namespace=None: a Pod is in a namespace"):
        collection_path(ObjectRef("v1", "Pod", None, "p"), PODS)
    with pytest.raises(ConfigurationError, match="a Node is in no namespace"):
        collection_path(ObjectRef("v1", "Node", "ns", "n1"), Resource("nodes", False))
