"""The nominator: what its owner sees of it. The machine of decisions decides, the driver runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry

from asyncdispatch.dispatcher import Dispatcher
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.cluster import Cluster
from asyncdispatch.kubernetes.reflector import Reflector
from asyncdispatch.kubernetes.shards import ShardSet
from asyncdispatch.nomination.decisions import (
    Decision,
    NominationOutcome,
    NominationPolicy,
    checked_cause,
    checked_reporter,
)
from asyncdispatch.nomination.driving import Driver
from asyncdispatch.nomination.handles import NominationHandle
from asyncdispatch.nomination.hands import Hands, Precheck, Recompute, extra_of
from asyncdispatch.nomination.machine import Nominations
from asyncdispatch.nomination.observing import Observing
from asyncdispatch.nomination.scraped import FILTER_SECONDS, Page
from asyncdispatch.nomination.states import Life
from asyncdispatch.nomination.study import NominationReport, RollbackRule

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Nominator"]

log = logging.getLogger("asyncdispatch.nomination")

Json = dict[str, Any]

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
        for label, name_of in (("flow", flow), ("cluster_name", cluster_name)):
            if not isinstance(name_of, str) or not name_of:
                raise ConfigurationError(label, name_of, "must be a string that is not empty")
        if not callable(wall):
            raise ConfigurationError("wall", wall, "must be a function that gives the seconds of the epoch")
        checked_reporter(name)
        self.dispatcher, self.cluster, self.policy = dispatcher, cluster, policy
        self._shards = shards
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
        self._driver = Driver(self._machine, self._hands, self._observing, wall)
        self._state = "not entered yet: use `async with Nominator(…) as nominator`"
        self._entered = False
        self.pods: Reflector
        self.nodes: Reflector

    # -- entering and leaving -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ConfigurationError("nominator", self._state, "is entered once: make another")
        self._entered = True
        await self._driver.start()
        self.pods, self.nodes = self._driver.pods, self._driver.nodes
        self._state = ""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "closed"
        await self._driver.end(self.policy.drain_timeout)

    @property
    def _now(self) -> float:
        return self._driver.now

    def _owns(self, pod: Json) -> bool:
        return self._shards is None or self._shards.owns(pod)

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
        self.policy.check(decision)
        known = self._machine.lives.get(decision.decision_id) or self._machine.ended.get(decision.decision_id)
        if known is not None:
            replaced = known.decision_id != decision.decision_id  # by a fresh calculation
            if not replaced and known.decision.content() != decision.content():
                remedy = f"was used for {known.decision.ref} to {known.node}: give each decision its own id"
                raise ConfigurationError("decision_id", decision.decision_id, remedy)
            return self._driver.handle(known)
        if self._shards is not None and not self._shards.owns(decision.ref):
            life = self._machine.refuse(decision, "its shard is another replica's", self._now)
        else:
            life = self._machine.plan(decision, self._now)
        handle = self._driver.handle(life)
        self._driver.flush()
        return handle

    async def confirm(self, decision_id: str) -> bool:
        """Does the decision still stand? Ask before you lift a gate: confirm, then ungate.

        Waits until it is written or has ended, for `call_timeout` at most: after that it is False, too. Then by a fresh
        read of Pod and node, and `precheck`. What does not stand any more is taken back. Raises the error if Pod or
        node can't be read (then don't), `ConfigurationError` for an id that is not known. Cancelling it leaves the
        decision.
        """
        return await self.why_not(decision_id) is None

    async def why_not(self, decision_id: str) -> str | None:
        """As `confirm`: None if the decision stands, else why it does not."""
        self._check()
        life = self._life(decision_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.policy.call_timeout):
                await self._driver.handle(life).written()
        pod, node = (None, None) if life.outcome is not None else await self._hands.read(life.decision, life.priority)
        objection = await self._hands.objection(pod, node)
        why = self._machine.confirmed(decision_id, pod, node, self._now, agreed=objection is None)
        self._driver.flush()
        return why

    async def withdraw(self, decision_id: str, reason: str = "withdrawn") -> NominationOutcome:
        """Take a hint back, and wait for how it ended: perhaps otherwise. `ConfigurationError` for an unknown id.

        Waits for `drain_timeout` at most. If it still stands by then, the state is where: `RELEASING` (the API server
        does not answer, say: it goes on trying), or `ADOPTED`, as a hint that the scheduler has acted on is not touched
        until that is over. Its handle tells how it ends. Cancelling the wait does not stop it.
        """
        self._check()
        reason = checked_cause(reason)
        life = self._life(decision_id)
        if life.decision_id in self._machine.lives:
            self._machine.withdraw(life.decision_id, self._now, reason)
        handle = self._driver.handle(life)
        self._driver.flush()
        try:
            async with asyncio.timeout(self.policy.drain_timeout):
                return await handle.outcome()
        except TimeoutError:
            extra = extra_of(life.decision)
            log.warning("decision %s is withdrawn, and still %s", decision_id, life.phase.value, extra=extra)
            return self._driver.so_far(life)

    async def rollback(self, reason: str) -> list[NominationOutcome]:
        """The kill switch: no new hint from now on, and all of ours are taken back; values of others stay.

        Waits for that, `drain_timeout` seconds at most. Returns an outcome for each decision that was live. Where a
        hint still stands by then, its state is no end: `RELEASING` (it goes on trying), or `ADOPTED` (the scheduler has
        acted on it; not waited for). `resume` turns it on again.
        """
        self._check()
        reason = checked_cause(reason)
        log.warning("nomination is rolled back: %s", reason, extra={"reason": reason})
        lives = list(self._machine.lives.values())
        self._driver.rollback(reason)
        await self._driver.drained(lives, self.policy.drain_timeout)
        return [self._driver.so_far(life) for life in lives]

    def resume(self, reason: str) -> None:
        """After a rollback: nominations are welcome again."""
        self._check()
        reason = checked_cause(reason)
        log.warning("nomination is resumed: %s", reason, extra={"reason": reason})
        self._machine.resume()
        self._observing.begin_anew(self._now)

    def report(self, scheduler: str | None = None, before: str | None = None) -> NominationReport:
        """Does it help? What was nominated and what came of it, beside the Pods outside of the rollout. `print` it.

        `scheduler` is kube-scheduler's page of metrics, if you may scrape it: the report then tells how long it filters
        nodes for a Pod, since the page `before`, or since it was started. Raises `ConfigurationError` for what is no
        page of metrics.
        """
        filtering = None
        if scheduler is not None:
            filtering = Page(scheduler, "scheduler").spread(FILTER_SECONDS, extension_point="Filter")
            if before is not None:
                filtering = filtering.since(Page(before, "before").spread(FILTER_SECONDS, extension_point="Filter"))
        return self._observing.report(self._now if self._entered else 0.0, filtering)

    def reorder(self, order_version: str) -> None:
        """Your queue has this order now: decisions taken in another one are stale, and taken back."""
        self._check()
        if not isinstance(order_version, str) or not order_version:
            raise ConfigurationError("order_version", order_version, "must be a string that is not empty")
        self._machine.reorder(order_version, self._now)
        self._driver.flush()

    def handle(self, decision_id: str) -> NominationHandle | None:
        """The handle of a decision that is known: also of one that was found by its annotations after a restart."""
        life = self._machine.lives.get(decision_id) or self._machine.ended.get(decision_id)
        return None if life is None else self._driver.handle(life)

    @property
    def live(self) -> list[NominationHandle]:
        """Those without an outcome."""
        return [self._driver.handle(life) for life in self._machine.lives.values()]

    @property
    def off(self) -> str | None:
        """Why nothing is nominated, after a rollback; None if it is."""
        return self._machine.off

    def __repr__(self) -> str:
        state = self._state or (f"off: {self.off}" if self.off is not None else "on")
        return f"<Nominator {state}, {len(self._machine.lives)} live>"

    def _life(self, decision_id: str) -> Life:
        life = self._machine.lives.get(decision_id) or self._machine.ended.get(decision_id)
        if life is None:
            raise ConfigurationError("decision_id", decision_id, "is not known: it was never taken in, or long ago")
        return life
