"""Client models where a dict is meant: read from a server by its typed client, then observed beside our own writes."""

from typing import Any

import pytest

from asyncdispatch import Dispatcher
from asyncdispatch.config import DispatcherConfig, IdempotencyPolicy
from asyncdispatch.kubernetes import Cluster, DispatchingApiClient
from asyncdispatch.testing import EmbeddedAPIServer
from tests.kubernetes.support import pod_dict

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "ns"}, "data": {"a": "1"}}


async def read_pod(library: Any, api_client: Any) -> Any:
    """As an item of a typed list, which does not say its kind."""
    pods = await library.CoreV1Api(api_client).list_namespaced_pod("ns")
    (pod,) = pods.items
    return pod


async def test_a_model_is_shown_with_our_writes(
    server: EmbeddedAPIServer, cluster: Cluster, api_client: Any, library: Any
) -> None:
    """A bind that waits, and one that was done; the old model seen again is not taken for proof of it (law L18)."""
    server.create(pod_dict(uid=None, version=None))
    old = await read_pod(library, api_client)
    async with Dispatcher() as dispatcher:
        assert dispatcher.observe(old) is old
        handle = dispatcher.submit(cluster.bind(old, "n1"))
        for _ in range(2):
            for shown in (dispatcher.observe(old), *dispatcher.overlay([old], api_version="v1", kind="Pod")):
                assert (shown["kind"], shown["spec"]["nodeName"]) == ("Pod", "n1")
            await handle
        assert old.spec.node_name is None
        assert dispatcher.statistics().unobserved == 1
        new = await read_pod(library, api_client)
        assert dispatcher.observe(new) is new
        assert dispatcher.statistics().unobserved == 0


@pytest.mark.parametrize("write", ["patch", "decided", "status", "delete"])
async def test_each_write_is_shown_in_a_model(
    write: str, server: EmbeddedAPIServer, cluster: Cluster, api_client: Any, library: Any
) -> None:
    server.create(pod_dict(uid=None, version=None))
    old = await read_pod(library, api_client)
    label = {"metadata": {"labels": {"team": "b"}}}
    calls: dict[str, Any] = {
        "patch": lambda: cluster.patch(old, label),
        "decided": lambda: cluster.patch(old, lambda pod: label),
        "status": lambda: cluster.patch_status(old, nominated_node="n1"),
        "delete": lambda: cluster.delete(old),
    }
    async with Dispatcher() as dispatcher:
        await dispatcher.run(calls[write]())
        shown = dispatcher.observe(old)
        assert dispatcher.observe(old) == shown
        if write == "delete":
            assert shown is None
        elif write == "status":
            assert shown["status"]["nominatedNodeName"] == "n1"
        else:
            assert shown["metadata"]["labels"] == {"team": "b"}
            assert shown["metadata"]["uid"] == old.metadata.uid


@pytest.mark.parametrize("fenced", [True, False])
async def test_a_deletion_by_a_typed_client_ends_the_memory_of_keys(
    fenced: bool, server: EmbeddedAPIServer, cluster: Cluster, api_client: Any, library: Any
) -> None:
    """Rule R9: what was created under a key is created again, once it is gone."""
    config = DispatcherConfig(idempotency=IdempotencyPolicy(ttl=60.0))
    async with Dispatcher(config) as dispatcher:
        api = library.CoreV1Api(DispatchingApiClient(dispatcher, api_client))
        first = await dispatcher.run(cluster.create(CONFIG_MAP, idempotency_key="k"))
        preconditions = library.V1Preconditions(uid=first["metadata"]["uid"])
        body = library.V1DeleteOptions(preconditions=preconditions) if fenced else None
        await api.delete_namespaced_config_map("c", "ns", **({"body": body} if body else {}))
        second = await dispatcher.run(cluster.create(CONFIG_MAP, idempotency_key="k"))
        assert second["metadata"]["uid"] != first["metadata"]["uid"]
