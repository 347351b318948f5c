"""The default table, row by row: what each answer means for its call."""

import runpy
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from kubernetes_asyncio.client.exceptions import ApiException
from multidict import CIMultiDict

from asyncdispatch.calls import ObjectRef, Verdict
from asyncdispatch.kubernetes import ApiError, Cluster, TransportError
from asyncdispatch.kubernetes.classification import classify_error
from tests.kubernetes.answers import (
    CREATE,
    GONE,
    HOLD,
    LATER,
    PATCH,
    RECONCILE,
    RETRY,
    ROWS,
    Row,
)
from tests.kubernetes.support import FakeClient, failure, pod_dict, still_attempt


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


# ---- the page about it -----------------------------------------------------------------------------------------------


def test_the_page_says_what_the_code_does():
    """`python docs/generate_errors.py` writes it anew."""
    docs = Path(__file__).parents[2] / "docs"
    expected = runpy.run_path(str(docs / "generate_errors.py"))["page"]()
    assert (docs / "errors.md").read_text(encoding="utf-8") == expected
