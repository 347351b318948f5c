"""Deterministic simulation: clusters, schedulers and a failing API server in virtual time, on the real core.

One process, no event loop, no wall clock; one seed gives one history. Every history is checked against rules that know
nothing of the core (`RULES`), so that what is promised is proved on millions of calls.

    from asyncdispatch.simulation import SCENARIOS, simulate

    run = simulate(SCENARIOS["storms"].but(calls=2_000), seed=7)
    assert not run.violations

`python -m asyncdispatch.simulation` plays many seeds over all scenarios.
"""

from asyncdispatch.simulation.checking import check
from asyncdispatch.simulation.history import CallRecord, ContextRecord, History, RequestRecord, Term
from asyncdispatch.simulation.rules import RULES, Findings, Violation
from asyncdispatch.simulation.running import Report, Run, play_many, shrink, simulate
from asyncdispatch.simulation.scenario import FAULTS, SCENARIOS, TROUBLES, Scenario
from asyncdispatch.simulation.server import Server
from asyncdispatch.simulation.telling import story
from asyncdispatch.simulation.world import Simulation

__all__ = [
    "FAULTS",
    "RULES",
    "SCENARIOS",
    "TROUBLES",
    "CallRecord",
    "ContextRecord",
    "Findings",
    "History",
    "Report",
    "RequestRecord",
    "Run",
    "Scenario",
    "Server",
    "Simulation",
    "Term",
    "Violation",
    "check",
    "play_many",
    "shrink",
    "simulate",
    "story",
]
