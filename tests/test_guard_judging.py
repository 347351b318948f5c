"""The guard's decisions alone: evidence, thresholds, states, damping; and by simulation how well it sees."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdispatch import ConfigurationError
from asyncdispatch.rollout import Baseline, GuardPolicy, GuardState, HalfOpen, Measured, Threshold
from asyncdispatch.rollout.judging import TRANSITIONS, Decision, Judge, Step
from asyncdispatch.rollout.policy import SIGNALS
from asyncdispatch.rollout.samples import Counted, Evidence, Histogram, Sampled
from benchmarks.guard import REGRESSIONS, USUAL, Simulation, Traffic, false_alarms

PAGE = Path(__file__).parent.parent / "docs" / "rolling-out.md"
ONLY_FAILURES = GuardPolicy(
    **dict.fromkeys(SIGNALS.keys() - {"failure_rate"}),  # type: ignore[arg-type]
    failure_rate=Threshold(absolute=0.1),
    half_open=HalfOpen(percentage=5, seconds=30, samples=10),
    hold_off=60,
    hold_off_max=300,
    calm=600,
)
"""Needs no baseline."""


# -- samples ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 100_000), min_size=1, max_size=60), st.floats(0.01, 1))
def test_a_quantile_is_an_upper_bound_by_an_eighth(values: list[float], q: float):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[math.ceil(q * len(values)) - 1]
    found = histogram.quantile(q)
    assert found is not None
    assert exact <= found <= exact * 1.126 + 2e-6


@given(st.lists(st.floats(0, 1_000), max_size=60), st.floats(0.001, 1_000))
def test_above_counts_none_that_is_not(values: list[float], limit: float):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    assert sum(value > limit * 1.126 + 2e-6 for value in values) <= histogram.above(limit)
    assert histogram.above(limit) <= sum(value > limit for value in values)


@pytest.mark.parametrize("value", [-1.0, 0.0, 1e-9, 1e30])
def test_no_value_is_too_small_or_too_large(value: float):
    histogram = Histogram()
    histogram.add(value)
    assert histogram.total == sum(histogram.counts) == 1
    assert histogram.quantile(0.99) is not None
    assert Histogram().quantile(0.99) is None


@given(n=st.integers(1, 80), hits=st.integers(0, 80), limit=st.sampled_from((0.01, 0.05, 0.2, 0.5, 0.9)))
def test_evidence_is_never_too_bold(n: int, hits: int, limit: float):
    """The exact chance of so many hits, in a system just at the limit, is at most what is claimed."""
    hits = min(hits, n)
    tail = sum(math.comb(n, i) * limit**i * (1 - limit) ** (n - i) for i in range(hits, n + 1))
    strength = Evidence(n, hits, limit).strength
    assert tail <= math.exp(-strength) * (1 + 1e-9)
    assert (strength > 0) is (hits > n * limit)


def test_no_samples_are_no_evidence():
    assert Evidence(0, 0, 0.01).strength == 0.0


@pytest.mark.parametrize("window", [Sampled(0.99, 3), Counted(3)])
def test_a_window_forgets_its_oldest_slice(window: Sampled | Counted):
    for _ in range(3):
        window.add(1.0)
        window.rotate()
    assert window.samples == 2
    assert window.value == pytest.approx(1.0, rel=0.13)
    window.rotate()
    window.rotate()
    assert (window.samples, window.value) == (0, None)
    window.add(0.0)
    window.clear()
    assert window.samples == 0


# -- policies that make no sense --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "needs an absolute limit, a relative one, or both"),
        ({"absolute": 0}, "Threshold.absolute=0: must be a finite number above 0"),
        ({"absolute": math.nan}, "must be a finite number above 0"),
        ({"absolute": True}, "must be a finite number above 0"),
        ({"relative": 1.0, "least": 1.0}, "must be 1.1 or more"),
        ({"relative": 2.0}, "give both or neither"),
        ({"absolute": 1.0, "least": 0.5}, "give both or neither"),
        ({"absolute": 1.0, "relative": 2.0, "least": 1.0}, "contradicts absolute=1.0"),
    ],
    ids=range(8),
)
def test_thresholds_that_contradict_are_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        Threshold(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"failure_rate": 0.1}, "GuardPolicy.failure_rate=0.1: must be a Threshold or None"),
        ({"failure_rate": Threshold(absolute=1.5)}, "GuardPolicy.failure_rate.absolute=1.5: is a share"),
        ({"queue_depth": Threshold(absolute=5_000)}, "GuardPolicy.queue_depth.absolute=5000: is a share"),
        ({"binding_errors": Threshold(relative=2, least=1)}, "binding_errors.least=1: is a share"),
        (dict.fromkeys(SIGNALS), "judges nothing"),
        ({"window": 0}, "GuardPolicy.window"),
        ({"interval": 11.0}, "must not be longer than window/slices"),
        ({"min_samples": 0}, "GuardPolicy.min_samples"),
        ({"baseline_samples": 1.5}, "GuardPolicy.baseline_samples"),
        ({"false_alarm": 0.5}, "GuardPolicy.false_alarm"),
        ({"hold_off_factor": 0.5}, "GuardPolicy.hold_off_factor"),
        ({"hold_off_max": 1.0}, "must not be below hold_off"),
        ({"waiting": "cancel"}, "must be Waiting.KEEP or Waiting.CANCEL"),
        ({"half_open": 5}, "GuardPolicy.half_open"),
        ({"binding_types": "pod_binding"}, "must be a tuple of call types"),
    ],
    ids=range(15),
)
def test_a_policy_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        GuardPolicy(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"percentage": 0}, "must be above 0"),
        ({"percentage": 101}, "from 0 to 100"),
        ({"seconds": 0}, "HalfOpen.seconds"),
        ({"samples": 0}, "HalfOpen.samples"),
    ],
    ids=range(4),
)
def test_a_half_open_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        HalfOpen(**fields)


# -- baseline ---------------------------------------------------------------------------------------------------------


def good_baseline(**values: float) -> Baseline:
    return Baseline({name: Measured(values.get(name, 0.01), 1_000) for name in SIGNALS})


def test_a_baseline_survives_a_restart():
    baseline = good_baseline(failure_rate=0.03)
    assert Baseline.from_dict(json.loads(json.dumps(baseline.to_dict()))) == baseline
    baseline.check(GuardPolicy())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "must be what to_dict gave"),
        ({"failure_rate": 0.1}, "must be what to_dict gave"),
        ({"failure_rate": {"value": 0.1}}, "must be what to_dict gave"),
        ({"failures": {"value": 0.1, "samples": 3}}, "'failures': is none of scheduling_p99"),
        ({"failure_rate": {"value": -0.1, "samples": 3}}, "Baseline.failure_rate"),
        ({"failure_rate": {"value": 0.1, "samples": 0}}, "Baseline.failure_rate.samples"),
    ],
    ids=range(6),
)
def test_a_baseline_that_is_none_is_refused(data: Any, message: str):
    with pytest.raises(ConfigurationError, match=message):
        Baseline.from_dict(data)


def test_too_few_samples_make_no_baseline():
    """It names the signal, how many there are, and what to do."""
    judge = Judge(GuardPolicy(baseline_samples=300))
    judge.begin(0.0)
    with pytest.raises(ConfigurationError, match=r"scheduling_p99=0: has 0 samples of the 300 needed.*_p99=None\)"):
        judge.opened(1.0)
    for _ in range(299):
        judge.sample("scheduling_p99", 0.01)
    with pytest.raises(ConfigurationError, match="scheduling_p99=299: has 299 samples of the 300 needed: stay sync"):
        judge.opened(1.0)
    assert (judge.state, judge.baseline) == (GuardState.RECORDING, None)
    assert judge.measured().signals["scheduling_p99"].samples == 299


def test_a_limit_below_the_baseline_is_refused():
    policy = GuardPolicy(api_latency_p99=Threshold(absolute=0.5))
    with pytest.raises(ConfigurationError, match=r"api_latency_p99.absolute=0.5: is below the baseline of 0.7"):
        Judge(policy, good_baseline(api_latency_p99=0.7))


def test_no_baseline_is_needed_for_absolute_limits():
    judge = Judge(ONLY_FAILURES)
    judge.begin(0.0)
    assert judge.opened(0.0) == Decision(Step.OPENED, GuardState.ARMED)


def test_recording_anew_forgets_the_old():
    judge = Judge(ONLY_FAILURES)
    judge.begin(0.0)
    judge.sample("failure_rate", 1)
    assert judge.measured().value("failure_rate") == 1.0
    judge.forget_baseline()
    assert judge.measured().signals == {}


def test_a_share_has_a_limit_that_can_be_reached():
    """Twice a baseline of 60 % would be 120 %: half of the way that is left is taken instead."""
    policy = replace(ONLY_FAILURES, failure_rate=Threshold(relative=2.0, least=0.05))
    judge = Judge(policy, Baseline({"failure_rate": Measured(0.6, 1_000)}))
    judge.begin(0.0)
    judge.opened(0.0)
    (signal,) = (each for each in judge.report(0.0).signals if each.name == "failure_rate")
    assert signal.limit == 0.8


# -- states -----------------------------------------------------------------------------------------------------------


def fail(judge: Judge, count: int = 40) -> None:
    for _ in range(count):
        judge.sample("failure_rate", 1)
        judge.ended()


def armed() -> Judge:
    judge = Judge(ONLY_FAILURES)
    judge.begin(0.0)
    judge.opened(0.0)
    return judge


def test_a_breach_trips_and_says_by_what():
    judge = armed()
    fail(judge)
    decision = judge.tick(1.0)
    assert decision is not None
    assert (decision.step, decision.state, decision.hold_off) == (Step.BREACHED, GuardState.TRIPPED, 60)
    assert decision.reason == "failure_rate"
    assert str(decision) == "failure_rate 1 > 0.1 (40 samples)"
    assert judge.tick(2.0) is None


def test_too_few_samples_trip_nothing():
    judge = armed()
    fail(judge, 19)
    assert judge.tick(1.0) is None
    assert "too few samples, 20 are needed" in str(judge.report(1.0))
    fail(judge, 1)
    assert judge.tick(2.0) is not None


def test_the_way_back_is_a_small_share_that_does_well():
    """After the hold-off; for long enough, and with calls enough."""
    judge = armed()
    fail(judge)
    judge.tick(1.0)
    assert judge.tick(60.9) is None
    half = judge.tick(61.0)
    assert half is not None
    assert (half.step, half.state) == (Step.HELD_OFF, GuardState.HALF_OPEN)
    for _ in range(9):
        judge.sample("failure_rate", 0)
        judge.ended()
    assert judge.tick(95.0) is None, "too few calls"
    judge.ended()
    assert judge.report(95.0).state is GuardState.HALF_OPEN
    back = judge.tick(95.0)
    assert back is not None
    assert (back.step, back.state) == (Step.PROVEN, GuardState.ARMED)


def test_flapping_is_damped():
    """Each rollback that follows closely holds off twice as long, up to a maximum; a calm time makes it forget."""
    judge, now, held = armed(), 0.0, []
    for _ in range(5):
        fail(judge)
        now += 1
        decision = judge.tick(now)
        assert decision is not None
        assert decision.hold_off is not None
        held.append(decision.hold_off)
        now += decision.hold_off
        assert judge.tick(now) is not None
    assert held == [60, 120, 240, 300, 300]
    assert judge.report(now).rollbacks == 5
    for _ in range(10):
        judge.sample("failure_rate", 0)
        judge.ended()
    now += 30
    assert judge.tick(now) is not None
    now += 600
    assert judge.tick(now) is None
    fail(judge)
    decision = judge.tick(now + 1)
    assert decision is not None
    assert decision.hold_off == 60


def test_without_half_open_it_stays_until_a_hand_opens():
    judge = Judge(replace(ONLY_FAILURES, half_open=None))
    judge.begin(0.0)
    judge.opened(0.0)
    fail(judge)
    decision = judge.tick(1.0)
    assert decision is not None
    assert decision.hold_off is None
    assert judge.tick(1e9) is None
    assert judge.report(1e9).half_open_in is None
    opened = judge.opened(1e9)
    assert opened is not None
    assert opened.state is GuardState.ARMED


@given(st.lists(st.tuples(st.sampled_from(("open", "close", "fail", "well", "wait")), st.floats(0, 200)), max_size=30))
def test_no_way_but_those_in_the_table(steps: list[tuple[str, float]]):
    """Whatever happens in whatever order; and only a breach rolls back."""
    judge, now = Judge(ONLY_FAILURES), 0.0
    judge.begin(now)
    for what, seconds in steps:
        before = judge.state
        now += seconds
        match what:
            case "open":
                try:
                    decision = judge.opened(now)
                except ConfigurationError:
                    decision = None  # what was recorded is above the limit already
            case "close":
                decision = judge.closed(now)
            case _:
                if what == "fail":
                    fail(judge)
                elif what == "well":
                    for _ in range(50):
                        judge.sample("failure_rate", 0)
                        judge.ended()
                decision = judge.tick(now)
        if decision is None:
            assert judge.state is before
        else:
            assert TRANSITIONS[before][decision.step] is judge.state is decision.state
            assert (decision.state is GuardState.TRIPPED) is (decision.step is Step.BREACHED) is bool(decision.breaches)
    judge.report(now)


def test_the_page_shows_the_table():
    """docs/rolling-out.md has a line for each step, and no other; and every signal."""
    lines = [
        f"| {before.value} | {step.value} | {after.value} |"
        for before, row in TRANSITIONS.items()
        for step, after in row.items()
    ]
    text = PAGE.read_text(encoding="utf-8")
    assert text.split("| state | step | next |\n|---|---|---|\n")[1].split("\n\n")[0].splitlines() == lines
    for signal in SIGNALS.values():
        assert f"| `{signal.name}` | {signal.what} |" in text


# -- explaining -------------------------------------------------------------------------------------------------------


def test_the_report_explains_every_signal():
    simulation = Simulation(1)
    for _ in range(30):
        simulation.second(USUAL)
    report = simulation.judge.report(simulation.now)
    assert [signal.name for signal in report.signals] == list(SIGNALS)
    assert {signal.finding for signal in report.signals} == {"ok"}
    assert "armed for 30 s, 0 rollbacks" in str(report)
    simulation.until_rollback(REGRESSIONS["30 % of the calls fail"], 2_000)
    after = str(simulation.judge.report(simulation.now + 5))
    assert "tripped for 5 s, 1 rollbacks, half-open in 55 s" in after
    assert "5 s ago: tripped: failure_rate " in after
    assert "not judged until it is tried again" in after


def test_findings_in_every_other_state():
    judge = Judge(ONLY_FAILURES)
    judge.begin(0.0)
    assert "recording, 300 are needed" in str(judge.report(0.0))
    assert "queue_depth: now -, baseline -, limit -, 0 samples: not judged" in str(judge.report(0.0))
    judge.opened(0.0)
    for hit in [1] * 5 + [0] * 25:
        judge.sample("failure_rate", hit)
    assert "above, but not surely: evidence 0.63 of 13.8" in str(judge.report(0.0))
    fail(judge)
    assert "samples: breach" in str(judge.report(0.0))
    judge = Judge(ONLY_FAILURES, Baseline({"failure_rate": Measured(0.01, 500)}))
    judge.begin(0.0)
    assert "not judged while synchronous" in str(judge.report(0.0))


def test_memory_is_bounded():
    """Windows are counts: a million samples take as much room as one. The history keeps the last twenty steps."""
    judge = armed()

    def size() -> int:
        return sum(
            len(part.counts) if isinstance(part, Histogram) else len(part)
            for window in judge.windows.values()
            for part in window._slices
        )

    before, random = size(), Random(1)
    for second in range(500):
        for _ in range(100):
            judge.sample("api_latency_p99", random.expovariate(1))
        judge.tick(float(second))
    assert size() == before
    for second in range(500, 600):
        judge.closed(float(second))
        judge.opened(float(second))
    assert len(judge.report(600.0).history) == 20


def test_a_stalled_loop_is_caught_up_with():
    """After an hour without a look the windows are empty, and the next slice begins now."""
    judge = armed()
    fail(judge, 10)
    assert judge.tick(3_600.0) is None
    fail(judge, 19)
    assert judge.tick(3_601.0) is None
    assert judge.windows["failure_rate"].samples == 19


# -- how well it sees -------------------------------------------------------------------------------------------------


def test_noise_at_the_baseline_is_no_breach():
    """`python -m benchmarks.guard` prints the rate over more seeds and longer times."""
    assert false_alarms(seeds=6, calls=6_000) == 0


BOUNDS = {
    "scheduling takes 10 times as long": 400,
    "API calls take 30 times as long": 200,
    "10 % of the calls fail": 2_400,
    "30 % of the calls fail": 600,
    "20 % of the calls come twice": 1_000,
    "half of the Pods are tried again": 1_000,
    "calls wait 10,000 times as long": 200,
    "the queue stays at 90 % of its capacity": 1_200,
}


@pytest.mark.parametrize(("what", "bound"), BOUNDS.items(), ids=[what.replace(" ", "_") for what in BOUNDS])
def test_a_real_regression_is_a_breach_within_so_many_calls(what: str, bound: int):
    traffic: Traffic = REGRESSIONS[what]
    for seed in range(3):
        simulation = Simulation(100 + seed)
        assert simulation.until_rollback(USUAL, 40 * USUAL.rate) is None
        assert simulation.until_rollback(traffic, bound) is not None
