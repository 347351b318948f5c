"""The guards before a write, and what a Pod says of a hint that was written. Pure: all that counts is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncdispatch.nomination.states import NominationState
from asyncdispatch.nomination.views import selects, untolerated

if TYPE_CHECKING:
    from asyncdispatch.nomination.decisions import NominationPolicy
    from asyncdispatch.nomination.room import Room
    from asyncdispatch.nomination.states import Life
    from asyncdispatch.nomination.views import NodeView, PodView

__all__ = ["Judgement", "ground_lost", "judge", "misplaced", "refusal"]

S = NominationState


@dataclass(frozen=True, slots=True)
class Judgement:
    """An outcome, and why."""

    state: NominationState
    reason: str
    bound_to: str | None = None


def judge(life: Life, pod: PodView | None) -> Judgement | None:
    """What a Pod says of a hint that was written. The first match counts; None: the hint stands.

    The binding is looked at before the field: servers until 1.34 leave it set on a bound Pod, later ones clear it.
    """
    if pod is None or pod.uid != life.uid:
        return Judgement(S.GONE, "the Pod is gone")
    if pod.node == life.node:
        return Judgement(S.HIT, "bound to the node", pod.node)
    if pod.node:
        return Judgement(S.FALLBACK, f"bound to {pod.node}", pod.node)
    if pod.deleting or pod.finished:
        return Judgement(S.GONE, "the Pod is being deleted" if pod.deleting else "the Pod has finished")
    if not pod.nominated:
        return Judgement(S.CLEARED, "somebody cleared it")
    if pod.nominated != life.node:
        return Judgement(S.OVERWRITTEN, f"now nominated to {pod.nominated}")
    if not pod.is_ours(life.decision_id, life.node):
        return Judgement(S.FOREIGN, "the same node, nominated by somebody else")
    return None


def refusal(life: Life, pod: PodView, node: NodeView | None, room: Room, policy: NominationPolicy) -> str | None:
    """Why a hint must not be written (N4, N11), by one fresh read of Pod and node; None if nothing is against it."""
    if pod.node:
        return f"the Pod is bound to {pod.node}"
    if pod.deleting or not pod.pending:
        return "the Pod is being deleted" if pod.deleting else "the Pod is not pending"
    if pod.nominated:
        return f"the Pod is nominated to {pod.nominated} already"
    if (excluded := policy.excludes(pod.obj)) is not None:
        return excluded
    return ground_lost(life, node) or _no_room(life, room)


def _no_room(life: Life, room: Room) -> str | None:
    victims = room.victims(life.node)
    if victims:
        return f"a victim of a preemption is terminating on {life.node}: {'/'.join(victims[0].key)}"
    lacking = room.lacks_for(life)
    return None if lacking is None else f"{life.node} has not enough {lacking} free"


def misplaced(life: Life, room: Room) -> str | None:
    """Why its Pod, which is on its node, should not be there by the decision's own grounds; None if it may be.

    Not every change is: a node may get a label, or a taint that the Pod tolerates, between the write and the binding.
    """
    pod, node = room.pod_of(life), room.nodes.get(life.node)
    if node is None:
        return "is gone"
    if node.unfit is not None or pod is None:
        return node.unfit
    if (taint := untolerated(pod, node)) is not None:
        return f"has the taint {taint}, which the Pod does not tolerate"
    if not selects(pod, node):
        return "has not the labels that the Pod asks for"
    lacking = room.overcommitted(life.node, pod.requests)
    return None if lacking is None else f"has not enough {lacking} for what is on it"


def ground_lost(life: Life, node: NodeView | None) -> str | None:
    """What is wrong with the node, or has changed on it since the decision (N14)."""
    if node is None:
        return f"there is no node {life.node}"
    if node.unfit is not None:
        return f"{life.node} {node.unfit}"
    if life.node_grounds is None or node.grounds == life.node_grounds:
        return None
    changed = [name for name, value in node.grounds.items() if value != life.node_grounds.get(name)]
    return f"{life.node} has changed: {', '.join(changed)}"
