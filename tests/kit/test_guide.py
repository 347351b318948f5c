"""The guide for plugin authors: its files, in a project of their own, do what it says that they do."""

import re
from pathlib import Path

import pytest

import asyncdispatch.testing
from asyncdispatch.testing import SteppedDispatcher, strategies
from asyncdispatch.testing import plugin as pytest_plugin

pytest_plugins = ["pytester"]

GUIDE = Path(__file__).parents[2] / "docs" / "testing-your-plugin.md"
TEXT = GUIDE.read_text(encoding="utf-8")
INI = """
[pytest]
asyncio_default_fixture_loop_scope = function
filterwarnings = error
    ignore:There is no current event loop:DeprecationWarning:looptime
"""
PROFILE = """
from hypothesis import HealthCheck, Phase, settings

quick = {"phases": [Phase.generate, Phase.shrink], "report_multiple_bugs": False}
settings.register_profile("same", derandomize=True, database=None, suppress_health_check=list(HealthCheck), **quick)
settings.load_profile("same")
"""
"""The same runs each time, made small, but not explained line by line."""


def files() -> dict[str, str]:
    """The snippets by the file that each says it is in; two of one file go into it one after another."""
    found: dict[str, str] = {}
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", TEXT, re.DOTALL):
        found[name] = f"{found.get(name, '')}\n{text}"
    return found


def test_every_snippet_says_its_file() -> None:
    """So that none is left out of the next test."""
    assert TEXT.count("```python") == len(re.findall(r"```python\n# \S+\.py\n", TEXT))


def test_the_guide(pytester: pytest.Pytester) -> None:
    """The buggy call fails as the guide shows it, history and all; everything else passes."""
    for name, text in files().items():
        pytester.path.joinpath(name).write_text(text, encoding="utf-8")
    with pytester.path.joinpath("conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(PROFILE)
    pytester.makefile(".ini", pytest=INI)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rA", timeout=300)
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["FAILED test_taints.py::TestTaints::runTest*"])
    shown = re.search(r"```text\nLawBroken: (.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    output = result.stdout.str()
    for line in shown.group(1).splitlines():
        assert line in output, line


def test_the_guide_names_what_there_is() -> None:
    """Every fixture, strategy and method that it names exists, and no fixture or strategy is left out."""
    for name in {*pytest_plugin.__all__, *strategies.__all__}:
        assert f"`{name}`" in TEXT, name
    for name in re.findall(r"steps\.(\w+)", TEXT):
        assert hasattr(SteppedDispatcher, name) or name in ("server", "stragglers"), name
    for name in ("DispatcherMachine", "SteppedDispatcher", "StepDriver", "VirtualClock", "Chronicle"):
        assert name in asyncdispatch.testing.__all__
