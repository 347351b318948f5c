"""The calls that simulated schedulers make: lean values with the rules of the real ones, performed by the engine.

Each write says which `fields` of its object it sets. How it is fenced, told apart after a lost answer, and merged is as
in `asyncdispatch.kubernetes`, without JSON and HTTP. Nobody runs `execute`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from asyncdispatch.apierrors import ApiError
from asyncdispatch.calls import (
    Again,
    APICall,
    Applied,
    Attempt,
    Effect,
    ObjectRef,
    Refused,
    Unknown,
    Verdict,
    VerdictKind,
)
from asyncdispatch.simulation.history import State
from asyncdispatch.verdicts import classify_status

__all__ = ["Bind", "Birth", "Death", "Evict", "Get", "Make", "Note", "SimulatedCall", "Status"]

GONE = ApiError(404, "NotFound", "it is not there, or another object has its name", gone=True)
ELSEWHERE = ApiError(409, "Conflict", "bound elsewhere")
STALE = ApiError(409, "Conflict", "decided on another version")
BOUND = ApiError(409, "Conflict", "bound meanwhile")
TAKEN = ApiError(409, "AlreadyExists", "it exists already, and is not of this call")

Settled = Applied[Any] | Again[Any] | Refused | Unknown

NOTHING: Mapping[str, Any] = {}
SCOPE = "cluster"
"""Of all calls but notes: credentials are those of the cluster."""

_JUDGED: dict[Any, Verdict] = {}


class SimulatedCall(APICall[Any]):
    """A call of the simulation. `fields` is what its object holds once it is done."""

    fields: Mapping[str, Any] = NOTHING
    verb: ClassVar[str] = "patch"
    watched: ClassVar[bool] = False
    """Its object is watched: a Pod."""
    looks: ClassVar[bool] = False
    """A lost answer is settled by one fresh read, before anything is sent again."""

    if TYPE_CHECKING:  # fields that are class attributes need not be given

        def __init__(self, **fields: Any) -> None: ...

    def settled_by(self, state: State | None, doubtful: bool) -> Settled:
        """What became of it, by its object as it is now. `doubtful`: a request of it may have been applied."""
        return Unknown()

    def classify(self, attempt: Attempt, error: BaseException) -> Verdict | None:
        """The default table; what looks before it repeats says so, as the real calls do.

        The server's answers are few and made once, so that each is judged once for each kind of call.
        """
        key = type(self), error, self.target.namespace
        verdict = _JUDGED.get(key)
        if verdict is None:
            verdict = self._judge(attempt, error)
            if isinstance(error, ApiError):
                _JUDGED[key] = verdict
        return verdict

    def _judge(self, attempt: Attempt, error: BaseException) -> Verdict:
        if not isinstance(error, ApiError):
            maybe = self.effect is not Effect.READ and attempt.sent
            verdict = Verdict(VerdictKind.RETRY, maybe, reason=type(error).__name__)
        else:
            verdict = classify_status(error, self)
        if self.looks and verdict.kind is VerdictKind.RETRY and verdict.maybe_applied:
            return Verdict(VerdictKind.RECONCILE, True, verdict.retry_after, verdict.scope, verdict.reason)
        return verdict

    def _is_other(self, state: State) -> bool:
        return self.target.uid is not None and self.target.uid != state[0]

    def _keep(self, values: dict[str, Any]) -> None:
        """Store `values` as the base class would, without a look at what was given: it is given by the engine alone."""
        object.__setattr__(self, "__dict__", values)


class Note(SimulatedCall):
    """A write of a free object that nothing binds, as most calls are: an Event, an annotation."""

    call_type = "note"
    verb = "apply"

    def __init__(self, number: int, target: ObjectRef, flow: str = "default", priority: int = 0) -> None:
        values = {
            "target": target,
            "flow": flow,
            "priority": priority,
            "_common": self._free,
            "fields": {"note": number},
        }
        self._keep(values)


class Bind(SimulatedCall):
    """Bind a Pod to a node, fenced by uid and, with `version`, by the state that it was decided on."""

    call_type = "pod_binding"
    scope = SCOPE
    verb = "bind"
    watched = True
    looks = True
    awaits_prerequisites = True

    def __init__(self, node: str, **values: Any) -> None:
        values["fields"] = {"node": node}
        self._keep(values)

    def settled_by(self, state: State | None, doubtful: bool) -> Settled:
        if state is None or self._is_other(state):
            return Refused(GONE)
        node = state[2].get("node")
        if node == self.fields["node"]:
            return Applied(node)
        if node is not None:
            return Refused(ELSEWHERE)
        if self.version is not None and self.version != str(state[1]):
            return Refused(STALE)
        return Again(self)

    def apply(self, obj: Any) -> Any:
        """The Pod's State as the server leaves it. A Pod that has a node stays as it is."""
        if obj is None or self._is_other(obj) or "node" in obj[2]:
            return obj
        return obj[0], obj[1], {**obj[2], **self.fields}

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Any:  # that it is defined is what counts
        raise NotImplementedError


class Status(SimulatedCall):
    """Set conditions of a Pod; merges with an older one that waits. With a version, it is decided anew when stale."""

    call_type = "pod_status_patch"
    scope = SCOPE
    watched = True

    def __init__(self, conditions: Mapping[str, Any], **values: Any) -> None:
        values["fields"] = conditions
        self._keep(values)

    def merge(self, pending: Any) -> Status:
        return Status({**pending.fields, **self.fields}, target=self.target, version=self.version)

    def settled_by(self, state: State | None, doubtful: bool) -> Settled:
        if state is None or self._is_other(state):
            return Refused(GONE)
        if self.fields.items() <= state[2].items():
            return Applied(state)
        if self.version is None:
            return Again(self)
        if state[2].get("node") is not None:
            return Refused(BOUND)
        return Again(self.decided_on(str(state[1])))

    def decided_on(self, version: str) -> Status:
        other = Status(self.fields, target=self.target)
        other.__dict__.update(self.__dict__)
        other.__dict__["version"] = version
        return other

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Any:
        raise NotImplementedError


class Make(SimulatedCall):
    """Create an object that carries its key as a mark."""

    call_type = "create"
    scope = SCOPE
    effect = Effect.CREATE
    verb = "create"
    looks = True

    def __init__(self, key: str, **values: Any) -> None:
        values["idempotency_key"] = key
        values["fields"] = {"key": key}
        self._keep(values)

    def settled_by(self, state: State | None, doubtful: bool) -> Settled:
        if state is None:
            return Again(self)
        if state[2].get("key") == self.idempotency_key:
            return Applied(state)
        return Refused(TAKEN)

    async def reconcile(self, attempt: Attempt, error: BaseException) -> Any:
        raise NotImplementedError


class Evict(SimulatedCall):
    """Delete a Pod by uid. That it is gone already is what was asked for."""

    call_type = "eviction"
    scope = SCOPE
    verb = "delete"
    watched = True


class Birth(SimulatedCall):
    """A Pod is created by its controller, with the uid that it gets."""

    call_type = "birth"
    verb = "create"
    watched = True


class Death(SimulatedCall):
    """A Pod is deleted by its controller."""

    call_type = "death"
    verb = "delete"
    watched = True


class Get(SimulatedCall):
    """Read an object; equal ones share a request."""

    call_type = "read"
    scope = SCOPE
    effect = Effect.READ
    verb = "get"
