"""The table of answers on the embedded server: each row of `tests.facts` is played on it."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from asyncdispatch.testing import EmbeddedAPIServer
from tests.facts.scenarios import ROOMS, SCENARIOS, Scenario, World, raw_client

NAMESPACE = "facts"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with EmbeddedAPIServer(namespaces=["default", NAMESPACE]) as server, aiohttp.ClientSession() as session:
        server.register("example.com/v1", "Widget", "widgets")
        yield World(raw_client(session, server.url), NAMESPACE, server)


@pytest.mark.looptime
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_row(scenario: Scenario, world: World) -> None:
    await scenario.play(world)


def test_every_row_says_what_the_answer_is() -> None:
    assert len(ROOMS) == 4
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert [scenario.name for scenario in SCENARIOS if not scenario.row] == []
