"""A server and a cluster for the tests of the calls, and virtual time for every test that waits."""

import asyncio
import importlib
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import EmbeddedAPIServer
from tests.kubernetes.certificate import PEM

HERE = Path(__file__).parent

# looptime asks for the current loop around plain tests too. On Python 3.11 the first such question makes a loop that
# nobody closes, unless it was said that there is none.
asyncio.set_event_loop(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coroutine tests run in virtual time."""
    for item in items:
        if item.path.is_relative_to(HERE) and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker("looptime")


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedAPIServer]:
    async with EmbeddedAPIServer(auto_namespaces=True) as running:
        yield running


@pytest.fixture(params=["kubernetes_asyncio", "kubernetes.aio"])
def library(request: pytest.FixtureRequest) -> Any:
    """The client library's module with ApiClient and Configuration: kubernetes_asyncio's, then the official one's."""
    return importlib.import_module(f"{request.param}.client")


@pytest.fixture(scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with one certificate: a client that is given it does not load the system's, which takes it 20 ms."""
    path = tmp_path_factory.mktemp("authority") / "ca.crt"
    path.write_text(PEM)
    return str(path)


@pytest.fixture
async def api_client(server: EmbeddedAPIServer, library: Any, one_authority: str) -> AsyncIterator[Any]:
    """An ApiClient for the server, of each library in turn."""
    settings = library.Configuration(host=server.url)
    settings.ssl_ca_cert = one_authority
    async with library.ApiClient(settings) as client:
        yield client


@pytest.fixture
async def cluster(api_client: Any) -> Cluster:
    return Cluster(api_client)
