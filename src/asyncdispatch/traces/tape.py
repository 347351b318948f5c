"""Lines on their way into a file: taken in on the event loop, written by a thread of their own."""

from __future__ import annotations

import gzip
import logging
import threading
from collections import deque
from pathlib import Path
from typing import IO

__all__ = ["Tape"]

log = logging.getLogger("asyncdispatch")

EVERY = 0.25
"""Seconds between two looks of the thread for lines."""

AT_ONCE = 1_000
"""Lines that are joined and written in one go, so that the thread never keeps the interpreter for long."""

PATIENCE = 10.0
"""Seconds that closing waits for the file."""

BACKLOG = 200_000
"""Lines that may wait for a file that is slow, some ten megabytes of them; beyond, the trace ends."""


class Tape:
    """A file that lines are added to. Whatever goes wrong ends it, with one line in the log, and harms nobody else."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Opens the file, and replaces an older one. Raises `OSError` if that can't be done."""
        self._path = path
        self._left = max_bytes
        file: IO[bytes] = path.open("wb", buffering=0)
        self._raw = file
        self._file = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) if path.suffix == ".gz" else file
        self.lines: deque[str] = deque()
        self.ended: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="asyncdispatch-trace", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        """Take in one line. Never waits for the file, and never raises."""
        lines = self.lines
        lines.append(line)
        if len(lines) > BACKLOG:
            self.end(f"its file is too slow: {BACKLOG} lines wait to be written")
            lines.clear()

    def end(self, why: str) -> None:
        """Write no more; the first reason is told, once."""
        if self.ended is None:
            self.ended = why
            log.error("the trace %s has ended: %s", self._path, why, extra={"path": str(self._path), "reason": why})

    def close(self) -> None:
        """Write what is left, and close. Waits for the file, but not for ever."""
        self._closing.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self.end(f"its file is too slow: it is not closed after {PATIENCE:g} s")

    def _work(self) -> None:
        while True:
            over = self._closing.wait(EVERY)
            try:
                self._write()
            except Exception as error:
                self.end(f"it could not be written: {error!r}")
            if over:
                break
        try:
            if self._file is not self._raw:
                self._file.close()
        except Exception as error:
            self.end(f"it could not be closed: {error!r}")
        finally:
            self._raw.close()

    def _write(self) -> None:
        """What is there now, in pieces; nothing once the trace has ended."""
        lines = self.lines
        while lines and self.ended is None:
            batch = [lines.popleft() for _ in range(min(len(lines), AT_ONCE))]
            data = ("\n".join(batch) + "\n").encode()
            full = len(data) > self._left
            if full:
                data = data[: data.rfind(b"\n", 0, self._left) + 1]  # whole lines
            self._left -= len(data)
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            if full:
                self.end("it is as long as max_bytes lets it be")
        if self.ended is not None:
            lines.clear()
        elif self._file is not self._raw:
            self._file.flush()
