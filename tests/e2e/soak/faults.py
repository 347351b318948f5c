"""Three hands that make trouble at the same time, each in an order that the seed decides.

Each deals from a deck of its own, shuffled anew when it is used up, so that in half a minute each fault has happened.
Every fault is over, and repaired, when its coroutine returns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from asyncdispatch import Mode
from asyncdispatch.testing import ControlPlane
from asyncdispatch.testing.controlplane import Part
from tests.e2e.soak.load import KEPT
from tests.e2e.soak.replicas import Replica
from tests.e2e.storm import storm
from tests.e2e.waiting import eventually

GROUP = "soak"
"""The group of both replicas' users."""
PAUSE = (0.5, 3.0)
"""Seconds from one fault of a hand to its next."""
Fault = Callable[[], Awaitable[None]]


class Trouble:
    """The server is killed or storms; the network cuts, swallows, delays; leases and modes change, replicas restart."""

    def __init__(self, plane: ControlPlane, replicas: list[Replica], seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.kills = 0
        self._plane = plane
        self._replicas = replicas
        self._random = Random(f"{seed} faults")
        decks: list[dict[str, Fault]] = [
            {
                "kube-apiserver killed": self._kill_apiserver,
                "etcd killed": self._kill_etcd,
                "storm of 429": self._storm,
            },
            {
                "connections cut": self._cut,
                "answers swallowed": self._swallow,
                "answers swallowed, then cut": self._swallow_and_cut,
                "network delayed": self._delay,
            },
            {"lease taken over": self._cut_off, "modes switched": self._switch, "replica restarted": self._restart},
        ]
        self._hands = [_Hand(deck, Random(f"{seed} hand {number}")) for number, deck in enumerate(decks)]

    async def until(self, when: float) -> None:
        """Make trouble until then, by the clock of the event loop, and until the last fault is repaired."""
        async with asyncio.TaskGroup() as group:
            for hand in self._hands:
                group.create_task(self._play(hand, when))

    async def _play(self, hand: _Hand, when: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(hand.random.uniform(*PAUSE))
            if loop.time() > when - 1:
                return
            name, fault = hand.deal()
            await fault()
            self.counts[name] += 1

    # -- the server --------------------------------------------------------------------------------------------------

    async def _kill_apiserver(self) -> None:
        self.kills += 1
        await self._kill(self._plane.apiserver)

    async def _kill_etcd(self) -> None:
        await self._kill(self._plane.etcd)

    async def _kill(self, part: Part) -> None:
        await asyncio.to_thread(part.kill)  # which waits for its death
        await asyncio.sleep(self._random.uniform(0, 1))
        await part.start()

    async def _storm(self) -> None:
        subject = {"kind": "Group", "group": {"name": GROUP}}
        probe = f"/api/v1/namespaces/{KEPT}/configmaps/none"
        async with storm(self._plane, self._replicas[0].name, subject, probe):
            await asyncio.sleep(self._random.uniform(1, 3))

    # -- the network -------------------------------------------------------------------------------------------------

    def _one(self) -> Replica:
        return self._random.choice(self._replicas)

    async def _cut(self) -> None:
        proxy = self._one().proxy
        for _ in range(self._random.randrange(1, 6)):
            proxy.cut()
            await asyncio.sleep(0.2)

    async def _swallow(self) -> None:
        proxy = self._one().proxy
        proxy.swallow()
        await asyncio.sleep(self._random.uniform(0.5, 4))
        if self._random.random() < 0.5:  # else each ends when its attempt's time is over
            proxy.cut()

    async def _swallow_and_cut(self) -> None:
        self._one().proxy.swallow(then_cut=True)

    async def _delay(self) -> None:
        proxy = self._one().proxy
        proxy.delay = self._random.uniform(0.02, 0.2)
        await asyncio.sleep(self._random.uniform(0.5, 2))
        proxy.delay = 0

    # -- the replicas ------------------------------------------------------------------------------------------------

    async def _cut_off(self) -> None:
        """The leader reaches nobody, until the other one leads or can't either."""
        leader, other = sorted(self._replicas, key=lambda replica: not replica.lease.is_leader)
        leader.proxy.refuse()
        leader.proxy.cut()

        async def leads() -> bool:
            return other.lease.is_leader

        with contextlib.suppress(TimeoutError):
            await eventually(leads, timeout=10)
        leader.proxy.restore()

    async def _switch(self) -> None:
        dispatcher = self._one().dispatcher
        await dispatcher.switch(Mode.SYNC, "the soak asks for it")
        await asyncio.sleep(self._random.uniform(0.5, 2))
        await dispatcher.switch(Mode.ASYNC, "the soak asks for it")

    async def _restart(self) -> None:
        await self._one().restart()


class _Hand:
    """Deals faults by name."""

    def __init__(self, deck: dict[str, Fault], random: Random) -> None:
        self.random = random
        self._deck = deck
        self._left: list[str] = []

    def deal(self) -> tuple[str, Fault]:
        if not self._left:
            self._left = self.random.sample(list(self._deck), len(self._deck))
        name = self._left.pop()
        return name, self._deck[name]
