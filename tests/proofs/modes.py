"""Switches between modes while calls are queued and in flight, all the time: nothing is lost or doubled."""

import asyncio
from typing import Any

from asyncdispatch import CallHandle, Mode
from asyncdispatch.outcomes import Succeeded
from tests.proofs.stage import Stage, proof

WRITERS = 4
SWITCHES = 8


@proof
async def modes_are_switched_all_the_time(stage: Stage) -> None:
    """Promise 5: code that uses `dispatch` or `run` does not change, and every call has its effect once."""
    async with stage.dispatcher() as (dispatcher, cluster):
        pods = [await dispatcher.run(cluster.create(stage.pod(f"p{n}"))) for n in range(40)]
    async with stage.dispatcher() as (dispatcher, cluster):
        modes: list[Mode] = []
        switched = asyncio.Event()

        async def switch() -> None:
            for number in range(SWITCHES):
                await asyncio.sleep(0.2)
                await dispatcher.switch((Mode.SYNC, Mode.ASYNC)[number % 2], "the proof asks for it")
                modes.append(dispatcher.mode)
            switched.set()

        async def write(writer: int) -> list[CallHandle[Any]]:
            """Binds and creates until the last switch: some waited for, some not, as the mode has it."""
            handles: list[CallHandle[Any]] = []
            number = 0
            mine = pods[writer::WRITERS]
            while not switched.is_set() or mine:
                if mine:
                    handles.append(await dispatcher.dispatch(cluster.bind(mine.pop(), f"n{writer}")))
                new = stage.config_map(f"c{writer}-{number}")
                call = cluster.create(new, idempotency_key=f"k{writer}-{number}")
                if number % 3:
                    handles.append(await dispatcher.dispatch(call))
                else:
                    assert (await dispatcher.run(call))["metadata"]["name"] == new["metadata"]["name"]
                number += 1
                await asyncio.sleep(0.02)
            return handles

        switching = asyncio.create_task(switch())
        written = await asyncio.gather(*(write(n) for n in range(WRITERS)))
        await switching
        assert modes == [Mode.SYNC, Mode.ASYNC] * (SWITCHES // 2)
        for handle in (handle for handles in written for handle in handles):
            outcome = await handle.outcome()
            assert isinstance(outcome, Succeeded), outcome
