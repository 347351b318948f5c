"""The table of answers, row by row, as plays for any API server.

They ask by raw HTTP and assert what the answer is. No controller need run: where one would write a status, the play
does it.
On a real server they need the Widgets (`WIDGET_CRD`), a namespace each, and a client with all rights.
"""

from __future__ import annotations

from typing import Any

from tests.facts import evictions, limits, lists, writes
from tests.facts.world import SCENARIOS, WIDGET_CRD, Client, Reply, Scenario, World, raw_client

__all__ = ["SCENARIOS", "WIDGET_CRD", "Client", "Reply", "Scenario", "World", "raw_client"]

ROOMS: tuple[Any, ...] = (writes, evictions, limits, lists)
