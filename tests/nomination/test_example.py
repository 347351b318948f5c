"""examples/nominator.py does what it says, on an API server of its own."""

import importlib.util
from pathlib import Path

PATH = Path(__file__).parents[2] / "examples" / "nominator.py"


async def test_the_planner(capsys) -> None:
    """Six gated Pods go where it wanted them; the one that fits nowhere waits for a node that it fits. The nominator's
    account writes statuses, the gate's owner lifts gates."""
    spec = importlib.util.spec_from_file_location("nominator_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert await module.main() == 0
    said = capsys.readouterr().out
    assert "job-0 on small, job-1 on middle" in said
    assert "late on new" in said
    assert "hit rate: 100%" in said
    wrote = [line for line in said.splitlines() if " wrote " in line]
    assert wrote == ["gate-owner wrote Pod", "nominator wrote Pod/status"]
