"""Fields of calls, given by a block or by call type."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncdispatch import (
    CallCancelled,
    ConfigurationError,
    ObjectRef,
    StaleContext,
)
from asyncdispatch.kubernetes import DispatchingApiClient
from tests.kubernetes.dispatching.world import LABEL, Seen, World


async def test_options(world: World, seen: Seen) -> None:
    """Fields of the calls in a block; the inner block wins, and tasks take them along."""
    world.pod()
    context = world.dispatcher.contexts.begin(ObjectRef("v1", "Pod", "default", "p"))
    with world.client.options(priority=5, flow="plugin", context=context):
        await world.v1.patch_namespaced_pod("p", "default", LABEL)
        with world.client.options(priority=9):
            task = asyncio.ensure_future(world.v1.read_namespaced_pod("p", "default"))
        await task
    await world.v1.read_namespaced_pod("p", "default")
    found = [(call.priority, call.flow, call.context) for call in seen.calls]
    assert found == [(5, "plugin", context), (9, "plugin", context), (0, "default", None)]


async def test_options_by_call_type(world: World, seen: Seen) -> None:
    """A mapping at construction; a block wins over it."""
    world.pod()
    client = DispatchingApiClient(world.dispatcher, world.api_client, options={"pod_patch": {"priority": 3}})
    v1 = world.module.CoreV1Api(client)
    await v1.patch_namespaced_pod("p", "default", LABEL)
    await v1.read_namespaced_pod("p", "default")
    with client.options(priority=4):
        await v1.patch_namespaced_pod("p", "default", LABEL)
    await world.v1.patch_namespaced_pod("p", "default", LABEL)
    assert [call.priority for call in seen.calls] == [3, 0, 4, 0]


async def test_ordered_is_for_reads(world: World, seen: Seen) -> None:
    """A block may hold both: it counts for the reads in it."""
    world.pod()
    with world.client.options(ordered=True):
        await world.v1.patch_namespaced_pod("p", "default", LABEL)
        await world.v1.read_namespaced_pod("p", "default")
    assert [call.ordered for call in seen.calls] == [False, True]


async def test_whose_credentials(world: World, seen: Seen) -> None:
    """Calls are held by the client whose credentials they use, unless told otherwise."""
    world.pod()
    await world.v1.read_namespaced_pod("p", "default")
    with world.client.options(scope="tenant"):
        await world.v1.read_namespaced_pod("p", "default")
    assert [call.scope for call in seen.calls] == [world.api_client, "tenant"]


async def test_a_bind_ends_with_its_node(world: World) -> None:
    """A node that is gone takes the binds to it along."""
    world.pod()
    world.server.latency = 5
    task = asyncio.ensure_future(world.bind())
    await asyncio.sleep(1)
    assert world.dispatcher.forget(ObjectRef("v1", "Node", None, "n1"), "node is gone") == 1
    with pytest.raises(CallCancelled, match="node is gone"):
        await task


async def test_the_priority_of_a_pod(world: World, seen: Seen) -> None:
    """What a body says of its priority counts, unless an option says otherwise."""
    pod = world.model()
    pod.spec.priority = 77
    world.server.fail(status=422, method="POST")
    with pytest.raises(world.module.ApiException):
        await world.v1.create_namespaced_pod("default", pod)
    assert seen.last.priority == 77


async def test_a_context_that_has_ended(world: World) -> None:
    """Nothing is sent for it."""
    world.pod()
    context = world.dispatcher.contexts.begin(ObjectRef("v1", "Pod", "default", "p"))
    context.end("preempted")
    with world.client.options(context=context), pytest.raises(StaleContext):
        await world.v1.patch_namespaced_pod("p", "default", LABEL)
    assert not world.server.audit


async def test_a_context_that_ends(world: World) -> None:
    """A call that waits is cancelled, and says why."""
    world.pod()
    world.server.latency = 5
    context = world.dispatcher.contexts.begin(ObjectRef("v1", "Pod", "default", "p"))
    with world.client.options(context=context):
        task = asyncio.ensure_future(world.v1.patch_namespaced_pod("p", "default", LABEL))
    await asyncio.sleep(0.5)
    context.end("preempted")
    with pytest.raises(CallCancelled, match="preempted"):
        await task


async def test_a_bind_waits_for_its_requirements(world: World, seen: Seen) -> None:
    """A call that confirms a requirement of the context goes first; the typed bind starts after it."""
    world.pod()
    context = world.dispatcher.contexts.begin(ObjectRef("v1", "Pod", "default", "p"), requires=["label"])
    with world.client.options(context=context):
        bind = asyncio.ensure_future(world.bind())
        await asyncio.sleep(1)
        assert not world.server.audit
        with world.client.options(prerequisite="label"):
            await world.v1.patch_namespaced_pod("p", "default", LABEL)
        assert (await bind).status == 201
    assert [record.verb for record in world.server.audit] == ["patch", "bind"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"urgency": 1}, "urgency"),
        ({"call_type": "x"}, "call_type"),
        ({"priority": "high"}, "priority"),
        ({"timeout": -1}, "timeout"),
        ({"flow": ""}, "flow"),
        ({"idempotency_key": []}, "idempotency_key"),
    ],
)
async def test_options_that_can_not_be_meant(world: World, fields: dict[str, Any], named: str) -> None:
    """An error that names the option, in a block and at construction."""
    with pytest.raises(ConfigurationError, match=named), world.client.options(**fields):
        pass
    with pytest.raises(ConfigurationError, match=named):
        DispatchingApiClient(world.dispatcher, world.api_client, options={"pod_patch": fields})


@pytest.mark.parametrize("options", [[], {"": {}}, {1: {}}, {"pod_patch": 5}])
async def test_mappings_that_can_not_be_meant(world: World, options: Any) -> None:
    """Call types to mappings of fields, and nothing else."""
    with pytest.raises(ConfigurationError, match="options"):
        DispatchingApiClient(world.dispatcher, world.api_client, options=options)
