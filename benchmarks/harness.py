"""Figures, goals, and rounds in which candidates take turns.

Absolute times drift with the machine, so every figure that is compared comes out of `interleave`: each round runs each
candidate once, in an order that rotates, and a ratio is the median of the ratios within the rounds. The collector
stays on; it is run to its end before each sample, outside the clock.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of it: every size in one place, so that a smoke test can run all of it in a second."""

    rounds: int
    waves: int
    """Times that `pending` calls are submitted and awaited in one sample."""
    pending: int
    burst: int
    many: int
    """Pending calls at the far end of P4."""
    growth_rounds: int
    core_rounds: int
    sleeps: int
    """Real-time calls for each seat in one sample of P3."""
    cancelled_of: int
    low: int
    flood: int
    from_thread: int
    pods: int
    """Of P16, to be placed in one sample."""
    patches: int
    """Status patches in one sample of P11."""
    writes: int
    """Of P15, in one sample."""
    plane_rounds: int
    """Of P15 and P16, which run on a real control plane."""


FULL = Scale(
    rounds=9,
    waves=20,
    pending=1_000,
    burst=100_000,
    many=1_000_000,
    growth_rounds=5,
    core_rounds=15,
    sleeps=50,
    cancelled_of=10_000,
    low=100_000,
    flood=20_000,
    from_thread=10_000,
    pods=1_000,
    patches=500,
    writes=500,
    plane_rounds=3,
)
QUICK = Scale(
    rounds=5,
    waves=10,
    pending=1_000,
    burst=30_000,
    many=200_000,
    growth_rounds=3,
    core_rounds=7,
    sleeps=20,
    cancelled_of=10_000,
    low=20_000,
    flood=5_000,
    from_thread=10_000,
    pods=300,
    patches=300,
    writes=300,
    plane_rounds=2,
)
TINY = Scale(
    rounds=1,
    waves=1,
    pending=20,
    burst=40,
    many=60,
    growth_rounds=1,
    core_rounds=1,
    sleeps=1,
    cancelled_of=50,
    low=200,
    flood=200,
    from_thread=20,
    pods=10,
    patches=5,
    writes=20,
    plane_rounds=1,
)


class NotHere(Exception):
    """What a benchmark needs is not on this machine. The text says how to get it."""


# -- figures ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound: at most, or at least."""

    value: float
    least: bool = False

    def __str__(self) -> str:
        return f"{'>=' if self.least else '<='}{_number(self.value)}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, what it is of, and the goal it has, if any."""

    what: str
    unit: str
    value: float
    goal: Goal | None = None
    note: str = ""

    @property
    def ok(self) -> bool:
        """Decided on the number as it is printed, so that a line never contradicts itself."""
        if self.goal is None:
            return True
        shown = float(_number(self.value))
        return shown >= self.goal.value if self.goal.least else shown <= self.goal.value

    @property
    def strain(self) -> float:
        """How near to its goal, or past it: 1.0 is just reached."""
        if self.goal is None:
            return 0.0
        if self.goal.least:
            return self.goal.value / self.value if self.value > 0 else math.inf
        return self.value / self.goal.value

    def __str__(self) -> str:
        text = f"{self.unit}={_number(self.value)}"
        return text if self.goal is None else f"{text} goal{self.goal} {'ok' if self.ok else 'short'}"

    def line(self, name: str) -> str:
        """The line of one figure: `P1 | what | ratio=1.43 goal<=1.50 ok | note`."""
        return " | ".join(part for part in (name, self.what, str(self), self.note) if part)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def worst(figures: list[Figure]) -> Figure:
    """The figure that is nearest to its goal, or farthest past it."""
    return max((figure for figure in figures if figure.goal is not None), key=lambda figure: figure.strain)


# -- rounds -------------------------------------------------------------------------------------------------------

Sample = Callable[[], float]


class Rounds:
    """What each candidate took in each round."""

    def __init__(self, taken: Mapping[str, list[float]]) -> None:
        self.taken = taken

    def median(self, name: str) -> float:
        return median(self.taken[name])

    def ratio(self, name: str, other: str) -> float:
        """The median of the ratios within each round: a slow round is slow for both."""
        return median(mine / theirs for mine, theirs in zip(self.taken[name], self.taken[other], strict=True))

    def difference(self, name: str, other: str) -> float:
        return median(mine - theirs for mine, theirs in zip(self.taken[name], self.taken[other], strict=True))

    @property
    def count(self) -> int:
        return min(map(len, self.taken.values()))

    def drift(self, name: str) -> float:
        """How far the machine drifted: slowest round over fastest, of one candidate."""
        return max(self.taken[name]) / min(self.taken[name])


def interleave(candidates: Mapping[str, Sample], rounds: int, seconds: float = math.inf, least: int = 3) -> Rounds:
    """`rounds` of them; after `seconds` fewer are enough, but not fewer than `least`."""
    names = list(candidates)
    taken: dict[str, list[float]] = {name: [] for name in names}
    began = time.monotonic()
    for number in range(rounds):
        if number >= least and time.monotonic() - began > seconds:
            break
        for name in in_turn(names, number):
            gc.collect()
            taken[name].append(candidates[name]())
    return Rounds(taken)


def in_turn(names: list[str], number: int) -> list[str]:
    """The order of one round: another begins each time."""
    turn = number % len(names)
    return names[turn:] + names[:turn]


def in_loop(function: Callable[..., Coroutine[Any, Any, float]], *args: Any) -> Sample:
    """A sample that runs `function(*args)` in an event loop of its own."""

    def sample() -> float:
        with asyncio.Runner() as runner:
            return runner.run(function(*args))

    return sample


def micro(seconds: float) -> str:
    return f"{seconds * MICRO:.2f} us"
