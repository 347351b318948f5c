"""Where the programs of a control plane are, and what to do where they aren't."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from asyncdispatch.errors import ConfigurationError

__all__ = ["DEFAULT_VERSION", "ETCD", "KUBE_APISERVER", "KUBE_SCHEDULER", "PROGRAMS", "ControlPlaneError"]
__all__ += ["assets_folder", "cache_folder", "find_programs", "wanted_version"]

DEFAULT_VERSION = "1.37.2"
ETCD, KUBE_APISERVER, KUBE_SCHEDULER = PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler")


class ControlPlaneError(RuntimeError):
    """The control plane is not there, did not start, or refused what a helper asked of it."""


def wanted_version(version: str | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The Kubernetes version asked for: `version`, else K8S_VERSION, else None. Raises `ConfigurationError`."""
    field = "version" if version is not None else "K8S_VERSION"
    wanted = version if version is not None else environ.get("K8S_VERSION") or None
    if wanted is not None and not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        raise ConfigurationError(field, wanted, f"give all three numbers, like {DEFAULT_VERSION}")
    return wanted


def assets_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder that KUBEBUILDER_ASSETS names, or None. What is there is used, and nothing is built."""
    given = environ.get("KUBEBUILDER_ASSETS")
    return Path(given).expanduser() if given else None


def cache_folder(version: str | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the programs of that Kubernetes version (None: the default one) are kept once they are built."""
    base = Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "asyncdispatch" / "controlplane" / (version or DEFAULT_VERSION)


def find_programs(
    version: str | None = None, names: Iterable[str] = PROGRAMS, environ: Mapping[str, str] = os.environ
) -> dict[str, Path]:
    """The path of each program, by name. Raises `ControlPlaneError` with the remedy if one is missing."""
    wanted = wanted_version(version, environ)
    assets = assets_folder(environ)
    folder = assets if assets is not None else cache_folder(wanted, environ)
    found = {name: folder / name for name in names}
    missing = sorted(name for name, path in found.items() if not os.access(path, os.X_OK))
    if missing:
        remedy = (
            "KUBEBUILDER_ASSETS names that folder: put them there, or unset it"
            if assets is not None
            else f"build them, from a clone of asyncdispatch: make controlplane K8S_VERSION={wanted or DEFAULT_VERSION}"
        )
        raise ControlPlaneError(f"no {', '.join(missing)} in {folder}. {remedy}")
    return found
