"""The pytest plugin's control plane, in a project of its own."""

from pathlib import Path

import pytest

from asyncdispatch.testing.controlplane.binaries import find_programs
from tests.kit.test_plugin import project

pytest_plugins = ["pytester"]

TESTS = """
async def test_one(control_plane):
    await control_plane.add_namespace("mine")
    async with Cluster.connect(control_plane.kubeconfig("admin")) as cluster, cluster_dispatcher() as dispatcher:
        made = await dispatcher.run(cluster.create({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "mine"},
        }))
    assert made["metadata"]["uid"]

async def test_two(control_plane):
    answer = await control_plane.request("GET", "/api/v1/namespaces/mine/configmaps/c")
    assert answer.status == 200

def cluster_dispatcher():
    from asyncdispatch import Dispatcher
    return Dispatcher()
"""


@pytest.fixture(scope="module")
def programs() -> Path:
    """Where they are: looked up before a project gets a home of its own, in which nothing is built."""
    return find_programs()["etcd"].parent


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_a_control_plane_for_a_whole_run(
    programs: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Real, in real time, and shared by the tests of the run."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(programs))
    tests = TESTS if mode == "auto" else TESTS.replace("async def", "@pytest.mark.asyncio\nasync def")
    project(pytester, tests, mode=mode).assert_outcomes(passed=2)
