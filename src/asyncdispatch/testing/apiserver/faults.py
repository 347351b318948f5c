"""Faults on request: which requests they meet, and what they do to them.

Faults are matched when a request arrives, in the order in which they were set up. Delays and hooks add up; of those
that end a request (rate limit, failure, dropped or reset connection) the first that matches wins.
"""

from __future__ import annotations

import fnmatch
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from asyncdispatch.testing.apiserver.audit import AuditRecord
from asyncdispatch.testing.apiserver.status import REASONS, Json, default_message, failure
from asyncdispatch.testing.apiserver.store import dumps

Seconds = float | Callable[[random.Random], float]
"""Fixed, or drawn from the server's seeded random numbers."""
Predicate = Callable[[AuditRecord], bool]
Hook = Callable[[AuditRecord], Awaitable[None] | None]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, ready to be sent."""

    code: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def text_answer(code: int, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    """A plain-text error; it ends with a newline, as the API server's do."""
    return Answer(code, f"{text}\n".encode(), TEXT, {"X-Content-Type-Options": "nosniff", **(headers or {})})


@dataclass(frozen=True, slots=True)
class Ending:
    """A fault takes over the end of a request: an answer of its own, or (`answer` None) a closed connection."""

    name: str
    applied: bool
    answer: Answer | None = None
    reset: bool = False


@dataclass(slots=True)
class Plan:
    """All that the faults have in mind for one request."""

    before: float = 0.0
    after: float = 0.0
    hooks: list[Hook] = field(default_factory=list[Hook])
    ending: Ending | None = None
    names: list[str] = field(default_factory=list[str])


class Fault:
    """A fault that was set up: `remaining` matches are left (None: until removed), `hits` there have been."""

    def __init__(
        self,
        name: str,
        match: _Match,
        times: int | None,
        strike: Callable[[AuditRecord, Plan], bool],
        faults: FaultList,
    ) -> None:
        self.name = name
        self.remaining = times
        self.hits = 0
        self._match = match
        self._strike = strike
        self._faults = faults
        faults.items.append(self)

    def remove(self) -> None:
        """No request that arrives from now on meets it. Removing twice is harmless."""
        if self in self._faults.items:
            self._faults.items.remove(self)

    def meet(self, record: AuditRecord, plan: Plan) -> None:
        """Add to the plan for a request, if it matches."""
        if not self._match(record) or not self._strike(record, plan):
            return
        self.hits += 1
        plan.names.append(self.name)
        if self.remaining is not None:
            self.remaining -= 1
            if self.remaining == 0:
                self.remove()

    def __repr__(self) -> str:
        left = "until removed" if self.remaining is None else f"{self.remaining} left"
        return f"<Fault {self.name!r}: {self.hits} hits, {left}>"


class FaultList:
    """The faults that are set up, in the order in which they are asked."""

    def __init__(self) -> None:
        self.items: list[Fault] = []

    def plan(self, record: AuditRecord) -> Plan | None:
        """What the faults do to a request that arrives; None if nothing. Uses up one of each that it meets."""
        if not self.items:
            return None
        plan = Plan()
        for fault in tuple(self.items):
            fault.meet(record, plan)
        return plan if plan.names else None


class _Match:
    """Which requests a fault is for."""

    def __init__(self, method: str | None, path: str | None, verb: str | None, when: Predicate | None) -> None:
        self.method = None if method is None else method.upper()
        if self.method not in (None, *METHODS):
            raise ValueError(f"method: {method!r} is no HTTP method of the API; give one of {', '.join(METHODS)}")
        if path is not None and not path.startswith(("/", "*")):
            raise ValueError(f"path: {path!r} can match nothing; begin it with '/' or '*', e.g. '*/pods'")
        if when is not None and not callable(when):
            raise ValueError(f"when: {when!r} cannot be called; give a function of the audit record")
        self.verb = verb
        self.when = when
        self.path = re.compile(fnmatch.translate(path)) if path is not None else None

    def __call__(self, record: AuditRecord) -> bool:
        if self.method is not None and record.method != self.method:
            return False
        if self.verb is not None and record.verb != self.verb:
            return False
        if self.path is not None and not self.path.match(record.path):
            return False
        return self.when is None or bool(self.when(record))


class FaultControls:
    """The methods by which a test makes the server misbehave.

    All take `method` (any case), `path` (a shell pattern over the whole path, no query), `verb` (as in the audit
    record: "watch", "bind" …) and `when` (a function of the audit record); a request must match all that are given.
    `times` counts the requests that are met; None: until removed. Bad arguments raise ValueError.
    """

    def __init__(self, *, seed: int, time: Callable[[], float]) -> None:
        self._faults = FaultList()
        self._fault_random = random.Random(f"faults {seed}")
        self._fault_time = time

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that are set up now, in the order in which they are asked."""
        return tuple(self._faults.items)

    def fail(
        self,
        *,
        status: int = 500,
        times: int | None = 1,
        retry_after: float | str | None = None,
        body: Json | str | None = None,
        reason: str | None = None,
        message: str | None = None,
        details: Json | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        applied: bool = False,
        method: str | None = None,
        path: str | None = None,
        verb: str | None = None,
        when: Predicate | None = None,
        name: str | None = None,
    ) -> Fault:
        """Answer `status`; with `applied`, after the request was carried out.

        A `body` is sent as it is (a str as plain text); without one the body is a Status made of `reason` ("" for
        none), `message` and `details`. `retry_after` is in seconds, or an HTTP date.
        """
        if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"status: {status!r} is no final HTTP status; give an integer from 200 to 599")
        answer = _failed_answer(status, retry_after, body, reason, message, details, headers, content_type)
        ending = Ending(name or f"fail {status}", applied, answer)
        return self._add(ending.name, _Match(method, path, verb, when), times, _ending(ending))

    def drop(
        self,
        *,
        times: int | None = 1,
        applied: bool = False,
        method: str | None = None,
        path: str | None = None,
        verb: str | None = None,
        when: Predicate | None = None,
        name: str | None = None,
    ) -> Fault:
        """Close the connection without an answer; with `applied`, after the request was carried out."""
        ending = Ending(name or "drop", applied)
        return self._add(ending.name, _Match(method, path, verb, when), times, _ending(ending))

    def reset(
        self,
        *,
        times: int | None = 1,
        applied: bool = False,
        method: str | None = None,
        path: str | None = None,
        verb: str | None = None,
        when: Predicate | None = None,
        name: str | None = None,
    ) -> Fault:
        """Reset the connection (RST) without an answer; with `applied`, after the request was carried out."""
        ending = Ending(name or "reset", applied, reset=True)
        return self._add(ending.name, _Match(method, path, verb, when), times, _ending(ending))

    def delay(
        self,
        seconds: Seconds,
        *,
        times: int | None = None,
        applied: bool = False,
        method: str | None = None,
        path: str | None = None,
        verb: str | None = None,
        when: Predicate | None = None,
        name: str | None = None,
    ) -> Fault:
        """Wait before the request is carried out (a late write); with `applied`, after it (a late answer)."""
        check_seconds("seconds", seconds)

        def strike(record: AuditRecord, plan: Plan) -> bool:
            drawn = draw(seconds, self._fault_random)
            plan.before += 0.0 if applied else drawn
            plan.after += drawn if applied else 0.0
            return True

        return self._add(name or "delay", _Match(method, path, verb, when), times, strike)

    def hook(
        self,
        fn: Hook,
        *,
        times: int | None = None,
        method: str | None = None,
        path: str | None = None,
        verb: str | None = None,
        when: Predicate | None = None,
        name: str | None = None,
    ) -> Fault:
        """Call `fn` with the audit record right before a request is carried out; it may be a coroutine function."""
        if not callable(fn):
            raise ValueError(f"fn: {fn!r} cannot be called; give a function of the audit record")

        def strike(record: AuditRecord, plan: Plan) -> bool:
            plan.hooks.append(fn)
            return True

        return self._add(name or "hook", _Match(method, path, verb, when), times, strike)

    def rate_limit(
        self,
        qps: float,
        burst: int = 1,
        *,
        method: str | None = None,
        path: str | None = None,
        verb: str | None = None,
        when: Predicate | None = None,
        name: str | None = None,
    ) -> Fault:
        """Answer 429 in plain text with `Retry-After: 1` to what exceeds `qps` requests per second and a `burst`."""
        if isinstance(qps, bool) or not isinstance(qps, (int, float)) or not qps > 0:
            raise ValueError(f"qps: {qps!r} is no rate; give requests per second above 0")
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise ValueError(f"burst: {burst!r} is no number of requests; give an integer of at least 1")
        answer = text_answer(429, "Too many requests, please try again later.", {"Retry-After": "1"})
        ending = Ending(name or "rate limit", False, answer)
        bucket = _Bucket(qps, burst, self._fault_time(), float(burst))

        def strike(record: AuditRecord, plan: Plan) -> bool:
            if plan.ending is not None or bucket.take(self._fault_time()):
                return False
            plan.ending = ending
            return True

        return self._add(ending.name, _Match(method, path, verb, when), None, strike)

    def _add(self, name: str, match: _Match, times: int | None, strike: Callable[[AuditRecord, Plan], bool]) -> Fault:
        if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
            raise ValueError(f"times: {times!r} is no count; give an integer of at least 1, or None for no end")
        return Fault(name, match, times, strike, self._faults)


def check_seconds(field: str, seconds: Seconds) -> None:
    """ValueError unless `seconds` is a time of at least 0 or a function that draws one."""
    if callable(seconds):
        return
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
        raise ValueError(f"{field}: {seconds!r} is no time; give seconds of at least 0, or a function of a Random")


def draw(seconds: Seconds, source: random.Random) -> float:
    """A time: the fixed one, or one drawn; a negative draw counts as 0."""
    return max(0.0, float(seconds(source))) if callable(seconds) else float(seconds)


def _ending(ending: Ending) -> Callable[[AuditRecord, Plan], bool]:
    def strike(record: AuditRecord, plan: Plan) -> bool:
        if plan.ending is not None:
            return False
        plan.ending = ending
        return True

    return strike


def _failed_answer(
    status: int,
    retry_after: int | float | str | None,
    body: object,
    reason: str | None,
    message: str | None,
    details: Json | None,
    headers: Mapping[str, str] | None,
    content_type: str | None,
) -> Answer:
    sent = dict(headers or {})
    if isinstance(retry_after, bool) or (isinstance(retry_after, (int, float)) and retry_after < 0):
        raise ValueError(f"retry_after: {retry_after!r} is no time; give seconds of at least 0, or an HTTP date")
    if retry_after is not None:
        sent["Retry-After"] = f"{retry_after:g}" if isinstance(retry_after, (int, float)) else retry_after
    if isinstance(body, str):
        return Answer(status, body.encode(), content_type or TEXT, sent)
    if isinstance(body, dict):
        return Answer(status, dumps(body), content_type or JSON, sent)
    if body is not None:
        raise ValueError(f"body: a {type(body).__name__} is no body; give a dict, a str, or None for a Status")
    if isinstance(retry_after, int):
        details = {**(details or {}), "retryAfterSeconds": retry_after}
    said = failure(
        status,
        default_message(status) if message is None else message,
        reason=REASONS.get(status, "") if reason is None else reason,
        details=details,
    )
    return Answer(status, dumps(said), content_type or JSON, sent)


@dataclass(slots=True)
class _Bucket:
    """Tokens that trickle in with time; never more than `burst`."""

    qps: float
    burst: int
    seen: float
    tokens: float

    def take(self, now: float) -> bool:
        self.tokens = min(float(self.burst), self.tokens + (now - self.seen) * self.qps)
        self.seen = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True
