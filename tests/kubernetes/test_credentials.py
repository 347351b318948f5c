"""Credentials that are replaced while calls run: read anew, once, off the loop, and nothing fails for it (rule R4)."""

import asyncio
import base64
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiClient, Configuration

from asyncdispatch import Dispatcher, DispatcherConfig
from asyncdispatch.errors import CallFailed, ConfigurationError
from asyncdispatch.kubernetes import ApiError, Cluster, TransportError, access, credentials
from asyncdispatch.kubernetes.access import Access, Certificates, expiry_of
from asyncdispatch.kubernetes.credentials import Credentials
from asyncdispatch.testing import EmbeddedAPIServer
from tests.kubernetes.support import attempt_at, pod_dict
from tests.kubernetes.test_execplugin import saying, spec
from tests.kubernetes.test_kubeconfig import written

SECRET = "s3cr3t-t0k3n"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """Neither the machine's own kubeconfig nor a Pod's service account plays a part."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def secure() -> AsyncIterator[EmbeddedAPIServer]:
    """A server that speaks TLS and knows one token."""
    async with EmbeddedAPIServer(auto_namespaces=True, tls=True) as server:
        server.tokens = {"t1": "alice"}
        yield server


def config_of(server: EmbeddedAPIServer, **user: Any) -> dict[str, Any]:
    cluster = {"server": server.url, "certificate-authority": server.ca_file}
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }


def shown(server: EmbeddedAPIServer, user: str) -> str:
    """A client's certificate and key."""
    return Path(server.client_certificate(user)).read_text()


def now() -> float:
    return asyncio.get_running_loop().time()


async def create(cluster: Cluster, dispatcher: Dispatcher, name: str) -> Any:
    return await dispatcher.run(cluster.create(pod_dict(name, uid=None, version=None)))


async def creates(cluster: Cluster, dispatcher: Dispatcher, prefix: str, count: int = 20) -> None:
    """Several at once. They raise unless they succeed."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(create(cluster, dispatcher, f"{prefix}{number}"))


def refused(server: EmbeddedAPIServer) -> int:
    return sum(record.status == 401 for record in server.audit)


# ---- replaced, and found by being refused ----------------------------------------------------------------------------


def token_file(tmp_path: Path, server: EmbeddedAPIServer) -> tuple[Path, Callable[[str], Any]]:
    file = tmp_path / "token"
    file.write_text("t1\n")
    return written(tmp_path, config_of(server, tokenFile="token")), file.write_text


def inline_token(tmp_path: Path, server: EmbeddedAPIServer) -> tuple[Path, Callable[[str], Any]]:
    path = written(tmp_path, config_of(server, token="t1"))
    return path, lambda token: written(tmp_path, config_of(server, token=token))


def plugin(tmp_path: Path, server: EmbeddedAPIServer) -> tuple[Path, Callable[[str], Any]]:
    made = saying(tmp_path, {"token": "t1"})
    path = written(tmp_path, config_of(server, exec=spec(made)))
    return path, lambda token: saying(tmp_path, {"token": token})


@pytest.mark.parametrize("source", [token_file, inline_token, plugin])
async def test_a_token_that_is_replaced(secure, tmp_path, source):
    """J1: the first 401 has it read again, one probe goes out, all that was held follows; no call fails."""
    path, replace = source(tmp_path, secure)
    async with Cluster.connect(path) as cluster, Dispatcher() as dispatcher:
        await creates(cluster, dispatcher, "before")
        secure.tokens = {"t2": "alice"}
        replace("t2")
        began = now()
        await creates(cluster, dispatcher, "after")
        assert now() - began < 2
        assert 1 <= refused(secure) <= 20
        assert dispatcher.statistics().unauthenticated_since is None
        before = refused(secure)
        await creates(cluster, dispatcher, "later")
        assert refused(secure) == before


async def test_held_until_the_token_is_there(secure, tmp_path):
    """It comes 15 s late: one request each ten seconds asks for it, and a readiness probe can tell since when."""
    path, replace = token_file(tmp_path, secure)
    async with Cluster.connect(path) as cluster, Dispatcher() as dispatcher:
        await create(cluster, dispatcher, "first")
        secure.tokens = {"t2": "alice"}
        began = now()
        waiting = asyncio.create_task(creates(cluster, dispatcher, "held", 5))
        await asyncio.sleep(15)
        assert dispatcher.statistics().unauthenticated_since == pytest.approx(began, abs=0.1)
        assert refused(secure) <= 5 + 2
        replace("t2")
        await waiting
        assert now() - began < 25
        assert dispatcher.statistics().unauthenticated_since is None


async def test_credentials_that_nothing_can_mend_end(secure, tmp_path):
    """J3: after the hold limit, with the 401 as their cause."""
    path, _ = token_file(tmp_path, secure)
    async with Cluster.connect(path) as cluster, Dispatcher(DispatcherConfig(hold_limit=30)) as dispatcher:
        secure.tokens = {}
        with pytest.raises(CallFailed) as caught:
            await create(cluster, dispatcher, "p")
        assert 30 <= now() <= 41
    assert isinstance(caught.value.__cause__, ApiError)
    assert refused(secure) <= 5


async def test_a_plugin_is_run_once_for_many_refusals(secure, tmp_path):
    """However many calls were refused together; and not again while the credentials are good."""
    made = saying(tmp_path, {"token": "t1"})
    made.write_text(made.read_text().replace("cat", f"echo run >> {tmp_path}/runs\ncat", 1))
    path = written(tmp_path, config_of(secure, exec=spec(made)))
    async with Cluster.connect(path) as cluster, Dispatcher() as dispatcher:
        await creates(cluster, dispatcher, "before")
        made.write_text(made.read_text().replace("t1", "t2"))
        secure.tokens = {"t2": "alice"}
        await creates(cluster, dispatcher, "after", 50)
        await asyncio.sleep(600)
        await creates(cluster, dispatcher, "later")
    assert (tmp_path / "runs").read_text().split() == ["run"] * 2


async def test_a_client_certificate_that_is_replaced(secure, tmp_path):
    """Who shows a certificate that is not known any more is nobody; the new one is shown on new connections."""
    secure.tokens = {}
    first, second = (shown(secure, user) for user in ("alice", "bob"))
    file = tmp_path / "client.pem"
    file.write_text(first)
    path = written(tmp_path, config_of(secure, **{"client-certificate": "client.pem", "client-key": "client.pem"}))
    async with Cluster.connect(path) as cluster, Dispatcher() as dispatcher:
        await create(cluster, dispatcher, "a")
        assert secure.audit[-1].user == "alice"
        file.write_text(second)
        secure.fail(status=401, message="Unauthorized", times=1)
        await creates(cluster, dispatcher, "b", 3)
        assert secure.audit[-1].user == "bob"


async def test_an_authority_that_is_replaced(secure, tmp_path):
    """A certificate by a new authority is not trusted until the file says so: held, not failed."""
    path, _ = token_file(tmp_path, secure)
    async with Cluster.connect(path) as cluster, Dispatcher() as dispatcher:
        await create(cluster, dispatcher, "before")
        secure.rotate_certificate(new_ca=True, publish=False)
        secure.close_connections()
        waiting = asyncio.create_task(creates(cluster, dispatcher, "after"))
        await asyncio.sleep(5)
        assert dispatcher.statistics().unauthenticated_since is not None
        secure.publish_ca()
        await waiting
        assert dispatcher.statistics().unauthenticated_since is None
        assert refused(secure) == 0


async def test_requests_under_way_end_on_their_old_connections(secure, tmp_path):
    """New certificates cut nobody off."""
    path, _ = token_file(tmp_path, secure)
    secure.delay(90, path="*/pods", times=1)
    async with Cluster.connect(path) as cluster, Dispatcher(DispatcherConfig(attempt_timeout=100)) as dispatcher:
        slow = asyncio.create_task(create(cluster, dispatcher, "slow"))
        await asyncio.sleep(1)
        secure.rotate_certificate(new_ca=True)
        await asyncio.sleep(61)
        await create(cluster, dispatcher, "starts-the-reading")
        await asyncio.sleep(1)
        old = cluster.transport._client.rest_client.pool_manager
        await create(cluster, dispatcher, "quick")
        assert (await slow)["metadata"]["name"] == "slow"
        assert old is cluster.transport._client.rest_client.pool_manager
    assert refused(secure) == 0
    assert len(secure.audit) == 3


# ---- replaced, and found before it is refused ------------------------------------------------------------------------


async def test_the_token_of_a_pod_is_read_again_each_minute(secure, tmp_path, monkeypatch):
    """So that nothing is refused when the old one expires."""
    (tmp_path / "token").write_text("t1")
    (tmp_path / "ca.crt").write_bytes(secure.ca_pem)
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    host, _, port = secure.url.removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    async with Cluster.connect() as cluster, Dispatcher() as dispatcher:
        await create(cluster, dispatcher, "a")
        (tmp_path / "token").write_text("t2")
        secure.tokens = {"t1": "alice", "t2": "alice"}
        await asyncio.sleep(61)
        await create(cluster, dispatcher, "b")
        await asyncio.sleep(1)
        secure.tokens = {"t2": "alice"}
        await create(cluster, dispatcher, "c")
    assert refused(secure) == 0


def jwt(seconds: float) -> str:
    return claiming(json.dumps({"exp": time.time() + seconds}))


async def test_a_plugin_is_run_before_its_token_expires(secure, tmp_path):
    """A minute before; while it runs, calls go on with the old one."""
    first, second = jwt(600), jwt(1_200)
    secure.tokens = {first: "alice", second: "alice"}
    made = saying(tmp_path, {"token": first})
    path = written(tmp_path, config_of(secure, exec=spec(made)))
    async with Cluster.connect(path) as cluster, Dispatcher() as dispatcher:
        saying(tmp_path, {"token": second})
        await asyncio.sleep(500)
        await create(cluster, dispatcher, "a")
        assert sent_token(cluster) == first
        await asyncio.sleep(45)
        await create(cluster, dispatcher, "b")
        await asyncio.sleep(2)
        assert sent_token(cluster) == second


async def test_an_idle_clients_token_that_has_expired_is_not_sent(secure, tmp_path):
    """Nobody asked for hours: the first who does waits for the new one, and nothing is refused."""
    first, second = jwt(600), jwt(100_000)
    secure.tokens = {second: "alice"}
    made = saying(tmp_path, {"token": first})
    async with (
        Cluster.connect(written(tmp_path, config_of(secure, exec=spec(made)))) as cluster,
        Dispatcher() as dispatcher,
    ):
        saying(tmp_path, {"token": second})
        await asyncio.sleep(10_000)
        await creates(cluster, dispatcher, "p")
    assert refused(secure) == 0


def sent_token(cluster: Cluster) -> str:
    held: str = cluster.transport._client.configuration.api_key["BearerToken"]
    return held.removeprefix("Bearer ")


def claiming(claims: str) -> str:
    return f"e30.{base64.urlsafe_b64encode(claims.encode()).decode().rstrip('=')}.signature"


EXPIRIES = {
    "a JWT": (claiming('{"exp": 12}'), 12.0),
    "without an expiry": (claiming("{}"), None),
    "with an odd one": (claiming('{"exp": true}'), None),
    "no object": (claiming("[1]"), None),
    "no JSON": (claiming("x"), None),
    "no base64": ("x.\N{SNOWMAN}.y", None),
    "two parts": ("x.y", None),
    "opaque": ("abc", None),
}


@pytest.mark.parametrize(("token", "expires"), EXPIRIES.values(), ids=EXPIRIES.keys())
def test_when_a_token_expires(token, expires):
    """Where it says so."""
    assert expiry_of(token) == expires


# ---- one reading at a time, and when it does not work ----------------------------------------------------------------


class Source:
    """Where credentials are from: counts how often, and how many at a time, they are read."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.reads = self.together = self.at_most = 0
        self.error: Exception | None = None
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self) -> Access:
        self.reads += 1
        self.together += 1
        self.at_most = max(self.at_most, self.together)
        self.may_end.wait(10)
        self.together -= 1
        if self.error is not None:
            raise self.error
        return self.access

    @property
    def access(self) -> Access:
        defaults = {"source": "somewhere", "server": "http://api.example", "certificates": Certificates()}
        return Access(**{**defaults, "authorization": f"Bearer t{self.reads}", **self.fields})


@asynccontextmanager
async def kept(source: Source, url: str = "http://api.example") -> AsyncIterator[tuple[Credentials, Cluster]]:
    async with ApiClient(Configuration(host=url)) as client:
        fresh = Credentials(client, source, source.access)
        client.configuration.refresh_api_key_hook = fresh
        try:
            yield fresh, Cluster(client)
        finally:
            source.may_end.set()
            await fresh.aclose()


async def test_one_reading_for_all_that_wait():
    """However many are refused or wait together. Refusals of what was replaced meanwhile count no more."""
    source = Source()
    async with kept(source) as (fresh, _):
        source.may_end.clear()
        for _ in range(5):
            fresh.refused(0)
        waiting = [asyncio.create_task(fresh.ready(30)) for _ in range(10)]
        await asyncio.sleep(0)
        source.may_end.set()
        await asyncio.gather(*waiting)
        assert (source.reads, source.at_most, fresh.generation) == (1, 1, 1)
        fresh.refused(0)
        await asyncio.sleep(5)
        await fresh.ready(30)
        assert source.reads == 1


async def test_whoever_stops_waiting_does_not_stop_the_reading():
    """A call that is cancelled leaves it to the others."""
    source = Source()
    async with kept(source) as (fresh, _):
        source.may_end.clear()
        fresh.refused(0)
        leaving, staying = (asyncio.create_task(fresh.ready(30)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        source.may_end.set()
        await staying
        assert (source.reads, fresh.generation) == (1, 1)


async def test_refusals_without_end_read_once_a_second_at_most():
    """A watch that is refused and tries again at once must not run a plugin without pause."""
    source = Source()
    async with kept(source) as (fresh, _):
        for _ in range(100):
            fresh.refused(fresh.generation)
            await fresh.ready(30)
            await asyncio.sleep(0.1)
    assert source.reads <= 12


async def test_a_reading_that_hangs_ends_with_the_attempt(server):
    """The call is held, nothing was sent; and the loop was free."""
    source = Source()
    async with kept(source, server.url) as (fresh, cluster):
        source.may_end.clear()
        fresh.refused(0)
        call = cluster.create(pod_dict(uid=None, version=None))
        attempt = attempt_at(call, seconds=0.05)
        with pytest.raises(TransportError, match="credentials were not refreshed in time") as caught:
            await call.execute(attempt)
        assert (caught.value.credentials, caught.value.sent, attempt.sent) == (True, False, False)
        assert server.audit == []


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConfigurationError("user u: tokenFile", "str", "the file can't be read"), "user u: tokenFile"),
        (ValueError(SECRET), "ValueError"),
        (OSError(SECRET), "OSError"),
    ],
)
async def test_what_cannot_be_read_leaves_what_there_was(caplog, error, says):
    """The server has the last word on it. The log says why, and nothing secret; later it is read again."""
    source = Source()
    async with kept(source) as (fresh, cluster):
        source.error = error
        await asyncio.sleep(61)
        await fresh.ready(30)
        await asyncio.sleep(1)
        assert sent_token(cluster) == "t0"
        assert "credentials could not be refreshed" in caplog.text
        assert says in caplog.text
        assert SECRET not in caplog.text
        source.error = None
        await asyncio.sleep(9)
        await fresh.ready(30)
        await asyncio.sleep(1)
        assert sent_token(cluster) == f"t{source.reads}"


async def test_a_clock_that_is_wrong_does_not_read_without_pause():
    """J5: by our clock the token has expired long since, but the server takes it. A minute is the pace."""
    source = Source(expires=time.time() - 7_200)
    async with kept(source) as (fresh, _):
        for _ in range(50):
            await fresh.ready(30)
            await asyncio.sleep(10)
    assert source.reads <= 9


async def test_leaving_while_it_is_read():
    """The reading is left behind; nothing is applied to a closed client."""
    source = Source()
    async with kept(source) as (fresh, cluster):
        source.may_end.clear()
        fresh.refused(0)
        await asyncio.sleep(0)
        await fresh.aclose()
        assert sent_token(cluster) == "t0"


async def test_a_user_who_has_no_token_any_more():
    """Whatever is there now is sent: nothing."""
    source = Source()
    async with kept(source) as (fresh, cluster):
        source.fields["authorization"] = None
        await asyncio.sleep(61)
        await fresh.ready(30)
        await asyncio.sleep(1)
        assert "BearerToken" not in cluster.transport._client.configuration.api_key
        assert repr(fresh) == "<Credentials from somewhere>"


async def test_old_connections_are_closed_in_time(secure):
    """Certificates that are replaced each hour, for ever, keep a bounded number of sessions."""
    authority = secure.ca_pem
    source = Source(certificates=Certificates(authority))
    async with kept(source) as (fresh, _):
        for number in range(10):
            source.fields["certificates"] = Certificates(authority + b"\n" * number)
            await asyncio.sleep(credentials.RETIRED / 2)
            await fresh.ready(30)
            await asyncio.sleep(1)
            assert len(fresh._retired) <= 3


# ---- clients of others -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_client_of_somebody_elses_refreshes_as_it_does(server, library, kind):
    """Its hook is asked for each request, as its library would; calls are held until it has the new token."""
    server.tokens = {"t1": "alice"}
    tokens = ["t1"]

    def plain(configuration: Any) -> None:
        configuration.api_key["BearerToken"] = f"Bearer {tokens[-1]}"

    async def awaited(configuration: Any) -> None:
        plain(configuration)

    settings = library.Configuration(host=server.url)
    settings.api_key["BearerToken"] = "Bearer old"
    settings.refresh_api_key_hook = plain if kind == "plain" else awaited
    async with library.ApiClient(settings) as client, Dispatcher() as dispatcher:
        cluster = Cluster(client)
        await create(cluster, dispatcher, "a")
        server.tokens = {"t2": "alice"}
        waiting = asyncio.create_task(creates(cluster, dispatcher, "b", 5))
        await asyncio.sleep(5)
        tokens.append("t2")
        await waiting
        assert refused(server) <= 5 + 1
        await library.CoreV1Api(client).read_namespaced_pod("a", "ns")


async def test_a_token_that_no_header_can_carry_is_held_and_not_told(server, library):
    """A line break in the middle of it: nothing is sent, and no text repeats it."""
    settings = library.Configuration(host=server.url)
    settings.api_key["BearerToken"] = f"Bearer {SECRET}\nX-Evil: 1"
    async with library.ApiClient(settings) as client:
        call = Cluster(client).create(pod_dict(uid=None, version=None))
        with pytest.raises(TransportError) as caught:
            await call.execute(attempt_at(call))
    assert caught.value.credentials
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert server.audit == []


async def test_typed_calls_on_a_connected_client_use_what_is_fresh(secure, tmp_path):
    """The client's own requests ask the same keeper, by its hook."""
    from kubernetes_asyncio.client import CoreV1Api

    path, replace = token_file(tmp_path, secure)
    async with Cluster.connect(path) as cluster:
        v1 = CoreV1Api(cluster.transport._client)
        await v1.list_namespaced_pod("ns")
        secure.tokens = {"t1": "alice", "t2": "bob"}
        replace("t2")
        await asyncio.sleep(61)
        await v1.list_namespaced_pod("ns")
        await asyncio.sleep(1)
        await v1.list_namespaced_pod("ns")
    assert secure.audit[-1].user == "bob"


async def test_nothing_is_left_on_disk(secure, tmp_path, monkeypatch):
    """Keys from a kubeconfig's own text are in a file for the moment in which they are loaded."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    pem = base64.b64encode(shown(secure, "alice").encode()).decode()
    path = written(tmp_path, config_of(secure, **{"client-certificate-data": pem, "client-key-data": pem}))
    async with Cluster.connect(path) as cluster, Dispatcher() as dispatcher:
        await create(cluster, dispatcher, "a")
        assert os.listdir(folder) == []
    assert secure.audit[-1].user == "alice"
