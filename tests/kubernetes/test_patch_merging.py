"""Patches of one object: when two become one, what `observe` shows of them, and what it makes of them."""

import asyncio
import copy
from typing import Any

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig
from asyncdispatch.calls import ObjectRef
from asyncdispatch.kubernetes import Cluster, Patch
from asyncdispatch.outcomes import Overwritten, Succeeded
from tests.kubernetes.documents import LABEL, widget, without, writes
from tests.kubernetes.support import FakeClient, pod_dict

OFFLINE: Any = Cluster(FakeClient())


# ---- merging (R6) ----------------------------------------------------------------------------------------------------


async def test_patches_of_different_fields_go_together(server, cluster):
    """One request for both; the first handle is told Overwritten by the second, and nothing of it is lost."""
    pod = server.create(pod_dict(uid=None, version=None))
    server.latency = 1
    async with Dispatcher() as dispatcher:
        first = dispatcher.submit(cluster.patch(pod, {"metadata": {"labels": {"x": "0"}}}))
        await asyncio.sleep(0.1)  # it flies: nothing is merged into what is on the wire
        second = dispatcher.submit(cluster.patch(pod, {"metadata": {"labels": {"a": "1"}, "annotations": {"n": "1"}}}))
        third = dispatcher.submit(cluster.patch(pod, {"metadata": {"labels": {"b": "2"}}}))
        assert isinstance(await second.outcome(), Overwritten)
        found = await third
        await first
    assert found["metadata"]["labels"] == {"x": "0", "a": "1", "b": "2"}
    assert found["metadata"]["annotations"] == {"n": "1"}
    assert len(writes(server)) == 2


@pytest.mark.parametrize("apart", ["subresource", "kind", "uid", "version", "function", "nulls", "key"])
async def test_patches_that_are_sent_in_order(server, cluster, apart):
    """What one request can't say goes in two, in order; none replaces the other."""
    pod = server.create(pod_dict(uid=None, version=None))
    one, two = cluster.patch(pod, {"metadata": {"annotations": {"a": "1"}}}), None
    if apart == "subresource":
        two = cluster.patch(pod, {"metadata": {"labels": {"b": "2"}}}, subresource="status")
    elif apart == "kind":
        two = cluster.patch(pod, {"metadata": {"labels": {"b": "2"}}}, strategic=True)
    elif apart == "uid":
        two = cluster.patch(ObjectRef("v1", "Pod", "ns", "p"), {"metadata": {"labels": {"b": "2"}}})
    elif apart == "version":
        one = cluster.patch(pod, {"metadata": {"annotations": {"a": "1"}}}, fence="version")
        two = cluster.patch(pod, {"metadata": {"labels": {"b": "2"}}})
    elif apart == "function":
        two = cluster.patch(pod, lambda obj: {"metadata": {"labels": {"b": "2"}}})
    elif apart == "nulls":
        one = cluster.patch(pod, {"metadata": {"annotations": {"a": "1"}, "labels": None}})
        two = cluster.patch(pod, {"metadata": {"labels": {"b": "2"}}})
    else:
        two = cluster.patch(pod, {"metadata": {"labels": {"b": "2"}}}, idempotency_key="k")
    async with Dispatcher(DispatcherConfig(max_in_flight=1)) as dispatcher:
        handles = [dispatcher.submit(one), dispatcher.submit(two)]
        for handle in handles:
            assert isinstance(await handle.outcome(), Succeeded)
    found = server.get(pod)
    assert found["metadata"]["labels"] == {"b": "2"}
    assert found["metadata"]["annotations"] == {"a": "1"}


def test_patches_made_by_functions_stay_apart():
    """The later one was not decided on what the earlier one leaves, so no patch can stand for both."""
    one, two = (OFFLINE.patch(pod_dict(), lambda obj, key=key: {"spec": {key: 1}}) for key in "ab")
    fixed = OFFLINE.patch(pod_dict(), LABEL, fence="version")
    assert two.merge(one) is fixed.merge(one) is one.merge(fixed) is None


def test_a_merged_patch_keeps_what_is_known_of_it():
    """A request of the older one may have been applied; what was at hand no longer says that nothing is to be done."""
    older = Patch(**{**vars(OFFLINE.patch(pod_dict(), LABEL)), "doubtful": True})
    newer = Patch(**{**vars(OFFLINE.patch(pod_dict(), {"spec": {"n": 1}})), "satisfied": True})
    both: Any = newer.merge(older)
    assert both is not None
    assert (both.doubtful, both.satisfied) == (True, False)
    assert both.change.document == {**LABEL, "spec": {"n": 1}}


# ---- what is shown (L18), and rebasing -------------------------------------------------------------------------------


def test_what_is_shown_of_a_patch():
    """A copy with the change; another object of the name, and what can't be told, stays as it is."""
    pod = pod_dict()
    before = copy.deepcopy(pod)
    assert OFFLINE.patch(pod, LABEL).apply(pod)["metadata"]["labels"] == {"a": "1"}
    assert pod == before
    for call, obj in (
        (OFFLINE.patch(pod, LABEL), pod_dict(uid="u2")),
        (OFFLINE.patch(pod, LABEL), None),
        (OFFLINE.patch(pod, {"spec": {"l": {"$patch": "replace"}}}, strategic=True), pod),
        (OFFLINE.patch(pod, {"spec": {"replicas": 3}}, subresource="scale"), pod),
        (OFFLINE.patch(pod, [{"op": "remove", "path": "/spec/none"}]), pod),
    ):
        assert call.apply(obj) == obj


def test_what_a_status_takes():
    """Of built-in kinds labels and annotations as well, of custom resources the status alone."""
    both = {"metadata": {"labels": {"a": "1"}}, "status": {"x": 1}}
    shown = OFFLINE.patch(pod_dict(), both, subresource="status").apply(pod_dict())
    assert (shown["metadata"]["labels"], shown["status"]) == ({"a": "1"}, {"phase": "Pending", "x": 1})
    shown = OFFLINE.patch(widget(), both, subresource="status").apply(widget())
    assert (shown["metadata"], shown["status"]) == (widget()["metadata"], {"x": 1})


def test_rebasing():
    """A function is asked again with what was observed; a fixed patch keeps the version that it requires."""
    pod = pod_dict()
    pod["metadata"]["finalizers"] = ["other/a", "ours/b"]
    call = OFFLINE.patch(pod, without("ours/b"))
    assert (call.version, call.change.document) == ("5", {"metadata": {"finalizers": ["other/a"]}})
    newer = pod_dict(version="6")
    newer["metadata"]["finalizers"] = ["ours/b", "late/c"]
    rebased = call.rebase_onto(newer)
    assert (rebased.version, rebased.change.document) == ("6", {"metadata": {"finalizers": ["late/c"]}})
    assert call.apply(newer)["metadata"]["finalizers"] == ["late/c"]
    gone = rebased.rebase_onto(pod_dict(version="7"))
    assert (gone.change, gone.is_noop()) == (None, True)
    assert call.rebase_onto(pod_dict(uid="u2")) is call
    assert call.rebase_onto({"metadata": {"uid": "u1"}}) is call
    fixed = OFFLINE.patch(pod, LABEL, fence="version")
    assert fixed.rebase_onto(newer) is fixed


def test_a_function_may_change_what_it_is_given():
    """It gets a copy."""
    pod = pod_dict()

    def decide(obj):
        obj["metadata"].clear()
        return LABEL

    OFFLINE.patch(pod, decide)
    assert pod == pod_dict()
