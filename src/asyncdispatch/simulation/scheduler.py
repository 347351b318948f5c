"""A simulated scheduler: it watches Pods, decides where they go, and submits what has to be written for that.

What it does is drawn by lot, within what a scheduler does: contexts per Pod below that of its lease, binds that wait
for a claim, conditions of Pods that fit nowhere, evictions for the urgent, notes in bulk, reads that are shared, calls
taken back. It decides on what its watch shows, which is one cycle old.
"""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Any

from asyncdispatch._core.states import SECOND
from asyncdispatch._observing import Observing
from asyncdispatch.calls import ObjectRef
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.errors import RefusedError
from asyncdispatch.simulation.calls import Bind, Evict, Get, Make, Note, Status
from asyncdispatch.simulation.history import CallRecord, ContextRecord, History, State, Term
from asyncdispatch.simulation.scenario import Scenario
from asyncdispatch.simulation.server import Clock, Server
from asyncdispatch.simulation.shell import Shell

__all__ = ["Scheduler"]

PRIORITIES = (0, 0, 0, 0, 0, 1, 1_000, 1_000_000, -1_000)
FLOWS = (*["default"] * 14, "tenant", "audit")
KINDS = tuple((FLOWS[n % len(FLOWS)], 0 if n % 11 else PRIORITIES[n % len(PRIORITIES)]) for n in range(1 << 12))
"""Flow and priority of each note in turn."""
LEASE = "scheduler"
NOBODY: Any = None
"""Contexts are moved through the core alone, so nobody need be asked."""


@lru_cache
def _events(count: int) -> tuple[ObjectRef, ...]:
    return tuple(ObjectRef("v1", "Event", "ns", f"event-{n}") for n in range(count))


class Eyes(Observing):
    """The dispatcher's own way of showing an object with what was written to it and not seen yet (law L18)."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def see(self, ref: ObjectRef, state: State, now: int) -> State:
        core = self._shell.core
        _, writes = core.observe(ref, state[1], False, False, now)
        shown: State = self._show(core, ref, state, writes, now)
        return shown


class Scheduler:
    """One replica of a scheduler: a process with a dispatcher, until it crashes."""

    def __init__(
        self, shell: Shell, clock: Clock, server: Server, scenario: Scenario, history: History, random: Random
    ) -> None:
        self.shell = shell
        self.clock = clock
        self.server = server
        self.scenario = scenario
        self.history = history
        self.random = random
        self.closing = False
        """Nothing new is begun."""
        self.view: dict[str, tuple[ObjectRef, State]] = {}
        """Pods by name, as its watch shows them."""
        self.waiting: dict[str, ObjectRef] = {}
        """Pods to be placed, in turn, by uid."""
        self._eyes = Eyes(shell)
        self._asked: dict[str, CallRecord] = {}  # fresh reads of Pods under way, by name
        self._seen = 0
        self._due = 0
        self._nodes = [ObjectRef("v1", "Node", None, f"node-{n}") for n in range(scenario.nodes)]
        self._events = _events(scenario.events)
        self._noted = shell.number * 1_000_000_000
        self._cycle = round(scenario.cycle * SECOND)
        self._cycles = 0
        self._contexts: dict[str, tuple[SchedulingContext, ContextRecord]] = {}  # by Pod's name
        self._lease: tuple[SchedulingContext, ContextRecord] | None = None

    # -- leading ------------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """It may place Pods: it is alone, one of rivals, or its lease's context lives."""
        if self.scenario.replicas == 1 or self.scenario.rivals:
            return True
        return self._lease is not None and self._lease[0].ended is None

    def elected(self, valid_until: int, now: int) -> None:
        """A term begins: a context above those of all Pods, and a look at everything."""
        core = self.shell.core
        ref = ObjectRef("coordination.k8s.io/v1", "Lease", "ns", LEASE)
        context = core.begin(NOBODY, ref, None, None, valid_until / SECOND, (), now)
        self._lease = context, ContextRecord(context.epoch, now, valid_until)
        self.list_again()
        self.shell.after(now)

    def renewed(self, valid_until: int, now: int) -> None:
        """The lease's context goes on, unless it is over already."""
        if self._lease is None or self._lease[0].ended is not None:
            return
        context, record = self._lease
        try:
            self.shell.core.extend(context, valid_until / SECOND, now)
            record.until = valid_until
        except RefusedError:
            self.lost(now)
        self.shell.after(now)

    def lost(self, now: int) -> None:
        """The term is over, whoever noticed."""
        if self._lease is None:
            return
        context, record = self._lease
        self._lease = None
        if context.ended is None:
            record.ended = now
            self.shell.core.end(context, "the lease is lost", now)
        self._end_term(record)
        self.shell.after(now)

    def _end_term(self, record: ContextRecord) -> None:
        self.history.terms.append(Term(self.shell.number, record.began, record.over))

    def crashed(self, now: int) -> None:
        """The process is gone, with all that it knew. What it has sent may land yet."""
        self.shell.alive = False
        self.history.crashed[self.shell.number] = now
        if self._lease is not None:
            self._lease[1].ended = now
            self._end_term(self._lease[1])

    def ended(self) -> None:
        """The run is over: close the books."""
        if self._lease is not None:
            self._end_term(self._lease[1])
            self._lease = None

    # -- the cycle ----------------------------------------------------------------------------------------------------

    def start(self, now: int) -> None:
        self.list_again()
        self.clock.at(now + int(self._cycle * self.random.random()), self._turn)

    def _turn(self, _: Any, now: int) -> None:
        shell = self.shell
        if not shell.alive:
            return
        if now < shell.paused_until:
            self.clock.at(shell.paused_until, self._turn)
            return
        self._watch(now)
        self._hear(now)
        if not self.closing:
            self._cycles += 1
            if self.leads:
                self._place(now)
            if not self._cycles & 15:
                self._note(now)
            self._second_thoughts(now)
        shell.after(now)
        if not self.closing or shell.core.admission.depth:
            self.clock.at(now + self._cycle, self._turn)

    def list_again(self) -> None:
        """Everything anew, as after a start or a lost watch."""
        self.view.clear()
        self.waiting.clear()
        self._seen = self._due = len(self.server.changes)
        for ref, state in self.server.pods():
            self.view[ref.name] = ref, state
            if "node" not in state[2]:
                self._queue(ref)

    def _watch(self, now: int) -> None:
        """What has changed up to the cycle before."""
        changes, core = self.server.changes, self.shell.core
        for ref, state in changes[self._seen : self._due]:
            if state is None:
                if ref.kind == "Node":
                    core.forget(ref, "the node is gone", now)
                    continue
                core.forget(ref, "deleted", now)
                self._end(ref, now)
                known = self.view.get(ref.name)
                if known is not None and known[0].uid == ref.uid:
                    del self.view[ref.name]
                continue
            core.observe(ref, state[1], False, False, now)
            known = self.view.get(ref.name)
            if known is not None and known[0].uid == ref.uid and known[1][1] > state[1]:
                continue  # a read has shown more
            self.view[ref.name] = ref, state
            if "node" not in state[2]:
                self._queue(ref)  # also for a change of something else, as schedulers do
        self._seen, self._due = self._due, len(changes)

    def _end(self, ref: ObjectRef, now: int) -> None:
        """A Pod is gone, and with it what was decided about it."""
        found = self._contexts.get(ref.name)
        if found is not None and found[0].ref.uid == ref.uid:
            del self._contexts[ref.name]
            found[1].ended = now

    def _hear(self, now: int) -> None:
        """What became of its calls: who is not bound is placed again, and who is in doubt is read."""
        shell = self.shell
        told, shell.told = shell.told, []
        for record in told:
            ref = record.call.target
            if record.call.verb == "get":
                self._read(ref, record)
            elif record.how != "succeeded":
                self._queue(ref)
        wanted, shell.wanted = shell.wanted, []
        for ref in wanted:
            if ref.name in self._asked:
                continue
            read = shell.submit(Get(target=ref, ordered=True), now, heard=True)
            if read is None:
                shell.wanted.append(ref)
            else:
                self._asked[ref.name] = read

    def _read(self, ref: ObjectRef, record: CallRecord) -> None:
        """A read has ended: that is how it is, and own writes that it shows are shown by nothing else. If it was asked
        for by the core, and came to nothing, it is made again."""
        asked = self._asked.get(ref.name) is record
        if asked:
            del self._asked[ref.name]
        if record.how == "succeeded":
            meta = record.value["metadata"]
            state = (meta["uid"], int(meta["resourceVersion"]), record.value["content"])
            known = self.view.get(ref.name)
            if known is not None and known[0].uid == state[0] and known[1][1] < state[1]:
                self.view[ref.name] = known[0], state
        elif asked and record.how != "failed" and ref.name in self.view:
            self.shell.wanted.append(ref)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _place(self, now: int) -> None:
        for _ in range(min(len(self.waiting), 16)):
            ref = self.waiting.pop(next(iter(self.waiting)))
            known = self.view.get(ref.name)
            if known is None or known[0].uid != ref.uid:
                continue
            if ref.name in self._asked:
                self._queue(ref)
                continue
            state = self._eyes.see(ref, known[1], now)
            if "node" in state[2]:
                continue
            self.history.decisions.append((self.shell.number, ref.uid or "", now))
            if not self._decide(ref, state, now):
                self._queue(ref)
                break

    def _queue(self, ref: ObjectRef) -> None:
        self.waiting[ref.uid or ""] = ref

    def _decide(self, ref: ObjectRef, state: State, now: int) -> bool:
        """One scheduling cycle of a Pod. False if there was no room for it."""
        scenario, random = self.scenario, self.random.random
        claimed = random() < scenario.claims
        found = self._begin(ref, state, ("claim",) if claimed else (), now)
        if found is None:
            return True
        context, record = found
        fields: dict[str, Any] = {"target": ref, "context": context}
        if (priority := PRIORITIES[int(random() * len(PRIORITIES))]) != 0:
            fields["priority"] = priority
        if random() < scenario.hurried:
            fields["timeout"] = 0.2 + 3.0 * random()
        if random() < scenario.version_fence:
            fields["version"] = str(state[1])
        if random() < scenario.unschedulable:
            self._refuse(ref, fields, record, now)
            return True
        if claimed:
            claim = ObjectRef("v1", "PersistentVolumeClaim", "ns", f"claim-{ref.uid}")
            make = Make(f"claim of {ref.uid}", target=claim, context=context, prerequisite="claim")
            if self.shell.submit(make, now, record) is None:
                return False
        node = self._nodes[int(random() * scenario.nodes)]
        bind = Bind(node.name, depends_on=(node,), **fields)
        if self.shell.submit(bind, now, record, heard=True) is None:
            return False
        if random() < scenario.reads:
            for _ in range(2):
                self.shell.submit(Get(target=ref, ordered=random() < 0.5), now, heard=True)
        return True

    def _begin(
        self, ref: ObjectRef, state: State, requires: tuple[str, ...], now: int
    ) -> tuple[SchedulingContext, ContextRecord] | None:
        """A context for one Pod, below the lease's; its older one ends. None if the Pod, or the lease, is gone."""
        core = self.shell.core
        parent, above = self._lease if self._lease is not None else (None, None)
        try:
            context = core.begin(NOBODY, ref, state[1], parent, None, requires, now)
        except RefusedError:
            return None
        older = self._contexts.get(ref.name)
        if older is not None:
            older[1].ended = now
        record = ContextRecord(context.epoch, now, parent=above)
        self._contexts[ref.name] = context, record
        return context, record

    def _refuse(self, ref: ObjectRef, fields: dict[str, Any], record: ContextRecord, now: int) -> None:
        """It fits nowhere: say so, twice with other words, maybe evict somebody for it, and try again later."""
        random = self.random.random
        self._noted += 2
        conditions: dict[str, Any] = {"PodScheduled": self._noted}
        if random() < self.scenario.preemptions * 5 and self.view:
            names = list(self.view)
            victim, state = self.view[names[int(random() * len(names))]]
            if "node" in state[2]:
                self.shell.submit(Evict(target=victim, sheddable=True) if random() < 0.3 else Evict(target=victim), now)
                conditions["nominated"] = self._noted
        self.shell.submit(Status(conditions, **fields), now, record)
        if random() < 0.5:
            self.shell.submit(Status({"Explained": self._noted + 1}, **fields), now, record)
        self._queue(ref)

    def _note(self, now: int) -> None:
        random, submit, events = self.random.random, self.shell.submit, self._events
        count, before = len(events), self._noted
        for number in range(before + 1, before + 1 + int(self.scenario.notes * 2 * random())):
            self._noted = number
            flow, priority = KINDS[number % len(KINDS)]
            if submit(Note(number, events[int(random() * count)], flow, priority), now) is None:
                return

    def _second_thoughts(self, now: int) -> None:
        """Now and then a call is taken back: one of the newest, if it is its own."""
        calls = self.history.calls
        if calls and self.random.random() < self.scenario.cancels * 10:
            record = calls[-1 - int(self.random.random() * min(len(calls), 64))]
            if record.replica == self.shell.number:
                self.shell.cancel(record, now)
