"""The benchmarks run and print what they promise; the peers do what they claim. Nothing here looks at a clock."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from asyncdispatch import Attempt
from benchmarks.__main__ import BENCHMARKS, main, run
from benchmarks.harness import TINY, Figure, Goal, Rounds, interleave, worst
from benchmarks.peers import (
    LostResult,
    Peer,
    aiojobs_scheduler,
    aiometer_run_all,
    dispatcher,
    queue_and_workers,
    tasks_and_semaphore,
)
from benchmarks.virtual import percentile
from benchmarks.workloads import EIGHT_LEVELS, FLOWS, ONE, Row, Shape, Work

PEERS: dict[str, Peer] = {
    "dispatcher": dispatcher,
    "PQ+W": queue_and_workers,
    "create_task+Semaphore": tasks_and_semaphore,
    "aiojobs": aiojobs_scheduler,
    "aiometer": aiometer_run_all,
}
SUMMARY = re.compile(r"^(P\d+) [a-z_]+=-?\d+(\.\d\d)? goal(<=|>=)\d+(\.\d\d)? (ok|short)$", re.MULTILINE)


ON_A_CONTROL_PLANE = ("P15", "P16")  # see tests/e2e/test_examples_benchmarks.py


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in ON_A_CONTROL_PLANE])
def test_each_benchmark_prints_its_figures_then_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results.json"
    run([name], TINY, output)
    printed = capsys.readouterr().out
    assert [match[0] for match in SUMMARY.findall(printed)] == [name]
    results = json.loads(output.read_text(encoding="utf-8"))
    assert printed.count(f"{name} | ") == len(results["figures"]) > 0
    assert list(results["goals"]) == [name]


@pytest.mark.parametrize("name", ON_A_CONTROL_PLANE)
def test_without_a_control_plane_the_remedy_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not an error, and the others are measured all the same."""
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert list(run([name, "P9"], TINY, tmp_path / "results.json")) == ["P9"]
    assert re.search(rf"^# {name} was not measured: .*make controlplane", capsys.readouterr().out, re.MULTILINE)


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--only", "P99"])
    assert exit_.value.code == 2
    assert "P1, P2" in capsys.readouterr().err


# -- peers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
@pytest.mark.parametrize("shape", [ONE, EIGHT_LEVELS, FLOWS], ids=str)
async def test_a_peer_runs_every_call_once_and_no_more_than_it_may_at_once(peer: Peer, shape: Shape) -> None:
    running, most, ran = 0, 0, 0

    async def counted(_: object = None) -> int:
        nonlocal running, most, ran
        running, ran = running + 1, ran + 1
        most = max(most, running)
        for _ in range(30):  # aiometer lets the loop turn a few times between two starts
            await asyncio.sleep(0)
        running -= 1
        return 1

    warming = 2 * 4
    await peer(Work(counted, shape, shape.rows(40), waves=2, at_once=4))
    assert (ran, most) == (80 + warming, 4)


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
async def test_a_peer_that_loses_results_is_found_out(peer: Peer) -> None:
    async def nothing(_: object = None) -> int:
        return 0

    with pytest.raises(LostResult):
        await peer(Work(nothing, ONE, ONE.rows(5), at_once=2))


def _mixed_rows() -> list[Row]:
    return [(ref, 1_000_000 if i % 2 else 0, flow) for i, (ref, _, flow) in enumerate(ONE.rows(20))]


async def test_the_dispatcher_starts_the_urgent_first() -> None:
    started: list[int] = []

    async def recorded(attempt: Attempt | None = None) -> int:
        assert attempt is not None
        started.append(attempt.call.priority)
        return 1

    await dispatcher(Work(recorded, EIGHT_LEVELS, _mixed_rows(), at_once=1))
    assert started[2:] == [1_000_000] * 10 + [0] * 10


async def test_the_queue_with_workers_starts_the_urgent_first(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    class Recording(asyncio.PriorityQueue[Any]):
        def _get(self) -> Any:
            item = super()._get()
            started.append(-item[0])
            return item

    async def one(_: object = None) -> int:
        return 1

    monkeypatch.setattr(asyncio, "PriorityQueue", Recording)
    await queue_and_workers(Work(one, EIGHT_LEVELS, _mixed_rows(), at_once=1))
    assert started[2:] == [1_000_000] * 10 + [0] * 10


# -- harness ------------------------------------------------------------------------------------------------------


def test_rounds_alternate_and_rotate() -> None:
    order: list[str] = []

    def candidate(name: str, value: float) -> float:
        order.append(name)
        return value

    rounds = interleave({"a": lambda: candidate("a", 3.0), "b": lambda: candidate("b", 2.0)}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert rounds.ratio("a", "b") == 1.5
    assert rounds.difference("a", "b") == 1.0
    assert rounds.drift("a") == 1.0


def test_a_ratio_is_taken_within_rounds() -> None:
    rounds = Rounds({"mine": [1.0, 20.0, 3.0], "peer": [1.0, 10.0, 3.0]})
    assert rounds.ratio("mine", "peer") == 1.0
    assert rounds.drift("peer") == 10.0


def test_a_line_never_contradicts_itself() -> None:
    assert str(Figure("x", "ratio", 1.5049, Goal(1.5))) == "ratio=1.50 goal<=1.50 ok"
    assert str(Figure("x", "ratio", 1.5051, Goal(1.5))) == "ratio=1.51 goal<=1.50 short"
    assert str(Figure("x", "share", 0.94, Goal(0.95, least=True))) == "share=0.94 goal>=0.95 short"
    assert str(Figure("x", "bytes", 338.4, Goal(400))) == "bytes=338 goal<=400 ok"


def test_the_worst_figure_is_the_one_nearest_to_its_own_goal() -> None:
    roomy = Figure("roomy", "ratio", 1.9, Goal(3.0))
    tight = Figure("tight", "ratio", 0.39, Goal(0.4))
    least = Figure("least", "share", 0.97, Goal(0.95, least=True))
    free = Figure("free", "ratio", 99.0)
    assert worst([roomy, tight, least, free]) is least
    assert worst([roomy, tight, free]) is tight


def test_percentile_is_a_value_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 0.99), percentile(values, 1.0), percentile([7.0], 0.99)) == (99.0, 100.0, 7.0)
