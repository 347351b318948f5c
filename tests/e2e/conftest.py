"""Real control planes, shared by the tests of this folder, which all run in one event loop and in real time.

`make e2e` runs them. Nothing here is ever skipped: without the programs of a control plane each test fails, and says
how to get them.
"""

import inspect
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import ControlPlane
from asyncdispatch.testing.controlplane import Role
from tests.e2e.audit import AuditLog

HERE = Path(__file__).parent
_NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for all, since the control planes outlive a test."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)
            if inspect.iscoroutinefunction(getattr(item, "function", None)):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> AuditLog:
    """What the API server of `plane` was asked to write, and what it answered."""
    return AuditLog(tmp_path_factory.mktemp("audit"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plane(audit_log: AuditLog) -> AsyncIterator[ControlPlane]:
    """etcd and kube-apiserver. Leave it as healthy as it was: what kills or floods starts a ControlPlane of its own.

    The role "bot" has no rights until a test gives it some in a namespace.
    """
    async with ControlPlane(flags={"kube-apiserver": audit_log.flags}, roles={"bot": Role("bot")}) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def scheduled() -> AsyncIterator[ControlPlane]:
    """A second one, with kube-scheduler: it binds whatever Pod of its own schedulerName fits a node."""
    async with ControlPlane(scheduler=True) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(plane: ControlPlane) -> str:
    """A namespace of `plane` for this test alone. It stays: nothing here could finish its deletion."""
    name = f"test-{next(_NUMBERS)}"
    await plane.add_namespace(name)
    return name


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    """All rights on `plane`, over a kubernetes_asyncio client."""
    client = plane.api_client()
    yield Cluster(client)
    await client.close()
