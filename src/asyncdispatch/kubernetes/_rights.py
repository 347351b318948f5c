"""Rights that have worked: how a server that has just started is told from one that refuses for good."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from typing import Any

from asyncdispatch.apierrors import ApiError
from asyncdispatch.calls import APICall, Attempt

GRACE = 30.0
"""Seconds from the first refusal for which a right may be one that the server has yet to read; and seconds from a
connection that failed for which the server may be one that has just started."""

MAX_RIGHTS = 4_096

_BY_ROLE = re.compile(r'User "[^"]*" cannot ')


class Rights:
    """What the calls of one client were allowed to do, by call type, kind and namespace.

    A kube-apiserver that has just started answers 403 until it has read its roles, in the words of a right that is
    missing (kubernetes/kubernetes#121635). So a refusal may pass if the same was allowed before, or if a connection has
    failed a moment ago: a client that has just started itself knows of no right that works. It is for good when it has
    lasted for `GRACE`, until the server is lost again or the right works.
    """

    __slots__ = ("_lost_at", "_refused_since")

    def __init__(self) -> None:
        self._refused_since: dict[Hashable, float | None] = {}
        self._lost_at = -math.inf

    def worked(self, call: APICall[Any]) -> None:
        """A request of `call` was allowed."""
        self._note(_right_of(call), None)

    def lost(self, attempt: Attempt) -> None:
        """A request of `attempt` has met no server, or lost it."""
        self._lost_at = attempt.now

    def judge(self, error: ApiError, attempt: Attempt) -> None:
        """Mark `error`, an answer to a request of `attempt`, if it is a refusal that may pass."""
        if error.status != 403 or not _BY_ROLE.search(error.message):
            return
        key, now = _right_of(attempt.call), attempt.now
        if key not in self._refused_since and now - self._lost_at >= GRACE:
            return
        since = self._refused_since.get(key)
        if since is None or since + GRACE < self._lost_at:
            self._note(key, since := now)
        error.passing = now - since < GRACE

    def _note(self, key: Hashable, since: float | None) -> None:
        known = self._refused_since
        if key not in known and len(known) >= MAX_RIGHTS:
            del known[next(iter(known))]
        known[key] = since


def _right_of(call: APICall[Any]) -> Hashable:
    return (call.call_type, call.target.kind, call.target.namespace)
