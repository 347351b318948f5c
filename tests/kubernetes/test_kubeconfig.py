"""Finding a cluster: from a kubeconfig, from inside a Pod, and clear words where neither works."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from asyncdispatch.calls import ObjectRef
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import Cluster, access
from asyncdispatch.kubernetes.kubeconfig import kubeconfig_paths
from tests.kubernetes.certificate import ENCRYPTED_KEY, KEY, PEM
from tests.kubernetes.support import attempt_at

SECRET = "s3cr3t-t0k3n"


def kubeconfig(url: str = "https://api.example:6443", **changes: Any) -> dict[str, Any]:
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
    headers = await cluster.transport._headers(attempt_at(cluster.read(ObjectRef("v1", "Node", None, "n"))), "")
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
    """By name; one without a user, or whose user says nothing, sends no credentials."""
    path = written(tmp_path, kubeconfig(users=[{"name": "u", "user": None}]))
    for context in ("nobody", "dev"):
        async with Cluster.connect(str(path), context) as cluster:
            assert await token_sent(cluster) is None
            assert repr(cluster) == "<Cluster https://api.example:6443>"


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
    token, authority = written(tmp_path, "pod-token\n", "token"), written(tmp_path, PEM, "ca.crt")
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    async with Cluster.connect() as cluster:
        assert cluster.transport.server == "https://10.0.0.1:443"
        assert await token_sent(cluster) == "Bearer pod-token"
    async with Cluster.connect(written(tmp_path, kubeconfig())) as cluster:
        assert cluster.transport.server == "https://api.example:6443"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    async with Cluster.connect() as cluster:
        assert cluster.transport.server == "https://[fd00::1]:443"
    for broken, says in (
        (lambda: token.write_text(""), "is empty"),
        (lambda: token.write_text(f"{SECRET} {SECRET}"), "is no token"),
        (lambda: authority.write_text(SECRET), "certificate authority can't be loaded"),
        (lambda: authority.unlink(), r"can't be read \(No such file or directory\): mount the service account, or"),
        (lambda: monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "tcp"), "KUBERNETES_SERVICE_PORT='tcp': must be a port"),
    ):
        token.write_text("pod-token")
        broken()
        with pytest.raises(ConfigurationError, match=says) as caught:
            await Cluster.connect().__aenter__()
        assert SECRET not in told(caught.value)


async def test_inside_a_pod_without_a_token(monkeypatch, tmp_path):
    """The kubeconfig, as anywhere else; if there is none either, both are told."""
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigurationError, match=rf"kubeconfig='~/.kube/config': no such file.*{tmp_path}/token"):
        await Cluster.connect().__aenter__()
    written(tmp_path, kubeconfig(), "home/.kube/config")
    async with Cluster.connect() as cluster:
        assert cluster.transport.server == "https://api.example:6443"


USERS: dict[str, tuple[dict[str, Any], str | None]] = {
    "token": ({"token": "t"}, "Bearer t"),
    "token file, which wins": ({"token": "old", "tokenFile": "sub/token"}, "Bearer from-file"),
    "password": ({"username": "me", "password": "pw"}, "Basic bWU6cHc="),
    "name only": ({"username": "me"}, "Basic bWU6"),
    "token before exec": ({"token": "t", "exec": {"command": "nowhere"}}, "Bearer t"),
    "empty fields": ({"token": "", "tokenFile": None, "client-certificate-data": ""}, None),
}


@pytest.mark.parametrize(("user", "sent"), USERS.values(), ids=USERS.keys())
async def test_users(tmp_path, user, sent):
    """What each kind of user sends; paths count from the file's folder, and a token file may end with a newline."""
    written(tmp_path, "from-file\n", "a/sub/token")
    async with Cluster.connect(written(tmp_path, user_of(**user), "a/config")) as cluster:
        assert await token_sent(cluster) == sent


@pytest.mark.filterwarnings("ignore:datetime.datetime.utc:DeprecationWarning")  # of the client library, from 3.12
async def test_an_old_auth_provider(tmp_path):
    """OIDC, by the client library, as long as its token is good."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 4_000_000_000}).encode()).decode()
    provider = {"name": "oidc", "config": {"id-token": f"e30.{claims}.x"}}
    async with Cluster.connect(written(tmp_path, user_of(**{"auth-provider": provider}))) as cluster:
        assert await token_sent(cluster) == f"Bearer e30.{claims}.x"


async def test_the_first_file_wins(monkeypatch, tmp_path):
    """Of what several files define alike, the current context too, as kubectl does it."""
    other = cluster_of(server="https://other.example")
    other["current-context"] = "nobody"
    files = [written(tmp_path, kubeconfig(), "a"), written(tmp_path, other, "b")]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    async with Cluster.connect() as cluster:
        assert cluster.transport.server == "https://api.example:6443"
        assert await token_sent(cluster) == f"Bearer {SECRET}"


async def test_a_default_that_somebody_has_set_plays_no_part(tmp_path):
    """The client library lets a program set a default configuration, with credentials for another cluster."""
    from kubernetes_asyncio.client import Configuration

    Configuration.set_default(Configuration(host="http://else.example", api_key={"BearerToken": "Bearer else"}))
    try:
        async with Cluster.connect(written(tmp_path, user_of())) as cluster:
            assert await token_sent(cluster) is None
    finally:
        Configuration.set_default(None)


def test_paths(monkeypatch, tmp_path):
    """Those that exist; none is a mistake."""
    path = written(tmp_path, "{}")
    assert kubeconfig_paths(path) == [path]
    with pytest.raises(ConfigurationError, match="kubeconfig="):
        kubeconfig_paths(tmp_path / "missing")
    with pytest.raises(ConfigurationError, match="kubeconfig='int': must be the path"):
        kubeconfig_paths(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no such file"):
        kubeconfig_paths(None)


def told(error: BaseException | None) -> str:
    """All that a traceback would show of it."""
    texts = []
    while error is not None:
        texts.append(f"{error!r} {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)


# ---- what can be wrong -----------------------------------------------------------------------------------------------


def cluster_of(**fields: Any) -> dict[str, Any]:
    return kubeconfig(clusters=[{"name": "c", "cluster": {"server": "https://api.example", **fields}}])


def user_of(**fields: Any) -> dict[str, Any]:
    return kubeconfig(users=[{"name": "u", "user": fields}])


PAIR = base64.b64encode(PEM.encode()).decode()
OTHER = f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(SECRET.encode()).decode()}\n-----END CERTIFICATE-----"
BROKEN = {
    "no such context": (kubeconfig(), "prod", "context='prod': is not in the kubeconfig: give one of dev, nobody"),
    "no current context": (
        {**kubeconfig(), "current-context": ""},
        None,
        "no current-context: give one of dev, nobody",
    ),
    "odd current context": ({**kubeconfig(), "current-context": [SECRET]}, None, "no current-context: give one of dev"),
    "no contexts": ({"users": []}, "dev", "it has no contexts at all"),
    "no such cluster": (
        kubeconfig(clusters=[]),
        None,
        "context dev: cluster='c': is not among the kubeconfig's clusters",
    ),
    "no such user": (kubeconfig(users=[]), None, "context dev: user='u': is not among the kubeconfig's users"),
    "context without cluster": (
        kubeconfig(contexts=[{"name": "dev", "context": {}}]),
        None,
        "context dev: cluster=None",
    ),
    "user without a body": (kubeconfig(users=[{"name": "u", "token": SECRET}]), None, "each of its users needs a name"),
    "users are no list": (kubeconfig(users={"u": {"token": SECRET}}), None, "its users must be a list"),
    "user is a string": (kubeconfig(users=[SECRET]), None, "each of its users needs a name and a user"),
    "no server": (
        kubeconfig(clusters=[{"name": "c", "cluster": {"url": SECRET}}]),
        None,
        "cluster c: server='NoneType'",
    ),
    "server is a number": (cluster_of(server=7), None, "cluster c: server='int': must be a string"),
    "server without scheme": (cluster_of(server=f"api:{SECRET}"), None, "cluster c: server='str': must be a URL"),
    "server with a password": (cluster_of(server=f"https://me:{SECRET}@api"), None, "must hold no name or password"),
    "server with an odd port": (cluster_of(server=f"https://api:{SECRET}"), None, "server='str': must be a URL"),
    "authority is no PEM": (
        cluster_of(**{"certificate-authority-data": base64.b64encode(SECRET.encode()).decode()}),
        *(None, "certificate authority can't be loaded: it must be a certificate in PEM"),
    ),
    "authority is no certificate": (
        cluster_of(**{"certificate-authority-data": base64.b64encode(OTHER.encode()).decode()}),
        *(None, "certificate authority can't be loaded"),
    ),
    "authority is no base64": (
        cluster_of(**{"certificate-authority-data": f"{SECRET}!"}),
        *(None, "cluster c: certificate-authority-data='str': is not base64"),
    ),
    "authority file missing": (
        cluster_of(**{"certificate-authority": "nowhere.crt"}),
        *(None, "cluster c: certificate-authority='str': the file can't be read: No such file or directory"),
    ),
    "authority is a directory": (cluster_of(**{"certificate-authority": "."}), None, "can't be read: Is a directory"),
    "file name that is none": (cluster_of(**{"certificate-authority": f"a\0{SECRET}"}), None, "the file can't be read"),
    "verify is a string": (cluster_of(**{"insecure-skip-tls-verify": "yes"}), None, "must be true or false"),
    "server name is a number": (cluster_of(**{"tls-server-name": 7}), None, "cluster c: tls-server-name='int'"),
    "proxy of another kind": (cluster_of(**{"proxy-url": f"socks5://u:{SECRET}@p:1"}), None, "proxy-url='str'"),
    "token is a number": (user_of(token=123456), None, "user u: token='int': must be a string: put it in quotes"),
    "token of two words": (user_of(token=f"{SECRET} x"), None, "user u: token='…': is no token"),
    "token with a line break": (user_of(token=f"{SECRET}\nX-Evil: 1"), None, "user u: token='…': is no token"),
    "token that is not ASCII": (user_of(token=f"{SECRET}é"), None, "user u: token='…': is no token"),
    "token file missing": (user_of(tokenFile="nowhere"), None, "user u: tokenFile='str': the file can't be read"),
    "certificate without key": (user_of(**{"client-certificate-data": PAIR}), None, "user u: client-key='NoneType'"),
    "key without certificate": (user_of(**{"client-key-data": PAIR}), None, "user u: client-certificate='NoneType'"),
    "key of somebody else": (
        user_of(**{"client-certificate-data": PAIR, "client-key-data": base64.b64encode(KEY.encode()).decode()}),
        *(None, "client certificate can't be loaded"),
    ),
    "encrypted key": (
        user_of(
            **{"client-certificate-data": PAIR, "client-key-data": base64.b64encode(ENCRYPTED_KEY.encode()).decode()}
        ),
        *(None, "client certificate can't be loaded: it and its key must be a pair, in PEM, unencrypted"),
    ),
    "exec is a string": (user_of(exec=SECRET), None, "user u: exec='str': must be a mapping"),
    "auth provider unknown": (
        user_of(**{"auth-provider": {"name": "oidc", "config": {"id-token": SECRET}}}),
        *(None, "user u: auth-provider='dict': gave no token"),
    ),
    "a list": (f"- {SECRET}", None, "must be a mapping"),
    "not YAML": (f"users:\n  - token: {SECRET}\n bad: [", None, "is not YAML at line 3"),
    "a date that is none": (f"{SECRET}: 2026-99-99", None, "is not YAML"),
    "an alias to nothing": (f"{SECRET}: *{SECRET}", None, "is not YAML at line 1"),
    "a Python object": (f"!!python/object/apply:os.system ['{SECRET}']", None, "is not YAML"),
    "empty": ("", None, "must be a mapping"),
}


@pytest.mark.parametrize(("content", "context", "says"), BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_kubeconfig_is_told_without_its_secrets(tmp_path, caplog, content, context, says):
    """At once: field, remedy, and a value only where it is no secret; also not in what led to it, or in logs."""
    caplog.set_level("DEBUG")
    path = written(tmp_path, content)
    with pytest.raises(ConfigurationError) as caught:
        async with Cluster.connect(path, context):
            pass
    assert says in str(caught.value)
    assert SECRET not in told(caught.value)
    assert SECRET not in caplog.text


async def test_a_kubeconfig_that_cannot_be_read(tmp_path):
    """A directory, or bytes that are no text."""
    with pytest.raises(ConfigurationError, match="kubeconfig="):
        await Cluster.connect(tmp_path).__aenter__()
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="is not YAML"):
        await Cluster.connect(path).__aenter__()


NO_PATHS: dict[str, Any] = {
    "its contents": kubeconfig(),
    "a part of it": [{"name": "u", "user": {"token": SECRET}}],
    "bytes": json.dumps(kubeconfig()).encode(),
    "its text": json.dumps(kubeconfig()),
    "its text, as YAML": f"token: {SECRET}\nkind: Config",
    "its text, encoded": json.dumps(kubeconfig()).encode().hex() + SECRET,
}


@pytest.mark.parametrize("given", NO_PATHS.values(), ids=NO_PATHS.keys())
async def test_contents_given_instead_of_a_path_are_not_told(monkeypatch, tmp_path, given):
    """As an argument, or in the environment: only its type, or nothing of it."""
    with pytest.raises(ConfigurationError, match=r"kubeconfig=.*the path|kubeconfig='…': no such file") as caught:
        await Cluster.connect(given).__aenter__()
    assert SECRET not in told(caught.value)
    if isinstance(given, str):
        monkeypatch.setenv("KUBECONFIG", given)
        with pytest.raises(ConfigurationError, match="kubeconfig='…': no such file") as caught:
            await Cluster.connect().__aenter__()
        assert SECRET not in told(caught.value)
    with pytest.raises(ConfigurationError, match="context=") as caught:
        await Cluster.connect(written(tmp_path, kubeconfig()), given).__aenter__()
    assert SECRET not in told(caught.value)
