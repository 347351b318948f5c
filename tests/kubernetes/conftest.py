"""Clusters for the tests of the calls, by each client library in turn."""

import importlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import EmbeddedAPIServer
from tests.kubernetes.certificate import PEM


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
