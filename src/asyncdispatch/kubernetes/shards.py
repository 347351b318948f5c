"""Shards: a number of parts that replicas share, each owned by one of them at a time (rules R7, R8, R16)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from asyncdispatch.apierrors import ApiError, TransportError
from asyncdispatch.calls import Attempt, ObjectRef, metadata_of
from asyncdispatch.config import check_count, check_seconds
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.dispatcher import Dispatcher
from asyncdispatch.errors import ConfigurationError, DispatchError, StaleContext
from asyncdispatch.kubernetes._apart import ApartTransport
from asyncdispatch.kubernetes._election import Change, Election, Event, LeaseState, LeaseTiming
from asyncdispatch.kubernetes._elector import API_VERSION, Elector, LeaseClient, checked_ref, own_name
from asyncdispatch.kubernetes._record import Record, identity_of
from asyncdispatch.kubernetes._sharing import Sharing, shard_number
from asyncdispatch.kubernetes._terms import Terms
from asyncdispatch.kubernetes.calls import Read
from asyncdispatch.kubernetes.objects import field_of
from asyncdispatch.kubernetes.resources import builtin, collection_path
from asyncdispatch.kubernetes.transport import Transport

__all__ = ["ShardSet", "ShardStatistics"]

log = logging.getLogger("asyncdispatch.kubernetes.shards")

LABEL = "asyncdispatch.dev/shards"
"""The label of all Leases of a set: its value is the set's name."""

Key = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """What a member of a shard set is doing. `members` counts those that are seen to live, this one included."""

    identity: str
    total: int
    owned: frozenset[int]
    handing_over: frozenset[int]
    seeking: frozenset[int]
    members: int
    lists: int
    failures: int
    last_error: str | None


class ShardSet:
    """A share of `total` shards, each fenced by a Lease of its own. Made by `Cluster.shards`; one event loop.

    Enter it *before* the dispatcher that works under it, so that it is left after that: drain first, release after.
    ::

        async with cluster.shards("my-scheduler", "kube-system", total=8) as shards, Dispatcher() as dispatcher:
            shards.join(dispatcher)
            async for pod in unscheduled_pods():
                if shards.owns(pod):
                    context = dispatcher.contexts.begin(pod, parent=shards.context_of(pod))

    Replicas find each other by the label `asyncdispatch.dev/shards`; they need the rights to get, list, create and
    update Leases. An object's shard is a hash of its namespace and name, or of `key(obj)`; all replicas must use the
    same total and key. A shard that goes to another replica is given up once the calls in it have ended, after
    `handover_timeout` seconds at most.
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        namespace: str,
        identity: str | None = None,
        *,
        total: int,
        key: Key | None = None,
        handover_timeout: float = 30.0,
        timing: LeaseTiming,
    ) -> None:
        self.ref = checked_ref(name, namespace)
        if len(name) > 63:
            raise ConfigurationError("name", name, "must have at most 63 characters: it is a label's value too")
        check_count("total", total)
        if key is not None and not callable(key):
            raise ConfigurationError("key", key, "must be a function of an object that gives a str, or None")
        check_seconds("handover_timeout", handover_timeout, zero=True)
        self.total = total
        self._own = own_name(identity)
        self.identity = identity_of(self._own)
        self.timing = timing
        self._key = key or _name_of
        self._handover_timeout = handover_timeout
        self._transport = ApartTransport(transport, connections=8)
        self._sharing = Sharing(self._own, total, timing, random.random)
        self._terms = [Terms(self._lease(f"{name}-{number}")) for number in range(total)]
        self._contexts: dict[int, SchedulingContext] = {}
        self._dispatcher: Dispatcher | None = None
        self._electors: dict[Election, Elector] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._handovers: set[int] = set()
        self._changed = asyncio.Event()
        self._entered = self._left = False
        self._lists = self._failures = 0
        self._last_error: Exception | None = None

    def _lease(self, name: str) -> ObjectRef:
        return ObjectRef(API_VERSION, "Lease", self.ref.namespace, name)

    # -- entering and leaving -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ConfigurationError("shards", self.ref.name, "is entered once: make another with cluster.shards(…)")
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        try:
            for number, shard in enumerate(self._sharing.shards):
                self._give_back(number, shard)
            for slot in self._sharing.slots:
                if slot in self._electors:
                    self._electors[slot].release()
            releases = [asyncio.ensure_future(elector.released()) for elector in self._electors.values()]
            if releases:
                await asyncio.wait(releases)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            self._wake()
            await self._transport.close()

    def join(self, dispatcher: Dispatcher) -> None:
        """Become a member, and work on the shards that fall to it with `dispatcher`. Once."""
        if not isinstance(dispatcher, Dispatcher):
            raise ConfigurationError("dispatcher", dispatcher, "must be the Dispatcher that works on the shards")
        if not self._entered:
            raise ConfigurationError("shards", self.ref.name, "not entered yet: use `async with cluster.shards(…)`")
        if self._left or self._dispatcher is not None:
            raise ConfigurationError("shards", self.ref.name, "is joined once: make another with cluster.shards(…)")
        self._dispatcher = dispatcher
        self._spawn(self._run(), "members")

    # -- whose is what ------------------------------------------------------------------------------------------------

    @property
    def owned(self) -> frozenset[int]:
        """The shards that are ours to work on, at this moment, by the clock."""
        return frozenset(
            n for n in self._sharing.held if n in self._contexts and self._electors[self._shard(n)].leading
        )

    def shard_of(self, obj: Any) -> int:
        """The number of the shard that `obj` (a JSON dict, a client model or an ObjectRef) is in: from 0, below total.

        Raises `ConfigurationError` if its key is no str, or it has no name.
        """
        key = self._key(obj)
        if not isinstance(key, str):
            raise ConfigurationError("key", key, f"must give a str for a {type(obj).__name__}")
        return shard_number(key, self.total)

    def owns(self, obj: Any) -> bool:
        """The shard of `obj` is ours to work on."""
        return self.shard_of(obj) in self.owned

    def context_of(self, obj: Any) -> SchedulingContext:
        """The context under which `obj` may be worked on: its shard's. `StaleContext` if that is not ours (any more).

        Never None, so that nothing is done without a fence by mistake.
        """
        number = self.shard_of(obj)
        if number not in self.owned:
            raise StaleContext(f"shard {number} of {self.ref.name} is not ours (any more)")
        return self._contexts[number]

    async def changed(self, known: frozenset[int] = frozenset()) -> frozenset[int]:
        """Wait until the shards that are ours are others than `known`; returns them. List anew what is in a new one.

        Raises `StaleContext` when the set was left.
        """
        while (owned := self.owned) == known:
            if self._left:
                raise StaleContext(f"shards {self.ref.name} were left")
            await self._changed.wait()
        return owned

    def statistics(self) -> ShardStatistics:
        """What this member is doing, at this moment."""
        shards = self._sharing.shards
        error = self._last_error
        return ShardStatistics(
            identity=self.identity,
            total=self.total,
            owned=self.owned,
            handing_over=frozenset(self._sharing.handing),
            seeking=frozenset(n for n, shard in enumerate(shards) if shard.state is LeaseState.CANDIDATE),
            members=self._sharing.members(asyncio.get_running_loop().time()),
            lists=self._lists,
            failures=self._failures + sum(elector.client.failures for elector in self._electors.values()),
            last_error=None if error is None else str(error) or type(error).__name__,
        )

    def __repr__(self) -> str:
        return f"<ShardSet {self.ref.name} owns {sorted(self.owned)} of {self.total}>"

    # -- running ------------------------------------------------------------------------------------------------------

    def _spawn(self, what: Any, name: str) -> None:
        task = asyncio.create_task(what, name=f"asyncdispatch-shards {self.ref.name} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        """List all Leases of the set every retry period, and want what is due to us. No error ends it."""
        while True:
            try:
                await self._round()
            except (ApiError, TransportError, TimeoutError) as error:
                self._failures += 1
                self._last_error = error
                log.info("shards %s: list failed: %s", self.ref.name, error, extra={"identity": self.identity})
            except Exception as error:
                self._failures += 1
                self._last_error = error
                log.exception("shards %s: a round failed; it goes on", self.ref.name)
            await asyncio.sleep(self.timing.retry_period * random.uniform(1, 1.5))

    async def _round(self) -> None:
        shards, slots = await self._listed()
        assert self._dispatcher is not None
        if self._dispatcher._closer is not None:
            return  # it drains: what is ours stays so until we are left, and there will be no more
        now = asyncio.get_running_loop().time()
        self._sharing.listed(shards, slots, now)
        for number, election in self._elections():
            if election.state is LeaseState.IDLE and not election.changes:
                continue
            if election not in self._electors:
                self._start(number, election)
            self._electors[election].pass_on()
        for number in self._sharing.handing - self._handovers:
            self._handovers.add(number)
            self._spawn(self._hand_over(number), f"hand over {number}")

    def _elections(self) -> Iterator[tuple[int | None, Election]]:
        yield from enumerate(self._sharing.shards)
        for slot in self._sharing.slots:
            yield None, slot

    def _start(self, number: int | None, election: Election) -> None:
        """Run an election from now on: of a shard, or of one of the slots."""
        if number is None:
            ref = self._lease(f"{self.ref.name}-member-{self._sharing.slots.index(election)}")
        else:
            ref = self._lease(f"{self.ref.name}-{number}")
        client = LeaseClient(self._transport, ref, self._own, {LABEL: self.ref.name})
        elector = Elector(election, client, lambda change: self._tell(number, change))
        self._electors[election] = elector
        self._spawn(elector.run(), ref.name)

    async def _listed(self) -> tuple[dict[int, Record], dict[int, Record]]:
        """All Leases of the set, by number: those of shards, and those of slots."""
        resource = builtin(self.ref)
        assert resource is not None
        self._lists += 1
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.timing.request_timeout
        attempt = Attempt(clock, Read(target=self.ref, transport=self._transport), 0, self._lists, deadline, None)
        async with asyncio.timeout_at(deadline):
            found = await self._transport.request(
                "GET", collection_path(self.ref, resource), attempt, query={"labelSelector": f"{LABEL}={self.ref.name}"}
            )
        shards: dict[int, Record] = {}
        slots: dict[int, Record] = {}
        for item in found.get("items") or []:
            kind, _, number = item["metadata"]["name"].removeprefix(f"{self.ref.name}-").rpartition("-")
            if number.isdecimal() and kind in ("", "member"):
                (slots if kind else shards)[int(number)] = Record(item)
        return shards, slots

    # -- what has changed ---------------------------------------------------------------------------------------------

    def _shard(self, number: int) -> Election:
        return self._sharing.shards[number]

    def _tell(self, number: int | None, change: Change) -> None:
        if number is None:
            return
        terms = self._terms[number]
        extra = {"shards": self.ref.name, "shard": number, "identity": self.identity, "reason": change.reason}
        if change.event is Event.ACQUIRED:
            assert self._dispatcher is not None
            try:
                self._contexts[number] = terms.begin(self._dispatcher, change.valid_until)
            except DispatchError:  # it closes
                self._electors[self._shard(number)].release()
                return
            log.info("shards %s: %d is ours", self.ref.name, number, extra=extra)
            self._wake()
        elif change.event is Event.EXTENDED:
            if (over := terms.extend(change.valid_until)) is not None:
                self._electors[self._shard(number)].drop(f"its context has ended: {over}")
        elif change.event in (Event.LOST, Event.RELEASE):
            level = logging.WARNING if change.event is Event.LOST else logging.INFO
            log.log(level, "shards %s: %d is over: %s", self.ref.name, number, change.reason, extra=extra)
            terms.end(f"shard {number} of {self.ref.name} is over: {change.reason}")
            self._contexts.pop(number, None)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _hand_over(self, number: int) -> None:
        """Let the calls in a shard come to their ends, then give it to whoever is to have it."""
        try:
            self._wake()
            context = self._contexts.get(number)
            if context is not None and self._dispatcher is not None:
                await self._dispatcher.contexts.settled(context, self._handover_timeout)
            self._give_back(number, self._shard(number))
        except Exception:
            log.exception("shards %s: %d could not be handed over; it is tried again", self.ref.name, number)
        finally:
            self._handovers.discard(number)

    def _give_back(self, number: int, shard: Election) -> None:
        """Release a shard, unless something that was done in it may yet land: then it is left to run out."""
        if shard not in self._electors:
            return
        if self._terms[number].quiet():
            self._electors[shard].release()
        else:
            self._electors[shard].drop("writes in it may be under way")


def _name_of(obj: Any) -> str:
    """The key by default: an object that is made again under its name stays with its replica."""
    if isinstance(obj, ObjectRef):
        return f"{obj.namespace or ''}/{obj.name}"
    meta = metadata_of(obj)
    if not (name := field_of(meta, "name")):
        raise ConfigurationError("metadata.name", name, f"a {type(obj).__name__} without it is in no shard: set it")
    return f"{field_of(meta, 'namespace') or ''}/{name}"
