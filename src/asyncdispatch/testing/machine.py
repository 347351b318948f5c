"""`DispatcherMachine`: property tests of your own call types against everything that may happen to them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.strategies import SearchStrategy

from asyncdispatch.calls import APICall, ObjectRef
from asyncdispatch.config import DispatcherConfig
from asyncdispatch.contexts import SchedulingContext
from asyncdispatch.errors import RefusedError, StaleContext
from asyncdispatch.handles import CallHandle
from asyncdispatch.testing import strategies
from asyncdispatch.testing.apiserver import EmbeddedAPIServer
from asyncdispatch.testing.clock import VirtualClock
from asyncdispatch.testing.stepping import Exchange, Flight, SteppedDispatcher, Trouble

__all__ = ["DispatcherMachine"]

Json = dict[str, Any]

# The strategies below ask the machine that runs, since what they draw from is its own.
RUNNER: SearchStrategy[DispatcherMachine] = st.runner()
CALLS = RUNNER.flatmap(lambda machine: machine.calls())
FLIGHTS = RUNNER.flatmap(lambda machine: st.sampled_from(machine.dispatcher.flights))
STOPPING = RUNNER.flatmap(lambda machine: st.sampled_from(machine.stopping))
STRAGGLERS = RUNNER.flatmap(lambda machine: st.sampled_from(machine.dispatcher.stragglers))
WAITING = RUNNER.flatmap(lambda machine: st.sampled_from(machine.unsettled))
STORED = RUNNER.flatmap(lambda machine: st.sampled_from(list(machine._stored)))
OBJECTS = RUNNER.flatmap(lambda machine: st.sampled_from(list(machine._scene)))
TROUBLES = RUNNER.flatmap(lambda machine: machine.troubles())
CHANGES = RUNNER.flatmap(lambda machine: machine.changes())
PAUSES = RUNNER.flatmap(lambda machine: machine.pauses())


class Placed(NamedTuple):
    """One of the machine's objects: its lane, its place on the server, and what it is like in the beginning."""

    lane: str
    key: tuple[str, str, str]
    obj: Mapping[str, Any]


class DispatcherMachine(RuleBasedStateMachine):
    """A dispatcher, an API server, rivals, and whatever may go wrong between them; you add your call types.

    Subclass it, define `objects` (what is on the server) and `calls` (what is submitted), and give the subclass's
    `TestCase` to your test runner. Each run is a sequence of steps: calls are submitted, cancelled, started; their
    requests land, are answered, lost, refused or late; rivals change, delete and recreate objects; observations come,
    also old ones; contexts begin and end; time passes. Your `execute`, `merge`, `apply`, `rebase_onto`, `is_noop`,
    `classify` and `reconcile` are run as they are. After each step the laws are checked, and what your hooks promise
    (see `SteppedDispatcher`); at the end everything is settled, `settled` is asked, and nothing may be left.

    Add rules and invariants of your own by Hypothesis's `@rule` and `@invariant`, `self.dispatcher`, `self.server` and
    `self.cluster` at hand. What goes wrong is told with the number of the law and the history of its object.
    """

    config: ClassVar[DispatcherConfig] = DispatcherConfig(capacity=50, lane_capacity=8, max_in_flight=2, timeout=120.0)
    """The dispatcher's configuration: small, so that calls meet."""
    objects: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """What is on the server when a run begins."""
    recreates: ClassVar[bool] = True
    """Objects may be deleted and created anew under the same name."""

    dispatcher: SteppedDispatcher
    """What your calls are submitted to; see there for what can be done with it by hand."""
    server: EmbeddedAPIServer
    """Where their requests go; it needs no event loop, see "Objects" in its guide."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.server = EmbeddedAPIServer(now=self.clock.date, auto_namespaces=True)
        self.dispatcher = SteppedDispatcher(self.config, server=self.server, clock=self.clock)
        self._versions: dict[str, list[Json]] = {}
        """What was to be seen of each object, by lane, the newest last."""
        self._scene: dict[str, Placed] = {}
        """The objects by what they are called in the steps of a failing run."""
        for obj in self.objects:
            put = self.server.put(obj)
            ref = replace(ObjectRef.of(put), uid=None)
            self._scene[str(ref)] = Placed(ref.lane, (ref.kind, ref.namespace or "", ref.name), obj)
            self._seen(put)

    # -- what a subclass defines --------------------------------------------------------------------------------------

    def calls(self) -> SearchStrategy[APICall[Any]]:
        """What is submitted. Asked at each submission, so that it may draw from the state of the machine.

        `self.cluster` is what your calls send their requests by; `self.stored` are the objects as they are now.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `calls`: a strategy for calls of your types")

    def troubles(self) -> SearchStrategy[Trouble | None]:
        """What happens to a request that is answered; None is nothing. `st.none()` for a calm server."""
        return strategies.troubles()

    def changes(self) -> SearchStrategy[Json]:
        """What a rival writes to an object, as a merge patch."""
        return st.sampled_from(["1", "2"]).map(lambda value: {"metadata": {"annotations": {"rival": value}}})

    def pauses(self) -> SearchStrategy[float]:
        """How many seconds pass at a time."""
        return strategies.pauses()

    def settled(self) -> None:
        """Asked at the end, when every call has its outcome: what must hold by then? Raise an AssertionError."""

    # -- at hand ------------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Any:
        """A `Cluster` for your calls. Needs the extra `kubernetes`."""
        return self.dispatcher.cluster

    @property
    def stored(self) -> list[Json]:
        """The objects of this machine, as they are on the server; one that is gone as it was seen last."""
        there = self._stored
        return [copy.deepcopy(there.get(name) or self._versions[each.lane][-1]) for name, each in self._scene.items()]

    @property
    def _stored(self) -> dict[str, Json]:
        """Those that are there, by name: the stored ones themselves."""
        objects = self.server.objects
        found = {name: objects.get(each.key) for name, each in self._scene.items()}
        return {name: obj for name, obj in found.items() if obj is not None}

    @property
    def handles(self) -> list[CallHandle[Any]]:
        """Of all calls that were accepted, in order."""
        return list(self.dispatcher.driver.handles.values())

    @property
    def unsettled(self) -> list[CallHandle[Any]]:
        """Of those that have no outcome yet."""
        return [handle for handle in self.handles if not handle.done()]

    @property
    def stopping(self) -> list[Flight]:
        """Attempts that were asked to stop."""
        return [flight for flight in self.dispatcher.flights if flight.stopping]

    def contexts(self) -> SearchStrategy[SchedulingContext | None]:
        """None, or a context that lives, for the field `context` of a call."""
        return st.sampled_from([None, *self.dispatcher.driver.contexts.values()])

    # -- steps: calls -------------------------------------------------------------------------------------------------

    @initialize(call=st.none() | CALLS)
    def first(self, call: APICall[Any] | None) -> None:
        """In most runs something is under way at once, whichever rules Hypothesis leaves out of them."""
        if call is not None:
            self.submit(call, True)

    @rule(call=CALLS, start=st.booleans())
    def submit(self, call: APICall[Any], start: bool) -> None:
        try:
            self.dispatcher.submit(call)
        except RefusedError:
            pass
        if start:
            self.dispatcher.start()

    @rule()
    def start(self) -> None:
        self.dispatcher.start()

    @rule()
    def go_on(self) -> None:
        self.dispatcher.go_on()

    @precondition(lambda self: any(f.exchange and not f.exchange.result for f in self.dispatcher.flights))
    @rule(flight=FLIGHTS)
    def land(self, flight: Flight) -> None:
        flight.land()

    @precondition(lambda self: self.dispatcher.flights)
    @rule(flight=FLIGHTS, trouble=TROUBLES)
    def answer(self, flight: Flight, trouble: Trouble | None) -> None:
        flight.answer(trouble)

    @precondition(lambda self: self.stopping)
    @rule(flight=STOPPING)
    def stop(self, flight: Flight) -> None:
        flight.stop()

    @precondition(lambda self: self.dispatcher.stragglers)
    @rule(exchange=STRAGGLERS)
    def arrive_late(self, exchange: Exchange) -> None:
        self.dispatcher.arrive(exchange)

    @precondition(lambda self: self.unsettled)
    @rule(handle=WAITING)
    def cancel(self, handle: CallHandle[Any]) -> None:
        """A caller changes its mind. It takes a moment: who comes again at once gives up its place, which is a bug."""
        self.dispatcher.advance(0.001)
        handle.cancel()
        self.dispatcher.advance(0.001)

    # -- steps: the world ---------------------------------------------------------------------------------------------

    @rule(seconds=PAUSES)
    def let_time_pass(self, seconds: float) -> None:
        self.dispatcher.advance(seconds)

    @precondition(lambda self: self._stored)
    @rule(obj=STORED, change=CHANGES)
    def rival_changes(self, obj: str, change: Json) -> None:
        found = self._stored[obj]
        self.dispatcher.note(f"a rival writes {change}", ObjectRef.of(found))
        self._seen(self.server.patch_object(found, change))

    @precondition(lambda self: self.recreates and self.objects)
    @rule(obj=OBJECTS)
    def rival_recreates(self, obj: str) -> None:
        if obj in self._stored:
            self.server.finish(self._stored[obj])
        new = self.server.put(self._scene[obj].obj)
        self.dispatcher.note(f"a rival creates it anew as {new['metadata']['uid']}", ObjectRef.of(new))
        self._seen(new)

    @precondition(lambda self: self._stored)
    @rule(obj=STORED, back=st.integers(0, 3), fresh=st.booleans())
    def observe(self, obj: str, back: int, fresh: bool) -> None:
        """What a read begun now answers (`fresh`), or what a cache shows, which may be some versions `back`."""
        versions = self._seen(self._stored[obj])
        seen = versions[-1 if fresh else max(0, len(versions) - 1 - back)]
        self.dispatcher.observe(copy.deepcopy(seen), fresh=fresh)

    @precondition(lambda self: self._stored)
    @rule(obj=STORED)
    def schedule_anew(self, obj: str) -> None:
        """A new scheduling context, which ends the object's older one."""
        try:
            self.dispatcher.contexts.begin(self._stored[obj])
        except StaleContext:
            pass  # another object has the name by now

    # -- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        error = sys.exception()
        try:
            if error is None:
                self.dispatcher.settle()
                self.settled()
                self.dispatcher.finish()
        except Exception as late:
            error = late
            raise
        finally:
            if isinstance(error, Exception):
                self.dispatcher.explain(error)

    def _seen(self, obj: Json) -> list[Json]:
        versions = self._versions.setdefault(ObjectRef.of(obj).lane, [])
        if not versions or versions[-1]["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            versions.append(obj)
        return versions
