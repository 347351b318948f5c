"""Credentials from a program: the exec plugins of kubeconfigs (client.authentication.k8s.io).

The program is run without a terminal, for at most `LIMIT` seconds, and what it says on its error output is not
repeated: it may be secret. The function blocks: call it in a thread.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asyncdispatch.errors import ConfigurationError

__all__ = ["LIMIT", "ExecCredential", "run_plugin"]

LIMIT = 30.0
"""Seconds that a plugin may take."""

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True, repr=False)
class ExecCredential:
    """What a plugin gave: a token, or a certificate with its key, or both. `expires` in seconds since 1970."""

    token: str | None
    certificate: bytes | None
    key: bytes | None
    expires: float | None


def run_plugin(field: str, spec: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any]) -> ExecCredential:
    """Run the plugin that `spec` describes and return what it gave.

    `field` names the spec in messages, `folder` is its kubeconfig's, `cluster` is told to a plugin that asks for it.
    Raises `ConfigurationError` if the spec is wrong, or the plugin fails, gives nothing usable, or is not done in time.
    """
    version, command, environment = _checked(field, spec, folder)
    asked: dict[str, Any] = {"interactive": False}
    if spec.get("provideClusterInfo"):
        asked["cluster"] = cluster
    environment["KUBERNETES_EXEC_INFO"] = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": asked})
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise _error(field, f"the plugin was not done after {LIMIT:g} s: run it by hand") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise _error(field, f"the plugin can't be run: {why}") from None
    if done.returncode:
        raise _error(field, f"the plugin failed with exit code {done.returncode}: run it by hand to see why")
    return _read(field, version, done.stdout)


def _checked(field: str, spec: Mapping[str, Any], folder: Path) -> tuple[str, list[str], dict[str, str]]:
    """The version, the command line and the environment."""
    version, command, arguments = spec.get("apiVersion"), spec.get("command"), spec.get("args") or []
    if version not in VERSIONS:
        raise _error(f"{field}.apiVersion", f"must be one of {', '.join(VERSIONS)}")
    if not isinstance(command, str) or not command:
        raise _error(f"{field}.command", "must be the name of a program")
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise _error(f"{field}.args", "must be a list of strings: put numbers in quotes")
    if spec.get("interactiveMode") == "Always":
        raise _error(f"{field}.interactiveMode", "the plugin wants a terminal, which a scheduler has not")
    environment = dict(os.environ)
    variables = spec.get("env") or []
    for variable in variables if isinstance(variables, list) else [None]:
        name, value = (variable.get(key) if isinstance(variable, Mapping) else None for key in ("name", "value"))
        if not isinstance(name, str) or not isinstance(value, str):
            raise _error(f"{field}.env", "must be a list of names and values, both strings")
        environment[name] = value
    if os.sep in command:  # as kubectl does it: a path counts from the file, a bare name is looked up in PATH
        command = str(folder / command)
    return version, [command, *arguments], environment


def _read(field: str, version: str, output: bytes) -> ExecCredential:
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError):
        answer = None
    told = answer if isinstance(answer, dict) else {}
    status = told.get("status")
    if not isinstance(status, dict) or told.get("kind") != "ExecCredential" or told.get("apiVersion") != version:
        raise _error(field, f"the plugin's output is no ExecCredential of {version} with a status")
    token, certificate, key = (
        _text(field, status, name) for name in ("token", "clientCertificateData", "clientKeyData")
    )
    if (certificate is None) != (key is None) or (token is None and certificate is None):
        raise _error(field, "the plugin must give a token, or a client certificate with its key")
    expires, until = None, _text(field, status, "expirationTimestamp")
    if until is not None:
        try:
            moment = datetime.fromisoformat(until)
            expires = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            raise _error(field, "the plugin's expirationTimestamp is no time") from None
    pair = [None if text is None else text.encode() for text in (certificate, key)]
    return ExecCredential(token, pair[0], pair[1], expires)


def _text(field: str, status: Mapping[str, Any], name: str) -> str | None:
    value = status.get(name)
    if value is not None and not isinstance(value, str):
        raise _error(field, f"the plugin's {name} must be a string")
    return value or None


def _error(field: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(field, "…", remedy)
