"""Programs of the tests, each in a process of its own, and what they tell: a line of JSON for each event."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any


class Running:
    """One of them, while it runs and after."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.events.append(json.loads(line))
            self._news.set()

    def of(self, event: str) -> list[dict[str, Any]]:
        return [known for known in self.events if known["event"] == event]

    async def until(self, condition: Callable[[], bool]) -> None:
        """What it has told makes the condition true."""
        async with asyncio.timeout(60):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def told(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """The events of that kind, once there are so many."""
        await self.until(lambda: len(self.of(event)) >= count)
        return self.of(event)

    async def kill(self) -> None:
        """kill -9."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reader


@asynccontextmanager
async def running(program: str, **options: Any) -> AsyncIterator[Running]:
    """A program of this folder, by its file's name; killed at the end if it still runs."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, str(Path(__file__).with_name(program)), *flags]
    started = Running(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
    try:
        yield started
    finally:
        await started.kill()
