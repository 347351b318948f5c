"""Deleting an object, and evicting a Pod: fenced by uid on every attempt, and done once it is gone or dying."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from asyncdispatch.apierrors import ApiError, api_error_of
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
from asyncdispatch.kubernetes.calls import KubernetesCall, refused
from asyncdispatch.kubernetes.marks import is_dying
from asyncdispatch.kubernetes.objects import Json, field_of, on_json, pod_ref, timestamp
from asyncdispatch.verdicts import names_target

__all__ = ["PROPAGATION", "Delete", "Evict"]

PROPAGATION = ("Background", "Foreground", "Orphan")


def _now() -> str:
    return timestamp(datetime.now(UTC))


@dataclass(frozen=True, kw_only=True, repr=False)
class _Removal(KubernetesCall[Json | None]):
    """What deletion and eviction share.

    The value is what the server answered (the object as it was, or a Status), None if there was nothing left to remove.
    An object that is dying counts as done: whoever wants its name waits for it by creating the next one.

    `doubtful` says that an earlier request of this call may have been applied. `satisfied`: it was dying already when
    the call was made. `asked` is when that was, for what `apply` shows.
    """

    grace_period: int | None = None
    doubtful: bool = False
    satisfied: bool = False
    asked: str = field(default_factory=_now, compare=False)
    effect: Effect = Effect.IDEMPOTENT_WRITE
    deletes: ClassVar[bool] = True
    """It asks for its object's end: listed in `DrainReport.not_deleted`, and not cancelled by `forget` once sent."""
    missing_is_done: ClassVar[bool]

    def __post_init__(self) -> None:
        grace = self.grace_period
        if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int) or grace < 0):
            raise ConfigurationError("grace_period", grace, "must be None, or whole seconds from 0 up")

    def _options(self) -> Json:
        wanted = {"uid": self.target.uid, "resourceVersion": self.version}
        preconditions = {key: value for key, value in wanted.items() if value is not None}
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if preconditions:
            options["preconditions"] = preconditions
        if self.grace_period is not None:
            options["gracePeriodSeconds"] = self.grace_period
        return options

    async def _remove(self, method: str, attempt: Attempt, body: Json, subresource: str = "") -> Json | None:
        try:
            path = await self._path(attempt, subresource)
            return await self.transport.request(method, path, attempt, body=body)
        except ApiError as error:
            done = self.missing_is_done or self.doubtful
            if done and error.status == 404 and names_target(error, self, unnamed=False):
                return None
            raise

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        """As the table says; what may have been applied is looked for before it is sent again."""
        return self._settle_by_reading(super().classify(attempt, error))

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Reconciled[Json | None]:
        """One fresh read: is it gone or dying, is it another one, has its version moved?"""
        return self.settled_by(await self._read(attempt), self.doubtful or not refused(error))

    def settled_by(self, found: Json | None, doubtful: bool) -> Reconciled[Json | None]:
        """What became of this removal, by what holds the name now (None: nothing)."""
        if found is None or self._is_other(found):
            done = doubtful or (found is None and self.missing_is_done)
            return Applied(None) if done else Refused(self._gone(found))
        if is_dying(found):
            return Applied(found)
        if self.version not in (None, version_of(found)):
            return Refused(self._conflict(f"decided on version {self.version}, but it is at {version_of(found)}"))
        return Again(dataclasses.replace(self, doubtful=doubtful))

    def merge(self, pending: Any) -> Self | None:
        """Once is enough, if both ask for the same."""
        if self._options() != pending._options():
            return None
        return dataclasses.replace(self, doubtful=self.doubtful or pending.doubtful, satisfied=False)

    def is_noop(self) -> bool:
        return self.satisfied

    @on_json
    def apply(self, obj: Any) -> Any:
        """None where nothing keeps the object; else the object as it looks while it is dying."""
        if not isinstance(obj, dict) or self._is_other(obj):
            return obj
        if not self._keeps(obj):
            return None
        if is_dying(obj):
            return obj
        return {**obj, "metadata": {**(obj.get("metadata") or {}), "deletionTimestamp": self.asked}}

    def _keeps(self, obj: Json) -> bool:
        """Something keeps the object once its deletion has begun: finalizers, or the grace period of a running Pod."""
        if field_of(obj, "metadata", "finalizers") or self.target.kind == "Namespace":
            return True
        if (self.target.api_version, self.target.kind) != ("v1", "Pod") or not field_of(obj, "spec", "nodeName"):
            return False
        period = self.grace_period
        if period is None:
            period = field_of(obj, "spec", "terminationGracePeriodSeconds")
        return period != 0 and field_of(obj, "status", "phase") not in ("Failed", "Succeeded")

    def on(self, obj: Any) -> Self:
        """This removal with what the object at hand tells: that it is dying already, and nothing more is asked."""
        return dataclasses.replace(self, satisfied=True) if is_dying(obj) and self.grace_period is None else self


@dataclass(frozen=True, kw_only=True, repr=False)
class Delete(_Removal):
    """Delete an object. Made by `Cluster.delete`.

    The uid and the version, where given, are preconditions. "Not there" counts as done, also at the first request: the
    HTTP client sends a DELETE again by itself when its connection breaks, so the first may have been applied (rule R5).
    Another uid under that name: GONE, unless an earlier request of ours may have been applied.

    Without a uid it means whatever has the name, so that one that may have been applied is not sent again: it fails as
    AmbiguousOutcome, for the name may be another object's by then.
    """

    propagation: str | None = None
    call_type: str = "delete"
    missing_is_done: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.propagation is not None and self.propagation not in PROPAGATION:
            raise ConfigurationError(
                "propagation", self.propagation, f"must be one of {', '.join(PROPAGATION)}, or None"
            )

    async def execute(self, attempt: Attempt) -> Json | None:
        return await self._remove("DELETE", attempt, self._options())

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        verdict = super().classify(attempt, error)
        if self.target.uid is None and verdict is not None and verdict.maybe_applied:
            return dataclasses.replace(verdict, kind=VerdictKind.PERMANENT)
        return verdict

    def _options(self) -> Json:
        options = super()._options()
        return options if self.propagation is None else {**options, "propagationPolicy": self.propagation}

    def _keeps(self, obj: Json) -> bool:
        return self.propagation in ("Foreground", "Orphan") or super()._keeps(obj)

    def on(self, obj: Any) -> Self:
        return self if self.propagation is not None else super().on(obj)


@dataclass(frozen=True, kw_only=True, repr=False)
class Evict(_Removal):
    """Evict a Pod: a deletion that its disruption budgets must allow. Made by `Cluster.evict`.

    The uid is a precondition of every request, so that a Pod of the same name that a controller has made meanwhile is
    left alone. A budget that is used up is waited for, 5 s or more (LATER); two budgets on one Pod can't be served, and
    fail at once. "Not there" is GONE, but counts as done after a request that may have been applied.
    """

    call_type: str = "evict"
    missing_is_done: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "target", pod_ref(self.target))

    async def execute(self, attempt: Attempt) -> Json | None:
        meta = {"name": self.target.name, "namespace": self.target.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": self._options()}
        return await self._remove("POST", attempt, body, "eviction")

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        answered = api_error_of(error)
        if answered is not None and answered.status == 500 and "more than one PodDisruptionBudget" in answered.message:
            return Verdict(VerdictKind.PERMANENT, reason=str(answered))  # until somebody edits a budget
        return super().classify(attempt, error)
