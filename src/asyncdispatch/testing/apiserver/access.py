"""Who asks, and what they may not do."""

from __future__ import annotations

from dataclasses import dataclass

from asyncdispatch.testing.apiserver.answers import unauthorized
from asyncdispatch.testing.apiserver.audit import AuditRecord
from asyncdispatch.testing.apiserver.status import StatusError, forbidden

ANONYMOUS = "system:anonymous"
_OPEN = ("/healthz", "/livez", "/readyz", "/version")
"""Paths that anonymous callers may read."""
_CREATES = ("bind", "evict")


@dataclass(slots=True)
class Access:
    """Whom the server knows; it asks nobody as long as `tokens` is None."""

    tokens: dict[str, str] | None = None
    """The user of each bearer token."""

    def user(self, authorization: str, certified: str) -> str | None:
        """Who asks: "" where nobody is asked, None for a token that is not known.

        `certified` is the name in the client's certificate, if it showed one that is trusted.
        """
        if self.tokens is None:
            return certified
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self.tokens.get(token.strip())
        return certified or ANONYMOUS


def check(record: AuditRecord, user: str | None) -> None:
    """StatusError 401 for credentials that are not known, 403 for anonymous callers."""
    if user is None:
        raise unauthorized()
    if user == ANONYMOUS and record.path not in _OPEN:
        raise cannot(record)


def cannot(record: AuditRecord) -> StatusError:
    """403 as RBAC words it."""
    user = record.user or ANONYMOUS
    if not record.resource:
        why = f'User "{user}" cannot {record.method.lower()} path "{record.path}"'
        return StatusError(403, f"forbidden: {why}", reason="Forbidden", details={})
    group = record.api_version.rpartition("/")[0]
    resource = f"{record.resource}/{record.subresource}" if record.subresource else record.resource
    verb = "create" if record.verb in _CREATES else record.verb or record.method.lower()
    where = f'in the namespace "{record.namespace}"' if record.namespace else "at the cluster scope"
    why = f'User "{user}" cannot {verb} resource "{resource}" in API group "{group}" {where}'
    # The name of an object that is to be created stands in the body, which is not looked at here.
    name = "" if record.verb == "create" else record.name
    return forbidden(group, record.resource, name, why)
