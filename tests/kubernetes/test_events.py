"""Events: told at best effort, never in the way, and as one while they wait."""

import asyncio
from typing import Any

import pytest
from kubernetes_asyncio.client import V1Node, V1ObjectMeta

from asyncdispatch import CallTypePolicy, Dispatcher, DispatcherConfig
from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.kubernetes.events import LOWEST_PRIORITY, NOTE_LIMIT
from asyncdispatch.outcomes import Expired, Failed, Overwritten, Shed, Succeeded
from tests.kubernetes.support import FakeClient, pod_dict

OFFLINE: Any = Cluster(FakeClient())


def event(cluster, obj, reason="FailedScheduling", message="no room", **fields):
    return cluster.event(obj, reason=reason, message=message, **fields)


def told(server):
    return server.objects.of("Event.events.k8s.io")


def test_an_event_as_a_value():
    """At the lowest level, sheddable; its target stands for the object and the reason."""
    call = event(OFFLINE, pod_dict(priority=7))
    assert (call.call_type, call.priority, call.sheddable, call.timeout) == ("event", LOWEST_PRIORITY, True, 60)
    assert call.target.kind == "Event"
    assert call.target.namespace == "ns"
    assert call == event(OFFLINE, pod_dict(priority=7))
    assert call.target == event(OFFLINE, pod_dict(), message="still none").target
    assert isinstance(hash(call), int)
    assert repr(call) == "<Event FailedScheduling of Pod ns/p>"
    others = [
        event(OFFLINE, pod_dict(uid="u2")),
        event(OFFLINE, pod_dict("q")),
        event(OFFLINE, pod_dict(), reason="Scheduled"),
        event(OFFLINE, pod_dict(), type="Warning"),
        event(OFFLINE, pod_dict(), reporter="example.com/mine"),
    ]
    assert len({call.target, *(other.target for other in others)}) == 6
    assert event(OFFLINE, pod_dict(), flow="mine", timeout=5).timeout == 5


@pytest.mark.parametrize(
    ("obj", "namespace", "base"),
    [
        (V1Node(metadata=V1ObjectMeta(name="n1", uid="u")), "default", "n1"),
        (ObjectRef("rbac.authorization.k8s.io/v1", "ClusterRole", None, "system:Node_x"), "default", "system-node-x"),
        (ObjectRef("v1", "Pod", "ns", "p" * 253), "ns", "p" * 200),
    ],
)
def test_where_events_live(obj, namespace, base):
    """In the object's namespace, else in `default`; under a name that can be one."""
    call = event(OFFLINE, obj)
    assert call.target.namespace == namespace
    name = call.body()["metadata"]["name"]
    assert name.startswith(f"{base}.")
    assert len(name) <= 253


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reason": ""}, "reason"),
        ({"reason": "x" * 129}, "reason"),
        ({"reason": None}, "reason"),
        ({"message": None}, "message"),
        ({"type": "Error"}, "type"),
        ({"action": ""}, "action"),
        ({"reporter": ""}, "reporter"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(fields, field):
    """A named error, before anything is queued."""
    with pytest.raises(ConfigurationError) as caught:
        event(OFFLINE, pod_dict(), **fields)
    assert caught.value.field == field
    for obj in ({"metadata": {"name": "p"}}, ObjectRef("v1", "Pod", "ns", "p-*")):
        with pytest.raises(ConfigurationError):
            event(OFFLINE, obj)


async def test_an_event_is_told(server, cluster):
    """As events.k8s.io/v1, with all that it requires."""
    pod = server.create(pod_dict(uid=None, version=None))
    async with Dispatcher() as dispatcher:
        await dispatcher.run(event(cluster, pod, type="Warning", reporter="example.com/mine", action="Binding"))
    (found,) = told(server)
    assert found["regarding"]["uid"] == pod["metadata"]["uid"]
    assert (found["type"], found["reason"], found["action"]) == ("Warning", "FailedScheduling", "Binding")
    assert (found["note"], found["reportingController"]) == ("no room", "example.com/mine")
    assert found["reportingInstance"]
    assert found["eventTime"].endswith("Z")
    assert "series" not in found


def test_a_note_that_is_too_long():
    """It is cut, between characters."""
    note = event(OFFLINE, pod_dict(), message="ä" * 2000).body()["note"]
    assert len(note.encode()) <= NOTE_LIMIT
    assert note.endswith("ä…")


async def test_repeated_ones_become_one_while_they_wait(server, cluster):
    """One flies, one waits, whatever comes: with the newest note, since the first, and a count."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.latency = 1
    async with Dispatcher() as dispatcher:
        handles = [dispatcher.submit(event(cluster, pod, message="0"))]
        await asyncio.sleep(0.1)
        handles += [dispatcher.submit(event(cluster, pod, message=str(index))) for index in range(1, 20)]
        outcomes = [await handle.outcome() for handle in handles]
    assert [type(outcome) for outcome in outcomes] == [Succeeded, *[Overwritten] * 18, Succeeded]
    first, rest = sorted(told(server), key=lambda found: found["note"])
    assert (first["note"], rest["note"], rest["series"]["count"]) == ("0", "19", 19)
    assert rest["eventTime"] <= rest["series"]["lastObservedTime"]


async def test_it_never_holds_up_its_object(server, cluster):
    """A slow Event about a Pod: the bind of the Pod goes at once."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.delay(5, path="*/events")
    async with Dispatcher() as dispatcher:
        dispatcher.submit(event(cluster, pod))
        await asyncio.sleep(0.1)
        outcome = await dispatcher.submit(cluster.bind(pod, "n1")).outcome()
    assert isinstance(outcome, Succeeded)
    assert outcome.elapsed_seconds < 1


async def test_seats_of_their_own(server, cluster):
    """By default: a flood of them leaves the seats of all other calls free."""
    server.latency = 1
    pods = [server.create(pod_dict(f"p{index}", uid=None, version=None)) for index in range(30)]
    async with Dispatcher() as dispatcher:
        for pod in pods:
            dispatcher.submit(event(cluster, pod))
        await asyncio.sleep(0.1)
        assert dispatcher.statistics().in_flight == 4


@pytest.mark.parametrize("fault", ["lost", "lost and landed", "500", "503", "403"])
async def test_one_retry_at_most(server, cluster, fault):
    """And no second Event where the first one landed."""
    pod = server.create(pod_dict(uid=None, version=None))
    if fault.startswith("lost"):
        server.drop(times=1 if fault.endswith("landed") else 9, applied=fault.endswith("landed"), path="*/events")
    else:
        server.fail(status=int(fault), reason="", times=9, path="*/events")
    async with Dispatcher() as dispatcher:
        outcome = await dispatcher.submit(event(cluster, pod)).outcome()
    assert isinstance(outcome, Succeeded if fault == "lost and landed" else Failed)
    assert len(server.audit) == (1 if fault == "403" else 2)
    assert len(told(server)) == (fault == "lost and landed")


async def test_it_makes_room_and_waits_for_nobody(server, cluster):
    """It is shed for what is more urgent, keeps to its own seats, and is not told an hour later."""
    server.latency = 90
    pods = [server.create(pod_dict(f"p{index}", uid=None, version=None)) for index in range(6)]
    config = DispatcherConfig(
        capacity=4, reserve=0.0, call_types={"event": CallTypePolicy(max_in_flight=1)}, attempt_timeout=200
    )
    async with Dispatcher(config) as dispatcher:
        events = [dispatcher.submit(event(cluster, pod)) for pod in pods[:4]]
        await asyncio.sleep(0.1)
        assert dispatcher.statistics().in_flight == 1
        bind = dispatcher.submit(cluster.bind(pods[5], "n1"))
        outcomes = [await handle.outcome() for handle in events]
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds.count(Shed) == 1
        assert kinds.count(Expired) == 3
        assert isinstance(await bind.outcome(), Succeeded)
