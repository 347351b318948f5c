"""Turning asynchronous calls on for some, watching them, and turning them off again: gates, rollout, guard."""

from asyncdispatch.rollout.gates import ASYNC_API_CALLS, KNOWN_GATES, FeatureGates, Gate, Stage
from asyncdispatch.rollout.rules import Explanation, Rollout, Rule

__all__ = [
    "ASYNC_API_CALLS",
    "KNOWN_GATES",
    "Explanation",
    "FeatureGates",
    "Gate",
    "Rollout",
    "Rule",
    "Stage",
]
