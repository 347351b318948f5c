"""Rights that have worked: how a server that has just started is told from one that refuses for good."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Hashable
from typing import Any

from asyncdispatch.apierrors import ApiError
from asyncdispatch.calls import APICall

GRACE = 30.0
"""Seconds from the first refusal for which a right that has worked is taken for one that will work again."""

MAX_RIGHTS = 4_096

_BY_ROLE = re.compile(r'User "[^"]*" cannot ')


class Rights:
    """What the calls of one client were allowed to do, by call type, kind and namespace.

    A kube-apiserver that has just started answers 403 until it has read its roles, in the words of a right that is
    missing (kubernetes/kubernetes#121635). So the refusal of what was allowed before may pass; it is for good when it
    has lasted for `GRACE`, or if the right was never seen to work.
    """

    __slots__ = ("_refused_since",)

    def __init__(self) -> None:
        self._refused_since: dict[Hashable, float | None] = {}

    def worked(self, call: APICall[Any]) -> None:
        """A request of `call` was allowed."""
        known, key = self._refused_since, _right_of(call)
        if key not in known and len(known) >= MAX_RIGHTS:
            del known[next(iter(known))]
        known[key] = None

    def judge(self, error: ApiError, call: APICall[Any]) -> None:
        """Mark `error`, an answer to a request of `call`, if it is a refusal that may pass."""
        key = _right_of(call)
        if error.status != 403 or key not in self._refused_since or not _BY_ROLE.search(error.message):
            return
        now = asyncio.get_running_loop().time()
        since = self._refused_since[key]
        if since is None:
            since = self._refused_since[key] = now
        error.passing = now - since < GRACE


def _right_of(call: APICall[Any]) -> Hashable:
    return (call.call_type, call.target.kind, call.target.namespace)
