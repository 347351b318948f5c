"""Who leads: a lease in the API server, outside the dispatcher's economy (rule R8), as `kubernetes.Lease` has it.

A holder renews; its term is valid until the last successful renewal was sent plus the renew deadline (rule R7). Others
wait until they have seen no renewal for a lease duration, which is longer. So terms do not overlap, whatever fails.
"""

from __future__ import annotations

from asyncdispatch._core.states import SECOND
from asyncdispatch.simulation.scenario import Scenario
from asyncdispatch.simulation.scheduler import Scheduler
from asyncdispatch.simulation.server import Clock, Server

__all__ = ["Election"]


class Candidate:
    """What one replica knows of the lease."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.seen = -1
        self.seen_at = 0


class Election:
    """The lease object, and the candidates' requests to it."""

    def __init__(self, clock: Clock, server: Server, scenario: Scenario) -> None:
        self._clock, self._server = clock, server
        self._duration = round(scenario.lease_duration * SECOND)
        self._deadline = round(scenario.renew_deadline * SECOND)
        self._every = round(scenario.renew_every * SECOND)
        self.holder = 0
        self.version = 0

    def join(self, scheduler: Scheduler, now: int) -> None:
        self._clock.at(now + self._server.latency(), self._turn, Candidate(scheduler))

    def _turn(self, candidate: Candidate, now: int) -> None:
        """Time to renew, or to look whether somebody else does."""
        scheduler = candidate.scheduler
        shell = scheduler.shell
        if not shell.alive or scheduler.closing:
            return
        if now < shell.paused_until:
            self._clock.at(shell.paused_until, self._turn, candidate)
            return
        self._clock.at(now + self._every, self._turn, candidate)
        if not scheduler.leads:
            scheduler.lost(now)
        if self._server.trouble != "outage":  # else it fails, and nothing is known
            self._clock.at(now + self._server.latency(), self._landed, (candidate, now))

    def _landed(self, what: tuple[Candidate, int], now: int) -> None:
        """The request has reached the lease: renew it, take it, or learn of its version."""
        candidate, sent = what
        scheduler = candidate.scheduler
        number = scheduler.shell.number
        if self.holder == number:
            self.version += 1
            self._clock.at(now, self._renewed, (candidate, sent))
            return
        if self.version != candidate.seen:
            candidate.seen, candidate.seen_at = self.version, now
        if scheduler.leads:
            scheduler.lost(now)  # somebody else has it
        if self.holder == 0 or now - candidate.seen_at >= self._duration:
            self.holder = number
            self.version += 1
            self._clock.at(now, self._renewed, (candidate, sent))

    def _renewed(self, what: tuple[Candidate, int], now: int) -> None:
        """The answer: it holds the lease, by a request sent at `sent`."""
        candidate, sent = what
        scheduler = candidate.scheduler
        shell = scheduler.shell
        until = sent + self._deadline
        if not shell.alive:
            return
        if now < shell.paused_until:
            self._clock.at(shell.paused_until, self._renewed, what)
        elif until <= now:
            pass  # it comes too late to be worth anything
        elif scheduler.leads:
            scheduler.renewed(until, now)
        elif not scheduler.closing:
            scheduler.lost(now)
            scheduler.elected(until, now)
