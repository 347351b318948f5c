"""The guide to traces: its snippets run one after another, and it names every step and field of the format."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig, traces
from asyncdispatch.traces.format import FLAGS, LINES, VERSION
from tests.shell import START, after, call

GUIDE = Path(__file__).parents[2] / "docs" / "traces.md"
TEXT = GUIDE.read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


async def scheduling_loop(dispatcher: Dispatcher) -> None:
    for number in range(20):
        dispatcher.submit(call(after(1.0), f"p{number}"))


@pytest.mark.looptime(start=START)
async def test_snippets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Record, replay, compare."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"config": DispatcherConfig(max_in_flight=10), "scheduling_loop": scheduling_loop}
    code = f"async def play(config):\n{textwrap.indent(''.join(SNIPPETS), '    ')}\n    return found"
    exec(compile(code, str(GUIDE), "exec"), names)
    found = await names["play"](names["config"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "write default Succeeded"
    assert lines[1].split()[1] == "0.0"
    assert lines[2:] == found.lines()


def test_every_step_has_its_row() -> None:
    """With as many items as its lines have."""
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.*?) ?\|", TEXT, re.MULTILINE))
    assert set(rows) == set(LINES)
    for name, items in LINES.items():
        row = re.sub(r"\[.*?\]", "answer", rows[name])
        assert len([item for item in row.split(",") if item.strip()]) == len(items), name


def test_every_field_is_named() -> None:
    """Of calls, failures, and of what may end a line."""
    source = Path(traces.__file__).parent
    written = "".join((source / name).read_text() for name in ("format.py", "recording.py"))
    ways = (r'more\["([a-z_]+)"\]', r'fields\["([a-z_]+)"\]', r'^        "([a-z_]+)": ', r',"([a-z_]+)":')
    names = {name for way in ways for name in re.findall(way, written, re.MULTILINE)} | set(FLAGS)
    assert {"exhausted", "not_before", "began", "sheddable", "priority", "deletes"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in TEXT] == []
    assert TEXT.index(f"Version {VERSION}:")
