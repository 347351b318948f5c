"""One run: a cluster, an API server and schedulers in virtual time, from one seed to its one history."""

from __future__ import annotations

import heapq
from random import Random
from typing import Any

from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import SECOND
from asyncdispatch.calls import ObjectRef
from asyncdispatch.simulation.calls import Birth, Death, SimulatedCall
from asyncdispatch.simulation.history import History, RequestRecord
from asyncdispatch.simulation.leases import Election
from asyncdispatch.simulation.scenario import Scenario
from asyncdispatch.simulation.scheduler import Scheduler
from asyncdispatch.simulation.server import Clock, Server
from asyncdispatch.simulation.shell import Shell

__all__ = ["Simulation"]

LONGEST = 100_000 * SECOND
"""No run lasts longer: whatever waits has a time-out."""


class Simulation:
    """One run of a scenario. `run()` plays it to its end; then `history` tells all that happened.

    `server` and `core` may be subclasses with a fault in them: that is how the checks are checked. Raises
    `InvariantError` if a core contradicts itself.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        server: type[Server] = Server,
        core: type[DispatchCore] = DispatchCore,
    ) -> None:
        self.scenario = scenario
        self.seed = seed
        self.random = Random(f"{scenario.name} {seed}")
        self.history = History()
        self.history.began = 1_000 * SECOND
        self.clock = Clock()
        self.clock.now = 1_000 * SECOND
        self.server = server(self.clock, scenario, self.history, self.random)
        self.schedulers: list[Scheduler] = []
        self._shells: list[Shell] = []
        self._core = core
        self._election = Election(self.clock, self.server, scenario)
        self._numbers = 0
        self._uids = 0
        self._free = [f"pod-{n}" for n in range(scenario.pods)]
        self._ends: list[tuple[int, int, ObjectRef]] = []
        self.closing = False

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self) -> History:
        """Until the scenario's number of calls is accepted and each has its outcome."""
        clock, history, wanted = self.clock, self.history, self.scenario.calls
        calls, heap, pop = history.calls, clock.heap, heapq.heappop
        self._begin(clock.now)
        while len(calls) < wanted:
            clock.now, _, act, what = pop(heap)
            act(what, clock.now)
        self._close()
        while heap and not self._quiet():
            clock.now, _, act, what = pop(heap)
            act(what, clock.now)
        history.ended = clock.now
        heap.clear()  # what would happen yet names who waits for it: else it would all be left to the garbage collector
        for scheduler in self.schedulers:
            scheduler.ended()
            if scheduler.shell.alive and self.scenario.check_every:
                scheduler.shell.check(clock.now)
        return history

    def _begin(self, now: int) -> None:
        scenario = self.scenario
        for _ in range(scenario.replicas):
            self.start_replica(now)
        self.clock.at(now, self._wave)
        for name, (every, lasts) in scenario.troubles.items():
            self._sometimes(every, self._trouble, (name, lasts))
        for every, act in (
            (scenario.node_loss_every, self._lose_node),
            (scenario.crash_every, self._crash),
            (scenario.pause_every, self._pause),
        ):
            if every:
                self._sometimes(every, act)

    def _close(self) -> None:
        """Nothing new is begun: what is there runs to its end, is drained, or is closed (law L15)."""
        self.closing = True
        for scheduler in self.schedulers:
            scheduler.closing = True
            scheduler.shell.close(int(self.random.random() * 3), self.clock.now)

    def _quiet(self) -> bool:
        """Every call of those that live has its outcome."""
        return not any(shell.busy for shell in self._shells)

    def _sometimes(self, every: float, act: Any, what: Any = None) -> None:
        self.clock.at(self.clock.now + int(self.random.expovariate(1 / every) * SECOND), act, what)

    # -- replicas -----------------------------------------------------------------------------------------------------

    def start_replica(self, now: int) -> None:
        self._numbers += 1
        parts = self.clock, self.server, self.scenario, self.history, self.random
        shell = Shell(self._numbers, *parts, self._core)
        scheduler = Scheduler(shell, *parts)
        self._shells.append(shell)
        self.schedulers.append(scheduler)
        scheduler.start(now)
        if self.scenario.replicas > 1 and not self.scenario.rivals:
            self._election.join(scheduler, now)

    def _any_replica(self) -> Scheduler:
        return self.schedulers[int(self.random.random() * len(self.schedulers))]

    def _crash(self, _: Any, now: int) -> None:
        if self.closing:
            return
        self.history.faults["crash"] += 1
        scheduler = self._any_replica()
        scheduler.crashed(now)
        self.schedulers.remove(scheduler)
        self._shells.remove(scheduler.shell)
        self.clock.at(now + SECOND, self._restart)
        self._sometimes(self.scenario.crash_every, self._crash)

    def _restart(self, _: Any, now: int) -> None:
        self.start_replica(now)
        self.schedulers[-1].closing = self.closing

    def _pause(self, _: Any, now: int) -> None:
        if self.closing:
            return
        self.history.faults["pause"] += 1
        shell = self._any_replica().shell
        shell.paused_until = now + int(self.scenario.pause * 2 * self.random.random() * SECOND)
        self.history.stalls.append((shell.number, now, shell.paused_until))
        self._sometimes(self.scenario.pause_every, self._pause)

    # -- the server's troubles ----------------------------------------------------------------------------------------

    def _trouble(self, what: tuple[str, float], now: int) -> None:
        name, lasts = what
        if self.closing:
            return
        if not self.server.trouble:
            self.history.faults[name] += 1
            self.server.trouble = name
            self.server.trouble_until = now + int(lasts * 2 * self.random.random() * SECOND)
            self.clock.at(self.server.trouble_until, self._trouble_over)
        self._sometimes(self.scenario.troubles[name][0], self._trouble, what)

    def _trouble_over(self, _: Any, now: int) -> None:
        self.server.trouble = ""

    # -- the cluster --------------------------------------------------------------------------------------------------

    def _wave(self, _: Any, now: int) -> None:
        """Some Pods are created, and some have come to their end."""
        if self.closing:
            return
        scenario, random = self.scenario, self.random
        while self._ends and self._ends[0][0] <= now:
            ref = heapq.heappop(self._ends)[2]
            self._outside(Death(target=ref), now)
            self._free.append(ref.name)
        for _ in range(min(len(self._free), int(scenario.wave * random.random() + 1))):
            name = self._free.pop(int(random.random() * len(self._free)))
            self._uids += 1
            ref = ObjectRef("v1", "Pod", "ns", name, f"uid-{self._uids}")
            self._outside(Birth(target=ref), now)
            end = now + int(random.expovariate(1 / scenario.lifetime) * SECOND)
            heapq.heappush(self._ends, (end, self._uids, ref))
        self.clock.at(now + int(scenario.wave_every * SECOND), self._wave)

    def _outside(self, call: SimulatedCall, now: int) -> None:
        """Somebody else writes, past all dispatchers."""
        request = RequestRecord(call, None, now, now)
        request.ended = now
        answer = self.server.land(request, now)
        request.error = getattr(answer, "name", "")

    def _lose_node(self, _: Any, now: int) -> None:
        if self.closing:
            return
        self.history.faults["node lost"] += 1
        node = f"node-{int(self.random.random() * self.scenario.nodes)}"
        self.server.changes.append((ObjectRef("v1", "Node", None, node), None))
        self._sometimes(self.scenario.node_loss_every, self._lose_node)
