"""Hosts that are not as they should be, TLS settings and proxies: kept, told rightly, and no secret with it."""

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from asyncdispatch import CallFailed, DeadlineExpired, Dispatcher, DispatcherConfig
from asyncdispatch.calls import VerdictKind
from asyncdispatch.errors import ConfigurationError
from asyncdispatch.kubernetes import Cluster, TransportError
from asyncdispatch.testing import EmbeddedAPIServer
from tests.kubernetes.connect_proxy import ConnectProxy
from tests.kubernetes.support import attempt_at, pod_dict
from tests.kubernetes.test_kubeconfig import told, written

SECRET = "s3cr3t-p4ss"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    """Those of the machine play no part."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def secure() -> AsyncIterator[EmbeddedAPIServer]:
    async with EmbeddedAPIServer(auto_namespaces=True, tls=True) as server:
        yield server


def config_of(url: str, user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": {"token": SECRET} if user is None else user}],
    }


def content(path: str) -> str:
    return Path(path).read_text()


def settings_of(library: Any, url: str, **settings: Any) -> Any:
    made = library.Configuration(host=url)
    for name, value in settings.items():
        setattr(made, name, value)
    return made


async def posted(cluster: Cluster, name: str = "p") -> Any:
    """The Pod that was created, or the error with its verdict."""
    call = cluster.create(pod_dict(name, uid=None, version=None))
    attempt = attempt_at(call)
    try:
        return await call.execute(attempt)
    except TransportError as error:
        return error, call.classify(attempt, error), attempt.sent


async def posted_by(library: Any, url: str, **settings: Any) -> Any:
    async with library.ApiClient(settings_of(library, url, **settings)) as client:
        return await posted(Cluster(client))


async def test_a_client_of_ours_has_a_connection_for_every_seat(server, tmp_path):
    """R8: the dispatcher's queue is the only one."""
    server.latency = 10
    async with (
        Cluster.connect(written(tmp_path, config_of(server.url))) as cluster,
        Dispatcher(DispatcherConfig(max_in_flight=250)) as dispatcher,
    ):
        creates = [cluster.create(pod_dict(f"p{number}", uid=None, version=None)) for number in range(250)]
        for handle in [dispatcher.submit(create) for create in creates]:
            await handle
        assert asyncio.get_running_loop().time() < 11


# ---- certificates ----------------------------------------------------------------------------------------------------


def wrong_authority(server: EmbeddedAPIServer) -> None:
    server.rotate_certificate(new_ca=True, publish=False)


def wrong_hostname(server: EmbeddedAPIServer) -> None:
    server.rotate_certificate(hostname="other.example")


def expired(server: EmbeddedAPIServer) -> None:
    server.rotate_certificate(expired=True)


@pytest.mark.parametrize("wrong", [wrong_authority, wrong_hostname, expired])
async def test_a_certificate_that_cannot_be_trusted(secure, library, tmp_path, wrong):
    """HOLD at once, nothing sent, whoever made the client."""
    wrong(secure)
    found = [await posted_by(library, secure.url, ssl_ca_cert=secure.ca_file)]
    async with Cluster.connect(
        written(tmp_path, config_of(secure.url, **{"certificate-authority": secure.ca_file}))
    ) as cluster:
        found.append(await posted(cluster))
    for error, verdict, sent in found:
        assert (error.credentials, error.sent, sent) == (True, False, False)
        assert verdict.kind is VerdictKind.HOLD
        assert "certificate" in str(error)
        assert SECRET not in told(error)
    assert secure.audit == []


async def test_a_certificate_for_ever_wrong_ends_after_the_hold_limit(secure, tmp_path):
    """With the reason, never a hang."""
    expired(secure)
    config = config_of(secure.url, **{"certificate-authority": secure.ca_file})
    async with (
        Cluster.connect(written(tmp_path, config)) as cluster,
        Dispatcher(DispatcherConfig(hold_limit=20)) as dispatcher,
    ):
        with pytest.raises(CallFailed, match="certificate") as caught:
            await dispatcher.run(cluster.create(pod_dict(uid=None, version=None)))
        assert asyncio.get_running_loop().time() < 31
    assert not caught.value.outcome.ambiguous


async def test_a_server_by_another_name(secure, library, tmp_path):
    """`tls_server_name` is what the certificate is checked against, and sent as."""
    wrong_hostname(secure)
    made = await posted_by(library, secure.url, ssl_ca_cert=secure.ca_file, tls_server_name="other.example")
    assert made["metadata"]["name"] == "p"
    config = config_of(secure.url, **{"certificate-authority": secure.ca_file, "tls-server-name": "other.example"})
    async with Cluster.connect(written(tmp_path, config)) as cluster:
        assert (await posted(cluster, "q"))["metadata"]["name"] == "q"


async def test_verification_off(secure, library, tmp_path):
    """As it was asked for, and only then."""
    expired(secure)
    made = await posted_by(library, secure.url, verify_ssl=False)
    assert made["metadata"]["name"] == "p"
    async with Cluster.connect(
        written(tmp_path, config_of(secure.url, None, **{"insecure-skip-tls-verify": True}))
    ) as cluster:
        assert (await posted(cluster, "q"))["metadata"]["name"] == "q"


async def test_a_client_certificate(secure, library):
    """Of a client that somebody else made."""
    secure.tokens = {}
    file = secure.client_certificate("alice")
    made = await posted_by(library, secure.url, ssl_ca_cert=secure.ca_file, cert_file=file, key_file=file)
    assert made["metadata"]["name"] == "p"
    assert secure.audit[-1].user == "alice"


# ---- hosts -----------------------------------------------------------------------------------------------------------


async def test_a_host_that_refuses(library, tmp_path):
    """Not sent, tried again; the call ends with its time and says why."""
    error, verdict, sent = await posted_by(library, "https://127.0.0.1:1")
    assert (verdict.kind, verdict.maybe_applied, error.sent, sent) == (VerdictKind.RETRY, False, False, False)
    async with (
        Cluster.connect(written(tmp_path, config_of("http://127.0.0.1:1"))) as cluster,
        Dispatcher() as dispatcher,
    ):
        with pytest.raises(DeadlineExpired) as caught:
            await dispatcher.run(cluster.create(pod_dict(uid=None, version=None), timeout=30))
    assert "Cannot connect to host 127.0.0.1:1" in str(caught.value.outcome.cause)
    assert not caught.value.outcome.ambiguous


async def test_a_host_that_does_not_resolve(library):
    """Names end in .invalid for this: there can be none."""
    error, verdict, sent = await posted_by(library, "https://api.invalid:6443")
    assert (verdict.kind, verdict.maybe_applied, error.sent, sent) == (VerdictKind.RETRY, False, False, False)
    assert "api.invalid" in str(error)


async def test_a_server_that_wants_tls_and_gets_none(secure, library):
    """It hangs up. Nobody can know that from an answer that was lost, so the create is looked for."""
    error, verdict, _ = await posted_by(library, secure.url.replace("https", "http"))
    assert isinstance(error, TransportError)
    assert (verdict.kind, verdict.maybe_applied) == (VerdictKind.RECONCILE, True)
    assert secure.audit == []


@pytest.mark.parametrize(
    "host",
    [
        "api.example:6443",
        f"me:{SECRET}@api.example",
        "ftp://api.example",
        "https://",
        "https://[bad",
        "https://a:port",
        "",
    ],
)
async def test_a_host_that_is_no_address(library, host):
    """Said at once, and without a password."""
    async with library.ApiClient(settings_of(library, host)) as client:
        with pytest.raises(ConfigurationError, match=r"api_client\.configuration\.host") as caught:
            Cluster(client)
    assert SECRET not in told(caught.value)


# ---- proxies ---------------------------------------------------------------------------------------------------------


async def test_a_proxy_of_the_clients_settings(secure, library):
    """TLS goes through it untouched, with the server's own name."""
    async with ConnectProxy(secure.url) as proxy:
        made = await posted_by(library, secure.url, ssl_ca_cert=secure.ca_file, proxy=proxy.url)
    assert made["metadata"]["name"] == "p"
    assert proxy.seen == [f"CONNECT {secure.url.removeprefix('https://')} HTTP/1.1"]


async def test_a_proxy_of_a_kubeconfig(secure, tmp_path):
    """And it is asked for every connection, before and after new certificates."""
    config = {"certificate-authority": secure.ca_file}
    async with ConnectProxy(secure.url, f"me:{SECRET}") as proxy:
        config["proxy-url"] = f"http://me:{SECRET}@{proxy.address}"
        async with (
            Cluster.connect(written(tmp_path, config_of(secure.url, **config))) as cluster,
            Dispatcher() as dispatcher,
        ):
            await dispatcher.run(cluster.create(pod_dict("a", uid=None, version=None)))
            secure.rotate_certificate(new_ca=True)
            secure.close_connections()
            await dispatcher.run(cluster.create(pod_dict("b", uid=None, version=None)))
    assert len(proxy.seen) >= 2
    assert [record.name for record in secure.audit if record.applied] == ["a", "b"]


async def test_a_proxy_with_a_name_and_a_server_with_another(secure, library):
    """The certificate is checked against `tls_server_name` through a tunnel as well."""
    wrong_hostname(secure)
    settings = {"ssl_ca_cert": secure.ca_file, "tls_server_name": "other.example"}
    async with ConnectProxy(secure.url) as proxy:
        made = await posted_by(library, secure.url, proxy=proxy.url, **settings)
        assert made["metadata"]["name"] == "p"
        error, verdict, _ = await posted_by(library, secure.url, proxy=proxy.url, ssl_ca_cert=secure.ca_file)
        assert verdict.kind is VerdictKind.HOLD
        assert not error.sent


async def test_a_proxy_of_the_environment(secure, library, monkeypatch):
    """HTTPS_PROXY, unless NO_PROXY excepts the host, or the client's own settings name another."""
    async with ConnectProxy(secure.url) as proxy, ConnectProxy(secure.url) as other:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        settings = {"ssl_ca_cert": secure.ca_file}
        await posted_by(library, secure.url, **settings)
        assert len(proxy.seen) == 1
        secure.delete("Pod", "p", namespace="ns")
        await posted_by(library, secure.url, proxy=other.url, **settings)
        assert (len(proxy.seen), len(other.seen)) == (1, 1)
        secure.delete("Pod", "p", namespace="ns")
        monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
        await posted_by(library, secure.url, **settings)
        assert (len(proxy.seen), len(other.seen)) == (1, 1)


async def test_plain_requests_through_a_proxy(server, library):
    """Forwarded whole, not tunnelled."""
    async with ConnectProxy(server.url) as proxy:
        made = await posted_by(library, server.url, proxy=proxy.url)
    assert made["metadata"]["name"] == "p"
    assert proxy.seen == [f"POST {server.url}/api/v1/namespaces/ns/pods HTTP/1.1"]


async def test_headers_for_the_proxy(secure, library):
    """`proxy_headers` of the client go to the proxy alone."""
    async with ConnectProxy(secure.url, "me:pw") as proxy:
        authorization = f"Basic {base64.b64encode(b'me:pw').decode()}"
        made = await posted_by(
            library,
            secure.url,
            ssl_ca_cert=secure.ca_file,
            proxy=proxy.url,
            proxy_headers={"Proxy-Authorization": authorization},
        )
    assert made["metadata"]["name"] == "p"


async def test_a_proxy_that_does_not_know_us(secure, library, caplog):
    """HOLD: not the server's answer, never sent, and no password in any text of it."""
    caplog.set_level(logging.DEBUG)
    async with ConnectProxy(secure.url, "me:right") as proxy:
        url = f"http://me:{SECRET}@{proxy.address}"
        error, verdict, sent = await posted_by(library, secure.url, ssl_ca_cert=secure.ca_file, proxy=url)
    assert (verdict.kind, error.sent, sent) == (VerdictKind.HOLD, False, False)
    assert "the proxy answered 407" in str(error)
    encoded = base64.b64encode(f"me:{SECRET}".encode()).decode()
    for secret in (SECRET, encoded):
        assert secret not in told(error) + verdict.reason + caplog.text


@pytest.mark.parametrize("address", ["127.0.0.1:1", "proxy.invalid:3128"])
async def test_a_proxy_that_is_not_there(secure, library, address):
    """RETRY, not sent, without its password."""
    found = await posted_by(library, secure.url, ssl_ca_cert=secure.ca_file, proxy=f"http://me:{SECRET}@{address}")
    error, verdict, sent = found
    assert (verdict.kind, verdict.maybe_applied, sent) == (VerdictKind.RETRY, False, False)
    assert SECRET not in told(error) + verdict.reason


@pytest.mark.parametrize("proxy", [f"me:{SECRET}@p:1", f"socks5://me:{SECRET}@p:1", f"http://me:{SECRET}@[p"])
async def test_a_proxy_that_is_no_address(secure, library, monkeypatch, tmp_path, proxy):
    """Said at once: of the client's settings when the cluster is made, of the environment with the first request."""
    async with library.ApiClient(settings_of(library, secure.url, proxy=proxy)) as client:
        with pytest.raises(ConfigurationError, match=r"api_client\.configuration\.proxy") as caught:
            Cluster(client)
        assert SECRET not in told(caught.value)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    async with library.ApiClient(settings_of(library, secure.url)) as client, Dispatcher() as dispatcher:
        with pytest.raises(CallFailed) as failed:
            await dispatcher.run(Cluster(client).create(pod_dict(uid=None, version=None)))
        assert isinstance(failed.value.__cause__, ConfigurationError)
        assert "HTTPS_PROXY" in str(failed.value)
        assert SECRET not in told(failed.value)


# ---- secrets ---------------------------------------------------------------------------------------------------------


async def test_no_secret_is_told_anywhere(secure, tmp_path, caplog):
    """Planted in every place that can hold one, through every kind of failure: no text and no log repeats any."""
    caplog.set_level(logging.DEBUG)
    key = secure.client_certificate("alice")
    config = config_of(
        secure.url,
        {"token": SECRET, "client-certificate": key, "client-key": key},
        **{"certificate-authority": secure.ca_file},
    )
    secure.tokens = {SECRET: "alice"}
    texts: list[str] = []
    async with (
        Cluster.connect(written(tmp_path, config)) as cluster,
        Dispatcher(DispatcherConfig(hold_limit=5)) as dispatcher,
    ):
        texts += [repr(cluster), repr(cluster.transport), repr(cluster.create(pod_dict(uid=None, version=None)))]
        config["users"][0]["user"]["token"] = f"{SECRET} {SECRET}"
        written(tmp_path, config)
        secure.tokens = {}
        faults = (
            lambda: None,  # refused by the server, and what is read anew is no token
            lambda: (secure.rotate_certificate(expired=True), secure.close_connections()),
            lambda: (secure.rotate_certificate(), secure.reset(times=None)),
        )
        for fault in faults:
            fault()
            with pytest.raises((CallFailed, DeadlineExpired)) as caught:
                await dispatcher.run(cluster.create(pod_dict(uid=None, version=None), timeout=20))
            outcome = caught.value.outcome
            texts += [told(caught.value), repr(outcome), str(outcome)]
    assert "credentials could not be refreshed" in caplog.text
    pem = content(key).splitlines()[1]
    for secret in (SECRET, base64.b64encode(SECRET.encode()).decode(), pem):
        assert secret not in "\n".join(texts) + caplog.text


def test_a_context_verifies_unless_told_otherwise():
    """No setting but the one turns verification off."""
    from asyncdispatch.kubernetes.access import Certificates

    assert Certificates().context("x").verify_mode is ssl.CERT_REQUIRED
    assert Certificates().context("x").check_hostname
    assert Certificates(verify=False).context("x").verify_mode is ssl.CERT_NONE
