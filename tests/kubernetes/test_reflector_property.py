"""Whatever happens to objects and to the streams that tell of it: the store comes to be as the server is."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import looptime
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import Cluster, WatchEvent
from asyncdispatch.testing import EmbeddedAPIServer, answers
from tests.cases.support import new_pod

Json = dict[str, Any]

NAME = st.sampled_from("ab")
CHANGES = st.tuples(st.sampled_from(["create", "touch", "touch", "delete", "recreate"]), NAME)
# What may go wrong, none of it for ever. A lost change of an object that is there still can't be found by anybody.
TIMES = st.integers(1, 3)
LIES = st.sampled_from(["garble", "repeat", "swap", "late", "lose_deletions", "lose_additions"])
STREAMS = st.sampled_from(["close", "reset", "silence", "gone", "error", "compact", "cut", "chunk", "lag"])
ANSWERS = st.sampled_from(["drop", "503", "429", "410", "black_hole", "no_list"])
TROUBLES = st.tuples(LIES | LIES | STREAMS | ANSWERS, TIMES)
PAUSES = st.sampled_from([0.0, 0.1, 0.1, 0.1, 3.0, 12.0, 100.0])
STEPS = st.tuples(CHANGES | CHANGES | TROUBLES, PAUSES)
STORIES = st.lists(STEPS, max_size=40)


class World:
    """A server that misbehaves as it is told, and what was seen of it through a reflector."""

    def __init__(self, server: EmbeddedAPIServer) -> None:
        self.server = server
        self.seen: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
        self.state: dict[str, Json] = {}

    def handle(self, event: WatchEvent) -> None:
        """As a user's index: what the events add up to."""
        meta = event.object["metadata"]
        self.seen[meta["name"], meta["uid"]].append((event.type, int(meta["resourceVersion"])))
        if event.type == "DELETED":
            assert self.state.pop(meta["name"], None) == event.old
        else:
            assert (meta["name"] in self.state) == (event.type == "MODIFIED")
            assert self.state.get(meta["name"]) == event.old
            self.state[meta["name"]] = event.object

    def change(self, what: str, name: str, number: int) -> None:
        server, there = self.server, self.server.find("Pod", name, namespace="ns") is not None
        if what == "create" and not there:
            server.create(new_pod(name))
        elif what == "touch" and there:
            server.patch_object("Pod", {"metadata": {"labels": {"x": str(number)}}}, name, namespace="ns")
        elif what == "delete" and there:
            server.finish("Pod", name, namespace="ns")
        elif what == "recreate" and there:
            server.recreate("Pod", name, namespace="ns")

    def trouble(self, what: str, times: int) -> None:
        server = self.server
        {
            "close": server.close_watches,
            "reset": server.reset_connections,
            "silence": server.silence_watches,
            "gone": server.fail_watches,
            "error": lambda: server.fail_watches(answers.cache_not_ready()),
            "compact": server.compact,
            "cut": lambda: server.cut(after=200 * times, verb="watch"),
            "chunk": lambda: server.chunk(times, verb="watch", times=times),
            "garble": lambda: server.garble_events(times),
            "repeat": lambda: server.repeat_events(times),
            "swap": lambda: server.swap_events(times),
            "late": lambda: server.delay_events(10.0, times),
            "lose_deletions": lambda: server.lose_events(times, type="DELETED"),
            "lose_additions": lambda: server.lose_events(times, type="ADDED"),
            "drop": lambda: server.drop(times=times),
            "503": lambda: server.fail(status=503, body="", times=times),
            "429": lambda: server.fail(answers.throttled(), times=times),
            "410": lambda: server.fail(answers.gone(), times=times, verb="watch"),
            "black_hole": lambda: server.black_hole(times=1),
            "no_list": lambda: server.fail(answers.throttled(), times=times, verb="list"),
            "lag": lambda: setattr(server, "watch_lag", times * 0.5),
        }[what]()

    def calm(self, lies: set[str]) -> None:
        """From now on all is well.

        Counting finds what was lost if it made the store larger, or smaller. What was lost both ways, and a change that
        came too late for its stream, is found by a new list only: then this one forces it.
        """
        for fault in self.server.faults:
            fault.remove()
        for lie in list(self.server._lies):
            lie.remove()
        self.server.watch_lag = 0
        if {"swap", "late"} & lies or {"lose_deletions", "lose_additions"} <= lies:
            self.server.compact()
            self.server.close_watches()


async def tell(story: list[tuple[tuple[str, Any], float]], synced: bool) -> None:
    async with EmbeddedAPIServer(auto_namespaces=True) as server:
        world = World(server)
        cluster = Cluster(server.api_client())
        server.create(new_pod("a"))
        async with (
            Dispatcher() as dispatcher,
            cluster.reflector(
                "v1", "Pod", dispatcher=dispatcher, handlers=(world.handle,), page_size=2, check_interval=60
            ) as pods,
        ):
            if synced:
                await pods.synced()
                await asyncio.sleep(0.1)
            for number, ((what, detail), pause) in enumerate(story):
                if isinstance(detail, str):
                    world.change(what, detail, number)
                else:
                    world.trouble(what, detail)
                if pause:
                    await asyncio.sleep(pause)
            world.calm({what for (what, detail), _ in story if not isinstance(detail, str)})
            await asyncio.sleep(700)
            held = {pod["metadata"]["name"]: pod for pod in pods}
            truth = {pod["metadata"]["name"]: pod for pod in server.objects.of("Pod")}
            stale = [name for name in held if name in truth and held[name] != truth[name]]
            assert held.keys() == truth.keys()
            assert not stale
            assert world.state == held, "what the events add up to is what is held"
            assert pods.statistics().handler_errors == 0
            for told in world.seen.values():
                versions = [version for kind, version in told if kind != "DELETED"]
                assert versions == sorted(set(versions)), "each version of an object once, and in order"
            spans = [record.time for record in server.audit]
            assert all(sum(at <= time < at + 1 for time in spans) <= 40 for at in spans), "never hot"


@settings(max_examples=60)
@given(STORIES, st.booleans())
def test_it_comes_to_be_as_the_server_is(story: list[tuple[tuple[str, Any], float]], synced: bool) -> None:
    """Objects come, change and go while streams are cut, silent, late, lost, doubled, reordered and broken.

    Then: the store holds what the server has, its events add up to it, and each object's versions were seen once and
    in order, by the handlers and by the dispatcher.
    """
    loop = looptime.new_event_loop()
    try:
        loop.run_until_complete(tell(story, synced))
    finally:
        loop.close()
