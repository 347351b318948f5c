"""Waiting for what no watch can tell, with a limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(condition: Callable[[], Awaitable[Any]], *, timeout: float = 60.0, pause: float = 0.05) -> Any:
    """What `condition` gives once that is true. Raises `TimeoutError` if it is not within `timeout` seconds."""
    async with asyncio.timeout(timeout):
        while not (found := await condition()):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(pause)
    return found
