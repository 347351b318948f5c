"""`python -m asyncdispatch.simulation`: many seeds, all scenarios, every history checked. Exits 1 on a violation."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.simulation.rules import RULES
from asyncdispatch.simulation.running import Report, Run, play_many, shrink, simulate
from asyncdispatch.simulation.scenario import SCENARIOS, Scenario
from asyncdispatch.simulation.telling import story

STORY_LINES = 120
PROGRESS_EVERY = 15.0
"""Seconds."""


def say(text: str = "") -> None:
    print(text, flush=True)  # noqa: T201  # this is a command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 for a violation, 2 for a wrong use."""
    parser = _parser()
    options = parser.parse_args(arguments)
    names = options.scenario or list(SCENARIOS)
    if options.set:
        try:
            scenario = changed(SCENARIOS[names[0]], options.set)
        except ConfigurationError as error:
            parser.error(str(error))
        return _one(scenario, options.seed)
    began = time.monotonic()
    report = _many(options.calls, names, options.seed, options.processes, began)
    _tell(report, options.processes, time.monotonic() - began)
    if not report.failing:
        return 0
    name, seed, calls, _ = report.failing[0]
    _one(SCENARIOS[name].but(calls=calls), seed)
    return 1


def _many(calls: int, names: Sequence[str], seed: int, processes: int, began: float) -> Report:
    """Play until enough calls are accepted, or something is found."""
    whole = Report()
    told = began
    for report in play_many(calls, names, seed=seed, processes=processes):
        whole.add(report)
        if time.monotonic() - told >= PROGRESS_EVERY:
            told = time.monotonic()
            say(f"  {whole.calls:,} calls in {told - began:.0f} s")
        if whole.failing:
            break
    return whole


def _tell(report: Report, processes: int, seconds: float) -> None:
    say(f"calls       {report.calls:,} in {report.runs} runs; {report.virtual / 3600:.1f} hours of virtual time")
    say(f"outcomes    {_list(report.outcomes)}")
    say(f"faults      {sum(report.faults.values()):,}: {_list(report.faults)}")
    say(f"law checks  {sum(report.checks.values()):,}: {_list(report.checks)}")
    say(f"violations  {len(report.failing)}")
    rate = report.calls / report.cpu if report.cpu else 0.0
    say(f"speed       {rate:,.0f} calls per second of CPU; {seconds:.0f} s with {processes} processes")


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def _one(scenario: Scenario, seed: int) -> int:
    """One run, and if it breaks a rule, the smallest that does, with what happened to the object."""
    run = simulate(scenario, seed)
    say(f"scenario {scenario.name}, seed {seed}: {run.calls:,} calls, {len(run.violations)} violations")
    if not run.violations:
        return 0
    say(f"  {_said(run)}")
    small = shrink(run)
    say(f"The smallest found: {_differences(small.scenario, small.seed)}")
    say(f"  {_said(small)}")
    say()
    for line in story(small.history, small.violations[0].lane, most=STORY_LINES):
        say(line)
    return 1


def _said(run: Run) -> str:
    violation = run.violations[0]
    return f"{violation.rule}: {violation.what} ({RULES.get(violation.rule, 'an invariant, or an error')})"


def _differences(scenario: Scenario, seed: int) -> str:
    """The options of this command that play it again."""
    named = SCENARIOS.get(scenario.name, Scenario())
    names = [name for name in Scenario.__dataclass_fields__ if getattr(scenario, name) != getattr(named, name)]
    said = [f"--set {name}={_as_text(getattr(scenario, name))}" for name in names]
    return " ".join([f"--scenario {scenario.name} --seed {seed}", *said])


def _as_text(value: Any) -> str:
    return ",".join(value) or "none" if hasattr(value, "keys") else str(value)


# -- options ----------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asyncdispatch.simulation",
        description="Play simulated clusters around the dispatcher's core, seed after seed, and check every history.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--calls", type=_count, default=10_000_000, help="calls to play, over all runs")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each run takes the next")
    parser.add_argument("--processes", type=_count, default=os.cpu_count() or 1, help="runs at one time")
    parser.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), help="only this one; may be given again (default: all)"
    )
    parser.add_argument(
        "--set", action="append", type=_setting, metavar="NAME=VALUE",
        help="play one run with another value: a number, true, or the names of the faults or troubles to keep",
    )  # fmt: skip
    return parser


def _count(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 1e12 or value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(value)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or name not in Scenario.__dataclass_fields__:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a field of a scenario")
    return name, value


def changed(scenario: Scenario, settings: Sequence[tuple[str, str]]) -> Scenario:
    """`scenario` with the values of `--set`. Raises `ConfigurationError` for one that can't be meant."""
    values: dict[str, Any] = {}
    for name, text in settings:
        now = getattr(scenario, name)
        if hasattr(now, "items"):
            kept = [] if text == "none" else text.split(",")
            unknown = [each for each in kept if each not in now]
            if unknown:
                known = ", ".join(now) or "none"
                raise ConfigurationError(f"Scenario.{name}", unknown[0], f"{scenario.name} has {known}")
            values[name] = {each: value for each, value in now.items() if each in kept}
        elif isinstance(now, bool):
            values[name] = text.lower() in ("true", "yes", "1")
        elif isinstance(now, (int, float)):
            try:
                values[name] = type(now)(text)
            except ValueError:
                raise ConfigurationError(f"Scenario.{name}", text, "must be a number") from None
        else:
            raise ConfigurationError(f"Scenario.{name}", text, "can't be given here: use the library")
    return scenario.but(**values)


if __name__ == "__main__":
    sys.exit(main())
