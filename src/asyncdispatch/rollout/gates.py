"""Feature gates, as Kubernetes' components have them: named, staged, each with a default, unknown names refused."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from asyncdispatch.errors import ConfigurationError

__all__ = ["ASYNC_API_CALLS", "ENVIRONMENT_VARIABLE", "KNOWN_GATES", "FeatureGates", "Gate", "Stage"]

ENVIRONMENT_VARIABLE = "ASYNCDISPATCH_FEATURE_GATES"


class Stage(enum.Enum):
    """How far a feature has come. A gate that is GA can't be turned off any more."""

    ALPHA = "alpha"
    BETA = "beta"
    GA = "GA"
    DEPRECATED = "deprecated"


@dataclass(frozen=True, slots=True)
class Gate:
    """One switch: its name, its default, how far the feature is, and what it does."""

    name: str
    default: bool
    stage: Stage
    what: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ConfigurationError("Gate.name", self.name, "must be a name of letters and digits")
        if not isinstance(self.default, bool):
            raise ConfigurationError("Gate.default", self.default, "must be True or False")
        if not isinstance(self.stage, Stage):
            raise ConfigurationError("Gate.stage", self.stage, "must be a Stage")
        if self.stage is Stage.GA and not self.default:
            raise ConfigurationError("Gate.default", self.default, f"{self.name} is GA, so it is on")

    def __str__(self) -> str:
        return f"{self.name} ({self.stage.value}, default {_word(self.default)})"


ASYNC_API_CALLS = "AsyncAPICalls"

KNOWN_GATES = (
    # As upstream's SchedulerAsyncAPICalls: beta, and off unless it is asked for.
    Gate(
        ASYNC_API_CALLS, False, Stage.BETA, "calls are dispatched asynchronously; off: as if there were no dispatcher"
    ),
)

_WORDS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class FeatureGates(Mapping[str, bool]):
    """What is on and what is off; frozen. A mapping of every known gate to its value.

    `given` is a string ("AsyncAPICalls=true,Other=false") or a mapping of names to booleans or such words. What is
    not given has its default. `known` are the gates there are: add your own to `KNOWN_GATES`. Raises
    `ConfigurationError` for an unknown name, a word that is no boolean, a name given twice, or a gate that is GA and
    should be off.
    """

    __slots__ = ("_gates", "_values")

    def __init__(self, given: str | Mapping[str, bool | str] = "", *, known: Iterable[Gate] = KNOWN_GATES) -> None:
        gates: dict[str, Gate] = {}
        for gate in known:
            if not isinstance(gate, Gate):
                raise ConfigurationError("known", gate, "must be Gates")
            if gate.name in gates:
                raise ConfigurationError("known", gate.name, "is there twice")
            gates[gate.name] = gate
        self._gates = gates
        self._values = {name: gate.default for name, gate in gates.items()}
        for name, value in _pairs(given):
            self._values[name] = self._checked(name, value)

    @classmethod
    def from_environment(
        cls,
        variable: str = ENVIRONMENT_VARIABLE,
        *,
        environ: Mapping[str, str] | None = None,
        known: Iterable[Gate] = KNOWN_GATES,
    ) -> FeatureGates:
        """From an environment variable that holds the string; defaults, if it is not set."""
        return cls((os.environ if environ is None else environ).get(variable, ""), known=known)

    def _checked(self, name: str, value: object) -> bool:
        gate = self._gates.get(name)
        if gate is None:
            known = ", ".join(map(str, self._gates.values())) or "none"
            raise ConfigurationError("feature gate", name, f"is not known; the known ones are {known}")
        on = value if isinstance(value, bool) else _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
        if on is None:
            raise ConfigurationError(f"feature gate {name}", value, "must be true or false")
        if gate.stage is Stage.GA and not on:
            raise ConfigurationError(f"feature gate {name}", value, "is GA and can't be turned off: leave it out")
        return on

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The known gates, with their stages and defaults."""
        return tuple(self._gates.values())

    def __getitem__(self, name: str) -> bool:
        """True if it is on. Raises `ConfigurationError` for an unknown name: a misspelling must not read as off."""
        if name not in self._values:
            self._checked(name, False)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __str__(self) -> str:
        return ",".join(f"{name}={_word(on)}" for name, on in self._values.items())

    def __repr__(self) -> str:
        return f"FeatureGates({str(self)!r})"


def _word(on: bool) -> str:
    return "true" if on else "false"


def _pairs(given: object) -> Iterator[tuple[str, object]]:
    if isinstance(given, Mapping):
        for name, value in given.items():
            yield str(name), value
        return
    if not isinstance(given, str):
        raise ConfigurationError("feature gates", given, 'must be a string such as "AsyncAPICalls=true", or a mapping')
    seen: set[str] = set()
    for part in filter(None, map(str.strip, given.split(","))):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals:
            raise ConfigurationError("feature gates", part, f"must say {name}=true or {name}=false")
        if name in seen:
            raise ConfigurationError("feature gates", given, f"{name} is given twice")
        seen.add(name)
        yield name, value
