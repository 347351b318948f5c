"""Replacing an object whole: always fenced by the version that it was made from."""

from typing import Any

import pytest
from kubernetes_asyncio.client import V1ConfigMap, V1ObjectMeta

from asyncdispatch import CallFailed, Dispatcher
from asyncdispatch.calls import Applied, Refused, VerdictKind
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.outcomes import Failed
from tests.kubernetes.documents import config_map, widget
from tests.kubernetes.support import FakeClient, pod_dict

OFFLINE: Any = Cluster(FakeClient())


@pytest.fixture
def widgets(server):
    server.register("example.com/v1", "Widget", "widgets")
    return server


async def test_a_replacement(server, cluster):
    """The body is the object whole, with the fences of what it was made from."""
    made = server.create(config_map(a="1"))
    async with Dispatcher() as dispatcher:
        found = await dispatcher.run(cluster.replace({**made, "data": {"b": "2"}}))
    assert found["data"] == {"b": "2"} == server.get(made)["data"]
    assert server.audit[0].body["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_replacement_by_model(server, cluster):
    """A client's model carries its version as well."""
    made = server.create(config_map(a="1"))["metadata"]
    meta = V1ObjectMeta(name="c", namespace="ns", uid=made["uid"], resource_version=made["resourceVersion"])
    async with Dispatcher() as dispatcher:
        await dispatcher.run(cluster.replace(V1ConfigMap(metadata=meta, data={"b": "2"})))
    assert server.get("ConfigMap", "c", namespace="ns")["data"] == {"b": "2"}


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_a_replacement_of_a_custom_resource(widgets, cluster, subresource):
    """And of its status."""
    made = widgets.create(widget(size=1))
    wanted = {**made, "spec": {"size": 2}, "status": {"ready": True}}
    call = cluster.replace(wanted, subresource=subresource)
    async with Dispatcher() as dispatcher:
        found = await dispatcher.run(call)
    assert (found["spec"]["size"], "status" in found) == ((1, True) if subresource else (2, False))


async def test_a_replacement_that_lost_its_version(server, cluster):
    """Somebody has written since: it fails, and what they have written stays."""
    made = server.create(config_map(a="1"))
    server.patch_object(made, {"data": {"theirs": "1"}})
    async with Dispatcher() as dispatcher:
        with pytest.raises(CallFailed, match="decided on version"):
            await dispatcher.run(cluster.replace({**made, "data": {"b": "2"}}))
    assert server.get(made)["data"] == {"a": "1", "theirs": "1"}


async def test_a_replacement_for_another_object(server, cluster):
    """409 about the uid, settled by a read: GONE."""
    made = server.create(config_map(a="1"))
    server.recreate(made)
    async with Dispatcher() as dispatcher:
        outcome = await dispatcher.submit(cluster.replace({**made, "data": {"b": "2"}})).outcome()
    assert isinstance(outcome, Failed)
    assert outcome.verdict.kind is VerdictKind.GONE


def test_what_is_shown_of_a_replacement():
    """What is wanted, with what is the server's; only of the version that it was made from."""
    pod = pod_dict()
    wanted = {**pod, "spec": {"containers": [], "x": 1}, "status": {"phase": "mine"}}
    call = OFFLINE.replace(wanted)
    shown = call.apply({**pod, "metadata": {**pod["metadata"], "generation": 4, "labels": {"a": "1"}}})
    assert shown["metadata"] == {**pod["metadata"], "generation": 4}
    assert (shown["spec"]["x"], shown["status"]) == (1, {"phase": "Pending"})
    status = OFFLINE.replace(wanted, subresource="status").apply(pod)
    assert (status["spec"], status["status"]) == (pod["spec"], {"phase": "mine"})
    for other in (pod_dict(version="6"), pod_dict(uid="u2"), None):
        assert call.apply(other) == other


def test_when_a_replacement_is_there():
    """What its writers decide is equal: not what the server adds, and not a status that it ignores."""
    pod = pod_dict()
    call = OFFLINE.replace({**pod, "spec": {"x": 1}})
    found = {**pod_dict(version="6"), "spec": {"x": 1}, "status": {"phase": "Running"}}
    found["metadata"]["managedFields"] = []
    assert call.settled_by(found, False) == Applied(found)
    assert isinstance(call.settled_by({**found, "spec": {"x": 1, "y": 2}}, False), Refused)
    ready = OFFLINE.replace(
        {**widget(), "metadata": {**widget()["metadata"], "resourceVersion": "5"}, "status": {"r": 1}}
    )
    other = {**widget(), "metadata": {**widget()["metadata"], "resourceVersion": "6"}, "status": {"r": 2}}
    assert isinstance(ready.settled_by(other, False), Refused)
    status = OFFLINE.replace(ready.obj, subresource="status")
    assert isinstance(status.settled_by({**other, "status": {"r": 1}, "spec": {"z": 1}}, False), Applied)
