"""Turning asynchronous calls on for some, watching them, and turning them off again: gates, rollout, guard."""

from asyncdispatch.rollout.gates import ASYNC_API_CALLS, KNOWN_GATES, FeatureGates, Gate, Stage
from asyncdispatch.rollout.guard import Guard
from asyncdispatch.rollout.judging import Breach, Decision, GuardReport, GuardState, SignalReport, Step
from asyncdispatch.rollout.policy import Baseline, GuardPolicy, HalfOpen, Measured, Threshold, Waiting
from asyncdispatch.rollout.rules import Explanation, Rollout, Rule

__all__ = [
    "ASYNC_API_CALLS",
    "KNOWN_GATES",
    "Baseline",
    "Breach",
    "Decision",
    "Explanation",
    "FeatureGates",
    "Gate",
    "Guard",
    "GuardPolicy",
    "GuardReport",
    "GuardState",
    "HalfOpen",
    "Measured",
    "Rollout",
    "Rule",
    "SignalReport",
    "Stage",
    "Step",
    "Threshold",
    "Waiting",
]
