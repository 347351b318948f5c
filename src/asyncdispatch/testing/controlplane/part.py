"""One program of a control plane: starting it, waiting until it serves, stopping it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import aiohttp

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.testing.controlplane.binaries import ControlPlaneError

__all__ = ["Part", "PortTaken", "merge_flags"]

_POLL = 0.02
"""Seconds between two looks at a program that starts or stops."""
_PROBE_TIMEOUT = 5.0
"""Seconds that a program may take to say whether it serves; whoever else has its port may never answer."""
_TAIL = 15
"""Lines of the log that an error shows."""


class PortTaken(ControlPlaneError):
    """Another process was quicker to listen on the port."""


class Part:
    """A program that runs or not. Made by `ControlPlane`; `flags` may be changed and count from the next start on.

    `arguments` gives the flags that it is started with; `ready` asks it whether it serves, and says no by returning
    False or raising what a connection raises.
    """

    def __init__(
        self,
        program: Path,
        arguments: Callable[[], Mapping[str, str]],
        ready: Callable[[], Awaitable[bool]],
        *,
        flags: Iterable[str],
        log: Path,
        start_timeout: float,
    ) -> None:
        self.program = program
        self.flags = list(flags)
        self.log = log
        self._arguments = arguments
        self._ready = ready
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<{self.program.name} {self.pid if self.running else 'stopped'}>"

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process id, if it runs."""
        return self._process.pid if self._process is not None and self.running else None

    async def start(self) -> None:
        """Start it and wait until it serves.

        Raises `ControlPlaneError` with the end of its log if it ends or takes too long; it is not left running then,
        nor when the wait is cancelled.
        """
        if self.running:
            raise RuntimeError(f"{self.program.name} is running already")
        began_at = self.log.stat().st_size if self.log.exists() else 0
        command = [str(self.program), *merge_flags(self._arguments(), self.flags)]
        with self.log.open("ab") as log:
            # Not asyncio's: a program must be stoppable from any loop, also one that did not start it.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [*dies_with(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        serves = False
        try:
            async with asyncio.timeout(self._start_timeout):
                await self._until_ready(began_at)
            serves = True
        except TimeoutError:
            told = f"{self.program.name} did not serve within {self._start_timeout:g} s"
            raise ControlPlaneError(f"{told}\n{self._tail(began_at)}") from None
        finally:
            if not serves:
                self.kill()

    async def _until_ready(self, began_at: int) -> None:
        while True:
            if not self.running:
                tail = self._tail(began_at)
                kind = PortTaken if "address already in use" in tail else ControlPlaneError
                raise kind(f"{self.program.name} ended while it started\n{tail}")
            try:
                async with asyncio.timeout(_PROBE_TIMEOUT):
                    if await self._ready():
                        return
            except (OSError, aiohttp.ClientError):
                pass
            await asyncio.sleep(_POLL)

    async def stop(self, timeout: float = 15.0) -> None:
        """Ask it to end, and wait; after `timeout` seconds, kill it. Does nothing if it is not running.

        Killed at once when the wait is cancelled.
        """
        if self._process is None or not self.running:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout):
                while self.running:  # noqa: ASYNC110 - the system has no event for it that works everywhere
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """kill -9, and wait until it is dead, which is soon. Does nothing if it is not running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def restart(self) -> None:
        """`stop`, then `start`, on the same port. For the harder way, `kill` and `start`."""
        await self.stop()
        await self.start()

    def _tail(self, began_at: int) -> str:
        with self.log.open("rb") as log:
            log.seek(began_at)
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join([f"the end of {self.log}:", *(f"  {line[:500]}" for line in lines[-_TAIL:])])


def merge_flags(defaults: Mapping[str, str], flags: Iterable[str]) -> list[str]:
    """The defaults, but for those that `flags` set otherwise, then `flags`. Raises `ConfigurationError`."""
    given = list(flags)
    for flag in given:
        if not isinstance(flag, str) or not flag.startswith("--") or " " in flag.partition("=")[0]:
            raise ConfigurationError("flags", flag, "give each as one string, like '--name=value'")
    names = {flag.partition("=")[0].removeprefix("--") for flag in given}
    return [f"--{name}={value}" for name, value in defaults.items() if name not in names] + given


def dies_with(parent: int) -> list[str]:
    """What to put before a command so that it is killed when the process `parent`, which starts it, dies.

    Nothing where the system can't do it. The signal is asked for after the fork, so a parent that died before that
    would never be noticed: the shell then finds that it has another parent, and does not begin.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    return [setpriv, "--pdeathsig", "KILL", "--", "sh", "-c", f'[ "$PPID" = {parent} ] && exec "$@"', "sh"]
