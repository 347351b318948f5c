"""Which ready call starts next: aging picks the level, fair share picks the flow, FIFO picks the call.

The mathematics. A call of level l accepted at time t has the key `t − l·A`: every waiting second is worth the same to
all, so the order of two waiting calls never changes and nothing is ever re-sorted (law L6). A `Band` is one (call type,
level); its key is that of its oldest startable call, and the band with the smallest key is served. Inside a band, flows
take turns by start-time fair queueing (Goyal, Vin, Cheng 1996): a flow's tag grows by 1/weight with each start, the
smallest tag is next, and a flow that comes back enters at the tag in service plus 1/weight (law L7). Inside a flow,
the oldest call goes first; what comes back with an older place stands in a small heap beside the queue.

Dense lists and the built-in `min` carry the hot path: one list of band keys, and per band one of the oldest places and
one of the tags. A band or flow that may not start now stands there with `NEVER`, so that nothing scans past it.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from asyncdispatch._core.states import NEVER, PLACE_SHIFT, TICKET_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncdispatch._core.metering import Tally
    from asyncdispatch._core.seats import Flow
    from asyncdispatch._core.states import Entry


class Older:
    """The small heap beside a queue, as a place to be `at`."""

    __slots__ = ("queue",)

    def __init__(self, queue: FlowQueue) -> None:
        self.queue = queue


class FlowQueue:
    """The ready calls of one flow in one band. An entry stands here while its `at` says so (lazy deletion)."""

    __slots__ = ("band", "blocked", "dead", "fifo", "flow", "free", "heap", "last", "older", "slot", "tag", "turned")

    def __init__(self, band: Band, flow: Flow, blocked: bool) -> None:
        self.band = band
        self.flow = flow
        self.free = flow.free and band.group.limit is None  # no quota to look at
        self.fifo: deque[Entry] = deque()
        self.heap: list[tuple[int, int, Entry]] = []  # those whose place is older than the last one's
        self.older = Older(self)
        self.last = -1  # rank of the last entry appended
        self.dead = 0  # what stands in the two and is not valid there any more
        self.slot = len(band.queues)
        self.tag = band.service + flow.increment
        self.turned = False  # alone in its band and one whole turn ahead: its tag may stand still
        self.blocked = blocked  # its flow is full, or a breaker holds it

    @property
    def live(self) -> int:
        """How many calls stand here."""
        return len(self.fifo) + len(self.heap) - self.dead

    def head(self) -> Entry | None:
        """The oldest live entry; dead ones before it are dropped."""
        fifo, heap = self.fifo, self.heap
        while fifo and fifo[0].at is not self:
            fifo.popleft()
            self.dead -= 1
        if not fifo:
            self.last = -1
        if not heap:
            return fifo[0] if fifo else None
        while heap and heap[0][2].at is not self.older:  # one that has a better rank now stands before this, too
            heappop(heap)
            self.dead -= 1
        if heap and (not fifo or heap[0][0] < fifo[0].rank):
            return heap[0][2]
        return fifo[0] if fifo else None

    def first_two_are_older(self) -> bool:
        """True if two that stand beside the heap have a better place than all that stand in it."""
        return len(self.fifo) > 1 and self.fifo[1].rank < self.heap[0][0]

    def entries(self) -> Iterator[Entry]:
        """All live entries, in no particular order."""
        yield from (entry for entry in self.fifo if entry.at is self)
        seen: dict[int, None] = {}
        for rank, _, entry in self.heap:
            if entry.at is self.older and entry.rank == rank and entry.ticket not in seen:
                seen[entry.ticket] = None
                yield entry

    def compact(self) -> None:
        """Drop dead entries once they are more than the live ones (half of the memory at most, P7)."""
        if self.dead <= self.live + 8:
            return
        self.dead = 0
        self.fifo = deque(entry for entry in self.fifo if entry.at is self)
        heap = self.heap
        heap[:] = [item for item in heap if item[2].at is self.older and item[2].rank == item[0]]
        heapify(heap)


class Band:
    """One (call type, level): its flows, their oldest places and their tags, side by side."""

    __slots__ = ("group", "heads", "level", "named", "offset", "queues", "service", "slot", "tags")

    def __init__(self, group: Group, level: int, offset: int, slot: int) -> None:
        self.group = group
        self.level = level
        self.offset = offset
        self.slot = slot
        self.queues: list[FlowQueue] = []
        self.heads: list[int] = []
        self.tags: list[int] = []
        self.named: dict[str, FlowQueue] = {}
        # The tag in service. A flow's tag is never more than one turn ahead of it, so that a flow which ran empty need
        # not be remembered: entering one turn ahead, it gets no credit and owes nothing (law L7).
        self.service = 0


class Group:
    """One call type: its seats, and its bands by level. Skipped as a whole while its seats are taken."""

    __slots__ = ("bands", "in_flight", "limit", "name", "tally", "usual")

    def __init__(self, name: str, limit: int | None, levels: int, tally: Tally | None = None) -> None:
        self.name = name
        self.limit = limit
        self.in_flight = 0  # counted only under a limit
        self.usual = 0  # ns that an attempt usually takes, smoothed over about eight
        self.bands: list[Band | None] = [None] * levels
        self.tally = tally  # what is counted of it; None unless somebody measures

    @property
    def full(self) -> bool:
        return self.limit is not None and self.in_flight >= self.limit


class Ordering:
    """All bands. `pick` is the only question; `push`, `remove`, `take` and the two `refresh` keep the answer right."""

    __slots__ = ("_aging", "_bands", "_keys", "_levels")

    def __init__(self, levels: int, aging: int) -> None:
        self._levels = levels
        self._aging = aging
        self._bands: list[Band] = []
        self._keys: list[int] = []

    def __len__(self) -> int:
        """How many calls are ready. Looks at every flow that has one."""
        return sum(queue.live for band in self._bands for queue in band.queues)

    def key_of(self, level: int, place: int) -> int:
        """The static key of a rank: smaller starts first."""
        return place + self._offset(level)

    def _offset(self, level: int) -> int:
        urgency = self._levels - 1 - level  # 0 is the most urgent, so that it wins a tie
        return (urgency << TICKET_BITS) - (level * self._aging << PLACE_SHIFT)

    # -- entries ------------------------------------------------------------------------------------------------

    def push(self, entry: Entry, blocked: bool) -> None:
        """Add a ready call. `blocked`: a breaker holds its flow and type."""
        band = entry.group.bands[entry.level] or self._make_band(entry.group, entry.level)
        queue = band.named.get(entry.flow.name)
        if queue is None:
            queue = self._enter(band, entry.flow, blocked)
        rank = entry.rank
        if rank > queue.last:
            queue.fifo.append(entry)
            queue.last = rank
            entry.at = queue
        else:
            heappush(queue.heap, (rank, entry.ticket, entry))
            entry.at = queue.older
        if not queue.blocked and rank < band.heads[queue.slot]:
            band.heads[queue.slot] = rank
            self._rekey(band)

    def remove(self, entry: Entry) -> None:
        """Take a ready call out without starting it."""
        at = entry.at
        queue = at.queue if isinstance(at, Older) else at
        assert queue is not None
        entry.at = None
        queue.dead += 1
        if not queue.live:
            self._leave(queue)
        else:
            queue.compact()
            self._rehead(queue)

    @property
    def startable(self) -> bool:
        """True if a call is ready whose flow and type have seats."""
        return bool(self._keys) and min(self._keys) < NEVER

    def pick(self) -> Entry | None:
        """The call that starts next, seats and tokens permitting (laws L6, L7)."""
        queue = self._next_queue()
        return None if queue is None else queue.head()

    def _next_queue(self) -> FlowQueue | None:
        keys = self._keys
        if not keys:
            return None
        best = min(keys)
        if best >= NEVER:
            return None
        band = self._bands[keys.index(best)]
        return band.queues[band.tags.index(min(band.tags))]

    def take(self, entry: Entry) -> None:
        """`entry`, just picked, starts: its flow is charged (law L7)."""
        at = entry.at
        entry.at = None
        queue = at.queue if isinstance(at, Older) else at
        assert queue is not None
        band = queue.band
        queue.dead += 1
        if queue.tag > band.service:
            band.service = queue.tag
        queue.tag += queue.flow.increment
        if not queue.live:
            self._leave(queue)
            return
        if not queue.blocked:
            band.tags[queue.slot] = queue.tag
        self._rehead(queue)

    def take_common(self, now: int) -> Entry | None:
        """`pick` and `take` in one, if what is next is a common call with time enough; else None, taking nothing.
        Held equal to the two by the property tests."""
        keys = self._keys
        if not keys:
            return None
        band = self._bands[0 if len(keys) == 1 else keys.index(min(keys))]
        queues = band.queues
        if len(queues) == 1:
            queue = queues[0]
        elif queues:
            tags = band.tags
            queue = queues[tags.index(min(tags))]
        else:
            return None
        fifo = queue.fifo
        if queue.heap and not queue.first_two_are_older():
            return None
        entry = fifo[0]
        if not entry.common or entry.deadline - now <= 2 * band.group.usual:
            return None
        try:
            second = fifo[1]
        except IndexError:  # it is the last
            self.take(entry)
            return entry
        if second.at is not queue:
            return None
        fifo.popleft()
        entry.at = None
        rank = second.rank
        if queue.turned:  # who is alone takes turns with nobody, and all its starts leave it one turn ahead
            band.heads[0] = rank
            keys[band.slot] = rank + band.offset
            return entry
        slot, heads = queue.slot, band.heads
        band.service = tag = queue.tag
        queue.tag = band.tags[slot] = tag + queue.flow.increment
        heads[slot] = rank
        queue.turned = alone = len(heads) == 1
        keys[band.slot] = (rank if alone else min(heads)) + band.offset
        return entry

    # -- what may start -----------------------------------------------------------------------------------------

    def refresh(self, queue: FlowQueue, blocked: bool) -> None:
        """The flow of `queue` became full or has a seat again, or its breaker opened or closed."""
        if blocked == queue.blocked:
            return
        queue.blocked = blocked
        band = queue.band
        if blocked:
            band.tags[queue.slot] = band.heads[queue.slot] = NEVER
            self._rekey(band)
        else:
            # Coming back is entering: no credit is saved while it could not start.
            queue.tag = band.service + queue.flow.increment
            band.tags[queue.slot] = queue.tag
            self._rehead(queue)

    def refresh_group(self, group: Group) -> None:
        """The seats of a call type were used up, or one came free."""
        for band in group.bands:
            if band is not None:
                self._rekey(band)

    def drop(self, group: Group) -> None:
        """Forget a call type that has nothing ready."""
        for band in group.bands:
            if band is None:
                continue
            last = self._bands.pop()
            self._keys.pop()
            if last is not band:
                self._bands[band.slot] = last
                last.slot = band.slot
                self._rekey(last)

    def entries(self) -> Iterator[Entry]:
        for band in self._bands:
            for queue in band.queues:
                yield from queue.entries()

    def bands(self) -> Iterator[Band]:
        yield from self._bands

    # -- keeping the dense lists --------------------------------------------------------------------------------

    def _rehead(self, queue: FlowQueue) -> None:
        band = queue.band
        head = queue.head()
        assert head is not None
        rank = NEVER if queue.blocked else head.rank
        if band.heads[queue.slot] != rank:
            band.heads[queue.slot] = rank
            self._rekey(band)

    def _rekey(self, band: Band) -> None:
        heads = band.heads
        group = band.group
        if not heads or (group.limit is not None and group.in_flight >= group.limit):
            self._keys[band.slot] = NEVER
            return
        oldest = heads[0] if len(heads) == 1 else min(heads)
        self._keys[band.slot] = oldest + band.offset if oldest < NEVER else NEVER

    def _make_band(self, group: Group, level: int) -> Band:
        band = Band(group, level, self._offset(level), len(self._bands))
        group.bands[level] = band
        self._bands.append(band)
        self._keys.append(NEVER)
        return band

    def _enter(self, band: Band, flow: Flow, blocked: bool) -> FlowQueue:
        """A flow gets its first ready call in a band: it enters one turn after the tag in service."""
        queue = FlowQueue(band, flow, blocked or flow.full)
        if len(band.queues) == 1:
            band.queues[0].turned = False
        band.queues.append(queue)
        band.named[flow.name] = queue
        band.heads.append(NEVER)
        band.tags.append(NEVER if queue.blocked else queue.tag)
        flow.queues.append(queue)
        return queue

    def _leave(self, queue: FlowQueue) -> None:
        """A flow has nothing ready in this band any more."""
        band = queue.band
        del queue.older  # the two name each other, and nothing stands here any more
        del band.named[queue.flow.name]
        queue.flow.queues.remove(queue)
        last = band.queues.pop()
        head, tag = band.heads.pop(), band.tags.pop()
        if last is not queue:
            band.queues[queue.slot] = last
            band.heads[queue.slot] = head
            band.tags[queue.slot] = tag
            last.slot = queue.slot
        self._rekey(band)
