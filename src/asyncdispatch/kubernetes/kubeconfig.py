"""Finding and reading a kubeconfig, with errors that say what is wrong and never what is secret.

The client library's own messages repeat parts of the file, tokens among them, and its loader reads it once for all. So
the file is read and checked here, as often as credentials are to be refreshed.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml  # type: ignore[import-untyped]

from asyncdispatch.errors import ConfigurationError

__all__ = ["Section", "Selected", "kubeconfig_paths", "read_kubeconfig"]

KubeconfigPath = str | os.PathLike[str]


def kubeconfig_paths(kubeconfig: KubeconfigPath | None, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The files to read: those given, else those that KUBECONFIG names, else `~/.kube/config`. All that exist.

    Raises `ConfigurationError` if none does. Who gives the contents instead of a path does not see them in it.
    """
    given: Any = environ.get("KUBECONFIG") or "~/.kube/config"
    if kubeconfig is not None:
        given = os.fspath(kubeconfig) if isinstance(kubeconfig, os.PathLike) else kubeconfig
    if not isinstance(given, str):
        remedy = "must be the path of a file (not what is in it), or None for the usual places"
        raise ConfigurationError("kubeconfig", type(given).__name__, remedy)
    found = [path for part in given.split(os.pathsep) if part and (path := _file(part)) is not None]
    if not found:
        remedy = "no such file: give a kubeconfig's path, set KUBECONFIG, or run in a Pod with a service account"
        raise ConfigurationError("kubeconfig", _shown(given), remedy)
    return found


def _shown(given: str) -> str:
    """A path or a name, to be told. What is longer, or has lines or braces, may be a kubeconfig, encoded or not."""
    return "…" if len(given) > 250 or not given.isprintable() or "{" in given else given


def _file(path: str) -> Path | None:
    try:
        found = Path(path).expanduser()
        return found if found.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long, or the home of nobody
        return None


@dataclass(frozen=True, slots=True, repr=False)
class Section:
    """A cluster or a user of a kubeconfig. Its fields are read by type; relative paths count from its file.

    All raise `ConfigurationError`. `name` is what it is called in messages: "user dev".
    """

    name: str
    fields: Mapping[str, Any]
    folder: Path

    def text(self, field: str) -> str | None:
        """A string, or None if it is not there, is null or empty."""
        return self._typed(field, str) or None

    def flag(self, field: str) -> bool:
        """True or False; False if it is not there."""
        return bool(self._typed(field, bool))

    def mapping(self, field: str) -> Mapping[str, Any] | None:
        """A mapping, or None if it is not there."""
        found: Mapping[str, Any] | None = self._typed(field, dict)
        return found

    def url(self, field: str, schemes: tuple[str, ...] = ("http", "https")) -> str | None:
        """A URL with one of these schemes and a host, or None if it is not there."""
        value = self.text(field)
        if value is None:
            return None
        try:
            url = urlsplit(value)
            good = url.scheme in schemes and bool(url.hostname) and (url.port is None or url.port > 0)
        except ValueError:
            good = False
        if not good:
            raise self.error(field, f"must be a URL: {schemes[-1]}://host:port")
        return value

    def data(self, field: str) -> bytes | None:
        """What `<field>-data` holds in base64, else the contents of the file that `field` names, else None."""
        if (encoded := self.text(f"{field}-data")) is not None:
            try:
                return base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                raise self.error(f"{field}-data", "is not base64: copy it anew") from None
        return self.file(field)

    def file(self, field: str) -> bytes | None:
        """The contents of the file that `field` names, or None if it is not there."""
        path = self.text(field)
        if path is None:
            return None
        try:
            return (self.folder / path).read_bytes()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "is no path"
            raise self.error(field, f"the file can't be read: {why}") from None

    def error(self, field: str, remedy: str) -> ConfigurationError:
        """An error about a field. What it holds may be secret, so only its type is told."""
        return ConfigurationError(f"{self.name}: {field}", type(self.fields.get(field)).__name__, remedy)

    def _typed(self, field: str, kind: type) -> Any:
        value = self.fields.get(field)
        if value is not None and not isinstance(value, kind):
            names = {str: "a string: put it in quotes", bool: "true or false", dict: "a mapping"}
            raise self.error(field, f"must be {names[kind]}")
        return value


@dataclass(frozen=True, slots=True, repr=False)
class Selected:
    """A context of a kubeconfig: its cluster, and its user (without fields if it has none)."""

    context: str
    cluster: Section
    user: Section


def read_kubeconfig(paths: Iterable[Path], context: str | None) -> Selected:
    """The context asked for, else the current one. What several files define alike, the first one defines.

    Reads files. Raises `ConfigurationError` if they are no kubeconfig, or lack the context or what it points to.
    """
    known: dict[str, dict[str, Section]] = {"contexts": {}, "clusters": {}, "users": {}}
    current: Any = None
    for path in paths:
        parsed = _parsed(path)
        current = current or parsed.get("current-context")
        for section, names in known.items():
            for entry in _entries(parsed, section, path):
                names.setdefault(entry.name, entry)
    wanted = current if context is None else context
    if context is not None and not isinstance(context, str):
        # Not shown: it may be a kubeconfig's part.
        raise ConfigurationError("context", type(context).__name__, f"must be a context's name: {_choice(known)}")
    if not isinstance(wanted, str) or not wanted:
        raise ConfigurationError("context", context, f"the kubeconfig has no current-context: {_choice(known)}")
    if wanted not in known["contexts"]:
        raise ConfigurationError("context", _shown(wanted), f"is not in the kubeconfig: {_choice(known)}")
    chosen = known["contexts"][wanted]
    found = Section(f"context {wanted}", chosen.fields, chosen.folder)
    cluster, user = (_pointed_to(found, field, known) for field in ("cluster", "user"))
    return Selected(wanted, cluster, user)


def _pointed_to(context: Section, field: str, known: Mapping[str, Mapping[str, Section]]) -> Section:
    name = context.text(field)
    if name is None and field == "user":
        return Section("user", {}, context.folder)
    if name is None or name not in known[f"{field}s"]:
        raise ConfigurationError(f"{context.name}: {field}", name, f"is not among the kubeconfig's {field}s")
    found = known[f"{field}s"][name]
    return Section(f"{field} {name}", found.fields, found.folder)


def _choice(known: Mapping[str, Mapping[str, Any]]) -> str:
    contexts = ", ".join(sorted(known["contexts"]))
    return f"give one of {contexts}" if contexts else "it has no contexts at all"


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        parsed = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError("kubeconfig", str(path), f"can't be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no text, or a date that is none
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError("kubeconfig", str(path), f"is not YAML{place}: repair it") from None
    if not isinstance(parsed, Mapping):
        raise ConfigurationError("kubeconfig", str(path), "is no kubeconfig: it must be a mapping")
    return parsed


def _entries(parsed: Mapping[str, Any], section: str, path: Path) -> Iterable[Section]:
    entries, singular = parsed.get(section) or [], section.removesuffix("s")
    if not isinstance(entries, list):
        raise ConfigurationError("kubeconfig", str(path), f"is no kubeconfig: its {section} must be a list")
    for entry in entries:
        name = entry.get("name") if isinstance(entry, Mapping) else None
        value = entry.get(singular) if isinstance(entry, Mapping) else None
        if value is None and isinstance(entry, Mapping) and singular in entry:
            value = {}  # "user:" with nothing behind it
        if not isinstance(name, str) or not isinstance(value, Mapping):
            remedy = f"is no kubeconfig: each of its {section} needs a name and a {singular}"
            raise ConfigurationError("kubeconfig", str(path), remedy)
        yield Section(name, value, path.absolute().parent)
