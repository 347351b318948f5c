"""What plain functions over typed clients raise, as these really raise it, and what it means."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import urllib3
from kubernetes.client import ApiClient, Configuration, CoreV1Api
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from asyncdispatch import AmbiguousOutcome, CallFailed, Dispatcher
from asyncdispatch.calls import Effect, FunctionCall, ObjectRef, Verdict, VerdictKind
from asyncdispatch.kubernetes.classification import classify_error
from asyncdispatch.testing import EmbeddedAPIServer
from asyncdispatch.verdicts import signature_of
from tests.kubernetes.answers import CREATE, PATCH, READ
from tests.kubernetes.support import failure

RETRY, LATER, HOLD, PERMANENT = VerdictKind.RETRY, VerdictKind.LATER, VerdictKind.HOLD, VerdictKind.PERMANENT
POD: Any = {"metadata": {"name": "p"}}
BINDING: Any = {"metadata": {"name": "p"}, "target": {"name": "n1"}}


def http(status: str, body: bytes, kind: str = "application/json", *headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        f"Content-Type: {kind}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def answering(raw: bytes) -> AsyncIterator[str]:
    """A server that answers each request with `raw`, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


async def raised(library: Any, url: str, request: Callable[[Any], Any]) -> BaseException:
    """What a typed client raises for a request."""
    async with library.ApiClient(library.Configuration(host=url)) as client:
        with pytest.raises(Exception) as caught:
            await request(library.CoreV1Api(client))
    return caught.value


def create(v1: Any) -> Any:
    return v1.create_namespaced_pod("ns", POD, _request_timeout=5)


def bind(v1: Any) -> Any:
    return v1.create_namespaced_binding("ns", BINDING, _request_timeout=5)


def verdict_on(error: BaseException, call: Any) -> Verdict:
    verdict = classify_error(error, call)
    assert verdict is not None
    return verdict


QUOTA = json.dumps({"kind": "Status", "message": "exceeded quota: q", "reason": "Forbidden", "code": 403}).encode()
REFUSED = {
    "a Status": (http("403 Forbidden", QUOTA), LATER, False, 5),
    "plain text": (http("429 Too Many Requests", b"later", "text/plain", "Retry-After: 1"), RETRY, False, 1),
    "a fault": (http("500 Internal Server Error", b"{}"), RETRY, True, None),
    "no text": (http("500 Internal Server Error", b"\xff\xfe"), RETRY, True, None),
    "no text, of nobody's fault": (http("400 Bad Request", b"\xff\xfe"), PERMANENT, False, None),
    "binary": (http("503 Unavailable", b"k8s\0", "application/vnd.kubernetes.protobuf"), RETRY, True, None),
}


@pytest.mark.parametrize(("raw", "kind", "maybe", "wait"), REFUSED.values(), ids=REFUSED.keys())
async def test_refusals_are_read_by_the_table(library, raw, kind, maybe, wait):
    """Whatever exception a client makes of them, and whatever their body is."""
    async with answering(raw) as url:
        verdict = verdict_on(await raised(library, url, create), CREATE)
    assert (verdict.kind, verdict.maybe_applied, verdict.retry_after) == (kind, maybe, wait)


UNREADABLE = {
    "a Status for a Binding": (http("201 Created", b'{"kind":"Status","status":"Success"}'), bind),
    "a field of another type": (http("201 Created", b'{"spec":{"containers":7}}'), create),
    "a time that is none": (http("201 Created", b'{"metadata":{"creationTimestamp":"never"}}'), create),
    "no text": (http("201 Created", b"\xff\xfe"), create),
    "an unknown encoding": (http("201 Created", b"{}", "application/json; charset=klingon"), create),
}


@pytest.mark.parametrize(("raw", "request_"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_success_that_the_client_cannot_read_is_in_doubt(library, raw, request_):
    """The server has done it: never sent again, and told as ambiguous. A read is just over."""
    async with answering(raw) as url:
        error = await raised(library, url, request_)
    for call in (CREATE, PATCH):
        verdict = verdict_on(error, call)
        assert (verdict.kind, verdict.maybe_applied) == (PERMANENT, True)
        assert "the answer was a success" in verdict.reason
    assert verdict_on(error, READ).maybe_applied is False


async def test_a_typed_bind_through_a_dispatcher(server, library):
    """It lands once, is not repeated, and says that the object must be read."""
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    server.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}, "spec": SPEC})
    async with library.ApiClient(library.Configuration(host=server.url)) as client, Dispatcher() as dispatcher:
        v1 = library.CoreV1Api(client)
        call = FunctionCall(
            lambda attempt: v1.create_namespaced_binding("ns", BINDING, _request_timeout=attempt.remaining),
            call_type="bind",
            target=ObjectRef("v1", "Pod", "ns", "p"),
        )
        with pytest.raises(AmbiguousOutcome):
            await dispatcher.run(call)
    assert [record.status for record in server.audit if record.verb == "bind"] == [201]
    pod = server.find("Pod", "p", namespace="ns")
    assert pod is not None
    assert pod["spec"]["nodeName"] == "n1"


SPEC = {"containers": [{"name": "c", "image": "i"}]}


async def test_what_fails_before_it_is_sent_is_no_success(library):
    """A body that is no object, or a mistake of the function's own: permanent, and nothing is in doubt."""
    error = await raised(library, "http://127.0.0.1:1", lambda v1: v1.create_namespaced_pod("ns", object()))
    assert classify_error(error, CREATE) is None
    for mistake in (ValueError("x"), KeyError("x"), AttributeError("x"), UnicodeDecodeError("utf-8", b"", 0, 1, "x")):
        assert classify_error(mistake, CREATE) is None


async def test_the_same_500_is_the_same_from_a_typed_client(server, library):
    """Rule R12: the texts of their errors hold headers that change each time, the server's message does not."""
    errors = []
    for number in range(2):
        headers = {"Audit-Id": str(number)}
        server.fail(status=500, message="This pod has more than one PodDisruptionBudget", reason="", headers=headers)
        errors.append(await raised(library, server.url, create))
    first, second = (signature_of(verdict_on(error, CREATE), error) for error in errors)
    assert first == second is not None
    assert str(errors[0]) != str(errors[1])


@pytest.mark.parametrize("message", ["etcdserver: request timed out", 'failed calling webhook "w": connection refused'])
def test_a_500_that_is_known_to_pass_never_counts_as_one_that_does_not(message):
    """An etcd without a leader, a webhook that is restarted: neither is permanent after five times."""
    error = failure(500, message)
    assert signature_of(verdict_on(error, PATCH), error) is None
    other = failure(500, "something else")
    assert signature_of(verdict_on(other, PATCH), other) is not None


# ---- aiohttp ---------------------------------------------------------------------------------------------------------


def proxy_error(status: int) -> aiohttp.ClientHttpProxyError:
    proxy = URL("http://proxy.example:3128")
    info = aiohttp.RequestInfo(proxy, "CONNECT", CIMultiDictProxy(CIMultiDict()), proxy)
    return aiohttp.ClientHttpProxyError(info, (), status=status, message="no")


def test_a_proxys_refusal_is_not_the_servers():
    """Its status is its own: the request never left. If it does not know us, all wait for other credentials."""
    for status, kind in ((403, RETRY), (502, RETRY), (407, HOLD)):
        verdict = verdict_on(proxy_error(status), CREATE)
        assert (verdict.kind, verdict.maybe_applied) == (kind, False)


# ---- the official client's blocking half, in threads -----------------------------------------------------------------


def blocking(url: str) -> BaseException:
    configuration = Configuration(host=url)
    configuration.retries = False
    with ApiClient(configuration) as client, pytest.raises(Exception) as caught:
        CoreV1Api(client).create_namespaced_pod("ns", POD, _request_timeout=5)
    return caught.value


async def test_the_blocking_client(server):
    """Through a thread: refusals by the table; what was refused was not sent, what broke may be there."""
    server.fail(status=403, message="exceeded quota: q", reason="Forbidden")
    verdict = verdict_on(await asyncio.to_thread(blocking, server.url), CREATE)
    assert (verdict.kind, verdict.retry_after) == (LATER, 5)
    verdict = verdict_on(await asyncio.to_thread(blocking, "http://127.0.0.1:1"), CREATE)
    assert (verdict.kind, verdict.maybe_applied) == (RETRY, False)
    server.drop(times=None)
    verdict = verdict_on(await asyncio.to_thread(blocking, server.url), CREATE)
    assert (verdict.kind, verdict.maybe_applied) == (RETRY, True)


async def test_a_certificate_that_the_blocking_client_does_not_trust():
    """HOLD, as with the others."""
    async with EmbeddedAPIServer(tls=True) as server:
        verdict = verdict_on(await asyncio.to_thread(blocking, server.url), CREATE)
    assert (verdict.kind, verdict.scope) == (HOLD, "cluster")


URLLIB3 = {
    "read time-out": (urllib3.exceptions.ReadTimeoutError(None, "/", "x"), True),  # type: ignore[arg-type]
    "connect time-out": (urllib3.exceptions.ConnectTimeoutError("x"), False),
    "protocol": (urllib3.exceptions.ProtocolError("Connection aborted."), True),
    "broken TLS": (urllib3.exceptions.SSLError(ssl.SSLError("bad record")), True),
    "no proxy": (urllib3.exceptions.ProxyError("http://me:secret@proxy", OSError()), False),
    "too many tries": (
        urllib3.exceptions.MaxRetryError(None, "/", urllib3.exceptions.ProtocolError("x")),  # type: ignore[arg-type]
        True,
    ),
    "too many answers": (urllib3.exceptions.MaxRetryError(None, "/", None), True),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("error", "sent"), URLLIB3.values(), ids=URLLIB3.keys())
def test_errors_of_urllib3(error, sent):
    """What was never sent is not in doubt; no text of theirs is repeated."""
    verdict = verdict_on(error, CREATE)
    assert (verdict.kind, verdict.maybe_applied) == (RETRY, sent)
    assert "secret" not in verdict.reason


async def test_a_function_of_ones_own_that_fails_is_permanent(server):
    """And not ambiguous: it says nothing about the API server."""

    async def broken(attempt: Any) -> None:
        raise ValueError("a mistake")

    async with Dispatcher() as dispatcher:
        call = FunctionCall(broken, call_type="t", target=ObjectRef("v1", "Pod", "ns", "p"), effect=Effect.CREATE)
        with pytest.raises(CallFailed) as caught:
            await dispatcher.run(call)
    assert not caught.value.outcome.ambiguous
