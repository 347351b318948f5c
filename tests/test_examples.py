"""The programs in examples/ do what they say, on an API server of their own and by a kubeconfig."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from asyncdispatch.testing import EmbeddedAPIServer

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def server():
    async with EmbeddedAPIServer() as running:
        yield running


@pytest.fixture
def kubeconfig(server, tmp_path) -> Path:
    parts = {
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }
    path = tmp_path / "config"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "here", **parts}))
    return path


def add_pod(server, name, scheduler="asyncdispatch"):
    spec = {"schedulerName": scheduler, "containers": [{"name": "main", "image": "app"}]}
    return server.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def add_node(server, name, **spec):
    server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})


def node_of(server, pod):
    return server.get("Pod", pod, namespace="default")["spec"].get("nodeName")


def test_first_loop_is_short() -> None:
    """It is the first thing that people read."""
    assert len((EXAMPLES / "first_loop.py").read_text().splitlines()) <= 60


async def test_first_loop_on_its_own_server(capsys) -> None:
    """Nine Pods, all bound."""
    assert await load("first_loop").main(None, None) == 0
    assert capsys.readouterr().out.count("succeeded") == 9


async def test_first_loop_by_a_kubeconfig(server, kubeconfig) -> None:
    """It binds the Pods that ask for it, to nodes that take Pods in turn, and no others."""
    add_node(server, "a")
    add_node(server, "b")
    add_node(server, "cordoned", unschedulable=True)
    add_node(server, "tainted", taints=[{"key": "k", "effect": "NoSchedule"}])
    for name in ("p1", "p2", "p3"):
        add_pod(server, name)
    add_pod(server, "other", scheduler="default-scheduler")
    assert await load("first_loop").main(str(kubeconfig), "here") == 0
    assert [node_of(server, name) for name in ("p1", "p2", "p3", "other")] == ["a", "b", "a", None]


async def test_first_loop_tells_what_is_left(server, kubeconfig) -> None:
    """A bind that is refused for good leaves its Pod pending."""
    add_node(server, "a")
    add_pod(server, "p1")
    add_pod(server, "p2")
    server.fail(status=403, verb="bind")
    assert await load("first_loop").main(str(kubeconfig), None) == 1
    assert [node_of(server, name) for name in ("p1", "p2")].count("a") == 1


async def test_first_loop_without_nodes(server, kubeconfig) -> None:
    """It says so, rather than that all is well."""
    add_pod(server, "p1")
    with pytest.raises(SystemExit, match="no node takes Pods"):
        await load("first_loop").main(str(kubeconfig), None)


async def test_first_loop_without_pods(server, kubeconfig) -> None:
    """Nothing is pending, so nothing is left."""
    add_node(server, "a")
    assert await load("first_loop").main(str(kubeconfig), None) == 0


def test_first_loop_as_a_program(monkeypatch, capsys) -> None:
    """Its last line says how it went, and so does its exit code."""
    monkeypatch.setattr(sys, "argv", ["first_loop.py"])
    source = (EXAMPLES / "first_loop.py").read_text()
    with pytest.raises(SystemExit) as exit_:
        exec(compile(source, "first_loop.py", "exec"), {"__name__": "__main__", "__doc__": "A scheduler."})
    assert not exit_.value.code
    assert capsys.readouterr().out.splitlines()[-1] == "done, all pending Pods are bound"
