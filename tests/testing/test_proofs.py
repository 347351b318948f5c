"""The proofs on the embedded server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

import tests.proofs.modes  # noqa: F401  # registers its own
from asyncdispatch.testing import EmbeddedAPIServer, answers
from asyncdispatch.testing.apiserver import Admission
from tests.e2e.audit import Carried
from tests.facts.world import World, raw_client
from tests.proofs.plays import PROOFS, Proof
from tests.proofs.stage import Stage

NAMESPACE = "proof"


class EmbeddedStage(Stage):
    def __init__(self, server: EmbeddedAPIServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.world = World(raw_client(session, server.url, {"Authorization": "Bearer t1"}), NAMESPACE)

    def api_client(self, user: str) -> Any:
        return self.server.api_client(token={"admin": "t1", "bot": "t2"}[user])

    def carried(self) -> list[Carried]:
        done = [record for record in self.server.audit if record.applied and record.namespace == NAMESPACE]
        return [Carried(record.audit_id or "", record.verb, record.user_agent) for record in done]

    async def grant(self, *, but_not: tuple[str, str]) -> None:
        verb, plural = but_not
        self.server.forbid(user="bot", when=lambda record: (record.verb, record.resource) == (verb, plural))

    async def deny(self) -> None:
        def policy(request: Admission) -> None:
            labels = (request.obj or {}).get("metadata", {}).get("labels", {})
            if labels.get("forbidden") == "yes":
                raise answers.policy_denied("p", "no", resource=request.resource.plural, name=request.name)

        self.server.admission.append(policy)

    @asynccontextmanager
    async def storm(self) -> AsyncIterator[None]:
        limit = self.server.rate_limit(qps=5, burst=3, user="bot")
        yield
        limit.remove()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with EmbeddedAPIServer(namespaces=["default", NAMESPACE]) as server, aiohttp.ClientSession() as session:
        server.tokens = {"t1": "admin", "t2": "bot"}
        yield EmbeddedStage(server, session)


@pytest.mark.looptime
@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.__name__)
async def test_proof(proof: Proof, stage: Stage) -> None:
    await proof(stage)
