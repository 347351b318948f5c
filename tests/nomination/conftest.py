"""A server with nodes, and a nominator on it, with a wall clock of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncdispatch import Dispatcher
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.nomination import NominationPolicy, Nominator
from asyncdispatch.testing import EmbeddedAPIServer
from tests.nomination.objects import node


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedAPIServer]:
    async with EmbeddedAPIServer(auto_namespaces=True) as running:
        for name in ("n1", "n2"):
            running.put(node(name))
        yield running


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
