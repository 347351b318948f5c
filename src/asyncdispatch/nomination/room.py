"""The ledger: what of each node is taken, by Pods, by others' nominations and by our own hints. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from asyncdispatch.nomination.states import NominationState
from asyncdispatch.nomination.views import NodeView, PodView, add, is_older

if TYPE_CHECKING:
    from asyncdispatch.nomination.states import Life
    from asyncdispatch.nomination.views import Amounts

__all__ = ["Room"]

PLANNED, WRITING = NominationState.PLANNED, NominationState.WRITING
NOMINATED, ADOPTED = NominationState.NOMINATED, NominationState.ADOPTED


class Room:
    """Pods and nodes as last seen, and our own live decisions by node (N11).

    A decision counts from PLANNED on. A Pod that terminates holds its room until it has gone, whoever deleted it: to
    the scheduler it does so as well. A nomination by somebody else holds room, as it does for the scheduler.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeView] = {}
        self.pods: dict[tuple[str, str], PodView] = {}
        self.hints: dict[str, dict[str, Life]] = {}
        self._bound: dict[str, dict[tuple[str, str], PodView]] = {}
        self._nominated: dict[str, dict[tuple[str, str], PodView]] = {}

    # -- seeing -------------------------------------------------------------------------------------------------------

    def see(self, pod: PodView) -> bool:
        """A Pod came or changed. False if something newer was known."""
        old = self.pods.get(pod.key)
        if old is not None and old.uid == pod.uid and is_older(pod.version, old.version):
            return False
        self._drop(old)
        self.pods[pod.key] = pod
        if pod.node and not pod.finished:
            self._bound.setdefault(pod.node, {})[pod.key] = pod
        elif pod.nominated and not pod.node and not pod.finished:
            self._nominated.setdefault(pod.nominated, {})[pod.key] = pod
        return True

    def forget(self, key: tuple[str, str], uid: str) -> None:
        """A Pod is gone; a newer one of its name stays."""
        old = self.pods.get(key)
        if old is not None and old.uid == uid:
            self._drop(self.pods.pop(key))

    def _drop(self, pod: PodView | None) -> None:
        if pod is None:
            return
        for table, name in ((self._bound, pod.node), (self._nominated, pod.nominated)):
            held = table.get(name)
            if held is not None and held.get(pod.key) is pod:
                del held[pod.key]
                if not held:
                    del table[name]

    def enter(self, life: Life) -> None:
        self.hints.setdefault(life.node, {})[life.decision_id] = life

    def leave(self, life: Life) -> None:
        held = self.hints.get(life.node, {})
        held.pop(life.decision_id, None)
        if not held:
            self.hints.pop(life.node, None)

    # -- asking -------------------------------------------------------------------------------------------------------

    def lacks(self, name: str, asked: Amounts, others: Iterator[Life]) -> str | None:
        """What the node has not enough of for `asked` beside all that holds room there; None if it fits."""
        taken = self._taken(name)
        own = {life.uid for life in self.hints.get(name, {}).values()}
        for pod in self._nominated.get(name, {}).values():
            if pod.uid not in own:
                add(taken, pod.requests)
        for life in others:
            add(taken, life.requests)
        add(taken, asked)
        return self._beyond(name, taken, asked)

    def overcommitted(self, name: str, asked: Amounts) -> str | None:
        """Of what is `asked` for, what all Pods on the node together have more of than it has; None if nothing."""
        return self._beyond(name, self._taken(name), asked)

    def _taken(self, name: str) -> Amounts:
        taken: Amounts = {}
        for pod in self._bound.get(name, {}).values():
            add(taken, pod.requests)
        return taken

    def _beyond(self, name: str, taken: Amounts, asked: Amounts) -> str | None:
        node = self.nodes.get(name)
        free = node.allocatable if node is not None else {}
        return next((what for what, value in asked.items() if value and taken.get(what, 0) > free.get(what, 0)), None)

    def lacks_for(self, life: Life) -> str | None:
        """What there is not enough of for this decision, beside those planned before it or on their way (N11)."""
        return self.lacks(life.node, life.requests, self._beside(life))

    def _beside(self, life: Life) -> Iterator[Life]:
        """Of two that wait for one place, the first planned has it. An adopted one is the scheduler's business."""
        for other in self.hints.get(life.node, {}).values():
            counts = other.number < life.number or other.phase is not PLANNED
            if other is not life and counts and other.phase is not ADOPTED and not self._is_bound(other):
                yield other

    def pod_of(self, life: Life) -> PodView | None:
        """Its Pod as last seen."""
        pod = self.pods.get((life.decision.ref.namespace or "", life.decision.ref.name))
        return pod if pod is not None and pod.uid == life.uid else None

    def _is_bound(self, life: Life) -> bool:
        """Its Pod has a node by now, and counts as what it takes there."""
        pod = self.pod_of(life)
        return pod is not None and bool(pod.node)

    def overfull(self, name: str) -> str | None:
        """What there is not enough of for our hints on a node together; None if they fit. Those taken back are none."""
        standing = [
            life
            for life in self.hints.get(name, {}).values()
            if life.phase in (WRITING, NOMINATED) and not self._is_bound(life)
        ]
        asked: Amounts = {}
        for life in standing:
            add(asked, life.requests)
        return self.lacks(name, asked, iter(())) if standing else None

    def victims(self, name: str) -> list[PodView]:
        """Pods that the scheduler has preempted on a node and that still hold their room there."""
        return [pod for pod in self._bound.get(name, {}).values() if pod.deleting and pod.preempted]

    def victims_for(self, life: Life) -> list[PodView]:
        """The victims on its node that may have been preempted for its Pod: evidence that it was adopted.

        Those that another Pod's own nomination to this node explains are no evidence.
        """
        victims = [victim for victim in self.victims(life.node) if victim.priority < life.priority]
        if not victims:
            return victims  # as nearly always: this is asked for each hint on a node whenever a Pod there changes
        own = {other.uid for other in self.hints.get(life.node, {}).values()}
        rivals = [p.priority for p in self._nominated.get(life.node, {}).values() if p.uid not in own]
        rival = max(rivals, default=None)
        return [victim for victim in victims if rival is None or rival <= victim.priority]
