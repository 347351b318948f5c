"""The pytest plugin, in a project of its own: its fixtures, its virtual time, what a failing test tells."""

import pytest

pytest_plugins = ["pytester"]

CONFTEST = 'pytest_plugins = ["asyncdispatch.testing.plugin"]'

INI = """
[pytest]
asyncio_mode = {mode}
asyncio_default_fixture_loop_scope = function
filterwarnings = error
    ignore:There is no current event loop:DeprecationWarning:looptime
"""

HEAD = """
import asyncio, time
import pytest
from asyncdispatch import DispatcherConfig, FunctionCall, ObjectRef, Succeeded
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import strategies

POD = ObjectRef("v1", "Pod", "default", "p")
HOUR = 3600.0

async def slow(attempt):
    await asyncio.sleep(20.0)

async def fails(attempt):
    raise ValueError("no such thing")
"""


def project(pytester: pytest.Pytester, tests: str, *, mode: str = "auto") -> pytest.RunResult:
    """Run `tests` in a project that uses the plugin."""
    pytester.makeconftest(CONFTEST)
    pytester.makefile(".ini", pytest=INI.replace("{mode}", mode))
    pytester.makepyfile(HEAD + tests)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=120)


GOOD = """
@pytest.mark.asyncio
async def test_time(dispatcher, virtual_clock, chronicle):
    began, really = virtual_clock(), time.monotonic()
    handle = dispatcher.submit(FunctionCall(slow, call_type="x", target=POD))
    await handle
    assert virtual_clock() - began == pytest.approx(20.0)
    await asyncio.sleep(10 * HOUR)
    assert time.monotonic() - really < HOUR
    chronicle.expect(handle, Succeeded)
    assert "call 1 is told Succeeded" in chronicle.of(POD)
    dispatcher.submit(FunctionCall(slow, call_type="x", target=POD))  # what is left is drained, in virtual time

@pytest.mark.asyncio
async def test_server(dispatcher, api_server):
    pod = api_server.put(strategies.pod("p"))
    assert pod["metadata"]["creationTimestamp"].startswith("2030-")
    assert await dispatcher.run(Cluster(api_server.api_client()).bind(pod, "n")) == "n"

@pytest.fixture
def dispatcher_config():
    return DispatcherConfig(capacity=17)

@pytest.mark.asyncio
async def test_configured(dispatcher):
    assert dispatcher.config.capacity == 17

def test_plain(virtual_clock):
    virtual_clock.advance(HOUR)
    assert virtual_clock() == 1000.0 + HOUR
"""


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_fixtures(pytester: pytest.Pytester, mode: str) -> None:
    """Whether pytest-asyncio takes every coroutine for a test of its own, or those that are marked."""
    project(pytester, GOOD, mode=mode).assert_outcomes(passed=4)


def test_a_failing_test_tells_its_history(pytester: pytest.Pytester) -> None:
    """By the assertion helper that of the object; in the report, whatever it was that failed, that of all."""
    result = project(
        pytester,
        """
async def test_fails(dispatcher, chronicle):
    other = dispatcher.submit(FunctionCall(slow, call_type="x", target=ObjectRef("v1", "Pod", "default", "other")))
    handle = dispatcher.submit(FunctionCall(fails, call_type="x", target=POD))
    await handle.outcome()
    chronicle.expect(handle, Succeeded)
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: *expected Succeeded, not Failed*",
            "E*history of Pod default/p:",
            "E*call 2 accepted: FunctionCall of Pod default/p",
            "E*call 2 attempt 1 fails: ValueError('no such thing')",
            "E*call 2 is told Failed*",
            "*- asyncdispatch -*",
            "*call 1 accepted: FunctionCall of Pod default/other",
        ]
    )


def test_a_control_plane_does_not_live_in_virtual_time(pytester: pytest.Pytester) -> None:
    """Who asks for both is told."""
    result = project(pytester, "async def test_both(control_plane, dispatcher): ...")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_both: a real control plane does not live in virtual time"])


def test_a_control_plane_that_is_missing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is an error with its remedy, and never skipped in silence."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(pytester.path))
    result = project(pytester, "async def test_plane(control_plane): ...")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ControlPlaneError: no etcd, kube-apiserver in *"])


def test_nothing_is_there_unasked(pytester: pytest.Pytester) -> None:
    """It is no entry point: a project that has asyncdispatch installed keeps its own fixtures' names for itself."""
    pytester.makefile(".ini", pytest=INI.replace("{mode}", "auto"))
    pytester.makepyfile("def test_x(virtual_clock): ...")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=120)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'virtual_clock' not found"])
