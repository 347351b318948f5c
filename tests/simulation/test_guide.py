"""The guide to the simulation: its snippets run in order, and its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from asyncdispatch.simulation import FAULTS, RULES, SCENARIOS, TROUBLES

GUIDE = Path(__file__).parents[2] / "docs" / "simulation.md"
TEXT = GUIDE.read_text(encoding="utf-8")


def table(first: str) -> dict[str, str]:
    """The rows of the table whose first head is that."""
    rows = TEXT.split(f"| {first} |", 1)[1].split("\n\n", 1)[0]
    return dict(re.findall(r"^\| `?([a-z_, ]+?)`? \| (.+) \|$", rows, re.MULTILINE))


def test_snippets(capsys: pytest.CaptureFixture[str]) -> None:
    """Each goes on from where the one before it ended."""
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(snippet, str(GUIDE), "exec"), names)
    assert "accepted" in capsys.readouterr().out


def test_tables() -> None:
    assert table("Fault") == dict(FAULTS)
    assert table("Trouble") == dict(TROUBLES)
    assert table("Rule") == RULES
    assert set(table("Name")) == set(SCENARIOS)
