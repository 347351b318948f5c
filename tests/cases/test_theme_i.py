"""I: watches and resynchronisation; and B13, whose reader of watches broke on the bytes."""

import asyncio
import gc
import itertools
from typing import Any

import pytest

from asyncdispatch import Dispatcher, FunctionCall, ObjectRef
from asyncdispatch.kubernetes import ReflectorState
from asyncdispatch.testing import EmbeddedAPIServer, answers
from tests.cases.support import new_pod, now, sent


def names(pods: Any) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def lists(server: EmbeddedAPIServer) -> list[Any]:
    """The lists that were begun; further pages of one don't count."""
    found = sent(server, "GET", path="/pods")
    return [record for record in found if record.verb == "list" and "continue" not in record.query]


async def until(condition: Any, within: float = 120.0) -> None:
    limit = now() + within
    while not condition():
        assert now() < limit, "it did not come true"
        await asyncio.sleep(within / 600)


@pytest.mark.parametrize("how", ["status", "event", "in the stream"])
async def test_i1_gone_leads_to_a_new_list(server, cluster, how):
    """After 410 the watcher went on with the same expired version, for ever.

    Right: a new list and its version, events for the differences (deletions too), at most two lists for each 410.
    """
    for name in "abc":
        server.create(new_pod(name))
    async with cluster.reflector("v1", "Pod") as pods, pods.events() as events:
        await pods.synced()
        for _ in range(3):
            await anext(events)
        await asyncio.sleep(15)
        if how == "status":
            server.fail(answers.gone(), verb="watch")
        server.silence_watches()
        server.finish("Pod", "a", namespace="ns")
        server.create(new_pod("d"))
        before = len(lists(server))
        if how == "in the stream":
            server.fail_watches(answers.gone())
        else:
            server.compact()
            server.close_watches()
            server.reset_connections()
        told = [await anext(events) for _ in range(2)]
        assert [(event.type, event.object["metadata"]["name"]) for event in told] == [("DELETED", "a"), ("ADDED", "d")]
        await asyncio.sleep(10)
        assert 1 <= len(lists(server)) - before <= 2
        assert "resourceVersion" not in lists(server)[-1].query
        watches = [record for record in server.audit if record.verb == "watch"]
        assert int(watches[-1].query["resourceVersion"]) > int(watches[0].query["resourceVersion"])
        server.create(new_pod("e"))
        assert (await anext(events)).object["metadata"]["name"] == "e"


async def test_i1_for_ever_gone_is_not_hot(server, cluster):
    """A server that answers every watch 410 is listed with growing pauses, and the first time at once."""
    server.fail(answers.gone(), times=None, verb="watch")
    async with cluster.reflector("v1", "Pod") as pods:
        await asyncio.sleep(1)
        assert len(lists(server)) >= 2
        await asyncio.sleep(120)
        assert 4 <= len(lists(server)) <= 25
        assert pods.statistics().failures >= 4
        assert pods.stale_for < 60, "each list is the truth of its time"


@pytest.mark.parametrize("how", ["silent watch", "dark connection"])
async def test_i3_a_silent_watch_is_dead(server, cluster, how):
    """Behind load balancers a watch goes silent while its connection looks healthy; operators stopped for hours.

    Right: with the defaults, it is opened anew from the last version, and changes are seen within the idle limit.
    """
    async with cluster.reflector("v1", "Pod") as pods:
        await pods.synced()
        await asyncio.sleep(30)
        server.silence_watches() if how == "silent watch" else server.darken()
        server.create(new_pod("a"))
        await asyncio.sleep(20)
        assert names(pods) == set()
        assert pods.stale_for > 19
        await until(lambda: names(pods) == {"a"}, within=90)
        assert len(lists(server)) == 1
        assert pods.stale_for < 1


async def test_i3_a_quiet_watch_is_not(server, cluster):
    """Where nothing happens, bookmarks say that it lives."""
    async with cluster.reflector("v1", "Pod") as pods:
        await pods.synced()
        await asyncio.sleep(230)
        assert [record.verb for record in server.audit] == ["list", "watch"]
        assert pods.stale_for <= 60
        assert pods.state is ReflectorState.WATCHING


async def test_i7_throttled_lists_pile_nothing_up(server, cluster):
    """When lists were throttled, a controller's memory grew to tens of gigabytes.

    Right: one list at a time, Retry-After honoured, the old store kept until the new one is whole, nothing queued.
    """
    for number in range(300):
        server.create(new_pod(f"p{number}"))
    async with cluster.reflector("v1", "Pod", page_size=50) as pods, pods.events(maxsize=10) as events:
        await pods.synced()
        await asyncio.sleep(15)
        fault = server.fail(answers.throttled(), times=None, verb="list", when=lambda r: "continue" in r.query)
        server.fail_watches()
        begun, first = now(), len(lists(server))
        for number in range(300):
            server.create(new_pod(f"q{number}"))
            await asyncio.sleep(1)
        assert names(pods) == {f"p{number}" for number in range(300)}
        assert pods.stale_for >= 300
        assert "429" in str(pods.last_error)
        assert len(events._buffer) == 10
        times = [record.time for record in lists(server)[first:]]
        assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(times[1:]))
        assert len(times) <= 40
        gc.collect()
        pages = [thing for thing in gc.get_objects() if type(thing).__name__ == "Listing"]
        assert len(pages) <= 1, "what failed is let go"
        fault.remove()
        await until(lambda: len(pods) == 600)
        assert now() - begun < 400


# -- B13 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
async def test_b13_characters_straddle_chunks(server, cluster, size):
    """The reader decoded chunk by chunk and broke on a multi-byte character that straddled two of them."""
    server.chunk(size, verb="watch")
    async with cluster.reflector("v1", "Pod") as pods:
        await pods.synced()
        await asyncio.sleep(1)
        pod = new_pod("a")
        pod["metadata"]["annotations"] = {"mood": "\U0001f600 \U0001f469‍\U0001f680 ä 漢"}
        made = server.create(pod)
        await until(lambda: pods.get("ns", "a") == made)
        assert pods.statistics().unreadable == 0


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
@pytest.mark.parametrize("selected", [False, True])
async def test_b13_one_invalid_byte(server, cluster, caplog, kind, selected):
    """Right: that one event is reported, its object is read afresh, the stream goes on, and nothing is listed hot."""
    first = new_pod("a")
    first["metadata"]["labels"] = {"x": "1"}
    async with cluster.reflector("v1", "Pod", labels="x" if selected else None) as pods, pods.events() as events:
        await pods.synced()
        if kind != "ADDED":
            server.create(first)
            await anext(events)
        server.garble_events(1, type=kind)
        if kind == "ADDED":
            server.create(first)
        elif kind == "MODIFIED":
            server.patch_object("Pod", {"metadata": {"labels": {"x": "2"}}}, "a", namespace="ns")
        else:
            server.finish("Pod", "a", namespace="ns")
        event = await anext(events)
        assert event.type == kind
        assert event.object["metadata"]["name"] == "a"
        assert pods.get("ns", "a") == server.find("Pod", "a", namespace="ns")
        assert pods.statistics().unreadable == 1
        assert "can't be read" in caplog.text
        server.create({**first, "metadata": {**first["metadata"], "name": "b"}})
        assert (await anext(events)).object["metadata"]["name"] == "b"
        assert sum(record.verb == "watch" for record in server.audit) == 1
        rest = [record.query.get("fieldSelector") for record in lists(server)[1:]]
        assert rest == ([] if kind == "DELETED" else ["metadata.name=a"])


async def test_b13_what_has_left_by_then(server, cluster):
    """The fresh read finds nothing: the object is gone, and the late events of the stream don't bring it back."""
    server.watch_lag = 5
    async with cluster.reflector("v1", "Pod") as pods, pods.events() as events:
        await pods.synced()
        server.garble_events(1, type="ADDED")
        server.create(new_pod("a"))
        for value in "12":
            server.patch_object("Pod", {"metadata": {"labels": {"x": value}}}, "a", namespace="ns")
        server.finish("Pod", "a", namespace="ns")
        server.create(new_pod("b"))
        assert (await anext(events)).object["metadata"]["name"] == "b"
        assert names(pods) == {"b"}
        assert pods.statistics().late == 3


async def test_b13_an_event_that_can_t_even_be_named(server, cluster):
    """Nothing says what it was about, so a list does; events like it without end are not hot."""
    async with cluster.reflector("v1", "Pod") as pods:
        await pods.synced()
        server.cut(within='"name":"a"', verb="watch")
        server.close_watches()
        await asyncio.sleep(1)
        server.create(new_pod("a"))
        await until(lambda: names(pods) == {"a"})
        fault = server.fail(status=200, body='{"type":"ADDED","object":{"meta\n', times=None, verb="watch")
        server.close_watches()
        at = len(server.audit)
        await asyncio.sleep(60)
        assert len(server.audit) - at <= 40
        fault.remove()
        server.create(new_pod("b"))
        await until(lambda: names(pods) == {"a", "b"})


# -- parts of F1, F5 and H7 that only a reflector shows ---------------------------------------------------------------


async def test_f1_late_events_of_the_old_one(server, cluster):
    """Events of an old uid that come after those of the new one change nothing, here nor in the dispatcher."""
    old = server.create(new_pod("web-0"))

    async def bound(attempt: Any) -> str:
        return "bound"

    async with (
        Dispatcher() as dispatcher,
        cluster.reflector("v1", "Pod", dispatcher=dispatcher) as pods,
        pods.events() as events,
    ):
        await pods.synced()
        await anext(events)
        server.delay_events(5, times=None, when=lambda kind, obj: obj["metadata"]["uid"] == old["metadata"]["uid"])
        server.patch_object("Pod", {"metadata": {"labels": {"x": "1"}}}, "web-0", namespace="ns")
        new = server.recreate("Pod", "web-0", namespace="ns")
        gone, came = await anext(events), await anext(events)
        assert (gone.object["metadata"]["uid"], came.object) == (old["metadata"]["uid"], new)
        call = FunctionCall(bound, call_type="binding", target=ObjectRef.of(new), not_before=30)
        handle = dispatcher.submit(call)
        await asyncio.sleep(10)
        assert pods.get("ns", "web-0") == new
        assert pods.statistics().late == 2
        assert await handle == "bound"


async def test_f5_own_creates_stay_visible_while_the_watch_is_silent(server, cluster):
    """Right: visible until the watch has caught up; no time limit forgets them."""
    async with Dispatcher() as dispatcher, cluster.reflector("v1", "Pod", dispatcher=dispatcher) as pods:
        await pods.synced()
        server.watch_lag = 360
        made = 0
        for _ in range(40):
            shown = dispatcher.overlay(pods, api_version="v1", kind="Pod", namespace="ns")
            for number in range(len(shown), 5):
                await dispatcher.run(cluster.create(new_pod(f"w{number}"), idempotency_key=f"w{number}"))
                made += 1
            await asyncio.sleep(10)
        assert made == 5
        assert len(pods) == 5
        assert dispatcher.statistics().unobserved == 0


async def test_h7_an_outage_is_survived_quietly(server, cluster):
    """After a short outage replicas neither led nor exited and burned a full core.

    Right: the state says what it is doing, requests per second stay low throughout, and it is back soon after.
    """
    server.create(new_pod("a"))
    async with cluster.reflector("v1", "Pod") as pods:
        await pods.synced()
        await asyncio.sleep(15)
        fault = server.drop(times=None)
        server.close_watches()
        begun = now()
        seen = set()
        while now() < begun + 60:
            seen.add(pods.state)
            await asyncio.sleep(0.25)
        assert seen <= {ReflectorState.WATCHING, ReflectorState.CONNECTING, ReflectorState.WAITING}
        assert pods.statistics().failures >= 4
        assert pods.stale_for >= 60
        assert "waiting" in repr(pods) or "connecting" in repr(pods)
        times = [record.time for record in server.audit if record.time >= begun]
        assert len(times) <= 40
        fault.remove()
        server.create(new_pod("b"))
        await until(lambda: names(pods) == {"a", "b"}, within=31)
