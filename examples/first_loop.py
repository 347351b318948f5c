"""A scheduler in one loop: it binds the pending Pods that ask for `schedulerName: asyncdispatch`, and ends.

python examples/first_loop.py                                        on an API server of its own
python examples/first_loop.py --kubeconfig PATH [--context NAME]     on yours
"""

import argparse
import asyncio
import itertools
import sys

from kubernetes_asyncio import client, config

from asyncdispatch import Backpressure, Dispatcher, Succeeded
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import EmbeddedAPIServer

PENDING = "spec.schedulerName=asyncdispatch,spec.nodeName=,status.phase=Pending"


async def decisions(v1):
    """Each pending Pod with a node: those that take Pods, in turn."""
    nodes = [node for node in (await v1.list_node()).items if not (node.spec.unschedulable or node.spec.taints)]
    pods = (await v1.list_pod_for_all_namespaces(field_selector=PENDING)).items
    for pod, node in zip(pods, itertools.cycle(nodes) if nodes else (), strict=False):
        yield pod, node


async def schedule(api_client):
    """Bind what is pending. Returns how many Pods were bound, and how many not."""
    cluster, handles, left = Cluster(api_client), [], 0
    async with Dispatcher() as dispatcher:  # leaving waits for the calls that are on their way
        async for pod, node in decisions(client.CoreV1Api(api_client)):
            try:
                handles.append(await dispatcher.dispatch(cluster.bind(pod, node)))
            except Backpressure:
                left += 1  # too much is on its way already: the Pod stays pending, for the next time
    for handle in handles:
        print(f"{handle.call}: {type(handle.settled).__name__}", handle.settled.cause or "")
    bound = sum(isinstance(handle.settled, Succeeded) for handle in handles)
    return bound, left + len(handles) - bound


async def main(kubeconfig, context):
    if kubeconfig:
        async with await config.new_client_from_config(kubeconfig, context) as api_client:
            return await schedule(api_client)
    async with EmbeddedAPIServer(latency=0.02) as server:
        for name in ("node-a", "node-b", "node-c"):
            server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}})
        spec = {"schedulerName": "asyncdispatch", "containers": [{"name": "main", "image": "app"}]}
        for name in (f"pod-{number}" for number in range(9)):
            server.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        return await schedule(server.api_client())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for option in ("--kubeconfig", "--context"):
        parser.add_argument(option)
    bound, left = asyncio.run(main(**vars(parser.parse_args())))
    print(f"{bound} Pods bound, {left} still pending")
    sys.exit(left > 0)
