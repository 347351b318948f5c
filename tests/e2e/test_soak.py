"""Chaos for as long as SOAK_SECONDS says (60): nothing is lost or doubled, memory stays flat, the event loop free.

SOAK_SEED (1) decides the order of the faults.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from time import thread_time

import pytest

from asyncdispatch import Dispatcher, FunctionCall, ObjectRef
from tests.e2e.soak.gauges import Heartbeat, Sample
from tests.e2e.soak.report import BLOCK, WARM_UP, leaks
from tests.e2e.soak.soak import soak


async def test_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """Two replicas through killed servers, storms, cut networks, lost leases, switched modes: see docs/controlplane.md.

    Every accepted call has one outcome, with which the cluster and its audit log agree; what was decided under a lease
    that was lost is not stored behind its successor's; memory does not grow; nothing is left after the end.
    """
    seconds, seed = float(os.environ.get("SOAK_SECONDS", "60")), int(os.environ.get("SOAK_SEED", "1"))
    caplog.set_level(logging.CRITICAL, "asyncdispatch")  # pytest would keep a record for each call that is retried
    report = await soak(seconds, seed, tmp_path)
    with capsys.disabled():
        sys.stdout.write(f"\n{report.table()}\n")
    assert not report.wrong, "\n".join(report.wrong[:50])


class Hoarder:
    """An observer that leaks one object for each call, if asked to."""

    def __init__(self, *, hoards: bool) -> None:
        self.hoards = hoards
        self.kept: list[object] = []

    def settled(self, handle: object, outcome: object) -> None:
        if self.hoards:
            self.kept.append([])


@pytest.mark.parametrize("hoards", [True, False])
async def test_a_leak_of_one_object_for_each_call_is_found(hoards: bool) -> None:
    """And nothing is found where there is none: the gauge can tell."""

    async def nothing(attempt: object) -> None: ...

    samples = []
    async with Dispatcher(observers=[Hoarder(hoards=hoards)]) as dispatcher:
        for number in range(WARM_UP + 4):
            for _ in range(500):
                await dispatcher.run(FunctionCall(nothing, call_type="none", target=ObjectRef("v1", "Pod", "ns", "p")))
            samples.append(Sample.take(number * 500))
    assert bool(leaks(samples)) == hoards, samples


async def test_an_event_loop_that_is_held_is_noticed() -> None:
    """With where it was held; what the soak does to the loop by itself does not count."""
    async with Heartbeat() as heartbeat:
        with heartbeat.ignoring():
            _compute(2 * BLOCK)
        await asyncio.sleep(0.05)
        assert heartbeat.worst < BLOCK
        _compute(2 * BLOCK)
        await asyncio.sleep(0.05)
    assert heartbeat.worst > BLOCK
    assert any("_compute" in place for place in heartbeat.held_by)


def _compute(seconds: float) -> None:
    until = thread_time() + seconds
    while thread_time() < until:
        pass
