"""A create that was taken for not applied, and was applied after all (law L10)."""

import pytest

from asyncdispatch import AmbiguousOutcome, Dispatcher
from tests.cases.support import config_map


async def test_a_create_without_a_mark_that_landed_late_is_ambiguous(server, cluster):
    """The first POST lands after the read that missed it; the second meets it, and can't tell whose it is."""
    server.drop(times=1, method="POST", path="*/configmaps")
    server.hook(
        lambda record: server.create(config_map("late")),
        times=1,
        method="POST",
        path="*/configmaps",
        when=lambda record: record.audit_id.endswith("-2"),
    )
    async with Dispatcher() as dispatcher:
        handle = dispatcher.submit(cluster.create(config_map("late"), timeout=60))
        outcome = await handle.outcome()
    assert outcome.ambiguous
    with pytest.raises(AmbiguousOutcome):
        handle.result()
