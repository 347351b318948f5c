"""Finding and reading a cluster's address and credentials, with errors that say what is wrong and never what is secret.

The client library's own messages repeat parts of the file, tokens among them. So the file is checked here first, and
what the library still objects to is told by its kind only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from asyncdispatch.errors import ConfigurationError

__all__ = ["check_kubeconfig", "connect_client", "kubeconfig_paths"]

KubeconfigPath = str | os.PathLike[str]


async def connect_client(kubeconfig: KubeconfigPath | None, context: str | None) -> Any:
    """A new ApiClient: from inside a cluster if nothing is asked for and this is one, else from a kubeconfig.

    Loads the certificate authorities, which blocks for some 20 ms. Raises `ConfigurationError`.
    """
    # Imported here: it takes most of a second, and a program that brings its own client may do without.
    from kubernetes_asyncio import client, config

    settings: Any = client.Configuration()
    if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        source = "the Pod's service account"
        load_incluster: Any = config.load_incluster_config
        try:
            load_incluster(client_configuration=settings)
        except (config.ConfigException, OSError) as error:
            raise _unusable("kubeconfig", source, error) from None
    else:
        paths = kubeconfig_paths(kubeconfig)
        source = os.pathsep.join(map(str, paths))
        check_kubeconfig(paths, context)
        try:
            await config.load_kube_config(source, context, settings)
        except Exception as error:
            raise _unusable("kubeconfig", source, error) from None
    try:
        return client.ApiClient(settings)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise _unusable("kubeconfig", source, error, "its certificates can't be loaded") from None


def _unusable(field: str, source: str, error: Exception, what: str = "it can't be used") -> ConfigurationError:
    return ConfigurationError(field, source, f"{what} ({type(error).__name__}): check its cluster and user")


def kubeconfig_paths(kubeconfig: KubeconfigPath | None, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The files to read: those given, else those that KUBECONFIG names, else `~/.kube/config`. All that exist.

    Raises `ConfigurationError` if none does.
    """
    if kubeconfig is not None and not isinstance(kubeconfig, (str, os.PathLike)):
        raise ConfigurationError("kubeconfig", kubeconfig, "must be a path, or None for the usual places")
    given = os.fspath(kubeconfig) if kubeconfig is not None else environ.get("KUBECONFIG") or "~/.kube/config"
    found = [path for part in given.split(os.pathsep) if part and (path := Path(part).expanduser()).is_file()]
    if not found:
        remedy = "no such file: give a kubeconfig's path, set KUBECONFIG, or run in a Pod with a service account"
        raise ConfigurationError("kubeconfig", given, remedy)
    return found


def check_kubeconfig(paths: Iterable[Path], context: str | None) -> None:
    """Raise `ConfigurationError` if the files are no kubeconfig, or lack the context or what it points to."""
    names: dict[str, dict[str, Any]] = {"contexts": {}, "clusters": {}, "users": {}}
    current: Any = None
    for path in paths:
        parsed = _parsed(path)
        current = current or parsed.get("current-context")
        for section, known in names.items():
            for name, value in _entries(parsed, section, path):
                known.setdefault(name, value)
    wanted = current if context is None else context
    if not isinstance(wanted, str) or not wanted:
        raise ConfigurationError("context", context, f"the kubeconfig has no current-context: {_choice(names)}")
    if wanted not in names["contexts"]:
        raise ConfigurationError("context", wanted, f"is not in the kubeconfig: {_choice(names)}")
    found = names["contexts"][wanted]
    for field, section in (("cluster", "clusters"), ("user", "users")):
        target = found.get(field)
        if target not in names[section] and (target is not None or field == "cluster"):
            raise ConfigurationError(f"context {wanted}: {field}", target, f"is not among the kubeconfig's {section}")
    server = names["clusters"][found["cluster"]].get("server")
    if not isinstance(server, str) or not server.startswith(("http://", "https://")):
        raise ConfigurationError(f"cluster {found['cluster']}: server", type(server).__name__, "must be a URL")
    if found.get("user") is None and server.startswith("https:"):
        # The client library stumbles over it, in words that nobody would understand.
        raise ConfigurationError(f"context {wanted}: user", None, "name one: https needs it, were it an empty one")


def _choice(names: Mapping[str, Mapping[str, Any]]) -> str:
    contexts = ", ".join(sorted(names["contexts"]))
    return f"give one of {contexts}" if contexts else "it has no contexts at all"


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        parsed = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError("kubeconfig", str(path), f"can't be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError("kubeconfig", str(path), f"is not YAML{place}: repair it") from None
    if not isinstance(parsed, Mapping):
        raise ConfigurationError("kubeconfig", str(path), "is no kubeconfig: it must be a mapping")
    return parsed


def _entries(parsed: Mapping[str, Any], section: str, path: Path) -> Iterable[tuple[str, Mapping[str, Any]]]:
    entries = parsed.get(section) or []
    if not isinstance(entries, list):
        raise ConfigurationError("kubeconfig", str(path), f"is no kubeconfig: its {section} must be a list")
    for entry in entries:
        name = entry.get("name") if isinstance(entry, Mapping) else None
        value = entry.get(section.removesuffix("s")) if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not isinstance(value, Mapping):
            remedy = f"is no kubeconfig: each of its {section} needs a name and a {section.removesuffix('s')}"
            raise ConfigurationError("kubeconfig", str(path), remedy)
        yield name, value
