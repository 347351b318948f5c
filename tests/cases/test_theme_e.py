"""E: conflicts and lost updates."""

import asyncio
import dataclasses
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from asyncdispatch import (
    Again,
    APICall,
    Applied,
    Attempt,
    CallFailed,
    ConfigurationError,
    Dispatcher,
    DispatcherConfig,
    ObjectRef,
)
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.outcomes import Cancelled, Failed, Succeeded
from tests.cases.support import UNSCHEDULABLE, condition, config_map, new_pod, sent


@dataclass(frozen=True, kw_only=True)
class SetData(APICall[dict[str, Any]]):
    """A call type as a user writes it: PUT one key of a ConfigMap, decided anew when somebody else was faster."""

    cluster: Cluster
    seen: dict[str, Any] = dataclasses.field(hash=False)
    key: str
    value: str
    call_type: str = "set_data"

    async def execute(self, attempt: Attempt) -> dict[str, Any]:
        body = {**self.seen, "data": {**self.seen.get("data", {}), self.key: self.value}}
        return await self.cluster.transport.request("PUT", self._path, attempt, body=body)

    async def reconcile(self, attempt, error):
        found = await self.cluster.transport.request("GET", self._path, attempt, aside=True)
        if found["data"].get(self.key) == self.value:
            return Applied(found)
        return Again(dataclasses.replace(self, seen=found))

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.target.namespace}/configmaps/{self.target.name}"


def contested(server, cluster, kind):
    """An object, a call that writes to it fenced by its version, and whether an object shows what the call wants."""
    if kind == "status":
        obj = server.create(new_pod())
        call = cluster.patch_status(obj, conditions=[UNSCHEDULABLE], fence="version")
        return obj, call, lambda found: condition(found, "PodScheduled") == "False"
    obj = server.create(config_map(mine="old", other="0"))
    call = SetData(target=ObjectRef.of(obj), cluster=cluster, seen=obj, key="mine", value="new")
    return obj, call, lambda found: found["data"]["mine"] == "new"


@pytest.mark.parametrize("kind", ["status", "data"])
@pytest.mark.parametrize("losses", [1, 3, 8])
async def test_e1_write_that_loses_its_fence(server, cluster, kind, losses):
    """An update lost every race against another writer, was only logged, and nobody saw its condition.

    Right: it is decided anew on what the other has left, and succeeds; the other's change stays.
    """
    obj, call, done = contested(server, cluster, kind)
    numbers = count(1)

    def rival(record):
        server.patch_object(obj, {"metadata": {"labels": {f"l{next(numbers)}": "1"}}})

    server.hook(rival, times=losses, when=lambda record: record.method in ("PATCH", "PUT"))
    async with Dispatcher() as dispatcher:
        assert done(await dispatcher.run(call))
    found = server.get(obj)
    assert done(found)
    assert len(found["metadata"]["labels"]) == losses
    assert [r.status for r in sent(server, "PATCH", "PUT")] == [409] * losses + [200]
    # Each was decided on another state: a retry with the same stale base could never get through.
    bases = [r.body["metadata"]["resourceVersion"] for r in sent(server, "PATCH", "PUT")]
    assert len(set(bases)) == losses + 1


@pytest.mark.parametrize("kind", ["status", "data"])
async def test_e1_write_that_always_loses(server, cluster, kind):
    """When the fence is lost for good, it ends after a bounded number of tries, and the caller sees that."""
    obj, call, done = contested(server, cluster, kind)
    numbers = count(1)

    def rival(record):
        server.patch_object(obj, {"metadata": {"labels": {"l": str(next(numbers))}}})

    server.hook(rival, when=lambda record: record.method in ("PATCH", "PUT"))
    async with Dispatcher() as dispatcher:
        with pytest.raises(CallFailed, match="409"):
            await dispatcher.run(call)
    assert not done(server.get(obj))
    assert len(sent(server, "PATCH", "PUT")) <= 12


FINALIZERS = ["other/a", "ours/b"]


def without_ours(obj):
    """A patch made from the object: our finalizer goes, whatever else is there."""
    held = obj["metadata"].get("finalizers", [])
    return {"metadata": {"finalizers": [name for name in held if name != "ours/b"]}} if "ours/b" in held else None


def held_object(server, kind):
    server.register("example.com/v1", "Workload", "workloads")
    obj = new_pod() if kind == "pod" else {**config_map(), "apiVersion": "example.com/v1", "kind": "Workload"}
    return server.patch_object(server.create(obj), {"metadata": {"finalizers": FINALIZERS}})


@pytest.mark.parametrize("kind", ["pod", "custom resource"])
async def test_e3_own_finalizer_goes_and_no_other_comes_back(server, cluster, kind):
    """A merge patch replaces lists: removing one's own finalizer erased, or brought back, those of others.

    Right: such a patch needs a version; decided by a function, only ours goes, whatever the others do meanwhile.
    """
    obj = held_object(server, kind)
    blind = {"metadata": {"finalizers": ["other/a"]}}
    with pytest.raises(ConfigurationError, match=r"patch\.metadata\.finalizers"):
        cluster.patch(obj, blind)
    theirs = iter([["ours/b"], ["ours/b", "late/c"], ["ours/b", "late/c", "late/d"]])

    def rival(record):
        server.patch_object(obj, {"metadata": {"finalizers": next(theirs)}})

    server.hook(rival, times=3, method="PATCH")
    async with Dispatcher() as dispatcher:
        found = await dispatcher.run(cluster.patch(obj, without_ours))
    assert found["metadata"]["finalizers"] == server.get(obj)["metadata"]["finalizers"] == ["late/c", "late/d"]
    assert [record.status for record in sent(server, "PATCH")] == [409, 409, 409, 200]


async def test_e3_fixed_list_that_lost_its_version(server, cluster):
    """A list that was written down beforehand is about the object as it was: it fails, and nothing is erased."""
    obj = held_object(server, "pod")
    server.patch_object(obj, {"metadata": {"finalizers": ["ours/b", "late/c"]}})
    async with Dispatcher() as dispatcher:
        with pytest.raises(CallFailed, match="decided on version"):
            await dispatcher.run(cluster.patch(obj, {"metadata": {"finalizers": ["other/a"]}}, fence="version"))
    assert server.get(obj)["metadata"]["finalizers"] == ["ours/b", "late/c"]


async def test_e3_patch_that_waits_is_decided_on_what_was_seen_since(server, cluster):
    """What the watch has told while it waited counts: there is no conflict to begin with."""
    obj = held_object(server, "pod")
    async with Dispatcher() as dispatcher:
        handle = dispatcher.submit(cluster.patch(obj, without_ours, not_before=5))
        await asyncio.sleep(1)
        dispatcher.observe(server.patch_object(obj, {"metadata": {"finalizers": ["ours/b", "late/c"]}}))
        assert (await handle)["metadata"]["finalizers"] == ["late/c"]
    assert [record.status for record in sent(server)] == [200]


@pytest.mark.parametrize("how", ["waits for a seat", "is delayed", "backs off"])
async def test_e5_late_status_patch_that_was_not_sent(server, cluster, how):
    """An "unschedulable" of an older decision was written after the Pod had been bound.

    Right, if it still waits when the next cycle begins: it is cancelled and never sent again.
    """
    pod, other = server.create(new_pod()), server.create(new_pod("other"))
    if how == "backs off":
        server.fail(status=503, retry_after=5, method="PATCH")
    if how == "waits for a seat":
        server.delay(1, path="*/other/binding")
    async with Dispatcher(DispatcherConfig(max_in_flight=1)) as dispatcher:
        if how == "waits for a seat":
            dispatcher.submit(cluster.bind(other, "n9"))
            await asyncio.sleep(0.5)
        older = dispatcher.contexts.begin(pod)
        delay = 5 if how == "is delayed" else None
        call = cluster.patch_status(pod, conditions=[UNSCHEDULABLE], context=older, not_before=delay)
        patch = dispatcher.submit(call)
        await asyncio.sleep(0.1)
        newer = dispatcher.contexts.begin(pod)
        assert isinstance(patch.settled, Cancelled)
        assert not patch.settled.ambiguous
        await dispatcher.run(cluster.bind(pod, "n1", context=newer))
        await asyncio.sleep(20)
    found = server.get(pod)
    assert found["spec"]["nodeName"] == "n1"
    assert condition(found, "PodScheduled") == "True"
    assert len(sent(server, "PATCH")) == (how == "backs off")


@pytest.mark.parametrize("late", ["write", "answer"])
@pytest.mark.parametrize("fence", ["version", None])
async def test_e5_late_status_patch_in_flight(server, cluster, late, fence):
    """The same when the patch is on the wire as the next cycle binds the Pod.

    Right: it lands before the bind or is refused; the Pod never ends up bound with PodScheduled=False from us.
    """
    pod = server.create(new_pod())
    server.delay(3, method="PATCH", applied=late == "answer")
    server.latency = 0.01
    fences = {} if fence is None else {"fence": fence}
    async with Dispatcher() as dispatcher:
        older = dispatcher.contexts.begin(pod)
        patch = dispatcher.submit(cluster.patch_status(pod, conditions=[UNSCHEDULABLE], context=older, **fences))
        await asyncio.sleep(1)
        newer = dispatcher.contexts.begin(pod)
        await dispatcher.run(cluster.bind(pod, "n1", context=newer))
        outcome = await patch.outcome()
        await asyncio.sleep(20)
    assert isinstance(outcome, Cancelled)
    assert outcome.ambiguous
    found = server.get(pod)
    assert found["spec"]["nodeName"] == "n1"
    assert condition(found, "PodScheduled") == "True"


@pytest.mark.parametrize("late", ["write", "answer"])
async def test_e5_late_nomination_in_flight(server, cluster, late):
    """A nomination of an older decision, of the same kind: a bound Pod never ends up nominated by us."""
    pod = server.create(new_pod())
    server.delay(3, method="PATCH", applied=late == "answer")
    async with Dispatcher(DispatcherConfig(attempt_timeout=1)) as dispatcher:
        context = dispatcher.contexts.begin(pod)
        patch = dispatcher.submit(cluster.patch_status(pod, nominated_node="n7", context=context))
        await asyncio.sleep(0.5)
        context = dispatcher.contexts.begin(pod)
        bind = dispatcher.submit(cluster.bind(pod, "n1", context=context))
        assert isinstance(await bind.outcome(), Succeeded)
        assert isinstance(await patch.outcome(), Cancelled)
        await asyncio.sleep(20)
    found = server.get(pod)
    assert found["spec"]["nodeName"] == "n1"
    assert "nominatedNodeName" not in found["status"]


async def test_e5_bind_settles_the_patches_that_wait(server, cluster):
    """Without contexts: the bind goes past a status patch that waits, and its success answers it."""
    pod = server.create(new_pod())
    server.latency = 0.1
    async with Dispatcher(DispatcherConfig(max_in_flight=1)) as dispatcher:
        first = dispatcher.submit(cluster.patch_status(pod, nominated_node="n1"))
        await asyncio.sleep(0.05)
        patch = dispatcher.submit(cluster.patch_status(pod, conditions=[UNSCHEDULABLE]))
        await dispatcher.run(cluster.bind(pod, "n1"))
        outcome = await patch.outcome()
        await first
    assert not isinstance(outcome, (Succeeded, Failed))
    assert len(sent(server, "PATCH")) == 1
    assert condition(server.get(pod), "PodScheduled") == "True"
