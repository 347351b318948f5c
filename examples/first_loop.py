"""A scheduler in one loop: it binds the pending Pods that ask for `schedulerName: asyncdispatch`, and ends.

On an API server of its own, or on yours: python examples/first_loop.py [--kubeconfig PATH] [--context NAME]
"""

import argparse
import asyncio
import itertools

from kubernetes_asyncio import client, config

from asyncdispatch import Backpressure, Dispatcher, Succeeded
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import EmbeddedAPIServer


async def decisions(v1):
    """Each pending Pod with a node: those that take Pods, in turn."""
    nodes = [node for node in (await v1.list_node()).items if not (node.spec.unschedulable or node.spec.taints)]
    if not nodes:
        raise SystemExit("no node takes Pods")
    pending = "spec.schedulerName=asyncdispatch,spec.nodeName=,status.phase=Pending"
    pods = await v1.list_pod_for_all_namespaces(field_selector=pending)
    for pod, node in zip(pods.items, itertools.cycle(nodes), strict=False):
        yield pod, node


async def schedule(api_client):
    """Bind what is pending. Returns how many Pods could not be bound this time."""
    cluster, handles, left = Cluster(api_client), [], 0
    async with Dispatcher() as dispatcher:  # leaving waits for the calls that are on their way
        async for pod, node in decisions(client.CoreV1Api(api_client)):
            try:
                handles.append(await dispatcher.dispatch(cluster.bind(pod, node)))
            except Backpressure:
                left += 1  # too much is on its way already: the Pod stays pending, for the next time
    print(*handles, sep="\n")
    return left + sum(not isinstance(handle.settled, Succeeded) for handle in handles)


async def main(kubeconfig, context):
    if kubeconfig or context:
        async with await config.new_client_from_config(kubeconfig, context) as api_client:
            return await schedule(api_client)
    async with EmbeddedAPIServer(latency=0.02) as server:
        for name in ("node-a", "node-b", "node-c"):
            server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}})
        spec = {"schedulerName": "asyncdispatch", "containers": [{"name": "main", "image": "app"}]}
        for name in "abcdefghi":
            server.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{name}"}, "spec": spec})
        return await schedule(server.api_client())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig")
    parser.add_argument("--context")
    left = asyncio.run(main(**vars(parser.parse_args())))
    print(f"done, {left} Pods are left for another time" if left else "done, all pending Pods are bound")
    raise SystemExit(left > 0)
