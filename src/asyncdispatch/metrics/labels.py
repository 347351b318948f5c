"""Label values out of a bounded set (case K3): names that come and go must not leave a series each."""

from __future__ import annotations

import logging

from asyncdispatch._core.metering import OTHER

__all__ = ["MAX_NAMES", "Names", "warn_of_overflow"]

log = logging.getLogger("asyncdispatch")

MAX_NAMES = 100
"""Values of one label, beside those that the config names. First come, first served, and kept: a value that was given
up for another would leave its series behind in Prometheus all the same."""


class Names:
    """The values of one label. Those that are `known` always stand for themselves."""

    def __init__(self, label: str, known: tuple[str, ...], most: int = MAX_NAMES) -> None:
        self.overflows = 0
        self._label = label
        self._names = dict.fromkeys((*known, OTHER))
        self._most = most + len(self._names)
        self._shared: dict[str, None] = {}  # of the last time, so that one that stays is counted once

    def shown(self, names: list[str]) -> dict[str, str]:
        """What stands for each of the names that there are now."""
        found: dict[str, str] = {}
        shared: dict[str, None] = {}
        for name in names:
            if name not in self._names and len(self._names) < self._most:
                self._names[name] = None
            if name in self._names:
                found[name] = name
            else:
                found[name] = OTHER
                shared[name] = None
                if name not in self._shared:
                    if not self.overflows:
                        warn_of_overflow(self._label, name)
                    self.overflows += 1
        self._shared = shared
        return found


def warn_of_overflow(label: str, name: str) -> None:
    """Once for each label: some plugin puts into it what never ends."""
    log.warning(
        "too many values of %s for metrics: %r and others are counted as %r; is it made of an object's name?",
        label,
        name,
        OTHER,
        extra={"label": label, "value": name},
    )
