"""A reflector: what the API server has of one kind, held here, kept up to date, and told to a dispatcher (rule R15)."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import tenacity

from asyncdispatch._broadcast import Broadcast, Subscription
from asyncdispatch._delays import Delays
from asyncdispatch.apierrors import ApiError
from asyncdispatch.calls import ObjectRef, Verdict, VerdictKind
from asyncdispatch.config import RetryPolicy, check_count, check_seconds
from asyncdispatch.errors import ConfigurationError, DispatchError
from asyncdispatch.kubernetes._listwatch import (
    BREATH,
    SETTLED,
    ListAgain,
    ListWatch,
    ReflectorError,
    Settings,
    Target,
)
from asyncdispatch.kubernetes._store import WatchEvent
from asyncdispatch.kubernetes.resources import check_segment
from asyncdispatch.kubernetes.transport import Transport

if TYPE_CHECKING:
    from types import TracebackType

    from asyncdispatch.dispatcher import Dispatcher

__all__ = ["Reflector", "ReflectorError", "ReflectorState", "ReflectorStatistics", "WatchEvent"]

log = logging.getLogger("asyncdispatch")

Json = dict[str, Any]
Handler = Callable[[WatchEvent], None]
Selector = str | Mapping[str, str] | None

FULL_WAIT = 60.0
"""Seconds between two looks whether the objects fit into the store by now, which may cost a list each."""
REFUSALS = 3
"""So often in a row a watch may be refused for other reasons than load, until a new list is tried instead."""

_POLICY = RetryPolicy(wait=tenacity.wait_random_exponential(multiplier=0.5, min=0.2, max=30))
_LOADED = (401, 403, 429, 503)  # says nothing about the version that was asked for


class ReflectorState(enum.Enum):
    """What a reflector is doing."""

    NEW = "new"
    LISTING = "listing"
    CONNECTING = "connecting"
    WATCHING = "watching"
    WAITING = "waiting"
    """After a failure, until the next try."""
    FAILED = "failed"
    """Its configuration can't be meant, said the server."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ReflectorStatistics:
    """Counts at one moment, and since the reflector was made.

    `stale_for` is in seconds, infinite before the first list. `failures` is how many tries in a row have failed. `late`
    events told nothing new, `unreadable` ones were read anew, `drifts` says how often events had been lost.
    """

    state: ReflectorState
    objects: int
    stale_for: float
    failures: int
    last_error: Exception | None
    lists: int
    watches: int
    events: int
    late: int
    unreadable: int
    drifts: int
    handler_errors: int


class Reflector:
    """The objects of one kind as the API server has them: an async context manager. Made by `Cluster.reflector`.

    Inside of `async with` one task lists and then watches, over connections of its own, outside of any dispatcher's
    economy (rule R8). It never gives up: whatever fails is tried again, with jitter and at the server's Retry-After,
    and the store stays as it was. Leaving ends the task and closes the connections. Objects are JSON dicts without
    `managedFields`, shared by all who read them: don't change them.

    `dispatcher` is told of every object that comes or changes (`observe`) and of every one that is gone (`forget`; not
    with selectors, since what they leave out need not be gone). `handlers` are called with each `WatchEvent`, in
    order and on the event loop; their errors are logged and counted. For tasks, see `events`.

    `max_objects` bounds the store. With more than that the store stays as it was, and the reflector says so in
    `last_error` and looks again each minute. `idle_limit`: a watch that has brought neither event nor bookmark for so
    long is dead, and is opened anew from the last version. `check_interval`: so often the objects are counted, and
    listed anew if events were lost; with selectors, for which servers don't count, they are listed anew. `page_size`
    objects are read at once, and hold the event loop for as long as it takes to parse them.
    """

    def __init__(
        self,
        transport: Transport,
        api_version: str,
        kind: str,
        *,
        namespace: str | None = None,
        labels: Selector = None,
        fields: Selector = None,
        plural: str | None = None,
        dispatcher: Dispatcher | None = None,
        handlers: tuple[Handler, ...] = (),
        page_size: int = 100,
        max_objects: int = 100_000,
        idle_limit: float = 90.0,
        check_interval: float = 600.0,
    ) -> None:
        check_count("page_size", page_size)
        check_count("max_objects", max_objects)
        check_seconds("idle_limit", idle_limit)
        check_seconds("check_interval", check_interval)
        for handler in handlers:
            if not callable(handler):
                raise ConfigurationError("handlers", handler, "each must be a function of a WatchEvent")
        for field, segment in (("namespace", namespace), ("plural", plural)):
            if segment is not None:
                check_segment(segment, field)
        target = Target(api_version, kind, namespace, _selector("labels", labels), _selector("fields", fields), plural)
        settings = Settings(page_size, max_objects, idle_limit, check_interval)
        self._target = target
        self._dispatcher = dispatcher
        self._handlers = handlers
        self._watching = ListWatch(transport, target, settings, self._tell)
        self._broadcast: Broadcast[WatchEvent] = Broadcast()
        self._delays = Delays(_POLICY)
        self._state = ReflectorState.NEW
        self._must_list = True
        self._failures = 0
        self._expiries = 0
        self._refusals = 0
        self._last_error: Exception | None = None
        self._listed = False
        self._decided = asyncio.Event()  # listed, or known to be impossible
        self._task: asyncio.Task[None] | None = None

    # -- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise ConfigurationError("reflector", self._state.value, "enter it once only: make another one")
        self._task = asyncio.create_task(self._run(), name=f"asyncdispatch-reflector {self._target.kind}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        cancelled: asyncio.CancelledError | None = None
        while not self._task.done():
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError as again:  # we leave nothing behind: end first, then be cancelled
                cancelled = again
        if cancelled is not None:
            raise cancelled

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, namespace: str | None, name: str) -> Json | None:
        """The object of that name, or None. `namespace` is None for kinds that are in none."""
        return self._watching.store.objects.get((namespace or "", name))

    def __iter__(self) -> Iterator[Json]:
        """All objects of this moment, whatever happens during the iteration."""
        return iter(list(self._watching.store.objects.values()))

    def __len__(self) -> int:
        return len(self._watching.store.objects)

    def __bool__(self) -> bool:
        return True

    async def synced(self) -> None:
        """Wait until the store is whole for the first time, and everybody was told. Cancelling it leaves the rest.

        Raises `ReflectorError` if there are too many objects or it is closed first, `ApiError` or `ConfigurationError`
        if the server calls the request itself wrong. Other failures are waited out: see `last_error`.
        """
        if self._state is ReflectorState.NEW and self._task is None:
            raise ReflectorError("it was not entered: use 'async with'")
        await self._decided.wait()
        if not self._listed:
            raise self._last_error or ReflectorError("it was closed before its first list was whole")

    def events(self, maxsize: int = 1024) -> Subscription[WatchEvent]:
        """Subscribe to what happens from now on: `async with pods.events() as events: async for event in events`.

        At most `maxsize` events wait; a slow subscriber loses the oldest, and is told so by `event.lost`.
        """
        return Subscription(self._broadcast, maxsize)

    @property
    def state(self) -> ReflectorState:
        return self._state

    @property
    def last_error(self) -> Exception | None:
        """What went wrong last; None once a watch is open again."""
        return self._last_error

    @property
    def stale_for(self) -> float:
        """Seconds since the store was last known to be as the server has it; infinite before the first list.

        That is known when a list begins, and with each event or bookmark. Up to a minute is usual: a server sends a
        bookmark that often where nothing happens.
        """
        if not self._listed:
            return float("inf")
        return max(0.0, asyncio.get_running_loop().time() - self._watching.fresh_at)

    def statistics(self) -> ReflectorStatistics:
        """Frozen counts of this moment."""
        counts, store = self._watching.counts, self._watching.store
        return ReflectorStatistics(
            state=self._state,
            objects=len(self),
            stale_for=self.stale_for,
            failures=self._failures,
            last_error=self._last_error,
            lists=counts.lists,
            watches=counts.watches,
            events=counts.events,
            late=store.late,
            unreadable=counts.unreadable,
            drifts=counts.drifts,
            handler_errors=counts.handler_errors,
        )

    def __repr__(self) -> str:
        target = self._target
        what = [target.api_version, target.kind, f"in {target.namespace}" * bool(target.namespace)]
        said = [self._state.value, f"{len(self)} objects"]
        if self._listed and self._state is not ReflectorState.CLOSED:
            said.append(f"stale for {self.stale_for:.0f} s")
        return f"<Reflector {' '.join(filter(None, (*what, target.labels, target.fields)))}: {', '.join(said)}>"

    # -- the task ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        state = ReflectorState.CLOSED
        try:
            while (delay := await self._turn()) is not None:
                if delay:
                    self._state = ReflectorState.WAITING
                    await asyncio.sleep(delay)
            state = ReflectorState.FAILED
            log.error("%r can't work: %s", self, self._last_error)
        finally:
            self._state = state
            self._decided.set()
            self._broadcast.close()
            await self._watching.aclose()

    async def _turn(self) -> float | None:
        """A list or a watch. Returns for how long to wait then; None if there is no use in going on."""
        version, self._watching.opened = self._watching.store.version, None
        try:
            if self._must_list:
                self._state = ReflectorState.LISTING
                await self._watching.list()
                self._must_list, self._refusals, self._listed = False, 0, True
                self._decided.set()
                return 0.0
            self._state = ReflectorState.CONNECTING
            await self._watching.check()
            await self._watching.watch(self._answered)
        except Exception as error:
            self._note_progress(version)
            delay = self._after(error)
            self._last_error = _light(error)
            return delay
        brief = self._note_progress(version)
        if not brief and not self._failures:
            return 0.0
        self._failures += 1
        return self._delay(ListAgain("the watch ended at once"))

    def _answered(self) -> None:
        """A watch is open."""
        self._state = ReflectorState.WATCHING
        self._last_error = None

    def _note_progress(self, version: str) -> bool:
        """Failures are in a row until a watch has brought something or lasted. True if it was brief all the same."""
        opened = self._watching.opened
        if opened is None:
            return True
        lasted = asyncio.get_running_loop().time() - opened
        if lasted >= SETTLED or self._watching.store.version != version:
            self._failures = self._expiries = self._refusals = 0
        return lasted < SETTLED

    def _after(self, error: Exception) -> float | None:
        """What an error leads to, and how long to wait before."""
        self._failures += 1
        if isinstance(error, ConfigurationError) or self._is_mistake(error):
            return None
        if isinstance(error, ReflectorError):
            log.error("%r: %s", self, error)
            self._must_list = True
            self._decided.set()
            return max(FULL_WAIT, self._delay(error))
        if isinstance(error, ListAgain) or (isinstance(error, ApiError) and error.status == 410):
            # What is known is too old, or wrong. Once at once; if a new list does not help, not hot (case I1).
            self._must_list = True
            self._expiries += 1
            return 0.0 if self._expiries == 1 else self._delay(error)
        if isinstance(error, ApiError) and error.status not in _LOADED:
            self._refusals += 1
            self._must_list = self._must_list or self._refusals >= REFUSALS
        elif not isinstance(error, DispatchError):
            log.error("%r: this should not happen; listing again", self, exc_info=error)
            self._must_list = True
        delay = self._delay(error)
        log.warning("%r: %s; trying again in %.1f s", self, error, delay)
        return delay

    def _is_mistake(self, error: Exception) -> bool:
        """The API server itself (not something before it) calls the first list a bad request: it will never pass."""
        answered = isinstance(error, ApiError) and error.status == 400 and error.status_object is not None
        return answered and not self._listed and self._must_list

    def _delay(self, error: Exception) -> float:
        verdict = Verdict(VerdictKind.RETRY, retry_after=getattr(error, "retry_after", None))
        return self._delays.next(None, verdict, error, max(self._failures, 1), 0.0, 0.0)[0]

    # -- telling -----------------------------------------------------------------------------------------------------

    async def _tell(self, events: list[WatchEvent]) -> None:
        """Tell everybody, giving way to others in between."""
        for index, event in enumerate(events, 1):
            if self._dispatcher is not None:
                self._call(self._feed, event)
            for handler in self._handlers:
                self._call(handler, event)
            self._broadcast.send(event)
            if not index % BREATH:
                await asyncio.sleep(0)

    def _call(self, handler: Handler, event: WatchEvent) -> None:
        try:
            handler(event)
        except Exception:
            self._watching.counts.handler_errors += 1
            log.exception("a handler of %r raised on %s", self, event.type, extra={"kind": self._target.kind})

    def _feed(self, event: WatchEvent) -> None:
        """The dispatcher sees what we see. The uid says which object is gone: a newer one of its name is safe (R13)."""
        assert self._dispatcher is not None
        if event.type != "DELETED":
            self._dispatcher.observe(event.object)
        elif not self._target.selective and (ref := ObjectRef.of(event.object)).uid is not None:
            self._dispatcher.forget(ref, "deleted")


def _selector(field: str, selector: object) -> str:
    """A selector as the API server reads it."""
    if selector is None or isinstance(selector, str):
        return selector or ""
    if isinstance(selector, Mapping) and all(isinstance(part, str) for pair in selector.items() for part in pair):
        return ",".join(f"{key}={value}" for key, value in selector.items())
    raise ConfigurationError(field, selector, "must be a selector's text, or a mapping of strings to strings")


def _light(error: Exception) -> Exception:
    """`error` without the frames that it came through: they hold pages, and it may be kept for long (case I7)."""
    chain: list[BaseException] = [error]
    for found in chain:
        found.__traceback__ = None
        chain += (other for other in (found.__cause__, found.__context__) if other is not None and other not in chain)
    return error
