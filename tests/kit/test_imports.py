"""What the kit makes people install: as little as what they use of it needs."""

import subprocess
import sys

import pytest

import asyncdispatch.testing

WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Refuse())
"""

DRIVE = """
from asyncdispatch.testing import SteppedDispatcher, StepDriver, VirtualClock, EmbeddedAPIServer
from asyncdispatch import FunctionCall, ObjectRef, Succeeded

async def execute(attempt):
    return 7

steps = SteppedDispatcher()
handle = steps.submit(FunctionCall(execute, call_type="x", target=ObjectRef("v1", "Pod", "default", "p")))
steps.start()
assert steps.expect(handle, Succeeded).value == 7
steps.finish()
"""


def run(program: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    text = WITHOUT.replace("{blocked}", repr(set(blocked))) + program
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


def test_the_driver_needs_neither_pytest_nor_hypothesis_nor_a_client() -> None:
    """Nor looptime: who drives by hand has no event loop."""
    result = run(DRIVE, "pytest", "_pytest", "hypothesis", "looptime", "kubernetes_asyncio", "kubernetes")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["DispatcherMachine", "strategies"])
def test_the_machine_needs_hypothesis(name: str) -> None:
    """And says so, when it is asked for and not before."""
    result = run(f"from asyncdispatch.testing import {name}", "hypothesis")
    assert result.returncode == 1
    assert "hypothesis is blocked" in result.stderr


def test_the_machine_needs_no_pytest() -> None:
    """Its `TestCase` is one of unittest's."""
    program = "import asyncdispatch.testing as t; t.DispatcherMachine.TestCase; t.strategies.troubles()"
    result = run(program, "pytest", "_pytest")
    assert result.returncode == 0, result.stderr


def test_a_cluster_needs_the_client() -> None:
    """The remedy is named."""
    result = run("from asyncdispatch.testing import SteppedDispatcher as S; S().api_client", "kubernetes_asyncio")
    assert "install asyncdispatch[kubernetes]" in result.stderr


def test_public_names() -> None:
    """`__all__` names each once, in order, and each is there; nothing else is."""
    names = asyncdispatch.testing.__all__
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(asyncdispatch.testing, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        asyncdispatch.testing.nothing
