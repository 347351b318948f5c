"""Faults on request: which requests they meet, and what they plan for them.

Faults are matched when a request arrives, in the order in which they were set up. Delays, hooks and what shapes an
answer add up; of those that end a request (failure, rate limit, closed or dark connection) the first that matches wins.
"""

from __future__ import annotations

import fnmatch
import inspect
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypedDict, cast

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.testing.apiserver.answers import Answer
from asyncdispatch.testing.apiserver.audit import AuditRecord

Seconds = float | tuple[float, float] | Callable[[], float] | Callable[[random.Random], float]
"""Fixed; drawn evenly from (least, most); or what a function says, which may draw from the Random that it is given.

What is drawn comes from the server's seeded random numbers.
"""
Draw = Callable[[random.Random], float]
_TIMES = "give seconds of at least 0, a pair (least, most) of them, or a function of nothing or of a Random"
Predicate = Callable[[AuditRecord], bool]
Hook = Callable[[AuditRecord], object]
"""What it returns is awaited if it can be, and means nothing otherwise."""

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Which(TypedDict, total=False):
    """Which requests a fault is for (all that is given must fit), and how it is called in the audit list."""

    method: str | None
    """In any case of letters."""
    path: str | None
    """A shell pattern over the whole path, without the query."""
    verb: str | None
    """As in the audit record: "watch", "bind", "evict" …"""
    user: str | None
    """As in the audit record."""
    when: Predicate | None
    """A function of the audit record."""
    name: str | None


@dataclass(frozen=True, slots=True)
class Ending:
    """A fault takes over the end of a request: by an answer of its own, or by none."""

    name: str
    applied: bool
    """It strikes after the request was carried out."""
    how: Literal["answer", "close", "reset", "dark"]
    answer: Answer | None = None


@dataclass(slots=True)
class Plan:
    """All that the faults have in mind for one request."""

    before: float = 0.0
    after: float = 0.0
    hooks: list[Hook] = field(default_factory=list[Hook])
    ending: Ending | None = None
    piece: int | None = None
    """The body is sent in pieces of so many bytes."""
    cut: Callable[[bytes], int | None] | None = None
    """How many bytes of what was sent so far (all of it is given) reach the client; None: go on."""
    silent_after: int | None = None
    """A watch sends so many events and then nothing more."""
    names: list[str] = field(default_factory=list[str])


class Fault:
    """A fault that was set up: `remaining` matches are left (None: until removed), `hits` there have been."""

    def __init__(
        self,
        name: str,
        match: Match,
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


class Match:
    """Which requests a fault is for; ValueError names what can match nothing."""

    def __init__(self, which: Which) -> None:
        unknown = [key for key in which if key not in Which.__annotations__]
        if unknown:
            raise TypeError(f"{unknown[0]}: no such argument; requests are chosen by method, path, verb, user and when")
        method, path, when = which.get("method"), which.get("path"), which.get("when")
        self.method = None if method is None else method.upper()
        if self.method not in (None, *METHODS):
            raise ValueError(f"method: {method!r} is no HTTP method of the API; give one of {', '.join(METHODS)}")
        if path is not None and not path.startswith(("/", "*")):
            raise ValueError(f"path: {path!r} can match nothing; begin it with '/' or '*', e.g. '*/pods'")
        if when is not None and not callable(when):
            raise ValueError(f"when: {when!r} cannot be called; give a function of the audit record")
        self.verb = which.get("verb")
        self.user = which.get("user")
        self.when = when
        self.path = re.compile(fnmatch.translate(path)) if path is not None else None

    def __call__(self, record: AuditRecord) -> bool:
        if self.method is not None and record.method != self.method:
            return False
        if self.verb is not None and record.verb != self.verb:
            return False
        if self.user is not None and record.user != self.user:
            return False
        if self.path is not None and not self.path.match(record.path):
            return False
        return self.when is None or bool(self.when(record))


def check_seconds(field: str, seconds: float) -> None:
    """ConfigurationError unless `seconds` is a time of at least 0."""
    if not _is_time(seconds):
        raise ConfigurationError(field, seconds, "is no time; give seconds of at least 0")


def drawing(field: str, seconds: Seconds) -> Draw:
    """How to draw `seconds`; ConfigurationError if that can't be done. A negative draw counts as 0."""
    if callable(seconds):
        function = _of_a_random(field, seconds)
        return lambda source: max(0.0, float(function(source)))
    if _is_time(seconds):
        fixed = float(cast(float, seconds))
        return lambda source: fixed
    if isinstance(seconds, tuple) and len(seconds) == 2:
        least, most = seconds
        if _is_time(least) and _is_time(most) and least <= most:
            return lambda source: source.uniform(least, most)
    raise ConfigurationError(field, seconds, f"is no time; {_TIMES}")


def _of_a_random(field: str, function: Callable[..., float]) -> Draw:
    """`function` as one of a Random, which it is given only if it needs an argument."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some builtins do not say
        return function
    for arguments in ((), (random,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return function if arguments else lambda source: function()
    raise ConfigurationError(field, function, f"takes other arguments than a Random; {_TIMES}")


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def check_times(times: int | None) -> None:
    """ValueError unless `times` is a count of at least 1, or None for no end."""
    if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
        raise ValueError(f"times: {times!r} is no count; give an integer of at least 1, or None for no end")


def check_count(field: str, value: int, least: int) -> None:
    """ValueError unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{field}: {value!r} is no count; give an integer of at least {least}")
