"""A server and a cluster for the cases, and virtual time for all of them."""

import asyncio
import functools
import inspect
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import EmbeddedAPIServer

HERE = Path(__file__).parent

# On Python 3.11 the first question for the current loop outside of one makes a loop that nobody closes, unless it was
# said that there is none.
asyncio.set_event_loop(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coroutine tests run in virtual time."""
    for item in items:
        if item.path.is_relative_to(HERE) and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker("looptime")


@pytest.fixture(autouse=True)
def _same_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run draws the same delays."""
    random.seed(7)
    drawing = SimpleNamespace(Random=functools.partial(random.Random, 7))
    monkeypatch.setattr("asyncdispatch.dispatcher.random", drawing)


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedAPIServer]:
    async with EmbeddedAPIServer(auto_namespaces=True) as running:
        yield running


@pytest.fixture
async def cluster(server: EmbeddedAPIServer) -> Cluster:
    return Cluster(server.api_client())
