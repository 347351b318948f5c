"""Law L16: the same inputs at the same times give the same decisions, in any process."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.operations import play

ROOT = Path(__file__).parents[2]
SEEDS = range(40)


def trace(seed: int) -> str:
    """Every event of a run, in words: inputs, starts, outcomes and their times."""
    return "\n".join(map(repr, play(seed).history.events))


def digest() -> str:
    """One hash of many runs."""
    whole = hashlib.sha256()
    for seed in SEEDS:
        whole.update(trace(seed).encode())
    return whole.hexdigest()


@pytest.mark.parametrize("seed", range(5))
def test_a_run_can_be_repeated(seed: int) -> None:
    """L16: twice in one process, where every object has another identity."""
    first = trace(seed)
    assert "Settled" in first
    assert trace(seed) == first


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_other_hashes_change_nothing(hash_seed: str) -> None:
    """L16: no set is iterated and no hash ordered: another process, with other hashes of strings, decides the same."""
    program = "from tests.core.test_replay import digest; print(digest())"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == digest()
