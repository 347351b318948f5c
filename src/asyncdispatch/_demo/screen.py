"""What the demo shows: a progress bar for each act, then the table. Plain lines where nobody can see a bar move."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TextIO

from asyncdispatch._demo.acts import Act, Result, Watch

__all__ = ["NOTE", "ROWS", "PlainScreen", "RichScreen", "Screen", "make_screen", "rows", "summary"]

WIDTH = 100
"""Columns of plain text."""


class Screen(Protocol):
    """Where the demo is shown."""

    def say(self, text: str = "") -> None:
        """One paragraph."""

    def act(self, number: int, act: Act, pods: int) -> AbstractContextManager[Watch]:
        """Show how an act goes on; what it gives is told how many Pods are placed."""
        ...

    def table(self, results: Sequence[Result]) -> None:
        """A column for each act."""


ROWS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("Pods placed", lambda r: f"{r.placed:,}" if r.placed == r.pods else f"{r.placed:,} of {r.pods:,}"),
    ("cycles of the loop", lambda r: f"{r.cycles:,}"),
    ("cycles per second", lambda r: f"{r.cycles_per_second:,.0f}"),
    ("cycle P99", lambda r: f"{r.cycle_p99 * 1000:,.{1 if r.cycle_p99 >= 0.01 else 2}f} ms"),
    ("all placed after", lambda r: f"{r.placed_after:.1f} s" if r.placed == r.pods else "never"),
    ("requests sent", lambda r: f"{r.count.requests:,}"),
    ("calls merged / joined", lambda r: f"{r.count.merged:,} / {r.count.joined:,}"),
    ("calls superseded", lambda r: f"{r.count.superseded:,}"),
    ("retried", lambda r: f"{r.count.retried:,}"),
    ("shed", lambda r: f"{r.statistics.outcomes.get('shed', 0):,}"),
    ("stale results dropped", lambda r: f"{r.count.stale:,}"),
    ("rolled back / back again", lambda r: _guarded(r, f"{len(r.rollbacks):,} / {r.back_again:,}")),
    ("synchronous for", lambda r: _guarded(r, f"{r.synchronous or 0:.1f} s")),
    ("lost", lambda r: f"{len(r.count.lost):,}"),
    ("doubled", lambda r: f"{len(r.count.doubled):,}"),
)
"""The table: a name, and how an act's figure is written."""


def _guarded(result: Result, text: str) -> str:
    return text if result.act.guarded else "-"


def rows(results: Sequence[Result]) -> list[list[str]]:
    """The table's cells, the names first."""
    return [[name, *(show(result) for result in results)] for name, show in ROWS]


def summary(results: Sequence[Result]) -> list[str]:
    """What was shown, from the figures."""
    said = []
    for cycle in (r for r in results if r.act.calls_in_cycle):
        for other in (r for r in results if r.act.plain):
            said.append(
                f"Through the dispatcher, the same loop ran {_times(other.cycles_per_second, cycle.cycles_per_second)} "
                f"as many cycles per second, and placed {_times(other.pods_per_second, cycle.pods_per_second)} as many "
                "Pods per second."
            )
    for result in (r for r in results if r.act.trouble):
        said.append(
            f"The misbehaving server gave {result.refused_answers} answers of 429 and lost {result.lost_answers} "
            f"answers; {result.recreated} Pods were recreated, {result.preempted} contexts were ended by preemption, "
            f"and {result.refused_calls} calls were refused for lack of room."
        )
    said.extend(_what_the_guard_did(result) for result in results if result.act.guarded)
    lost = sum(len(result.count.lost) for result in results)
    doubled = sum(len(result.count.doubled) for result in results)
    if lost or doubled:
        said.append(f"{lost} lost and {doubled} doubled, by the server's audit list: this should not be.")
    else:
        said.append("Every Pod was placed; by the server's audit list nothing was lost and nothing was done twice.")
    return said


def _what_the_guard_did(result: Result) -> str:
    if not result.rollbacks:
        return "The guard saw no reason to roll back."
    back = "then a small share of the Pods and at last all went asynchronously again"
    return (
        f"When the server became slow, the guard rolled back: {result.rollbacks[0].breaches[0]}. The same loop went on "
        f"synchronously for {result.synchronous or 0:.1f} s; {back if result.back_again else 'and stayed so'}."
    )


def _times(more: float, less: float) -> str:
    return f"{more / less:,.0f} times" if less else "countless times"


NOTE = "Cycles per second leave out the time in which no Pod waited. The server shares the loop's process."


def make_screen(stream: TextIO = sys.stdout) -> Screen:
    """Bars and colours on a terminal, if rich is installed; else plain lines."""
    if stream.isatty():
        try:
            return RichScreen()
        except ModuleNotFoundError:
            pass
    return PlainScreen(stream)


class PlainScreen:
    """Lines, for a log or a pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, text: str = "") -> None:
        for line in text.splitlines() or [""]:
            print(textwrap.fill(line, WIDTH), file=self._stream, flush=True)

    @contextmanager
    def act(self, number: int, act: Act, pods: int) -> Iterator[Watch]:
        placed = 0

        def watch(now: int, of: int) -> None:
            nonlocal placed
            placed = now

        self.say(f"Act {number}: {act.title} ({pods:,} Pods)")
        yield watch
        self.say(f"       {placed:,} of {pods:,} placed")

    def table(self, results: Sequence[Result]) -> None:
        cells = [["", *(result.act.heading for result in results)], *rows(results)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        for row in cells:
            figures = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            self.say("  ".join((row[0].ljust(widths[0]), *figures)))


class RichScreen:
    """Bars that move and a table with colours. Raises `ModuleNotFoundError` without rich."""

    def __init__(self, **options: Any) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, **options)

    def say(self, text: str = "") -> None:
        self._console.print(text)

    @contextmanager
    def act(self, number: int, act: Act, pods: int) -> Iterator[Watch]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        progress = Progress(
            TextColumn("[bold]Act {task.fields[number]}[/]  {task.description:<28}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        with progress:
            task = progress.add_task(act.title, total=pods, number=number)
            yield lambda now, of: progress.update(task, completed=now)

    def table(self, results: Sequence[Result]) -> None:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("")
        for result in results:
            table.add_column(result.act.heading, justify="right")
        for name, *figures in rows(results):
            if name in ("lost", "doubled"):
                figures = [f"[{'bold green' if figure == '0' else 'bold red'}]{figure}[/]" for figure in figures]
            elif name in ("cycles per second", "all placed after"):
                figures = [f"[bold]{figure}[/]" for figure in figures]
            table.add_row(name, *figures)
        self._console.print(table)
