"""The guard's decisions: pure, with `now` passed in. It is given samples and asked what to do; the shell does it.

A breach is decided on evidence, not on a figure: a P99 out of two hundred samples is two samples, and jumps about.
What is tested is whether more than one in a hundred is above the limit, surely enough (`Evidence.strength`).
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.rollout.policy import SIGNALS, Baseline, GuardPolicy, Measured
from asyncdispatch.rollout.samples import Counted, Sampled

__all__ = ["TRANSITIONS", "Breach", "Decision", "GuardReport", "GuardState", "Judge", "SignalReport", "Step"]


class GuardState(enum.Enum):
    """What the guard does."""

    RECORDING = "recording"
    """Calls are synchronous by hand: the baseline is taken, if there is none."""
    ARMED = "armed"
    """Calls are asynchronous and judged."""
    TRIPPED = "tripped"
    """It has rolled back, and calls are synchronous until the hold-off is over, or for good."""
    HALF_OPEN = "half-open"
    """A small share is asynchronous and judged."""


class Step(enum.Enum):
    """What moves it from one state to another."""

    OPENED = "opened by hand"
    CLOSED = "closed by hand"
    BREACHED = "a threshold was breached"
    HELD_OFF = "the hold-off is over"
    PROVEN = "the small share has done well"


RECORDING, ARMED = GuardState.RECORDING, GuardState.ARMED
TRIPPED, HALF_OPEN = GuardState.TRIPPED, GuardState.HALF_OPEN

TRANSITIONS: dict[GuardState, dict[Step, GuardState]] = {
    RECORDING: {Step.OPENED: ARMED},
    ARMED: {Step.BREACHED: TRIPPED, Step.CLOSED: RECORDING},
    TRIPPED: {Step.HELD_OFF: HALF_OPEN, Step.OPENED: ARMED, Step.CLOSED: RECORDING},
    HALF_OPEN: {Step.BREACHED: TRIPPED, Step.PROVEN: ARMED, Step.OPENED: ARMED, Step.CLOSED: RECORDING},
}
"""All there are. Anything else leaves the state as it is."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A signal that is surely above its limit: its value out of so many samples, and how sure that is."""

    signal: str
    value: float
    limit: float
    baseline: float | None
    samples: int
    strength: float

    def __str__(self) -> str:
        base = "" if self.baseline is None else f", baseline {self.baseline:.4g}"
        return f"{self.signal} {self.value:.4g} > {self.limit:.4g}{base} ({self.samples} samples)"


@dataclass(frozen=True, slots=True)
class Decision:
    """A step that the guard has taken: the shell carries it out. `hold_off`: seconds until half-open, if it trips."""

    step: Step
    state: GuardState
    breaches: tuple[Breach, ...] = ()
    hold_off: float | None = None

    @property
    def reason(self) -> str:
        """The name of the signal with the strongest evidence: one word out of a bounded set, for a metric."""
        return self.breaches[0].signal if self.breaches else self.step.value

    def __str__(self) -> str:
        return "; ".join(map(str, self.breaches)) or self.step.value


@dataclass(frozen=True, slots=True)
class SignalReport:
    """One signal as it is now. `finding` says in words what the guard makes of it."""

    name: str
    value: float | None
    samples: int
    baseline: float | None
    limit: float | None
    strength: float
    finding: str

    def __str__(self) -> str:
        def number(value: float | None) -> str:
            return "-" if value is None else f"{value:.4g}"

        figures = f"now {number(self.value)}, baseline {number(self.baseline)}, limit {number(self.limit)}"
        return f"{self.name}: {figures}, {self.samples} samples: {self.finding}"


@dataclass(frozen=True, slots=True)
class GuardReport:
    """All that the guard decides by. `history` has the last steps, (seconds ago, what), the newest last.

    `half_open_in`: seconds until it tries a small share; None if it does not.
    """

    state: GuardState
    seconds: float
    rollbacks: int
    half_open_in: float | None
    needed_strength: float
    signals: tuple[SignalReport, ...]
    history: tuple[tuple[float, str], ...]

    def __str__(self) -> str:
        head = f"{self.state.value} for {self.seconds:.0f} s, {self.rollbacks} rollbacks"
        if self.half_open_in is not None:
            head += f", half-open in {self.half_open_in:.0f} s"
        past = [f"{ago:.0f} s ago: {what}" for ago, what in self.history]
        return "\n".join([head, *(f"  {signal}" for signal in self.signals), *(f"  {line}" for line in past)])


class Judge:
    """Keeps the windows and the state. Time is seconds of any clock that never goes back."""

    def __init__(self, policy: GuardPolicy, baseline: Baseline | None = None) -> None:
        self.policy = policy
        self.thresholds = policy.thresholds
        self.needed = math.log(1 / policy.false_alarm)
        self.baseline = baseline
        self.state = RECORDING
        self.since = 0.0
        self.rollbacks = 0
        self.rollback_reasons: dict[str, int] = {}
        self._in_a_row = 0
        self._until: float | None = None
        self._ended = 0  # calls of the small share
        self._slice_until = 0.0
        self._history: deque[tuple[float, str]] = deque(maxlen=20)
        self.windows: dict[str, Sampled | Counted] = {
            name: Counted(policy.slices) if signal.q is None else Sampled(signal.q, policy.slices)
            for name, signal in SIGNALS.items()
        }
        self._recorded = {
            name: Counted(1) if signal.q is None else Sampled(signal.q, 1) for name, signal in SIGNALS.items()
        }
        self._limits: dict[str, float] = {}
        if baseline is not None:
            self._take(baseline)

    # -- samples ----------------------------------------------------------------------------------------------------

    def sample(self, name: str, value: float) -> None:
        """One measurement, or for a share one case (1 if it went wrong)."""
        if self.state is not RECORDING:
            self.windows[name].add(value)
        else:
            self._recorded[name].add(value)

    def ended(self) -> None:
        """A call that is judged has ended."""
        self._ended += 1

    def measured(self) -> Baseline:
        """What has been recorded so far."""
        return Baseline(
            {
                name: Measured(window.value, window.samples)
                for name, window in self._recorded.items()
                if window.value is not None
            }
        )

    def forget_baseline(self) -> None:
        """Begin to record anew."""
        self.baseline = None
        self._limits = {}
        for window in self._recorded.values():
            window.clear()

    def _take(self, baseline: Baseline) -> None:
        baseline.check(self.policy)
        self.baseline = baseline
        self._limits = {}
        for name, threshold in self.thresholds.items():
            value = baseline.value(name)
            limit = threshold.limit(value)
            if SIGNALS[name].q is None and value is not None:
                limit = min(limit, (1 + value) / 2)  # a share can't double for ever
            self._limits[name] = limit

    # -- steps ------------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Time begins: nothing is asynchronous yet."""
        self.state, self.since = RECORDING, now
        self._slice_until = now + self.policy.window / self.policy.slices

    def opened(self, now: float) -> Decision | None:
        """Calls are asynchronous from now on, by hand. Raises `ConfigurationError` if there is nothing to judge by."""
        if self.baseline is None:
            self._take(self.measured())
        return self._go(Step.OPENED, now)

    def closed(self, now: float) -> Decision | None:
        """Calls are synchronous from now on, by hand."""
        return self._go(Step.CLOSED, now)

    def tick(self, now: float) -> Decision | None:
        """Look at it all. Returns the step that was taken, if any."""
        self._rotate(now)
        if self.state is TRIPPED:
            return self._go(Step.HELD_OFF, now) if self._until is not None and now >= self._until else None
        if self.state is RECORDING:
            return None
        breaches = self._breaches()
        if breaches:
            return self._go(Step.BREACHED, now, breaches)
        if self.state is HALF_OPEN and self._proven(now):
            return self._go(Step.PROVEN, now)
        if self._in_a_row and self.state is ARMED and now - self.since >= self.policy.calm:
            self._in_a_row = 0
        return None

    def _rotate(self, now: float) -> None:
        width = self.policy.window / self.policy.slices
        if now - self._slice_until >= self.policy.window:  # held up for longer than it remembers
            for window in self.windows.values():
                window.clear()
            self._slice_until = now + width
        while now >= self._slice_until:
            for window in self.windows.values():
                window.rotate()
            self._slice_until += width

    def _breaches(self) -> tuple[Breach, ...]:
        found = []
        for name, limit in self._limits.items():
            evidence = self.windows[name].evidence(limit)
            if evidence.samples < self.policy.min_samples or evidence.strength < self.needed:
                continue
            value = self.windows[name].value
            assert value is not None
            base = None if self.baseline is None else self.baseline.value(name)
            found.append(Breach(name, value, limit, base, evidence.samples, evidence.strength))
        return tuple(sorted(found, key=lambda breach: -breach.strength))

    def _proven(self, now: float) -> bool:
        wanted = self.policy.half_open
        return wanted is not None and now - self.since >= wanted.seconds and self._ended >= wanted.samples

    def _go(self, step: Step, now: float, breaches: tuple[Breach, ...] = ()) -> Decision | None:
        state = TRANSITIONS[self.state].get(step)
        if state is None:
            return None
        hold_off = None
        if step is Step.BREACHED:
            hold_off = self._hold_off()
            self.rollback_reasons[breaches[0].signal] = self.rollback_reasons.get(breaches[0].signal, 0) + 1
            self._until = None if hold_off is None else now + hold_off
        elif step in (Step.OPENED, Step.CLOSED):
            self._in_a_row = 0
        self.state, self.since, self._ended = state, now, 0
        for window in self.windows.values():
            window.clear()
        decision = Decision(step, state, breaches, hold_off)
        self._history.append((now, f"{state.value}: {decision}"))
        return decision

    def _hold_off(self) -> float | None:
        """Longer with every rollback that follows closely: flapping is damped."""
        self.rollbacks += 1
        self._in_a_row += 1
        policy = self.policy
        if policy.half_open is None:
            return None
        # The power is bounded, so that it can't overflow.
        return min(policy.hold_off_max, policy.hold_off * policy.hold_off_factor ** min(self._in_a_row - 1, 64))

    # -- explaining -------------------------------------------------------------------------------------------------

    def report(self, now: float) -> GuardReport:
        """Every signal, what it is compared with, and what came of it."""
        waits = self._until if self.state is TRIPPED else None
        return GuardReport(
            state=self.state,
            seconds=now - self.since,
            rollbacks=self.rollbacks,
            half_open_in=None if waits is None else max(0.0, waits - now),
            needed_strength=self.needed,
            signals=tuple(self._signal(name) for name in SIGNALS),
            history=tuple((now - when, what) for when, what in self._history),
        )

    def _signal(self, name: str) -> SignalReport:
        recording = self.state is RECORDING and self.baseline is None
        window = (self._recorded if recording else self.windows)[name]
        base = None if self.baseline is None else self.baseline.value(name)
        limit = self._limits.get(name)
        strength = 0.0 if limit is None else window.evidence(limit).strength
        finding = self._finding(name, window.samples, strength, limit)
        return SignalReport(name, window.value, window.samples, base, limit, strength, finding)

    def _finding(self, name: str, samples: int, strength: float, limit: float | None) -> str:
        if name not in self.thresholds:
            return "not judged"
        if self.state is RECORDING:
            if self.baseline is not None:
                return "not judged while synchronous"
            return f"recording, {self.policy.baseline_samples} are needed"
        if self.state is TRIPPED:
            return "not judged until it is tried again"
        assert limit is not None
        if samples < self.policy.min_samples:
            return f"too few samples, {self.policy.min_samples} are needed"
        if strength >= self.needed:
            return "breach"
        if strength > 0:
            return f"above, but not surely: evidence {strength:.3g} of {self.needed:.3g}"
        return "ok"


def require_baseline(judge: Judge) -> None:
    """Raise `ConfigurationError` if it would have nothing to judge by."""
    if judge.baseline is None:
        try:
            Baseline().check(judge.policy)
        except ConfigurationError as error:
            raise ConfigurationError(
                "baseline",
                None,
                "the guard has none: begin in Mode.SYNC and `open` once one is recorded, or give Guard(baseline=…)",
            ) from error
