"""The rules that a history is checked against, by the name that a violation tells."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

__all__ = ["RULES", "Findings", "Violation"]

RULES = {
    "one outcome": "each accepted call of a living replica is told exactly one outcome, in time (law L1)",
    "success has its effect": "a call that succeeded was answered well, or is seen to be done (law L10)",
    "no success, no effect": "any other call has none, unless it says ambiguous or tells a late success (law L10)",
    "once": "one create for each key, one bind for each Pod, nothing sent again that was answered well (promise 2)",
    "looks before it repeats": "a create that may have been applied is not sent again before a look (law L10)",
    "one in flight": "a replica has at most one write of an object in flight (law L2)",
    "in line": "notes of one object are first sent in the order in which they were accepted (law L12)",
    "nothing of an ended context": "nothing is sent, and no success told, after its context's end (laws L5, L11)",
    "nothing too late": "nothing is sent after its deadline (law L5)",
    "superseded": "who names another call as its heir is right (laws L12, L13)",
    "merged": "what a merged call has said is said by its heir (law L13)",
    "own writes are seen": "no Pod is placed again by who was told that its bind succeeded (law L18)",
    "joined": "who shares an execution gets its value (law L8)",
    "legal": "every request finds what the one before it has left, and changes what it says (the server's own)",
    "real time": "the server's order does not contradict the senders' clocks (linearizability)",
    "fenced": "what is fenced by uid or version acts on that uid and version only (law L17)",
    "no dead hand": "nothing of an earlier leader, bound or decided on a version, lands after a later one's (rule R7)",
    "one leader": "no two replicas take themselves for the leader at one time (rule R7)",
}


class Violation(NamedTuple):
    """One thing that must not be: which rule, what was seen, of which object, and when."""

    rule: str
    what: str
    lane: str
    at: int


class Findings(NamedTuple):
    """How often each rule was looked at, and what was found."""

    checks: Counter[str]
    violations: list[Violation]
