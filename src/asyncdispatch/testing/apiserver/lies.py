"""Events that a watch gets wrong: lost, repeated, late, out of order, broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

from asyncdispatch.testing.apiserver.faults import check_seconds, check_times
from asyncdispatch.testing.apiserver.kinds import child
from asyncdispatch.testing.apiserver.status import Json

How = Literal["lose", "repeat", "swap", "garble", "late"]
TYPES = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")


class WhichEvents(TypedDict, total=False):
    """Which events a lie is about; all that is given must fit."""

    type: str | None
    """ADDED, MODIFIED, DELETED or BOOKMARK; without it any but BOOKMARK."""
    kind: str | None
    namespace: str | None
    name: str | None
    """The object's name."""
    when: Callable[[str, Json], bool] | None
    """A function of the event's type and object."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event on its way to one watch."""

    type: str
    kind: str
    obj: Json
    line: bytes


class Lie:
    """A lie that was set up: `remaining` events are left (None: until removed), `hits` there have been.

    An event that two watches would send counts twice.
    """

    def __init__(self, how: How, times: int | None, seconds: float, which: WhichEvents, lies: list[Lie]) -> None:
        unknown = [key for key in which if key not in WhichEvents.__annotations__]
        if unknown:
            raise TypeError(
                f"{unknown[0]}: no such argument; events are chosen by type, kind, namespace, name and when"
            )
        check_times(times)
        check_seconds("seconds", seconds)
        if which.get("type") not in (None, *TYPES):
            raise ValueError(f"type: {which.get('type')!r} is no type of event; give one of {', '.join(TYPES)}")
        self.how = how
        self.seconds = seconds
        self.remaining = times
        self.hits = 0
        self._which = which
        self._lies = lies
        lies.append(self)

    def remove(self) -> None:
        """No event from now on meets it. Removing twice is harmless."""
        if self in self._lies:
            self._lies.remove(self)

    def meets(self, event: Event) -> bool:
        """Whether it strikes; that is counted."""
        if not self._fits(event):
            return False
        self.hits += 1
        if self.remaining is not None:
            self.remaining -= 1
            if self.remaining == 0:
                self.remove()
        return True

    def _fits(self, event: Event) -> bool:
        which = self._which
        wanted = which.get("type")
        if event.type != wanted if wanted is not None else event.type == "BOOKMARK":
            return False
        if which.get("kind") not in (None, event.kind):
            return False
        if any(which.get(key) not in (None, child(event.obj, "metadata", key)) for key in ("namespace", "name")):
            return False
        when = which.get("when")
        return when is None or bool(when(event.type, event.obj))

    def __repr__(self) -> str:
        left = "until removed" if self.remaining is None else f"{self.remaining} left"
        return f"<Lie {self.how!r}: {self.hits} hits, {left}>"


class LieControls:
    """The methods by which a test makes watches lie.

    Which events are met is said by keywords, all of which must fit: `type` (ADDED, MODIFIED, DELETED or BOOKMARK),
    `kind`, `namespace`, `name` (the object's) and `when` (a function of type and object). `times` counts the events
    that are met, once for each watch that would send them; None: until removed. Bad arguments raise ValueError.
    """

    def __init__(self) -> None:
        self._lies: list[Lie] = []

    def lose_events(self, times: int | None = 1, **which: Unpack[WhichEvents]) -> Lie:
        """Events that are never sent; the watch goes on as if they had been."""
        return Lie("lose", times, 0.0, which, self._lies)

    def repeat_events(self, times: int | None = 1, **which: Unpack[WhichEvents]) -> Lie:
        """Events that are sent twice."""
        return Lie("repeat", times, 0.0, which, self._lies)

    def swap_events(self, times: int | None = 1, **which: Unpack[WhichEvents]) -> Lie:
        """Events that are sent after the one that follows them."""
        return Lie("swap", times, 0.0, which, self._lies)

    def garble_events(self, times: int | None = 1, **which: Unpack[WhichEvents]) -> Lie:
        """Events with a byte that is no UTF-8 inside of a JSON string."""
        return Lie("garble", times, 0.0, which, self._lies)

    def delay_events(self, seconds: float, times: int | None = 1, **which: Unpack[WhichEvents]) -> Lie:
        """Events that are sent `seconds` later, while those behind them pass (`watch_lag` makes all late, in order)."""
        return Lie("late", times, seconds, which, self._lies)


def garbled(line: bytes) -> bytes:
    """The event with one byte of its last string made invalid; it ends as a line all the same."""
    place = line.rindex(b'"')
    return line[:place] + b"\xff" + line[place:]
