"""Reflectors over HTTP: listing, watching, what interrupts them, what they tell. In virtual time."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncdispatch import ConfigurationError, Dispatcher, FunctionCall, ObjectRef
from asyncdispatch.kubernetes import ApiError, Cluster, Reflector, ReflectorError, ReflectorState, WatchEvent
from asyncdispatch.outcomes import Cancelled
from asyncdispatch.testing import EmbeddedAPIServer, answers
from tests.cases.support import config_map, new_pod

Json = dict[str, Any]
WATCHING, WAITING = ReflectorState.WATCHING, ReflectorState.WAITING


def now() -> float:
    return asyncio.get_running_loop().time()


def verbs(server: EmbeddedAPIServer, *wanted: str) -> list[str]:
    """What the reflector asked of the server, in order."""
    return [record.verb for record in server.audit if not wanted or record.verb in wanted]


def versions(objects: Any) -> dict[str, str]:
    return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in objects}


def held(reflector: Reflector, name: str) -> Json:
    """The object of that name, which is there."""
    found = reflector.get("ns", name)
    assert found is not None
    return found


def truth(server: EmbeddedAPIServer, kind: str = "Pod") -> dict[str, str]:
    return versions(server.objects.of(kind))


def touch(server: EmbeddedAPIServer, name: str, value: str) -> Json:
    return server.patch_object("Pod", {"metadata": {"labels": {"x": value}}}, name, namespace="ns")


@asynccontextmanager
async def reflected(cluster: Cluster, kind: str = "Pod", **settings: Any) -> AsyncIterator[Reflector]:
    """A reflector that watches already."""
    async with cluster.reflector("v1", kind, **settings) as reflector:
        await reflector.synced()
        await until(lambda: reflector.state is WATCHING)
        yield reflector


async def until(condition: Callable[[], bool], within: float = 60.0) -> float:
    """Wait for something to come true; when it did."""
    limit = now() + within
    while not condition():
        assert now() < limit, "it did not come true"
        await asyncio.sleep(within / 600)
    return now()


# -- listing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "pages"), [(0, 1), (1, 1), (5, 1), (6, 2), (15, 3)])
async def test_it_lists_in_pages_and_then_watches_from_there(server, cluster, count, pages):
    for number in range(count):
        server.create(new_pod(f"p{number}"))
    async with reflected(cluster, page_size=5) as pods:
        assert versions(pods) == truth(server)
        assert len(pods) == count
        assert verbs(server) == ["list"] * pages + ["watch"]
        assert [record.query["limit"] for record in server.audit[:-1]] == ["5"] * pages
        query = server.audit[-1].query
        assert query["resourceVersion"] == server.resource_version
        assert query["allowWatchBookmarks"] == "true"
        assert 240 <= int(query["timeoutSeconds"]) <= 300
        assert pods.statistics().lists == 1
        assert server.audit[0].audit_id is None, "it is no call of a dispatcher's"


async def test_what_is_held_follows_the_server(server, cluster):
    async with reflected(cluster) as pods:
        made = server.create(new_pod("a"))
        await asyncio.sleep(0.1)
        assert pods.get("ns", "a") == made
        changed = touch(server, "a", "1")
        await asyncio.sleep(0.1)
        assert pods.get("ns", "a") == changed
        server.finish("Pod", "a", namespace="ns")
        await asyncio.sleep(0.1)
        assert pods.get("ns", "a") is None
        assert list(pods) == []
        assert pods, "an empty one is true all the same"


async def test_one_namespace(server, cluster):
    server.create(new_pod("a"))
    server.create(new_pod("b", namespace="other"))
    async with reflected(cluster, namespace="ns") as pods:
        server.create(new_pod("c"))
        server.create(new_pod("d", namespace="other"))
        await asyncio.sleep(0.1)
        assert set(versions(pods)) == {"a", "c"}
        assert repr(pods) == "<Reflector v1 Pod in ns: watching, 2 objects, stale for 0 s>"


async def test_of_no_namespace(server, cluster):
    server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    async with reflected(cluster, "Node") as nodes:
        assert nodes.get(None, "n1") == server.get("Node", "n1")


@pytest.mark.parametrize("given", [{"labels": "x in (1, 2)", "fields": {"spec.nodeName": ""}}, {"labels": {"x": "1"}}])
async def test_selectors(server, cluster, given):
    """What enters a selection is ADDED, what leaves it DELETED."""
    for number in range(3):
        touch(server, server.create(new_pod(f"p{number}"))["metadata"]["name"], "1")
    async with reflected(cluster, page_size=2, **given) as pods, pods.events() as events:
        assert set(versions(pods)) == {"p0", "p1", "p2"}
        touch(server, "p0", "other")
        touch(server, "p0", "1")
        assert [(await anext(events)).type for _ in range(2)] == ["DELETED", "ADDED"]


async def test_a_custom_resource_is_looked_up_once(server, cluster):
    server.register("example.io/v1", "Widget", "widgets")
    widget = {"apiVersion": "example.io/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "ns"}}
    server.create(widget)
    async with cluster.reflector("example.io/v1", "Widget") as widgets:
        await widgets.synced()
        assert held(widgets, "w")["kind"] == "Widget"
    assert [record.path for record in server.audit].count("/apis/example.io/v1") == 1


async def test_a_list_whose_pages_expire_is_begun_anew(server, cluster):
    """With larger pages, so that it comes to an end; never a list from two times."""
    for number in range(10):
        server.create(new_pod(f"p{number}"))
    server.hook(lambda record: server.compact(), times=1, when=lambda record: "continue" in record.query)
    async with reflected(cluster, page_size=2) as pods:
        assert versions(pods) == truth(server)
        lists = [record for record in server.audit if record.verb == "list"]
        assert [record.query["limit"] for record in lists] == ["2", "2", "8", "8"]
        assert "continue" not in lists[2].query
        assert now() < 1


async def test_a_list_is_as_old_as_its_beginning(server, cluster):
    server.delay(5, applied=True, verb="list")
    async with cluster.reflector("v1", "Pod") as pods:
        await pods.synced()
        assert pods.stale_for >= 5
        await asyncio.sleep(62)
        assert pods.stale_for < 5, "a bookmark says that it is still so"


async def test_the_old_store_is_kept_until_the_new_list_is_whole(server, cluster):
    """Its pages come one at a time, while everything else goes on."""
    for number in range(10):
        server.create(new_pod(f"p{number}"))
    async with reflected(cluster, page_size=2) as pods:
        before = versions(pods)
        server.delay(1, verb="list")
        server.close_watches()
        server.compact()
        for number in range(5):
            server.finish("Pod", f"p{number}", namespace="ns")
        server.compact()
        await until(lambda: pods.state is ReflectorState.LISTING)
        await asyncio.sleep(2.5)
        assert versions(pods) == before
        assert pods.stale_for > 2
        await until(lambda: pods.state is WATCHING)
        assert versions(pods) == truth(server)


# -- watching --------------------------------------------------------------------------------------------------------


async def test_a_watch_that_ends_goes_on_from_the_last_version(server, cluster):
    """Nothing is listed again, and nothing is missed in between."""
    async with reflected(cluster) as pods:
        server.create(new_pod("a"))
        await asyncio.sleep(20)
        server.close_watches()
        server.create(new_pod("b"))
        await asyncio.sleep(1)
        assert versions(pods) == truth(server)
        await asyncio.sleep(900)
        assert [record.query["limit"] for record in server.audit if record.verb == "list"] == ["100", "1"]
        assert 4 <= len(verbs(server, "watch")) <= 6


async def test_bookmarks_carry_the_version_along(server, cluster):
    """So that a quiet watch does not fall behind what the server remembers."""
    async with reflected(cluster) as pods:
        server.create(config_map())
        await asyncio.sleep(61)
        server.close_watches()
        await asyncio.sleep(1)
        assert server.audit[-1].query["resourceVersion"] == server.resource_version
        assert pods.statistics().events == 0


@pytest.mark.parametrize("how", ["drop", "reset", "503 empty", "503", "500", "429", "401", "403", "cut", "black hole"])
async def test_a_watch_that_fails_is_tried_again_from_the_last_version(server, cluster, how):
    """Backing off, never hot; nothing is listed, and the store stays as it was."""
    async with reflected(cluster) as pods:
        server.create(new_pod("a"))
        await asyncio.sleep(11)
        faults = {
            "drop": lambda: server.drop(times=5, verb="watch"),
            "reset": lambda: server.reset(times=5, verb="watch"),
            "503 empty": lambda: server.fail(status=503, body="", times=5, verb="watch"),
            "cut": lambda: server.cut(after=3, times=5, verb="watch"),
            "black hole": lambda: server.black_hole(times=2, verb="watch"),
        }
        fault = faults.get(how, lambda: server.fail(status=int(how), times=5 if how != "500" else 2, verb="watch"))()
        before = len(server.audit)
        server.close_watches()
        server.create(new_pod("b"))
        if how == "cut":
            server.create(new_pod("c"))
        await until(lambda: pods.statistics().failures >= 2, within=120)
        assert len(pods) == 1
        assert pods.last_error is not None
        assert pods.state in (WAITING, ReflectorState.CONNECTING)
        await until(lambda: versions(pods) == truth(server))
        assert set(verbs(server)[before:]) == {"watch"}
        times = [record.time for record in server.audit[before:]]
        assert all(sum(at <= time < at + 1 for time in times) <= 8 for at in times), (
            "never hot (and the HTTP client sends some twice)"
        )
        assert fault.hits == len(times) - 1 or how == "cut"
        await until(lambda: pods.state is WATCHING)
        assert pods.last_error is None


async def test_retry_after_is_honoured(server, cluster):
    server.fail(status=429, retry_after=20, times=2, verb="list")
    async with reflected(cluster):
        first, second, third = (record.time for record in server.audit if record.verb == "list")
        assert second - first >= 20
        assert third - second >= 20


async def test_watches_refused_for_no_reason_of_load_lead_to_a_list(server, cluster):
    """A version from the future, after the server was restored from a backup, say: watching on can never pass."""
    async with reflected(cluster) as pods:
        server.fail(status=504, message="Too large resource version: 12, current: 3", times=3, verb="watch")
        server.close_watches()
        await until(lambda: verbs(server) == ["list", "watch", "watch", "watch", "watch", "list", "watch"])
        await until(lambda: pods.state is WATCHING)


async def test_an_error_event_other_than_410(server, cluster):
    """Tried again from the last version; if it keeps coming, a list says what is true."""
    async with reflected(cluster) as pods:
        await asyncio.sleep(11)
        server.fail_watches(answers.cache_not_ready())
        server.create(new_pod("a"))
        await until(lambda: len(pods) == 1)
        assert verbs(server, "list") == ["list"]


async def test_a_server_that_ends_each_watch_at_once_is_not_asked_hot(server, cluster):
    """An answer of 200 and nothing, again and again."""
    async with reflected(cluster):
        server.fail(status=200, body="", times=None, verb="watch")
        server.close_watches()
        at = len(server.audit)
        await asyncio.sleep(60)
        assert len(server.audit) - at <= 25


async def test_what_is_no_watch_at_all(server, cluster):
    """A proxy's web page as a 200: unreadable, so a list has to say; not hot."""
    async with reflected(cluster) as pods:
        fault = server.fail(status=200, body="<html>\nplease log in\n</html>\n", times=None, verb="watch")
        server.close_watches()
        at = len(server.audit)
        await asyncio.sleep(60)
        assert len(server.audit) - at <= 50
        fault.remove()
        server.create(new_pod("a"))
        await until(lambda: len(pods) == 1)
        assert pods.statistics().unreadable >= 3


# -- lies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fewer", [True, False])
async def test_lost_events_are_found_by_counting(server, cluster, fewer, caplog):
    """A deletion or an addition that never came: nothing but the number of objects shows it."""
    for number in range(5):
        server.create(new_pod(f"p{number}"))
    async with reflected(cluster, check_interval=300) as pods:
        server.lose_events(1)
        if fewer:
            server.finish("Pod", "p0", namespace="ns")
        else:
            server.create(new_pod("x"))
        await asyncio.sleep(100)
        assert versions(pods) != truth(server)
        await until(lambda: versions(pods) == truth(server), within=900)
        assert pods.statistics().drifts == 1
        assert "events were lost" in caplog.text


async def test_counting_is_not_fooled_by_what_is_on_its_way(server, cluster):
    """With many changes and a cache that lags, the count is compared where it was taken, and nothing is listed."""
    for number in range(20):
        server.create(new_pod(f"p{number}"))
    server.watch_lag = 3
    async with reflected(cluster, check_interval=5) as pods:
        for number in range(100):
            server.create(new_pod(f"q{number}"))
            if number % 3 == 0:
                server.finish("Pod", f"q{number}", namespace="ns")
            if number % 12 == 11:
                server.create(config_map(f"c{number}"))  # so that the count is of a version that no Pod has
                server.close_watches()
            await asyncio.sleep(1)
        assert sum(record.query.get("limit") == "1" for record in server.audit) >= 8
        assert (pods.statistics().drifts, pods.statistics().lists) == (0, 1)


async def test_with_selectors_it_lists_anew_instead(server, cluster):
    """Servers don't count what selectors choose."""
    for number in range(3):
        touch(server, server.create(new_pod(f"p{number}"))["metadata"]["name"], "1")
    async with reflected(cluster, labels="x=1", check_interval=300) as pods:
        server.lose_events(1)
        touch(server, "p0", "2")
        await until(lambda: set(versions(pods)) == {"p1", "p2"}, within=700)
        assert pods.statistics().lists >= 2


@pytest.mark.parametrize("lie", ["repeat_events", "swap_events", "delay"])
async def test_repeated_and_late_events_change_nothing(server, cluster, lie):
    seen: list[tuple[str, int]] = []
    handler = lambda event: seen.append((event.type, int(event.object["metadata"]["resourceVersion"])))  # noqa: E731
    server.create(new_pod("a"))
    async with reflected(cluster, handlers=(handler,)) as pods:
        if lie == "delay":
            server.delay_events(5, times=None, type="MODIFIED", when=lambda kind, obj: "1" in str(obj["metadata"]))
        elif lie == "swap_events":
            every_other = itertools.cycle([True, False])
            server.swap_events(None, when=lambda kind, obj: next(every_other))
        else:
            server.repeat_events(None)
        for number in range(11):
            touch(server, "a", str(number))
            await asyncio.sleep(0.1)
        server.finish("Pod", "a", namespace="ns")
        await asyncio.sleep(30)
        assert not len(pods)
        assert [version for _, version in seen] == sorted({version for _, version in seen})
        assert [kind for kind, _ in seen].count("DELETED") == 1
        assert pods.statistics().late


# -- telling ---------------------------------------------------------------------------------------------------------


async def test_events_of_a_new_list_are_the_differences(server, cluster):
    """Also deletions that no watch has told, with the last state known."""
    for name in "abc":
        server.create(new_pod(name))
    async with reflected(cluster) as pods, pods.events() as events:
        last = pods.get("ns", "a")
        server.silence_watches()
        server.finish("Pod", "a", namespace="ns")
        touch(server, "b", "1")
        server.recreate("Pod", "c", namespace="ns")
        server.compact()
        told = [await anext(events) for _ in range(4)]
        assert [(event.type, event.object["metadata"]["name"]) for event in told] == [
            ("DELETED", "a"), ("DELETED", "c"), ("MODIFIED", "b"), ("ADDED", "c"),
        ]  # fmt: skip
        assert told[0].object == last
        assert told[2].old is not None
        assert told[2].old["metadata"].get("labels") is None


async def test_a_slow_subscriber_loses_the_oldest_and_is_told(server, cluster):
    async with reflected(cluster) as pods, pods.events(maxsize=2) as events:
        for number in range(5):
            server.create(new_pod(f"p{number}"))
        await asyncio.sleep(0.1)
        event = await anext(events)
        assert (event.lost, event.object["metadata"]["name"]) == (3, "p3")
        assert (await anext(events)).lost == 0


async def test_subscriptions_end_with_the_reflector(server, cluster):
    async with reflected(cluster) as pods:
        events = pods.events()
        await events.__aenter__()
        server.create(new_pod("a"))
        await asyncio.sleep(0.1)
    assert [event.type async for event in events] == ["ADDED"]


async def test_a_handler_that_raises_ends_nothing(server, cluster, caplog):
    """It is logged and counted; the others are called, and the watch goes on."""
    seen: list[str] = []

    def broken(event: WatchEvent) -> None:
        raise LookupError("no such thing")

    async with reflected(cluster, handlers=(broken, lambda event: seen.append(event.type))) as pods:
        server.create(new_pod("a"))
        touch(server, "a", "1")
        await asyncio.sleep(0.1)
        assert seen == ["ADDED", "MODIFIED"]
        assert pods.statistics().handler_errors == 2
        assert verbs(server, "watch") == ["watch"]
    assert "no such thing" in caplog.text


# -- a dispatcher ----------------------------------------------------------------------------------------------------


def waiting_call(obj: Json, **fields: Any) -> FunctionCall[None]:
    async def never(attempt: Any) -> None:
        raise AssertionError("it was to wait")

    return FunctionCall(never, call_type="later", target=ObjectRef.of(obj), not_before=3600, timeout=7200, **fields)


@pytest.mark.parametrize("how", ["watch", "list"])
async def test_what_is_gone_ends_calls_for_it(server, cluster, how):
    """Only those for that very uid; also if a new list shows that it went."""
    pod, other = server.create(new_pod("a")), server.create(new_pod("b"))
    async with Dispatcher() as dispatcher, reflected(cluster, dispatcher=dispatcher):
        doomed, kept = dispatcher.submit(waiting_call(pod)), dispatcher.submit(waiting_call(other))
        if how == "list":
            server.silence_watches()
        server.finish("Pod", "a", namespace="ns")
        if how == "list":
            server.compact()
        assert await doomed.outcome() == Cancelled("deleted") or isinstance(doomed.settled, Cancelled)
        assert not kept.done()
        kept.cancel("over")


async def test_own_writes_are_seen(server, cluster):
    """A bind shows in what `observe` and `overlay` return at once, and is settled by its event."""
    pod = server.create(new_pod("a"))
    async with Dispatcher() as dispatcher, reflected(cluster, dispatcher=dispatcher) as pods:
        server.watch_lag = 10
        await dispatcher.run(cluster.bind(pod, "n1"))
        assert "nodeName" not in held(pods, "a")["spec"]
        (shown,) = dispatcher.overlay(pods, api_version="v1", kind="Pod")
        assert shown["spec"]["nodeName"] == "n1"
        assert dispatcher.statistics().unobserved == 1
        await asyncio.sleep(15)
        assert held(pods, "a")["spec"]["nodeName"] == "n1"
        assert dispatcher.statistics().unobserved == 0


async def test_what_leaves_a_selection_is_not_gone(server, cluster):
    """With selectors the dispatcher is not told that it should forget."""
    pod = server.create(new_pod("a"))
    async with Dispatcher() as dispatcher, reflected(cluster, dispatcher=dispatcher, fields="spec.nodeName=") as pods:
        handle = dispatcher.submit(waiting_call(pod))
        server.bind(pod, "n1")
        await asyncio.sleep(1)
        assert not len(pods)
        assert not handle.done()
        handle.cancel("over")


async def test_a_dispatcher_that_is_not_running_is_an_error_of_a_handler(server, cluster):
    server.create(new_pod("a"))
    async with reflected(cluster, dispatcher=Dispatcher()) as pods:
        assert pods.statistics().handler_errors == 1


async def test_it_is_outside_of_the_economy(server, cluster):
    """Neither a full pool of connections nor a full dispatcher stops it (rule R8)."""
    async with Dispatcher() as dispatcher:
        cluster.transport._session()[0].connector._limit = 1
        server.black_hole(times=None, path="*/configmaps*")
        handle = dispatcher.submit(cluster.create(config_map(), timeout=5))
        await asyncio.sleep(1)
        async with reflected(cluster, dispatcher=dispatcher) as pods:
            server.create(new_pod("a"))
            await until(lambda: len(pods) == 1, within=1)
            assert now() < 3
        await handle.outcome()


# -- bounds and bad input --------------------------------------------------------------------------------------------


async def test_more_objects_than_the_store_may_hold(server, cluster):
    """Said at once, after one page; the store stays empty, and fills itself once they fit."""
    for number in range(6):
        server.create(new_pod(f"p{number}"))
    async with cluster.reflector("v1", "Pod", max_objects=5, page_size=2) as pods:
        with pytest.raises(ReflectorError, match=r"6 objects of Pod are more .*max_objects=5"):
            await pods.synced()
        assert (len(pods), len(server.audit)) == (0, 1)
        assert pods.state is WAITING
        server.finish("Pod", "p0", namespace="ns")
        await until(lambda: len(pods) == 5, within=120)
        await pods.synced()
        assert now() >= 60


async def test_the_store_runs_over_while_it_is_watched(server, cluster):
    async with reflected(cluster, max_objects=2) as pods:
        for number in range(4):
            server.create(new_pod(f"p{number}"))
        await asyncio.sleep(1)
        assert isinstance(pods.last_error, ReflectorError)
        assert len(pods) <= 3
        assert pods.stale_for >= 0.9
        server.finish("Pod", "p0", namespace="ns")
        server.finish("Pod", "p1", namespace="ns")
        await until(lambda: versions(pods) == truth(server), within=120)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"page_size": 0}, "page_size"),
        ({"max_objects": "many"}, "max_objects"),
        ({"idle_limit": 0}, "idle_limit"),
        ({"check_interval": float("inf")}, "check_interval"),
        ({"handlers": ("x",)}, "handlers"),
        ({"labels": 5}, "labels"),
        ({"fields": {"a": 5}}, "fields"),
        ({"kind": ""}, "kind"),
        ({"kind": "Node", "namespace": "ns"}, "metadata.namespace"),
        ({"namespace": "a/b"}, "namespace='a/b'"),
        ({"plural": ".."}, "plural='..'"),
    ],
)
async def test_bad_settings_are_refused_when_it_is_made(server, cluster, given, named):
    with pytest.raises(ConfigurationError, match=named):
        cluster.reflector("v1", **{"kind": "Pod", **given})


async def test_a_selector_that_the_server_does_not_understand(server, cluster):
    """Never a hang: whoever waits is told what the server says, and nothing is tried again."""
    async with cluster.reflector("v1", "Pod", fields="spec.colour=red") as pods, pods.events() as events:
        with pytest.raises(ApiError, match=r"spec\.colour"):
            await pods.synced()
        assert pods.state is ReflectorState.FAILED
        assert [event async for event in events] == []
        await asyncio.sleep(600)
        assert len(server.audit) == 1


async def test_a_kind_that_comes_later(server, cluster):
    """A custom resource whose definition is not there yet is waited for."""
    async with cluster.reflector("example.io/v1", "Widget") as widgets:
        await asyncio.sleep(20)
        assert widgets.state in (WAITING, ReflectorState.LISTING)
        assert "does not serve" in str(widgets.last_error) or "not found" in str(widgets.last_error)
        server.register("example.io/v1", "Widget", "widgets")
        await widgets.synced()


async def test_a_client_that_was_closed(server):
    cluster = Cluster(server.api_client())
    async with reflected(cluster) as pods:
        await cluster.transport._client.close()
        server.close_watches()
        await until(lambda: pods.state is ReflectorState.FAILED)
        assert "closed" in str(pods.last_error)
        await pods.synced()


# -- life ------------------------------------------------------------------------------------------------------------


async def test_it_is_entered_once(server, cluster):
    reflector = cluster.reflector("v1", "Pod")
    with pytest.raises(ReflectorError, match="async with"):
        await reflector.synced()
    assert reflector.statistics().state is ReflectorState.NEW
    assert reflector.stale_for == float("inf")
    assert repr(reflector) == "<Reflector v1 Pod: new, 0 objects>"
    async with reflector:
        await reflector.synced()
    assert reflector.state is ReflectorState.CLOSED
    with pytest.raises(ConfigurationError, match="once"):
        await reflector.__aenter__()


@pytest.mark.parametrize("when", ["listing", "watching", "waiting", "telling"])
async def test_leaving_leaves_nothing_behind(server, cluster, when):
    """No task, no connection, no further request; who waits for the first list is told."""
    before = asyncio.all_tasks()
    for number in range(200):
        server.create(new_pod(f"p{number}"))
    if when == "listing":
        server.delay(10, verb="list")
    if when == "waiting":
        server.fail(status=503, times=None)
    async with cluster.reflector("v1", "Pod", page_size=50) as pods:
        waiter = asyncio.create_task(pods.synced())
        if when == "telling":
            await until(lambda: len(pods) > 0)
        else:
            await asyncio.sleep(5)
    if when in ("listing", "waiting"):
        with pytest.raises((ReflectorError, ApiError)):
            await waiter
    else:
        await asyncio.gather(waiter, return_exceptions=True)
    assert pods.state is ReflectorState.CLOSED
    await asyncio.sleep(0.1)
    asked = len(server.audit)
    await asyncio.sleep(300)
    assert len(server.audit) == asked
    ours = [task.get_name() for task in asyncio.all_tasks() - before if "asyncdispatch" in task.get_name()]
    assert ours == []
    assert pods._watching._transport._ours is None


async def test_cancelled_twice_while_leaving(server, cluster):
    """The cancellation is raised again once the task has ended."""
    pods = cluster.reflector("v1", "Pod")

    async def program() -> None:
        async with pods:
            await asyncio.sleep(600)

    task = asyncio.create_task(program())
    await asyncio.sleep(5)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pods.state is ReflectorState.CLOSED


async def test_a_fault_of_its_own_is_survived(server, cluster, caplog, monkeypatch):
    """Never give up: what should not happen is logged with its traceback, and listed anew."""
    async with reflected(cluster) as pods:
        monkeypatch.setattr(pods._watching.store, "take", lambda kind, obj: 1 / 0)
        server.create(new_pod("a"))
        await until(lambda: len(pods) == 1)
        assert "ZeroDivisionError" in caplog.text


async def test_an_error_that_is_kept_holds_no_page(server, cluster):
    """`last_error` may be there for long: the list that failed must not be (case I7)."""
    for number in range(4):
        server.create(new_pod(f"p{number}"))
    kept: list[Any] = []
    async with cluster.reflector("v1", "Pod", page_size=2) as pods:
        adding = pods._watching._add

        def add(page: Json, into: Any, path: str) -> Json:
            kept.append(weakref.ref(into))
            return adding(page, into, path)

        pods._watching._add = add
        server.fail(status=429, times=None, when=lambda record: "continue" in record.query)
        await until(lambda: pods.statistics().failures >= 2)
        gc.collect()
        alive = [ref for ref in kept if ref() is not None]
        assert pods.last_error is not None
        assert len(kept) >= 2
        assert len(alive) <= (pods.state is ReflectorState.LISTING)
