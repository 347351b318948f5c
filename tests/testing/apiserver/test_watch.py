"""Watches: where they start, what they send, how they end. All of it in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from asyncdispatch.testing import EmbeddedAPIServer
from tests.testing.apiserver.support import PODS, WIDGETS, Http, pod

pytestmark = pytest.mark.looptime


@pytest.fixture
async def small() -> AsyncIterator[Http]:
    """A server that remembers three changes, and answers what is older by an HTTP status."""
    async with (
        EmbeddedAPIServer(watch_window=3, watch_gone="status", watch_list=True, bookmark_interval=10) as server,
        aiohttp.ClientSession() as session,
    ):
        yield Http(server, session)


@pytest.mark.parametrize("version", [{}, {"resourceVersion": "0"}, {"resourceVersion": ""}])
async def test_without_a_version_it_begins_with_what_is_there(
    version: dict[str, str], server: EmbeddedAPIServer, http: Http
) -> None:
    for name in ("b", "a"):
        server.put(pod(name))
    async with http.watch(PODS, **version) as events:
        assert await events.names(2) == [("ADDED", "a"), ("ADDED", "b")]
        server.delete("Pod", "a")
        # What ends gracefully is seen to be dying, even if it ends at once.
        assert await events.names(2) == [("MODIFIED", "a"), ("DELETED", "a")]


async def test_from_a_version_on(server: EmbeddedAPIServer, http: Http) -> None:
    """Every change after the version, each once, in order, each under its own version; also those already past."""
    first = server.put(pod("a"))
    server.put(pod("b"))
    async with http.watch(PODS, resourceVersion=first["metadata"]["resourceVersion"]) as events:
        assert await events.names(1) == [("ADDED", "b")]
        changed = server.patch_object("Pod", {"metadata": {"labels": {"x": "y"}}}, "a")
        assert await events.next() == ("MODIFIED", changed)
        server.finish("Pod", "b")
        kind, obj = await events.next()
        assert (kind, obj["metadata"]["resourceVersion"]) == ("DELETED", server.resource_version)


async def test_only_what_changed_is_an_event(server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod("a", labels={"x": "y"}))
    async with http.watch(PODS, resourceVersion=server.resource_version) as events:
        assert (await http.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "y"}}})).status == 200
        server.put(pod("b"))
        assert await events.names(1) == [("ADDED", "b")]


async def test_selectors_turn_changes_into_comings_and_goings(server: EmbeddedAPIServer, http: Http) -> None:
    """What leaves a selection is DELETED, in the last state within it, under the version of the change."""
    server.put(pod("a"))
    query = {"resourceVersion": server.resource_version, "fieldSelector": "spec.nodeName="}
    async with http.watch(PODS, labelSelector="!hidden", **query) as events:
        server.put(pod("b"))
        assert await events.names(1) == [("ADDED", "b")]
        server.bind("a", "n1")
        kind, gone = await events.next()
        assert (kind, gone["metadata"]["name"], gone["spec"].get("nodeName")) == ("DELETED", "a", None)
        assert gone["metadata"]["resourceVersion"] == server.resource_version
        server.patch_object("Pod", {"metadata": {"labels": {"hidden": "1"}}}, "b")
        assert await events.names(1) == [("DELETED", "b")]
        server.finish("Pod", "a")
        server.patch_object("Pod", {"metadata": {"labels": None}}, "b")
        assert await events.names(1) == [("ADDED", "b")]


async def test_across_namespaces_and_within_one(server: EmbeddedAPIServer, http: Http) -> None:
    version = {"resourceVersion": server.resource_version}
    async with http.watch("/api/v1/pods", **version) as everywhere, http.watch(PODS, **version) as here:
        server.put(pod("far") | {"metadata": {"name": "far", "namespace": "other"}})
        server.put(pod("near"))
        assert await everywhere.names(2) == [("ADDED", "far"), ("ADDED", "near")]
        assert await here.names(1) == [("ADDED", "near")]


async def test_it_ends_at_its_time_out(http: Http) -> None:
    begun = asyncio.get_running_loop().time()
    async with http.watch(PODS, timeoutSeconds="30") as events:
        assert await events.rest() == []
    assert asyncio.get_running_loop().time() - begun == pytest.approx(30, abs=0.1)


async def test_bookmarks(small: Http) -> None:
    """At intervals and before the end, for those who asked for them; they tell the version of the whole store."""
    query = {"resourceVersion": small.server.resource_version, "timeoutSeconds": "25"}
    async with small.watch(PODS, allowWatchBookmarks="true", **query) as events:
        small.server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        found = await events.rest()
    assert [kind for kind, _ in found] == ["BOOKMARK"] * 3
    assert {obj["metadata"]["resourceVersion"] for _, obj in found} == {small.server.resource_version}
    assert found[0][1]["kind"] == "Pod"
    async with small.watch(PODS, **query) as events:
        assert await events.rest() == []


async def test_410_as_an_event(server: EmbeddedAPIServer, http: Http) -> None:
    """A version from before the window is answered by an ERROR event in a 200, and the stream ends."""
    server.put(pod("a"))
    server.put(pod("b"))
    server.compact()
    async with http.watch(PODS, resourceVersion="1") as events:
        assert events.status == 200
        ((kind, status),) = await events.rest()
    assert (kind, status["kind"], status["code"], status["reason"]) == ("ERROR", "Status", 410, "Expired")
    async with http.watch(PODS, resourceVersion=server.resource_version, timeoutSeconds="1") as events:
        assert await events.rest() == []


async def test_410_as_a_status(small: Http) -> None:
    """The window counts changes of the resource: the oldest within it is still served."""
    versions = [small.server.put(pod(name))["metadata"]["resourceVersion"] for name in "abcde"]
    gone = await small.get(PODS, watch="1", resourceVersion=versions[0])
    assert (gone.status, gone.json["reason"]) == (410, "Expired")
    async with small.watch(PODS, resourceVersion=versions[1]) as events:
        assert await events.names(3) == [("ADDED", "c"), ("ADDED", "d"), ("ADDED", "e")]


async def test_a_watch_that_falls_behind_is_ended(small: Http) -> None:
    """Its next event is out of the window, so nothing honest can be sent any more."""
    small.server.watch_lag = 5
    async with small.watch(PODS, resourceVersion=small.server.resource_version) as events:
        for name in "abcde":
            small.server.put(pod(name))
        assert await events.rest() == []


async def test_lag_holds_events_back(server: EmbeddedAPIServer, http: Http) -> None:
    server.watch_lag = 5
    loop = asyncio.get_running_loop()
    async with http.watch(PODS, resourceVersion=server.resource_version) as events:
        written = loop.time()
        server.put(pod("a"))
        await events.next()
        assert loop.time() - written == pytest.approx(5, abs=0.1)


async def test_watch_list(small: Http) -> None:
    """With sendInitialEvents the state comes as events, and a bookmark says where it ends."""
    small.server.put(pod("a"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with small.watch(PODS, **query) as events:
        assert await events.names(1) == [("ADDED", "a")]
        kind, obj = await events.next()
        assert (kind, obj["metadata"]["annotations"]) == ("BOOKMARK", {"k8s.io/initial-events-end": "true"})
    refused = await small.get(PODS, watch="1", sendInitialEvents="true")
    assert refused.causes == [("resourceVersionMatch", "FieldValueForbidden")]


@pytest.mark.parametrize(
    "query", [{"timeoutSeconds": "soon"}, {"resourceVersion": "x"}, {"resourceVersionMatch": "Exact"}]
)
async def test_a_query_that_makes_no_sense(query: dict[str, str], http: Http) -> None:
    assert (await http.get(PODS, watch="1", **query)).status == 400


async def test_the_server_can_end_all_watches(server: EmbeddedAPIServer, http: Http) -> None:
    async with http.watch(PODS) as events:
        server.close_watches()
        assert await events.rest() == []


async def test_a_client_that_leaves_is_noticed(server: EmbeddedAPIServer, http: Http) -> None:
    """Nothing of a watch is left once its client has gone, though no event was due."""
    async with http.watch(PODS, resourceVersion=server.resource_version) as events:
        events.response.close()
    await asyncio.sleep(1)
    (record,) = server.audit
    assert record.finished is not None
    assert (record.verb, record.status) == ("watch", 200)


async def test_leaving_the_server_ends_watches() -> None:
    async with aiohttp.ClientSession() as session:
        async with EmbeddedAPIServer() as server:
            response: Any = await session.get(f"{server.url}{PODS}", params={"watch": "1"})
        assert await response.content.read() == b""


async def test_custom_resources(server: EmbeddedAPIServer, http: Http) -> None:
    async with http.watch(WIDGETS, resourceVersion=server.resource_version) as events:
        body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "text": "smile 🙂"}
        assert (await http.post(WIDGETS, body)).status == 201
        kind, obj = await events.next()
        assert (kind, obj["kind"], obj["text"]) == ("ADDED", "Widget", "smile 🙂")
