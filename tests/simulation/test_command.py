"""`python -m asyncdispatch.simulation`."""

from __future__ import annotations

from typing import Any

import pytest

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.simulation import SCENARIOS, Server, __main__
from asyncdispatch.simulation.calls import SimulatedCall
from asyncdispatch.simulation.history import State


def test_it_prints_what_it_has_played_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--calls", "6e2", "--processes", "1", "--scenario", "churn", "--scenario", "tight"]) == 0
    printed = capsys.readouterr().out
    for head in ("calls", "outcomes", "faults", "law checks", "violations  0", "speed"):
        assert f"\n{head}" in f"\n{printed}"


def test_a_violation_is_printed_with_its_seed_and_a_small_history(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, the options that play the smallest one again, and the story of the object."""
    honest = Server.refusal

    def binds_again(server: Server, call: SimulatedCall, before: State | None) -> Any:
        ours = call.verb == "bind" and before is not None and call.target.uid == before[0]
        return None if ours else honest(server, call, before)

    monkeypatch.setattr(Server, "refusal", binds_again)
    assert __main__.main(["--calls", "700", "--processes", "1", "--scenario", "rivals", "--seed", "3"]) == 1
    printed = capsys.readouterr().out
    assert "violations  1" in printed
    assert "scenario rivals, seed 3: 7" in printed
    again = next(line for line in printed.splitlines() if line.startswith("The smallest found"))
    assert "--scenario rivals --seed " in again
    assert "--set faults=none" in again
    assert "is sent: bind" in printed
    options = again.split(": ", 1)[1].split()
    assert __main__.main(options) == 1


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--calls", "none"], ["--scenario", "peace"], ["--set", "cats=3"], ["--set", "claims=7"]):
        with pytest.raises(SystemExit) as exit_:
            __main__.main(options)
        assert exit_.value.code == 2
    assert "claims" in capsys.readouterr().err


def test_settings() -> None:
    storms = SCENARIOS["storms"]
    settings = [("pods", "7"), ("claims", "0"), ("rivals", "true"), ("faults", "lost"), ("troubles", "none")]
    changed = __main__.changed(storms, settings)
    assert (changed.pods, changed.claims, changed.rivals) == (7, 0.0, True)
    assert dict(changed.faults) == {"lost": storms.faults["lost"]}
    assert not changed.troubles
    for bad in (("pods", "many"), ("faults", "war"), ("config", "x")):
        with pytest.raises(ConfigurationError, match=bad[0]):
            __main__.changed(storms, [bad])
