"""The control plane for tests: what it promises to those who test on it."""

import asyncio
import os
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest

from asyncdispatch import ConfigurationError, Dispatcher, ObjectRef
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.testing import ControlPlane, ControlPlaneError, Role
from asyncdispatch.testing.controlplane.binaries import DEFAULT_VERSION, assets_folder
from asyncdispatch.testing.controlplane.ports import free_port

GONE_TIMEOUT = 5.0


def pods(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}".rstrip("/")


def alive(pid: int) -> bool:
    """Whether a process of that id exists (one that nobody waited for would count)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ---- serving and access ---------------------------------------------------------------------------------------------


async def test_it_runs_the_version_that_was_asked_for(plane: ControlPlane) -> None:
    """K8S_VERSION, else the default one; binaries of another version would be an error, not a surprise."""
    wanted = os.environ.get("K8S_VERSION") or (plane.version if assets_folder() else DEFAULT_VERSION)
    assert plane.version == wanted


async def test_tls_is_verified(plane: ControlPlane) -> None:
    """Its authority is trusted where it is named, and nowhere else."""
    assert (await plane.request("GET", "/readyz")).status == 200
    async with aiohttp.ClientSession() as anybody:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await anybody.get(f"{plane.url}/readyz")
        trust = ssl.create_default_context(cafile=str(plane.ca_file))
        async with anybody.get(f"{plane.url}/readyz", ssl=trust) as response:
            assert response.status == 200


async def test_roles_are_told_apart(plane: ControlPlane) -> None:
    """The admin may, nobody may not (403), and who can't say who it is is refused (401)."""
    assert (await plane.request("GET", "/api/v1/nodes")).status == 200
    assert (await plane.request("GET", "/api/v1/nodes", role="scheduler")).status == 200
    assert (await plane.request("GET", "/api/v1/nodes", role="nobody")).status == 403
    stranger = {"Authorization": "Bearer made-up"}
    assert (await plane.request("GET", "/api/v1/nodes", headers=stranger)).status == 401
    with pytest.raises(ConfigurationError, match=r"role='boss': is unknown; there are admin, .*nobody, scheduler"):
        plane.token("boss")


async def test_a_role_can_be_a_service_account() -> None:
    """Rights are given to it as to any service account; it can be let in later, and its token refused again."""
    bot = Role("system:serviceaccount:team:bot", ("system:serviceaccounts",))
    late = Role("late")
    async with ControlPlane(roles={"bot": bot}) as own:
        asked = await own.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, role="bot")
        assert asked.body["status"]["userInfo"]["username"] == "system:serviceaccount:team:bot"
        assert "system:serviceaccounts" in asked.body["status"]["userInfo"]["groups"]
        own.add_role("late", late)
        assert (await own.request("GET", "/api", role="late")).status == 401
        own.revoke("bot")
        await own.apiserver.restart()
        assert (await own.request("GET", "/api", role="late")).status == 200
        revoked = {"Authorization": f"Bearer {bot.token}"}
        assert (await own.request("GET", "/api", headers=revoked)).status == 401


async def test_a_kubeconfig_connects_a_cluster(plane: ControlPlane, namespace: str) -> None:
    """`Cluster.connect` takes it as it takes anybody's, and nobody else may read it."""
    await plane.add_pod("p", namespace)
    path = plane.kubeconfig()
    assert path.stat().st_mode & 0o077 == 0
    async with Cluster.connect(path) as cluster, Dispatcher() as dispatcher:
        found = await dispatcher.run(cluster.read(ObjectRef("v1", "Pod", namespace, "p")))
    assert found["metadata"]["name"] == "p"


# ---- the first calls ------------------------------------------------------------------------------------------------


async def test_a_pod_goes_its_way_through_a_dispatcher(plane: ControlPlane, cluster: Cluster, namespace: str) -> None:
    """Created, told unschedulable, nominated, bound and read, each by a call, on a real API server."""
    await plane.add_node(f"{namespace}-node")
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room yet"}
    async with Dispatcher() as dispatcher:
        body = plane.pod_body("p", namespace, scheduler="asyncdispatch")
        pod = await dispatcher.run(cluster.create(body, idempotency_key="e2e-p"))
        told = await dispatcher.run(cluster.patch_status(pod, conditions=[waits], nominated_node=f"{namespace}-node"))
        assert told["status"]["nominatedNodeName"] == f"{namespace}-node"
        await dispatcher.run(cluster.bind(told, f"{namespace}-node", annotations={"by": "test"}))
        bound = await dispatcher.run(cluster.read(pod))
    assert bound["metadata"]["uid"] == pod["metadata"]["uid"]
    assert bound["metadata"]["annotations"]["by"] == "test"
    assert bound["spec"]["nodeName"] == f"{namespace}-node"
    conditions = {condition["type"]: condition["status"] for condition in bound["status"]["conditions"]}
    assert conditions["PodScheduled"] == "True"


async def test_a_deleted_pod_waits_for_its_kubelet(plane: ControlPlane, namespace: str) -> None:
    """A bound Pod stays, terminating, until `end_pod` plays the kubelet."""
    await plane.add_node(f"{namespace}-node")
    await plane.add_pod("p", namespace, nodeName=f"{namespace}-node")
    await plane.ask("DELETE", pods(namespace, "p"))
    dying = await plane.until(pods(namespace, "p"), lambda pod: "deletionTimestamp" in pod["metadata"])
    assert dying["metadata"]["deletionGracePeriodSeconds"] == 30
    gone = asyncio.create_task(plane.until_gone(pods(namespace, "p"), timeout=GONE_TIMEOUT))
    await plane.end_pod("p", namespace)
    await gone
    assert (await plane.request("GET", pods(namespace, "p"))).status == 404


async def test_waiting_says_what_it_waited_for(plane: ControlPlane, namespace: str) -> None:
    """Its error shows the object as it was last, or that there was none; a helper's shows the server's answer."""
    await plane.add_pod("p", namespace)
    with pytest.raises(ControlPlaneError, match=r'pods/p is still .*"phase": "Pending".* after 0.2 s'):
        await plane.until(pods(namespace, "p"), lambda pod: bool(pod["spec"].get("nodeName")), timeout=0.2)
    with pytest.raises(ControlPlaneError, match=r"pods/q is not there after 0.2 s"):
        await plane.until(pods(namespace, "q"), lambda pod: True, timeout=0.2)
    with pytest.raises(ControlPlaneError, match=r"pods/p is still there after 0.2 s"):
        await plane.until_gone(pods(namespace, "p"), timeout=0.2)
    with pytest.raises(ControlPlaneError, match=r'POST .*/pods: 409 pods "p" already exists'):
        await plane.add_pod("p", namespace)


async def test_pages_of_metrics(scheduled: ControlPlane, plane: ControlPlane) -> None:
    """Those of the API server and of the scheduler; of what does not run there are none."""
    assert "\napiserver_request_total{" in await scheduled.metrics()
    assert "\nscheduler_pending_pods{" in await scheduled.metrics("kube-scheduler")
    with pytest.raises(OSError, match="connect"):
        await plane.metrics("kube-scheduler")


async def test_the_scheduler_schedules(scheduled: ControlPlane) -> None:
    """A Pod that fits is bound to the node that fits; one for another scheduler is left alone."""
    await scheduled.add_node("small", cpu="1")
    await scheduled.add_node("large", cpu="16")
    await scheduled.add_node("tainted", cpu="64", taints=[{"key": "k", "effect": "NoSchedule"}])
    await scheduled.add_pod("other", scheduler="asyncdispatch", requests={"cpu": "1m"})
    await scheduled.add_pod("p", requests={"cpu": "8"})
    bound = await scheduled.until(pods("default", "p"), lambda pod: bool(pod["spec"].get("nodeName")))
    assert bound["spec"]["nodeName"] == "large"
    assert "nodeName" not in (await scheduled.pod("other"))["spec"]


# ---- failing and coming back ----------------------------------------------------------------------------------------


async def test_parts_can_be_killed_and_come_back_with_their_data() -> None:
    """kill -9 of each part, and a plain restart of all: same address, same objects, same tokens."""
    async with ControlPlane(scheduler=True) as own:
        await own.add_node("n")
        await own.add_pod("before")
        url, client = own.url, own.api_client()
        own.apiserver.kill()
        assert not own.apiserver.running
        with pytest.raises(aiohttp.ClientConnectionError):
            await own.request("GET", "/readyz")
        own.etcd.kill()
        await own.etcd.start()
        await own.apiserver.start()
        own.scheduler.kill()
        await own.scheduler.start()
        await own.add_pod("after")
        await own.until(pods("default", "after"), lambda pod: pod["spec"].get("nodeName") == "n")
        for part in (own.etcd, own.apiserver, own.scheduler):
            pid = part.pid
            await part.restart()
            assert part.pid != pid
        assert own.url == url
        async with Dispatcher() as dispatcher:
            found = await dispatcher.run(Cluster(client).read(ObjectRef("v1", "Pod", "default", "before")))
        assert found["spec"]["nodeName"] == "n"


async def test_flags_may_change_between_starts() -> None:
    """A flag given replaces the one that is set here."""
    async with ControlPlane(flags={"kube-apiserver": ["--authorization-mode=AlwaysAllow"]}) as own:
        assert (await own.request("GET", "/api/v1/nodes", role="nobody")).status == 200
        own.apiserver.flags.clear()
        await own.apiserver.restart()
        assert (await own.request("GET", "/api/v1/nodes", role="nobody")).status == 403


async def test_compaction_makes_old_versions_unknown() -> None:
    """After it, and a restart of the API server, a watch from before is answered 410."""
    async with ControlPlane() as own:
        first = await own.add_pod("p")
        await own.end_pod("p")
        watch = f"/api/v1/pods?watch=1&timeoutSeconds=5&resourceVersion={first['metadata']['resourceVersion']}"
        assert await own.compact() >= int(first["metadata"]["resourceVersion"])
        await own.apiserver.restart()
        answer = await own.request("GET", watch)
        assert 410 in (answer.status, answer.body.get("object", {}).get("code"))


# ---- ending ---------------------------------------------------------------------------------------------------------


async def test_nothing_is_left_behind() -> None:
    """Neither processes nor files nor a port that answers."""
    async with ControlPlane(scheduler=True) as own:
        pids = [part.pid for part in (own.etcd, own.apiserver, own.scheduler)]
        folder, url, client = own.ca_file.parent, own.url, own.api_client()
        assert folder.is_dir()
    assert not [pid for pid in pids if pid is None or alive(pid)]
    assert not folder.exists()
    assert client.rest_client.pool_manager.closed
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(url, ssl=False)
    with pytest.raises(RuntimeError, match="not running"):
        await own.request("GET", "/readyz")


async def test_a_failed_start_shows_the_log_and_leaves_nothing_running(tmp_path: Path) -> None:
    """The error names the program and the log, and shows its end; of the files only the logs are kept."""
    own = ControlPlane(flags={"kube-apiserver": ["--no-such-flag"]})
    with pytest.raises(ControlPlaneError, match=r"kube-apiserver ended while it started(.|\n)*unknown flag") as caught:
        await own.__aenter__()
    assert not own.etcd.running
    kept = own.apiserver.log.parent
    assert [*kept.parent.iterdir()] == [kept]
    assert str(kept) in caught.value.__notes__[0]
    for log in kept.iterdir():
        log.unlink()
    kept.rmdir()
    kept.parent.rmdir()

    slow = ControlPlane(start_timeout=0.2, logs=tmp_path)
    with pytest.raises(ControlPlaneError, match=r"did not serve within 0.2 s(.|\n)*the end of "):
        await slow.__aenter__()
    assert not slow.etcd.running
    assert not slow.apiserver.running
    assert (tmp_path / "etcd.log").exists()


async def test_a_cancelled_start_leaves_nothing() -> None:
    """Wherever it is cancelled."""
    own = ControlPlane()
    starting = asyncio.create_task(own.__aenter__())
    async with asyncio.timeout(30):
        while not (hasattr(own, "apiserver") and own.apiserver.running):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    pids = [own.etcd.pid, own.apiserver.pid]
    folder = own.ca_file.parent
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not [pid for pid in pids if pid is None or alive(pid)]
    assert not folder.exists()


async def test_a_port_that_was_taken_meanwhile_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others start things too: it tries again with other ports, for whichever of its programs."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = busy.getsockname()[1]
        first_two = iter([taken, free_port(), free_port(), free_port(), free_port(), free_port(), taken, free_port()])
        monkeypatch.setattr("asyncdispatch.testing.controlplane.plane.free_port", lambda: next(first_two, free_port()))
        async with ControlPlane() as own:
            assert (await own.request("GET", "/readyz")).status == 200
            assert str(taken) not in own.url + own.etcd_url
        assert next(first_two, None) is None


async def test_an_error_in_the_body_keeps_the_logs() -> None:
    """They may say why; the error says where they are."""
    with pytest.raises(KeyError) as caught:
        async with ControlPlane() as own:
            raise KeyError("in the test")
    kept = own.apiserver.log
    assert kept.is_file()
    assert str(kept.parent) in caught.value.__notes__[0]
    for log in kept.parent.iterdir():
        log.unlink()
    kept.parent.rmdir()
    kept.parent.parent.rmdir()


async def test_binaries_of_another_version_are_refused(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for a version is never tested on another one in silence."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(plane.apiserver.program.parent))
    other = ControlPlane(version="1.2.3", logs=tmp_path)
    with pytest.raises(ConfigurationError, match=r"version='1.2.3': is not what is in "):
        await other.__aenter__()
    assert not other.apiserver.running
