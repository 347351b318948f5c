"""The programs in examples/ do what they say, on an API server of their own and by a kubeconfig."""

import asyncio
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


# -- controller -------------------------------------------------------------------------------------------------------


def add_website(server, name, title):
    meta = {"name": name, "namespace": "default"}
    server.create({"apiVersion": "example.com/v1", "kind": "Website", "metadata": meta, "spec": {"title": title}})


def page_of(server, name):
    return server.get("ConfigMap", name, namespace="default")["data"]["index.html"]


async def test_controller_on_its_own_server(capsys) -> None:
    """Three Websites, all up to date, whatever the server's day is like."""
    assert await load("controller").main(None, None, False) == 0
    assert capsys.readouterr().out.count("up to date") == 3


async def test_controller_by_a_kubeconfig(server, kubeconfig) -> None:
    """It creates what is missing, mends what differs, leaves alone what is right, and writes the status."""
    server.register("example.com/v1", "Website", "websites")
    for name in ("new", "old", "same"):
        add_website(server, name, "title")
    for name, text in (("old", "<h1>other</h1>"), ("same", "<h1>title</h1>")):
        meta = {"name": name, "namespace": "default"}
        server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"index.html": text}})
    assert await load("controller").main(str(kubeconfig), "here", False) == 0
    assert {page_of(server, name) for name in ("new", "old", "same")} == {"<h1>title</h1>"}
    assert server.get("Website", "new", namespace="default")["status"] == {"observedGeneration": 1}
    assert sorted(r.name for r in server.audit if r.kind == "ConfigMap" and r.applied) == ["new", "old"]


async def test_controller_tells_what_failed(server, kubeconfig, capsys) -> None:
    """The client's own error, for the one Website that it is about."""
    server.register("example.com/v1", "Website", "websites")
    add_website(server, "a", "title")
    add_website(server, "b", "title")
    server.fail(status=403, times=1, verb="create")
    assert await load("controller").main(str(kubeconfig), None, False) == 1
    assert "(403)" in capsys.readouterr().out


async def test_controller_follows_changes(server, kubeconfig) -> None:
    """A Website that comes later has its page too; its own status patch is no change to follow."""
    server.register("example.com/v1", "Website", "websites")
    done = asyncio.Event()
    server.hook(lambda record: done.set(), path="*/websites/late/status")
    server.hook(lambda record: add_website(server, "late", "x"), times=1, verb="watch")
    task = asyncio.ensure_future(load("controller").main(str(kubeconfig), None, True))
    await done.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert page_of(server, "late") == "<h1>x</h1>"


def test_controller_as_a_program(monkeypatch, capsys) -> None:
    """Its last line says how it went, and so does its exit code."""
    monkeypatch.setattr(sys, "argv", ["controller.py"])
    source = (EXAMPLES / "controller.py").read_text()
    with pytest.raises(SystemExit) as exit_:
        exec(compile(source, "controller.py", "exec"), {"__name__": "__main__", "__doc__": "A controller."})
    assert not exit_.value.code
    assert capsys.readouterr().out.splitlines()[-1] == "done, all Websites are up to date"
