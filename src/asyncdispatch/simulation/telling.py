"""A history in words: what happened to one object, in order."""

from __future__ import annotations

from collections.abc import Iterator

from asyncdispatch.simulation.history import NEVER, CallRecord, History, RequestRecord

__all__ = ["story"]

Line = tuple[int, int, str]


def story(history: History, lane: str = "", *, most: int = 200) -> list[str]:
    """What happened to the object of that lane, line by line in order of time; of all objects for "".

    At most the last `most` lines. Times are seconds since the run began.
    """
    lines = sorted([*_processes(history), *_others(history, lane), *_calls(history, lane)])
    told = [f"{(at - history.began) / 1e9:12.6f}  {text}" for at, _, text in lines]
    return told if len(told) <= most else [f"… {len(told) - most} lines before", *told[-most:]]


def _processes(history: History) -> Iterator[Line]:
    for replica, at in history.crashed.items():
        yield at, 0, f"replica {replica} crashes"
    for replica, since, until in history.stalls:
        yield since, 0, f"replica {replica} is stalled for {(until - since) / 1e9:.3f} s"
    for term in history.terms:
        yield term.since, 0, f"replica {term.replica} leads, until {(term.until - history.began) / 1e9:.6f}"


def _others(history: History, lane: str) -> Iterator[Line]:
    for request in history.audit:
        if request.record is None and lane in ("", request.call.target.lane):
            yield request.landed, 4, f"somebody else: {_what(request)} {request.call.target}: {_left(request)}"


def _calls(history: History, lane: str) -> Iterator[Line]:
    for record in history.calls:
        if lane not in ("", record.call.target.lane):
            continue
        name = f"{record.replica}:{record.ticket}"
        yield record.accepted, 1, f"{name} accepted: {record.call.call_type} {record.call.target}{_wish(record)}"
        if record.context is not None and (over := record.context.over) != NEVER:
            yield over, 2, f"{name}: its context is over"
        for number, request in enumerate(record.requests, start=1):
            yield from _request(f"{name} request {number}", request)
        if record.told != NEVER:
            yield record.told, 6, f"{name} is told {record.how}{_more(record)}"


def _request(name: str, request: RequestRecord) -> Iterator[Line]:
    yield request.sent, 3, f"{name} is sent: {_what(request)}"
    if request.landed != NEVER:
        yield request.landed, 4, f"{name} is carried out: {_left(request)}"
    if request.ended != NEVER:
        yield request.ended, 5, f"{name} ends: {request.error or 'well'}"


def _wish(record: CallRecord) -> str:
    call = record.call
    wish = f" {dict(call.fields)}" if getattr(call, "fields", None) else ""
    wish += f" at version {call.version}" if call.version is not None else ""
    return wish + (f", joins {record.lead.ticket}" if record.lead is not None else "")


def _what(request: RequestRecord) -> str:
    return "a look" if request.look else str(getattr(request.call, "verb", request.call.call_type))


def _left(request: RequestRecord) -> str:
    after = request.after
    if not request.changed:
        return (
            "nothing is there" if after is None else f"as it is at version {after[1]}, uid {after[0]}: {dict(after[2])}"
        )
    return "gone" if after is None else f"version {after[1]}, uid {after[0]}: {dict(after[2])}"


def _more(record: CallRecord) -> str:
    more = f" by {record.by}" if record.by else ""
    return more + (", ambiguous" if record.ambiguous else "") + (", with a late success" if record.late else "")
