"""Helpers for the tests of code that uses asyncdispatch."""

from asyncdispatch.testing.apiserver import AuditRecord, EmbeddedAPIServer, Fault, StatusError, answers
from asyncdispatch.testing.clock import VirtualClock
from asyncdispatch.testing.controlplane import ControlPlane, ControlPlaneError, Role
from asyncdispatch.testing.proxy import FaultProxy
from asyncdispatch.testing.stepping import History, LawBroken, StepDriver

__all__ = [
    "AuditRecord",
    "ControlPlane",
    "ControlPlaneError",
    "EmbeddedAPIServer",
    "Fault",
    "FaultProxy",
    "History",
    "LawBroken",
    "Role",
    "StatusError",
    "StepDriver",
    "VirtualClock",
    "answers",
]
