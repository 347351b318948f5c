"""Ports that nobody else takes by chance."""

from __future__ import annotations

import random
import socket
from pathlib import Path

__all__ = ["free_port"]

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 15_000


def free_port() -> int:
    """A free port of the loopback interface, below those that the system hands out by itself where it can be.

    From that range a client's connection could take the port while its server is down between two starts (it may even
    connect to itself). Somebody may still be quicker, so who listens must be ready to try another.
    """
    try:
        lowest_handed_out = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest_handed_out = 0
    below = range(_LOWEST, lowest_handed_out)
    candidates = random.SystemRandom().sample(below, 50) if len(below) >= 1000 else []
    for port in [*candidates, 0]:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(listener.getsockname()[1])
    raise OSError("no free port on the loopback interface")
