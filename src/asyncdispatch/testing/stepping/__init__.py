"""The core driven by hand, in virtual time: no event loop, no task, no waiting.

`events` (what is recorded), `history` (the laws over time, checked on what is recorded) and `driver` (the steps).
"""

from asyncdispatch.testing.stepping.driver import StepDriver
from asyncdispatch.testing.stepping.history import History, LawBroken

__all__ = ["History", "LawBroken", "StepDriver"]
