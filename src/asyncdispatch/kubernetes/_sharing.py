"""How replicas share a number of shards fairly, decided without clock, loop or network.

Each shard is a Lease, and so is each member's *slot*, by which the others know that it lives. A slot that is free, also
of one that has crashed, is taken again before there is another: so there are never more than there were members at one
time, and nothing has to be deleted.
All members see the same slots (a little earlier or later), so each knows its share without talking to the others: the
total divided by the members, the rest to those with the lowest slots. Who has less claims free shards; who has more
hands some over. Whether two hold a shard at one time is never a question of this module: that is its election's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b

from asyncdispatch.kubernetes._election import Election, LeaseState, LeaseTiming
from asyncdispatch.kubernetes._record import Record

__all__ = ["Sharing", "shard_number"]

MAX_SLOTS = 10_000
"""Slots beyond are not looked at: nobody has so many replicas, and tables are bounded (rule R19)."""

SPARE = 8
"""New slots that a newcomer chooses from, so that many who start at one time seldom choose the same."""


def shard_number(key: str, total: int) -> int:
    """The shard of `key`: the same in every process, version of Python and year."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) % total


class Sharing:
    """What one member wants: its slot, and its share of the shards.

    `shards` and `slots` are elections; whoever runs this runs each of them that is not idle. `handing` are the shards
    that are ours and not to be: bring what was begun in them to an end, then release their elections.
    """

    def __init__(self, identity: str, total: int, timing: LeaseTiming, draw: Callable[[], float]) -> None:
        self.identity = identity
        self.timing = timing
        self.shards = [Election(identity, timing, draw) for _ in range(total)]
        self.slots: list[Election] = []
        self.handing: set[int] = set()
        self._draw = draw

    @property
    def held(self) -> list[int]:
        """The shards that are ours to work on."""
        return [n for n, shard in enumerate(self.shards) if _leads(shard) and n not in self.handing]

    def listed(self, shards: Mapping[int, Record], slots: Mapping[int, Record], now: float) -> None:
        """Look at all Leases as they were listed, and want what is due to us."""
        self._see(self.shards, shards, now)
        while len(self.slots) < min(max(slots, default=-1) + 1, MAX_SLOTS) + SPARE:
            self.slots.append(Election(self.identity, self.timing, self._draw))
        self._see(self.slots, slots, now)
        self.handing = {number for number in self.handing if _leads(self.shards[number])}
        self._take_slot(now)
        if (share := self._share(now)) is not None:
            self._level(share, now)

    def _see(self, elections: list[Election], records: Mapping[int, Record], now: float) -> None:
        for number, election in enumerate(elections):
            # The others look for themselves, and what they see is newer than a list that was made beside it.
            if election.state is LeaseState.IDLE and election.flying is None:
                election.view.see(records.get(number), now)

    # -- members ------------------------------------------------------------------------------------------------------

    def _take_slot(self, now: float) -> None:
        """Have one slot; a candidate that is too late tries another."""
        for slot in self.slots:
            if slot.state is LeaseState.CANDIDATE and self._is_others(slot, now):
                slot.release(now)
        if not any(slot.state in (LeaseState.CANDIDATE, LeaseState.LEADING) for slot in self.slots):
            there = [slot for slot in self.slots if slot.view.record is not None]
            if free := [slot for slot in there if not self._is_others(slot, now)]:
                free[0].seek(now)
            elif all(slot.view.changes > 1 for slot in there):
                # All of them live. One that was seen only once may be of a member that has crashed: to be had soon.
                fresh = [slot for slot in self.slots if slot.view.record is None]
                fresh[int(self._draw() * len(fresh))].seek(now)

    def _share(self, now: float) -> int | None:
        """How many shards are due to us; None if we are no member (yet)."""
        mine = next((number for number, slot in enumerate(self.slots) if _leads(slot)), None)
        if mine is None:
            return None
        others = [number for number, slot in enumerate(self.slots) if number != mine and self._lives(slot, now)]
        share, rest = divmod(len(self.shards), len(others) + 1)
        return share + (sum(other < mine for other in others) < rest)

    def members(self, now: float) -> int:
        """How many are seen to live, ourselves included if we have a slot."""
        return sum(_leads(slot) or self._lives(slot, now) for slot in self.slots)

    def _lives(self, slot: Election, now: float) -> bool:
        return slot.view.present and self._is_others(slot, now)

    def _is_others(self, election: Election, now: float) -> bool:
        """Somebody else holds it, or may hold it."""
        return now < election.view.free_at(self.identity, self.timing.lease_duration)

    # -- shards -------------------------------------------------------------------------------------------------------

    def _level(self, share: int, now: float) -> None:
        """Claim what we lack and hand over what we have too many of, the ones that suit us best first and last."""
        for shard in self.shards:
            if shard.state is LeaseState.CANDIDATE and self._is_others(shard, now):
                shard.release(now)
        order = sorted(range(len(self.shards)), key=self._liking, reverse=True)
        held = [number for number in order if number in self.held]
        self.handing.update(held[share:])
        room = share - len(held)
        for number in order:
            shard = self.shards[number]
            if shard.state is LeaseState.CANDIDATE:
                if room <= 0:
                    shard.release(now)
                room -= 1
        for number in order:
            shard = self.shards[number]
            if room > 0 and shard.state is LeaseState.IDLE and not self._is_others(shard, now):
                shard.seek(now)
                room -= 1

    def _liking(self, number: int) -> int:
        """Each member has an order of its own, so that two don't run for the same shard."""
        return shard_number(f"{self.identity}/{number}", 1 << 64)


def _leads(election: Election) -> bool:
    return election.state is LeaseState.LEADING
