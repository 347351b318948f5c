"""The table of answers on the embedded server: each row of `tests.facts` is played on it."""

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from asyncdispatch.testing import EmbeddedAPIServer
from tests.facts.scenarios import ROOMS, SCENARIOS, Reply, Scenario, World

NAMESPACE = "facts"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with EmbeddedAPIServer(namespaces=["default", NAMESPACE]) as server, aiohttp.ClientSession() as session:
        server.register("example.com/v1", "Widget", "widgets")

        async def client(method: str, path: str, body: Any = None, content_type: str = "application/json") -> Reply:
            sent: dict[str, Any] = {}
            if body is not None:
                text = body if isinstance(body, str) else json.dumps(body)
                sent = {"data": io.BytesIO(text.encode()), "headers": {"Content-Type": content_type}}
            async with session.request(method, server.url + path, **sent) as response:
                return Reply(response.status, response.headers, await response.text())

        yield World(client, NAMESPACE, server)


@pytest.mark.looptime
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_row(scenario: Scenario, world: World) -> None:
    await scenario.play(world)


def test_every_row_says_what_the_answer_is() -> None:
    assert len(ROOMS) == 4
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert [scenario.name for scenario in SCENARIOS if not scenario.row] == []
