"""Who may speak to the API server: roles, their tokens, their kubeconfigs."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asyncdispatch.errors import ConfigurationError

__all__ = ["ADMIN", "SCHEDULER", "Access", "Role"]

ADMIN, SCHEDULER = "admin", "scheduler"


@dataclass(frozen=True)
class Role:
    """A user as the API server sees it. A service account is `system:serviceaccount:NAMESPACE:NAME`."""

    user: str
    groups: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def __post_init__(self) -> None:
        for name, value in (("user", self.user), *(("groups", group) for group in self.groups)):
            if not value or any(character in value for character in '",\n\r'):
                raise ConfigurationError(
                    f"role.{name}", value, "must not be empty or hold a comma, quote or line break"
                )


STANDARD = {
    ADMIN: Role("admin", ("system:masters",)),
    SCHEDULER: Role("system:kube-scheduler"),
    "nobody": Role("nobody"),
}
"""Names of the roles that every control plane has; each plane has tokens of its own for them."""


class Access:
    """The roles of one control plane. What changes here counts from the next start of the API server on."""

    def __init__(self, folder: Path, authority: Path, roles: Mapping[str, Role]) -> None:
        self.token_file = folder / "tokens.csv"
        self._folder = folder
        self._authority = authority
        self.roles = {name: Role(role.user, role.groups) for name, role in STANDARD.items()} | dict(roles)
        self.write()

    def write(self) -> None:
        """Write the token file."""
        lines = [
            f'{role.token},{role.user},{name},"{",".join(role.groups)}"\n' for name, role in sorted(self.roles.items())
        ]
        self.token_file.touch(mode=0o600)
        self.token_file.write_text("".join(lines), encoding="utf-8")

    def role(self, name: str) -> Role:
        """The role of that name. Raises `ConfigurationError`."""
        if name not in self.roles:
            raise ConfigurationError("role", name, f"is unknown; there are {', '.join(sorted(self.roles))}")
        return self.roles[name]

    def kubeconfig(self, name: str, server: str) -> Path:
        """A kubeconfig of that role for the API server at `server`, readable for this user only."""
        user = {"name": name, "user": {"token": self.role(name).token}}
        cluster = {"name": "test", "cluster": {"server": server, "certificate-authority": str(self._authority)}}
        context = {"name": name, "context": {"cluster": "test", "user": name}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": name}
        # JSON is YAML.
        text = json.dumps(config | {"clusters": [cluster], "users": [user], "contexts": [context]}, indent=1)
        path = self._folder / f"{name}-{server.rpartition(':')[2]}.kubeconfig"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return path
