"""The pytest plugin: `pytest_plugins = ["asyncdispatch.testing.plugin"]` in the top-level conftest.py of a project.

Needs pytest-asyncio and looptime. It is asked for by name, and is no entry point: its fixtures have short names, and
who has asyncdispatch installed may have fixtures of the same names already.

Fixtures: `virtual_clock` (the test's time passes without waiting), `dispatcher` (in virtual time; configured by the
fixture `dispatcher_config`, which a project may override), `chronicle` (what happened to its calls: `expect` an
outcome, `note` a line), `api_server` (an `EmbeddedAPIServer` in virtual time) and `control_plane` (a real one, in real
time, one for the whole run). The history of a test that fails is part of its report.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig
from asyncdispatch._core.invariants import check_invariants
from asyncdispatch.testing import Chronicle, ControlPlane, EmbeddedAPIServer, VirtualClock

try:
    import looptime  # noqa: F401 (its own plugin does the work)
    import pytest_asyncio
except ImportError as error:
    raise pytest.UsageError(
        f"asyncdispatch.testing.plugin needs {error.name}: install looptime and pytest-asyncio"
    ) from error

__all__ = ["api_server", "chronicle", "control_plane", "dispatcher", "dispatcher_config", "virtual_clock"]


# -- time -------------------------------------------------------------------------------------------------------------


def pytest_configure() -> None:
    """looptime asks for the current loop around plain tests too; unless it is told that there is none, the first such
    question makes a loop that nobody closes (Python 3.11)."""
    asyncio.set_event_loop(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who asks for virtual time gets it, and who asks for a control plane its event loop."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if not inspect.iscoroutinefunction(getattr(item, "function", None)):
            continue
        if "control_plane" in names:
            if "virtual_clock" in names:
                raise pytest.UsageError(f"{item.nodeid}: a real control plane does not live in virtual time")
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        elif "virtual_clock" in names and item.get_closest_marker("looptime") is None:
            item.add_marker("looptime")


@contextlib.contextmanager
def _virtual(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Virtual time for a part of a fixture: the test's own does not begin before, nor last longer than, the test."""
    if getattr(loop, "looptime_on", True):
        yield  # on already, or never to be
    else:
        with loop.looptime_enabled():  # type: ignore[attr-defined]
            yield


@pytest_asyncio.fixture
async def _followed_clock() -> VirtualClock:
    clock = VirtualClock()
    clock.follow(asyncio.get_running_loop())
    return clock


@pytest.fixture
def virtual_clock(request: pytest.FixtureRequest) -> VirtualClock:
    """The test's time, in which nobody waits: that of its event loop, or in a plain test a clock of its own."""
    if inspect.iscoroutinefunction(request.function):
        clock: VirtualClock = request.getfixturevalue("_followed_clock")
        return clock
    return VirtualClock()


# -- the dispatcher ---------------------------------------------------------------------------------------------------


@pytest.fixture
def dispatcher_config() -> DispatcherConfig:
    """The configuration of `dispatcher`: override it."""
    return DispatcherConfig()


@pytest.fixture
def chronicle(virtual_clock: VirtualClock) -> Chronicle:
    """What happens to the calls of `dispatcher`."""
    return Chronicle(virtual_clock)


@pytest_asyncio.fixture
async def dispatcher(
    dispatcher_config: DispatcherConfig, chronicle: Chronicle, virtual_clock: VirtualClock
) -> AsyncIterator[Dispatcher]:
    """A running dispatcher in virtual time. After the test it is drained, and its invariants are checked."""
    loop = asyncio.get_running_loop()
    with _virtual(loop):
        running = await Dispatcher(dispatcher_config, observers=[chronicle]).__aenter__()
    yield running
    with _virtual(loop):
        await running.drain()
        check_invariants(running._core, running._now())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test tells the history of its calls."""
    report = yield
    kept = getattr(item, "funcargs", {}).get("chronicle")
    if report.failed and isinstance(kept, Chronicle):
        report.sections.append(("asyncdispatch", kept.of()))
    return report


# -- servers ----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def api_server(virtual_clock: VirtualClock) -> AsyncIterator[EmbeddedAPIServer]:
    """An embedded API server in virtual time, which makes namespaces as they are used."""
    loop = asyncio.get_running_loop()
    with _virtual(loop):
        server = await EmbeddedAPIServer(auto_namespaces=True, now=virtual_clock.date).__aenter__()
    yield server
    with _virtual(loop):
        await server.__aexit__(None, None, None)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def control_plane() -> AsyncIterator[ControlPlane]:
    """A real control plane, in real time, for all tests of the run: give each a namespace of its own.

    Raises `ControlPlaneError` where its programs are missing, and says how to get them.
    """
    async with ControlPlane() as plane:
        yield plane
