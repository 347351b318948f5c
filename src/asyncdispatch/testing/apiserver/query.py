"""Query parameters as the API server reads them."""

from __future__ import annotations

from collections.abc import Mapping

from asyncdispatch.testing.apiserver.status import bad_request

_TRUE = ("1", "t", "T", "true", "True", "TRUE")


def flag(query: Mapping[str, str], name: str) -> bool:
    """A parameter that is on or off; absent and unreadable ones are off."""
    return query.get(name, "") in _TRUE


def count(query: Mapping[str, str], name: str) -> int:
    """A number of at least 0; absent ones are 0. StatusError 400 for anything else."""
    text = query.get(name, "") or "0"
    if not (text.isascii() and text.isdigit()):
        raise bad_request(f'{name}: Invalid value: "{text}": must be a non-negative integer')
    return int(text)
