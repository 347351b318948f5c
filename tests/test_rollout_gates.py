"""Feature gates: parsed, staged, frozen, and unknown names refused."""

from __future__ import annotations

import pytest

from asyncdispatch import ConfigurationError
from asyncdispatch.rollout import ASYNC_API_CALLS, KNOWN_GATES, FeatureGates, Gate, Stage

OWN = (
    *KNOWN_GATES,
    Gate("Grown", True, Stage.GA),
    Gate("Young", False, Stage.ALPHA, "tries something"),
    Gate("Old", True, Stage.DEPRECATED),
)


def test_the_gate_of_this_library_is_beta_and_off():
    gates = FeatureGates()
    assert dict(gates) == {ASYNC_API_CALLS: False}
    (gate,) = gates.gates
    assert (gate.stage, gate.default, str(gate)) == (Stage.BETA, False, "AsyncAPICalls (beta, default false)")


@pytest.mark.parametrize("word", ["true", "True", "TRUE", "t", "1", " true "])
@pytest.mark.parametrize("spacing", ["{}", " {} ,", ",{}"])
def test_a_string_turns_it_on(word: str, spacing: str):
    assert FeatureGates(spacing.format(f"AsyncAPICalls={word}"))[ASYNC_API_CALLS]


def test_a_string_a_mapping_and_the_environment_say_the_same():
    text = "AsyncAPICalls=true,Young=1,Old=false"
    gates = FeatureGates(text, known=OWN)
    assert gates == FeatureGates({"AsyncAPICalls": True, "Young": "t", "Old": False}, known=OWN)
    assert gates == FeatureGates.from_environment("GATES", environ={"GATES": text}, known=OWN)
    assert str(gates) == "AsyncAPICalls=true,Grown=true,Young=true,Old=false"
    assert FeatureGates(str(gates), known=OWN) == gates
    assert FeatureGates(gates, known=OWN) == gates
    assert hash(FeatureGates(gates, known=OWN)) == hash(gates)
    assert repr(FeatureGates()) == "FeatureGates('AsyncAPICalls=false')"


def test_the_environment_may_say_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ASYNCDISPATCH_FEATURE_GATES", raising=False)
    assert FeatureGates.from_environment() == FeatureGates()
    monkeypatch.setenv("ASYNCDISPATCH_FEATURE_GATES", "AsyncAPICalls=true")
    assert FeatureGates.from_environment()["AsyncAPICalls"] is True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "AsyncApiCalls=true",
            r"'AsyncApiCalls': is not known; the known ones are AsyncAPICalls \(beta, default false\)",
        ),
        ({"Nope": True}, "'Nope': is not known"),
        ("AsyncAPICalls=yes", "AsyncAPICalls='yes': must be true or false"),
        ("AsyncAPICalls=", "must be true or false"),
        ({"AsyncAPICalls": 1}, "must be true or false"),
        ("AsyncAPICalls", "must say AsyncAPICalls=true or"),
        ("AsyncAPICalls=true,AsyncAPICalls=false", "given twice"),
        ("Grown=false", "is GA and can't be turned off"),
        (["AsyncAPICalls=true"], "must be a string such as"),
        (None, "must be a string such as"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: object, message: str):
    with pytest.raises(ConfigurationError, match=message):
        FeatureGates(given, known=OWN if "Grown" in str(given) else KNOWN_GATES)  # type: ignore[arg-type]


def test_asking_for_an_unknown_gate_is_an_error_too():
    """A misspelling must not read as off."""
    gates = FeatureGates()
    with pytest.raises(ConfigurationError, match="is not known"):
        gates["AsyncApiCalls"]
    with pytest.raises(ConfigurationError, match="is not known"):
        gates.get("AsyncApiCalls")
    assert "AsyncApiCalls" not in gates
    assert len(gates) == 1


def test_gates_are_frozen():
    gates = FeatureGates()
    with pytest.raises(TypeError):
        gates["AsyncAPICalls"] = True  # type: ignore[index]
    with pytest.raises(AttributeError):
        gates.extra = True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gate("", True, Stage.BETA), "Gate.name"),
        (lambda: Gate("a=b", True, Stage.BETA), "Gate.name"),
        (lambda: Gate("A", None, Stage.BETA), "Gate.default"),  # type: ignore[arg-type]
        (lambda: Gate("A", True, "beta"), "Gate.stage"),  # type: ignore[arg-type]
        (lambda: Gate("A", False, Stage.GA), "is GA, so it is on"),
        (lambda: FeatureGates(known=(*KNOWN_GATES, *KNOWN_GATES)), "is there twice"),
        (lambda: FeatureGates(known=("AsyncAPICalls",)), "must be Gates"),  # type: ignore[arg-type]
    ],
    ids=range(7),
)
def test_a_gate_that_makes_no_sense_is_refused(make: object, message: str):
    with pytest.raises(ConfigurationError, match=message):
        make()  # type: ignore[operator]
