"""Reads a trace back, and says of a broken one which line is wrong and what to do about it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from asyncdispatch.config import DispatcherConfig
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.traces.format import FORMAT, LINES, VERSION, TraceError, config_of

__all__ = ["Trace", "read_trace"]


class Step(NamedTuple):
    """One line: `at` is in nanoseconds of the recorded clock; `told` what came of it, as far as it was written."""

    line: int
    name: str
    at: int
    items: tuple[Any, ...]
    more: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trace:
    """What a dispatcher's core was told.

    `config` is the dispatcher's, without its strategies, which are code; `recorded` is when it began, in UTC; `began`
    the same in nanoseconds of its loop's clock. `note` tells of a last line that was cut off and left out, else None.
    """

    path: str
    library: str
    recorded: str
    began: int
    config: DispatcherConfig
    steps: tuple[Step, ...]
    note: str | None = None

    def __repr__(self) -> str:
        return f"<Trace {self.path} of {self.recorded}, {len(self.steps)} steps>"


REMEDY = "record it again, or cut the file off before this line"


def read_trace(path: str | Path) -> Trace:
    """Read what a `TraceRecorder` has written. Raises `TraceError` for what is no trace, and `OSError` for no file.

    A last line that was cut off, as it is when a process is killed, is left out, and `note` says so.
    """
    if not isinstance(path, (str, Path)) or not str(path):
        raise ConfigurationError("path", path, "must be the path of a file")
    where = str(path)
    lines = _lines(Path(path))
    first = next(lines, None)
    if first is None:
        raise TraceError(where, 1, "the file is empty", "record one with TraceRecorder")
    head = _header(where, first.text)
    began: int = head["began"]
    steps: list[Step] = []
    note = None
    at = began
    held: Line | None = None  # looked at once it is known whether another follows
    for line in (*lines, None):
        if held is not None:
            if not held.whole or (line is None and _unreadable(held.text)):
                note = f"line {held.number} was cut off and is left out: the recording process ended there"
                break
            step = _step(where, held, began, at)
            at = step.at
            steps.append(step)
        held = line
    return Trace(where, str(head["library"]), str(head["recorded"]), began, head["config"], tuple(steps), note)


class Line(NamedTuple):
    number: int
    text: str
    whole: bool  # it ends as a line does


def _lines(path: Path) -> Iterator[Line]:
    """Also those of a compressed file that ends too early, which are all before that."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        number = 0
        while True:
            number += 1
            try:
                text = file.readline()
            except (EOFError, gzip.BadGzipFile, OSError) as error:
                if not packed:
                    raise
                if not isinstance(error, EOFError):
                    raise TraceError(str(path), number, f"it is not what gzip has written: {error}", REMEDY) from error
                yield Line(number, "", False)
                return
            if not text:
                return
            yield Line(number, text.decode(errors="replace"), text.endswith(b"\n"))


def _unreadable(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


def _header(where: str, text: str) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise TraceError(where, 1, f'there is no header with "format": "{FORMAT}"', "give a file of a TraceRecorder")
    version = head.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        remedy = "read it with a newer asyncdispatch" if newer else f"this asyncdispatch reads version {VERSION} only"
        raise TraceError(where, 1, f"its version is {version!r}, written by {head.get('library')}", remedy)
    if not _is_count(head.get("began")):
        raise TraceError(where, 1, '"began" must be a whole number of nanoseconds', REMEDY)
    try:
        head["config"] = config_of(head["config"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TraceError(where, 1, f'"config" can\'t be meant: {error!r}', REMEDY) from error
    return {"library": "unknown", "recorded": "unknown"} | head


def _step(where: str, line: Line, began: int, before: int) -> Step:
    """The step of a line, its shape checked; its contents are by the replay, which knows what they refer to."""
    try:
        items = json.loads(line.text)
    except ValueError as error:
        raise TraceError(where, line.number, f"it is no JSON: {error}", REMEDY) from error
    if not isinstance(items, list) or len(items) < 2 or not isinstance(items[0], str):
        raise TraceError(where, line.number, "it is not a list of a name, a time and more", REMEDY)
    name, at = items[0], items[1]
    shape = LINES.get(name)
    if shape is None:
        raise TraceError(where, line.number, f"there is no step {name!r}", REMEDY)
    if at is not None and not _is_count(at):
        raise TraceError(where, line.number, f"its time {at!r} must be a whole number of nanoseconds", REMEDY)
    time = before if at is None else began + at
    if time < before:
        raise TraceError(where, line.number, "its time is before that of the line above", REMEDY)
    rest = items[2:]
    more = rest.pop() if len(rest) == len(shape) + 1 and isinstance(rest[-1], dict) else {}
    if len(rest) != len(shape):
        raise TraceError(where, line.number, f"{name} must be followed by {', '.join(shape) or 'nothing'}", REMEDY)
    for what, value in zip(shape, rest, strict=True):
        check = SHAPES[what.removesuffix("?")]
        if not ((value is None and what.endswith("?")) or check(value)):
            raise TraceError(where, line.number, f"{value!r} is no {what.removesuffix('?')}", REMEDY)
    return Step(line.number, name, time, tuple(rest), more)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_object(value: Any) -> bool:
    return isinstance(value, list) and len(value) in (4, 5) and all(x is None or _is_text(x) for x in value)


def _is_identity(value: Any) -> bool:
    return value in (None, True) or (isinstance(value, list) and len(value) == 3 and all(map(_is_text, value[:2])))


def _is_call(value: Any) -> bool:
    return isinstance(value, dict) and _is_text(value.get("type")) and _is_object(value.get("object"))


SHAPES: Mapping[str, Callable[[Any], bool]] = {
    "answer": lambda value: isinstance(value, list) and len(value) == 2 and _is_text(value[0]),
    "call": _is_call,
    "delay": _is_count,
    "epoch": _is_count,
    "error": _is_text,
    "failure": lambda value: isinstance(value, dict) and _is_text(value.get("kind")) and _is_text(value.get("error")),
    "flag": lambda value: value in (0, 1),
    "flow": lambda value: isinstance(value, str),
    "identity": _is_identity,
    "lane": _is_text,
    "name": _is_text,
    "names": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "numbers": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "object": _is_object,
    "seconds": lambda value: isinstance(value, (int, float)),
    "ticket": _is_count,
    "time": lambda value: type(value) is int,
    "version": lambda value: isinstance(value, (int, str)),
}
