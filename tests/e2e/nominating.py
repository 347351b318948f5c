"""A control plane for nomination, with no rights but those of the shipped manifests; and nominators as processes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.nomination import NominationPolicy, Nominator, manifests
from asyncdispatch.testing import ControlPlane
from asyncdispatch.testing.controlplane import Role
from tests.e2e.programs import Running, running

NAMESPACE, NAME = "nomination", "asyncdispatch-nominator"
ACCOUNT = Role(f"system:serviceaccount:{NAMESPACE}:{NAME}", ("system:serviceaccounts", "system:authenticated"))
GATEKEEPER = Role("system:serviceaccount:ns:gatekeeper", ("system:serviceaccounts", "system:authenticated"))
"""Whose the gates are: it may read and patch Pods in `ns`, and nothing else."""
MERGE = "application/merge-patch+json"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
COLLECTIONS = {
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{NAMESPACE}/rolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "Deployment": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
}


@asynccontextmanager
async def nomination_plane() -> AsyncIterator[ControlPlane]:
    """A control plane with a scheduler, the manifests applied and in force, the nodes n1 and n2, and priorities."""
    async with ControlPlane(scheduler=True, roles={"nominator": ACCOUNT, "gatekeeper": GATEKEEPER}) as plane:
        await plane.add_namespace(NAMESPACE)
        for manifest in manifests(namespace=NAMESPACE, name=NAME):
            await plane.ask("POST", COLLECTIONS[manifest["kind"]], manifest)
        await plane.add_namespace("ns")
        await let_gatekeeper(plane)
        for name in ("n1", "n2"):
            await plane.add_node(name, cpu="4")
        for name, value in (("high", 1000), ("higher", 2000)):
            body = {"metadata": {"name": name}, "value": value}
            await plane.ask("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        await enforced(plane)
        yield plane


async def let_gatekeeper(plane: ControlPlane) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]}]
    await plane.ask("POST", f"{RBAC}/namespaces/ns/roles", {"metadata": {"name": "gatekeeper"}, "rules": rules})
    binding = {
        "metadata": {"name": "gatekeeper"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gatekeeper"},
        "subjects": [{"kind": "ServiceAccount", "name": "gatekeeper", "namespace": "ns"}],
    }
    await plane.ask("POST", f"{RBAC}/namespaces/ns/rolebindings", binding)


async def enforced(plane: ControlPlane) -> None:
    """Wait until the policy is: it takes the API server a moment to see it."""
    await plane.add_pod("canary", "ns", gates=("g",))
    deadline = time.monotonic() + 20
    while (await patch(plane, "canary", {"status": {"message": str(time.monotonic())}})).status != 422:
        assert time.monotonic() < deadline, "the policy is not enforced"
    await plane.end_pod("canary", "ns")


async def patch(plane: ControlPlane, name: str, body: Any, *, sub: str = "/status", role: str = "nominator") -> Any:
    return await plane.request("PATCH", place(name) + sub, body, role=role, content_type=MERGE)


@asynccontextmanager
async def nominating(plane: ControlPlane, precheck: Any = None, **policy: Any) -> AsyncIterator[Nominator]:
    client = plane.api_client("nominator")
    async with Dispatcher() as dispatcher:
        async with Nominator(dispatcher, Cluster(client), NominationPolicy(**policy), precheck) as nominator:
            yield nominator
        await dispatcher.aclose("nobody waits for the Events that are left")
    await client.close()


def place(name: str) -> str:
    return f"/api/v1/namespaces/ns/pods/{name}"


def is_bound(pod: dict[str, Any]) -> bool:
    return bool(pod["spec"].get("nodeName"))


def is_unschedulable(pod: dict[str, Any]) -> bool:
    return any(c.get("reason") == "Unschedulable" for c in pod["status"].get("conditions") or ())


async def ungate(plane: ControlPlane, name: str) -> None:
    """By the account whose gate it is, never by the nominator's."""
    steps = [{"op": "remove", "path": "/spec/schedulingGates"}]
    await plane.ask("PATCH", place(name), steps, role="gatekeeper", content_type="application/json-patch+json")


@asynccontextmanager
async def nominator_process(plane: ControlPlane, **options: Any) -> AsyncIterator[Running]:
    """It has started, and knows what there is."""
    kubeconfig = plane.kubeconfig("nominator")
    async with running("nominator.py", kubeconfig=kubeconfig, namespace=NAMESPACE, **options) as nominator:
        await nominator.told("started")
        yield nominator
