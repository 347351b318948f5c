"""A history in words, for people who look for what went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from asyncdispatch._core.states import SECOND
from asyncdispatch.calls import APICall, ObjectRef
from asyncdispatch.testing.stepping import events

__all__ = ["tell", "tickets_in", "told", "words_of"]

LONGEST = 200
COMMON = frozenset((*APICall.__dataclass_fields__, "_common"))


def tell(happened: Iterable[events.Event], ref: ObjectRef | None = None) -> list[str]:
    """A line for each event, or for each that is about the object `ref`: its step, the time in seconds, what it was."""
    lane = None if ref is None else ref.lane
    lanes: dict[tuple[str, int], str] = {}
    lines = []
    for event in happened:
        if isinstance(event, events.Accepted):
            lanes["ticket", event.ticket] = event.call.target.lane
        elif isinstance(event, events.Began):
            lanes["epoch", event.epoch] = event.ref.lane
        text = _text_of(event)
        if text and lane in (None, _lane_of(event, lanes)):
            text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
            lines.append(f"{event.step:>4}  {event.at / SECOND:>10.3f} s  {text}")
    return lines


def words_of(call: APICall[Any]) -> str:
    """A call by its class, its object, and what its class adds to the fields that all calls have."""
    own = [f"{name}={value!r}" for name, value in call.__dict__.items() if name not in COMMON and _tells(value)]
    return f"{type(call).__name__} of {call.target}" + (f" ({', '.join(own)})" if own else "")


def _tells(value: Any) -> bool:
    """Not how it is sent, nor what was left out."""
    return (
        value is not None and not callable(value) and not hasattr(value, "transport") and not hasattr(value, "request")
    )


def tickets_in(message: str) -> list[int]:
    """The calls that an error speaks of."""
    found = re.search(r"\bcalls? (\d+)", message)
    return [int(number) for number in found.groups()] if found else []


def _lane_of(event: Any, lanes: dict[tuple[str, int], str]) -> str | None:
    if isinstance(event, events.Noted):
        return event.ref.lane if event.ref is not None else None
    if isinstance(event, events.Refused):
        return event.call.target.lane
    name = "epoch" if hasattr(event, "epoch") else "ticket"
    return lanes.get((name, getattr(event, name, 0)))


def _text_of(event: Any) -> str:
    match event:
        case events.Accepted(ticket=ticket, call=call, lead=lead):
            joins = "" if lead == ticket else f", joins call {lead}"
            return f"call {ticket} accepted{joins}: {words_of(call)}"
        case events.Refused(call=call, error=error):
            return f"{words_of(call)} refused: {error}"
        case events.Started(ticket=ticket, reconcile=reconcile):
            return f"call {ticket} {'is reconciled' if reconcile else 'starts'}"
        case events.Ended(ticket=ticket, how=how, verdict=verdict):
            said = "" if verdict is None else f" ({verdict.kind.value}{': ' if verdict.reason else ''}{verdict.reason})"
            return f"call {ticket} {how.replace('_', ' ')}{said}"
        case events.Settled(ticket=ticket, outcome=outcome):
            return f"call {ticket} {told(outcome)}"
        case events.Stopping(ticket=ticket):
            return f"call {ticket} is asked to stop"
        case events.Left(ticket=ticket):
            return f"call {ticket} is cancelled by its caller"
        case events.Changed(ticket=ticket, call=call):
            return f"call {ticket} is now {words_of(call)}"
    return _text_of_others(event)


def _text_of_others(event: Any) -> str:
    match event:
        case events.Noted(text=text):
            return text
        case events.Began(epoch=epoch):
            return f"context {epoch} begins"
        case events.Finished(epoch=epoch, reason=reason):
            return f"context {epoch} ends: {reason}"
        case events.Required(epoch=epoch, name=name, state=state):
            return f"context {epoch}: {name} {'is confirmed' if state is True else f'has failed: {state!r}'}"
        case events.Closed(until=until):
            return "closed" if until is None else "draining"
    return ""


def told(outcome: Any) -> str:
    """An outcome, and why."""
    said = f"is told {type(outcome).__name__}"
    for name in ("by", "where", "reason", "error", "value"):
        if hasattr(outcome, name):
            said += f" ({name} {getattr(outcome, name)!r})"
            break
    return said + (", and may have been applied" if outcome.ambiguous else "")
