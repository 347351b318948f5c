"""The proofs on a real API server: accepted calls, their outcomes, and the cluster, which must agree."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

import tests.proofs.modes  # noqa: F401  # registers its own
from asyncdispatch.testing import ControlPlane
from tests.e2e.audit import AuditLog, Carried
from tests.e2e.storm import storm
from tests.e2e.waiting import eventually
from tests.facts.world import World, raw_client
from tests.proofs.plays import PROOFS, Proof
from tests.proofs.stage import Stage

RBAC = "/apis/rbac.authorization.k8s.io/v1"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
VERBS = ["get", "list", "watch", "create", "update", "patch", "delete"]
RESOURCES = ["configmaps", "pods", "pods/binding", "pods/status", "pods/eviction", "secrets"]


class RealStage(Stage):
    def __init__(self, plane: ControlPlane, log: AuditLog, session: aiohttp.ClientSession, namespace: str) -> None:
        self.plane, self.log = plane, log
        self.world = World(raw_client(session, plane.url, {"Authorization": f"Bearer {plane.token()}"}), namespace)

    def api_client(self, user: str) -> Any:
        return self.plane.api_client(user)

    def carried(self) -> list[Carried]:
        return self.log.carried(self.world.namespace)

    async def grant(self, *, but_not: tuple[str, str]) -> None:
        verb, plural = but_not
        rules = [
            {"apiGroups": [""], "resources": [one for one in RESOURCES if one != plural], "verbs": VERBS},
            {"apiGroups": [""], "resources": [plural], "verbs": [one for one in VERBS if one != verb]},
        ]
        where = f"{RBAC}/namespaces/{self.world.namespace}"
        await self.plane.ask("POST", f"{where}/roles", {"metadata": {"name": "r"}, "rules": rules})
        subject = {"kind": "User", "name": "bot", "apiGroup": "rbac.authorization.k8s.io"}
        role = {"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"}
        body = {"metadata": {"name": "r"}, "roleRef": role, "subjects": [subject]}
        await self.plane.ask("POST", f"{where}/rolebindings", body)
        await eventually(lambda: self._may("pods"))

    async def _may(self, plural: str) -> bool:
        return (await self.plane.request("GET", self.world.path(plural), role="bot")).status == 200

    async def deny(self) -> None:
        name = f"policy-{self.world.namespace}"
        says = "!has(object.metadata.labels) || !('forbidden' in object.metadata.labels)"
        core = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["*"]}
        spec: dict[str, Any] = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [core]}}
        spec["validations"] = [{"expression": says, "message": "no"}]
        await self.plane.ask(
            "POST", f"{POLICIES}/validatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec}
        )
        here = {"matchLabels": {"kubernetes.io/metadata.name": self.world.namespace}}
        spec = {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here}}
        body = {"metadata": {"name": name}, "spec": spec}
        await self.plane.ask("POST", f"{POLICIES}/validatingadmissionpolicybindings", body)

        async def denies() -> bool:
            probe = self.config_map("probe", labels={"forbidden": "yes"})
            tried = await self.world.post(self.world.path("configmaps") + "?dryRun=All", probe)
            return tried.status == 422

        await eventually(denies)

    @asynccontextmanager
    async def storm(self) -> AsyncIterator[None]:
        """Few seats and no queue for what the bot asks, which has all rights here."""
        await self.grant(but_not=("watch", "secrets"))
        async with storm(self.plane, "bot", {"kind": "User", "user": {"name": "bot"}}, self.world.pods()):
            yield


@pytest_asyncio.fixture(loop_scope="session")
async def stage(plane: ControlPlane, audit_log: AuditLog, namespace: str) -> AsyncIterator[Stage]:
    trust = ssl.create_default_context(cafile=str(plane.ca_file))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
        yield RealStage(plane, audit_log, session, namespace)


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.__name__)
async def test_proof(proof: Proof, stage: Stage) -> None:
    await proof(stage)
