"""The dashboard, the alert rules and their page speak of metrics that there are, with labels that those have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from asyncdispatch.metrics import FAMILIES

ROOT = Path(__file__).parent.parent
RULES = yaml.safe_load((ROOT / "deploy/prometheus/asyncdispatch.rules.yml").read_text(encoding="utf-8"))
RULE_TESTS = yaml.safe_load((ROOT / "deploy/prometheus/asyncdispatch.test.yml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((ROOT / "deploy/grafana/asyncdispatch.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")

ALL_RULES = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in ALL_RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in ALL_RULES if "record" in rule}
SERIES = {name: family for family in FAMILIES.values() for name in family.series}
SELECTOR = re.compile(r"(asyncdispatch[a-z0-9_:]+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring) \(([^)]*)\)")
OF_PROMETHEUS = {"instance", "job", "le"}


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    """Of the rules, the dashboard's panels, its variables and annotations."""
    found = [rule["expr"] for rule in ALL_RULES]
    found += [target["expr"] for panel in panels() for target in panel["targets"]]
    found += [item["expr"] for item in DASHBOARD["annotations"]["list"]]
    found += [item["query"]["query"] for item in DASHBOARD["templating"]["list"] if item["type"] == "query"]
    return found


def mistakes(expression: str) -> list[str]:
    """What an expression asks for that there is not."""
    found, labels = [], set(OF_PROMETHEUS)
    for name, selector in SELECTOR.findall(expression):
        if name not in SERIES and name not in RECORDED:
            found.append(f"no metric {name}")
            continue
        own = set(SERIES[name].labels) if name in SERIES else {label for f in FAMILIES.values() for label in f.labels}
        labels |= own
        asked = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
        found += [f"{name} has no label {label}" for label in asked if label not in own | OF_PROMETHEUS]
    for group in GROUPING.findall(expression):
        found += [f"no label {label}" for label in re.split(r",\s*", group) if label and label not in labels]
    return found


@pytest.mark.parametrize("expression", expressions())
def test_expressions_are_of_metrics_that_there_are(expression: str) -> None:
    assert "asyncdispatch" in expression
    assert mistakes(expression) == []


@pytest.mark.parametrize(
    ("expression", "mistake"),
    [
        ("rate(asyncdispatch_calls[5m])", "no metric asyncdispatch_calls"),
        ('asyncdispatch_mode{state="sync"} == 1', "asyncdispatch_mode has no label state"),
        ("sum by (flow) (asyncdispatch_in_flight)", "no label flow"),
        ("asyncdispatch_queue_wait_seconds_sum", "no metric asyncdispatch_queue_wait_seconds_sum"),
        ("asyncdispatch:nothing:rate5m", "no metric asyncdispatch:nothing:rate5m"),
    ],
)
def test_mistakes_are_found(expression: str, mistake: str) -> None:
    assert mistakes(expression) == [mistake]


def test_every_metric_is_used_or_is_there_to_be_looked_at() -> None:
    """One that neither a rule nor a panel needs is one that the page must give a reason for: it lists them all."""
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", PAGE, flags=re.MULTILINE)
    table = {name: (kind, labels.replace("`", "").strip()) for name, kind, labels in listed}
    assert table == {f.full_name: (f.kind, ", ".join(f.labels)) for f in FAMILIES.values()}


def test_the_page_says_which_are_upstreams() -> None:
    theirs = re.findall(r"^\| `asyncdispatch_(\w+)` \| `scheduler_(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert theirs
    assert [ours for ours, _ in theirs] == [f.name for f in FAMILIES.values() if f.upstream]
    assert all(ours == upstream for ours, upstream in theirs)


def test_every_alert_is_explained_and_tested() -> None:
    """On the page, with its reason and what to do; and by made-up series on which it fires."""
    explained = re.findall(r"^\| `(Asyncdispatch\w+)` \| \w", PAGE, flags=re.MULTILINE)
    assert explained == list(ALERTS)
    text = json.dumps(RULE_TESTS)
    assert [name for name in ALERTS if name not in text] == []


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_say_how_bad_and_where(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert "{{ $labels." in rule["annotations"]["summary"]


def test_panels_do_not_overlap_and_have_their_own_numbers() -> None:
    taken: dict[tuple[int, int], str] = {}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]
    assert all(x < 24 for x, _ in taken)
