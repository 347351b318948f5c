"""What a scheduler writes on Pods: the binding, and conditions and nominated node in the status."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from asyncdispatch.calls import (
    Again,
    Applied,
    Attempt,
    Effect,
    ObjectRef,
    Reconciled,
    Refused,
    Verdict,
    version_of,
)
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.calls import KubernetesCall
from asyncdispatch.kubernetes.conditions import (
    KEEP,
    Conditions,
    Nomination,
    checked,
    merged,
    patched_status,
    status_fields,
    timed,
)
from asyncdispatch.kubernetes.marks import is_dying
from asyncdispatch.kubernetes.objects import Json, annotations_of, field_of, node_name, on_json, pod_ref, to_json
from asyncdispatch.kubernetes.transport import STRATEGIC_MERGE_PATCH

__all__ = ["PodBinding", "PodStatusPatch"]


def fence(call: KubernetesCall[Any]) -> Json:
    """The preconditions of a write in its body's metadata: the uid, and the resourceVersion if the call has one."""
    meta: Json = {"uid": call.target.uid}
    if call.version is not None:
        meta["resourceVersion"] = call.version
    return meta


@dataclass(frozen=True, kw_only=True, repr=False)
class PodBinding(KubernetesCall[str]):
    """Bind a Pod to `node`; the value is the node's name. Made by `Cluster.bind`.

    The server answers a bind with a bare Status, so there is no better value. The bind is fenced by the Pod's uid, and
    with `version` by the exact state that it was decided on (law L17). `annotations` are carried over to the Pod. It
    waits for its context's prerequisites, and ends when the node is forgotten.
    """

    node: str
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    call_type: str = "pod_binding"
    effect: Effect = Effect.IDEMPOTENT_WRITE
    awaits_prerequisites: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", pod_ref(self.target))
        object.__setattr__(self, "node", node_name(self.node))
        object.__setattr__(self, "annotations", annotations_of(self.annotations))
        others = self.depends_on
        if not isinstance(others, (tuple, list)) or not all(isinstance(other, ObjectRef) for other in others):
            raise ConfigurationError("depends_on", others, "must be a tuple of ObjectRef")
        ref = ObjectRef("v1", "Node", None, self.node)
        if ref not in self.depends_on:
            object.__setattr__(self, "depends_on", (*self.depends_on, ref))

    async def execute(self, attempt: Attempt) -> str:
        meta: Json = {"name": self.target.name, "namespace": self.target.namespace, **fence(self)}
        if self.annotations:
            meta["annotations"] = dict(self.annotations)
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        await self.transport.request("POST", await self._path(attempt, "binding"), attempt, body=body)
        return self.node

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        return self._settle_by_reading(super().classify(attempt, error))

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Reconciled[str]:
        """One fresh read of the Pod. A 409 means four things, and a lost answer any: the Pod itself says which."""
        return self.settled_by(await self._read(attempt))

    def settled_by(self, pod: Json | None) -> Reconciled[str]:
        """What became of this bind, by the Pod as it is now (None: not there)."""
        if pod is None or self._is_other(pod):
            return Refused(self._gone(pod))
        node = field_of(pod, "spec", "nodeName")
        if node == self.node:
            return Applied(self.node)
        if node:
            return Refused(self._conflict(f"bound elsewhere: {node}"))
        if is_dying(pod):
            return Refused(self._conflict("it is being deleted"))
        if gates := field_of(pod, "spec", "schedulingGates"):
            names = ", ".join(str(field_of(gate, "name")) for gate in gates)
            return Refused(self._conflict(f"its scheduling gates are closed: {names}"))
        if self.version is not None and version_of(pod) != self.version:
            return Refused(self._conflict(f"decided on version {self.version}, but it is at {version_of(pod)}"))
        return Again(self)

    @on_json
    def apply(self, obj: Any) -> Any:
        """The Pod as the server leaves it after the bind. A Pod that has a node or is being deleted stays as it is."""
        if not isinstance(obj, dict) or self._is_other(obj) or is_dying(obj) or field_of(obj, "spec", "nodeName"):
            return obj
        scheduled = {"type": "PodScheduled", "status": "True"}
        status = patched_status(obj.get("status"), [scheduled], None)
        result = {**obj, "spec": {**(obj.get("spec") or {}), "nodeName": self.node}, "status": status}
        if self.annotations:
            meta = obj.get("metadata") or {}
            result["metadata"] = {**meta, "annotations": {**(meta.get("annotations") or {}), **self.annotations}}
        return result

    def __repr__(self) -> str:
        return f"<PodBinding {self.target} to {self.node}>"


@dataclass(frozen=True, kw_only=True, repr=False)
class PodStatusPatch(KubernetesCall[Json]):
    """Set conditions by type, and the nominated node, in a Pod's status. Made by `Cluster.patch_status`.

    The value is the Pod as it is afterwards. The patch is fenced by the Pod's uid, and with `version` by its
    resourceVersion; when that fence is lost to a writer of something else, the patch is decided anew on the new state.
    A Pod that was bound meanwhile is another matter: a patch that calls it unscheduled or nominates it is refused.
    For that, such a patch requires the resourceVersion `base` where it has no `version`: patches of different bases
    merge (law L13), those of different versions do not. `satisfied` says that the Pod it was decided on has it all
    already.
    """

    conditions: Conditions = field(default=Conditions(), hash=False)
    nominated_node: Nomination = KEEP
    base: str | None = None
    satisfied: bool = False
    call_type: str = "pod_status_patch"
    effect: Effect = Effect.IDEMPOTENT_WRITE

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", pod_ref(self.target))
        object.__setattr__(self, "conditions", checked(self.conditions))
        if self.nominated_node is not KEEP and self.nominated_node is not None:
            object.__setattr__(self, "nominated_node", node_name(self.nominated_node, "nominated_node"))
        if not self.conditions and self.nominated_node is KEEP:
            raise ConfigurationError("conditions", (), "there is nothing to patch: give conditions or nominated_node")

    async def execute(self, attempt: Attempt) -> Json:
        meta = fence(self)
        if self.version is None and self.base is not None:
            meta["resourceVersion"] = self.base
        body = {"metadata": meta, "status": status_fields(self.conditions, self.nominated_node)}
        path = await self._path(attempt, "status")
        return await self.transport.request("PATCH", path, attempt, body=body, content_type=STRATEGIC_MERGE_PATCH)

    def merge(self, pending: Any) -> Self | None:
        """Both in one request: conditions by type and field, this call's where both say something.

        So is the base: this call's own; without one, that of the other if what needs it comes from there.
        """
        said, keeps = {condition["type"] for condition in self.conditions}, self.nominated_node is KEEP
        left = [condition for condition in pending.conditions if condition["type"] not in said]
        base = self.base
        if base is None and of_unbound(left, pending.nominated_node if keeps else KEEP):
            base = pending.base
        return dataclasses.replace(
            self,
            conditions=merged(pending.conditions, self.conditions),
            nominated_node=pending.nominated_node if keeps else self.nominated_node,
            base=base,
            satisfied=False,
        )

    def is_noop(self) -> bool:
        return self.satisfied

    @on_json
    def rebase_onto(self, observed: Any) -> Self:
        """This patch on the Pod as observed: its version or base if there is one to require, its transition times.

        No condition is dropped because it is there already: a write that waits or flies may yet change it.
        """
        if not isinstance(observed, dict) or self._is_other(observed) or self._contradicted_by(observed):
            return self
        return dataclasses.replace(
            self,
            version=None if self.version is None else version_of(observed),
            base=None if self.base is None else version_of(observed),
            conditions=timed(self.conditions, conditions_of(observed)),
            satisfied=self.done_in(observed),
        )

    @on_json
    def apply(self, obj: Any) -> Any:
        if not isinstance(obj, dict) or self._is_other(obj) or self.done_in(obj):
            return obj
        return {**obj, "status": patched_status(obj.get("status"), self.conditions, self.nominated_node)}

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Reconciled[Json]:
        """Somebody else wrote in between: read the Pod and decide anew on it."""
        return self.settled_by(await self._read(attempt))

    def settled_by(self, pod: Json | None) -> Reconciled[Json]:
        """What became of this patch, by the Pod as it is now (None: not there)."""
        if pod is None or self._is_other(pod):
            return Refused(self._gone(pod))
        if self.done_in(pod):
            return Applied(pod)
        if self._contradicted_by(pod):
            return Refused(self._conflict(f"bound meanwhile: {field_of(pod, 'spec', 'nodeName')}"))
        return Again(self.rebase_onto(pod))

    def done_in(self, pod: Any) -> bool:
        """`pod` (a dict or a client model) is a whole Pod and shows all that this patch would set."""
        status = field_of(pod, "status")
        if status is not None and not isinstance(status, dict):
            status = to_json(status, "pod.status")
        return isinstance(status, dict) and patched_status(status, self.conditions, self.nominated_node) == status

    def _contradicted_by(self, pod: Json) -> bool:
        return bool(field_of(pod, "spec", "nodeName")) and of_unbound(self.conditions, self.nominated_node)

    def __repr__(self) -> str:
        said = [f"{condition['type']}={condition['status']}" for condition in self.conditions]
        if self.nominated_node is not KEEP:
            said.append(f"nominated to {self.nominated_node}")
        return f"<PodStatusPatch {self.target}: {', '.join(said)}>"


def of_unbound(conditions: Iterable[Json], nominated_node: Nomination) -> bool:
    """True if only a Pod without a node may show this: it calls the Pod unscheduled, or nominates a node."""
    unscheduled = any(c["type"] == "PodScheduled" and c["status"] != "True" for c in conditions)
    return unscheduled or isinstance(nominated_node, str)


def conditions_of(pod: Any) -> list[Json]:
    """The conditions of a Pod (dict or client model) as dicts; none if it has no status."""
    found = field_of(pod, "status", "conditions")
    if not isinstance(found, Iterable) or isinstance(found, (str, Mapping)):
        return []
    return [dict(item) if isinstance(item, Mapping) else to_json(item, "pod.status.conditions") for item in found]
