from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp
import pytest

from asyncdispatch.testing import EmbeddedAPIServer
from tests.testing.apiserver.support import Http


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedAPIServer]:
    async with EmbeddedAPIServer(now=lambda: datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)) as server:
        server.register("example.com/v1", "Widget", "widgets")
        yield server


@pytest.fixture
async def http(server: EmbeddedAPIServer) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        yield Http(server, session)
