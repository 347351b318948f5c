"""What the guard remembers: integer histograms and counts in slices of a window, bounded whatever comes in.

Two kinds of signal answer the same question, "how many of how many, where so many would be the limit": a quantile
counts the samples above the limit, and is above it itself if more than 1 − q of them are; a share counts what went
wrong, with the limit as the share.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Counted", "Evidence", "Histogram", "Sampled"]

MILLION = 1_000_000
BITS = 3  # sub-buckets per octave: 8, so a bucket is at most an eighth wide
SMALL = 1 << (BITS + 1)
SIZE = 38 << BITS
"""Up to 2**38 millionths: three days, for seconds."""


class Evidence(NamedTuple):
    """`hits` of `samples`, where a share of `limit` would be just bearable."""

    samples: int
    hits: int
    limit: float

    @property
    def strength(self) -> float:
        """How surely the true share is above the limit: a probability of at most exp(−strength) that it is not.

        Chernoff's bound on a binomial tail, n·KL(hits/n ‖ limit): exact enough, no table, and never too bold.
        """
        n, k, p = self
        if not n or k <= n * p:
            return 0.0
        q = k / n
        strength = q * math.log(q / p)
        if q < 1:
            strength += (1 - q) * math.log((1 - q) / (1 - p))
        return n * strength


class Histogram:
    """Counts of values from 0 on, in millionths, in buckets an eighth of an octave wide."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * SIZE
        self.total = 0

    def add(self, value: float) -> None:
        self.counts[bucket_of(value)] += 1
        self.total += 1

    def above(self, limit: float) -> int:
        """How many are surely above `limit`: what shares its bucket is not."""
        return sum(self.counts[bucket_of(limit) + 1 :])

    def quantile(self, q: float) -> float | None:
        """An upper bound, by an eighth at most, of the value that a share `q` is not above; None without samples."""
        if not self.total:
            return None
        rest = math.ceil(q * self.total)
        for index, count in enumerate(self.counts):
            rest -= count
            if rest <= 0:
                return upper_bound(index) / MILLION
        raise AssertionError("the buckets hold the total")


def bucket_of(value: float) -> int:
    n = int(value * MILLION)
    if n < SMALL:
        return max(n, 0)
    shift = n.bit_length() - (BITS + 1)
    return min((shift << BITS) + (n >> shift), SIZE - 1)


def upper_bound(index: int) -> int:
    """The first value, in millionths, that is beyond a bucket."""
    if index < SMALL:
        return index + 1
    shift = (index >> BITS) - 1
    return ((index & ((1 << BITS) - 1)) + (1 << BITS) + 1) << shift


class Sampled:
    """A quantile of what was measured within a window of some slices."""

    def __init__(self, q: float, slices: int) -> None:
        self.q = q
        self._slices = [Histogram() for _ in range(slices)]
        self._current = self._slices[0]

    def add(self, value: float) -> None:
        self._current.add(value)

    def rotate(self) -> None:
        """A new slice begins; the oldest is forgotten."""
        self._current = Histogram()
        self._slices = [self._current, *self._slices[:-1]]

    def clear(self) -> None:
        self._slices = [Histogram() for _ in self._slices]
        self._current = self._slices[0]

    @property
    def samples(self) -> int:
        return sum(part.total for part in self._slices)

    @property
    def value(self) -> float | None:
        whole = Histogram()
        whole.counts = [sum(column) for column in zip(*(part.counts for part in self._slices), strict=True)]
        whole.total = self.samples
        return whole.quantile(self.q)

    def evidence(self, limit: float) -> Evidence:
        return Evidence(self.samples, sum(part.above(limit) for part in self._slices), 1 - self.q)


class Counted:
    """The share of what went wrong within a window of some slices."""

    def __init__(self, slices: int) -> None:
        self._slices = [[0, 0] for _ in range(slices)]
        self._current = self._slices[0]

    def add(self, hit: float) -> None:
        self._current[0] += 1
        if hit:
            self._current[1] += 1

    def rotate(self) -> None:
        """A new slice begins; the oldest is forgotten."""
        self._current = [0, 0]
        self._slices = [self._current, *self._slices[:-1]]

    def clear(self) -> None:
        self._slices = [[0, 0] for _ in self._slices]
        self._current = self._slices[0]

    @property
    def samples(self) -> int:
        return sum(total for total, _ in self._slices)

    @property
    def value(self) -> float | None:
        samples = self.samples
        return sum(hits for _, hits in self._slices) / samples if samples else None

    def evidence(self, limit: float) -> Evidence:
        return Evidence(self.samples, sum(hits for _, hits in self._slices), limit)
