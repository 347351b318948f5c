"""promtool finds nothing to complain of, and the rules fire on what they are for."""

import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from asyncdispatch import Dispatcher, DispatcherConfig, FlowQuota
from asyncdispatch.rollout import Baseline, Guard, GuardPolicy
from tests.shell import after, call, raising


def run(*command: str, cwd: Path, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, cwd=cwd, input=given, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "command",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "asyncdispatch.rules.yml"),
        ("test", "rules", "asyncdispatch.test.yml"),
    ],
    ids=" ".join,
)
def test_rules(promtool: str, deployed: Path, command: tuple[str, ...]) -> None:
    done = run(promtool, *command, cwd=deployed)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("asyncdispatch_pressure", "asyncdispatch_pressures"),
        ("> 0.05", "> 0.5"),
        ("failed|expired", "overwritten|expired"),
        ("for: 5m", "for: 3m"),
    ],
)
def test_a_mistake_in_the_rules_is_found(promtool: str, deployed: Path, tmp_path: Path, right: str, wrong: str) -> None:
    """Or the tests of the rules would hold nothing."""
    for file in deployed.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    rules = tmp_path / "asyncdispatch.rules.yml"
    assert right in rules.read_text()
    rules.write_text(rules.read_text().replace(right, wrong))
    assert run(promtool, "test", "rules", "asyncdispatch.test.yml", cwd=tmp_path).returncode != 0


async def test_metrics(promtool: str, tmp_path: Path) -> None:
    """What a dispatcher shows parses, and is named as Prometheus asks."""
    registry = CollectorRegistry()
    guard = Guard(GuardPolicy(half_open=None), baseline=None)
    config = DispatcherConfig(flows={"a": FlowQuota(max_in_flight=1)})
    assert isinstance(guard.baseline, Baseline)
    async with Dispatcher(config, registry=registry, observers=(guard,)) as dispatcher:
        handles = [dispatcher.submit(call(after(0), f"p{n}", flow="a")) for n in range(10)]
        handles.append(dispatcher.submit(call(raising(ValueError()), "bad", call_type='a "quoted" \\ type\n')))
        for handle in handles:
            await handle.outcome()
        text = generate_latest(registry)
    done = run(promtool, "check", "metrics", cwd=tmp_path, given=text)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert not done.stdout + done.stderr, "promtool lints"
