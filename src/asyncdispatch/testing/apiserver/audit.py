"""The audit list: one frozen record per request, in order of arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """What one request asked, and what became of it.

    The record of a request that is still being handled stands in the list already, without its end; it is replaced
    when the write has landed and when the answer went out. Hooks and predicates of faults are given the record as it
    was at arrival.
    """

    number: int
    """Counts requests from 1, by arrival."""
    method: str
    path: str
    query: Mapping[str, str]
    audit_id: str | None
    """The request header `Audit-ID`."""
    user_agent: str
    content_type: str
    body: Any
    """Decoded JSON; text if it is none; None for an empty one, and for one above 3 MiB (answered 413 unread).
    Read only: it may share parts with what is stored."""
    verb: str
    """create, get, list, watch, update, patch, delete, deletecollection, bind, evict, or "" for anything else."""
    api_version: str
    kind: str
    """The target's kind, or "" for a path that is not served."""
    namespace: str
    name: str
    """The target's name; for a create the name in the body, once applied the name given."""
    subresource: str
    dry_run: bool
    time: float
    """When the request arrived, in seconds of the event loop's clock."""
    status: int | None = None
    """The HTTP status of the answer; None as long as there is none, and for ever if the connection was closed."""
    answered: bool = False
    """An answer was handed to a connection that was open (which does not say that the client read it)."""
    applied: bool = False
    """Storage changed. A write that changes nothing, a dry run and a refusal are not applied."""
    resource_version: str | None = None
    """The version that the write left in storage, or at which the object was removed."""
    uid: str | None = None
    """The uid of the object written."""
    applied_at: float | None = None
    finished: float | None = None
    """When the answer went out, the connection was closed, or the watch ended."""
    user: str = ""
    """Who asked, by token or certificate; "" where the server asks nobody, and for credentials that are not known."""
    resource: str = ""
    """The target's plural, or "" for a path that is not served."""
    fault: str | None = None
    """The name of the fault that answered instead, closed the connection, or (if nothing did) delayed the request."""
