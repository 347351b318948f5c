"""Helpers for the tests of code that uses asyncdispatch.

Imports without pytest, and without Hypothesis unless `DispatcherMachine` or `strategies` is asked for. The pytest
plugin is `asyncdispatch.testing.plugin`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from asyncdispatch.testing.apiserver import AuditRecord, EmbeddedAPIServer, Fault, StatusError, answers
from asyncdispatch.testing.chronicle import Chronicle
from asyncdispatch.testing.clock import VirtualClock
from asyncdispatch.testing.controlplane import ControlPlane, ControlPlaneError, Role
from asyncdispatch.testing.proxy import FaultProxy
from asyncdispatch.testing.stepping import (
    Exchange,
    Flight,
    History,
    LawBroken,
    StepDriver,
    SteppedDispatcher,
    Trouble,
    instead,
    lost,
    unsent,
)

if TYPE_CHECKING:
    from asyncdispatch.testing import strategies
    from asyncdispatch.testing.machine import DispatcherMachine

__all__ = [
    "AuditRecord",
    "Chronicle",
    "ControlPlane",
    "ControlPlaneError",
    "DispatcherMachine",
    "EmbeddedAPIServer",
    "Exchange",
    "Fault",
    "FaultProxy",
    "Flight",
    "History",
    "LawBroken",
    "Role",
    "StatusError",
    "StepDriver",
    "SteppedDispatcher",
    "Trouble",
    "VirtualClock",
    "answers",
    "instead",
    "lost",
    "strategies",
    "unsent",
]


def __getattr__(name: str) -> Any:
    """What needs Hypothesis is imported when it is asked for."""
    if name == "DispatcherMachine":
        return importlib.import_module("asyncdispatch.testing.machine").DispatcherMachine
    if name == "strategies":
        return importlib.import_module("asyncdispatch.testing.strategies")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
