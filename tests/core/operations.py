"""Random operations over all features, drawn from a `random.Random`: Hypothesis's own, or a seeded one for replays."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from asyncdispatch._core.parking import Signal
from asyncdispatch._core.states import Entry
from asyncdispatch.calls import Again, APICall, Applied, ObjectRef, Refused, Unknown, VerdictKind
from asyncdispatch.config import (
    AdaptiveLimit,
    BreakerPolicy,
    CallTypePolicy,
    DispatcherConfig,
    FlowQuota,
    IdempotencyPolicy,
    RateLimit,
    RetryBudget,
    RetryPolicy,
)
from asyncdispatch.errors import ConfigurationError, RefusedError, StaleContext
from tests.core.driver import Driver
from tests.core.words import CREATE, GONE, LEVELS, PERMANENT, READ, SECOND, WRITE, Call, Patch, answer, node, pod

T = TypeVar("T")

NAMES = ("p0", "p1", "p2", "gen-*")
TYPES = ("pod_binding", "pod_status_patch", "x", "y")
UIDS = (None, None, None, None, "u1", "u2")
PAUSES = (0.0, 0.01, 0.1, 1.0, 4.0)


def draw_config(random: Random) -> DispatcherConfig:
    """A small dispatcher, so that everything is soon full, due, opened or refused."""
    pick = random.choice
    limits: list[AdaptiveLimit | int] = [1, 3, AdaptiveLimit(4, 1, 8)]
    return DispatcherConfig(
        capacity=pick([4, 20, 200]),
        max_joined=pick([2, 50]),
        lane_capacity=pick([2, 8]),
        reserve=pick([0.0, 0.3]),
        max_in_flight=pick(limits),
        aging=pick([0.5, 5.0]),
        flows={
            "a": FlowQuota(max_in_flight=pick([None, 1, 2]), max_queued=pick([None, 4]), weight=2.0),
            "b": FlowQuota(weight=0.5),
        },
        call_types={
            "x": CallTypePolicy(max_in_flight=pick([None, 1])),
            "y": CallTypePolicy(supersedes=pick([(), ("x",)])),
        },
        rate=pick([None, RateLimit(20.0, 3)]),
        breaker=pick([None, BreakerPolicy(2, 1.0)]),
        retry_budget=RetryBudget(0.1, 0.5, pick([1, 100])),
        idempotency=pick([None, IdempotencyPolicy(3.0, 5)]),
        retry=RetryPolicy(max_reconciles=pick([1, 3])),
        timeout=30.0,
        hold_limit=15.0,
        max_unobserved=pick([3, 100]),
        unobserved_age=5.0,
    )


class Operations:
    """One method for each kind of step. Each draws what it needs and does nothing where it would make no sense."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    # -- calls --------------------------------------------------------------------------------------------------

    def _ref(self, random: Random) -> ObjectRef:
        return pod(random.choice(NAMES), random.choice(UIDS))

    def _call(self, random: Random) -> APICall[Any]:
        pick = random.choice
        call_type, effect = pick(TYPES), pick((WRITE, WRITE, CREATE, READ))
        fields: dict[str, Any] = {
            "call_type": call_type,
            "effect": effect,
            "target": self._ref(random),
            "priority": pick(list(LEVELS.values())),
            "flow": pick(("a", "b", "c")),
            "timeout": pick((None, None, 0.5, 5.0)),
            "not_before": pick((None, None, None, 0.3, 2.0)),
            "version": pick((None, None, None, "5", "9")),
            "scope": pick((None, None, "s")),
            "sheddable": pick((False, False, True)),
            "idempotency_key": pick((None, None, "k1", "k2")),
            "fresh": pick((False, False, True)),
        }
        if effect is READ:
            fields["ordered"] = pick((False, True))
        if pick((False, False, False, True)):
            fields["depends_on"] = (node(pick(("n1", "n2")), pick((None, "u1"))),)
        contexts = list(self.driver.contexts.values())
        if contexts and random.random() < 0.5:
            context = fields["context"] = pick(contexts)
            fields["awaits_prerequisites"] = pick((False, False, True))
            if context.requirements and not fields["awaits_prerequisites"] and pick((False, True)):
                fields["prerequisite"] = pick(list(context.requirements))
        if call_type == "pod_status_patch" and effect is WRITE:
            fields["idempotency_key"] = pick((None, None, None, "k1"))
            return Patch(fields=(str(self.driver.step),), **fields)
        return Call(**fields)

    def submit(self, random: Random) -> None:
        try:
            self.driver.submit(self._call(random))
        except RefusedError:
            pass

    def relate(self, random: Random) -> None:
        """A call that has to do with a live one: it joins it, merges with it, supersedes it or reads its object."""
        live = [handle.lead for handle in self.driver.handles.values() if not handle.done()]
        live += list(self.driver.stopping.values())
        if not live:
            return
        pick = random.choice
        call = pick(live).call
        fields: dict[str, Any] = {
            "timeout": pick((None, 0.5, 5.0)),
            "priority": pick((0, 1_000_000)),
            "not_before": pick((None, None, None, 0.3)),
            "context": None,
            "awaits_prerequisites": False,
            "prerequisite": None,
            "depends_on": (),
        }
        contexts = list(self.driver.contexts.values())
        if contexts and random.random() < 0.3:
            fields |= {"context": pick(contexts), "awaits_prerequisites": pick((False, True))}
        other: dict[str, Any] = pick(({}, {}, {"call_type": pick(TYPES)}, {"effect": READ, "ordered": True}))
        if isinstance(call, Patch) and "call_type" in other:
            call = Call(target=call.target, flow=call.flow, sheddable=call.sheddable)
        if other.get("effect") is not READ and call.effect is READ:
            other = {}
        try:
            self.driver.submit(replace(call, **fields, **other))
        except RefusedError:
            pass

    def start(self, random: Random) -> None:
        if random.choice((False, True)):
            self.driver.start()
        else:
            self.driver.start_all()

    def _flying(self, random: Random) -> Entry | None:
        flying = list(self.driver.flying.values())
        return random.choice(flying) if flying else None

    def _value(self, random: Random, entry: Entry) -> Any:
        name = entry.call.target.name.replace("*", "7")
        uid = random.choice(("u1", "u2"))
        return random.choice((None, answer(name, uid, random.randint(1, 20))))

    def succeed(self, random: Random) -> None:
        entry = self._flying(random)
        if entry is not None:
            self.driver.succeed(entry, self._value(random, entry))

    def turn(self, random: Random) -> None:
        entry = self._flying(random)
        if entry is not None:
            self.driver.turn(entry, random.choice((None, 7, self._value(random, entry))))

    def fail(self, random: Random) -> None:
        entry = self._flying(random)
        if entry is not None:
            self.driver.fail(entry, random.choice(list(VerdictKind)), **self._failure(random), **self._fate(random))

    @staticmethod
    def _failure(random: Random) -> dict[str, Any]:
        pick = random.choice
        return {
            "delay": pick((0.0, 0.2, 3.0)),
            "scope": pick((None, "q", "z")),
            "exhausted": pick((False,) * 9 + (True,)),
            "signal": pick(list(Signal)),
        }

    @staticmethod
    def _fate(random: Random) -> dict[str, Any]:
        return {"maybe": random.choice((False, True)), "signature": random.choice((None, "same"))}

    def stop(self, random: Random) -> None:
        stopping = [entry for ticket, entry in self.driver.stopping.items() if ticket in self.driver.flying]
        if stopping:
            self.driver.stop(random.choice(stopping), sent=random.choice((True, True, False)))

    def reconcile(self, random: Random) -> None:
        pick = random.choice
        entries = list(self.driver.reconciling.values())
        if not entries:
            return
        entry = pick(entries)
        how = pick(("answer", "answer", "answer", "fail", "stop"))
        if how == "answer":
            applied, refused = Applied(self._value(random, entry)), Refused(ValueError("no"))
            found = pick((applied, self._again(random, entry), refused, Unknown, Unknown(True)))
            self.driver.reconcile(entry, found, refusal=pick((GONE, PERMANENT)), delay=pick((0.0, 0.1)))
        elif how == "fail":
            self.driver.fail_reconcile(entry, pick(list(VerdictKind)), **self._failure(random))
        elif entry.ticket in self.driver.stopping:
            self.driver.stop(entry)

    @staticmethod
    def _again(random: Random, entry: Entry) -> Again[Any]:
        return Again(replace(entry.call, version=random.choice((entry.call.version, "11"))))

    def cancel(self, random: Random) -> None:
        handles = [handle for handle in self.driver.handles.values() if not handle.done()]
        if handles:
            self.driver.cancel(random.choice(handles))

    def cancel_flow(self, random: Random) -> None:
        self.driver.cancel_flow(random.choice(("a", "b", "c")))

    # -- time ---------------------------------------------------------------------------------------------------

    def advance(self, random: Random) -> None:
        self.driver.advance(random.choice(PAUSES))

    def stall(self, random: Random) -> None:
        self.driver.stall(random.choice(PAUSES))

    # -- contexts -----------------------------------------------------------------------------------------------

    def begin(self, random: Random) -> None:
        pick = random.choice
        parent = pick([*self.driver.contexts.values(), None])
        try:
            self.driver.begin(
                self._ref(random),
                version=pick((None, 3, 12)),
                parent=parent,
                valid_for=pick((None, None, 0.5, 2.0)),
                requires=pick(((), ("r1",), ("r1", "r2"))),
            )
        except (StaleContext, ConfigurationError):
            pass

    def change_context(self, random: Random) -> None:
        contexts = list(self.driver.contexts.values())
        if not contexts:
            return
        context = random.choice(contexts)
        how = random.choice(("end", "extend", "require", "require"))
        try:
            if how == "end":
                context.end("ended")
            elif how == "extend":
                context.extend((self.driver.now + 2 * SECOND) / SECOND)
            elif context.requirements:
                name = random.choice(list(context.requirements))
                if random.choice((True, True, False)):
                    context.confirm(name)
                else:
                    context.fail(name, ValueError("no"))
        except StaleContext:
            pass

    # -- objects ------------------------------------------------------------------------------------------------

    def observe(self, random: Random) -> None:
        pick = random.choice
        ref = self._ref(random)
        self.driver.observe(ref, pick((None, 2, 8, 15)), deleting=pick((False, False, True)), fresh=pick((False, True)))
        for entry in self.driver.core.pending_writes(ref.lane):
            if not entry.phase.flying and pick((False, True)):
                call = self.driver.core.executable(entry)
                self.driver.replace(entry, replace(call, version=pick(("7", call.version))))

    def forget(self, random: Random) -> None:
        ref = random.choice((self._ref(random), node(random.choice(("n1", "n2")), random.choice(UIDS))))
        self.driver.forget(ref)

    def drain(self, random: Random) -> None:
        self.driver.drain(random.choice((0.5, 5.0)))


WEIGHTS = {
    "submit": 26,
    "relate": 9,
    "start": 20,
    "succeed": 6,
    "turn": 6,
    "fail": 10,
    "stop": 5,
    "reconcile": 6,
    "cancel": 4,
    "cancel_flow": 1,
    "advance": 9,
    "stall": 2,
    "begin": 4,
    "change_context": 4,
    "observe": 3,
    "forget": 2,
}


def play(seed: int, steps: int = 150, *, check: bool = False, short: bool = True) -> Driver:
    """A whole run from one seed: the same seed gives the same inputs at the same times."""
    driver = begun(seed, steps, check=check, short=short)
    driver.finish()
    return driver


def begun(seed: int, steps: int, *, check: bool = False, short: bool = True) -> Driver:
    """A run in its midst."""
    random = Random(seed)
    driver = Driver(draw_config(random), check=check, short=short)
    operations = Operations(driver)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    for _ in range(steps):
        getattr(operations, random.choices(names, weights)[0])(random)
    return driver
