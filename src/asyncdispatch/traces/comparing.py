"""How long calls waited, before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from asyncdispatch.traces.replaying import ReplayedCall

__all__ = ["Change", "Comparison", "Waits", "compare"]


@dataclass(frozen=True, slots=True)
class Waits:
    """How long calls waited, in seconds: all of their time but that in flight."""

    calls: int
    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Waits:
        found = sorted(seconds)
        if not found:
            return cls(0, 0.0, 0.0, 0.0)
        return cls(len(found), sum(found) / len(found), _quantile(found, 0.5), _quantile(found, 0.99))


def _quantile(found: Sequence[float], share: float) -> float:
    return found[min(len(found) - 1, int(share * len(found)))]


@dataclass(frozen=True, slots=True)
class Change:
    """The same calls as recorded, and as they would have been."""

    before: Waits
    after: Waits


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `what_if` has found: waits of all calls, by level and by flow; and how the calls ended, "refused" included.

    `guessed` of `attempts` are not in the trace, and were taken to be usual ones: the more, the less it says.
    """

    all: Change
    by_level: Mapping[str, Change]
    by_flow: Mapping[str, Change]
    outcomes_before: Mapping[str, int]
    outcomes_after: Mapping[str, int]
    attempts: int
    guessed: int

    def lines(self) -> list[str]:
        """A table for people."""
        head = f"{'waits in seconds':32}{'calls':>15}{'mean':>19}{'p50':>19}{'p99':>19}"
        rows = [("all calls", self.all)]
        rows += [(f"level {name}", change) for name, change in self.by_level.items()]
        rows += [(f"flow {name}", change) for name, change in self.by_flow.items()]
        ends = dict.fromkeys((*self.outcomes_before, *self.outcomes_after))
        told = [f"{name} {self.outcomes_before.get(name, 0)} -> {self.outcomes_after.get(name, 0)}" for name in ends]
        share = f"{self.guessed} of {self.attempts} attempts are not in the trace, and were taken to be usual ones"
        return [head, *(_row(*row) for row in rows), f"ended: {', '.join(told)}", share]


def _row(name: str, change: Change) -> str:
    before, after = change.before, change.after
    pairs = [(before.mean, after.mean), (before.p50, after.p50), (before.p99, after.p99)]
    return f"{name[:31]:32}{f'{before.calls} -> {after.calls}':>15}" + "".join(
        f"{f'{one:.3f} -> {other:.3f}':>19}" for one, other in pairs
    )


def compare(
    one: list[ReplayedCall],
    other: list[ReplayedCall],
    refused_before: int,
    refused_after: int,
    attempts: int,
    guessed: int,
) -> Comparison:
    """The calls as recorded, and as they would have been."""
    return Comparison(
        _change(one, other),
        _by("level", one, other),
        _by("flow", one, other),
        _outcomes(one, refused_before),
        _outcomes(other, refused_after),
        attempts,
        guessed,
    )


def _by(field: str, one: list[ReplayedCall], other: list[ReplayedCall]) -> dict[str, Change]:
    names = sorted({getattr(call, field) for call in (*one, *other)})
    return {name: _change(_of(one, field, name), _of(other, field, name)) for name in names}


def _of(calls: list[ReplayedCall], field: str, name: str) -> list[ReplayedCall]:
    return [call for call in calls if getattr(call, field) == name]


def _change(one: list[ReplayedCall], other: list[ReplayedCall]) -> Change:
    return Change(_waits(one), _waits(other))


def _waits(calls: list[ReplayedCall]) -> Waits:
    return Waits.of(call.outcome.queued_seconds for call in calls if call.outcome is not None)


def _outcomes(calls: list[ReplayedCall], refused: int) -> dict[str, int]:
    names = [type(call.outcome).__name__.lower() if call.outcome is not None else "unfinished" for call in calls]
    return dict(sorted(Counter(names).items())) | ({"refused": refused} if refused else {})
