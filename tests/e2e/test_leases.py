"""Two replicas on a real control plane: however one loses, it writes nothing after the other's first write.

Who wrote when is read from the resourceVersions, which etcd counts; and each process is a real one.
"""

import asyncio
import signal
from contextlib import AbstractAsyncContextManager

import pytest

from asyncdispatch.testing import ControlPlane
from tests.e2e.programs import Running, running

TIMING = {"lease_duration": 3, "renew_deadline": 2, "retry_period": 0.4}
"""A fifth of the usual times: what is compared is the order of writes, never how long something took."""


def replica(plane: ControlPlane, namespace: str, name: str) -> AbstractAsyncContextManager[Running]:
    kubeconfig = plane.kubeconfig()
    return running("replica.py", kubeconfig=kubeconfig, namespace=namespace, lease="leader", name=name, **TIMING)


async def writes(plane: ControlPlane, namespace: str) -> list[str]:
    """Who wrote, in the order in which the server stored it."""
    found = await plane.ask("GET", f"/api/v1/namespaces/{namespace}/configmaps?labelSelector=written%3Dby-a-replica")
    found["items"].sort(key=lambda item: int(item["metadata"]["resourceVersion"]))
    return [item["data"]["identity"] for item in found["items"]]


def turns(order: list[str]) -> list[str]:
    """`order` without repetitions: who wrote after whom."""
    return [who for index, who in enumerate(order) if index == 0 or order[index - 1] != who]


@pytest.mark.parametrize("how", ["killed", "stopped", "sent away"])
async def test_the_loser_writes_nothing_after_the_winners_first(plane, namespace, how):
    """kill -9: nothing of it lands late. SIGSTOP until the other leads: it wakes up, writes nothing. SIGTERM: drained.

    What the second replica has written begins after the last write of the first, and is never broken by one.
    """
    async with replica(plane, namespace, "first") as first:
        one = (await first.told("leads"))[0]["identity"]
        await first.told("wrote")
        async with replica(plane, namespace, "second") as second:
            await second.told("started")
            await asyncio.sleep(1)
            ending = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "sent away": signal.SIGTERM}
            first.process.send_signal(ending[how])
            two = (await second.told("leads"))[0]["identity"]
            await second.told("wrote")
            if how == "stopped":
                first.process.send_signal(signal.SIGCONT)
                await first.told("lost")
                await asyncio.sleep(1)
            elif how == "sent away":
                [ended] = await first.told("ended")
                assert set(ended["outcomes"]) == {"Succeeded"}
            second.process.send_signal(signal.SIGTERM)
            await second.told("ended")
        order = await writes(plane, namespace)
    assert turns(order)[:2] == [one, two]
    if how != "stopped":  # that one may lead again once the second has left
        assert turns(order) == [one, two]
