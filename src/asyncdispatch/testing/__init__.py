"""Helpers for the tests of code that uses asyncdispatch."""

from asyncdispatch.testing.apiserver import AuditRecord, EmbeddedAPIServer, Fault, StatusError, answers
from asyncdispatch.testing.controlplane import ControlPlane, ControlPlaneError, Role
from asyncdispatch.testing.proxy import FaultProxy

__all__ = [
    "AuditRecord",
    "ControlPlane",
    "ControlPlaneError",
    "EmbeddedAPIServer",
    "Fault",
    "FaultProxy",
    "Role",
    "StatusError",
    "answers",
]
