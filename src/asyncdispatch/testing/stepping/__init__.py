"""The dispatcher driven by hand, in virtual time: no event loop, no task, no waiting.

`events` (what is recorded), `history` (the laws over time, checked on what is recorded), `reports` and `driver` (the
steps of the core), `telling` (a history in words); and for calls that are really performed: `wire` (requests that wait
for the test), `flights` (attempts), `promises` (what call types promise), `starving` and `stepped`, which puts them
together.
"""

from asyncdispatch.testing.stepping.driver import StepDriver
from asyncdispatch.testing.stepping.flights import Flight
from asyncdispatch.testing.stepping.history import History, LawBroken
from asyncdispatch.testing.stepping.stepped import SteppedDispatcher
from asyncdispatch.testing.stepping.wire import Exchange, Trouble, instead, lost, unsent

__all__ = [
    "Exchange",
    "Flight",
    "History",
    "LawBroken",
    "StepDriver",
    "SteppedDispatcher",
    "Trouble",
    "instead",
    "lost",
    "unsent",
]
