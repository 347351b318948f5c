"""The table of answers on a real API server: each row of `tests.facts` that one can be made to give."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from asyncdispatch.testing import ControlPlane
from tests.e2e.waiting import eventually
from tests.facts.scenarios import SCENARIOS, WIDGET_CRD, Scenario, World, raw_client

REAL = [scenario for scenario in SCENARIOS if not scenario.embedded_only]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def widgets(plane: ControlPlane) -> None:
    """The custom resource of the scenarios, served: some moments after it is established."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await plane.ask("POST", definitions, WIDGET_CRD)

    async def served() -> bool:
        return (await plane.request("GET", "/apis/example.com/v1/widgets")).status == 200

    await eventually(served)


@pytest_asyncio.fixture(loop_scope="session")
async def world(plane: ControlPlane, namespace: str, widgets: None) -> AsyncIterator[World]:
    trust = ssl.create_default_context(cafile=str(plane.ca_file))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
        yield World(raw_client(session, plane.url, {"Authorization": f"Bearer {plane.token()}"}), namespace)


@pytest.mark.parametrize("scenario", REAL, ids=lambda scenario: scenario.name)
async def test_row(scenario: Scenario, world: World) -> None:
    await scenario.play(world)
