"""Why a waiting call waits: read off the core's tables, nothing decided anew.

What is shown names things and never quotes: of an error its class, status and one-word reason, of a scope its words.
Messages and bodies may hold secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.lanes import Lane
from asyncdispatch._core.states import BACKOFF, QUEUED, READ, SECOND, More

if TYPE_CHECKING:
    from collections.abc import Hashable

    from asyncdispatch._core.machine import Machine
    from asyncdispatch._core.parking import Hold
    from asyncdispatch._core.states import Entry

MAX_TEXT = 160
WORD = re.compile(r"[A-Za-z][A-Za-z ]{0,39}")

REASONS = {
    "delayed": "it may not start before its time",
    "requirements": "requirements of its context are not confirmed",
    "line": "another write of its object flies, or stands before it in line",
    "backoff": "an attempt has failed, and its delay is not over",
    "budget": "its delay is over, and the retry budget is empty",
    "later": "a condition elsewhere (a quota, a disruption budget) was not met",
    "held": "the credentials that it uses were refused",
    "breaker": "the circuit breaker of its flow and type is open, or its one probe is under way",
    "flow_full": "its flow has as many in flight as it may have",
    "type_full": "its call type has as many in flight as it may have",
    "seats": "all seats are taken",
    "rate": "the rate limit has no token",
    "turn": "nothing but its turn: it is about to start",
}
"""Each `reason` of a waiting call, and what it means."""


def reason_of(core: Machine, entry: Entry, now: int) -> str:
    """The key in `REASONS` that says why a waiting execution waits."""
    phase = entry.phase
    if phase is QUEUED:
        return _unstarted(core, entry, now)
    if phase is BACKOFF:
        more = entry.more
        if more is not None and more.later is not None:
            return "later"
        return "budget" if more is not None and more.budgeted else "backoff"
    return str(phase.value)


def _unstarted(core: Machine, entry: Entry, now: int) -> str:
    """Of a call that is ready: what it lacks, the narrowest first."""
    flow, group = entry.flow, entry.group
    if core.breakers.table and core.breakers.blocks(flow.name, group.name):
        return "breaker"
    if flow.limit is not None and flow.full:
        return "flow_full"
    if group.limit is not None and group.full:
        return "type_full"
    if core.holds and (hold := hold_of(core, entry)) is not None and hold.probe is not entry:
        return "held"
    if core.seats.taken >= core.seats.limit:
        return "seats"
    if core.rate is not None and core.rate.free_at(now) > now:
        return "rate"
    return "turn"


def hold_of(core: Machine, entry: Entry) -> Hold | None:
    """Whom it waits for, or would as soon as it is its turn."""
    if entry.more is not None and entry.more.hold is not None:
        return entry.more.hold
    return core.holds.get(core.hold_scope(entry))


def explain(core: Machine, entry: Entry, reason: str, now: int) -> str:
    """`reason` in words, for one call."""
    teller = _TELLERS.get(reason)
    return REASONS[reason] if teller is None else clean(teller(core, entry, now))


def _delayed(core: Machine, entry: Entry, now: int) -> str:
    ready = min(
        (h.more.ready_at for h in core.living(entry) if h.more is not None and h.more.ready_at > now), default=0
    )
    return f"may start in {seconds(ready - now)}" if ready else REASONS["delayed"]


def _requirements(core: Machine, entry: Entry, now: int) -> str:
    epochs = [h.more.epoch for h in core.living(entry) if h.more is not None and h.more.epoch is not None]
    names = [name for epoch in epochs for name in epoch.context.missing()]
    return f"waits for {', '.join(dict.fromkeys(names))}" if names else REASONS["requirements"]


def _line(core: Machine, entry: Entry, now: int) -> str:
    lane = core.lanes.table.get(core.lane_key(entry))
    if not isinstance(lane, Lane):
        return REASONS["line"]
    if entry.call.effect is READ:
        ahead = [other for other in (lane.flying, *lane.line) if other is not None and other.ticket < entry.ticket]
    else:
        before = lane.line[: lane.line.index(entry)] if entry in lane.line else lane.line
        ahead = [lane.flying] if lane.flying is not None else before[-1:]
    if not ahead:
        return REASONS["line"]
    other = ahead[0]
    return f"behind call {other.ticket} ({other.call.call_type}, {other.phase.value}) of the same object"


def _backoff(core: Machine, entry: Entry, now: int) -> str:
    more = entry.more or More()
    text = f"tried again in {seconds(more.until - now)}" if more.until > now else "about to be tried again"
    return text if more.error is None else f"{text}, after {describe(more.error)}"


def _budget(core: Machine, entry: Entry, now: int) -> str:
    error = (entry.more or More()).error
    return REASONS["budget"] if error is None else f"the retry budget is empty; the last attempt: {describe(error)}"


def _later(core: Machine, entry: Entry, now: int) -> str:
    more = entry.more or More()
    assert more.later is not None
    text = f"{label(more.later.scope) or 'a condition elsewhere'}; "
    if more.until > now:
        text += f"tried again in {seconds(more.until - now)}"
    else:
        text += f"waits for its turn among {len(more.later.members)} of this condition"
    return text if more.error is None else f"{text}, after {describe(more.error)}"


def _held(core: Machine, entry: Entry, now: int) -> str:
    hold = hold_of(core, entry)
    if hold is None:
        return REASONS["held"]
    how = f"call {hold.probe.ticket} probes them" if hold.probe is not None else "to be probed"
    error = "" if hold.error is None else f" after {describe(hold.error)}"
    return f"credentials of {label(hold.scope)} refused for {seconds(now - hold.since)}{error}; {how}"


def _breaker(core: Machine, entry: Entry, now: int) -> str:
    breaker = core.breakers.table[entry.flow.name, entry.group.name]
    if breaker.open_until:
        return f"the breaker is open for {seconds(breaker.open_until - now)} more"
    probe = "" if breaker.probe is None else f": call {breaker.probe.ticket}"
    return f"the breaker is half-open, and its probe under way{probe}"


def _flow_full(core: Machine, entry: Entry, now: int) -> str:
    return f"flow {entry.flow.name} has all of its {entry.flow.limit} in flight"


def _type_full(core: Machine, entry: Entry, now: int) -> str:
    return f"type {entry.group.name} has all of its {entry.group.limit} in flight"


def _seats(core: Machine, entry: Entry, now: int) -> str:
    return f"all {core.seats.limit} seats are taken"


def _rate(core: Machine, entry: Entry, now: int) -> str:
    return "the rate limit has no token" if core.rate is None else f"a token in {seconds(core.rate.free_at(now) - now)}"


_TELLERS: dict[str, Callable[[Machine, Entry, int], str]] = {
    "delayed": _delayed,
    "requirements": _requirements,
    "line": _line,
    "backoff": _backoff,
    "budget": _budget,
    "later": _later,
    "held": _held,
    "breaker": _breaker,
    "flow_full": _flow_full,
    "type_full": _type_full,
    "seats": _seats,
    "rate": _rate,
}


# -- words that are safe to show --------------------------------------------------------------------------------------


def seconds(ns: int) -> str:
    return f"{max(ns, 0) / SECOND:.3g} s"


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """One line of printable characters, of bounded length."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text if text.isprintable() else "".join(each if each.isprintable() else "�" for each in text)


def label(value: Hashable) -> str:
    """A scope in words: its strings and numbers as they are, of anything else the name of its class."""
    if isinstance(value, tuple):
        return clean(" ".join(filter(None, map(label, value))))
    if value is None:
        return ""
    return clean(str(value)) if type(value) in (str, int) else type(value).__name__


def describe(error: BaseException) -> str:
    """An error by class, HTTP status and one-word reason. Its message is left out: it may quote what was sent."""
    words: list[Any] = [type(error).__name__]
    status, reason = getattr(error, "status", None), getattr(error, "reason", None)
    if type(status) is int:
        words.append(status)
    if isinstance(reason, str) and WORD.fullmatch(reason):
        words.append(reason)
    return clean(" ".join(map(str, words)))
