"""The page on nomination says what the code does."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from asyncdispatch.config import PriorityLevels
from asyncdispatch.nomination.actions import Fate
from asyncdispatch.nomination.manifests import files
from asyncdispatch.nomination.metrics import NominationMetrics
from asyncdispatch.nomination.states import LIVE, TRANSITIONS
from asyncdispatch.nomination.writing import CLEARED_ANNOTATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "nomination.md").read_text(encoding="utf-8")


def test_the_table_of_states() -> None:
    """Row by row as in TRANSITIONS."""
    rows = {}
    for state in LIVE:
        following = ", ".join(f"`{after.value}`" for after in TRANSITIONS[state])
        rows[state] = f"| `{state.value}` | {following} |"
    found = [
        line for line in PAGE.splitlines() if re.match(r"\| `(planned|writing|nominated|adopted|releasing)` \|", line)
    ]
    assert found == list(rows.values())


def test_it_opens_and_ends_as_it_must() -> None:
    """Tolerated, the price, and last the runbook up to the scheduler's own gate."""
    first, second = PAGE.split("\n\n")[1:3]
    assert first.startswith("**Tolerated, not supported by upstream since 1.35.**")
    assert "silences" in second
    last = PAGE.rpartition("\n## ")[2]
    assert last.startswith("Runbook")
    assert "NominatedNodeNameForExpectation" in last


def test_annotations_are_named() -> None:
    table = PAGE.partition("| annotation | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z-]+)`", table)) == {*CLEARED_ANNOTATIONS, "hinted-seconds"}


def test_metrics_are_named() -> None:
    """Every metric, and no other; and every result of a write."""
    registry = CollectorRegistry()
    NominationMetrics(registry, "c", PriorityLevels(), list, bool)
    table = PAGE.partition("| metric, `asyncdispatch_nomination_…`")[2].partition("\n\n")[0]
    families = [(family.name, family.type) for family in registry.collect()]
    names = [name.removeprefix("asyncdispatch_nomination_") + "_total" * (kind == "counter") for name, kind in families]
    assert sorted(re.findall(r"\n\| `([a-z_]+)`", table)) == sorted(names)
    assert ", ".join(fate.value for fate in Fate) in table


def test_laws_are_named() -> None:
    text = PAGE.partition("## The laws")[2].partition("\n## ")[0]
    assert re.findall(r"\bN(\d+)\b", text) == [str(number) for number in range(1, 17)]


def test_files_are_named() -> None:
    assert "deploy/nomination/" in PAGE
    assert len(files(prefix="a.b", namespace="c", name="d")) == 4
