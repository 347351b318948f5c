"""Deletes and evictions replay: what the watch tells of a removal may come before its answer (laws L16, L18)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig, Mode, ObjectRef, RefusedError
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.outcomes import Succeeded
from asyncdispatch.testing import EmbeddedAPIServer
from asyncdispatch.traces import TraceRecorder, read_trace, what_if
from tests.cases.support import new_pod
from tests.traces.worlds import Kept, check_same

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("how", ["delete", "evict"])
async def test_seen_by_the_watch_before_its_answer(how: str, tmp_path: Path) -> None:
    """A removal that was sent is left to its answer, also in the replay, and in what another configuration does."""
    path, kept = tmp_path / "trace", Kept()
    async with EmbeddedAPIServer(auto_namespaces=True, latency=0.1) as server:
        pod = server.create(new_pod())
        cluster = Cluster(server.api_client())
        with TraceRecorder(path) as recorder:
            async with Dispatcher(observers=(recorder, kept)) as dispatcher:
                handle = dispatcher.submit(getattr(cluster, how)(pod))
                await asyncio.sleep(0.06)
                dispatcher.forget(ObjectRef.of(pod), "seen by the watch")
                assert isinstance(await handle.outcome(), Succeeded)
    check_same(path, kept)
    trace = read_trace(path)
    found = what_if(trace, trace.config)
    assert found.outcomes_after == found.outcomes_before == {"succeeded": 1}


class World:
    """Random calls for a few Pods that are removed and made anew, against a server that misbehaves."""

    def __init__(self, seed: int, server: EmbeddedAPIServer, dispatcher: Dispatcher) -> None:
        self.dice, self.server, self.dispatcher = Random(seed), server, dispatcher
        self.cluster = Cluster(server.api_client())
        self.handles: list[Any] = []

    async def play(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            await asyncio.sleep(self.dice.random() * 0.3)
        for handle in self.handles:
            await handle.outcome()

    def step(self) -> None:
        dice, server, dispatcher = self.dice, self.server, self.dispatcher
        name, what = f"p{dice.randrange(4)}", dice.random()
        pod = server.find("Pod", name, namespace="ns") or server.create(new_pod(name))
        if what < 0.6:
            try:
                self.handles.append(dispatcher.submit(self.call(pod, dice.random())))
            except RefusedError:
                pass
        elif what < 0.75:  # the watch tells of it, now or late
            dispatcher.forget(ObjectRef.of(pod) if dice.random() < 0.8 else ObjectRef("v1", "Pod", "ns", name), "gone")
        elif what < 0.82:
            dispatcher.observe(pod, fresh=dice.random() < 0.3)
        elif what < 0.86:
            server.recreate(pod)
        elif what < 0.9 and self.handles:
            dice.choice(self.handles).cancel("changed its mind")
        elif what < 0.95:
            server.drop(times=1, applied=dice.random() < 0.5, method=dice.choice(["DELETE", "POST", "PATCH"]))
        else:
            server.fail(times=1, status=dice.choice([429, 500, 503, 409, 404, 401]))

    def call(self, pod: dict[str, Any], kind: float) -> Any:
        cluster, dice = self.cluster, self.dice
        fields: dict[str, Any] = {
            "timeout": dice.choice([None, 20.0, 1.0]),
            "priority": dice.choice([0, 2_000_000_000]),
        }
        if kind < 0.3:
            nameless = ObjectRef("v1", "Pod", "ns", pod["metadata"]["name"])
            return cluster.delete(dice.choice([pod, pod, nameless]), **fields)
        if kind < 0.5:
            return cluster.evict(pod, **fields)
        if kind < 0.65:
            return cluster.patch(ObjectRef.of(pod), {"metadata": {"labels": {"a": str(kind)}}}, **fields)
        if kind < 0.8:
            return cluster.bind(pod, "n", context=self.dispatcher.contexts.begin(pod), **fields)
        return cluster.read(ObjectRef.of(pod), ordered=dice.random() < 0.5, **fields)


@pytest.mark.parametrize("seed", range(8))
async def test_random_removals(seed: int, tmp_path: Path) -> None:
    """Deletes, evictions, forgets and new objects of the same names, in any order, with lost answers."""
    path, kept = tmp_path / "trace", Kept()
    config = DispatcherConfig(max_in_flight=3, attempt_timeout=2.0, drain_timeout=3.0)
    async with EmbeddedAPIServer(auto_namespaces=True, latency=0.2, seed=seed) as server:
        with TraceRecorder(path) as recorder:
            async with Dispatcher(config, observers=(recorder, kept)) as dispatcher:
                dispatcher._delays._rng.seed(seed)
                await World(seed, server, dispatcher).play(100)
                await dispatcher.switch(Mode.SYNC, "over")
        assert recorder.ended is None
    check_same(path, kept)
    assert "unfinished" not in what_if(read_trace(path), config).outcomes_after
