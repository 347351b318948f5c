"""Raw requests: what goes out, what comes back, and what is known when nothing does."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncdispatch import Dispatcher, DispatcherConfig
from asyncdispatch.calls import ObjectRef, VerdictKind
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import ApiError, Cluster, TransportError
from asyncdispatch.kubernetes.transport import Transport
from asyncdispatch.outcomes import Succeeded
from tests.kubernetes.certificate import PEM
from tests.kubernetes.support import FakeClient, attempt_at, pod_dict

PODS = "/api/v1/namespaces/ns/pods"


client_library: Any = None
"""The library whose clients `connected` makes: each test runs with both."""


@pytest.fixture(autouse=True)
def with_each_library(library, monkeypatch):
    monkeypatch.setitem(globals(), "client_library", library)


@asynccontextmanager
async def connected(url: str, **settings: Any) -> AsyncIterator[Cluster]:
    """A cluster over a client of its own, with `settings` in its configuration."""
    configuration = client_library.Configuration(host=url)
    for name, value in settings.items():
        setattr(configuration, name, value)
    async with client_library.ApiClient(configuration) as client:
        yield Cluster(client)


@asynccontextmanager
async def answering(raw: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that answers each request with `raw`, and closes; None: never answers."""
    silence = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        if raw is None:
            await silence.wait()
        else:
            writer.write(raw)
            await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        silence.set()
        listener.close()


def http(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def post(cluster: Cluster, *, seconds: float = 5.0) -> tuple[Any, Any]:
    """POST a Pod; what came back (or was raised), and the attempt."""
    call = cluster.create(pod_dict(uid=None, version=None))
    attempt = attempt_at(call, seconds=seconds)
    try:
        return await cluster.transport.request("POST", PODS, attempt, body=call.obj), attempt
    except (ApiError, TransportError) as error:
        return error, attempt


async def get(cluster: Cluster, path: str = PODS, **options: Any) -> Any:
    call = cluster.read(ObjectRef("v1", "Pod", "ns", "p"))
    return await cluster.transport.request("GET", path, attempt_at(call), **options)


# ---- what goes out ---------------------------------------------------------------------------------------------------


async def test_a_write_and_its_answer(server, api_client):
    """JSON both ways; the audit id names ticket and attempt; the attempt knows that it was sent."""
    cluster = Cluster(api_client)
    answer, attempt = await post(cluster)
    assert answer["metadata"]["name"] == "p"
    assert attempt.sent
    record = server.audit[0]
    assert (record.method, record.path, record.audit_id, record.status) == ("POST", PODS, "7-1", 201)
    assert record.content_type == "application/json"


async def test_reads_beside_a_call_carry_its_audit_id(server, api_client):
    """As every request does, so that the audit list can be joined to attempts; a write's are told by their method."""
    cluster = Cluster(api_client)
    await get(cluster, query={"labelSelector": "a/b=c,d in (e,f)"}, aside=True)
    await get(cluster)
    assert [record.audit_id for record in server.audit] == ["7-1", "7-1"]
    assert server.audit[0].query == {"labelSelector": "a/b=c,d in (e,f)"}


async def test_the_clients_own_headers_are_kept(server, api_client):
    """User agent, default headers and cookie of the client."""
    api_client.user_agent = "scheduler/1"
    await get(Cluster(api_client))
    assert server.audit[0].user_agent == "scheduler/1"
    headers = await sent_headers(lambda client: setattr(client, "cookie", "a=b"))
    assert headers["cookie"] == "a=b"
    assert headers["accept"] == "application/json"


async def sent_headers(prepare: Callable[[Any], Any], **settings: Any) -> dict[str, str]:
    """The headers of one GET, as they arrive."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(http("200 OK", b"{}"))
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with connected(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", **settings) as cluster:
        prepare(cluster.transport._client)
        await get(cluster)
    listener.close()
    lines = seen[0].decode().split("\r\n")[1:-2]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


async def test_the_clients_token_is_read_for_each_request():
    """A token that was replaced counts at once, by its prefix and through the refresh hook, plain or async."""
    headers = await sent_headers(lambda client: None, api_key={"BearerToken": "Bearer t1"})
    assert headers["authorization"] == "Bearer t1"

    def plain(configuration):
        configuration.api_key["BearerToken"] = "t2"

    async def awaited(configuration):
        await asyncio.sleep(0.1)
        plain(configuration)

    for hook in (plain, awaited):
        headers = await sent_headers(
            lambda client: None,
            api_key={"BearerToken": "old"},
            api_key_prefix={"BearerToken": "Bearer"},
            refresh_api_key_hook=hook,
        )
        assert headers["authorization"] == "Bearer t2"


@pytest.mark.parametrize("fault", [ValueError("token abc123 is broken"), FileNotFoundError(2, "no such file", "token")])
async def test_credentials_that_cannot_be_read_hold_the_call(server, fault):
    """R4: nothing was sent; the scope's door is held, and what the hook has read is not told."""

    def hook(configuration):
        raise fault

    async with connected(server.url, api_key={"BearerToken": "t"}, refresh_api_key_hook=hook) as cluster:
        error, attempt = await post(cluster)
    assert isinstance(error, TransportError)
    assert (error.sent, error.credentials, attempt.sent) == (False, True, False)
    assert type(fault).__name__ in str(error) or "no such file" in str(error)
    assert "abc123" not in f"{error}{error.__cause__}"
    assert server.audit == []


async def test_a_refresh_that_hangs_ends_with_the_attempt(server):
    """Its time is the attempt's."""

    async def hook(configuration):
        await asyncio.Event().wait()

    async with connected(server.url, api_key={"BearerToken": "t"}, refresh_api_key_hook=hook) as cluster:
        error, _ = await post(cluster, seconds=3)
    assert isinstance(error, TransportError)
    assert asyncio.get_running_loop().time() == pytest.approx(3, abs=0.1)
    assert not error.sent


# ---- what comes back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "status", "message"),
    [
        (http("200 OK", b"<html>sign in</html>"), 200, "no JSON object"),
        (http("201 Created", b""), 201, "no JSON object"),
        (http("200 OK", b"\xff\xfe{"), 200, "no JSON object"),
        (http("200 OK", b"[1]"), 200, "no JSON object"),
        (http("200 OK", b"[" * 100_000), 200, "no JSON object"),
        (http("500 Internal Server Error", b"\xff broken \xff"), 500, "\N{REPLACEMENT CHARACTER} broken"),
        (http("302 Found", b"", "Location: https://u:secret@login.example/in?token=abc"), 302, "login.example/in"),
        (http("404 Not Found", b"404 page not found\n", "Content-Type: text/plain"), 404, "404 page not found"),
    ],
)
async def test_answers_that_are_not_what_was_asked_for(raw, status, message):
    """A clear ApiError for each, whatever the body; the redirect is not followed and tells no secret."""
    async with answering(raw) as url, connected(url) as cluster:
        error, attempt = await post(cluster)
    assert isinstance(error, ApiError)
    assert error.status == status
    assert message in error.message
    assert "secret" not in str(error)
    assert "abc" not in str(error)
    assert error.request == f"POST {PODS}"
    assert error.request_size == len(json.dumps(pod_body(), separators=(",", ":")))
    assert attempt.sent


def pod_body() -> dict[str, Any]:
    return pod_dict(uid=None, version=None)


async def test_an_error_keeps_its_headers(server, api_client):
    """B11: plain text, and Retry-After."""
    server.fail(status=429, body="Too many requests, please try again later.", retry_after=3)
    error, _ = await post(Cluster(api_client))
    assert (error.status, error.retry_after, error.message) == (429, 3, "Too many requests, please try again later.")
    assert error.status_object is None


# ---- when nothing comes back -----------------------------------------------------------------------------------------


async def test_a_refused_connection_sent_nothing():
    """So a create may be repeated without a look."""
    async with connected("http://127.0.0.1:1") as cluster:
        error, attempt = await post(cluster)
    assert isinstance(error, TransportError)
    assert (error.sent, attempt.sent) == (False, False)
    assert error.__cause__ is not None


async def test_a_name_that_does_not_resolve_sent_nothing(monkeypatch):
    """DNS down is no doubt."""

    async def nowhere(*args, **kwargs):
        raise OSError("Temporary failure in name resolution")

    async with connected("http://api.invalid:6443") as cluster:
        session, _ = cluster.transport._session()
        monkeypatch.setattr(session.connector, "_resolve_host", nowhere)
        error, attempt = await post(cluster)
    assert isinstance(error, TransportError)
    assert (error.sent, attempt.sent) == (False, False)


def tls_server(tmp_path) -> ssl.SSLContext:
    file = tmp_path / "server.pem"
    file.write_text(PEM)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context


async def test_a_certificate_that_is_not_trusted_holds(tmp_path):
    """HOLD: nothing was sent, and nothing else of these credentials should be."""
    async with answering(http("200 OK", b"{}"), tls_server(tmp_path)) as url, connected(url) as cluster:
        error, attempt = await post(cluster)
        call = cluster.create(pod_body())
        verdict = call.classify(attempt, error)
    assert isinstance(error, TransportError)
    assert (error.sent, error.credentials, attempt.sent) == (False, True, False)
    assert verdict is not None
    assert (verdict.kind, verdict.scope) == (VerdictKind.HOLD, cluster)


async def test_the_clients_tls_settings_are_used(tmp_path):
    """A certificate authority of its own, or none at all, as the client was told."""
    tls = tls_server(tmp_path)
    async with answering(http("200 OK", b"{}"), tls) as url:
        async with connected(url, verify_ssl=False) as cluster:
            assert (await post(cluster))[0] == {}
        async with connected(url, ssl_ca_cert=str(tmp_path / "server.pem")) as cluster:
            assert (await post(cluster))[0] == {}
        async with connected(url, ssl_ca_cert=str(tmp_path / "server.pem"), tls_server_name="other.example") as cluster:
            error, _ = await post(cluster)
            assert error.credentials


async def test_speaking_tls_to_a_plain_port_sent_nothing(server):
    """A handshake that fails is no trust lost, and no request."""
    async with connected(server.url.replace("http:", "https:")) as cluster:
        error, attempt = await post(cluster)
    assert (error.sent, error.credentials, attempt.sent) == (False, False, False)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_answer_is_in_doubt(server, applied, api_client):
    """Closed or reset after the request: nobody can say."""
    cluster = Cluster(api_client)
    for fault in (server.drop, server.reset):
        fault(applied=applied, method="POST")
        error, attempt = await post(cluster)
        assert isinstance(error, TransportError)
        assert (error.sent, attempt.sent) == (True, True)


async def test_an_answer_cut_short_is_in_doubt():
    """The body broke off."""
    cut = b"HTTP/1.1 201 Created\r\nContent-Length: 500\r\n\r\n{"
    async with answering(cut) as url, connected(url) as cluster:
        error, attempt = await post(cluster)
    assert isinstance(error, TransportError)
    assert (error.sent, attempt.sent) == (True, True)


async def test_a_server_that_is_silent_ends_with_the_attempt():
    """At the attempt's deadline exactly: long time-outs are not rounded up. In doubt."""
    async with answering(None) as url, connected(url) as cluster:
        error, attempt = await post(cluster, seconds=7.3)
    assert asyncio.get_running_loop().time() == pytest.approx(7.3, abs=0.01)
    assert isinstance(error, TransportError)
    assert (error.sent, attempt.sent) == (True, True)
    assert "no answer in time" in str(error)
    assert isinstance(error, TimeoutError)  # which is a sign of overload; waiting for a connection is none


async def test_waiting_for_a_connection_is_not_sending(server):
    """R8: the pool is full, the time runs out, and the request has not left."""
    server.latency = 60
    async with connected(server.url, connection_pool_maxsize=1) as cluster:
        first = asyncio.ensure_future(post(cluster, seconds=50))
        await asyncio.sleep(1)
        error, attempt = await post(cluster, seconds=5)
        assert isinstance(error, TransportError)
        assert (error.sent, attempt.sent) == (False, False)
        assert "no connection in time" in str(error)
        assert not isinstance(error, TimeoutError)
        assert len(server.audit) == 1
        assert asyncio.get_running_loop().time() == pytest.approx(1 + 5 / 4, abs=0.01)
        first.cancel()


async def test_seats_beyond_the_connections_leave_no_doubt(server):
    """R8: who gets a connection too late to be answered does not use it; none of the creates is in doubt."""
    server.latency = 1.5
    config = DispatcherConfig(max_in_flight=30, attempt_timeout=2)
    async with connected(server.url, connection_pool_maxsize=10) as cluster, Dispatcher(config) as dispatcher:
        creates = [cluster.create(pod_dict(f"p{number}", uid=None, version=None)) for number in range(25)]
        outcomes = [await handle.outcome() for handle in [dispatcher.submit(create) for create in creates]]
    assert {type(outcome) for outcome in outcomes} == {Succeeded}
    assert [record.method for record in server.audit] == ["POST"] * 25


async def test_cancelling_says_whether_it_was_sent(server):
    """The dispatcher cuts an attempt off by cancelling: the attempt knows how far it had come."""
    server.latency = 60
    async with connected(server.url, connection_pool_maxsize=1) as cluster:
        calls = [cluster.create(pod_dict(name, uid=None, version=None)) for name in ("a", "b")]
        attempts = [attempt_at(call, seconds=50) for call in calls]
        tasks = [asyncio.ensure_future(call.execute(attempt)) for call, attempt in zip(calls, attempts, strict=True)]
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [True, True]
        assert [attempt.sent for attempt in attempts] == [True, False]


async def test_no_time_left_sends_nothing(server, api_client):
    """And a time-out of 0, which would mean none, is never given to the client."""
    error, attempt = await post(Cluster(api_client), seconds=0)
    assert isinstance(error, TransportError)
    assert (error.sent, attempt.sent) == (False, False)
    assert server.audit == []


async def test_a_closed_client_is_a_mistake(server, api_client):
    """The dispatcher outlived the client: said so, not retried for minutes."""
    cluster = Cluster(api_client)
    await get(cluster)
    await api_client.close()
    with pytest.raises(ConfigurationError, match="it is closed"):
        await post(cluster)


async def test_a_large_body_goes_out(server, api_client):
    """Above a megabyte, too, without a warning."""
    cluster = Cluster(api_client)
    obj = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "c", "namespace": "ns"}}
    call = cluster.create({**obj, "spec": {"k": "x" * 1_200_000}})
    made = await call.execute(attempt_at(call))
    assert len(made["spec"]["k"]) == 1_200_000
    huge = cluster.create({**obj, "spec": {"k": "x" * 4_000_000}})
    with pytest.raises(ApiError, match=r"413.*the request's body has 4,000,\d\d\d bytes"):
        await huge.execute(attempt_at(huge))


# ---- discovery -------------------------------------------------------------------------------------------------------


async def test_custom_resources_are_looked_up_once(server, api_client):
    """The first call of a kind asks the server for its plural; the others know it."""
    server.register("example.com/v1", "Sheep", "sheepen")
    server.register("example.com/v1", "Farm", "farms", namespaced=False)
    cluster = Cluster(api_client)

    async def make(kind: str, **meta: str) -> dict[str, Any]:
        call = cluster.create({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "x", **meta}})
        return await call.execute(attempt_at(call))

    async with asyncio.TaskGroup() as group:
        group.create_task(make("Sheep", namespace="a"))
        group.create_task(make("Sheep", namespace="b"))
        group.create_task(make("Farm"))
    paths = sorted(record.path for record in server.audit)
    base = "/apis/example.com/v1"
    assert paths == [base, f"{base}/farms", f"{base}/namespaces/a/sheepen", f"{base}/namespaces/b/sheepen"]


async def test_a_plural_that_is_given_is_not_looked_up(server, api_client):
    """For a server that does not tell, or a right to ask that is missing."""
    server.register("example.com/v1", "Sheep", "sheepen")
    cluster = Cluster(api_client)
    obj = {"apiVersion": "example.com/v1", "kind": "Sheep", "metadata": {"name": "x", "namespace": "ns"}}
    call = cluster.create(obj, plural="sheepen")
    await call.execute(attempt_at(call))
    assert [record.method for record in server.audit] == ["POST"]


async def test_a_kind_that_is_not_served_yet_waits(server, api_client):
    """B7: LATER, asked again with each attempt, and found once it is there."""
    server.register("example.com/v1", "Farm", "farms")
    cluster = Cluster(api_client)
    call = cluster.read(ObjectRef("example.com/v1", "Sheep", "ns", "dolly"))
    for number in (1, 2):
        attempt = attempt_at(call, number=number)
        with pytest.raises(ApiError, match="does not serve it") as caught:
            await call.execute(attempt)
        verdict = call.classify(attempt, caught.value)
        assert verdict is not None
        assert verdict.kind is VerdictKind.LATER
    server.register("example.com/v1", "Sheep", "sheepen")
    server.put({"apiVersion": "example.com/v1", "kind": "Sheep", "metadata": {"name": "dolly", "namespace": "ns"}})
    assert (await call.execute(attempt_at(call)))["metadata"]["name"] == "dolly"


# ---- what is no client -----------------------------------------------------------------------------------------------


def test_only_a_client_will_do():
    """Said when the cluster is made."""
    for wrong in (None, "https://api.example", object()):
        with pytest.raises(ConfigurationError, match="api_client"):
            Transport(wrong)


@pytest.mark.parametrize("host", ["api.example:6443", "ftp://api.example", "https://", ""])
def test_a_host_must_be_a_url(host):
    """Else nothing could ever be sent."""
    client = FakeClient()
    client.configuration.host = host
    with pytest.raises(ConfigurationError, match=r"api_client\.configuration\.host"):
        Transport(client)


def test_the_server_is_named_without_secrets():
    """A password in the URL does not appear."""
    transport = Transport(FakeClient())
    assert repr(transport) == "<Transport https://api.example:6443>"
    assert repr(Cluster(FakeClient())) == "<Cluster https://api.example:6443>"


# ---- the environment -------------------------------------------------------------------------------------------------


async def test_the_environment_is_asked_once(server, monkeypatch, api_client):
    """The client's session asks it for each request, in threads: most of its cost. The connections are the same."""
    cluster = Cluster(api_client)
    await get(cluster)
    monkeypatch.setattr(asyncio, "to_thread", None)
    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", None)
    await get(cluster)
    session, _ = cluster.transport._session()
    assert session is Cluster(api_client).transport._session()[0]
    assert session.connector is api_client.rest_client.pool_manager.connector
    await api_client.close()
    assert session.closed


async def test_a_proxy_of_the_environment_is_used(server, monkeypatch):
    """As the client would, unless the host is excepted or the client's own settings name one."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(http("200 OK", b"{}"))
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy)
    async with connected("http://api.example:6443") as cluster:
        await get(cluster)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with connected("http://api.example:6443", proxy=proxy) as cluster:
        await get(cluster)
    assert seen == [f"GET http://api.example:6443{PODS} HTTP/1.1".encode()] * 2
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with connected(server.url) as cluster:
        await get(cluster)
    assert len(server.audit) == 1
    listener.close()


async def test_a_netrc_does_not_get_in_the_way(server, monkeypatch, tmp_path):
    """A user's password for the host would collide with the token."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    async with connected(server.url, api_key={"BearerToken": "Bearer t"}) as cluster:
        await get(cluster)
    assert server.audit[0].status == 200
