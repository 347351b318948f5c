"""What arrives, and where it may go, in the study of nomination: see nomination_study.py. By the seed alone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

PRESSURE = 1.25
"""What arrives asks for so many times what is free."""
SPREAD = 20.0
"""Seconds within which the members of a gang arrive, but no more than half of the whole."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it. `rate`: Pods that arrive in a second."""

    nodes: int = 500
    pods: int = 2_000
    gang: int = 10
    rate: float = 10.0
    rounds: int = 2
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Arrival:
    """A Pod to come, `at` seconds from the start. `gang` is None for a bystander; `cpu` is in thousandths."""

    at: float
    name: str
    cpu: int
    gang: int | None


@dataclass(frozen=True, slots=True)
class Workload:
    """`node_cpu` is what each node has, `taken` what of each is taken from the start; in thousandths."""

    node_cpu: int
    taken: list[int]
    arrivals: list[Arrival]


def workload(size: Size) -> Workload:
    """The same for the same size."""
    random = Random(size.seed)
    jobs = size.pods // 2
    asked = [random.choice((250, 500, 1000)) for _ in range(size.pods)]
    free = sum(asked) / PRESSURE / size.nodes
    node_cpu = 1000 * round(2 * free / 1000 + 1)
    taken = [node_cpu - round(free * random.uniform(0.5, 1.5)) for _ in range(size.nodes)]
    lasts, gangs = size.pods / size.rate, -(-jobs // size.gang)
    spread = min(SPREAD, lasts / 2) if size.gang > 1 else lasts / gangs
    arrivals = [
        Arrival(i // size.gang * lasts / gangs + random.uniform(0, spread), f"job-{i}", asked[i], i // size.gang)
        for i in range(jobs)
    ]
    arrivals += [Arrival(random.uniform(0, lasts), f"other-{i}", asked[i], None) for i in range(jobs, size.pods)]
    return Workload(node_cpu, taken, sorted(arrivals, key=lambda arrival: arrival.at))
