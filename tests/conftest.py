"""Hypothesis profiles for the whole suite, chosen by HYPOTHESIS_PROFILE, the marks that go with them; virtual time."""

import asyncio
import inspect
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.shell import START

HERE = Path(__file__).parent

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
    """The coroutine tests of the shell, which are in this folder itself, run in virtual time."""
    for item in items:
        if item.path.parent == HERE and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.looptime(start=START))
    if PROFILE == "thorough":
        return
    skip = pytest.mark.skip(reason="runs under HYPOTHESIS_PROFILE=thorough")
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(skip)
