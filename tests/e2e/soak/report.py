"""What a soak has found: what is wrong, if anything, and a table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.e2e.audit import Violation
from tests.e2e.soak.gauges import Sample, growth

WARM_UP = 2
"""Samples before memory counts: caches, connections and free lists fill up first."""
GROWTH = 0.3
"""Objects for each call. A leak of one for each makes it 1 or more; by what the rests differ it is 0.1 at most."""
RSS_GROWTH = 48 * 2**20
"""Bytes, after the warm-up: the allocator keeps what an outage with thousands of retries took at its worst."""
BLOCK = 0.5
"""Seconds that the event loop's thread may compute at once: 0.1 is usual, 0.26 was seen; see docs/controlplane.md."""
LATE = 5.0
"""Seconds by the clock, while the servers and whatever else has the processors."""


@dataclass
class Report:
    """Filled by `soak`."""

    seed: int
    version: str
    seconds: float = 0.0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    terms: int = 0
    violations: list[Violation] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    block: float = 0.0
    late: float = 0.0
    collection: float = 0.0
    held_by: Counter[str] = field(default_factory=Counter)
    """What the loop was doing when it was late."""
    blocked: int = 0
    """Steps of user code that dispatchers have reported."""
    remains: list[str] = field(default_factory=list)
    """What was in the dispatchers' tables at rest."""
    left: list[str] = field(default_factory=list)
    """Tasks, threads, files after the end."""

    @property
    def calls(self) -> int:
        return self.outcomes.total()

    def count(self, kind: str) -> int:
        return sum(violation.kind == kind for violation in self.violations)

    @property
    def wrong(self) -> list[str]:
        """Whatever must not be, a line each."""
        found = [f"{violation.kind}: {violation.text}" for violation in self.violations]
        found += [f"at rest: {one}" for one in self.remains] + [f"left behind: {one}" for one in self.left]
        if self.block > BLOCK:
            found.append(
                f"the event loop was held for {self.block:.3f} s at once, more than {BLOCK} s: {_listed(self.held_by)}"
            )
        if self.late > LATE:
            found.append(f"the event loop was late by {self.late:.3f} s, more than {LATE} s")
        if self.blocked:
            found.append(f"{self.blocked} steps of a call have held the event loop, say the dispatchers")
        return found + leaks(self.samples)

    def table(self) -> str:
        """For people."""
        by_kind: Counter[str] = Counter()
        by_type: Counter[str] = Counter()
        for (call_type, kind), count in self.outcomes.items():
            by_kind[kind] += count
            by_type[call_type] += count
        first, last = self.samples[min(WARM_UP, len(self.samples) - 1)], self.samples[-1]
        rows = {
            "soak": f"Kubernetes {self.version}, seed {self.seed}, {self.seconds:.0f} s",
            "calls": f"{self.calls:,} ({self.calls / self.seconds:.0f}/s): {_listed(by_type)}",
            "outcomes": _listed(by_kind),
            "faults": f"{self.faults.total()}: {_listed(self.faults)}; {self.terms} terms",
            "lost": str(self.count("lost")),
            "doubled": str(self.count("doubled")),
            "other violations": str(len(self.violations) - self.count("lost") - self.count("doubled")),
            "memory": f"RSS {first.rss / 2**20:.0f} -> {last.rss / 2**20:.0f} MiB, {_growth(self.samples)}",
            "event loop": f"held for {self.block * 1000:.0f} ms at most ({self.late * 1000:.0f} ms by the clock), "
            f"the garbage collector for {self.collection * 1000:.0f} ms, {self.blocked} steps reported",
            "left": f"{len(self.left)} tasks, threads and files; {len(self.remains)} entries at rest",
        }
        return "\n".join(f"{name:<18}{value}" for name, value in rows.items())


def leaks(samples: Sequence[Sample]) -> list[str]:
    """What the memory at rest says, the warm-up aside; nothing if there are too few samples."""
    warm = samples[WARM_UP:]
    if len(warm) < 3:
        return []
    found = []
    if (objects := growth(warm)) > GROWTH:
        found.append(f"memory grows by {objects:.2f} objects for each call, more than {GROWTH}: {list(warm)}")
    if (grown := warm[-1].rss - warm[0].rss) > RSS_GROWTH:
        found.append(f"RSS has grown by {grown / 2**20:.0f} MiB, more than {RSS_GROWTH / 2**20:.0f}")
    return found


def _growth(samples: Sequence[Sample]) -> str:
    warm = samples[WARM_UP:]
    return f"{growth(warm):+.3f} objects for each call" if len(warm) >= 3 else "too short to tell"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
