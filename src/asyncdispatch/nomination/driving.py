"""The machine of decisions under an event loop: told what the watches tell and what the time is, and done as it says.

Nothing here decides. What the machine asks for becomes a task whose answer goes back to it; what it has settled goes to
the handles, the study and the metrics.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from asyncdispatch.errors import DispatchError, StaleContext
from asyncdispatch.kubernetes.reflector import Reflector
from asyncdispatch.kubernetes.shards import ShardSet
from asyncdispatch.nomination.actions import Action, Answer, Ask, Fate, Look, Note, Write
from asyncdispatch.nomination.decisions import NominationOutcome
from asyncdispatch.nomination.handles import NominationHandle
from asyncdispatch.nomination.hands import Hands, extra_of
from asyncdispatch.nomination.machine import Nominations
from asyncdispatch.nomination.observing import Observing
from asyncdispatch.nomination.states import Life, NominationState

if TYPE_CHECKING:
    from asyncdispatch.kubernetes.reflector import WatchEvent

__all__ = ["Driver"]

log = logging.getLogger("asyncdispatch.nomination")

ROUND = 15.0
"""Seconds between two looks for hints of ours that nobody keeps."""


class Driver:
    """Runs one machine, from `start` to `end`. The nominator that made it tells it what its owner wants."""

    pods: Reflector
    nodes: Reflector

    def __init__(
        self,
        machine: Nominations,
        hands: Hands,
        observing: Observing,
        wall: Callable[[], float],
    ) -> None:
        self.machine, self.hands, self.observing = machine, hands, observing
        self._wall = wall
        self._handles: dict[Life, NominationHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stack = AsyncExitStack()
        self._moved = asyncio.Event()
        self._synced = self._ending = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def now(self) -> float:
        """Seconds of the event loop's clock."""
        return self._loop.time()

    # -- from start to end --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns once nodes and Pods are known, and the hints that were found are kept."""
        self._loop = asyncio.get_running_loop()
        self.observing.clock = self._loop.time
        cluster, told = self.hands.cluster, self.hands.dispatcher
        try:
            self.nodes = cluster.reflector("v1", "Node", handlers=(self._see_node,), dispatcher=told)
            self.pods = cluster.reflector("v1", "Pod", handlers=(self._see_pod,), dispatcher=told)
            await self._stack.enter_async_context(self.nodes)
            await self._stack.enter_async_context(self.pods)
            await self.nodes.synced()
            await self.pods.synced()
        except BaseException:
            await self._stack.aclose()
            raise
        self._synced = True
        self.machine.unkept(self.now, self._wall())
        self.flush()
        self._spawn(self._look_around(), "rounds")
        if self.hands.shards is not None:
            self._spawn(self._follow_shards(self.hands.shards), "shards")

    async def end(self, seconds: float) -> None:
        """Take back all hints, within so many seconds, and stop. What can't be taken back is left."""
        self._ending = True
        try:
            self.machine.close("the nominator is closed", self.now)
            self.hands.call_off("the nominator is closed")
            self.flush()
            await self.drained(list(self.machine.lives.values()), seconds)
        finally:
            for life in list(self.machine.lives.values()):
                self.machine.leave(life.decision_id, "the nominator is closed", self.now)
            self.flush()
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._stack.aclose()

    def rollback(self, reason: str) -> None:
        """No new hint from now on, and all of ours are taken back (N10)."""
        self.machine.rollback(reason, self.now)
        self.hands.call_off(reason)
        self.flush()

    async def drained(self, lives: list[Life], seconds: float) -> None:
        """Wait until all have ended but what the scheduler has acted on; so many seconds at most."""
        waited = NominationState.ADOPTED
        deadline = self.now + seconds
        try:
            async with asyncio.timeout_at(deadline):
                while any(life.outcome is None and life.phase is not waited for life in lives):
                    await self._moved.wait()
        except TimeoutError:
            left = sum(life.outcome is None for life in lives)
            log.warning("%d hints could not be taken back within %.0f s", left, seconds, extra={"left": left})

    def so_far(self, life: Life) -> NominationOutcome:
        """How it ended; of one that has not, where it stands."""
        if life.outcome is not None:
            return life.outcome
        adopted = life.phase is NominationState.ADOPTED
        return NominationOutcome(
            decision=life.decision,
            state=life.phase,
            reason="the scheduler makes room for it there" if adopted else "it could not be taken back yet",
            written=life.written,
            hinted_seconds=life.hinted_seconds(self.now),
            elapsed_seconds=self.now - life.planned_at,
        )

    def handle(self, life: Life) -> NominationHandle:
        """The one handle of a decision while it lives; a new one each time once it has ended."""
        handle = self._handles.get(life)
        if handle is None:
            handle = NominationHandle(life)
            if life.outcome is None:
                self._handles[life] = handle
            handle._tell()
        return handle

    # -- the world ----------------------------------------------------------------------------------------------------

    def _see_pod(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self.observing.lost(event.object, self.now)
            self.machine.forget_pod(event.object, self.now)
        else:
            self.observing.saw(event.object, self.now)
            self.machine.observe_pod(event.object, self.now, self._wall() if self._synced else None)
        self.flush()

    def _see_node(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self.machine.forget_node(event.object["metadata"]["name"], self.now)
        else:
            self.machine.observe_node(event.object, self.now)
        self.flush()

    async def _look_around(self) -> None:
        """Now and then: hints of ours that nobody keeps, and whether it is worse with nominations than without."""
        while True:
            await asyncio.sleep(ROUND)
            self.machine.unkept(self.now, self._wall())
            verdict = self.observing.verdict(self.now)
            if verdict is not None:
                log.error("nomination is rolled back by itself: %s", verdict, extra={"reason": verdict})
                self.rollback(verdict)
            self.flush()

    async def _follow_shards(self, shards: ShardSet) -> None:
        """Leave the Pods of a shard that is lost to whoever has it now, and take up those of a new one."""
        known: frozenset[int] = frozenset()
        while True:
            try:
                known = await shards.changed(known)
            except StaleContext:
                return  # the set was left
            for life in list(self.machine.lives.values()):
                if not shards.owns(life.decision.ref):
                    self.machine.leave(life.decision_id, "its shard is another replica's now", self.now)
            self.machine.unkept(self.now, self._wall())
            self.flush()

    # -- doing what the machine asks for ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Do what the machine has asked for, and pass on what it has settled. After each step of it."""
        machine = self.machine
        if not self._synced:
            return  # nothing is planned yet
        moved = bool(machine.actions or machine.settled or machine.notes)
        while machine.actions:
            batch, machine.actions = machine.actions, []
            for action in batch:
                self._spawn(self._perform(action), f"{type(action).__name__} {action.number}")
        while machine.settled:
            ended, machine.settled = machine.settled, []
            for life in ended:
                self._settle(life)
        while machine.notes:
            notes, machine.notes = machine.notes, []
            for note in notes:
                self._told(note)
        if moved:
            self._moved.set()
            self._moved = asyncio.Event()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.machine.wake_at()
        if due < math.inf and not (self._ending and not self.machine.lives):
            self._timer = self._loop.call_at(max(due, self.now), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.machine.tick(self.now)
        self.flush()

    def _spawn(self, what: Any, name: str) -> None:
        task = self._loop.create_task(what, name=f"asyncdispatch-nominator {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _settle(self, life: Life) -> None:
        outcome = life.outcome
        assert outcome is not None
        handle = self._handles.pop(life, None)
        if handle is not None:
            handle._tell()
        self.observing.ended(life, self.now)
        log.info("decision %s ended: %s", life.decision_id, outcome, extra=extra_of(life.decision, outcome))

    def _told(self, note: Note) -> None:
        life = self.machine.lives.get(note.decision.decision_id)
        if life in self._handles:
            self._handles[life]._tell()
        self.hands.tell(note)

    async def _perform(self, action: Action) -> None:
        try:
            if isinstance(action, Look):
                await self._look(action)
            elif isinstance(action, Write):
                off = self.machine.off if action.node is not None else None
                answer = await self.hands.write(action) if off is None else Answer(Fate.NOT_SENT, reason=off)
                self.observing.wrote(action, answer)
                self.machine.answered(action.number, answer, self.now)
            elif isinstance(action, Ask):
                decision = await self.hands.ask(action)
                self.machine.recomputed(action.number, decision, self.now)
        except Exception as error:
            log.exception(
                "decision %s: %r failed", action.decision.decision_id, action, extra=extra_of(action.decision)
            )
            self._failed(action, error)
        self.flush()

    def _failed(self, action: Action, error: Exception) -> None:
        """Whatever it was: the machine must not wait for it for ever."""
        if isinstance(action, Write):
            self.machine.answered(action.number, Answer(Fate.UNKNOWN, reason=repr(error)), self.now)
        elif isinstance(action, Ask):
            self.machine.recomputed(action.number, None, self.now)
        else:
            self.machine.looked_in_vain(action.number, repr(error), self.now)

    async def _look(self, look: Look) -> None:
        try:
            if look.before_set:
                pod, node = await self.hands.read(look.decision, look.priority)
            else:
                pod, node = await self.hands.read_pod(look.decision), None
        except DispatchError as error:
            log.info("decision %s: could not look: %s", look.decision.decision_id, error, extra=extra_of(look.decision))
            self.machine.looked_in_vain(look.number, str(error), self.now)
            return
        objection = None
        if look.before_set:
            objection = self._too_old() or await self.hands.objection(pod, node)
        self.machine.looked(look.number, pod, node, self.now, objection=objection)

    def _too_old(self) -> str | None:
        stale = max(self.pods.stale_for, self.nodes.stale_for)
        return None if stale <= self.machine.policy.max_staleness else f"the view of the cluster is {stale:.0f} s old"
