"""The programs in examples/ do what they say, on an API server of their own and by a kubeconfig."""

import asyncio
import contextlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import aiohttp
import kopf
import pytest

from asyncdispatch import Dispatcher, DispatcherConfig
from asyncdispatch.kubernetes import Cluster
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


def add_pod(server, name, scheduler="asyncdispatch", cpu="10m", **spec):
    container = {"name": "main", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    spec = {"schedulerName": scheduler, "containers": [container], **spec}
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


# -- scheduler --------------------------------------------------------------------------------------------------------


async def until(condition):
    """Wait until `condition()` holds, in virtual time."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)


def add_room(server, name, cpu="2", **spec):
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"name": name}}, "spec": spec}
    server.create({**node, "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "10"}}})


def add_class(server, name, value, **more):
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    server.create({**head, "value": value, **more})


@contextlib.asynccontextmanager
async def scheduling(server, **config):
    """The example scheduler at work, and its module; what it was given is carried out in the end."""
    module = load("scheduler")
    async with server.api_client() as api_client, Dispatcher(DispatcherConfig(**config)) as dispatcher:
        task = asyncio.ensure_future(module.Scheduler(Cluster(api_client), dispatcher).run())
        yield module
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("quantity", "thousandths"),
    [("1", 1000), ("250m", 250), ("0.5", 500), ("2k", 2_000_000), ("1Gi", 2**30 * 1000), ("1e3", 1_000_000), ("1u", 0)],
)
def test_scheduler_reads_quantities(quantity, thousandths) -> None:
    assert load("scheduler").amount(quantity) == thousandths


def test_scheduler_counts_what_a_pod_takes() -> None:
    """Its containers together, or the greediest of those that run before them; its overhead; and one Pod."""

    def container(cpu):
        return {"resources": {"requests": {"cpu": cpu}}}

    spec = {
        "containers": [container("1"), container("500m"), {}],
        "initContainers": [container("1700m"), container("1")],
    }
    takes = load("scheduler").requests_of({"spec": {**spec, "overhead": {"cpu": "100m", "memory": "1"}}})
    assert takes == {"cpu": 1800, "memory": 1000, "pods": 1000}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k"}, False),
        ({"key": "j", "operator": "Exists"}, False),
    ],
)
def test_scheduler_knows_what_is_tolerated(toleration, tolerated) -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert load("scheduler").tolerates({"spec": {"tolerations": [toleration]}}, taint) is tolerated


@pytest.mark.looptime
@pytest.mark.parametrize("leader_elect", [False, True])
async def test_scheduler_on_its_own_server(leader_elect, capsys) -> None:
    """All is where it should be: seven Pods have nodes, one small one made room, one fits nowhere."""
    assert await load("scheduler").main(None, None, leader_elect) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "nodes are available" in line] == ["huge"]
    assert sum(line.startswith("small-") for line in lines) == 5


@pytest.mark.looptime
async def test_scheduler_tries_a_refused_bind_again(server) -> None:
    """Its room is free again at once; the Pod itself waits a moment."""
    server.fail(status=403, verb="bind", when=lambda record: record.name == "first")
    add_room(server, "a", cpu="1")
    add_pod(server, "first", cpu="1")
    async with scheduling(server):
        await until(lambda: [record for record in server.audit if record.verb == "bind" and record.answered])
        add_pod(server, "second", cpu="1")
        await until(lambda: node_of(server, "second") == "a")
        assert node_of(server, "first") is None


@pytest.mark.looptime
async def test_scheduler_settles_doubts_before_it_gives_the_room_away(server) -> None:
    """The answer to a bind is lost, though it was done: the Pod has its node, and nobody else gets that room."""
    server.drop(applied=True, verb="bind")
    add_room(server, "a", cpu="1")
    add_pod(server, "first", cpu="1")
    add_pod(server, "second", cpu="1")
    async with scheduling(server):
        await until(lambda: server.get("Pod", "second").get("status", {}).get("conditions"))
    assert (node_of(server, "first"), node_of(server, "second")) == ("a", None)
    assert [record.name for record in server.audit if record.verb == "bind"] == ["first"]


@pytest.mark.looptime
async def test_scheduler_calls_back_a_bind_for_a_more_urgent_pod(server) -> None:
    """It is only on its way: nobody has to be evicted."""
    add_class(server, "urgent", 1000)
    add_room(server, "a", cpu="1")
    server.delay(30, verb="bind", when=lambda record: record.name == "slow")
    add_pod(server, "slow", cpu="1")
    async with scheduling(server):
        await until(lambda: any(record.verb == "bind" for record in server.audit))
        add_pod(server, "urgent", cpu="1", priorityClassName="urgent")
        await until(lambda: node_of(server, "urgent") == "a")
    assert not [record for record in server.audit if record.verb == "evict"]


@pytest.mark.looptime
@pytest.mark.parametrize("policy", ["Never", "PreemptLowerPriority"])
async def test_scheduler_preempts_only_who_may(server, policy) -> None:
    add_class(server, "urgent", 1000, preemptionPolicy=policy)
    add_room(server, "a", cpu="1")
    add_pod(server, "first", cpu="1")
    async with scheduling(server):
        await until(lambda: node_of(server, "first") == "a")
        add_pod(server, "urgent", cpu="1", priorityClassName="urgent")
        await until(lambda: server.get("Pod", "urgent").get("status", {}).get("conditions"))
    dying = "deletionTimestamp" in server.get("Pod", "first")["metadata"]
    nominated = server.get("Pod", "urgent")["status"].get("nominatedNodeName")
    assert (dying, nominated) == ((False, None) if policy == "Never" else (True, "a"))


@pytest.mark.looptime
async def test_scheduler_keeps_the_room_of_victims_for_whom_they_go(server) -> None:
    """A Pod that is less urgent, and would fit into what is free meanwhile, does not get it."""
    add_class(server, "urgent", 1000)
    add_room(server, "a", cpu="2")
    add_pod(server, "first", cpu="1")
    async with scheduling(server):
        await until(lambda: node_of(server, "first") == "a")
        add_pod(server, "urgent", cpu="2", priorityClassName="urgent")
        await until(lambda: server.get("Pod", "urgent").get("status", {}).get("nominatedNodeName") == "a")
        add_pod(server, "thief", cpu="1")
        await until(lambda: server.get("Pod", "thief").get("status", {}).get("conditions"))
        server.finish("Pod", "first")
        await until(lambda: node_of(server, "urgent") == "a")
    assert node_of(server, "thief") is None


@pytest.mark.looptime
async def test_scheduler_does_not_ask_more_to_go_than_it_must(server) -> None:
    """While victims take their time to end, nobody else has to go; and once they have, nobody waits for a timer."""
    add_class(server, "urgent", 1000)
    for name in ("a", "b"):
        add_room(server, name, cpu="1")
        add_pod(server, f"on-{name}", cpu="1")
    async with scheduling(server):
        await until(lambda: node_of(server, "on-a") and node_of(server, "on-b"))
        add_pod(server, "urgent", cpu="1", priorityClassName="urgent")
        await until(lambda: any(record.verb == "evict" for record in server.audit))
        add_class(server, "lowest", -10)
        add_pod(server, "on-c", scheduler="default-scheduler", cpu="1", priorityClassName="lowest")
        server.bind("on-c", "c")
        add_room(server, "c", cpu="1")  # a better choice, but it comes too late
        await asyncio.sleep(30)  # by now the timer goes every ten seconds
        (victim,) = [record.name for record in server.audit if record.verb == "evict"]
        await asyncio.sleep(1)
        server.finish("Pod", victim)
        await asyncio.sleep(1)
        assert node_of(server, "urgent") == victim.removeprefix("on-")


@pytest.mark.looptime
async def test_scheduler_lives_with_a_full_dispatcher(server) -> None:
    """It is told when to come again, and does."""
    server.latency = 0.05
    add_room(server, "a", cpu="100")
    add_room(server, "b", cpu="100")
    for number in range(20):
        add_pod(server, f"p{number}")
    async with scheduling(server, capacity=4):
        await until(lambda: all(node_of(server, f"p{number}") for number in range(20)))


@pytest.mark.looptime
async def test_scheduler_heeds_nodes_as_they_come_and_go(server) -> None:
    """A cordoned node takes nobody, nor does one that is gone; a new one takes who waits."""
    add_room(server, "cordoned", unschedulable=True)
    add_room(server, "gone")
    add_pod(server, "first", cpu="1")
    async with scheduling(server):
        await until(lambda: node_of(server, "first") == "gone")
        server.delete("Node", "gone")
        add_pod(server, "p", cpu="1")
        await until(lambda: server.get("Pod", "p").get("status", {}).get("conditions"))
        assert node_of(server, "p") is None
        add_room(server, "new")
        await until(lambda: node_of(server, "p") == "new")


@pytest.mark.looptime
async def test_scheduler_leaves_alone_what_is_not_its_own(server) -> None:
    """Another scheduler's Pods take their room all the same; a gate is waited for."""
    add_room(server, "a", cpu="1")
    add_pod(server, "theirs", scheduler="default-scheduler", cpu="500m")
    add_pod(server, "gated", cpu="500m", schedulingGates=[{"name": "example.com/g"}])
    server.bind("theirs", "a")
    async with scheduling(server):
        add_pod(server, "big", cpu="600m")
        await until(lambda: server.get("Pod", "big").get("status", {}).get("conditions"))
        assert not any(record.verb == "bind" for record in server.audit)
        server.patch_object("Pod", {"spec": {"schedulingGates": None}}, "gated")
        await until(lambda: node_of(server, "gated") == "a")
    assert node_of(server, "big") is None


# -- extender ---------------------------------------------------------------------------------------------------------


async def test_extender_on_its_own_server(capsys) -> None:
    """Four Pods are bound; of the fifth, which is another by now, it says why not."""
    assert await load("extender").main(None, None, 0) == 0
    out = capsys.readouterr().out
    assert out.count("bound to a") == 4
    assert "name is now held by" in out


async def test_extender_that_is_asked_twice_binds_once(server) -> None:
    """Who did not hear the answer and asks again is told the outcome of the first."""
    module, heard = load("extender"), asyncio.Event()
    server.hook(lambda record: heard.set(), verb="bind")
    meta = add_pod(server, "p")["metadata"]
    args = {"PodName": "p", "PodNamespace": "default", "PodUID": meta["uid"], "Node": "a"}
    server.latency = 0.05
    async with (
        server.api_client() as api_client,
        Dispatcher() as dispatcher,
        module.serving(Cluster(api_client), dispatcher, 0) as url,
        aiohttp.ClientSession(url) as session,
    ):
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(session.post("/bind", json=args))
            await heard.wait()
            second = tasks.create_task(session.post("/bind", json=args))
        assert [await answer.result().json() for answer in (first, second)] == [{"Error": ""}] * 2
    assert [record.verb for record in server.audit if record.kind == "Pod"] == ["bind"]


# -- kopf_operator ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def operator() -> ModuleType:
    """Loaded once: kopf keeps the handlers of a program in a registry of its own."""
    return load("kopf_operator")


async def test_operator_on_its_own_server(operator, monkeypatch) -> None:
    """Every Website has its page, whatever the server's day is like."""
    monkeypatch.setenv("KUBECONFIG", "")
    assert await operator.main() == 0


async def test_operator_says_what_it_could_not_do(operator, server) -> None:
    """kopf is asked to try again; a page that is there is brought up to date."""
    meta = {"name": "w", "namespace": "default", "uid": "u"}
    body = {"apiVersion": "example.com/v1", "kind": "Website", "metadata": meta}
    async with server.api_client() as api_client, Dispatcher() as dispatcher:
        memo = kopf.Memo(cluster=Cluster(api_client), dispatcher=dispatcher)
        website = {"name": "w", "namespace": "default", "uid": "u", "body": body, "memo": memo}
        server.fail(status=403, verb="create")
        with pytest.raises(kopf.TemporaryError, match="403"):
            await operator.page(**website, spec={"title": "one"})
        assert await operator.page(**website, spec={"title": "one"}) == {"ready": True}
        assert page_of(server, "w") == "<h1>one</h1>"
        assert await operator.page(**website, spec={"title": "two"}) == {"ready": True}
        assert page_of(server, "w") == "<h1>two</h1>"


@pytest.mark.parametrize("name", ["scheduler", "extender"])
def test_others_as_programs(name, monkeypatch, capsys) -> None:
    """The last line says how it went, and so does the exit code."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    source = (EXAMPLES / f"{name}.py").read_text()
    scope = {"__name__": "__main__", "__doc__": "A program."}
    with pytest.raises(SystemExit) as exit_:
        exec(compile(source, f"{name}.py", "exec"), scope)
    assert not exit_.value.code
    assert capsys.readouterr().out.splitlines()[-1].startswith("done, ")
