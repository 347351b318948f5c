"""A world for elections: a server, a network that delays, loses and repeats, processes with clocks of their own.

Time here is true time. A process knows only its own clock, which has any offset and runs a bit fast or slow; it may
stall, crash and come back as another. Nothing of it is asyncio, so that thousands of hours pass in a second.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from asyncdispatch.kubernetes._election import (
    Answer,
    Election,
    Event,
    Kind,
    LeaseState,
    LeaseTiming,
    Record,
    Refusal,
    Refused,
    Request,
)

TIMING = LeaseTiming()
FAILED = Refused(Refusal.FAILED, "no answer")


class Server:
    """One Lease by name, with versions and uids as the API server has them."""

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self._versions = itertools.count(1)

    def handle(self, name: str, request: Request, identity: str) -> Answer:
        lease = self.leases.get(name)
        if request.kind is Kind.READ:
            return Record(lease) if lease is not None else Refused(Refusal.MISSING, "")
        if request.kind is Kind.CREATE:
            if lease is not None:
                return Refused(Refusal.CONFLICT, "taken")
            return self._put(name, f"uid{next(self._versions)}", identity)
        assert request.base is not None
        base = request.base.obj["metadata"]
        if lease is None or lease["metadata"] != base:
            return Refused(Refusal.CONFLICT, "another version")
        return self._put(name, base["uid"], "" if request.kind is Kind.RELEASE else identity)

    def listed(self) -> dict[str, Record]:
        return {name: Record(lease) for name, lease in self.leases.items()}

    def _put(self, name: str, uid: str, holder: str) -> Record:
        version = next(self._versions)
        spec: dict[str, Any] = {"leaseDurationSeconds": int(TIMING.lease_duration), "renewTime": version}
        if holder:
            spec["holderIdentity"] = holder
        self.leases[name] = {"metadata": {"uid": uid, "resourceVersion": version}, "spec": spec}
        return Record(self.leases[name])


class Machine:
    """What a process runs on: a clock of its own, that may stall, and crash."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rate = world.random.uniform(0.85, 1.2)
        self.offset = world.random.uniform(-1e6, 1e6)
        self.stalled_until = 0.0
        self.crashed = False

    def now(self) -> float:
        return self.offset + self.rate * self.world.now

    @property
    def runs(self) -> bool:
        return not self.crashed and self.world.now >= self.stalled_until


class Process:
    """Who takes part in one election, which is asked for what to send when its time has come."""

    def __init__(self, world: World, election: Election, lease: str = "lease", machine: Machine | None = None) -> None:
        self.world = world
        self.lease = lease
        self.election = election
        self.machine = machine or Machine(world)
        self.now = self.machine.now
        self.wants = machine is None
        self.due = 0.0
        self.inbox: list[tuple[Request, Answer]] = []
        self.terms: list[tuple[float, str]] = []

    def valid(self) -> bool:
        """It may write at this moment: by its own clock, whether or not it has looked at it."""
        election = self.election
        return not self.machine.crashed and election.state is LeaseState.LEADING and self.now() < election.valid_until

    def step(self) -> None:
        """One turn of its loop."""
        if not self.machine.runs:
            return
        election = self.election
        election.tick(self.now())
        inbox, self.inbox = self.inbox, []
        for request, answer in inbox:
            if request is election.flying:
                election.answered(answer, self.now())
                self._check()
        if self.wants:
            election.seek(self.now())
        wanted = election.next(self.now())
        self._check()
        if wanted is not None:
            self.world.send(self, wanted)
        wake = (election.wake_at() - self.machine.offset) / self.machine.rate
        if wake < float("inf"):
            self.due = due = max(wake, self.world.now + 1e-3)
            self.world.at(due, lambda: self.step() if self.due == due else None)

    def _check(self) -> None:
        changes, self.election.changes = self.election.changes, []
        for change in changes:
            self.terms.append((self.world.now, change.event.value))
            if change.event in (Event.ACQUIRED, Event.EXTENDED):
                rivals = [p for p in self.world.processes if p is not self and p.lease == self.lease and p.valid()]
                assert not rivals, (
                    self.election.identity,
                    [p.election.identity for p in rivals],
                    self.lease,
                    self.world.now,
                )

    def stall(self, seconds: float) -> None:
        self.machine.stalled_until = max(self.machine.stalled_until, self.world.now + seconds)
        self.world.at(self.machine.stalled_until, self.step)

    def release(self) -> None:
        self.wants = False
        if self.machine.runs:
            self.election.release(self.now())
            self._check()
            self.step()


class World:
    """Events in true time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.server = Server()
        self.processes: list[Process] = []
        self.trouble = 0.0
        """How likely a request meets each kind of trouble; 0: every request is answered soon."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def add(self, name: str, lease: str = "lease") -> Process:
        process = Process(self, Election(name, TIMING, self.random.random), lease)
        self.processes.append(process)
        self.at(self.now, process.step)
        return process

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until

    def send(self, process: Process, request: Request) -> None:
        """The request goes out: it lands never, once or twice, in time or late, and its answer comes or does not."""
        draw = self.random
        timeout = self.now + (request.deadline - request.sent) / process.machine.rate
        self.at(timeout, lambda: self._answer(process, request, FAILED))
        landings = 0 if self.bad() else 2 if self.bad() else 1
        for _ in range(landings):
            slow = self.bad()
            landing = self.now + draw.uniform(0, 14 if slow else 0.2)
            answers = not self.bad()
            self.at(landing, lambda answers=answers: self._land(process, request, answers))  # type: ignore[misc]

    def _land(self, process: Process, request: Request, answers: bool) -> None:
        answer = self.server.handle(process.lease, request, process.election.identity)
        if answers:
            back = self.now + self.random.uniform(0, 5 if self.bad() else 0.2)
            self.at(back, lambda: self._answer(process, request, answer))

    def _answer(self, process: Process, request: Request, answer: Answer) -> None:
        if request is process.election.flying and not any(request is known for known, _ in process.inbox):
            process.inbox.append((request, answer))
            process.step()

    def bad(self) -> bool:
        return self.random.random() < self.trouble
