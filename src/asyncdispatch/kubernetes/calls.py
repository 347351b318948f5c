"""What the call types of this package share, and the plain read.

A `Cluster` makes the calls. Each is a frozen value that can be submitted once or often.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeVar

from asyncdispatch.apierrors import ApiError
from asyncdispatch.calls import APICall, Attempt, Effect, Verdict, VerdictKind
from asyncdispatch.kubernetes.classification import classify_error
from asyncdispatch.kubernetes.objects import Json, field_of
from asyncdispatch.kubernetes.resources import object_path
from asyncdispatch.kubernetes.transport import Transport
from asyncdispatch.verdicts import names_target

__all__ = ["KubernetesCall", "Read", "refused"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, repr=False)
class KubernetesCall(APICall[T]):
    """What the call types of this package share: a transport, and the default table for their errors.

    `plural` is the kind's name in paths, needed only for a custom resource whose server does not tell it.
    """

    transport: Transport
    plural: str | None = None

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        """The verdict of the default table; a request that never left is not maybe applied."""
        verdict = classify_error(error, self)
        if self.target.uid is not None and isinstance(error, ApiError) and _lacks_namespace(error):
            # It was there once, so its namespace was. Only binds and evictions are told so: a read names the object.
            return Verdict(VerdictKind.RECONCILE, reason=str(error))
        if verdict is not None and verdict.maybe_applied and not attempt.sent:
            return dataclasses.replace(verdict, maybe_applied=False)
        return verdict

    async def _path(self, attempt: Attempt, subresource: str = "") -> str:
        return object_path(self.target, await self.transport.locate(self.target, self.plural, attempt), subresource)

    async def _read(self, attempt: Attempt, subresource: str = "") -> Json | None:
        """The target as it is now, or None if it is not there. Beside the call's own request, never part of it."""
        try:
            return await self._get(attempt, subresource, aside=True)
        except ApiError as error:
            if error.status == 404 and names_target(error, self, unnamed=False):
                return None
            raise

    async def _get(
        self, attempt: Attempt, subresource: str = "", *, aside: bool = False, query: dict[str, str] | None = None
    ) -> Json:
        path = await self._path(attempt, subresource)
        obj = await self.transport.request("GET", path, attempt, query=query, aside=aside)
        if not isinstance(field_of(obj, "metadata", "uid"), str):
            raise ApiError(200, "Unreadable", "the answer is no object: it has no metadata.uid", request=f"GET {path}")
        return obj

    def _conflict(self, message: str) -> ApiError:
        """An error of our own making: the object is not in the state in which the call could be done."""
        return ApiError(409, "Conflict", f"{self.target}: {message}")

    def _gone(self, found: Json | None) -> ApiError:
        """An error of our own making: the object is not there, or only another one of its name."""
        uid = field_of(found, "metadata", "uid")
        message = f"the name is now held by uid {uid}" if found is not None else "it is not there"
        return ApiError(404, "NotFound", f"{self.target}: {message}", gone=True)

    def _settle_by_reading(self, verdict: Verdict | None) -> Verdict | None:
        """A verdict by which a write that may be applied is looked for before it is sent again."""
        if verdict is not None and verdict.kind is VerdictKind.RETRY and verdict.maybe_applied:
            return dataclasses.replace(verdict, kind=VerdictKind.RECONCILE)
        return verdict

    def _is_other(self, obj: Json) -> bool:
        return self.target.uid is not None and field_of(obj, "metadata", "uid") != self.target.uid

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.target}>"


def _lacks_namespace(error: ApiError) -> bool:
    return error.status == 404 and error.details.get("kind") == "namespaces"


def refused(error: BaseException) -> bool:
    """The write was answered by a refusal. Any other error, and one of a read, leaves open what became of it."""
    return isinstance(error, ApiError) and 400 <= error.status < 500 and not error.request.startswith("GET ")


@dataclass(frozen=True, kw_only=True, repr=False)
class Read(KubernetesCall[Json]):
    """GET one object; the value is the object, as a dict. Made by `Cluster.read`.

    With `version`, the answer may come from a cache that is at least as new as that resourceVersion; without, it is the
    newest state. A ref with a uid asks for that very object: if its name is held by another, the call fails as GONE.
    """

    call_type: str = "read"
    effect: Effect = Effect.READ

    async def execute(self, attempt: Attempt) -> Json:
        query = None if self.version is None else {"resourceVersion": self.version}
        obj = await self._get(attempt, query=query)
        if self._is_other(obj):
            raise self._gone(obj)
        return obj
