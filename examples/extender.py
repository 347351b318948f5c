"""A scheduler extender: kube-scheduler decides, and its binds go through a Dispatcher. Retiring nodes are left out.

By itself, with a made-up kube-scheduler on an API server of its own; or for yours, until interrupted:
python examples/extender.py [--kubeconfig PATH] [--context NAME] [--port 8888]

kube-scheduler is told of it in the file that its --config names (nodeCacheCapable: it sends names, not whole nodes):

    extenders:
    - {urlPrefix: "http://127.0.0.1:8888", filterVerb: filter, bindVerb: bind, nodeCacheCapable: true, httpTimeout: 30s}
"""

import argparse
import asyncio
import signal
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from asyncdispatch import Dispatcher, DispatchError, ObjectRef
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import EmbeddedAPIServer

RETIRING = "example.com/retiring"  # a label
TIMEOUT = 25  # seconds; less than kube-scheduler's httpTimeout, so that it hears how a bind ended


class Extender:
    """Answers kube-scheduler. Its binds wait in the dispatcher, if they must, and are retried there."""

    def __init__(self, cluster, dispatcher, nodes):
        self.cluster, self.dispatcher, self.nodes = cluster, dispatcher, nodes
        self.routes = [web.post("/filter", self.filter), web.post("/bind", self.bind)]

    async def filter(self, request):
        """ExtenderArgs → ExtenderFilterResult: which of the nodes that kube-scheduler found would do for us, too."""
        names = (await request.json())["NodeNames"] or []
        failed = {name: "node is retiring" for name in names if self.is_retiring(name)}
        return web.json_response({"NodeNames": [name for name in names if name not in failed], "FailedNodes": failed})

    def is_retiring(self, name):
        node = self.nodes.get(None, name)
        return node is not None and RETIRING in node["metadata"].get("labels", {})

    async def bind(self, request):
        """ExtenderBindingArgs → ExtenderBindingResult. Of this very Pod: the uid is a precondition.

        The answer is the outcome. One that asks twice for the same, because it did not hear, joins the first.
        """
        args = await request.json()
        pod = ObjectRef("v1", "Pod", args["PodNamespace"], args["PodName"], args["PodUID"])
        call = self.cluster.bind(pod, args["Node"], timeout=TIMEOUT, idempotency_key=(pod.uid, args["Node"]))
        try:
            await self.dispatcher.run(call)
        except DispatchError as error:
            print(f"{pod}: {error}")
            return web.json_response({"Error": str(error)})
        print(f"{pod}: bound to {args['Node']}")
        return web.json_response({"Error": ""})


@asynccontextmanager
async def serving(cluster, dispatcher, port):
    """The extender, ready for kube-scheduler, at the URL that this gives. Leaving it answers what was asked first."""
    async with cluster.reflector("v1", "Node", dispatcher=dispatcher) as nodes:
        await nodes.synced()
        app = web.Application(client_max_size=64 * 1024**2)
        app.add_routes(Extender(cluster, dispatcher, nodes).routes)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def small_world(server):
    """Two nodes, one of them retiring, and five Pods, the last of which was made anew meanwhile."""
    for name, labels in (("a", {}), ("b", {RETIRING: ""})):
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}})
    head, spec = {"apiVersion": "v1", "kind": "Pod"}, {"containers": [{"name": "main", "image": "app"}]}
    pods = [server.create({**head, "metadata": {"name": f"pod-{n}"}, "spec": spec}) for n in range(5)]
    server.recreate(pods[4])
    return pods


async def ask_as_kube_scheduler(pods, url):
    """Filter and bind each Pod. Returns what was wrong with it, in order."""
    async with aiohttp.ClientSession(url) as session:

        async def place(pod):
            async with session.post("/filter", json={"Pod": pod, "NodeNames": ["a", "b"]}) as response:
                (node,) = (await response.json())["NodeNames"]
            meta = pod["metadata"]
            args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
            async with session.post("/bind", json=args) as response:
                return (await response.json())["Error"]

        return await asyncio.gather(*map(place, pods))


async def main(kubeconfig, context, port):
    if kubeconfig or context:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with (
            Cluster.connect(kubeconfig, context) as cluster,
            Dispatcher() as dispatcher,
            serving(cluster, dispatcher, port) as url,
        ):
            print(f"serving at {url}", flush=True)
            await stop.wait()
        return 0
    async with EmbeddedAPIServer(latency=0.02) as server, server.api_client() as api_client:
        pods = small_world(server)
        async with Dispatcher() as dispatcher, serving(Cluster(api_client), dispatcher, 0) as url:
            server.fail(times=2, status=503, verb="bind")  # of which kube-scheduler hears nothing
            errors = await ask_as_kube_scheduler(pods, url)
        nodes = [pod["spec"].get("nodeName") for pod in server.objects.of("Pod")]
    return sum(map(bool, errors[:4])) + (not errors[4]) + (nodes != ["a"] * 4 + [None])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig")
    parser.add_argument("--context")
    parser.add_argument("--port", type=int, default=8888)
    wrong = asyncio.run(main(**vars(parser.parse_args())))
    print(f"done, {wrong} answers were not right" if wrong else "done, every answer was right")
    raise SystemExit(wrong > 0)
