"""The default table, row by row: what each answer means for its call."""

import ssl
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from kubernetes_asyncio.client.exceptions import ApiException
from multidict import CIMultiDict

from asyncdispatch.calls import Effect, FunctionCall, ObjectRef, Verdict, VerdictKind
from asyncdispatch.kubernetes import ApiError, Cluster, TransportError
from asyncdispatch.kubernetes.classification import classify_error
from tests.kubernetes.support import FakeClient, failure, plain, pod_dict, still_attempt

RETRY, LATER, HOLD = VerdictKind.RETRY, VerdictKind.LATER, VerdictKind.HOLD
RECONCILE, GONE, PERMANENT = VerdictKind.RECONCILE, VerdictKind.GONE, VerdictKind.PERMANENT

POD = ObjectRef("v1", "Pod", "ns", "p", "u1")


async def nothing(attempt: Any) -> None: ...


def call(effect: Effect = Effect.IDEMPOTENT_WRITE, target: ObjectRef = POD) -> FunctionCall[None]:
    """A plain call, for which the table is the default too."""
    return FunctionCall(nothing, call_type="t", target=target, effect=effect, scope="cluster")


PATCH, CREATE, READ = call(), call(Effect.CREATE), call(Effect.READ)
GENERATED = call(Effect.CREATE, ObjectRef("v1", "Pod", "ns", "job-*"))
NAMESPACE = call(Effect.READ, ObjectRef("v1", "Namespace", None, "ns"))

DYING = 'object is being deleted: pods "p" already exists'
NO_ACCOUNT = 'error looking up service account ns/default: serviceaccount "default" not found'
PAUSE = {"retryAfterSeconds": 4}
POLICY = "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no"
QUOTA = 'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5'
DENIED = 'admission webhook "deny.example.com" denied the request: not on Fridays'
CALLING = 'Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: connection refused'


def about(name: str = "p", kind: str = "pods", **more: str) -> dict[str, Any]:
    """The details of an answer: what it is about."""
    return {"name": name, "kind": kind, **more}


def causes(reason: str, field: str = "") -> dict[str, Any]:
    return {"causes": [{"reason": reason, "field": field, "message": "…"}]}


@dataclass
class Row:
    """An error of a call, and what its verdict should be."""

    of: FunctionCall[None]
    error: BaseException
    kind: VerdictKind
    maybe: bool = False
    wait: float | None = None
    scope: Any = None


def here(condition: str) -> Any:
    """What LATER waits by."""
    return (condition, "ns", "cluster")


ROWS = {
    # -- 429 --
    "server's own 429": Row(PATCH, plain(429, "Too many", headers={"Retry-After": "1"}), RETRY, wait=1),
    "429 without pause": Row(PATCH, failure(429, "storage is (re)initializing"), RETRY),
    "budget used up": Row(
        PATCH, failure(429, details=causes("DisruptionBudget")), LATER, wait=5, scope=here("disruption budget")
    ),
    "budget not processed yet": Row(
        PATCH,
        failure(429, details=causes("DisruptionBudget"), headers={"Retry-After": "10"}),
        LATER,
        wait=10,
        scope=here("disruption budget"),
    ),
    # -- 5xx --
    "etcd timed out": Row(PATCH, failure(500, "etcdserver: request timed out"), RETRY, maybe=True),
    "500 create": Row(CREATE, failure(500, "etcdserver: leader changed"), RETRY, maybe=True),
    "500 read": Row(READ, failure(500, "etcdserver: request timed out"), RETRY),
    "500 refused before storage": Row(PATCH, failure(500, headers={"Retry-After": "2"}), RETRY, wait=2),
    "500 with a pause in its body only": Row(PATCH, failure(500, details=PAUSE), RETRY, maybe=True, wait=4),
    "502": Row(PATCH, plain(502, "Bad Gateway"), RETRY, maybe=True),
    "503": Row(PATCH, plain(503, ""), RETRY, maybe=True),
    "503 refused before storage": Row(PATCH, plain(503, "", headers={"Retry-After": "0"}), RETRY, wait=0),
    "504": Row(CREATE, failure(504, "Timeout", reason="Timeout"), RETRY, maybe=True),
    "a proxy's own 5xx": Row(PATCH, plain(524, "A timeout occurred"), RETRY, maybe=True),
    "408 of a proxy": Row(PATCH, plain(408, "Request Timeout"), RETRY, maybe=True),
    "two budgets": Row(PATCH, failure(500, "This pod has more than one PodDisruptionBudget"), RETRY, maybe=True),
    # -- credentials and rights --
    "401": Row(PATCH, failure(401, "Unauthorized"), HOLD, scope="cluster"),
    "no right": Row(PATCH, failure(403, 'User "x" cannot patch resource "pods"', reason="Forbidden"), PERMANENT),
    "exceeded quota": Row(CREATE, failure(403, QUOTA), LATER, wait=5, scope=here("quota")),
    "quota unknown yet": Row(CREATE, failure(403, "status unknown for quota: q"), LATER, scope=here("quota")),
    "failed quota": Row(CREATE, failure(403, "failed quota: q: must specify limits.cpu"), PERMANENT),
    "no service account yet": Row(CREATE, failure(403, NO_ACCOUNT), LATER, scope=here("service account")),
    "namespace ends, create": Row(CREATE, failure(403, details=causes("NamespaceTerminating")), GONE),
    "namespace ends, patch": Row(PATCH, failure(403, details=causes("NamespaceTerminating")), PERMANENT),
    # -- 404 --
    "object gone": Row(PATCH, failure(404, details=about()), GONE),
    "object gone, kind as such": Row(READ, failure(404, details=about(kind="Pod")), GONE),
    "object gone, subresource": Row(PATCH, failure(404, details=about(kind="pods/binding")), GONE),
    "target of a create": Row(CREATE, failure(404, details=about()), LATER, scope=here("pods p")),
    "namespace missing": Row(CREATE, failure(404, details=about("ns", "namespaces")), LATER, scope=here("namespace")),
    "the namespace is the target": Row(NAMESPACE, failure(404, details=about("ns", "namespaces")), GONE),
    "path not served": Row(PATCH, plain(404, "404 page not found\n"), LATER, scope=here("path of v1 Pod")),
    "resource not served": Row(PATCH, failure(404, details={}), LATER, scope=here("path of v1 Pod")),
    "something else missing": Row(PATCH, failure(404, details=about("q", "secrets")), LATER, scope=here("secrets q")),
    "other object of the kind": Row(PATCH, failure(404, details=about("q")), LATER, scope=here("pods q")),
    "other group": Row(PATCH, failure(404, details=about(group="example.com")), LATER, scope=here("pods p")),
    # -- 409 --
    "stale version": Row(PATCH, failure(409, "modified", reason="Conflict", details=about()), RECONCILE),
    "second bind": Row(PATCH, failure(409, "already assigned", details=about(kind="pods/binding")), RECONCILE),
    "409 that names nothing": Row(PATCH, plain(409, "conflict"), RECONCILE),
    "name is taken": Row(CREATE, failure(409, reason="AlreadyExists", details=about()), RECONCILE),
    "drawn name is taken": Row(GENERATED, failure(409, reason="AlreadyExists", details=about("job-x1")), RETRY),
    "name held by a dying object": Row(CREATE, failure(409, DYING, reason="AlreadyExists", details=about()), LATER),
    "conflict about a quota": Row(
        CREATE, failure(409, details=about("q", "resourcequotas")), LATER, scope=here("resourcequotas q")
    ),
    "conflict about another Pod": Row(PATCH, failure(409, details=about("q")), LATER, scope=here("pods q")),
    "conflict of appliers": Row(PATCH, failure(409, details={**about(), **causes("FieldManagerConflict")}), PERMANENT),
    # -- 410, 422 and what never passes --
    "too old a version": Row(READ, failure(410, "too old resource version", reason="Expired"), PERMANENT),
    "another uid": Row(PATCH, failure(422, details=causes("FieldValueInvalid", "metadata.uid")), GONE),
    "uid in a create": Row(CREATE, failure(422, details=causes("FieldValueInvalid", "metadata.uid")), PERMANENT),
    "bound already": Row(
        PATCH, failure(422, details=causes("FieldValueForbidden", "status.nominatedNodeName")), PERMANENT
    ),
    **{str(code): Row(PATCH, failure(code, "no"), PERMANENT) for code in (400, 402, 405, 406, 413, 415, 422, 431)},
    "redirect": Row(PATCH, plain(302, ""), PERMANENT),
    "unreadable answer": Row(PATCH, ApiError(200, "Unreadable", request="PATCH /x"), RETRY, maybe=True),
    "unreadable answer to a read": Row(READ, ApiError(200, "Unreadable", request="GET /x"), RETRY),
    "too large for etcd": Row(CREATE, failure(500, "etcdserver: request is too large"), PERMANENT),
    "too large for gRPC": Row(CREATE, failure(500, "trying to send message larger than max"), PERMANENT),
    # -- webhooks --
    **{
        f"webhook denies as {code}": Row(CREATE, failure(code, DENIED), PERMANENT)
        for code in (400, 401, 403, 404, 409, 422, 429, 500, 503)
    },
    "policy denies as 401": Row(PATCH, failure(401, POLICY), PERMANENT),
    "webhook not callable": Row(CREATE, failure(500, CALLING, reason="InternalError"), RETRY),
    # -- no answer --
    "lost": Row(PATCH, TransportError("reset", sent=True, request="PATCH /x"), RETRY, maybe=True),
    "never sent": Row(CREATE, TransportError("refused", sent=False, request="POST /x"), RETRY),
    "a write's reconcile lost": Row(PATCH, TransportError("reset", sent=True, request="GET /x"), RETRY),
    "a write's reconcile failed": Row(PATCH, failure(500, request="GET /x"), RETRY),
    "certificate": Row(PATCH, TransportError("x", sent=False, credentials=True), HOLD, scope="cluster"),
    "our own word that it is gone": Row(PATCH, ApiError(404, gone=True), GONE),
    # -- errors of libraries, as plain functions meet them --
    "bare time-out": Row(PATCH, TimeoutError(), RETRY, maybe=True),
    "bare time-out of a read": Row(READ, TimeoutError(), RETRY),
    "disconnected": Row(PATCH, aiohttp.ServerDisconnectedError(), RETRY, maybe=True),
    "no free connection": Row(PATCH, aiohttp.ConnectionTimeoutError(), RETRY),
    "read time-out": Row(PATCH, aiohttp.SocketTimeoutError(), RETRY, maybe=True),
    "cut in the body": Row(PATCH, aiohttp.ClientPayloadError(), RETRY, maybe=True),
    "broken pipe": Row(PATCH, BrokenPipeError(), RETRY, maybe=True),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_row(row: Row) -> None:
    """Kind, whether it may be applied, the pause asked for, what is waited by; and the reason repeats what was said."""
    verdict = classify_error(row.error, row.of)
    assert verdict is not None
    found = (verdict.kind, verdict.maybe_applied, verdict.retry_after, verdict.scope)
    assert found == (row.kind, row.maybe, row.wait, row.scope)
    assert 0 < len(verdict.reason) < 700
    if isinstance(row.error, ApiError | TransportError):
        assert verdict.reason == str(row.error)


def connection_key() -> ConnectionKey:
    return ConnectionKey("api.example", 6443, True, True, None, None, None)


def test_connections_that_were_never_made():
    """Refused, not resolved, and a certificate that is not trusted: nothing was sent; the last holds the scope."""
    refused = aiohttp.ClientConnectorError(connection_key(), ConnectionRefusedError(111, "refused"))
    unknown = aiohttp.ClientConnectorDNSError(connection_key(), OSError("no such host"))
    for error in (refused, unknown):
        assert classify_error(error, CREATE) == Verdict(
            RETRY, reason=f"{type(error).__name__}: {error} (it was not sent)"
        )
    untrusted = aiohttp.ClientConnectorCertificateError(connection_key(), ssl.SSLCertVerificationError("self-signed"))
    verdict = classify_error(untrusted, CREATE)
    assert verdict is not None
    assert (verdict.kind, verdict.scope, verdict.maybe_applied) == (HOLD, "cluster", False)


def test_a_clients_exception_is_classified_by_the_same_table():
    """kubernetes_asyncio's ApiException carries status, body and headers."""
    answer: Any = SimpleNamespace(
        status=409,
        reason="Conflict",
        data=failure(409, "modified", details={"name": "q", "kind": "resourcequotas"}).body,
        getheaders=lambda: CIMultiDict({"Retry-After": "3"}),
    )
    verdict = classify_error(ApiException(http_resp=answer), CREATE)
    assert verdict is not None
    assert (verdict.kind, verdict.retry_after) == (LATER, 3.0)


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("x"), ApiException(status=0, reason="no file"), Exception()]
)
def test_other_errors_are_not_for_this_table(error):
    """They say nothing about the API server."""
    assert classify_error(error, PATCH) is None


def test_an_irregular_plural_is_known_to_its_call():
    """R11: a custom resource whose plural is its own is told by it."""
    cluster = Cluster(FakeClient())
    ref = ObjectRef("example.com/v1", "Sheep", "ns", "dolly")
    gone = failure(404, details={"name": "dolly", "kind": "sheep", "group": "example.com"})
    assert classify_error(gone, cluster.read(ref, plural="sheep")) == Verdict(GONE, reason=str(gone))


# ---- the verdicts of our own calls -----------------------------------------------------------------------------------


def test_a_request_that_did_not_leave_is_not_maybe_applied():
    """L10: the attempt knows best, also when the dispatcher cut it off."""
    patch = Cluster(FakeClient()).patch_status(pod_dict(), nominated_node="n1")
    attempt = still_attempt(patch)
    verdict = patch.classify(attempt, TimeoutError())
    assert verdict is not None
    assert verdict.maybe_applied
    attempt.sent = False
    verdict = patch.classify(attempt, TimeoutError())
    assert verdict is not None
    assert not verdict.maybe_applied


@pytest.mark.parametrize(
    ("error", "kind", "maybe"),
    [
        (failure(500, request="POST /x"), RECONCILE, True),
        (TransportError("reset", sent=True, request="POST /x"), RECONCILE, True),
        (TimeoutError(), RECONCILE, True),
        (failure(409, request="POST /x"), RECONCILE, False),
        (failure(500, request="GET /x"), RETRY, False),
        (TransportError("refused", sent=False, request="POST /x"), RETRY, False),
        (failure(503, headers={"Retry-After": "1"}, request="POST /x"), RETRY, False),
        (failure(401), HOLD, False),
    ],
)
def test_binds_and_creates_in_doubt_are_settled_by_reading(error, kind, maybe):
    """L10, L17: a bind or a create that may be applied is looked for, never sent again unseen."""
    cluster = Cluster(FakeClient())
    for made in (cluster.bind(pod_dict(), "n1"), cluster.create(pod_dict(uid=None, version=None))):
        verdict = made.classify(still_attempt(made), error)
        assert verdict is not None
        assert (verdict.kind, verdict.maybe_applied) == (kind, maybe)


def test_a_status_patch_in_doubt_is_repeated():
    """L10: it is idempotent, so a lost answer needs no read."""
    patch = Cluster(FakeClient()).patch_status(pod_dict(), nominated_node="n1")
    verdict = patch.classify(still_attempt(patch), failure(500))
    assert verdict is not None
    assert (verdict.kind, verdict.maybe_applied) == (RETRY, True)
