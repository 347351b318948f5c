"""Rows about lists, selectors and watches."""

import json
from typing import Any

from asyncdispatch.testing import answers
from tests.facts.world import World, embedded_only, refused, scenario


async def names(world: World, query: str = "") -> list[str]:
    reply = await world.get(world.pods() + query)
    assert reply.status == 200, reply.text
    return [item["metadata"]["name"] for item in reply.json["items"]]


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@scenario
async def pods_are_found_by_node_and_hint(world: World) -> None:
    """spec.nodeName and status.nominatedNodeName are field selectors."""
    for name in ("bound", "hinted", "free"):
        await world.pod(name)
    assert (await world.bind("bound")).status == 201
    assert (await world.hint("n2", "hinted")).status == 200
    assert await names(world, "?fieldSelector=spec.nodeName%3Dn1") == ["bound"]
    assert await names(world, "?fieldSelector=spec.nodeName%3D") == ["free", "hinted"]
    assert await names(world, "?fieldSelector=status.nominatedNodeName%3Dn2") == ["hinted"]


@scenario
async def a_list_in_pages(world: World) -> None:
    """All pages show one state."""
    for name in ("a", "b", "c"):
        await world.pod(name)
    first = (await world.get(world.pods() + "?limit=2")).json
    await world.pod("d")
    rest = (await world.get(world.pods() + f"?limit=2&continue={first['metadata']['continue']}")).json
    assert [item["metadata"]["name"] for item in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert first["metadata"]["resourceVersion"] == rest["metadata"]["resourceVersion"]


@scenario
async def a_watch_that_ends_by_its_time_out(world: World) -> None:
    """What is there comes as ADDED, one JSON object a line; then the stream ends."""
    await world.pod()
    reply = await world.get(world.pods() + "?watch=1&timeoutSeconds=1")
    assert reply.status == 200
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events(reply.text)] == [("ADDED", "web")]


@scenario
async def a_watch_of_pods_that_end(world: World) -> None:
    """A Pod is seen to be dying before it is seen to be gone, even if it ends at once; what has no grace is not."""
    path = world.path("configmaps")
    made = await world.pod()
    version = made["metadata"]["resourceVersion"]
    assert (await world.delete(world.pods("web"))).status == 200
    assert (await world.post(path, {"metadata": {"name": "c"}})).status == 201
    assert (await world.delete(f"{path}/c")).status == 200
    query = f"?watch=1&timeoutSeconds=1&resourceVersion={version}"
    told = [
        (event["type"], event["object"]["metadata"]) for event in events((await world.get(world.pods() + query)).text)
    ]
    assert [(kind, one["deletionGracePeriodSeconds"]) for kind, one in told] == [("MODIFIED", 0), ("DELETED", 0)]
    told = [
        (event["type"], event["object"]["metadata"]["name"]) for event in events((await world.get(path + query)).text)
    ]
    assert [kind for kind, name in told if name == "c"] == ["ADDED", "DELETED"]


@embedded_only
async def a_watch_from_too_old_a_version(world: World) -> None:
    """410 Gone, as an ERROR event inside of a 200, or by HTTP."""
    await world.pod()
    world.server.compact()
    reply = await world.get(world.pods() + "?watch=1&resourceVersion=1")
    (event,) = events(reply.text)
    assert (reply.status, event["type"], event["object"]["code"]) == (200, "ERROR", 410)
    world.server.fail(answers.gone(), verb="watch")
    refused(await world.get(world.pods() + "?watch=1&resourceVersion=1"), 410, "Expired", "too old resource version")


@embedded_only
async def a_page_that_expired(world: World) -> None:
    """410, with a token to go on from what is there now."""
    for name in ("a", "b"):
        await world.pod(name)
    first = (await world.get(world.pods() + "?limit=1")).json
    world.server.expire_pages()
    status = refused(
        await world.get(world.pods() + f"?limit=1&continue={first['metadata']['continue']}"), 410, "Expired"
    )
    assert await names(world, f"?continue={status['metadata']['continue']}") == ["b"]


@embedded_only
async def a_list_that_is_refused(world: World) -> None:
    """429 in plain text, and 503 with nothing."""
    world.server.fail(answers.throttled(), verb="list")
    reply = await world.get(world.pods())
    assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
    world.server.fail(answers.empty(503), verb="watch")
    reply = await world.get(world.pods() + "?watch=1")
    assert (reply.status, reply.text) == (503, "")
