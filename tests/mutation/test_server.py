"""The mutation check itself, on a small project: what is killed, survives, hangs, or is never reached."""

import json
import subprocess
import sys
from pathlib import Path

MODULE = """\
def countdown(number: int) -> int:
    steps = 0
    while number > 0:
        number -= 1
        steps += 1
    return steps


def unused() -> int:
    return 7
"""
TESTS = """\
from small import countdown


def test_nothing():
    assert countdown(0) == 0


def test_three():
    assert countdown(3) == 3
"""
PROGRAM = """\
import json, sys
from pathlib import Path

import pytest

from tests.mutation.server import Server

found = []
server = Server(
    {"small": Path("small.py")},
    lambda _, mutants: mutants,
    lambda mutant, how, test: found.append((f"{mutant.was} -> {mutant.now}", how, test)),
    patience=0.3,
)
options = ["-q", "-s", "-p", "no:cacheprovider", "-c", "none.ini", "--rootdir=.", "test_small.py"]
code = pytest.main(options, plugins=[server])
Path("found.json").write_text(json.dumps(found))
sys.exit(0 if code == 5 else code)
"""


def judged(folder: Path, tests: str = TESTS) -> dict[str, tuple[str, str]]:
    """How each fault ends."""
    (folder / "small.py").write_text(MODULE)
    (folder / "test_small.py").write_text(tests)
    (folder / "none.ini").write_text("[pytest]\npythonpath = .\n")
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {what: (how, test) for what, how, test in json.loads((folder / "found.json").read_text())}


def test_every_fault_is_judged(tmp_path: Path) -> None:
    """A fork each: the next mutant is planted in a program without faults."""
    found = judged(tmp_path)
    three, nothing = "test_small.py::test_three", "test_small.py::test_nothing"
    assert found["steps += 1 -> pass"] == ("killed", three)
    assert found["steps += 1 -> steps -= 1"] == ("killed", three)
    assert found["number > 0 -> number >= 0"][0] == "killed"
    assert found["return steps -> return None"][0] == "killed"
    assert found["number -= 1 -> pass"] == ("hangs", three), "it counts for ever"
    assert found["number > 0 -> number <= 0"][0] in ("killed", "hangs")
    assert found["7 -> 8"] == ("unreached", "")
    assert {test for _, test in found.values()} <= {three, nothing, ""}


def test_what_no_test_minds_survives(tmp_path: Path) -> None:
    """A test that runs a line need not look at what it does."""
    found = judged(tmp_path, "from small import countdown\n\n\ndef test_it():\n    countdown(3)\n")
    assert found["steps += 1 -> pass"] == ("survived", "")
    assert found["return steps -> return None"] == ("survived", "")
