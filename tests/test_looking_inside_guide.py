"""The guide to looking inside: its snippets run, and it names every field and every reason that there is."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncdispatch import AdaptiveLimit, Dispatcher, DispatcherConfig, RateLimit
from asyncdispatch._core.parking import Breaker, Hold, LaterScope
from asyncdispatch.inspection import REASONS, SCHEMA_VERSION, dump
from asyncdispatch.rollout import Rollout, Rule
from tests.core.driver import Driver
from tests.core.words import Patch
from tests.shell import call, for_ever, pod, turns

GUIDE = Path(__file__).parents[1] / "docs" / "looking-inside.md"
TEXT = GUIDE.read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
FIELDS = set(re.findall(r"`([a-z_]+)`", TEXT)) | set(re.findall(r'"([a-z_]+)"', TEXT))


async def scheduling_loop(dispatcher: Dispatcher) -> None:
    await dispatcher.run(call())


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
async def test_snippet(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Each runs as it stands, with what it takes for granted."""
    snippet = SNIPPETS[number].replace("8080", "0")  # any port
    async with Dispatcher(DispatcherConfig(max_in_flight=1)) as dispatcher:
        dispatcher.submit(call(for_ever, "a"))
        await turns()
        dispatcher.submit(call(name="b"))
        names: dict[str, Any] = {
            "Dispatcher": Dispatcher,
            "call": call(),
            "config": DispatcherConfig(),
            "dispatcher": dispatcher,
            "pods": SimpleNamespace(stale_for=0.0),
            "scheduling_loop": scheduling_loop,
        }
        given = "" if "as dispatcher" in snippet else "dispatcher"
        code = f"async def play({given}):\n{textwrap.indent(snippet, '    ')}"
        exec(compile(code, str(GUIDE), "exec"), names)
        await (names["play"](dispatcher) if given else names["play"]())
        await dispatcher.aclose()
    if "print" in snippet:
        assert capsys.readouterr().out == "2 Pod ns/b seats all 1 seats are taken\n"


def fields_of(value: Any, *, skip: tuple[str, ...] = ("states", "outcomes")) -> set[str]:
    """All keys of a dump, but those that are names of states and outcomes."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    if not isinstance(value, dict):
        return set()
    inside = [fields_of(each) for name, each in value.items() if name not in skip]
    return set(value).union(*inside)


async def test_every_field_is_named() -> None:
    """With a row in every list that the core can fill."""
    config = DispatcherConfig(max_in_flight=AdaptiveLimit(1, 1, 2), rate=RateLimit(1_000.0, 100))
    async with Dispatcher(config, rollout=Rollout([Rule(name="all")])) as dispatcher:
        dispatcher.contexts.begin(pod("p"), requires=("volume",))
        dispatcher.submit(call(for_ever, "a"))
        dispatcher.submit(call(name="b"))
        await turns()
        fields = fields_of(dispatcher.dump())
        assert {"why", "cut_off_in", "qps", "requirements", "percentage"} <= fields
        assert fields - FIELDS == set()
        await dispatcher.aclose()


def test_every_field_of_what_holds_calls_back_is_named() -> None:
    """Scopes, breakers and own writes."""
    driver = Driver()
    driver.submit(Patch(fields=("f",)))
    entry = driver.start()
    assert entry is not None
    driver.succeed(entry)
    core = driver.core
    core.holds["s"], core.laters["q"] = Hold("s", 0), LaterScope("q")
    core.breakers.table["f", "t"] = Breaker()
    dumped = dump(core, driver.now)
    assert all(dumped[name]["rows"] for name in ("held", "later", "breakers", "own_writes"))
    assert fields_of(dumped) - FIELDS == set()


def test_every_reason_is_explained() -> None:
    """In the words of the code."""
    table = dict(re.findall(r"^\| `([a-z_]+)` \| ([^|]+?) \|[^|]*\|$", TEXT, re.MULTILINE))
    assert table == REASONS


def test_the_version_is_told() -> None:
    assert f"`version` is {SCHEMA_VERSION}." in TEXT


def test_the_pictures_are_there() -> None:
    """Each that the guide shows was drawn."""
    for name in re.findall(r"\{image\} (\S+)", TEXT):
        assert (GUIDE.parent / name).stat().st_size > 10_000
