"""What a nominator does for its machine: reads, the one write, Events, and asking its owner's functions."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from asyncdispatch.calls import APICall, ObjectRef, VerdictKind
from asyncdispatch.dispatcher import Dispatcher
from asyncdispatch.errors import DispatchError, OutcomeError
from asyncdispatch.handles import CallHandle
from asyncdispatch.kubernetes.cluster import Cluster
from asyncdispatch.kubernetes.shards import ShardSet
from asyncdispatch.nomination.actions import URGENT, Answer, Ask, Fate, Note, Write
from asyncdispatch.nomination.calls import PodNomination, answer_of
from asyncdispatch.nomination.decisions import Decision, NominationOutcome, NominationPolicy
from asyncdispatch.outcomes import AnyOutcome, Failed, Succeeded

__all__ = ["Hands", "Precheck", "Recompute", "extra_of"]

log = logging.getLogger("asyncdispatch.nomination")

Json = dict[str, Any]
Precheck = Callable[[Json, Json], bool | Awaitable[bool]]
Recompute = Callable[[Json], "Decision | Awaitable[Decision | None] | None"]


class ReadFailed(DispatchError):
    """Pod or node could not be read in time."""


@dataclass(frozen=True, kw_only=True)
class Hands:
    """All that reaches the API server, by way of the dispatcher; and the owner's two functions."""

    dispatcher: Dispatcher
    cluster: Cluster
    policy: NominationPolicy
    precheck: Precheck | None
    recompute: Recompute | None
    shards: ShardSet | None
    name: str
    flow: str
    wall: Callable[[], float]
    _sets: set[CallHandle[Json]] = field(default_factory=set, init=False)

    async def read(self, decision: Decision, priority: int) -> tuple[Json | None, Json | None]:
        """The Pod and the node of a decision as they are now (None: not there). Raises why they can't be read."""
        node = ObjectRef("v1", "Node", None, decision.node)
        reads = [self._read(ref, priority, self.policy.call_timeout) for ref in (decision.ref, node)]
        waiting = [await self.dispatcher.dispatch(read) for read in reads]
        pod_read, node_read = [_found(await handle.outcome()) for handle in waiting]
        return pod_read, node_read

    async def read_pod(self, decision: Decision) -> Json | None:
        """The Pod as it is now, before everything else that waits. Raises why it can't be read."""
        return _found(await self._urgent(self._read(decision.ref, URGENT, self._patience)))

    def _read(self, ref: ObjectRef, priority: int, timeout: float) -> APICall[Json]:
        return self.cluster.read(ref, ordered=True, priority=priority, flow=self.flow, timeout=timeout)

    @property
    def _patience(self) -> float:
        """Seconds for one step of taking a hint back: to give up its place in the line would be to wait longer."""
        return max(self.policy.call_timeout, self.policy.drain_timeout)

    async def _urgent(self, call: APICall[Json]) -> AnyOutcome:
        """The outcome of a call that takes a hint back: where the dispatcher is full, it waits for room, by urgency."""
        try:
            return Succeeded(await self.dispatcher.run(call))
        except OutcomeError as error:
            return error.outcome

    async def objection(self, pod: Json | None, node: Json | None) -> str | None:
        """What the caller's fast look has against it."""
        if self.precheck is None or pod is None or node is None:
            return None
        try:
            agreed = self.precheck(pod, node)
            if inspect.isawaitable(agreed):
                agreed = await agreed
        except Exception as error:
            log.exception("precheck raised")
            return f"precheck raised {type(error).__name__}"
        return None if agreed else "precheck says no"

    async def write(self, write: Write) -> Answer:
        """Send a patch; what became of it."""
        prefix = self.policy.prefix
        annotations: dict[str, str | None] = {f"{prefix}/{k}": v for k, v in (write.annotations or {}).items()}
        if write.node is not None:
            wall = self.wall()
            annotations[f"{prefix}/nominated-at"] = _time(wall)
            annotations[f"{prefix}/expires-at"] = _time(wall + write.ttl)
        timeout = self._patience if write.node is None else min(self.policy.call_timeout, write.ttl)
        try:
            call = PodNomination(
                target=write.ref,
                version=write.version,
                node=write.node,
                was=write.decision.node,
                decision_id=write.decision.decision_id,
                prefix=prefix,
                annotations=annotations,
                priority=write.priority,
                flow=self.flow,
                timeout=timeout,
                context=None if self.shards is None else self.shards.context_of(write.ref),
                transport=self.cluster.transport,
                scope=self.cluster,
            )
            if write.node is None:
                return answer_of(await self._urgent(call))
            handle = await self.dispatcher.dispatch(call)
        except DispatchError as error:
            return Answer(Fate.NOT_SENT, reason=str(error))
        self._sets.add(handle)
        try:
            return answer_of(await handle.outcome())
        finally:
            self._sets.discard(handle)

    def call_off(self, reason: str) -> None:
        """No hint that has yet to be sent is sent (N10). One that is under way is left to its answer."""
        for handle in list(self._sets):
            if not handle.state.flying:
                handle.cancel(reason)

    async def ask(self, ask: Ask) -> Decision | None:
        """The owner's fresh decision, or None. Raises what its function raises, or `ConfigurationError`."""
        assert self.recompute is not None
        assert ask.pod is not None
        decision = self.recompute(ask.pod)
        if inspect.isawaitable(decision):
            decision = await decision
        if decision is not None:
            self.policy.check(decision)
        return decision

    def tell(self, note: Note) -> None:
        """An Event for people, at best effort."""
        decision = note.decision
        if note.alert:
            log.warning("%s: %s", note.what, note.text, extra=extra_of(decision))
        try:
            call = self.cluster.event(
                decision.ref,
                reason=note.what,
                message=f"node {decision.node}, decision {decision.decision_id}: {note.text}",
                type="Warning" if note.alert else "Normal",
                action="Nominating",
                reporter=self.name,
                flow=self.flow,
            )
            self.dispatcher.submit(call)
        except DispatchError as error:
            log.debug("an Event was not told: %s", error, extra=extra_of(decision))


def _found(outcome: Any) -> Json | None:
    """What a read has found; None if it is not there. Raises the error of one that failed."""
    if isinstance(outcome, Succeeded):
        value: Json = outcome.value
        return value
    if isinstance(outcome, Failed):
        if outcome.verdict.kind is VerdictKind.GONE:
            return None
        if isinstance(outcome.error, DispatchError):
            raise outcome.error
    raise ReadFailed(f"a read ended as {type(outcome).__name__}")


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def extra_of(decision: Decision, outcome: NominationOutcome | None = None) -> dict[str, Any]:
    extra: dict[str, Any] = {"decision_id": decision.decision_id, "pod": str(decision.ref), "node": decision.node}
    return extra if outcome is None else {**extra, "outcome": outcome.state.value, "reason": outcome.reason}
