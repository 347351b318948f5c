"""Events: notes for people about an object, told at best effort (rule R22).

They are written as events.k8s.io/v1, as kube-scheduler's are: it says who reports and what was done, has one exact
time instead of two rounded ones, and a count of repeats with a place of its own. The core/v1 Event is the older face
of the same stored object; `kubectl describe` shows both alike.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import socket
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import tenacity

from asyncdispatch.apierrors import ApiError
from asyncdispatch.calls import Attempt, Effect, ObjectRef, version_of
from asyncdispatch.config import RetryPolicy
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes.calls import KubernetesCall
from asyncdispatch.kubernetes.objects import Json, checked_ref
from asyncdispatch.kubernetes.resources import collection_path

__all__ = ["LOWEST_PRIORITY", "ONE_RETRY", "REPORTER", "Event", "regarding", "slot"]

LOWEST_PRIORITY = -(2**31)
ONE_RETRY = RetryPolicy(stop=tenacity.stop_after_attempt(2))
REPORTER = "asyncdispatch"

NOTE_LIMIT = 1024
"""Bytes: what the server takes of a note."""
_TEXT_LIMIT = 128


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _unique() -> str:
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, kw_only=True, repr=False)
class Event(KubernetesCall[Json]):
    """Tell an Event about `about`, an object reference; the value is the Event. Made by `Cluster.event`.

    Best effort: at the lowest level, shed first, tried twice at most. Its `target` stands for (object, reason), not for
    the Event itself, which has a name of its own: so it never holds up a write on the object that it is about, at most
    one of a kind is in flight, and those that wait behind it become one, with the newest note and a count.
    """

    about: Json = field(hash=False)
    reason: str
    note: str
    type: str = "Normal"
    action: str
    reporter: str = REPORTER
    instance: str = field(default_factory=lambda: socket.gethostname()[:_TEXT_LIMIT] or REPORTER)
    count: int = 1
    first: str = field(default_factory=_now, compare=False)
    last: str = field(default_factory=_now, compare=False)
    suffix: str = field(default_factory=_unique, compare=False)
    call_type: str = "event"
    effect: Effect = Effect.IDEMPOTENT_WRITE
    sheddable: bool = True
    priority: int = LOWEST_PRIORITY
    retry: RetryPolicy | None = ONE_RETRY

    def __post_init__(self) -> None:
        for name in ("reason", "action", "reporter", "instance"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value or len(value) > _TEXT_LIMIT:
                raise ConfigurationError(name, value, f"must be a string of 1 to {_TEXT_LIMIT} characters")
        if not isinstance(self.note, str):
            raise ConfigurationError("message", type(self.note).__name__, "must be a string")
        if self.type not in ("Normal", "Warning"):
            raise ConfigurationError("type", self.type, "must be 'Normal' or 'Warning'")

    async def execute(self, attempt: Attempt) -> Json:
        path = collection_path(self.target, await self.transport.locate(self.target, None, attempt))
        body = self.body()
        try:
            return await self.transport.request("POST", path, attempt, body=body)
        except ApiError as error:
            if error.status == 409 and error.reason == "AlreadyExists":
                return body  # nobody else has this name: our first request was applied
            raise

    def body(self) -> Json:
        """The Event as it is sent."""
        base = self.target.name.rpartition(".")[0]
        event: Json = {
            "apiVersion": self.target.api_version,
            "kind": self.target.kind,
            "metadata": {"name": f"{base}.{self.suffix}", "namespace": self.target.namespace},
            "eventTime": self.first,
            "type": self.type,
            "reason": self.reason,
            "action": self.action,
            "note": _cut(self.note),
            "regarding": self.about,
            "reportingController": self.reporter,
            "reportingInstance": self.instance,
        }
        if self.count > 1:
            event["series"] = {"count": self.count, "lastObservedTime": self.last}
        return event

    def merge(self, pending: Any) -> Self | None:
        """One Event for both: since the first of them, as often as all of them, with the newest note."""
        return dataclasses.replace(self, first=pending.first, count=pending.count + self.count)

    def __repr__(self) -> str:
        place = "/".join(str(self.about[part]) for part in ("namespace", "name") if part in self.about)
        return f"<Event {self.reason} of {self.about['kind']} {place}>"


def regarding(obj: Any) -> Json:
    """A reference to an object (dict, client model or ref), as Events carry it."""
    ref = checked_ref(obj)
    if ref.generated:
        raise ConfigurationError("obj.metadata.name", ref.name, "give the name: it is not known yet for this object")
    version = None if isinstance(obj, ObjectRef) else version_of(obj)
    known = {"namespace": ref.namespace, "uid": ref.uid, "resourceVersion": version}
    head = {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name}
    return {**head, **{key: value for key, value in known.items() if value}}


def slot(about: Json, *what: str) -> ObjectRef:
    """What stands for the Events about one object that say the same: their target. Theirs is the object's namespace."""
    known = "/".join((about["apiVersion"], about["kind"], about["name"], about.get("uid", ""), *what))
    base = re.sub(r"[^a-z0-9-]+", "-", about["name"].lower()).strip("-")[:200].strip("-") or "object"
    digest = hashlib.sha256(known.encode()).hexdigest()[:16]
    return ObjectRef("events.k8s.io/v1", "Event", about.get("namespace", "default"), f"{base}.{digest}")


def _cut(note: str) -> str:
    """A note that is too long is cut: losing its end is better than losing the Event."""
    raw = note.encode()
    return note if len(raw) <= NOTE_LIMIT else raw[: NOTE_LIMIT - 3].decode(errors="ignore") + "…"
