"""Creating objects so that each is created once: by name, by mark, and never by a second POST in doubt (rule R5)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from asyncdispatch.apierrors import ApiError
from asyncdispatch.calls import Again, Applied, Attempt, Effect, Reconciled, Refused, Unknown, Verdict
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.calls import KubernetesCall, refused
from asyncdispatch.kubernetes.marks import checked_key, is_dying, is_marked, marked, ours, selector
from asyncdispatch.kubernetes.objects import Json
from asyncdispatch.kubernetes.resources import collection_path

__all__ = ["Create"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Create(KubernetesCall[Json]):
    """Create `obj`; the value is the object as the server made it. Made by `Cluster.create`.

    With an `idempotency_key`, a string, the object carries it as our mark (see `marks`), and the create knows its own
    object again after a lost answer, and after a restart of the program. Without a key, an object of that name that
    turns up after a lost answer may be anybody's, so that the outcome is ambiguous.

    An object with `generateName` is looked for by its mark before each POST; an answer that is lost after one was sent
    and finds nothing is ambiguous, since the object may still appear. `doubtful` says that an earlier request of this
    call may have been applied.
    """

    obj: Json = field(hash=False)
    doubtful: bool = False
    call_type: str = "create"
    effect: Effect = Effect.CREATE

    def __post_init__(self) -> None:
        key = checked_key(self.idempotency_key)
        if key is not None:
            object.__setattr__(self, "obj", marked(self.obj, key, label=self.target.generated))

    @property
    def _key(self) -> str | None:
        return checked_key(self.idempotency_key)

    async def execute(self, attempt: Attempt) -> Json:
        attempt.sent = False  # the look for an earlier one sends nothing that could create
        path = collection_path(self.target, await self.transport.locate(self.target, self.plural, attempt))
        if self.target.generated and self._key is not None:
            found = await self._find(path, attempt, self._key)
            if found is not None and not is_dying(found):
                return found
        return await self.transport.request("POST", path, attempt, body=self.obj)

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        return self._settle_by_reading(super().classify(attempt, error))

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Reconciled[Json]:
        """Is it there, and is it ours? By name, or by the mark where the server chose the name."""
        doubtful = self.doubtful or not refused(error)
        if not self.target.generated:
            return self.settled_by(await self._read(attempt), doubtful)
        if self._key is not None:
            path = collection_path(self.target, await self.transport.locate(self.target, self.plural, attempt))
            found = await self._find(path, attempt, self._key)
            if found is not None:
                return Applied(found)
        return Unknown(maybe_applied=True) if doubtful else Again(self)

    def settled_by(self, found: Json | None, doubtful: bool) -> Reconciled[Json]:
        """What became of a create by name, by what holds the name now (None: nothing).

        Raises `ApiError` in the words of the server's own "object is being deleted" while a dying object holds it.
        """
        if found is None:
            # A POST by name is safe to repeat: if the first one lands yet, the second meets it as AlreadyExists.
            return Again(dataclasses.replace(self, doubtful=doubtful))
        if is_dying(found):
            message = f"object is being deleted: {self.target} still holds the name"
            raise ApiError(409, "AlreadyExists", message, request="" if doubtful else "POST again")
        if self._key is not None and is_marked(found, self._key):
            return Applied(found)
        if self._key is None and doubtful:
            return Unknown(maybe_applied=True)
        return Refused(ApiError(409, "AlreadyExists", f"{self.target} already exists, and is not of this call"))

    def apply(self, obj: Json | None) -> Json | None:
        """What is created; an object that is there already stays as it is."""
        return _copy(self.obj) if obj is None else obj

    async def _find(self, path: str, attempt: Attempt, key: str) -> Json | None:
        query = {"labelSelector": selector(key)}
        listed = await self.transport.request("GET", path, attempt, query=query, aside=True)
        items = listed.get("items")
        if not isinstance(items, list):
            raise ApiError(200, "Unreadable", "the answer is no list: it has no items", request=f"GET {path}")
        head = {"apiVersion": self.target.api_version, "kind": self.target.kind}  # items of a list lack both
        found = ours(items, key)
        return None if found is None else {**head, **found}


def _copy(obj: Json) -> Json:
    """A copy whose top and metadata may be changed."""
    return {**obj, "metadata": dict(obj.get("metadata") or {})}


def checked_new(obj: Json) -> Json:
    """`obj` if it can be created; `ConfigurationError` for fields that only the server gives."""
    meta = obj.get("metadata")
    for name in ("uid", "resourceVersion"):
        if isinstance(meta, dict) and meta.get(name):
            remedy = "it is the server's to give: take it out of an object that is to be created"
            raise ConfigurationError(f"obj.metadata.{name}", meta[name], remedy)
    return obj
