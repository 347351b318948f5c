"""The benchmarks that need a real control plane run there, and print what they promise. Nothing looks at a clock."""

import json
import re

import pytest

from benchmarks.__main__ import run
from benchmarks.harness import TINY


@pytest.mark.parametrize(("name", "figures"), [("P15", 4), ("P16", 2)])
def test_prints_its_figures_then_one_line(name, figures, tmp_path, capsys):
    output = tmp_path / "results.json"
    run([name], TINY, output)
    printed = capsys.readouterr().out
    assert re.search(rf"^{name} ratio=\d+(\.\d\d)? goal(<=|>=)\d\.\d\d (ok|short)$", printed, re.MULTILINE)
    results = json.loads(output.read_text(encoding="utf-8"))
    assert printed.count(f"{name} | ") == len(results["figures"]) == figures
