"""Changing an object of any kind: patches, and whole replacements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from asyncdispatch.calls import (
    Again,
    Applied,
    Attempt,
    Effect,
    Reconciled,
    Refused,
    Unknown,
    Verdict,
    version_of,
)
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.calls import KubernetesCall, refused
from asyncdispatch.kubernetes.objects import Json, on_json, to_json
from asyncdispatch.kubernetes.patches import Change, JsonPatch, change_of
from asyncdispatch.kubernetes.resources import builtin

__all__ = ["Patch", "Replace"]

Decide = Callable[[Json], Any]


@dataclass(frozen=True, kw_only=True, repr=False)
class _Write(KubernetesCall[Json]):
    """What patch and replacement share: settling by a fresh read what became of a request.

    `doubtful` says that an earlier request of this call may have been applied.
    """

    subresource: str = ""
    doubtful: bool = False
    effect: Effect = Effect.IDEMPOTENT_WRITE

    @property
    def _on_object(self) -> bool:
        """The object itself is what the server reads and answers there, not a view of it, such as `scale`."""
        return self.subresource in ("", "status")

    async def _found(self, attempt: Attempt) -> Json | None:
        return await self._read(attempt, "" if self._on_object else self.subresource)

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Reconciled[Json]:
        """One fresh read: is it done, may it be sent again, or has somebody else written in between?"""
        return self.settled_by(await self._found(attempt), self.doubtful or not refused(error))

    def settled_by(self, found: Json | None, doubtful: bool) -> Reconciled[Json]:
        """What became of this write, by the object as it is now (None: not there)."""
        if found is None or self._is_other(found):
            return Refused(self._gone(found))
        if self._shown_by(found):
            return Applied(found)
        if self.version in (None, version_of(found)):
            return Again(dataclasses.replace(self, doubtful=doubtful))
        if not doubtful:
            return Refused(self._conflict(f"decided on version {self.version}, but it is at {version_of(found)}"))
        # It was applied and changed since by somebody, or it was not: nobody can tell. The fence makes asking safe.
        return Unknown(maybe_applied=True) if self.doubtful else Again(dataclasses.replace(self, doubtful=True))

    def _shown_by(self, found: Json) -> bool:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, repr=False)
class Patch(_Write):
    """Patch an object of any kind; the value is the object as it is afterwards. Made by `Cluster.patch`.

    Fenced by the uid of its target if it has one, and by its `version` if it has one. A fixed patch whose version fence
    is lost to somebody else fails; one that is decided by a function of the object (`decide`) is decided anew on what
    is there then, each time fenced by the version that it was decided on. `change` None: still to be decided, or
    nothing is to be done to the object seen last (`satisfied`).
    """

    change: Change | None = field(default=None, hash=False)
    decide: Decide | None = None
    strategic: bool = False
    satisfied: bool = False
    call_type: str = "patch"

    def __post_init__(self) -> None:
        if self.change is None and self.decide is None:
            raise ConfigurationError("patch", None, "there is nothing to patch: give a patch, or a function")
        if self.version is None and self.change is not None and (path := self.change.hazard(self.target)) is not None:
            remedy = (
                "this replaces a list, or names a place in one, and what others have put there is lost: pass the object"
                " with fence='version' (or version=…), or a function that makes the patch from the object"
            )
            raise ConfigurationError(f"patch.{path}", "…", remedy)

    async def execute(self, attempt: Attempt) -> Json:
        if self.change is not None:
            return await self._send(attempt, self.change, self.version)
        attempt.sent = False  # the read before it sends nothing that could change
        found = await self._found(attempt)
        if found is None or self._is_other(found):
            raise self._gone(found)
        decided = self.decided_on(found)
        return found if decided.change is None else await self._send(attempt, decided.change, decided.version)

    async def _send(self, attempt: Attempt, change: Change, version: str | None) -> Json:
        path, body = await self._path(attempt, self.subresource), change.fenced(self.target.uid, version)
        return await self.transport.request("PATCH", path, attempt, body=body, content_type=change.content_type)

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        """As the table says. What can't be repeated blindly is looked for first, if it may have been applied."""
        verdict = super().classify(attempt, error)
        blind = self.version is None and self.decide is None and not isinstance(self.change, JsonPatch)
        return verdict if blind else self._settle_by_reading(verdict)

    def settled_by(self, found: Json | None, doubtful: bool) -> Reconciled[Json]:
        if self.decide is None or found is None or self._is_other(found):
            return super().settled_by(found, doubtful)
        try:
            decided = self.decided_on(found)
        except Exception as error:
            return Refused(error)
        return Applied(found) if decided.change is None else Again(decided)

    def decided_on(self, obj: Json) -> Self:
        """This patch as its function decides it on `obj`. Raises what the function raises, and for what is no patch."""
        assert self.decide is not None
        wanted = self.decide(to_json(obj, "obj"))  # a copy: the function may do with it what it likes
        change: Change | None = None
        if wanted is not None and wanted != {} and wanted != []:
            change = change_of(wanted, self.target, strategic=self.strategic, subresource=self.subresource)
        if change is not None and change.shown_by(obj):
            change = None
        return dataclasses.replace(self, change=change, version=version_of(obj), satisfied=change is None)

    def merge(self, pending: Any) -> Self | None:
        """Both in one request, where one merge patch can say both; patches made by functions go one after another."""
        if self.change is None or pending.change is None or self.decide or pending.decide:
            return None
        if self.subresource != pending.subresource:
            return None
        both = pending.change.then(self.change)
        doubtful = self.doubtful or pending.doubtful
        return None if both is None else dataclasses.replace(self, change=both, satisfied=False, doubtful=doubtful)

    def is_noop(self) -> bool:
        return self.satisfied

    @on_json
    def rebase_onto(self, observed: Any) -> Self:
        """A patch made by a function is decided anew on the object as observed; a fixed one keeps what it requires."""
        return self.decided_on(observed) if self.decide is not None and self._whole(observed) else self

    @on_json
    def apply(self, obj: Any) -> Any:
        """The object as the server leaves it, as far as that can be told: see `StrategicPatch`."""
        if not isinstance(obj, dict) or self._is_other(obj) or not self._on_object:
            return obj
        change = self.decided_on(obj).change if self.decide is not None and self._whole(obj) else self.change
        result = None if change is None else change.apply(obj)
        if result is None or not self.subresource:
            return obj if result is None else result
        # `status` takes the status alone, and of built-in kinds labels and annotations as well.
        taken = ("status",) if builtin(self.target) is None else ("status", "metadata")
        return {**obj, **{key: result[key] for key in taken if key in result}}

    def _whole(self, obj: Any) -> bool:
        """`obj` is the very object as a server has sent it, and not a view of it: a patch can be decided on it."""
        if not isinstance(obj, dict) or self._is_other(obj) or not self._on_object:
            return False
        return version_of(obj) is not None

    def _shown_by(self, found: Json) -> bool:
        return self.change is not None and self.change.shown_by(found)

    def on(self, obj: Any) -> Self:
        """This patch with what the object at hand tells: decided on it, or that it shows everything already."""
        if not self._whole(obj):
            return self
        if self.decide is not None:
            return self.decided_on(obj)
        return dataclasses.replace(self, satisfied=True) if self.apply(obj) == obj and self._tellable(obj) else self

    def _tellable(self, obj: Json) -> bool:
        return self.change is not None and self.change.apply(obj) is not None


@dataclass(frozen=True, kw_only=True, repr=False)
class Replace(_Write):
    """Replace an object by `obj` whole (PUT); the value is the object as it is afterwards. Made by `Cluster.replace`.

    It is fenced by the version that `obj` was made from, always: any change since then refuses it. After a lost answer
    or a conflict the object is read: if it is as wanted, the write was done (also where the HTTP client itself has sent
    it twice, rule R5). Two replacements are never merged: the later one was not made from the earlier one.
    """

    obj: Json = field(hash=False)
    call_type: str = "replace"

    def __post_init__(self) -> None:
        if self.version is None:
            remedy = "a replacement needs the version it was made from: pass the object as the API server sent it"
            raise ConfigurationError("obj.metadata.resourceVersion", None, remedy)

    async def execute(self, attempt: Attempt) -> Json:
        fences = {"resourceVersion": self.version} | ({"uid": self.target.uid} if self.target.uid else {})
        body = {**self.obj, "metadata": {**self.obj["metadata"], **fences}}
        return await self.transport.request("PUT", await self._path(attempt, self.subresource), attempt, body=body)

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        return self._settle_by_reading(super().classify(attempt, error))

    @on_json
    def apply(self, obj: Any) -> Any:
        """What is wanted, with what stays the server's. An object of another version stays as it is."""
        if not isinstance(obj, dict) or self._is_other(obj) or not self._on_object or version_of(obj) != self.version:
            return obj
        if self.subresource:
            return {**obj, **{key: self.obj[key] for key in ("status",) if key in self.obj}}
        metadata = obj["metadata"]
        kept = {key: metadata[key] for key in _SERVERS if key in metadata}
        result = {**self.obj, "metadata": {**self.obj["metadata"], **kept}}
        if builtin(self.target) is not None:
            result.pop("status", None)
            result.update({"status": obj["status"]} if "status" in obj else {})
        return result

    def _shown_by(self, found: Json) -> bool:
        if self.subresource == "status":
            return bool(found.get("status") == self.obj.get("status"))
        ignored = {"apiVersion", "kind", *(("status",) if builtin(self.target) is not None else ())}
        return _told(found, ignored) == _told(self.obj, ignored)


_SERVERS = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
"""Fields of metadata that are the server's own: what a caller sends there changes nothing."""


def _told(obj: Json, ignored: set[str]) -> Json:
    """What of an object its writers decide."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _SERVERS}
    return {**{key: value for key, value in obj.items() if key not in ignored}, "metadata": metadata}
