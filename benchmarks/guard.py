"""How often the guard cries wolf, and how many samples it needs to see one: `python -m benchmarks.guard`.

Made-up traffic through the judge alone, over many seeds: a synchronous time from which the baseline is taken, then
asynchronous hours as good as that (false alarms), or with something got worse (samples until the rollback). Latencies
are log-normal, which has the heavy tail that API servers have.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import median

from asyncdispatch.rollout import GuardPolicy, GuardState
from asyncdispatch.rollout.judging import Judge


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one second brings, on average; medians of log-normal times in seconds, and shares."""

    rate: int = 20
    scheduling: float = 0.020
    latency: float = 0.040
    spread: float = 0.8
    wait: float = 0.010
    failures: float = 0.01
    duplicates: float = 0.002
    retries: float = 0.10
    depth: float = 0.02
    """Share of the capacity."""


USUAL = Traffic()

REGRESSIONS = {
    "scheduling takes 3 times as long": replace(USUAL, scheduling=0.060),
    "scheduling takes 10 times as long": replace(USUAL, scheduling=0.200),
    "API calls take 5 times as long": replace(USUAL, latency=0.200),
    "API calls take 30 times as long": replace(USUAL, latency=1.200),
    "10 % of the calls fail": replace(USUAL, failures=0.10),
    "30 % of the calls fail": replace(USUAL, failures=0.30),
    "20 % of the calls come twice": replace(USUAL, duplicates=0.20),
    "half of the Pods are tried again": replace(USUAL, retries=0.50),
    "calls wait 10,000 times as long": replace(USUAL, wait=100.0),
    "the queue stays at 90 % of its capacity": replace(USUAL, depth=0.90),
}


class Simulation:
    """One guard and one stream of random traffic."""

    def __init__(self, seed: int, policy: GuardPolicy = GuardPolicy(), traffic: Traffic = USUAL) -> None:
        self.random = Random(seed)
        self.policy = policy
        self.judge = Judge(policy)
        self.now = 0.0
        self.calls = 0
        self.judge.begin(self.now)
        while self.calls < 2 * policy.baseline_samples:
            self.second(traffic)
        self.judge.opened(self.now)
        self.calls = 0

    def second(self, traffic: Traffic) -> None:
        """A second of traffic, and one look."""
        random, sample = self.random, self.judge.sample
        self.now += 1.0
        for _ in range(traffic.rate):
            self.calls += 1
            sample("scheduling_p99", self._seconds(traffic.scheduling, traffic))
            sample("api_latency_p99", self._seconds(traffic.latency, traffic))
            sample("queue_wait_p99", self._seconds(traffic.wait, traffic))
            failed = random.random() < traffic.failures
            sample("failure_rate", failed)
            sample("binding_errors", failed)
            sample("duplicate_rate", random.random() < traffic.duplicates)
            sample("unschedulable_retries", random.random() < traffic.retries)
            self.judge.ended()
        sample("queue_depth", min(1.0, max(0.0, random.gauss(traffic.depth, 0.01))))
        self.judge.tick(self.now)

    def _seconds(self, middle: float, traffic: Traffic) -> float:
        return middle * math.exp(self.random.gauss(0.0, traffic.spread))

    def until_rollback(self, traffic: Traffic, most: int) -> int | None:
        """How many calls it takes from now on; None if more than `most`."""
        began = self.calls
        while self.calls - began < most:
            self.second(traffic)
            if self.judge.state is not GuardState.ARMED:
                return self.calls - began
        return None


def false_alarms(seeds: int, calls: int) -> int:
    """In how many of so many runs, of so many calls each, it rolled back for nothing."""
    return sum(Simulation(seed).until_rollback(USUAL, calls) is not None for seed in range(seeds))


def detections(traffic: Traffic, seeds: int, most: int = 20_000) -> list[int | None]:
    """For each seed, how many calls it took to notice. It had been well for a window before."""
    found = []
    for seed in range(seeds):
        simulation = Simulation(seed)
        simulation.until_rollback(USUAL, 60 * USUAL.rate)
        found.append(simulation.until_rollback(traffic, most))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--hours", type=float, default=1.0, help="of usual traffic for each seed")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    calls = int(options.hours * 3600 * USUAL.rate)
    wrong = false_alarms(options.seeds, calls)
    print(
        f"usual traffic: {wrong} false alarms in {options.seeds} runs of {calls} calls and {calls // USUAL.rate} looks"
    )
    for what, traffic in REGRESSIONS.items():
        found = detections(traffic, options.seeds)
        seen = sorted(n for n in found if n is not None)
        figures = f"median {median(seen):.0f}, worst {seen[-1]} calls" if seen else "never"
        print(f"{what}: noticed in {len(seen)} of {len(found)} runs; {figures}")
    print(f"# {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
