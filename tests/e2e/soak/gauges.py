"""What is measured beside the calls: memory, how long the event loop was held, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, thread_time
from types import FrameType
from typing import Self

BEAT = 0.01
LATE = 0.1
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Sample:
    """Memory at rest, after so many calls.

    `objects` are those that the garbage collector looks through: a call, handle, outcome, context, task or dict is one.
    Mere numbers and text are not counted, of which there are more for minutes: a bucket for the deadlines of each 67 ms
    of a call's `timeout`, a reflector's word on each object that it saw deleted, up to ten thousand. `rss` is in bytes.
    """

    calls: int
    objects: int
    rss: int

    @classmethod
    def take(cls, calls: int) -> Sample:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return cls(calls, len(gc.get_objects()), pages * PAGE)


def growth(samples: Sequence[Sample]) -> float:
    """Objects for each call: the slope of the least squares. Raises `ValueError` for fewer than three samples."""
    if len(samples) < 3:
        raise ValueError(f"{len(samples)} samples say nothing: give three or more")
    calls = sum(sample.calls for sample in samples) / len(samples)
    objects = sum(sample.objects for sample in samples) / len(samples)
    spread = sum((sample.calls - calls) ** 2 for sample in samples)
    return sum((sample.calls - calls) * (sample.objects - objects) for sample in samples) / spread


class Heartbeat:
    """Beats each 10 ms on the event loop, and knows by how much it was late at worst.

    `late` is by the clock. That includes the time for which other processes had the processors, so what the loop itself
    is to blame for is measured too: `worst` is what its thread has computed between two beats. Both are in seconds.
    """

    def __init__(self) -> None:
        self.worst = self.late = 0.0
        self.held_by: Counter[str] = Counter()
        """What the loop was doing when it was late by more than `LATE` seconds: the innermost frames, as text."""
        self.collection = 0.0
        """Of that, what the longest run of the garbage collector took."""
        self._last = monotonic()
        self._ignored = 0
        self._sampling = False
        self._collecting = 0.0
        self._over = threading.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._beat(), name="heartbeat")
        self._watcher = threading.Thread(target=self._watch, args=(threading.get_ident(),), name="heartbeat")
        self._watcher.start()
        gc.callbacks.append(self._collects)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        gc.callbacks.remove(self._collects)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._over.set()
        await asyncio.to_thread(self._watcher.join)

    async def _beat(self) -> None:
        while True:
            ignored, computed, self._last = self._ignored, thread_time(), monotonic()
            await asyncio.sleep(BEAT)
            if ignored == self._ignored:
                self.late = max(self.late, monotonic() - self._last - BEAT)
                self.worst = max(self.worst, thread_time() - computed)

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = thread_time()
        elif not self._sampling:
            self.collection = max(self.collection, thread_time() - self._collecting)

    def _watch(self, loop: int) -> None:
        told = 0.0
        while not self._over.wait(LATE / 2):
            last = self._last
            if last != told and monotonic() - last > LATE + BEAT:
                told = last
                self.held_by[_innermost(sys._current_frames()[loop])] += 1

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """What the soak does to the loop itself does not count."""
        self._sampling = True
        yield
        self._sampling = False
        self._ignored += 1


def _innermost(frame: FrameType | None) -> str:
    """The innermost five frames. `traceback` would keep the lines of each file."""
    told: list[str] = []
    while frame is not None and len(told) < 5:
        told.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(told)


@dataclass(frozen=True)
class Belongings:
    """Tasks, threads and open files (sockets are files) of this process."""

    tasks: frozenset[str]
    threads: frozenset[str]
    files: tuple[str, ...]

    @classmethod
    def now(cls) -> Belongings:
        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                found.append(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
            except FileNotFoundError:  # the one with which this was listed
                continue
        tasks = frozenset(f"{task.get_name()} {task.get_coro()}" for task in asyncio.all_tasks())
        return cls(tasks, frozenset(thread.name for thread in threading.enumerate()), tuple(found))

    def since(self, before: Belongings) -> list[str]:
        """What is there and was not before. asyncio's own pool of threads is asyncio's."""
        left = [f"task {task}" for task in self.tasks - before.tasks]
        left += [f"thread {name}" for name in self.threads - before.threads if not name.startswith("asyncio_")]
        return left + [f"file {file}" for file in self.files if file not in before.files]
