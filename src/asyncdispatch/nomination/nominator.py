"""The nominator: the machine of decisions under an event loop, on a dispatcher, a cluster and its reflectors.

Everything here decides nothing. It tells the machine the time and what the watches tell, does what the machine asks
for, and passes on what it has settled. Its only write is `PodNomination`, and Events for people.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry

from asyncdispatch.dispatcher import Dispatcher
from asyncdispatch.errors import ConfigurationError, DispatchError, StaleContext
from asyncdispatch.kubernetes.cluster import Cluster
from asyncdispatch.kubernetes.reflector import Reflector
from asyncdispatch.kubernetes.shards import ShardSet
from asyncdispatch.nomination.actions import Action, Answer, Ask, Fate, Look, Note, Write
from asyncdispatch.nomination.decisions import Decision, NominationOutcome, NominationPolicy
from asyncdispatch.nomination.handles import NominationHandle
from asyncdispatch.nomination.hands import Hands, Precheck, Recompute, extra_of
from asyncdispatch.nomination.machine import Nominations
from asyncdispatch.nomination.observing import Observing
from asyncdispatch.nomination.states import Life, NominationState
from asyncdispatch.nomination.study import NominationReport, RollbackRule

if TYPE_CHECKING:
    from types import TracebackType

    from asyncdispatch.kubernetes.reflector import WatchEvent

__all__ = ["Nominator"]

log = logging.getLogger("asyncdispatch.nomination")

Json = dict[str, Any]

ROUND = 15.0
"""Seconds between two looks for hints of ours that nobody keeps."""
REPORTER = "asyncdispatch-nominator"


class Nominator:
    """Writes hints, watches what becomes of them, and takes them back: an async context manager, for one event loop.

    `precheck(pod, node)` is your fast look, at a fresh Pod and node, whether it still makes sense. `recompute(pod)` is
    your fresh calculation where others have written in between: a new `Decision` for that Pod, or None. Both may be
    async; an error of the first counts as no, of the second as None.

    `rule` says when it is rolled back by itself, since Pods outside of the rollout fare better; None: never. With a
    `registry` of prometheus_client it has metrics, by `cluster_name`.

    With `shards`, which are entered and joined before, this replica keeps the hints of its own Pods only. `name` is
    what Events call it. Leaving takes back all hints, within the policy's `drain_timeout`; what can't be taken back by
    then is found by its annotations at the next start. Raises `ConfigurationError` for what can't be meant.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        cluster: Cluster,
        policy: NominationPolicy = NominationPolicy(),
        precheck: Precheck | None = None,
        recompute: Recompute | None = None,
        *,
        shards: ShardSet | None = None,
        name: str = REPORTER,
        flow: str = "nomination",
        rule: RollbackRule | None = RollbackRule(),
        registry: CollectorRegistry | None = None,
        cluster_name: str = "default",
        wall: Callable[[], float] = time.time,
    ) -> None:
        for label, value, kind in (("dispatcher", dispatcher, Dispatcher), ("cluster", cluster, Cluster)):
            if not isinstance(value, kind):
                raise ConfigurationError(label, value, f"must be a {kind.__name__}")
        if not isinstance(policy, NominationPolicy):
            raise ConfigurationError("policy", policy, "must be a NominationPolicy")
        if shards is not None and not isinstance(shards, ShardSet):
            raise ConfigurationError("shards", shards, "must be a ShardSet, or None")
        if rule is not None and not isinstance(rule, RollbackRule):
            raise ConfigurationError("rule", rule, "must be a RollbackRule, or None")
        for label, hook in (("precheck", precheck), ("recompute", recompute)):
            if hook is not None and not callable(hook):
                raise ConfigurationError(label, hook, "must be a function, or None")
        self.dispatcher, self.cluster, self.policy = dispatcher, cluster, policy
        self._shards, self._wall = shards, wall
        self._hands = Hands(
            dispatcher=dispatcher,
            cluster=cluster,
            policy=policy,
            precheck=precheck,
            recompute=recompute,
            shards=shards,
            name=name,
            flow=flow,
            wall=wall,
        )
        self._machine = Nominations(policy, recomputes=recompute is not None, owns=self._owns)
        self._observing = Observing(self._machine, rule, registry, cluster_name, dispatcher.config.levels)
        self._handles: dict[Life, NominationHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stack = AsyncExitStack()
        self._moved = asyncio.Event()
        self._synced = False
        self._state = "not entered yet: use `async with Nominator(…) as nominator`"
        self._loop: asyncio.AbstractEventLoop
        self.pods: Reflector
        self.nodes: Reflector

    # -- entering and leaving -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if hasattr(self, "_loop"):
            raise ConfigurationError("nominator", self._state, "is entered once: make another")
        self._loop = asyncio.get_running_loop()
        try:
            told = self.dispatcher
            self.nodes = self.cluster.reflector("v1", "Node", handlers=(self._see_node,), dispatcher=told)
            self.pods = self.cluster.reflector("v1", "Pod", handlers=(self._see_pod,), dispatcher=told)
            await self._stack.enter_async_context(self.nodes)
            await self._stack.enter_async_context(self.pods)
            await self.nodes.synced()
            await self.pods.synced()
        except BaseException:
            await self._stack.aclose()
            raise
        self._synced, self._state = True, ""
        self._machine.unkept(self._now, self._wall())
        self._flush()
        self._spawn(self._look_around(), "rounds")
        if self._shards is not None:
            self._spawn(self._follow_shards(self._shards), "shards")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "closed"
        try:
            self._machine.close("the nominator is closed", self._now)
            self._flush()
            await self._drained(list(self._machine.lives.values()), self.policy.drain_timeout)
        finally:
            for life in list(self._machine.lives.values()):
                self._machine.leave(life.decision_id, "the nominator is closed", self._now)
            self._flush()
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._stack.aclose()

    @property
    def _now(self) -> float:
        return self._loop.time()

    def _check(self) -> None:
        if self._state:
            raise ConfigurationError("nominator", self._state, "is not running")

    # -- the owner's side ---------------------------------------------------------------------------------------------

    async def nominate(self, decision: Decision) -> NominationHandle:
        """Take in a decision; what becomes of it is told by the handle. Nothing is written before its guards agree.

        The same decision again gives the same handle. Raises `ConfigurationError` for a TTL beyond the policy's, and
        for an id that was used for something else.
        """
        self._check()
        self._checked(decision)
        known = self._machine.lives.get(decision.decision_id) or self._machine.ended.get(decision.decision_id)
        if known is not None:
            replaced = known.decision_id != decision.decision_id  # by a fresh calculation
            if not replaced and known.decision.content() != decision.content():
                remedy = f"was used for {known.decision.ref} to {known.node}: give each decision its own id"
                raise ConfigurationError("decision_id", decision.decision_id, remedy)
            return self._handle(known)
        if self._shards is not None and not self._shards.owns(decision.ref):
            life = self._machine.refuse(decision, "its shard is another replica's", self._now)
        else:
            life = self._machine.plan(decision, self._now)
        handle = self._handle(life)
        self._flush()
        return handle

    def _checked(self, decision: Decision) -> None:
        if not isinstance(decision, Decision):
            raise ConfigurationError("decision", decision, "must be a Decision")
        if decision.ttl > self.policy.max_ttl:
            raise ConfigurationError("ttl", decision.ttl, f"must not be above the policy's {self.policy.max_ttl:g} s")

    async def confirm(self, decision_id: str) -> bool:
        """Does the decision still stand? Ask before you lift a gate: confirm, then ungate.

        By a fresh read of Pod and node, and `precheck`. False also if it is not written yet. What does not stand any
        more is taken back. Raises the error if Pod or node can't be read (then don't), `ConfigurationError` for an id
        that is not known.
        """
        return await self.why_not(decision_id) is None

    async def why_not(self, decision_id: str) -> str | None:
        """As `confirm`: None if the decision stands, else why it does not."""
        self._check()
        life = self._life(decision_id)
        pod, node = await self._hands.read(life.decision)
        objection = await self._hands.objection(pod, node)
        why = self._machine.confirmed(decision_id, pod, node, self._now, agreed=objection is None)
        self._flush()
        return why

    async def withdraw(self, decision_id: str, reason: str = "withdrawn") -> NominationOutcome:
        """Take a hint back, and wait for how it ended: perhaps otherwise. `ConfigurationError` for an unknown id.

        Cancelling the wait does not stop it. A hint that the scheduler has acted on is not touched until that is over.
        """
        self._check()
        life = self._life(decision_id)
        if life.decision_id in self._machine.lives:
            self._machine.withdraw(life.decision_id, self._now, reason)
        handle = self._handle(life)
        self._flush()
        return await handle.outcome()

    async def rollback(self, reason: str) -> list[NominationOutcome]:
        """The kill switch: no new hint from now on, and all of ours are taken back; values of others stay.

        Waits for that, `drain_timeout` seconds at most; returns what has ended by then. `resume` turns it on again.
        """
        self._check()
        log.warning("nomination is rolled back: %s", reason, extra={"reason": reason})
        lives = list(self._machine.lives.values())
        self._machine.rollback(reason, self._now)
        self._flush()
        await self._drained(lives, self.policy.drain_timeout)
        return [life.outcome for life in lives if life.outcome is not None]

    def resume(self, reason: str) -> None:
        """After a rollback: nominations are welcome again."""
        self._check()
        log.warning("nomination is resumed: %s", reason, extra={"reason": reason})
        self._machine.resume()
        self._observing.begin_anew(self._now)

    def report(self) -> NominationReport:
        """Does it help? What was nominated and what came of it, beside the Pods outside of the rollout. `print` it."""
        return self._observing.report(self._loop.time() if hasattr(self, "_loop") else 0.0)

    def reorder(self, order_version: str) -> None:
        """Your queue has this order now: decisions taken in another one are stale, and taken back."""
        self._check()
        self._machine.reorder(order_version, self._now)
        self._flush()

    def handle(self, decision_id: str) -> NominationHandle | None:
        """The handle of a decision that is known: also of one that was found by its annotations after a restart."""
        life = self._machine.lives.get(decision_id) or self._machine.ended.get(decision_id)
        return None if life is None else self._handle(life)

    @property
    def live(self) -> list[NominationHandle]:
        """Those without an outcome."""
        return [self._handle(life) for life in self._machine.lives.values()]

    @property
    def off(self) -> str | None:
        """Why nothing is nominated, after a rollback; None if it is."""
        return self._machine.off

    def __repr__(self) -> str:
        state = self._state or (f"off: {self.off}" if self.off else "on")
        return f"<Nominator {state}, {len(self._machine.lives)} live>"

    def _life(self, decision_id: str) -> Life:
        life = self._machine.lives.get(decision_id) or self._machine.ended.get(decision_id)
        if life is None:
            raise ConfigurationError("decision_id", decision_id, "is not known: it was never taken in, or long ago")
        return life

    def _handle(self, life: Life) -> NominationHandle:
        handle = self._handles.get(life)
        if handle is None:
            handle = NominationHandle(life)
            if life.outcome is None:
                self._handles[life] = handle
            handle._tell()
        return handle

    async def _drained(self, lives: list[Life], seconds: float) -> None:
        """Wait until all have ended but what the scheduler has acted on."""
        waited = NominationState.ADOPTED
        deadline = self._now + seconds
        try:
            async with asyncio.timeout_at(deadline):
                while any(life.outcome is None and life.phase is not waited for life in lives):
                    await self._moved.wait()
        except TimeoutError:
            left = sum(life.outcome is None for life in lives)
            log.warning("%d hints could not be taken back within %.0f s", left, seconds, extra={"left": left})

    # -- the world ----------------------------------------------------------------------------------------------------

    def _see_pod(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._observing.lost(event.object, self._now)
            self._machine.forget_pod(event.object, self._now)
        else:
            self._observing.saw(event.object, self._now)
            self._machine.observe_pod(event.object, self._now, self._wall() if self._synced else None)
        self._flush()

    def _see_node(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._machine.forget_node(event.object["metadata"]["name"], self._now)
        else:
            self._machine.observe_node(event.object, self._now)
        self._flush()

    def _owns(self, pod: Json) -> bool:
        return self._shards is None or self._shards.owns(pod)

    async def _look_around(self) -> None:
        """Now and then: hints of ours that nobody keeps, and whether it is worse with nominations than without."""
        while True:
            await asyncio.sleep(ROUND)
            self._machine.unkept(self._now, self._wall())
            verdict = self._observing.verdict(self._now)
            if verdict is not None:
                log.error("nomination is rolled back by itself: %s", verdict, extra={"reason": verdict})
                self._machine.rollback(verdict, self._now)
            self._flush()

    async def _follow_shards(self, shards: ShardSet) -> None:
        """Leave the Pods of a shard that is lost to whoever has it now, and take up those of a new one."""
        known: frozenset[int] = frozenset()
        while True:
            try:
                known = await shards.changed(known)
            except StaleContext:
                return  # the set was left
            for life in list(self._machine.lives.values()):
                if not shards.owns(life.decision.ref):
                    self._machine.leave(life.decision_id, "its shard is another replica's now", self._now)
            self._machine.unkept(self._now, self._wall())
            self._flush()

    # -- doing what the machine asks for ------------------------------------------------------------------------------

    def _flush(self) -> None:
        machine = self._machine
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
        due = self._machine.wake_at()
        if due < math.inf and not (self._state == "closed" and not self._machine.lives):
            self._timer = self._loop.call_at(max(due, self._now), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._machine.tick(self._now)
        self._flush()

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
        self._observing.ended(life, self._now)
        log.info("decision %s ended: %s", life.decision_id, outcome, extra=extra_of(life.decision, outcome))

    def _told(self, note: Note) -> None:
        life = self._machine.lives.get(note.decision.decision_id)
        if life in self._handles:
            self._handles[life]._tell()
        self._hands.tell(note)

    async def _perform(self, action: Action) -> None:
        try:
            if isinstance(action, Look):
                await self._look(action)
            elif isinstance(action, Write):
                off = self._machine.off if action.node is not None else None
                answer = await self._hands.write(action) if off is None else Answer(Fate.NOT_SENT, reason=off)
                self._observing.wrote(action, answer)
                self._machine.answered(action.number, answer, self._now)
            elif isinstance(action, Ask):
                decision = await self._hands.ask(action)
                if decision is not None:
                    self._checked(decision)
                self._machine.recomputed(action.number, decision, self._now)
        except Exception as error:
            log.exception(
                "decision %s: %r failed", action.decision.decision_id, action, extra=extra_of(action.decision)
            )
            self._failed(action, error)
        self._flush()

    def _failed(self, action: Action, error: Exception) -> None:
        """Whatever it was: the machine must not wait for it for ever."""
        if isinstance(action, Write):
            self._machine.answered(action.number, Answer(Fate.UNKNOWN, reason=repr(error)), self._now)
        elif isinstance(action, Ask):
            self._machine.recomputed(action.number, None, self._now)
        else:
            self._machine.looked_in_vain(action.number, repr(error), self._now)

    async def _look(self, look: Look) -> None:
        try:
            pod, node = await self._hands.read(look.decision)
        except DispatchError as error:
            log.info("decision %s: could not look: %s", look.decision.decision_id, error, extra=extra_of(look.decision))
            self._machine.looked_in_vain(look.number, str(error), self._now)
            return
        objection = None
        if look.before_set:
            objection = self._too_old() or await self._hands.objection(pod, node)
        self._machine.looked(look.number, pod, node, self._now, objection=objection)

    def _too_old(self) -> str | None:
        stale = max(self.pods.stale_for, self.nodes.stale_for)
        return None if stale <= self.policy.max_staleness else f"the view of the cluster is {stale:.0f} s old"
