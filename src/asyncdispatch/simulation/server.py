"""A model of the API server: objects with uids and versions, an audit, latency, and everything that goes wrong.

A request is carried out at one moment between being sent and being answered. For most that is the moment of the
answer; for some it is earlier, so that others act in between; for a slow one it may be after its sender has stopped
waiting. Only a look at what became of a request is never overtaken by that request: a quorum read follows what the
store has taken in. Faults are drawn from the run's own random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappush
from itertools import accumulate, count
from math import log
from random import Random
from typing import Any, Protocol

from asyncdispatch.apierrors import ApiError
from asyncdispatch.calls import ObjectRef
from asyncdispatch.simulation.calls import SimulatedCall
from asyncdispatch.simulation.history import NEVER, History, RequestRecord, State
from asyncdispatch.simulation.scenario import Scenario

__all__ = ["Clock", "Problem", "Sender", "Server"]

SECOND = 1_000_000_000
LATENCIES = 4_096
SLOW = 300
"""A slow request takes so many times as long."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Anything but success, as the sender meets it. `sent`: something may have reached the server."""

    name: str
    error: Exception
    sent: bool = True


def _answered(name: str, status: int, reason: str, message: str = "", **more: Any) -> Problem:
    return Problem(name, ApiError(status, reason, message, **more))


THROTTLED = _answered("throttled", 429, "TooManyRequests", headers={"Retry-After": "1"})
UNAVAILABLE = _answered("unavailable", 503, "ServiceUnavailable")
DENIED = _answered("denied", 504, "Timeout", "the server was unable to answer in time")
ETCD = _answered("denied", 500, "InternalError", "etcdserver: request timed out")
QUOTA = _answered("quota", 403, "Forbidden", "exceeded quota: claims")
INVALID = _answered("invalid", 422, "Invalid", "spec: Invalid value")
UNAUTHORIZED = _answered("dropped_key", 401, "Unauthorized")
NOT_FOUND = _answered("not found", 404, "NotFound", gone=True)
CONFLICT = _answered("conflict", 409, "Conflict", "the object has been modified, or is another one")
EXISTS = _answered("exists", 409, "AlreadyExists")
REFUSED = Problem("refused", ConnectionRefusedError("connection refused"), sent=False)
RESET = Problem("reset", ConnectionResetError("connection reset by peer"))
TIMED_OUT = Problem("timed out", TimeoutError("the attempt did not end in time"))

Act = Callable[[Any, int], None]


class Clock:
    """Virtual time, and what will happen when: nothing else moves it."""

    def __init__(self) -> None:
        self.now = 0
        self.heap: list[tuple[int, int, Act, Any]] = []
        self.number = count(1).__next__

    def at(self, when: int, act: Act, what: Any = None) -> None:
        """Call `act(what, when)` then. What is for one time happens in the order of asking."""
        heappush(self.heap, (when, self.number(), act, what))


@lru_cache
def _latencies(mean: float) -> list[int]:
    """Equally likely times of one request: a fourth of the mean at least, exponential beyond."""
    nanoseconds = mean * SECOND
    return [int(nanoseconds * (0.25 - 0.75 * log(1 - (i + 0.5) / LATENCIES))) for i in range(LATENCIES)]


class Sender(Protocol):
    """Who sends requests and is told how they end."""

    def served(self, request: RequestRecord, now: int) -> None:
        """Carry it out and take the answer, both now."""

    def answered(self, what: tuple[RequestRecord, Any], now: int) -> None:
        """Take the answer, a value or a `Problem`."""

    def cut_off(self, request: RequestRecord, now: int) -> None:
        """Its time is over."""


class Server:
    """The store and the road to it. Tests plant faults by overriding `refusal`, `change` or `land`."""

    def __init__(self, clock: Clock, scenario: Scenario, history: History, random: Random) -> None:
        self.clock = clock
        self.history = history
        self.objects: dict[str, State] = {}
        self.revision = 1
        self.changes: list[tuple[ObjectRef, State | None]] = []
        """Pods as they became, for whoever watches; and nodes that are gone."""
        self.watched: dict[str, ObjectRef] = {}
        """The Pods that there are, by lane."""
        self.owed: dict[str, int] = {}
        """By object: when the last request that nobody waits for any more will land."""
        self.trouble = ""
        self.trouble_until = 0
        self._heap, self._number = clock.heap, clock.number
        self._draw = random.random
        self._append = history.audit.append
        self._latencies = _latencies(scenario.latency)
        self._faults = list(zip(accumulate(scenario.faults.values()), scenario.faults, strict=True))
        self._risk = sum(scenario.faults.values())

    # -- the road ---------------------------------------------------------------------------------------------------

    def take(self, request: RequestRecord, sender: Sender, now: int) -> None:
        """A request sets out: decide when it lands, and when and how it is answered."""
        draw = self._draw()
        if (draw < self._risk or self.trouble) and self._take_badly(request, sender, draw, now):
            return
        latency = self._latencies[int(draw * LATENCIES)]
        when = now + latency
        if request.look:
            lands = max(when, self.owed.get(request.call.target.lane, 0))
            when = lands + latency
            self._lands(request, sender, lands, when)
        elif int(draw * 65_536) & 3:
            request.lands = when
            heappush(self._heap, (when, self._number(), sender.served, request))
        else:
            self._lands(request, sender, when - latency // 2, when)
        if when > request.cut_off:
            self.clock.at(request.cut_off, sender.cut_off, request)

    def latency(self) -> int:
        """Of one request without a fault."""
        return self._latencies[int(self._draw() * LATENCIES)]

    def _take_badly(self, request: RequestRecord, sender: Sender, draw: float, now: int) -> bool:
        """Send it into trouble, or into a fault of its own. False if it meets neither, after all."""
        latency = self.latency()
        name = self._trouble_of(request) if self.trouble else ""
        if not name:
            if draw >= self._risk:
                return False
            name = next(name for most, name in self._faults if draw < most)
        if (name == "quota" and request.call.verb != "create") or (name == "invalid" and request.look):
            return False
        self.history.faults[name] += 1
        refused = _REFUSALS.get(name)
        if refused is not None:
            self._answers(request, sender, refused, now + latency)
        else:
            self._land_badly(request, sender, name, latency, now)
        return True

    def _land_badly(self, request: RequestRecord, sender: Sender, name: str, latency: int, now: int) -> None:
        """It lands, but late, or its answer is lost or false."""
        lands, problem = now + latency // 2, None
        if name == "slow":
            lands = now + latency * SLOW
        elif name == "stalled":
            lands = self.trouble_until + latency
        elif name == "lost":
            problem = RESET
        elif name == "denied":
            problem = DENIED if latency & 1 else ETCD
        if request.look:
            lands = max(lands, self.owed.get(request.call.target.lane, 0))
        self._lands(request, sender, lands, NEVER if name == "black_hole" else lands + latency // 2 + 1, problem)
        if name in ("black_hole", "slow", "stalled"):
            self.clock.at(max(now, request.cut_off), sender.cut_off, request)

    def _trouble_of(self, request: RequestRecord) -> str:
        """Which fault the present trouble is for this request; "" for none."""
        if self.trouble == "outage":
            return "refused" if self._draw() < 0.7 else "reset"
        if self.trouble == "storm":
            return "throttled" if self._draw() < 0.85 else ""
        return "stalled" if self.trouble == "stall" else "dropped_key"

    def _answers(self, request: RequestRecord, sender: Sender, answer: Any, when: int) -> None:
        """It is answered without having been carried out."""
        self.clock.at(when, sender.answered, (request, answer))
        if when > request.cut_off:
            self.clock.at(request.cut_off, sender.cut_off, request)

    def _lands(
        self, request: RequestRecord, sender: Sender, lands: int, answered: int, problem: Problem | None = None
    ) -> None:
        """It is carried out first, and answered later, or never."""
        request.lands = lands
        self.clock.at(lands, self._landed, (request, sender, answered, problem))

    def _landed(self, what: tuple[RequestRecord, Sender, int, Problem | None], now: int) -> None:
        request, sender, answered, problem = what
        answer = self.land(request, now)
        if answered != NEVER:
            self.clock.at(answered, sender.answered, (request, problem or answer))

    def abandon(self, request: RequestRecord, now: int) -> None:
        """Its sender does not wait any more; it may land yet."""
        if request.lands > now:
            lane = request.call.target.lane
            self.owed[lane] = max(request.lands, self.owed.get(lane, 0))

    # -- the store --------------------------------------------------------------------------------------------------

    def land(self, request: RequestRecord, now: int) -> Any:
        """Carry a request out: its value, or the `Problem` for which it is refused."""
        call = request.call
        target, verb = call.target, call.verb
        lane = target.lane
        before = self.objects.get(lane)
        if verb == "apply":  # nothing binds it, so nothing can be wrong with it; it leaves exactly what it says
            self.revision = revision = self.revision + 1
            uid = f"u{revision}" if before is None else before[0]
            request.landed = now
            request.before = before
            request.after = self.objects[lane] = uid, revision, call.fields
            self._append(request)
            return revision
        if (problem := self.refusal(call, before)) is not None:
            if before is None and verb == "get":
                request.landed = now
                self._append(request)  # that nothing is there was read, too
            return problem
        request.landed = now
        request.before = before
        request.after = after = before if verb == "get" else self.change(call, before)
        self._append(request)
        if call.watched and after is not before:
            self.changes.append((target, after))
            if after is None:
                del self.watched[lane]
            elif before is None:
                self.watched[lane] = target
        return self._value(call, after)

    def refusal(self, call: SimulatedCall, before: State | None) -> Problem | None:
        """Why it can't be carried out, if so: fences, and the rules of binding and creating."""
        verb, target = call.verb, call.target
        if verb == "create":
            return EXISTS if before is not None else None
        if before is None:
            return None if verb == "delete" else NOT_FOUND
        if target.uid is not None and target.uid != before[0]:
            return NOT_FOUND if verb in ("get", "delete") else CONFLICT
        if verb == "bind" and "node" in before[2]:
            return CONFLICT
        if call.version is not None and call.version != str(before[1]):
            return CONFLICT
        return None

    def pods(self) -> list[tuple[ObjectRef, State]]:
        """What a list of all Pods gives."""
        return [(ref, self.objects[lane]) for lane, ref in self.watched.items()]

    def change(self, call: SimulatedCall, before: State | None) -> State | None:
        """The object as it is afterwards, in the store. What changes nothing gets no new version."""
        lane = call.target.lane
        if call.verb == "delete":
            if before is not None:
                self.revision += 1
                del self.objects[lane]
            return None
        self.revision = revision = self.revision + 1
        if before is None:
            after = (call.target.uid or f"u{revision}", revision, call.fields)
        else:
            content = {**before[2], **call.fields}
            if content == before[2]:
                return before
            after = (before[0], revision, content)
        self.objects[lane] = after
        return after

    @staticmethod
    def _value(call: SimulatedCall, after: State | None) -> Any:
        """What a success is answered with: as the real server, an object where it is one."""
        if after is None:
            return True  # of a deletion
        if call.verb == "bind":
            return call.fields["node"]
        ref = call.target
        meta = {"name": ref.name, "namespace": ref.namespace, "uid": after[0], "resourceVersion": str(after[1])}
        return {"metadata": meta, "content": after[2]}


_REFUSALS = {
    "throttled": THROTTLED,
    "unavailable": UNAVAILABLE,
    "refused": REFUSED,
    "reset": RESET,
    "quota": QUOTA,
    "invalid": INVALID,
    "dropped_key": UNAUTHORIZED,
}
