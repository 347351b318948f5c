"""The one call of nomination: a merge patch on a Pod's status, of one field and our annotations (N1, N2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncdispatch.apierrors import ApiError
from asyncdispatch.calls import (
    Again,
    Applied,
    Attempt,
    Effect,
    Reconciled,
    Refused,
    Verdict,
    VerdictKind,
    version_of,
)
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.calls import KubernetesCall
from asyncdispatch.kubernetes.objects import Json, node_name, pod_ref
from asyncdispatch.kubernetes.patches import merge
from asyncdispatch.kubernetes.transport import MERGE_PATCH
from asyncdispatch.nomination.actions import Answer, Fate
from asyncdispatch.nomination.views import PodView
from asyncdispatch.outcomes import AnyOutcome, Cancelled, Expired, Failed, Succeeded

__all__ = ["CALL_TYPE", "PodNomination", "answer_of"]

CALL_TYPE = "pod_nomination"
_INVALID_FIELD = re.compile(r" is invalid: \[?status\.nominatedNodeName: ")


@dataclass(frozen=True, kw_only=True, repr=False)
class PodNomination(KubernetesCall[Json]):
    """Nominate `node` for a Pod, or with None take back what `decision_id` has nominated. Made by a `Nominator`.

    The value is the Pod as it is afterwards. It is fenced by the uid and by the version that it was decided on, always:
    any change since then refuses it. `annotations` have their full names; None removes one. It writes these and
    `status.nominatedNodeName`, and there is no way to make it write anything else.
    """

    node: str | None
    was: str  # the node of the decision, also where it is taken back
    decision_id: str
    prefix: str
    annotations: Mapping[str, str | None] = field(hash=False)
    call_type: str = CALL_TYPE
    effect: Effect = Effect.IDEMPOTENT_WRITE

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", pod_ref(self.target))
        for name in (self.node, self.was):
            if name is not None:
                node_name(name)
        if not self.version:
            raise ConfigurationError("version", self.version, "a nomination needs the Pod's resourceVersion (law N1)")
        for key in self.annotations:
            if not key.startswith(f"{self.prefix}/"):
                raise ConfigurationError("annotations", key, f"only those of {self.prefix} are ours (law N2)")

    def body(self) -> Json:
        """The patch."""
        fence = {"uid": self.target.uid, "resourceVersion": self.version}
        return {
            "metadata": {**fence, "annotations": dict(self.annotations)},
            "status": {"nominatedNodeName": self.node},
        }

    async def execute(self, attempt: Attempt) -> Json:
        # Named, so that the Pod itself tells our value from an equal one of the scheduler's.
        query = {"fieldManager": self.prefix[:128]}
        return await self.transport.request(
            *("PATCH", await self._path(attempt, "status"), attempt),
            body=self.body(),
            content_type=MERGE_PATCH,
            query=query,
        )

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        return self._settle_by_reading(super().classify(attempt, error))

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Reconciled[Json]:
        """Somebody else wrote in between, or the answer was lost: the Pod itself says."""
        return self.settled_by(await self._read(attempt))

    def settled_by(self, pod: Json | None) -> Reconciled[Json]:
        """What became of it, by the Pod as it is now (None: not there).

        At the same version it was not applied, and the fence makes sending it again safe: of two, one is applied.
        """
        if pod is None or self._is_other(pod):
            return Refused(self._gone(pod))
        view = PodView(pod, self.prefix)
        done = view.mark is None and not view.nominated
        if view.shows(self.decision_id, self.was) if self.node is not None else done:
            return Applied(pod)
        if version_of(pod) == self.version:
            return Again(self)
        return Refused(self._conflict(f"decided on version {self.version}, but it is at {version_of(pod)}"))

    def apply(self, obj: Any) -> Any:
        """The Pod as it looks afterwards, if it is the state that this was decided on."""
        if not isinstance(obj, dict) or self._is_other(obj) or version_of(obj) != self.version:
            return obj
        return merge(obj, self.body())

    def __repr__(self) -> str:
        what = f"to {self.node}" if self.node is not None else f"no more to {self.was}"
        return f"<PodNomination {self.target} {what}>"


def answer_of(outcome: AnyOutcome) -> Answer:
    """An outcome of a `PodNomination` in the machine's words."""
    if isinstance(outcome, Succeeded):
        return Answer(Fate.APPLIED, outcome.value)
    if outcome.late:
        return Answer(Fate.APPLIED, outcome.late_success)
    if outcome.ambiguous:
        return Answer(Fate.UNKNOWN, reason=_said(outcome))
    if isinstance(outcome, Failed):
        if outcome.verdict.kind is VerdictKind.GONE:
            return Answer(Fate.GONE, reason=_said(outcome))
        if isinstance(outcome.error, ApiError):
            return Answer(_fate(outcome.error), reason=_said(outcome))
    return Answer(Fate.NOT_SENT, reason=_said(outcome))


def _fate(error: ApiError) -> Fate:
    if error.status == 422 and _names_the_field(error):
        # Of a name that we have checked, all that can be wrong is that the Pod has a node (from 1.35 on).
        return Fate.BOUND
    known = {403: Fate.FORBIDDEN, 409: Fate.CONFLICT, 429: Fate.NOT_SENT, 401: Fate.NOT_SENT}
    if error.status in known:
        return known[error.status]
    return Fate.REFUSED if 400 <= error.status < 500 else Fate.NOT_SENT


def _names_the_field(error: ApiError) -> bool:
    """The Status's causes name the field; if it has none, its message, which the server makes of the same errors."""
    if error.causes:
        return any(cause.get("field") == "status.nominatedNodeName" for cause in error.causes)
    return error.reason == "Invalid" and _INVALID_FIELD.search(error.message) is not None


def _said(outcome: AnyOutcome) -> str:
    if isinstance(outcome, Failed):
        return str(outcome.error)
    if isinstance(outcome, Cancelled):
        return outcome.reason
    return f"no time was left while {outcome.where}" if isinstance(outcome, Expired) else type(outcome).__name__.lower()
