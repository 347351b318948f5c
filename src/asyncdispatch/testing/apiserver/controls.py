"""The methods by which a test makes the server misbehave, request by request."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Unpack

from asyncdispatch.testing.apiserver.access import cannot
from asyncdispatch.testing.apiserver.answers import JSON, TEXT, Answer, status_answer, throttled
from asyncdispatch.testing.apiserver.audit import AuditRecord
from asyncdispatch.testing.apiserver.faults import (
    Ending,
    Fault,
    FaultList,
    Hook,
    Match,
    Plan,
    Seconds,
    Which,
    check_count,
    check_times,
    drawing,
)
from asyncdispatch.testing.apiserver.status import REASONS, Json, StatusError, default_message, failure
from asyncdispatch.testing.apiserver.store import dumps

Strike = Callable[[AuditRecord, Plan], bool]


class FaultControls:
    """The methods by which a test makes the server misbehave, request by request.

    Which requests a fault meets is said by keywords, all of which must fit: `method` (in any case of letters), `path`
    (a shell pattern over the whole path, no query), `verb` (as in the audit record: "watch", "bind", "evict" …), `user`
    and `when` (a function of the audit record). `name` is what the audit list calls it. `times` counts the requests
    that are met; None: until removed. Bad arguments raise ValueError.
    """

    def __init__(self, *, seed: int, time: Callable[[], float]) -> None:
        self._faults = FaultList()
        self._fault_random = random.Random(f"faults {seed}")
        self._fault_time = time

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that are set up now, in the order in which they are asked."""
        return tuple(self._faults.items)

    # -- another end -------------------------------------------------------------------------------------------------

    def fail(
        self,
        answer: Answer | StatusError | None = None,
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
        **which: Unpack[Which],
    ) -> Fault:
        """Answer `answer` (one of `answers`), or what the rest says; with `applied`, after the request was carried out.

        A `body` is sent as it is (a str as plain text); without one the body is a Status made of `status`, `reason` (""
        for none), `message` and `details`. `retry_after` is in seconds, or an HTTP date.
        """
        if isinstance(answer, StatusError):
            answer = status_answer(answer)
        if answer is None:
            if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
                raise ValueError(f"status: {status!r} is no final HTTP status; give an integer from 200 to 599")
            answer = _failed_answer(status, retry_after, body, reason, message, details, headers, content_type)
        elif not isinstance(answer, Answer):
            raise ValueError(f"answer: {answer!r} is no answer; give one of asyncdispatch.testing.answers")
        return self._end("answer", f"fail {answer.code}", times, applied, which, answer)

    def drop(self, *, times: int | None = 1, applied: bool = False, **which: Unpack[Which]) -> Fault:
        """Close the connection without an answer; with `applied`, after the request was carried out."""
        return self._end("close", "drop", times, applied, which)

    def reset(self, *, times: int | None = 1, applied: bool = False, **which: Unpack[Which]) -> Fault:
        """Reset the connection (RST) without an answer; with `applied`, after the request was carried out."""
        return self._end("reset", "reset", times, applied, which)

    def black_hole(self, *, times: int | None = 1, applied: bool = False, **which: Unpack[Which]) -> Fault:
        """Never answer, on a connection that stays open; with `applied`, after the request was carried out."""
        return self._end("dark", "black hole", times, applied, which)

    def forbid(self, *, times: int | None = None, **which: Unpack[Which]) -> Fault:
        """Answer 403 as RBAC does: the right is missing until the fault is removed."""

        def strike(record: AuditRecord, plan: Plan) -> bool:
            return _take(plan, Ending(name, False, "answer", status_answer(cannot(record))))

        name = which.get("name") or "forbid"
        return self._add(name, times, which, strike)

    def rate_limit(self, qps: float, burst: int = 1, **which: Unpack[Which]) -> Fault:
        """Answer 429 in plain text with `Retry-After: 1` to what exceeds `qps` requests per second and a `burst`."""
        if isinstance(qps, bool) or not isinstance(qps, (int, float)) or not qps > 0:
            raise ValueError(f"qps: {qps!r} is no rate; give requests per second above 0")
        check_count("burst", burst, 1)
        ending = Ending(which.get("name") or "rate limit", False, "answer", throttled())
        bucket = _Bucket(qps, burst, self._fault_time(), float(burst))

        def strike(record: AuditRecord, plan: Plan) -> bool:
            return plan.ending is None and not bucket.take(self._fault_time()) and _take(plan, ending)

        return self._add(ending.name, None, which, strike)

    # -- late --------------------------------------------------------------------------------------------------------

    def delay(
        self, seconds: Seconds, *, times: int | None = None, applied: bool = False, **which: Unpack[Which]
    ) -> Fault:
        """Wait before the request is carried out (a late write); with `applied`, after it (a late answer)."""
        draw = drawing("seconds", seconds)

        def strike(record: AuditRecord, plan: Plan) -> bool:
            drawn = draw(self._fault_random)
            plan.before += 0.0 if applied else drawn
            plan.after += drawn if applied else 0.0
            return True

        return self._add("delay", times, which, strike)

    def hook(self, fn: Hook, *, times: int | None = None, **which: Unpack[Which]) -> Fault:
        """Call `fn` with the audit record right before a request is carried out; it may be a coroutine function."""
        if not callable(fn):
            raise ValueError(f"fn: {fn!r} cannot be called; give a function of the audit record")

        def strike(record: AuditRecord, plan: Plan) -> bool:
            plan.hooks.append(fn)
            return True

        return self._add("hook", times, which, strike)

    # -- answers that do not arrive whole ----------------------------------------------------------------------------

    def chunk(self, size: int = 1, *, times: int | None = None, **which: Unpack[Which]) -> Fault:
        """Send the body (of a watch too) in pieces of `size` bytes: 1 parts every line and every character."""
        check_count("size", size, 1)

        def strike(record: AuditRecord, plan: Plan) -> bool:
            plan.piece = size
            return True

        return self._add("chunk", times, which, strike)

    def cut(
        self, *, after: int | None = None, within: str | None = None, times: int | None = 1, **which: Unpack[Which]
    ) -> Fault:
        """Close the connection in the middle of the body (of a watch too).

        `after` counts the bytes that are sent; `within` is a text of which the first half of its bytes is the last that
        is sent. Give one of them. An answer that ends earlier is sent whole.
        """
        if (after is None) == (within is None):
            raise ValueError("after: give either after=BYTES or within=TEXT; it says where to cut")
        if after is not None:
            check_count("after", after, 0)
        text = (within or "").encode()
        if after is None and len(text) < 2:
            raise ValueError(f"within: {within!r} can't be cut; give a text of at least two bytes")

        def place(sent: bytes) -> int | None:
            if after is not None:
                return after if len(sent) >= after else None
            found = sent.find(text)
            return None if found < 0 else found + len(text) // 2

        def strike(record: AuditRecord, plan: Plan) -> bool:
            plan.cut = place
            return True

        return self._add("cut", times, which, strike)

    def silence(self, after: int = 0, *, times: int | None = 1, **which: Unpack[Which]) -> Fault:
        """A watch sends `after` events and then nothing more, not even bookmarks or its end; it stays open."""
        check_count("after", after, 0)

        def strike(record: AuditRecord, plan: Plan) -> bool:
            if record.verb != "watch":
                return False
            plan.silent_after = after
            return True

        return self._add("silence", times, which, strike)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _end(
        self,
        how: Literal["answer", "close", "reset", "dark"],
        name: str,
        times: int | None,
        applied: bool,
        which: Which,
        answer: Answer | None = None,
    ) -> Fault:
        ending = Ending(which.get("name") or name, applied, how, answer)
        return self._add(ending.name, times, which, lambda record, plan: _take(plan, ending))

    def _add(self, name: str, times: int | None, which: Which, strike: Strike) -> Fault:
        check_times(times)
        return Fault(which.get("name") or name, Match(which), times, strike, self._faults)


def _take(plan: Plan, ending: Ending) -> bool:
    """End the request so, unless another fault does already."""
    if plan.ending is not None:
        return False
    plan.ending = ending
    return True


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
