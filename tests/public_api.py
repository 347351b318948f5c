"""The public interface in lines of text: `python -m tests.public_api` writes them to `tests/public_api.txt`.

Public are the modules that `docs/reference.md` draws, and in them the names of `__all__`. A line tells all that code of
others can lean on: signatures with their defaults, methods, properties, members of enums, types of constants.

    python -m tests.public_api              after a change: write the file, then name the change in CHANGELOG.md
    python -m tests.public_api --released   with a release: what is there now is what it is compared with from then on
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CURRENT = ROOT / "tests" / "public_api.txt"
RELEASED = ROOT / "tests" / "public_api_released.txt"

PROTOCOLS = (
    *("__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__", "__call__", "__contains__", "__enter__"),
    *("__exit__", "__getitem__", "__iter__", "__len__"),
)
"""Methods with two underscores that people use without naming them."""

MADE_BY_US = frozenset({"Attempt", "CallHandle", "CompletionStream", "Contexts", "SchedulingContext"})
"""Classes that people are given and do not make: how they are made is our affair."""

INTERNAL = frozenset({"leaves", "move", "rare", "story"})
"""What a handle has for the core alone."""

LONGEST = 60
"""Characters of a default that is shown in full; a longer one is shown by its type, whose own line says more."""


def modules() -> list[str]:
    """The modules whose names are promised."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    return sorted({*re.findall(r"^\.\. automodule:: (\S+)$", text, re.MULTILINE)})


def describe() -> list[str]:
    """One line for each public name and each member of a public class, in order."""
    lines: list[str] = []
    for module_name in modules():
        module = importlib.import_module(module_name)
        for name in sorted(module.__all__):
            lines += _lines(f"{module_name}.{name}", getattr(module, name))
    return lines


def _lines(path: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value) and not isinstance(value, types.GenericAlias):
        yield from _class(path, value)
    elif inspect.isroutine(value):
        yield f"{path}{_signature(value)}"
    elif inspect.ismodule(value):
        yield f"{path}: module"
    elif isinstance(value, (bool, int, float, str)):
        yield f"{path} = {value!r}"
    elif type(value).__module__ in ("types", "typing"):
        yield f"{path} = {str(value).replace('asyncdispatch.', '')}"
    else:
        yield f"{path}: {type(value).__name__}"


def _class(path: str, cls: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    if issubclass(cls, enum.Enum):
        yield f"{path}: enum of {', '.join(f'{member.name} = {member.value!r}' for member in cls)}"
        return
    yield f"{path}: class({bases}){_constructor(cls)}"
    for name, member in sorted(_members(cls).items()):
        if isinstance(member, (staticmethod, classmethod)):
            yield f"{path}.{name}: {type(member).__name__}{_signature(member.__func__)}"
        elif isinstance(member, property):
            returns = inspect.signature(member.fget).return_annotation if member.fget else "?"
            yield f"{path}.{name}: property{'' if member.fset is None else ', settable'} -> {_text(returns)}"
        elif inspect.isroutine(member):
            kind = "async " if inspect.iscoroutinefunction(member) else ""
            yield f"{path}.{name}: {kind}method{_signature(member)}"


def _members(cls: type) -> dict[str, Any]:
    """What our own classes define, whichever of them does."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if _ours(base):
            found |= vars(base)
    public = {name for name in found if not name.startswith("_")} - INTERNAL
    return {name: value for name, value in found.items() if name in public or name in PROTOCOLS}


def _ours(value: Any) -> bool:
    return bool(value.__module__.partition(".")[0] == "asyncdispatch")


def _constructor(cls: type) -> str:
    """How it is made; nothing if that is Python's own way."""
    if dataclasses.is_dataclass(cls):
        fields = [field for field in dataclasses.fields(cls) if field.init]
        return f"({', '.join(_field(field) for field in fields)})"
    init = inspect.getattr_static(cls, "__init__")
    if cls.__name__ in MADE_BY_US:
        return ""
    if getattr(cls, "_is_protocol", False) or not inspect.isfunction(init) or not _ours(init):
        return ""
    return _signature(init).replace("(self, ", "(").replace("(self)", "()").removesuffix(" -> None")


def _field(field: dataclasses.Field[Any]) -> str:
    star = "*" if field.kw_only else ""
    text = f"{star}{field.name}: {_text(field.type)}"
    if field.default is not dataclasses.MISSING:
        return f"{text} = {_default(field.default)}"
    return text if field.default_factory is dataclasses.MISSING else f"{text} = …"


def _signature(function: Any) -> str:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return "(…)"
    parameters = [
        each.replace(
            annotation=each.annotation if each.annotation is each.empty else _Shown(_text(each.annotation)),
            default=each.default if each.default is each.empty else _Shown(_default(each.default)),
        )
        for each in signature.parameters.values()
    ]
    returns = signature.return_annotation
    if returns is not signature.empty:
        returns = _Shown(_text(returns))
    return str(signature.replace(parameters=parameters, return_annotation=returns))


class _Shown:
    """Something whose repr is this text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    text = repr(value)
    return text if len(text) <= LONGEST and " at 0x" not in text else f"{type(value).__name__}(…)"


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


# -- what a change asks for -------------------------------------------------------------------------------------------


def changes(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """The last parts of the names whose lines have come, gone or changed: `submit` of `Dispatcher.submit`."""
    one, other = set(before), set(after)
    return sorted({_name(line) for line in one ^ other})


def _name(line: str) -> str:
    return re.split(r"[:( ]", line, maxsplit=1)[0].rpartition(".")[2]


def unmentioned(names: Iterable[str], changelog: str) -> list[str]:
    """Those of the names that the changelog's section of what is not released yet does not name as `code`."""
    section = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    code = " ".join(re.findall(r"`([^`]+)`", section.group(1))) if section else ""
    return [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code)]


def main() -> None:
    CURRENT.write_text("\n".join(describe()) + "\n", encoding="utf-8")
    if "--released" in sys.argv[1:]:
        RELEASED.write_text(CURRENT.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
