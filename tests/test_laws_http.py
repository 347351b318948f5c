"""The laws once more, through the shell and over HTTP: random programs against a server that misbehaves at random.

What is believed is the server's audit list, joined to the calls by `Audit-ID`, and what went through the transport.
One number decides a program and all its faults; numbers that have failed once stay as examples.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import looptime
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncdispatch import CallHandle, Dispatcher, DispatcherConfig, Effect, RefusedError, RetryBudget, SchedulingContext
from asyncdispatch.kubernetes import Cluster, Create, PodBinding, PodStatusPatch
from asyncdispatch.outcomes import Failed, Succeeded
from asyncdispatch.testing import EmbeddedAPIServer
from tests.cases.support import ETCD, UNSCHEDULABLE, Json, Log, condition, config_map, new_pod, now

EXAMPLES = max(10, settings().max_examples // 4)
GIVE_UP = 5.0
SLACK = 1e-4
"""Virtual time has ticks of a microsecond, and a timer may be one late."""


@dataclass
class Request:
    """One write on its way, as the client saw it."""

    lane: str
    ticket: int
    began: float
    ended: float = float("inf")


@dataclass
class Accepted:
    """A call that was accepted, and until when it may start."""

    handle: CallHandle[Any]
    call: Any
    limit: float
    context: SchedulingContext | None


@dataclass
class World:
    """One program: what it does, and what it has noted."""

    seed: int
    dice: random.Random = field(init=False)
    log: Log = field(default_factory=Log)
    accepted: list[Accepted] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    context_ended: dict[int, float] = field(default_factory=dict)
    contexts: dict[str, SchedulingContext] = field(default_factory=dict)
    pods: dict[str, Json] = field(default_factory=dict)
    server: EmbeddedAPIServer = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    async def run(self) -> None:
        random.seed(self.seed)
        async with EmbeddedAPIServer(auto_namespaces=True, seed=self.seed, latency=0.01) as server:
            self.server = server
            cluster = Cluster(server.api_client())
            self._note_requests(cluster)
            for name in ("a", "b", "c", "d", "e"):
                self.pods[name] = server.create(new_pod(name))
            self._misbehave()
            config = DispatcherConfig(
                max_in_flight=self.dice.choice([1, 3, 8]),
                attempt_timeout=2,
                timeout=30,
                drain_timeout=40,
                retry_budget=RetryBudget(burst=1_000),
            )
            async with Dispatcher(config, observers=[self.log]) as dispatcher:
                dispatcher._delays._rng.seed(self.seed)
                for _ in range(50):
                    self._step(dispatcher, cluster)
                    if self.dice.random() < 0.5:
                        await asyncio.sleep(self.dice.random() * 0.5)
                if self.dice.random() < 0.2:
                    await dispatcher.aclose()
            self.statistics = dispatcher.statistics()
            await asyncio.sleep(60)  # what is still under way lands

    def _misbehave(self) -> None:
        server, rate = self.server, self.dice.choice([0.0, 0.05, 0.12])

        def unlucky(record: Any) -> bool:
            return self.dice.random() < (rate if record.method != "GET" else rate / 3)

        common: dict[str, Any] = {"times": None, "when": unlucky}
        for applied in (True, False):
            server.fail(status=500, reason="", message=ETCD, applied=applied, **common)
            server.drop(applied=applied, **common)
            server.reset(applied=applied, **common)
            server.delay(lambda source: source.random() * 5, applied=applied, **common)
        server.fail(status=429, **common)
        server.fail(status=429, retry_after=1, **common)
        server.fail(status=503, retry_after=0, **common)

    def _note_requests(self, cluster: Cluster) -> None:
        send = cluster.transport.request

        async def noting(method: str, path: str, attempt: Any, **options: Any) -> Json:
            if method == "GET":
                return await send(method, path, attempt, **options)
            target = attempt.call.target
            lane = f"{target.lane}#{attempt.ticket}" if target.generated else target.lane
            request = Request(lane, attempt.ticket, now())
            self.requests.append(request)
            try:
                return await send(method, path, attempt, **options)
            finally:
                request.ended = now()

        cluster.transport.request = noting  # type: ignore[method-assign]

    # -- what a program does ------------------------------------------------------------------------------------------

    def _step(self, dispatcher: Dispatcher, cluster: Cluster) -> None:
        dice, name = self.dice, self.dice.choice(sorted(self.pods))
        pod = self.pods[name]
        what = dice.random()
        if what < 0.7:
            self._submit(dispatcher, self._call(cluster, pod))
        elif what < 0.78 and self.accepted:
            dice.choice(self.accepted).handle.cancel("changed its mind")
        elif what < 0.86:
            if (older := self.contexts.pop(name, None)) is not None:
                self.context_ended.setdefault(older.epoch, now())
            try:
                until = now() + dice.random() * 5 if dice.random() < 0.3 else None
                self.contexts[name] = dispatcher.contexts.begin(pod, valid_until=until)
                if until is not None:
                    self.context_ended[self.contexts[name].epoch] = until
            except RefusedError:
                self.pods[name] = self.server.get(pod)
        elif what < 0.9 and name in self.contexts:
            context = self.contexts.pop(name)
            self.context_ended[context.epoch] = min(now(), self.context_ended.get(context.epoch, now()))
            context.end("preempted")
        elif what < 0.94:
            new = self.server.recreate(pod)
            if dice.random() < 0.5:
                self.contexts.pop(name, None)
                dispatcher.observe(new)
                self.pods[name] = new
        else:
            self.pods[name] = self.server.get(pod)
            dispatcher.observe(self.pods[name])

    def _call(self, cluster: Cluster, pod: Json) -> Any:
        dice = self.dice
        fields: dict[str, Any] = {
            "timeout": dice.choice([None, 0.5, 3, 10]),
            "priority": dice.choice([0, -5_000, 2_000_000_000]),
            "not_before": dice.choice([None, None, None, 1]),
            "context": self.contexts.get(pod["metadata"]["name"]) if dice.random() < 0.7 else None,
        }
        kind = dice.random()
        if kind < 0.35:
            return cluster.bind(pod, f"n{dice.randrange(3)}", fence=dice.choice(["uid", "uid", "version"]), **fields)
        if kind < 0.5 and not pod["spec"].get("nodeName"):
            return cluster.patch_status(pod, conditions=[UNSCHEDULABLE], **fields)
        if kind < 0.7:
            state = {"type": dice.choice("AB"), "status": dice.choice(["True", "False"])}
            return cluster.patch_status(pod, conditions=[state], **fields)
        if kind < 0.8:
            return cluster.read(pod, **fields)
        key = f"k{dice.randrange(8)}"
        if dice.random() < 0.3:
            return cluster.create(new_pod("gen-"), idempotency_key=dice.choice([None, key]), **fields)
        return cluster.create(config_map(key), idempotency_key=dice.choice([None, key]), **fields)

    def _submit(self, dispatcher: Dispatcher, call: Any) -> None:
        seconds = 30 if call.timeout is None else call.timeout
        try:
            handle = dispatcher.submit(call)
        except RefusedError:
            return
        self.accepted.append(Accepted(handle, call, now() + seconds, call.context))

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.by_ticket = {item.handle.ticket: item for item in self.accepted}
        self.writes = [record for record in self.server.audit if record.method != "GET"]
        self.check_outcomes()
        self.check_effects()
        self.check_in_flight()
        self.check_starts()
        self.check_ambiguity()

    def _context_end(self, item: Accepted) -> float:
        return float("inf") if item.context is None else self.context_ended.get(item.context.epoch, float("inf"))

    def _group(self, ticket: int) -> list[Accepted]:
        """The calls that may share the execution with this ticket."""
        lead = self.by_ticket[ticket]
        key, effect = lead.call.idempotency_key, lead.call.effect
        if key is None and effect is not Effect.READ:
            return [lead]
        return [
            item
            for item in self.accepted
            if item.call.effect is effect and item.call.target == lead.call.target and item.call.idempotency_key == key
        ]

    def check_outcomes(self) -> None:
        """L1: each accepted call has exactly one outcome, in time. L11: none of an ended context has a success."""
        assert self.statistics.depth == self.statistics.joined == self.statistics.in_flight == 0
        assert self.log.settlements == Counter(dict.fromkeys(self.by_ticket, 1))
        assert sum(self.statistics.outcomes.values()) == self.statistics.accepted == len(self.accepted)
        for ticket, item in self.by_ticket.items():
            assert item.handle.settled is not None
            ended = self.log.ended_at[ticket]
            assert ended <= item.limit + GIVE_UP + 0.1
            if isinstance(item.handle.settled, Succeeded):
                assert ended <= self._context_end(item) + SLACK, item.handle

    def check_effects(self) -> None:
        """Promises 1 and 2: a success is there, and nothing is there twice."""
        applied = [record for record in self.writes if record.applied]
        binds = {(r.uid, r.body["target"]["name"]) for r in applied if r.verb == "bind"}
        created = {record.uid for record in applied if record.verb == "create"}
        for item in self.accepted:
            outcome = item.handle.settled
            if not isinstance(outcome, Succeeded):
                continue
            if isinstance(item.call, PodBinding):
                assert (item.call.target.uid, item.call.node) in binds, item.handle
            elif isinstance(item.call, PodStatusPatch) and outcome.attempts:
                sent: Any = item.handle.call  # as it was merged
                assert sent.done_in(outcome.value), item.handle
            elif isinstance(item.call, Create):
                assert outcome.value["metadata"]["uid"] in created, item.handle
        once = [(_ticket(r), r.verb) for r in applied if r.verb in ("bind", "create")]
        assert len(once) == len(set(once))
        bound = [record.uid for record in applied if record.verb == "bind"]
        assert len(bound) == len(set(bound))
        named = [record.name for record in applied if record.verb == "create" and record.kind == "ConfigMap"]
        assert len(named) == len(set(named))
        for pod in self.server.objects.of("Pod"):
            assert not (pod["spec"].get("nodeName") and condition(pod, "PodScheduled") == "False")

    def check_in_flight(self) -> None:
        """L2: one write per object at a time, counting one that is asked to stop until it has ended."""
        lanes: dict[str, list[Request]] = {}
        for request in self.requests:
            lanes.setdefault(request.lane, []).append(request)
        for requests in lanes.values():
            for one, other in pairwise(sorted(requests, key=lambda request: request.began)):
                assert one.ended <= other.began, (one, other)

    def check_starts(self) -> None:
        """L5: nothing starts after the deadline, the context's end or the last cancellation of those who want it."""
        for record in self.server.audit:
            group = self._group(_ticket(record))
            until = max(min(item.limit, self._context_end(item)) for item in group)
            assert record.time <= until + SLACK, (record, group)
            over = max(self.log.ended_at[item.handle.ticket] for item in group)
            assert record.time <= over + SLACK, (record, group)

    def check_ambiguity(self) -> None:
        """L10: what was applied is told as a success or as ambiguous; what was never sent is not ambiguous."""
        sent = {request.ticket for request in self.requests}
        for ticket, item in self.by_ticket.items():
            assert item.handle.settled is not None
            if item.handle.settled.ambiguous:
                assert {other.handle.ticket for other in self._group(ticket)} & sent, item.handle
        for record in self.writes:
            if not record.applied:
                continue
            ticket = _ticket(record)
            group = self._group(ticket)
            outcomes = [item.handle.settled for item in group]
            told = any(isinstance(outcome, Succeeded) for outcome in outcomes)
            if told or self.by_ticket[ticket].handle.settled.ambiguous:  # type: ignore[union-attr]
                continue
            assert self._settled_by_a_read(record, ticket), (record, outcomes)

    def _settled_by_a_read(self, record: Any, ticket: int) -> bool:
        """A read of this call has said, before it ended, that the write was not there, or that its object is gone."""
        reads = [
            r for r in self.server.audit if r.audit_id and r.audit_id.startswith(f"{ticket}-") and r.method == "GET"
        ]
        if any(read.time < (record.applied_at or 0) for read in reads):
            return True  # the write was still under way when the read asked for it
        outcome = self.by_ticket[ticket].handle.settled
        return bool(reads) and isinstance(outcome, Failed) and outcome.verdict.kind.value in ("gone", "permanent")


def _ticket(record: Any) -> int:
    """Whose request it was: every request has a header `Audit-ID: <ticket>-<attempt>`."""
    return int(record.audit_id.split("-")[0])


def run(seed: int) -> World:
    """One program, from start to end, in virtual time of its own."""
    world = World(seed)
    loop = looptime.new_event_loop(start=0)
    try:
        loop.run_until_complete(world.run())
    finally:
        loop.close()
    return world


@given(st.integers(0, 2**32))
@settings(max_examples=EXAMPLES)
@example(0)
def test_laws_over_http(seed: int) -> None:
    """Nothing is lost and nothing doubled, whatever the server does."""
    run(seed).check()
