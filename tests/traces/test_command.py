"""`python -m asyncdispatch what-if`."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncdispatch import DispatcherConfig, cli
from tests.shell import START
from tests.traces.test_what_if import bursts, run

pytestmark = pytest.mark.looptime(start=START)


async def test_it_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With more seats nobody waits for one; what is not given stays."""
    path = tmp_path / "trace.gz"
    await run(path, bursts, DispatcherConfig(max_in_flight=1, breaker=None, drain_timeout=1_000.0))
    assert (
        cli.main(["what-if", str(path), "--workers", "300", "--capacity", "5000", "--aging", "5", "--qps", "1e6"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    waits = next(line for line in lines if line.startswith("flow b")).split()
    before, after = float(waits[5]), float(waits[7])
    assert before > 10 * after


async def test_what_is_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2: no file, no trace, a value that can't be meant."""
    path = tmp_path / "trace"
    await run(path, bursts, DispatcherConfig())
    (tmp_path / "other").write_text("hello\n")
    for arguments, told in (
        ([str(tmp_path / "none")], "No such file"),
        ([str(tmp_path / "other")], "line 1: there is no header"),
        ([str(path), "--aging", "-1"], "aging=-1.0"),
    ):
        assert cli.main(["what-if", *arguments]) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["what-if", str(path), "--workers", "0"])


async def test_a_line_that_was_cut_off_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace"
    await run(path, bursts, DispatcherConfig())
    with path.open("a") as file:
        file.write('["tick"')
    assert cli.main(["what-if", str(path)]) == 0
    assert "was cut off" in capsys.readouterr().err
