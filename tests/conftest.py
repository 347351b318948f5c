"""Hypothesis profiles for the whole suite, chosen by HYPOTHESIS_PROFILE, the marks that go with them; virtual time.

And a server and a cluster for those tests that need no others.
"""

import asyncio
import functools
import inspect
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import EmbeddedAPIServer
from tests.shell import START

HERE = Path(__file__).parent

VIRTUAL = tuple(HERE / folder for folder in ("cases", "upstream", "kubernetes", "nomination"))
"""Folders whose coroutine tests run in virtual time that begins at 0."""

# looptime asks for the current loop around plain tests too. On Python 3.11 the first such question makes a loop that
# nobody closes, unless it was said that there is none.
asyncio.set_event_loop(None)

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")

# Random operations on the core are slow to draw and often long: neither says that a test is wrong. No deadline, since
# a busy machine is not a fault either.
settings.register_profile(
    "ci",
    max_examples=200,
    stateful_step_count=100,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.register_profile("smoke", parent=settings.get_profile("ci"), max_examples=30)
settings.register_profile("dev", parent=settings.get_profile("ci"), max_examples=30, derandomize=False)
settings.register_profile("thorough", parent=settings.get_profile("ci"), max_examples=2000, derandomize=False)
settings.load_profile(PROFILE)


def pytest_report_header(config: pytest.Config) -> str:
    return f"hypothesis profile chosen by HYPOTHESIS_PROFILE: {PROFILE}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coroutine tests run in virtual time: those of the shell, which are in this folder itself, and of some others."""
    for item in items:
        if not inspect.iscoroutinefunction(getattr(item, "function", None)):
            continue
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.looptime(start=START))
        elif any(item.path.is_relative_to(folder) for folder in VIRTUAL):
            item.add_marker("looptime")
    if PROFILE == "thorough":
        return
    skip = pytest.mark.skip(reason="runs under HYPOTHESIS_PROFILE=thorough")
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(skip)


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedAPIServer]:
    async with EmbeddedAPIServer(auto_namespaces=True) as running:
        yield running


@pytest.fixture
async def cluster(server: EmbeddedAPIServer) -> Cluster:
    return Cluster(server.api_client())


@pytest.fixture
def same_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run draws the same delays."""
    random.seed(7)
    drawing = SimpleNamespace(Random=functools.partial(random.Random, 7))
    monkeypatch.setattr("asyncdispatch.dispatcher.random", drawing)
