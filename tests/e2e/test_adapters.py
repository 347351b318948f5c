"""The adapters of `Cluster` on a real API server: fences, kinds of patch, deletions, evictions, Events."""

import asyncio
from typing import Any

import pytest

from asyncdispatch import CallFailed, Dispatcher, ObjectRef
from asyncdispatch.outcomes import Failed, Succeeded

WIDGETS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.adapters.example.com"},
    "spec": {
        "group": "adapters.example.com",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


def pod(namespace, name="p", **spec):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def config_map(namespace, name="c", **data):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"made": "here"}},
        "data": data or {"a": "1", "b": "2"},
    }


def budget(namespace, name):
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
    }


async def widget(dispatcher, cluster, namespace):
    """A custom object; its kind is made with it, and may take a moment to be served."""
    definition = await dispatcher.run(cluster.create(WIDGETS, idempotency_key="widgets"))
    assert definition["kind"] == "CustomResourceDefinition"
    head = {"apiVersion": "adapters.example.com/v1", "kind": "Widget"}
    body = {**head, "metadata": {"name": "w", "namespace": namespace}, "spec": {"size": 1, "list": [1]}}
    return await dispatcher.run(cluster.create(body, idempotency_key="w", timeout=30))


def gone(outcome):
    return isinstance(outcome, Failed) and outcome.verdict.kind.value == "gone"


@pytest.mark.parametrize("kind", ["merge", "strategic", "json", "function"])
async def test_each_kind_of_patch_and_its_fences(cluster, namespace, kind):
    """It does what it says; for another uid it is GONE, for a stale version it fails, and nothing is changed."""
    async with Dispatcher() as dispatcher:
        made = await dispatcher.run(cluster.create(config_map(namespace)))
        patch = {"data": {"a": "3", "b": None}}
        steps = [{"op": "add", "path": "/data/a", "value": "3"}, {"op": "remove", "path": "/data/b"}]
        given = {"merge": patch, "strategic": patch, "json": steps, "function": lambda obj: patch}[kind]
        strategic = kind == "strategic"
        found = await dispatcher.run(cluster.patch(made, given, strategic=strategic))
        assert found["data"] == {"a": "3"}
        other = ObjectRef("v1", "ConfigMap", namespace, "c", "11111111-2222-3333-4444-555555555555")
    async with Dispatcher() as dispatcher:  # one that knows nothing of the object
        more = [{"op": "add", "path": "/data/z", "value": "1"}] if kind == "json" else {"data": {"z": "1"}}
        wish = (lambda obj: more) if kind == "function" else more
        assert gone(await dispatcher.submit(cluster.patch(other, wish, strategic=strategic)).outcome())
        if kind != "function":
            with pytest.raises(CallFailed, match="decided on version"):
                await dispatcher.run(cluster.patch(made, more, strategic=strategic, fence="version"))
        assert (await dispatcher.run(cluster.read(found)))["data"] == {"a": "3"}


async def test_patches_of_one_object_go_together(cluster, namespace):
    """Twenty fields in at most two requests, and all of them are there."""
    async with Dispatcher() as dispatcher:
        made = await dispatcher.run(cluster.create(config_map(namespace)))
        handles = [dispatcher.submit(cluster.patch(made, {"data": {f"k{n}": str(n)}})) for n in range(20)]
        outcomes = [await handle.outcome() for handle in handles]
        found = await dispatcher.run(cluster.read(made))
    assert sum(isinstance(outcome, Succeeded) for outcome in outcomes) <= 2
    assert {f"k{n}" for n in range(20)} <= found["data"].keys()


async def test_own_finalizer_goes_and_no_other(cluster, namespace):
    """E3, with a rival between every read and write."""
    async with Dispatcher() as dispatcher, Dispatcher() as rival:
        body = config_map(namespace)
        body["metadata"]["finalizers"] = ["example.com/theirs", "example.com/ours"]
        made = await dispatcher.run(cluster.create(body))
        seen = []

        def without_ours(obj):
            seen.append(obj)
            return {"metadata": {"finalizers": [n for n in obj["metadata"]["finalizers"] if n != "example.com/ours"]}}

        call = cluster.patch(made, without_ours)
        late = {"metadata": {"finalizers": ["example.com/ours", "example.com/late"]}}
        await rival.run(cluster.patch(made, late, fence="version"))
        found = await dispatcher.run(call)
        assert found["metadata"]["finalizers"] == ["example.com/late"]
        assert len(seen) == 2
        await dispatcher.run(cluster.patch(found, lambda obj: {"metadata": {"finalizers": None}}))


async def test_custom_resources(cluster, namespace):
    """Patch, status, replacement and deletion work as for Pods, by discovery."""
    async with Dispatcher() as dispatcher:
        made = await widget(dispatcher, cluster, namespace)
        await dispatcher.run(cluster.patch(made, {"spec": {"size": 2}}))
        ready = {"status": {"ready": True}, "metadata": {"labels": {"ignored": "there"}}}
        call = cluster.patch(made, ready, subresource="status")
        found = await dispatcher.run(call)
        assert (found["spec"]["size"], found["status"]) == (2, {"ready": True})
        assert call.apply(made)["metadata"] == made["metadata"]
        assert "labels" not in found["metadata"]
        found = await dispatcher.run(cluster.replace({**found, "spec": {"size": 3}}))
        assert found["spec"] == {"size": 3}
        with pytest.raises(CallFailed, match="decided on version"):
            await dispatcher.run(cluster.replace({**made, "spec": {"size": 4}}))
        await dispatcher.run(cluster.delete(found, fence="version"))
        with pytest.raises(CallFailed, match="not"):
            await dispatcher.run(cluster.read(found))


async def test_a_replacement_twice(cluster, namespace):
    """A7: the second of two equal replacements meets the first one's work, and that is a success."""
    async with Dispatcher() as dispatcher:
        made = await dispatcher.run(cluster.create(config_map(namespace)))
        wanted = {**made, "data": {"only": "this"}}
        first = await dispatcher.run(cluster.replace(wanted))
        again = await dispatcher.run(cluster.replace(wanted))
    assert again == first


async def test_deletions(cluster, namespace):
    """With a uid and no other; gone is done; another uid is GONE; what is shown is what the server has."""
    async with Dispatcher() as dispatcher:
        old = await dispatcher.run(cluster.create(config_map(namespace)))
        await dispatcher.run(cluster.delete(old))
        assert await dispatcher.run(cluster.delete(old)) is None
        new = await dispatcher.run(cluster.create(config_map(namespace)))
        waits = await dispatcher.run(cluster.create(pod(namespace, "waits")))
        runs = await dispatcher.run(cluster.create(pod(namespace, "runs")))
        await dispatcher.run(cluster.bind(runs, "n1"))
        runs = await dispatcher.run(cluster.read(runs))
        for obj in (waits, runs):
            call = cluster.delete(obj)
            await dispatcher.run(call)
            there: Any = await dispatcher.submit(cluster.read(obj)).outcome()
            shown = call.apply(obj)
            assert (shown is None) == gone(there)
            assert shown is None or there.value["metadata"]["deletionTimestamp"]
        assert await dispatcher.run(cluster.delete(runs, grace_period=0))
        assert gone(await dispatcher.submit(cluster.read(runs)).outcome())
    async with Dispatcher() as dispatcher:
        assert gone(await dispatcher.submit(cluster.delete(old)).outcome())
        assert (await dispatcher.run(cluster.read(new)))["metadata"]["uid"] == new["metadata"]["uid"]


async def test_create_behind_delete(cluster, namespace):
    """B15: a Job's template is immutable; the create waits for the old Job to be gone."""
    template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": namespace, "finalizers": ["example.com/held"]},
        "spec": {"template": template},
    }
    changed = {"spec": {"template": {"spec": {"nodeName": "n1"}}}}
    async with Dispatcher() as dispatcher:
        old = await dispatcher.run(cluster.create(job))
        with pytest.raises(CallFailed, match=r"spec\.template"):
            await dispatcher.run(cluster.patch(old, changed))
        delete = dispatcher.submit(cluster.delete(old, propagation="Background"))
        job["metadata"].pop("finalizers")
        create = dispatcher.submit(cluster.create(job, idempotency_key="j/2"))
        await delete
        async with Dispatcher() as other:  # whoever holds it lets go
            await other.run(cluster.patch(ObjectRef.of(old), lambda obj: {"metadata": {"finalizers": None}}))
        assert (await create)["metadata"]["uid"] != old["metadata"]["uid"]


async def test_evictions(cluster, namespace):
    """A budget that is not processed yet is LATER; two budgets fail at once; another uid is GONE; else it goes."""
    async with Dispatcher() as dispatcher:
        made = await dispatcher.run(cluster.create(pod(namespace)))
        await dispatcher.run(cluster.bind(made, "n1"))
        running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        made = await dispatcher.run(cluster.patch(made, running, strategic=True, subresource="status"))
        first = await dispatcher.run(cluster.create(budget(namespace, "b1")))
        blocked = dispatcher.submit(cluster.evict(made))
        await asyncio.sleep(1)
        assert not blocked.done()
        blocked.cancel("seen enough")
        assert not (await blocked.outcome()).ambiguous
        second = await dispatcher.run(cluster.create(budget(namespace, "b2")))
        with pytest.raises(CallFailed, match="more than one PodDisruptionBudget"):
            await dispatcher.run(cluster.evict(made))
        await dispatcher.run(cluster.delete(second))
        await dispatcher.run(cluster.delete(first))
        other = ObjectRef("v1", "Pod", namespace, "p", "11111111-2222-3333-4444-555555555555")
        async with Dispatcher() as ignorant:
            assert gone(await ignorant.submit(cluster.evict(other)).outcome())
        await dispatcher.run(cluster.evict(made))
        dying = await dispatcher.run(cluster.read(made))
        assert dying["metadata"]["deletionTimestamp"]
        assert cluster.evict(dying).is_noop()
        await dispatcher.run(cluster.delete(dying, grace_period=0))
        assert gone(await dispatcher.submit(cluster.evict(made)).outcome())


async def test_events(cluster, namespace):
    """They pass the server's checks: single ones, ones with a count, and ones about what is in no namespace."""
    async with Dispatcher() as dispatcher:
        made = await dispatcher.run(cluster.create(pod(namespace)))
        one = await dispatcher.run(
            cluster.event(made, reason="Looked", message="ä" * 2000, reporter="example.com/mine")
        )
        assert one["regarding"]["uid"] == made["metadata"]["uid"]
        handles = [dispatcher.submit(cluster.event(made, reason="Again", message=str(n))) for n in range(10)]
        outcomes = [await handle.outcome() for handle in handles]
        told = [outcome.value for outcome in outcomes if isinstance(outcome, Succeeded)]
        assert sum(event.get("series", {}).get("count", 1) for event in told) == 10
        node = await dispatcher.run(
            cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": namespace}})
        )
        event = await dispatcher.run(cluster.event(node, reason="Looked", message="", type="Warning"))
        assert event["metadata"]["namespace"] == "default"
