"""Who asks: tokens, rights, certificates; and what changes when they are rotated."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from asyncdispatch.testing import EmbeddedAPIServer
from tests.testing.apiserver.support import MERGE, POD, PODS, Http, Reply, binding, pod

pytestmark = pytest.mark.looptime


async def asked(
    http: Http, token: str | None = None, path: str = PODS, *, context: ssl.SSLContext | None = None
) -> Reply:
    """A GET, on a connection of its own."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(http.server.url + path, headers=headers, ssl=context or True) as response,
    ):
        return Reply(response.status, response.headers, await response.text())


async def test_tokens_and_their_rotation(server: EmbeddedAPIServer, http: Http) -> None:
    """A token that is not known is answered 401, whatever is asked; open connections are asked again."""
    assert (await asked(http, "anything")).status == 200
    server.tokens = {"t1": "alice"}
    assert (await asked(http, "t1")).status == 200
    assert server.audit[-1].user == "alice"
    server.tokens = {"t2": "alice"}
    reply = await asked(http, "t1")
    assert reply.json == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
    }  # fmt: skip
    assert server.audit[-1].user == ""
    assert (await asked(http, "t1", "/nothing")).status == 401
    assert (await asked(http, "t2")).status == 200


async def test_nobody_may_ask_for_health_only(server: EmbeddedAPIServer, http: Http) -> None:
    server.tokens = {"t1": "alice"}
    reply = await asked(http)
    assert (reply.status, reply.json["reason"]) == (403, "Forbidden")
    assert reply.json["message"] == (
        'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" '
        'in the namespace "default"'
    )
    assert (await asked(http, path="/readyz")).status == 200


async def test_a_write_without_a_known_token_changes_nothing(server: EmbeddedAPIServer, http: Http) -> None:
    server.tokens = {}
    reply = await http("POST", PODS, pod(), headers={"Authorization": "Bearer t1"})
    assert reply.status == 401
    assert server.find("Pod", "web") is None


async def test_a_client_with_a_token(server: EmbeddedAPIServer) -> None:
    from kubernetes_asyncio import client

    server.tokens = {"t1": "alice"}
    await client.CoreV1Api(server.api_client("t1")).list_namespaced_pod("default")
    with pytest.raises(client.ApiException, match="401"):
        await client.CoreV1Api(server.api_client("t2")).list_namespaced_pod("default")


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", PODS, pod(), 'pods is forbidden: User "alice" cannot create resource "pods" in API group "" in'),
        ("PATCH", f"{POD}/status", {}, 'pods "web" is forbidden: User "alice" cannot patch resource "pods/status" in'),
        ("POST", f"{POD}/binding", binding(), 'pods "web" is forbidden: User "alice" cannot create resource'),
        ("GET", "/api/v1/nodes/n1", None, 'nodes "n1" is forbidden: User "alice" cannot get resource "nodes" in API'),
        ("GET", "/metrics", None, 'forbidden: User "alice" cannot get path "/metrics"'),
    ],
)
async def test_a_missing_right(
    method: str, path: str, body: Any, said: str, server: EmbeddedAPIServer, http: Http
) -> None:
    server.tokens = {"a": "alice", "b": "bob"}
    server.put(pod())
    rights = server.forbid(user="alice")
    kind = MERGE if method == "PATCH" else None
    reply = await http(method, path, body, headers={"Authorization": "Bearer a"}, content_type=kind)
    assert (reply.status, reply.json["reason"]) == (403, "Forbidden")
    assert reply.json["message"].startswith(said)
    assert (await asked(http, "b")).status == 200
    rights.remove()
    assert (await asked(http, "a")).status == 200


async def test_rights_at_the_cluster_scope_are_worded_so(server: EmbeddedAPIServer, http: Http) -> None:
    server.forbid(path="*/leases")
    reply = await http.get("/apis/coordination.k8s.io/v1/leases")
    assert reply.json["message"].endswith('in API group "coordination.k8s.io" at the cluster scope')
    assert reply.json["details"] == {"group": "coordination.k8s.io", "kind": "leases"}


# -- certificates ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def secure() -> AsyncIterator[Http]:
    async with EmbeddedAPIServer(tls=True) as server, aiohttp.ClientSession() as session:
        yield Http(server, session)


def trusting(server: EmbeddedAPIServer) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=server.ca_file)


async def test_a_certificate_by_its_own_authority(secure: Http) -> None:
    server = secure.server
    assert server.url.startswith("https://")
    assert (await asked(secure, context=trusting(server))).status == 200
    with pytest.raises(aiohttp.ClientConnectorCertificateError, match="certificate verify failed"):
        await asked(secure)


def test_the_file_of_the_authority() -> None:
    server = EmbeddedAPIServer(tls=True)
    assert Path(server.ca_file).read_bytes() == server.ca_pem
    server.rotate_certificate(new_ca=True, publish=False)
    assert Path(server.ca_file).read_bytes() != server.ca_pem
    server.publish_ca()
    assert Path(server.ca_file).read_bytes() == server.ca_pem


async def test_a_new_certificate_by_the_same_authority(secure: Http) -> None:
    context = trusting(secure.server)
    secure.server.rotate_certificate()
    assert (await asked(secure, context=context)).status == 200


async def test_a_new_authority(secure: Http) -> None:
    """Who trusts the old one is refused until the new one is read, which is there once it is published."""
    server, old = secure.server, trusting(secure.server)
    server.rotate_certificate(new_ca=True, publish=False)
    for context in (old, trusting(server)):
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await asked(secure, context=context)
    server.publish_ca()
    assert (await asked(secure, context=trusting(server))).status == 200
    assert len(server.audit) == 1


@pytest.mark.parametrize(
    ("wrong", "said"), [({"hostname": "elsewhere.example"}, "not valid for"), ({"expired": True}, "has expired")]
)
async def test_a_certificate_that_is_wrong(wrong: dict[str, Any], said: str, secure: Http) -> None:
    secure.server.rotate_certificate(**wrong)
    with pytest.raises(aiohttp.ClientConnectorCertificateError, match=said):
        await asked(secure, context=trusting(secure.server))


async def test_open_connections_outlive_a_rotation(secure: Http) -> None:
    server, context = secure.server, trusting(secure.server)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        http = Http(server, session)
        await http.get(PODS)
        server.rotate_certificate(new_ca=True)
        assert (await http.get(PODS)).status == 200
        server.reset_connections()
        await asyncio.sleep(0.1)  # the client notices
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await http.post(PODS, pod())


async def test_a_client_with_a_certificate(secure: Http) -> None:
    server, context = secure.server, trusting(secure.server)
    server.tokens = {"t": "bob"}
    context.load_cert_chain(server.client_certificate("alice"))
    assert (await asked(secure, context=context)).status == 200
    assert server.audit[-1].user == "alice"
    assert (await asked(secure, "t", context=context)).status == 200
    assert server.audit[-1].user == "bob"


async def test_faults_work_through_tls(secure: Http) -> None:
    server = secure.server
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting(server))) as session:
        http = Http(server, session)
        server.reset(method="POST")
        with pytest.raises(aiohttp.ClientError):
            await http.post(PODS, pod())
        async with http.watch(PODS) as events:
            server.darken()
            server.put(pod("unseen"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(events.next(), 60)
        assert (await http.post(PODS, pod())).status == 201


async def test_without_tls_there_are_no_certificates(server: EmbeddedAPIServer) -> None:
    for call in (lambda: server.ca_file, server.rotate_certificate, lambda: server.client_certificate("a")):
        with pytest.raises(RuntimeError, match="tls=True"):
            call()
