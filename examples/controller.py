"""A controller in plain kubernetes-asyncio, made asynchronous by one line: each Website gets a ConfigMap with its page.

On an API server of its own, or on yours, where Website (example.com/v1, websites) has to be served:
python examples/controller.py [--kubeconfig PATH] [--context NAME] [--follow]
"""

import argparse
import asyncio

from kubernetes_asyncio import client, config, watch

from asyncdispatch import Dispatcher, DispatchError
from asyncdispatch.kubernetes import DispatchingApiClient
from asyncdispatch.testing import EmbeddedAPIServer

WEBSITES = ("example.com", "v1", "websites")
MERGE = {"_content_type": "application/merge-patch+json"}


async def reconcile(v1, custom, site):
    """Bring the ConfigMap of one Website up to date, and say so in its status. Returns 1 if that failed, else 0."""
    name, namespace = site["metadata"]["name"], site["metadata"]["namespace"]
    page = {"index.html": f"<h1>{site['spec']['title']}</h1>"}
    try:
        try:
            found = await v1.read_namespaced_config_map(name, namespace)
            if found.data != page:
                await v1.patch_namespaced_config_map(name, namespace, {"data": page})
        except client.ApiException as error:  # the client's own errors, as ever
            if error.status != 404:
                raise
            body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=page)
            await v1.create_namespaced_config_map(namespace, body)
        status = {"status": {"observedGeneration": site["metadata"]["generation"]}}
        await custom.patch_namespaced_custom_object_status(
            "example.com", "v1", namespace, "websites", name, status, **MERGE
        )
    except (client.ApiException, DispatchError) as error:  # a DispatchError: no time left, or nobody knows its fate
        print(f"{namespace}/{name}: {error}")
        return 1
    print(f"{namespace}/{name}: up to date")
    return 0


def is_new(site):
    return site.get("status", {}).get("observedGeneration") != site["metadata"]["generation"]


async def control(api_client, follow):
    """Reconcile all Websites, and with `follow` each one that changes. Returns how many failed at first."""
    async with Dispatcher() as dispatcher, asyncio.TaskGroup() as tasks:
        api_client = DispatchingApiClient(dispatcher, api_client)  # the one line
        v1, custom = client.CoreV1Api(api_client), client.CustomObjectsApi(api_client)
        found = await custom.list_cluster_custom_object(*WEBSITES)
        failed = sum(await asyncio.gather(*(reconcile(v1, custom, site) for site in found["items"])))
        if follow:
            since = found["metadata"]["resourceVersion"]
            stream = watch.Watch().stream(custom.list_cluster_custom_object, *WEBSITES, resource_version=since)
            async for event in stream:
                if event["type"] in ("ADDED", "MODIFIED") and is_new(event["object"]):
                    tasks.create_task(reconcile(v1, custom, event["object"]))
    return failed


async def main(kubeconfig, context, follow):
    if kubeconfig or context:
        async with await config.new_client_from_config(kubeconfig, context) as api_client:
            return await control(api_client, follow)
    async with EmbeddedAPIServer(latency=0.02) as server:
        server.register("example.com/v1", "Website", "websites")
        for name in ("blog", "docs", "shop"):
            head = {"apiVersion": "example.com/v1", "kind": "Website"}
            server.create({**head, "metadata": {"name": name, "namespace": "default"}, "spec": {"title": name}})
        server.fail(times=4, status=503)  # a bad day, of which the controller hears nothing
        return await control(server.api_client(), follow)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig")
    parser.add_argument("--context")
    parser.add_argument("--follow", action="store_true", help="go on with what changes, until interrupted")
    failed = asyncio.run(main(**vars(parser.parse_args())))
    print(f"done, {failed} Websites failed" if failed else "done, all Websites are up to date")
    raise SystemExit(failed > 0)
