"""The audit that ends the proofs notices each way in which a cluster and the outcomes can disagree."""

from typing import Any

import pytest

from asyncdispatch import Verdict, VerdictKind
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.kubernetes.marks import marked
from asyncdispatch.outcomes import Cancelled, Failed, Outcome, Succeeded
from asyncdispatch.testing import EmbeddedAPIServer
from tests.e2e.audit import Carried, Ledger, audit

REFUSED: Outcome[Any] = Failed(ValueError("no"), Verdict(VerdictKind.PERMANENT))
LOST: Outcome[Any] = Failed(ValueError("lost"), Verdict(VerdictKind.RETRY, True), ambiguous=True)
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "ns"}}
GENERATED = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "g-", "namespace": "ns"}}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "resourceVersion": "1"},
    "spec": {},
}
BOUND = {**POD, "spec": {"nodeName": "n1"}}
OURS = marked(MAP, "k", label=False)
TWICE = [
    marked({**GENERATED, "metadata": {"name": name, "namespace": "ns"}}, "k", label=True) for name in ("g-1", "g-2")
]


@pytest.fixture
async def cluster() -> Any:
    async with EmbeddedAPIServer() as server:
        yield Cluster(server.api_client())


def calls(cluster: Cluster) -> dict[str, Any]:
    return {
        "bind": cluster.bind(POD, "n1"),
        "create": cluster.create(MAP, idempotency_key="k"),
        "generated": cluster.create(GENERATED, idempotency_key="k"),
        "patch": cluster.patch(POD, {"metadata": {"labels": {"a": "b"}}}),
        "delete": cluster.delete(POD),
    }


async def audited(call: Any, outcomes: list[Any], objects: list[Any], carried: int = 0) -> None:
    ledger = Ledger({1: call})
    ledger.outcomes[1].extend(outcomes)

    async def items(path: str) -> list[Any]:
        return objects

    verb = {"pod_binding": "bind", "create": "create"}.get(call.call_type, "patch")
    await audit(ledger, items, [Carried(f"1-{number}", verb, "agent") for number in range(carried)])


DONE = Succeeded(None)


@pytest.mark.parametrize(
    ("name", "outcomes", "objects", "carried"),
    [
        ("bind", [DONE], [BOUND], 1),
        ("bind", [REFUSED], [{**POD, "spec": {"nodeName": "n2"}}], 0),
        ("bind", [LOST], [BOUND], 1),
        ("bind", [LOST], [POD], 0),
        ("create", [DONE], [OURS], 1),
        ("create", [REFUSED], [MAP], 0),
        ("generated", [DONE], TWICE[:1], 1),
        ("generated", [LOST], TWICE[:1], 1),
        ("patch", [DONE], [{**POD, "metadata": {**POD["metadata"], "labels": {"a": "b"}}}], 2),
        ("delete", [DONE], [], 1),
        ("delete", [DONE], [{**POD, "metadata": {**POD["metadata"], "uid": "u2"}}], 1),
        ("delete", [REFUSED], [], 0),
    ],
)
async def test_what_agrees(cluster: Cluster, name: str, outcomes: list[Any], objects: list[Any], carried: int) -> None:
    await audited(calls(cluster)[name], outcomes, objects, carried)


@pytest.mark.parametrize(
    ("name", "outcomes", "objects", "carried", "says"),
    [
        ("bind", [], [BOUND], 1, "not one outcome each"),
        ("bind", [DONE, DONE], [BOUND], 1, "not one outcome each"),
        ("bind", [DONE], [BOUND], 2, "carried out 2 times"),
        ("bind", [DONE], [POD], 1, "does not show it"),
        ("bind", [REFUSED], [BOUND], 0, "the cluster shows it"),
        ("bind", [Cancelled("context ended")], [POD], 1, "carried out all the same"),
        ("create", [DONE], [MAP], 1, "does not show it"),
        ("create", [REFUSED], [OURS], 0, "the cluster shows it"),
        ("generated", [DONE], TWICE, 1, "there 2 times"),
        ("generated", [LOST], TWICE, 0, "there 2 times"),
        ("generated", [LOST], TWICE[:1], 2, "carried out 2 times"),
        ("patch", [DONE], [POD], 1, "does not show it"),
        ("delete", [DONE], [POD], 1, "does not show it"),
        ("delete", [REFUSED], [], 1, "carried out all the same"),
    ],
)
async def test_what_does_not(
    cluster: Cluster, name: str, outcomes: list[Any], objects: list[Any], carried: int, says: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        await audited(calls(cluster)[name], outcomes, objects, carried)


async def test_what_was_removed_is_missed_by_nobody(cluster: Cluster) -> None:
    """Also what was created under a name that the server chose: its deletion knows the uid."""
    made = {**GENERATED, "metadata": {"name": "g-1", "namespace": "ns", "uid": "u7"}}
    create, patch = cluster.create(GENERATED), cluster.patch(made, {"data": {"a": "b"}})
    ledger = Ledger({1: create, 2: patch, 3: cluster.delete(made)})
    for ticket, end in ((1, Succeeded(made)), (2, DONE), (3, DONE)):
        ledger.outcomes[ticket].append(end)

    async def items(path: str) -> list[Any]:
        return []

    await audit(ledger, items, [])
    del ledger.calls[3]
    with pytest.raises(AssertionError, match="does not show it"):
        await audit(ledger, items, [])


@pytest.mark.parametrize("told", [True, False])
async def test_an_event_is_known_by_its_own_name(cluster: Cluster, told: bool) -> None:
    """Its target stands for what it is about; a read is audited for its one outcome only."""
    event = cluster.event(POD, reason="Told", message="m")
    ledger = Ledger({1: event, 2: cluster.read(POD)})
    ledger.outcomes[1].append(DONE if told else REFUSED)
    ledger.outcomes[2].append(REFUSED)

    async def items(path: str) -> list[Any]:
        return [event.body()] if path.startswith("/apis/events.k8s.io/") and told else []

    await audit(ledger, items, [])


async def test_nothing_proves_nothing() -> None:
    async def items(path: str) -> list[Any]:
        return []

    with pytest.raises(AssertionError, match="nothing to prove"):
        await audit(Ledger(), items, [])
