"""Runs an election against the server: one Lease, one request at a time, on connections of its own (rule R8)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from asyncdispatch.apierrors import ApiError, TransportError
from asyncdispatch.calls import Attempt, ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes._election import (
    Answer,
    Change,
    Election,
    Kind,
    LeaseState,
    Refusal,
    Refused,
    Request,
)
from asyncdispatch.kubernetes._record import HOLDER, Record, identity_of
from asyncdispatch.kubernetes.calls import Read
from asyncdispatch.kubernetes.resources import builtin, collection_path, object_path
from asyncdispatch.kubernetes.transport import Transport
from asyncdispatch.verdicts import names_target

__all__ = ["API_VERSION", "Elector", "LeaseClient", "checked_ref", "own_name"]

log = logging.getLogger("asyncdispatch.kubernetes.lease")

Json = dict[str, Any]

API_VERSION = "coordination.k8s.io/v1"

TICK = 0.001
"""The shortest wait, in seconds: a timer may ring a moment early, and must not be set again for the same moment."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def checked_ref(name: str, namespace: str) -> ObjectRef:
    """The ref of a Lease. `ConfigurationError` if nothing can have that name."""
    for label, value, most in (("name", name, 253), ("namespace", namespace, 63)):
        if not isinstance(value, str) or len(value) > most or not _NAME.fullmatch(value):
            remedy = f"must be lower-case letters, digits, '-' and '.', at most {most} of them"
            raise ConfigurationError(label, value, remedy)
    return ObjectRef(API_VERSION, "Lease", namespace, name)


def own_name(identity: str | None) -> str:
    """`identity` (by default the host's name, and a random part) with a suffix that nobody else has, here or elsewhere.

    It stands in an annotation of each Lease that is held, beside the identity in its spec. So whoever it names is this
    very participant: a process that was started again under the same identity waits like any other, and can't be taken
    for its predecessor.
    """
    if identity is None:
        identity = f"{socket.gethostname() or f'process-{os.getpid()}'}_{secrets.token_hex(4)}"
    if not isinstance(identity, str) or not identity or len(identity) > 200 or not identity.isprintable():
        raise ConfigurationError("identity", identity, "must be a printable name of 1 to 200 characters, or None")
    return f"{identity}_{secrets.token_hex(4)}"


class LeaseClient:
    """The requests of an election, for one Lease."""

    def __init__(self, transport: Transport, ref: ObjectRef, own: str, labels: Mapping[str, str] | None = None) -> None:
        self._transport = transport
        self._clock = asyncio.get_running_loop().time
        self._call = Read(target=ref, transport=transport)
        self._own = own
        self._labels = dict(labels or {})
        resource = builtin(ref)
        assert resource is not None
        self._collection = collection_path(ref, resource)
        self._path = object_path(ref, resource)
        self.requests = 0
        self.failures = 0
        self.last_error: BaseException | None = None

    async def send(self, request: Request, duration: float) -> Answer:
        """Send it; never raises but when cancelled. What was not answered by the request's deadline has failed."""
        self.requests += 1
        # Ticket 0 is no call's: the audit id tells these requests from those of the dispatcher.
        attempt = Attempt(self._clock, self._call, 0, self.requests, request.deadline, None)
        try:
            async with asyncio.timeout_at(request.deadline):
                return Record(await self._sent(request, attempt, duration))
        except Exception as error:
            return self._refused(error, request)

    async def _sent(self, request: Request, attempt: Attempt, duration: float) -> Json:
        if request.kind is Kind.READ:
            return await self._transport.request("GET", self._path, attempt)
        body = body_of(request, self._call.target, self._own, duration, datetime.now(UTC))
        if request.kind is Kind.CREATE:
            if self._labels:
                body["metadata"]["labels"] = self._labels
            return await self._transport.request("POST", self._collection, attempt, body=body)
        return await self._transport.request("PUT", self._path, attempt, body=body)

    def _refused(self, error: Exception, request: Request) -> Refused:
        if isinstance(error, ApiError):
            if error.status == 409:
                return Refused(Refusal.CONFLICT, error.message)
            if error.status == 404 and names_target(error, self._call, unnamed=False):
                return Refused(Refusal.MISSING, error.message)
        self.failures += 1
        self.last_error = error
        expected = isinstance(error, (ApiError, TransportError, TimeoutError))
        log.log(
            logging.INFO if expected else logging.ERROR,
            "lease %s: %s failed: %s",
            self._call.target,
            request.kind.value,
            str(error) or type(error).__name__,
            exc_info=None if expected else error,
            extra={"lease": str(self._call.target), "identity": identity_of(self._own)},
        )
        return Refused(Refusal.FAILED, str(error))


def body_of(request: Request, ref: ObjectRef, own: str, duration: float, wall: datetime) -> Json:
    """The Lease that a write of `own` leaves. What others have in its metadata and spec stays.

    The times are for people to read; nobody decides by them. They must differ from the last ones, since a write that
    changes nothing is not seen by those who wait.
    """
    old = request.base.spec if request.base is not None else {}
    stamp = _micro_time(wall)
    if stamp == old.get("renewTime"):
        stamp = _micro_time(wall + timedelta(microseconds=1))
    spec = {**old, "renewTime": stamp}
    if request.kind is Kind.RELEASE:
        # As client-go leaves it: no holder (the server refuses an empty one), and the shortest duration there is.
        spec.pop("holderIdentity", None)
        spec.update(leaseDurationSeconds=1, acquireTime=stamp)
    else:
        spec.update(holderIdentity=identity_of(own), leaseDurationSeconds=int(duration))
        if request.base is None or request.base.holder != own:
            transitions = request.base.transitions + 1 if request.base is not None else 0
            spec.update(acquireTime=stamp, leaseTransitions=transitions)
    metadata: Json = {"name": ref.name, "namespace": ref.namespace}
    if request.base is not None:
        metadata = {**request.base.obj.get("metadata", {})}
        metadata.pop("managedFields", None)
    if request.kind is not Kind.RELEASE:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), HOLDER: own}
    return {"apiVersion": API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec}


def _micro_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Elector:
    """Runs one election until it is cancelled. `tell` is given each change, in order and at once; it must not raise."""

    def __init__(self, election: Election, client: LeaseClient, tell: Callable[[Change], None]) -> None:
        self.election = election
        self.client = client
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._poke = asyncio.Event()
        self._changed = asyncio.Event()

    # -- what its owner wants -----------------------------------------------------------------------------------------

    def seek(self) -> None:
        self.election.seek(self._loop.time())
        self.pass_on()

    def release(self) -> None:
        self.election.release(self._loop.time())
        self.pass_on()

    def drop(self, reason: str) -> None:
        self.election.drop(self._loop.time(), reason)
        self.pass_on()

    def now(self) -> float:
        return self._loop.time()

    @property
    def leading(self) -> bool:
        """It holds the Lease at this moment, by the clock, and for a moment more."""
        return self.election.valid_until > self._loop.time() + 1e-6

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    async def released(self) -> None:
        """Wait until the server has been told, or could not be in the time of one request."""
        if self.election.state is LeaseState.RELEASING:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.election.timing.request_timeout + 1):
                    while self.election.state is LeaseState.RELEASING:
                        await self._changed.wait()

    def wake(self) -> None:
        """Wake whoever waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask what is to be asked, for ever. No error ends it: the term ends by the clock if nothing else works."""
        while True:
            try:
                await self._step()
            except Exception:
                log.exception("lease %s: the election stumbled; it goes on", self.client._call.target)
                await asyncio.sleep(self.election.timing.retry_period)

    async def _step(self) -> None:
        election = self.election
        request = election.next(self._loop.time())
        self.pass_on()
        if request is None:
            await self._wait(election.wake_at())
            return
        try:
            answer = await self.client.send(request, election.timing.lease_duration)
        except BaseException:
            election.answered(Refused(Refusal.FAILED, "cut off"), self._loop.time())
            raise
        self._stalled(request.deadline)
        election.answered(answer, self._loop.time())
        self.pass_on()

    async def _wait(self, until: float) -> None:
        self._poke.clear()
        soonest = self._loop.time() + TICK
        try:
            async with asyncio.timeout_at(None if math.isinf(until) else max(until, soonest)):
                await self._poke.wait()
        except TimeoutError:
            self._stalled(until)

    def _stalled(self, due: float) -> None:
        """Say so if this ran much later than it should have (rule R20)."""
        late = self._loop.time() - due
        if late > self.election.timing.retry_period:
            log.warning(
                "lease %s: the event loop was held for %.3g s, in which nothing could be renewed",
                self.client._call.target,
                late,
                extra={"lease": str(self.client._call.target), "seconds": late},
            )

    def pass_on(self) -> None:
        """Tell what has changed, and wake whoever waits for it."""
        election = self.election
        if not election.changes:
            return
        changes, election.changes = election.changes, []
        for change in changes:
            self._tell(change)
        self._poke.set()
        self.wake()
