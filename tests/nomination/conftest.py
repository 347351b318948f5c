"""A server, a cluster and a nominator on it, in virtual time; its own wall clock."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.nomination import NominationPolicy, Nominator
from asyncdispatch.testing import EmbeddedAPIServer
from tests.nomination.objects import node

HERE = Path(__file__).parent

asyncio.set_event_loop(None)  # see tests/conftest.py


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coroutine tests run in virtual time."""
    for item in items:
        if item.path.is_relative_to(HERE) and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker("looptime")


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedAPIServer]:
    async with EmbeddedAPIServer(auto_namespaces=True) as running:
        for name in ("n1", "n2"):
            running.put(node(name))
        yield running


@pytest.fixture
async def cluster(server: EmbeddedAPIServer) -> Cluster:
    return Cluster(server.api_client())


@asynccontextmanager
async def nominating(cluster: Cluster, **options: Any) -> AsyncIterator[Nominator]:
    """A nominator on a dispatcher of its own; its wall clock is the event loop's."""
    loop = asyncio.get_running_loop()
    given = {"wall": lambda: 1_800_000_000 + loop.time(), "policy": NominationPolicy(), **options}
    async with Dispatcher() as dispatcher, Nominator(dispatcher, cluster, **given) as nominator:
        yield nominator


@pytest.fixture
async def nominator(cluster: Cluster) -> AsyncIterator[Nominator]:
    async with nominating(cluster) as running:
        yield running
