"""Plugins with a bug each, as a downstream project may have them: a short test by the kit finds it, and passes after.

The plugins are in `plugins/`, with a mended subclass each; the tests in `finds_*.py` are all that their author writes.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from asyncdispatch.testing import DispatcherMachine, LawBroken
from tests.kit.plugins.binding import Bind, MendedBind
from tests.kit.plugins.conditions import MendedReport, Report
from tests.kit.plugins.notes import MendedNotes, Notes
from tests.kit.plugins.taints import AddTaint, MendedAddTaint

HERE = Path(__file__).parent

# Where a bug is looked for there is no need to make the run that shows it small.
QUICKLY = settings(
    max_examples=1000,
    stateful_step_count=25,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
LONG_ENOUGH = settings(QUICKLY, max_examples=40)


def run(test: str, plugin: Any, how: settings) -> None:
    """Play the test of that name with one plugin."""
    module = importlib.import_module(f"tests.kit.finds_{test}")
    if hasattr(module, "play"):
        module.play(plugin)
    else:
        machine: type[DispatcherMachine] = type("Machine", (module.Machine,), {"plugin": plugin})
        run_state_machine_as_test(machine, settings=how)


PLANTED = {
    "lost_update": (AddTaint, MendedAddTaint, "L18: .* lacks {'key': 'rival'"),
    "double_bind": (Bind, MendedBind, "L17: .* was applied to uid"),
    "starvation": (Notes, MendedNotes, "L6: .* starves"),
    "forgotten_condition": (Report, MendedReport, "L13: .* `merge` does not do what both"),
}


@pytest.mark.parametrize("test", PLANTED)
def test_the_bug_is_found(test: str) -> None:
    """By the number of the law that it breaks."""
    buggy, _, law = PLANTED[test]
    with pytest.raises(LawBroken, match=law):
        run(test, buggy, QUICKLY)


@pytest.mark.parametrize("test", PLANTED)
def test_the_mended_plugin_passes(test: str) -> None:
    """The same test, and nothing else than the bug was mended."""
    run(test, PLANTED[test][1], LONG_ENOUGH)


@pytest.mark.parametrize("test", PLANTED)
def test_it_takes_less_than_twenty_lines(test: str) -> None:
    """Imports and all, blank lines apart."""
    text = (HERE / f"finds_{test}.py").read_text(encoding="utf-8")
    assert ast.parse(text).body
    assert sum(bool(line.strip()) for line in text.splitlines()) < 20


def test_every_test_has_its_plugin() -> None:
    """None is forgotten in the table above."""
    assert {path.stem.removeprefix("finds_") for path in HERE.glob("finds_*.py")} == set(PLANTED)
