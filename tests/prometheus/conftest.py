"""A real Prometheus: Debian's `prometheus` package has the server and promtool.

`make prometheus` runs these tests; elsewhere they are not collected. Nothing here is ever skipped: without the programs
each test fails, and says how to get them.
"""

import inspect
import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real time: another process's clock can't be told."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.prometheus)
            if inspect.iscoroutinefunction(getattr(item, "function", None)):
                item.add_marker(pytest.mark.asyncio)


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not there: apt-get install --no-install-recommends prometheus", pytrace=False)
    return found


@pytest.fixture(scope="session")
def promtool() -> str:
    return program("promtool")


@pytest.fixture(scope="session")
def prometheus() -> str:
    return program("prometheus")


@pytest.fixture(scope="session")
def deployed() -> Path:
    """What is shipped for Prometheus."""
    return ROOT / "deploy" / "prometheus"


@pytest.fixture(scope="session")
def rules(deployed: Path) -> str:
    """The rules as they are shipped."""
    return (deployed / "asyncdispatch.rules.yml").read_text(encoding="utf-8")
