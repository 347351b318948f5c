"""P13: simulated calls per second of CPU, as `make simulate` plays and checks them; and how much of it the core takes.

Beside the whole stand its parts: the run without the checks of its history, a run of the scenario in which most goes
wrong, and the core alone, driven by the same kind of calls without a server, a scheduler or a history.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import Entry
from asyncdispatch.calls import ObjectRef
from asyncdispatch.simulation import SCENARIOS, Simulation
from asyncdispatch.simulation.calls import Note
from asyncdispatch.simulation.running import play
from benchmarks.harness import Figure, Goal, Scale, interleave

SEED = 13
LONGEST = 20_000
"""Calls in one run, as most runs of `make simulate` have them."""
AT_ONCE = 300


def p13(scale: Scale) -> list[Figure]:
    calls = min(scale.burst, LONGEST)
    rounds = interleave(
        {
            "whole": lambda: _whole("steady", calls),
            "tight": lambda: _whole("tight", calls),
            "unchecked": lambda: _unchecked(calls),
            "core": lambda: _without_collector(_core_alone, calls),
        },
        min(scale.rounds, 5),
        seconds=60,
    )

    def figure(what: str, name: str, goal: Goal | None = None, note: str = "") -> Figure:
        return Figure(what, "per_second", 1 / rounds.median(name), goal, note)

    share = rounds.ratio("core", "whole")
    return [
        figure("calls of the scenario steady, played and checked", "whole", Goal(100_000, least=True),
               f"{calls} calls, {rounds.count} rounds, drifted {rounds.drift('whole'):.2f}x"),
        figure("the same, played only", "unchecked"),
        figure("calls of the scenario tight, played and checked", "tight"),
        figure("notes through the core alone", "core", None, f"{share:.2f} of the whole's CPU"),
    ]  # fmt: skip


def _whole(name: str, calls: int) -> float:
    report = play(name, SEED, calls)
    assert not report.failing
    return report.cpu / report.calls


def _unchecked(calls: int) -> float:
    def run(calls: int) -> int:
        return len(Simulation(SCENARIOS["steady"].but(calls=calls), SEED).run().calls)

    return _without_collector(run, calls)


def _without_collector(run: Callable[[int], int], calls: int) -> float:
    """CPU for each call, as `play` measures it."""
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        done = run(calls)
        return (time.process_time() - began) / done
    finally:
        gc.enable()


def _core_alone(calls: int) -> int:
    """Calls in bursts through eight seats; each succeeds in its turn."""
    core, now, flying = DispatchCore(SCENARIOS["steady"].config), 1_000_000_000, list[Entry]()
    refs = [ObjectRef("v1", "Event", "ns", f"event-{n}") for n in range(AT_ONCE)]
    done = 0
    while done < calls:
        for number, ref in enumerate(refs):
            core.submit(Note(number, target=ref), now)
        while (entry := core.next(now)) is not None:
            flying.append(entry)
        while flying:
            now += 1_000_000
            entry = flying.pop(0)
            following = core.turn(entry, 1, now)
            if following is None:
                core.succeed(entry, 1, now)
                core.settled.clear()
                following = core.next(now)
            if following is not None:
                flying.append(following)
        done += len(refs)
    return done
