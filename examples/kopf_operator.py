"""A kopf operator whose handlers send through a Dispatcher: each Website gets a ConfigMap with its page.

By itself, on an API server of its own: python examples/kopf_operator.py
On your cluster, where Website (example.com/v1, websites) has to be served:
kopf run examples/kopf_operator.py --standalone --namespace default
"""

import asyncio
import json
import logging
import os
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import kopf

from asyncdispatch import CallFailed, Dispatcher, DispatchError, ObjectRef
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import EmbeddedAPIServer

WEBSITES = ("example.com", "v1", "websites")


@kopf.on.login()
async def login(**kwargs):
    """As `Cluster.connect` finds the cluster: by the service account in a Pod, else by KUBECONFIG."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


@kopf.on.startup()
async def start(memo, **_):
    """Comes before all other handlers, and in the event loop in which they run, if they are coroutines."""
    memo.stack = AsyncExitStack()
    memo.cluster = await memo.stack.enter_async_context(Cluster.connect())
    memo.dispatcher = await memo.stack.enter_async_context(Dispatcher())


@kopf.on.cleanup()
async def stop(memo, **_):
    """No other handler runs any more. What they have left behind is carried out, within the drain_timeout."""
    await memo.stack.aclose()


@kopf.on.create(*WEBSITES)
@kopf.on.update(*WEBSITES)
@kopf.on.resume(*WEBSITES)
async def page(name, namespace, uid, spec, body, memo, **_):
    """Bring the page up to date. The dispatcher sees to what the server is at fault for, kopf to what is left then."""
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
    config_map["data"] = {"index.html": f"<h1>{spec['title']}</h1>"}
    try:
        try:
            patch = memo.cluster.patch(ObjectRef.of(config_map), {"data": config_map["data"]})
            await memo.dispatcher.run(patch)
        except CallFailed as error:
            if getattr(error.__cause__, "status", None) != 404:
                raise
            kopf.adopt(config_map, owner=body)
            # Its key marks it as this Website's: whoever tries again finds what the first try has made.
            await memo.dispatcher.run(memo.cluster.create(config_map, idempotency_key=f"{uid}/page"))
    except DispatchError as error:
        raise kopf.TemporaryError(str(error), delay=10) from error
    return {"ready": True}


async def main():
    """Run the operator on a server of its own until all is done. Returns how many Websites are without their page."""
    async with EmbeddedAPIServer(latency=0.02) as server:
        server.register("example.com/v1", "Website", "websites")
        for name in ("blog", "docs", "shop"):
            head = {"apiVersion": "example.com/v1", "kind": "Website"}
            server.create({**head, "metadata": {"name": name, "namespace": "default"}, "spec": {"title": name}})
        server.fail(times=2, status=503, path="*/configmaps*")  # a bad day, of which kopf hears nothing
        with tempfile.TemporaryDirectory() as folder:
            os.environ["KUBECONFIG"] = str(kubeconfig(Path(folder), server.url))
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(kopf.operator(standalone=True, namespaces=["default"], stop_flag=stop))
                await all_ready(server)
                stop.set()
        return 3 - len(server.objects.of("ConfigMap", "default"))


async def all_ready(server):
    async with asyncio.timeout(20):
        while True:
            if all(site.get("status", {}).get("page") for site in server.objects.of("Website")):
                return
            await asyncio.sleep(0.1)


def kubeconfig(folder, url):
    path = folder / "config"
    parts = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "here", **parts}))
    return path


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    missing = asyncio.run(main())
    print(f"done, {missing} pages are missing" if missing else "done, every Website has its page")
    raise SystemExit(missing > 0)
