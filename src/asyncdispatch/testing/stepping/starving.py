"""Who cancels a call that waits, and submits it anew, gives up its place; who goes on doing so is never served.

The core bounds the wait of each call (law L6), and can do nothing for one whose caller comes again and again at the end
of the line: under enough load from above it never starts. So each such chain of calls (of one type, on one object, the
next submitted in the moment in which the last is cancelled) is taken here for one, as old as its first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from asyncdispatch._core.states import QUEUED, SECOND, place_of
from asyncdispatch._reasons import reason_of
from asyncdispatch.testing.stepping import events
from asyncdispatch.testing.stepping.history import LawBroken

if TYPE_CHECKING:
    from collections.abc import Hashable

    from asyncdispatch._core.states import Entry
    from asyncdispatch.testing.stepping.driver import StepDriver

__all__ = ["Chains"]

LACKS_ONLY_ITS_TURN = ("turn", "seats", "rate")


class Chain(NamedTuple):
    since: int
    length: int


class Chains:
    """The chains of one driver, read from its history."""

    def __init__(self, driver: StepDriver) -> None:
        self._driver = driver
        self._read = 0
        self._chains: dict[int, Chain] = {}  # by the ticket of the last call
        self._newest: dict[Hashable, tuple[int, int]] = {}  # the ticket accepted last, and when
        self._given_up: dict[Hashable, tuple[Chain, int]] = {}  # what was cancelled last, and when
        self._startable: list[Entry] = []

    def _look(self) -> None:
        """Read what has happened since the last look."""
        happened = self._driver.history.events
        for event in happened[self._read :]:
            if isinstance(event, events.Accepted):
                self._accepted(event.ticket, _identity(event.call), event.at)
            elif isinstance(event, events.Left):
                self._left(event.ticket, event.at)
        self._read = len(happened)

    def _accepted(self, ticket: int, identity: Hashable, at: int) -> None:
        chain, when = self._given_up.pop(identity, (None, -1))
        self._chains[ticket] = Chain(chain.since, chain.length + 1) if chain and when == at else Chain(at, 1)
        self._newest[identity] = ticket, at

    def _left(self, ticket: int, at: int) -> None:
        identity, chain = _identity(self._driver.handles[ticket].call), self._chains.pop(ticket)
        newest, when = self._newest[identity]
        if newest > ticket and when == at:
            self._chains[newest] = Chain(chain.since, chain.length + 1)
        else:
            self._given_up[identity] = chain, at

    def before_start(self) -> None:
        """Take note of what could start now."""
        self._look()
        core, now = self._driver.core, self._driver.now
        entries = core.executions()
        self._startable = []
        if len({entry.flow.name for entry in entries}) == 1:  # between flows, fair share decides as well (law L7)
            queued = [entry for entry in entries if entry.phase is QUEUED]
            self._startable = [entry for entry in queued if reason_of(core, entry, now) in LACKS_ONLY_ITS_TURN]

    def started(self, chosen: Entry) -> None:
        """`chosen` was started. Raises `LawBroken` if it has passed a chain that is so much older."""
        key_of = self._driver.core.ordering.key_of
        for entry in self._startable:
            chain = self._chains.get(entry.ticket)
            if chain is None or chain.length < 2 or entry is chosen or entry.phase is not QUEUED:
                continue
            if key_of(chosen.level, chosen.rank) > key_of(entry.level, place_of(chain.since, entry.ticket)):
                waited = (self._driver.now - chain.since) / SECOND
                raise LawBroken(
                    f"L6: call {entry.ticket} starves: {entry.call.call_type} of {entry.call.target} has waited for "
                    f"{waited:.1f} s, under {chain.length} tickets, each submitted as the one before was cancelled; "
                    f"call {chosen.ticket} came too late to pass it, and starts first: keep the call that waits"
                )


def _identity(call: Any) -> Hashable:
    return call.target, call.call_type
