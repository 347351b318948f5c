"""The command line: `python -m asyncdispatch demo` and `python -m asyncdispatch what-if TRACE`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncdispatch._demo.acts import Result
    from asyncdispatch._demo.screen import Screen
    from asyncdispatch._demo.world import Settings

__all__ = ["main"]

INTRODUCTION = """\
One small scheduler loop, the same in four acts, places Pods on {nodes} nodes over HTTP.
The API server takes {latency:.0f} ms for each request. First the loop calls it in each cycle and waits."""

MISSING = """\
The demo needs more than is installed ({error}).
Install it with: pip install 'asyncdispatch[kubernetes,testing,cli]'"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 if the demo lost or doubled something, 2 for a wrong use."""
    options = _parser().parse_args(argv)
    code: int = options.run(options)
    return code


def run_demo(options: argparse.Namespace) -> int:
    """`demo`: needs the extras."""
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL, format="%(levelname)s %(message)s")
    try:
        from asyncdispatch._demo.screen import make_screen
        from asyncdispatch._demo.world import Settings
    except ModuleNotFoundError as error:
        print(MISSING.format(error=error), file=sys.stderr)
        return 2
    settings = Settings(
        pods=options.pods,
        pods_in_cycle=max(1, options.pods // 5),
        nodes=options.nodes,
        latency=options.latency / 1000,
        seed=options.seed,
    )
    try:
        return asyncio.run(demo(settings, make_screen()))
    except KeyboardInterrupt:
        return 130


async def demo(settings: Settings, screen: Screen) -> int:
    """Play all acts and show what they came to. 1 if anything was lost or doubled, else 0."""
    from asyncdispatch._demo.acts import ACTS, play

    screen.say(INTRODUCTION.format(nodes=settings.nodes, latency=settings.latency * 1000))
    screen.say()
    results: list[Result] = []
    for number, act in enumerate(ACTS, start=1):
        with screen.act(number, act, act.pods(settings)) as watch:
            results.append(await play(act, settings, watch))
    return conclude(results, screen)


def conclude(results: Sequence[Result], screen: Screen) -> int:
    """Show the table and what it says. 1 if anything was lost or doubled, else 0."""
    from asyncdispatch._demo.screen import NOTE, summary

    screen.say()
    screen.table(results)
    screen.say(NOTE)
    screen.say()
    for line in summary(results):
        screen.say(line)
    wrong = [case for result in results for case in (*result.count.lost, *result.count.doubled)]
    for case in wrong[:20]:
        screen.say(f"  - {case}")
    return 1 if wrong else 0


def run_what_if(options: argparse.Namespace) -> int:
    """`what-if`: compare a trace's waits with those under another configuration."""
    from asyncdispatch.config import RateLimit
    from asyncdispatch.errors import DispatchError
    from asyncdispatch.traces import read_trace, what_if

    try:
        trace = read_trace(options.trace)
        if trace.note is not None:
            print(trace.note, file=sys.stderr)
        given: dict[str, Any] = {"max_in_flight": options.workers, "capacity": options.capacity, "aging": options.aging}
        if options.qps is not None:
            given["rate"] = RateLimit(options.qps, max(1, round(options.qps)))
        config = replace(trace.config, **{name: value for name, value in given.items() if value is not None})
        for line in what_if(trace, config).lines():
            print(line)
    except (DispatchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="asyncdispatch", description="Asynchronous API calls for Kubernetes schedulers and controllers on asyncio."
    )
    parser.add_argument("--version", action="version", version=f"asyncdispatch {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    show = commands.add_parser(
        "demo",
        help="place Pods on an API server of our own, over HTTP, and count what was lost or doubled",
        description="Place Pods on an embedded API server, over HTTP: calling it in the scheduling cycle, through the "
        "dispatcher, through the dispatcher while the server misbehaves, and under a guard while the server is slow. "
        "Exits 1 if anything was lost or doubled.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    show.add_argument("--pods", type=_count, default=1000, help="Pods to place; the first act gets a fifth of them")
    show.add_argument("--nodes", type=_count, default=50, help="nodes to place them on")
    show.add_argument("--latency", type=_milliseconds, default=50.0, help="what each request takes, in ms")
    show.add_argument("--seed", type=int, default=5229, help="decides what is drawn by lot")
    show.add_argument("-v", "--verbose", action="store_true", help="show the library's log")
    show.set_defaults(run=run_demo)
    _add_what_if(commands)
    return parser


def _add_what_if(commands: Any) -> None:
    ask = commands.add_parser(
        "what-if",
        help="replay a trace under another configuration, and compare how long calls wait",
        description="Replay what a TraceRecorder has written under another configuration, and compare how long calls "
        "wait: by level and flow, before and after. What is not given stays as it was recorded.",
    )
    ask.add_argument("trace", metavar="TRACE", help="the file")
    ask.add_argument("--workers", type=_count, help="calls in flight at most: a fixed max_in_flight")
    ask.add_argument("--capacity", type=_count, help="accepted calls without an outcome at most")
    ask.add_argument("--aging", type=float, metavar="SECONDS", help="how long a wait lifts a call by one level")
    ask.add_argument("--qps", type=float, help="starts in a second at most, with a burst of as many")
    ask.set_defaults(run=run_what_if)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no time from 0 to 10000 ms")
    return value


def _version() -> str:
    try:
        return version("asyncdispatch")
    except PackageNotFoundError:
        return "(not installed)"
