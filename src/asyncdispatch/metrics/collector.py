"""The collector: reads a dispatcher when Prometheus asks, and keeps the few counts that only it needs."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from asyncdispatch._core.metering import Meter
from asyncdispatch.errors import Backpressure, ConfigurationError, DispatcherClosed, MergeFailed, StaleContext
from asyncdispatch.metrics.families import FAMILIES
from asyncdispatch.metrics.labels import MAX_NAMES, Names
from asyncdispatch.metrics.scrape import Scrape, empty
from asyncdispatch.rollout.guard import Guard
from asyncdispatch.statistics import Mode

if TYPE_CHECKING:
    from asyncdispatch.dispatcher import Dispatcher
    from asyncdispatch.kubernetes.lease import LeaseStatistics
    from asyncdispatch.kubernetes.reflector import ReflectorStatistics

__all__ = ["DispatcherMetrics"]

PATIENCE = 2.0
"""Seconds that a scrape from another thread waits for the event loop."""

MAX_HANDED_IN = 64
"""Leases, and reflectors."""

_users: WeakKeyDictionary[CollectorRegistry, DispatcherMetrics] = WeakKeyDictionary()


class HasLeaseStatistics(Protocol):
    def statistics(self) -> LeaseStatistics: ...


class HasReflectorStatistics(Protocol):
    def statistics(self) -> ReflectorStatistics: ...


class DispatcherMetrics(Collector):
    """`dispatcher.metrics`: what a registry shows of a dispatcher. Made by `Dispatcher(registry=registry)`.

    One registry for each dispatcher: two in one would show two values under one name. A dispatcher that is closed
    leaves its last numbers in the registry until another takes its place. May be scraped from any thread: the event
    loop is asked then, and if it does not answer in two seconds, all that is shown is `asyncdispatch_up 0`.
    """

    def __init__(self, dispatcher: Dispatcher, registry: CollectorRegistry) -> None:
        if not isinstance(registry, CollectorRegistry):
            raise ConfigurationError("registry", registry, "must be a prometheus_client.CollectorRegistry or None")
        config = dispatcher.config
        self.meter = Meter(len(config.levels.levels), tuple(config.call_types), MAX_NAMES)
        self.registry = registry
        self.dispatcher = dispatcher
        self.flows = Names("flow", tuple(config.flows))
        self.refusals: dict[str, int] = {}
        self.modes = dict.fromkeys(Mode, 0)
        self.guard: Guard | None = None
        self.leases: dict[str, HasLeaseStatistics] = {}
        self.reflectors: dict[str, HasReflectorStatistics] = {}
        self.warned = False  # of too many call types

    def register(self, observers: Iterable[Any]) -> None:
        """Begin to be shown. Raises `ConfigurationError` if the registry shows another dispatcher, or has our names."""
        self.guard = next((observer for observer in observers if isinstance(observer, Guard)), None)
        before = _users.get(self.registry)
        if before is not None:
            if not before.over:
                raise ConfigurationError("registry", self.registry, "shows another dispatcher: give each its own")
            self.registry.unregister(before)
            del _users[self.registry]
        try:
            self.registry.register(self)
        except ValueError as error:
            raise ConfigurationError("registry", self.registry, f"has metrics of our names already: {error}") from error
        _users[self.registry] = self

    @property
    def over(self) -> bool:
        """True once its dispatcher is closed."""
        return self.dispatcher._state.startswith("closed")

    # -- counted here -----------------------------------------------------------------------------------------------

    def refused(self, error: BaseException) -> None:
        """Of the dispatcher: a call was refused."""
        reason = "mistaken"
        if isinstance(error, Backpressure):
            reason = error.scope
        elif isinstance(error, StaleContext):
            reason = "stale"
        elif isinstance(error, MergeFailed):
            reason = "merge_failed"
        elif isinstance(error, DispatcherClosed):
            reason = "closed"
        self.refusals[reason] = self.refusals.get(reason, 0) + 1

    def mode_changed(self, mode: Mode) -> None:
        """Of the dispatcher."""
        self.modes[mode] += 1

    def watch_lease(self, name: str, lease: HasLeaseStatistics) -> None:
        """Show a lease, too, under this name. Raises `ConfigurationError` if the name is taken or there are many."""
        self._hand_in(name, lease, self.leases, "lease")

    def watch_reflector(self, name: str, reflector: HasReflectorStatistics) -> None:
        """Show a reflector, too, under this name. Raises `ConfigurationError` as `watch_lease` does."""
        self._hand_in(name, reflector, self.reflectors, "reflector")

    @staticmethod
    def _hand_in(name: str, what: Any, table: dict[str, Any], kind: str) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigurationError("name", name, "must be a short text: it becomes the value of a label")
        if not hasattr(what, "statistics"):
            raise ConfigurationError(kind, what, f"must be a {kind}, which has `statistics()`")
        if name in table:
            raise ConfigurationError("name", name, f"is that of another {kind} already")
        if len(table) >= MAX_HANDED_IN:
            raise ConfigurationError(kind, name, f"is one too many: {MAX_HANDED_IN} can be shown")
        table[name] = what

    # -- being scraped ----------------------------------------------------------------------------------------------

    def describe(self) -> list[Metric]:
        """The names alone, by which a registry notices collisions."""
        return [empty(name) for name in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Everything there is to tell at this moment."""
        yield from self._on_the_loop()

    def _on_the_loop(self) -> list[Metric]:
        loop = getattr(self.dispatcher, "_loop", None)
        if loop is None or not loop.is_running() or asyncio._get_running_loop() is loop:
            return self._collected()
        future: concurrent.futures.Future[list[Metric]] = concurrent.futures.Future()

        def answer() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(self._collected())
                except BaseException as error:
                    future.set_exception(error)

        try:
            loop.call_soon_threadsafe(answer)
            return future.result(PATIENCE)
        except (TimeoutError, concurrent.futures.TimeoutError, RuntimeError):
            future.cancel()
            up = empty("up")
            up.add_sample(up.name, {}, 0)
            return [up]

    def _collected(self) -> list[Metric]:
        return list(Scrape(self).all().values())
