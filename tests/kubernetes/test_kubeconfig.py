"""Finding a cluster: from a kubeconfig, from inside a Pod, and clear words where neither works."""

import json
import os
from pathlib import Path

import pytest

from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import Cluster
from asyncdispatch.kubernetes.kubeconfig import kubeconfig_paths
from tests.kubernetes.certificate import PEM
from tests.kubernetes.support import attempt_at

SECRET = "s3cr3t-t0k3n"


def kubeconfig(url: str = "https://api.example:6443", **changes) -> dict:
    """A kubeconfig with two contexts; `changes` replace parts of it."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "dev",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": SECRET}}],
        "contexts": [
            {"name": "dev", "context": {"cluster": "c", "user": "u"}},
            {"name": "nobody", "context": {"cluster": "c"}},
        ],
        **changes,
    }


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Neither the machine's own kubeconfig nor a Pod's service account plays a part."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def written(tmp_path: Path, content: dict | str, name: str = "config") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))  # JSON is YAML
    return path


async def token_sent(cluster: Cluster) -> str | None:
    headers = await cluster.transport._headers(attempt_at(cluster.read(ObjectRef("v1", "Node", None, "n"))), False, "")
    return headers.get("authorization")


async def test_connecting_by_kubeconfig(server, tmp_path):
    """It speaks to the server with the user's token, and closes its connections at the end."""
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    path = written(tmp_path, kubeconfig(server.url))
    async with Cluster.connect(path) as cluster:
        read = cluster.read(ObjectRef("v1", "Node", None, "n1"))
        assert (await read.execute(attempt_at(read)))["kind"] == "Node"
        assert await token_sent(cluster) == f"Bearer {SECRET}"
        session, _ = cluster.transport._session()
    assert session.closed


async def test_another_context(tmp_path):
    """By name; one without a user sends no credentials."""
    async with Cluster.connect(str(written(tmp_path, kubeconfig("http://api.example"))), "nobody") as cluster:
        assert await token_sent(cluster) is None
        assert repr(cluster) == "<Cluster http://api.example>"


async def test_the_usual_places(monkeypatch, tmp_path):
    """KUBECONFIG, which may name several files, else the home's own."""
    written(tmp_path, kubeconfig("https://home.example"), "home/.kube/config")
    async with Cluster.connect() as cluster:
        assert cluster.transport.server == "https://home.example"
    contexts = written(tmp_path, {"contexts": kubeconfig()["contexts"], "current-context": "dev"}, "a")
    rest = written(tmp_path, {key: kubeconfig()[key] for key in ("clusters", "users")}, "b")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(contexts), str(tmp_path / "missing"), str(rest)]))
    async with Cluster.connect() as cluster:
        assert cluster.transport.server == "https://api.example:6443"


async def test_inside_a_pod(monkeypatch, tmp_path):
    """Its service account, unless a kubeconfig is asked for; what is missing there is told."""
    from kubernetes_asyncio.config import incluster_config

    token, authority = written(tmp_path, "pod-token", "token"), written(tmp_path, PEM, "ca.crt")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    async with Cluster.connect() as cluster:
        assert cluster.transport.server == "https://10.0.0.1:443"
        assert await token_sent(cluster) == "Bearer pod-token"
    async with Cluster.connect(written(tmp_path, kubeconfig())) as cluster:
        assert cluster.transport.server == "https://api.example:6443"
    token.unlink()
    with pytest.raises(ConfigurationError, match="service account"):
        await Cluster.connect().__aenter__()


def test_paths(monkeypatch, tmp_path):
    """Those that exist; none is a mistake."""
    path = written(tmp_path, "{}")
    assert kubeconfig_paths(path) == [path]
    with pytest.raises(ConfigurationError, match="kubeconfig="):
        kubeconfig_paths(tmp_path / "missing")
    with pytest.raises(ConfigurationError, match="kubeconfig=7"):
        kubeconfig_paths(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no such file"):
        kubeconfig_paths(None)


EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
USER = [{"name": "u", "user": {"token": SECRET}}]


@pytest.mark.parametrize(
    ("content", "context", "says"),
    [
        (kubeconfig(), "prod", "context='prod': is not in the kubeconfig: give one of dev, nobody"),
        (kubeconfig(**{"current-context": ""}), None, "no current-context: give one of dev, nobody"),
        ({"users": USER}, "dev", "it has no contexts at all"),
        (kubeconfig(clusters=[]), None, "context dev: cluster='c'"),
        (kubeconfig(users=[{"name": "x", "user": {"token": SECRET}}]), None, "context dev: user='u'"),
        (kubeconfig(users=[{"name": "u", "token": SECRET}]), None, "each of its users needs a name and a user"),
        (kubeconfig(users={"u": {"token": SECRET}}), None, "its users must be a list"),
        (
            kubeconfig(clusters=[{"name": "c", "cluster": {"url": SECRET}}]),
            None,
            "cluster c: server='NoneType': must be a URL",
        ),
        (kubeconfig(clusters=[{"name": "c", "cluster": {"server": 7}}]), None, "cluster c: server='int'"),
        (kubeconfig(), "nobody", "context nobody: user=None"),
        (
            kubeconfig(
                clusters=[{"name": "c", "cluster": {"server": "https://a", "certificate-authority-data": "eHg="}}]
            ),
            *(None, "certificates can't be loaded"),
        ),
        (
            kubeconfig(
                clusters=[{"name": "c", "cluster": {"server": "https://a", "certificate-authority": "nowhere.crt"}}]
            ),
            *(None, "it can't be used"),
        ),
        (kubeconfig(users=[{"name": "u", "user": {"exec": {**EXEC, "command": SECRET}}}]), None, "it can't be used"),
        (f"- {SECRET}", None, "must be a mapping"),
        (f"users:\n  - token: {SECRET}\n bad: [", None, "is not YAML at line 3"),
        ("", None, "must be a mapping"),
    ],
)
async def test_a_broken_kubeconfig_is_told_without_its_secrets(tmp_path, content, context, says):
    """Field, value and remedy; no token, not even in the errors that led to it."""
    path = written(tmp_path, content)
    with pytest.raises(ConfigurationError) as caught:
        async with Cluster.connect(path, context):
            pass
    assert says in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


async def test_a_kubeconfig_that_cannot_be_read(tmp_path):
    """A directory, or bytes that are no text."""
    with pytest.raises(ConfigurationError, match="kubeconfig="):
        await Cluster.connect(tmp_path).__aenter__()
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="is not YAML"):
        await Cluster.connect(path).__aenter__()
