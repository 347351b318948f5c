"""Watches that lie, and answers that do not arrive whole."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from asyncdispatch.testing import EmbeddedAPIServer, answers
from tests.testing.apiserver.support import POD, PODS, Events, Http, pod

pytestmark = pytest.mark.looptime


async def quiet(events: Events, seconds: float = 200) -> bool:
    """Nothing comes for so long, and the stream does not end either."""
    try:
        async with asyncio.timeout(seconds):
            await events.next()
    except TimeoutError:
        return True
    return False


def label(server: EmbeddedAPIServer, value: int, name: str = "web") -> None:
    server.patch_object("Pod", {"metadata": {"labels": {"n": str(value)}}}, name)


async def labels(events: Events, count: int) -> list[str]:
    found = []
    for _ in range(count):
        found.append((await events.next())[1]["metadata"]["labels"]["n"])
    return found


async def test_lost_events(server: EmbeddedAPIServer, http: Http) -> None:
    """The watch goes on as if the event had been sent."""
    server.put(pod())
    lie = server.lose_events(type="MODIFIED", name="web")
    async with http.watch(PODS, resourceVersion=server.resource_version) as events:
        for value in (1, 2):
            label(server, value)
        assert await labels(events, 1) == ["2"]
    assert (lie.hits, lie.remaining) == (1, 0)


async def test_repeated_swapped_and_late_events(server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod())
    server.repeat_events(when=lambda kind, obj: obj["metadata"]["labels"]["n"] == "1")
    server.swap_events(when=lambda kind, obj: obj["metadata"]["labels"]["n"] == "2")
    server.delay_events(10, when=lambda kind, obj: obj["metadata"]["labels"]["n"] == "4")
    async with http.watch(PODS, resourceVersion=server.resource_version) as events:
        for value in range(1, 7):
            label(server, value)
        begun = asyncio.get_running_loop().time()
        assert await labels(events, 6) == ["1", "1", "3", "2", "5", "6"]
        assert await labels(events, 1) == ["4"]
        assert asyncio.get_running_loop().time() - begun == pytest.approx(10, abs=0.1)
    assert server._lies == []


async def test_a_garbled_event(server: EmbeddedAPIServer, http: Http) -> None:
    """One line is no UTF-8; those around it are whole."""
    server.garble_events(name="b")
    async with http.watch(PODS, resourceVersion=server.resource_version) as events:
        for name in "abc":
            server.put(pod(name))
        assert await events.names(1) == [("ADDED", "a")]
        line = await events.response.content.readline()
        with pytest.raises(UnicodeDecodeError):
            line.decode()
        assert json.loads(line.decode(errors="replace"))["object"]["metadata"]["name"].startswith("b")
        assert await events.names(1) == [("ADDED", "c")]


async def test_bookmarks_are_left_alone_unless_named(http: Http) -> None:
    async with EmbeddedAPIServer(bookmark_interval=10) as server:
        lie = server.lose_events(times=None)
        other = Http(server, http.session)
        async with other.watch(PODS, allowWatchBookmarks="true") as events:
            assert (await events.next())[0] == "BOOKMARK"
            server.put(pod())
            assert (await events.next())[0] == "BOOKMARK"
            lie.remove()
            lie.remove()
            server.lose_events(type="BOOKMARK")
            begun = asyncio.get_running_loop().time()
            await events.next()
            assert asyncio.get_running_loop().time() - begun == pytest.approx(20, abs=0.1)
    assert repr(lie) == "<Lie 'lose': 1 hits, until removed>"


async def test_a_watch_falls_silent_after_some_events(server: EmbeddedAPIServer, http: Http) -> None:
    """It stays open without bookmarks; the one after it is served."""
    server.silence(after=1, path=PODS)
    async with http.watch(PODS, allowWatchBookmarks="true", timeoutSeconds="60") as events:
        for name in "ab":
            server.put(pod(name))
        assert await events.names(1) == [("ADDED", "a")]
        assert await quiet(events)
        async with http.watch(PODS) as others:
            assert await others.names(2) == [("ADDED", "a"), ("ADDED", "b")]
    assert server.audit[0].fault == "silence"


async def test_open_watches_are_silenced(server: EmbeddedAPIServer, http: Http) -> None:
    async with http.watch(PODS) as events:
        server.put(pod("a"))
        assert await events.names(1) == [("ADDED", "a")]
        server.silence_watches()
        server.put(pod("b"))
        assert await quiet(events)
        server.fail_watches()
        assert await events.rest() == []


async def test_an_error_event_in_open_watches(server: EmbeddedAPIServer, http: Http) -> None:
    """The 410 comes inside of a 200, and the stream ends with it."""
    async with http.watch(PODS) as events:
        server.fail_watches()
        ((kind, status),) = await events.rest()
        assert (events.status, kind, status["code"], status["reason"]) == (200, "ERROR", 410, "Expired")
    async with http.watch(PODS) as events:
        server.fail_watches(answers.etcd_timeout())
        assert (await events.rest())[0][1]["code"] == 500


async def test_the_cache_is_behind(server: EmbeddedAPIServer, http: Http) -> None:
    """Version 0 is answered from the cache; no version, or one that the cache has not seen, from storage."""
    server.put(pod("old"))
    server.put(pod("ended"))
    await asyncio.sleep(10)
    server.watch_lag = 5
    seen = server.resource_version
    server.put(pod("new"))
    label(server, 1, "old")
    server.finish("Pod", "ended")

    async def names(**query: str) -> list[str]:
        reply = await http.get(PODS, **query)
        assert (reply.json["metadata"]["resourceVersion"] == seen) is (query.get("resourceVersion") in ("0", seen))
        return [item["metadata"]["name"] for item in reply.json["items"]]

    assert await names() == ["new", "old"]
    for version in ("0", seen):
        assert await names(resourceVersion=version) == ["ended", "old"]
    assert await names(resourceVersion=server.resource_version) == ["new", "old"]
    assert (await http.get(f"{PODS}/new", resourceVersion="0")).status == 404
    assert (await http.get(f"{PODS}/new")).status == 200
    assert "labels" not in (await http.get(f"{PODS}/old", resourceVersion="0")).json["metadata"]
    async with http.watch(PODS, resourceVersion="0") as events:
        assert await events.names(2) == [("ADDED", "ended"), ("ADDED", "old")]
        assert await events.names(3) == [("ADDED", "new"), ("MODIFIED", "old"), ("DELETED", "ended")]
    assert await names(resourceVersion="") == ["new", "old"]


async def test_an_expired_page(server: EmbeddedAPIServer, http: Http) -> None:
    for name in "abc":
        server.put(pod(name))
    token = (await http.get(PODS, limit="1")).json["metadata"]["continue"]
    server.expire_pages()
    reply = await http.get(PODS, limit="1", **{"continue": token})
    assert (reply.status, reply.json["reason"]) == (410, "Expired")


@pytest.mark.parametrize("size", [1, 7])
async def test_pieces_part_lines_and_characters(size: int, server: EmbeddedAPIServer, http: Http) -> None:
    """No two pieces are read as one, and all together are the whole."""
    server.put(pod(labels={"mood": "glad"}))
    server.patch_object("Pod", {"metadata": {"annotations": {"mood": "\U0001f600"}}}, "web")
    server.chunk(size, times=None)
    for query in ({}, {"watch": "1", "timeoutSeconds": "1"}):
        pieces: list[bytes] = []
        async with http.session.get(server.url + PODS, params=query) as response:
            async for piece in response.content.iter_any():
                pieces.append(piece)
        assert max(map(len, pieces)) <= size
        whole = json.loads(b"".join(pieces))
        assert "\U0001f600" in json.dumps(whole, ensure_ascii=False)


async def test_an_answer_that_is_cut(server: EmbeddedAPIServer, http: Http) -> None:
    server.put(pod(labels={"mood": "glad"}))
    fault = server.cut(after=10, path=POD)
    with pytest.raises(aiohttp.ClientPayloadError):
        await http.get(POD)
    assert fault.hits == 1
    assert (await http.get(POD)).status == 200
    server.cut(after=1_000_000, path=POD)
    assert (await http.get(POD)).json["metadata"]["name"] == "web"


async def test_a_watch_that_is_cut_within_a_character(server: EmbeddedAPIServer, http: Http) -> None:
    server.cut(within="\U0001f600", verb="watch")
    async with http.watch(PODS) as events:
        server.put(pod("a"))
        assert await events.names(1) == [("ADDED", "a")]
        server.put({**pod("b"), "metadata": {"name": "b", "annotations": {"mood": "\U0001f600"}}})
        received = await events.response.content.readany()
        assert received.endswith("\U0001f600".encode()[:2])
        with pytest.raises(aiohttp.ClientPayloadError):
            await events.next()


@pytest.mark.parametrize("applied", [False, True])
async def test_a_request_that_is_never_answered(applied: bool, server: EmbeddedAPIServer, http: Http) -> None:
    """The connection stays open; the next one is served."""
    server.black_hole(applied=applied, method="POST")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(http.post(PODS, pod()), 200)
    assert (server.find("Pod", "web") is not None) is applied
    record = server.audit[0]
    assert (record.status, record.answered, record.applied, record.fault) == (None, False, applied, "black hole")
    assert (await http.get(PODS)).status == 200


async def test_established_connections_go_dark(server: EmbeddedAPIServer, http: Http) -> None:
    """What was on its way is carried out and not answered; new connections work."""
    server.latency = 2
    early = asyncio.ensure_future(http.post(PODS, pod("early")))
    await asyncio.sleep(0.5)
    server.darken()
    await asyncio.sleep(200)
    server.close_connections()  # does not come through either
    await asyncio.sleep(1)
    assert not early.done()
    early.cancel()
    assert server.find("Pod", "early") is not None
    assert not server.audit[0].answered
    assert (await http.post(PODS, pod("late"))).status == 201


async def test_the_dark_ends_with_the_server(http: Http) -> None:
    async with EmbeddedAPIServer() as server:
        server.black_hole()
        asked = asyncio.ensure_future(Http(server, http.session).post(PODS, pod()))
        await asyncio.sleep(60)
        assert not asked.done()
    with pytest.raises(aiohttp.ClientConnectionError):
        await asyncio.wait_for(asked, 60)


async def test_what_is_sent_into_the_dark_never_arrives(server: EmbeddedAPIServer, http: Http) -> None:
    await http.get(PODS)
    server.darken(new=True)
    for name in ("kept", "fresh"):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(http.post(PODS, pod(name)), 60)
    assert len(server.audit) == 1
    server.lighten()
    assert (await http.post(PODS, pod("later"))).status == 201


@pytest.mark.parametrize("how", ["close_connections", "reset_connections"])
async def test_all_connections_end(how: str, server: EmbeddedAPIServer, http: Http) -> None:
    server.delay(2, method="POST")
    asked = asyncio.ensure_future(http.post(PODS, pod()))
    async with http.watch(PODS) as events:
        await asyncio.sleep(0.5)
        getattr(server, how)()
        with pytest.raises(aiohttp.ClientConnectionError):
            await asked
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientConnectionError)):
            await events.next()
    assert (await http.get(PODS)).status == 200


async def test_a_connection_that_its_client_has_just_closed(server: EmbeddedAPIServer, http: Http) -> None:
    """It is among the others until its request has ended; there is nothing of it to reset."""
    server.delay(2, method="POST")
    async with aiohttp.ClientSession() as session:
        asked = asyncio.ensure_future(Http(server, session).post(PODS, pod()))
        await asyncio.sleep(0.5)
        asked.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
            server.reset_connections()
    assert (await http.get(PODS)).status == 200


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.lose_events(0), "times: 0 "),
        (lambda s: s.swap_events(type="CHANGED"), "type: 'CHANGED' "),
        (lambda s: s.delay_events(-1), "seconds=-1: "),
        (lambda s: s.chunk(0), "size: 0 "),
        (lambda s: s.cut(), "after: "),
        (lambda s: s.cut(after=1, within="ab"), "after: "),
        (lambda s: s.cut(after=-1), "after: -1 "),
        (lambda s: s.cut(within="a"), "within: 'a' "),
        (lambda s: s.silence(-1), "after: -1 "),
        (lambda s: s.fail("503"), "answer: '503' "),
    ],
)
async def test_bad_arguments_are_named(call: Any, said: str, server: EmbeddedAPIServer) -> None:
    with pytest.raises(ValueError, match="; ") as caught:
        call(server)
    assert str(caught.value).startswith(said)
    assert (server.faults, server._lies) == ((), [])


async def test_unknown_arguments_are_named(server: EmbeddedAPIServer) -> None:
    with pytest.raises(TypeError, match="verbs: no such argument"):
        server.fail(verbs="get")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="path: no such argument"):
        server.lose_events(path="*")  # type: ignore[call-arg]
    assert (server.faults, server._lies) == ((), [])
