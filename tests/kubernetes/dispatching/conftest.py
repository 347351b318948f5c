"""A world for each client library in turn, and what its dispatcher has accepted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncdispatch import (
    Dispatcher,
    DispatcherConfig,
)
from asyncdispatch.testing import EmbeddedAPIServer
from tests.kubernetes.dispatching.world import Flavour, Seen, World


@pytest.fixture
def flavour(library: Any) -> Flavour:
    return Flavour(library.__name__.removesuffix(".client"))


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def config() -> DispatcherConfig:
    return DispatcherConfig()


@pytest.fixture
async def world(
    flavour: Flavour, server: EmbeddedAPIServer, api_client: Any, seen: Seen, config: DispatcherConfig
) -> AsyncIterator[World]:
    async with Dispatcher(config, observers=[seen]) as dispatcher:
        yield World(flavour, server, api_client, dispatcher)
