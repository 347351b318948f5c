"""Errors of requests: what they parse, what they say, and what they keep to themselves."""

import math

import aiohttp
import pytest

from asyncdispatch.apierrors import BODY_KEPT, api_error_of
from asyncdispatch.errors import DispatchError
from asyncdispatch.kubernetes import ApiError, TransportError
from asyncdispatch.kubernetes.transport import transport_error_of
from tests.kubernetes.support import failure, plain


def test_a_status_is_parsed():
    """Reason, message, details and causes come from the Status in the body."""
    causes = [{"reason": "FieldValueForbidden", "field": "status.nominatedNodeName", "message": "no"}]
    error = failure(422, "Pod is invalid", reason="Invalid", details={"name": "p", "kind": "Pod", "causes": causes})
    assert (error.status, error.reason, error.message) == (422, "Invalid", "Pod is invalid")
    assert error.details["name"] == "p"
    assert error.causes == causes
    assert str(error) == "PATCH /api/v1/namespaces/ns/pods/p: 422 Invalid: Pod is invalid"
    assert isinstance(error, DispatchError)


@pytest.mark.parametrize(
    "body",
    [
        "Too many requests, please try again later.\n",
        "",
        "{",
        '{"kind": "Pod"}',
        '["Status"]',
        "{" * 100_000,
        '{"kind": "Status", "details": ["x"]}',
        '{"kind": "Status", "details": {"causes": "x"}}',
    ],
)
def test_other_bodies_are_kept_as_text(body):
    """B11: whatever the body is, an error about it is an ApiError with the text, and never another error."""
    error = ApiError(429, body=body)
    assert error.body == body[:BODY_KEPT]
    assert error.reason == "Too Many Requests"
    assert error.causes == []


def test_a_long_answer_is_bounded():
    """An error that a caller keeps holds a bounded part of the answer, and shows less of it."""
    error = plain(500, "x" * 1_000_000)
    assert len(error.body) == len(error.message) == BODY_KEPT
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    "error",
    [
        ApiError(413, request_size=4_000_000),
        ApiError(500, message="etcdserver: request is too large", request_size=4_000_000),
        ApiError(500, message="rpc error: trying to send message larger than max (5 vs. 4)", request_size=4_000_000),
    ],
)
def test_what_is_too_large_says_its_size(error):
    """R12: the reader of the message sees what the server found too large."""
    assert error.too_large
    assert "4,000,000 bytes" in str(error)


def test_a_field_that_is_too_long_is_too_large():
    """R12: the same by the cause that the API server gives for a ConfigMap."""
    error = failure(422, "data: Too long", details={"causes": [{"reason": "FieldValueTooLong", "field": "data"}]})
    assert error.too_large
    assert "321 bytes" in str(error)
    assert not failure(422, "no", details={"causes": [{"reason": "FieldValueInvalid"}]}).too_large


DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": DATE}, 30.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:27:00 GMT", "Date": DATE}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "yesterday"}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 -0000", "Date": DATE}, None),
    ],
)
def test_retry_after(headers, seconds):
    """R17: seconds, or a date by the answer's own Date, whatever our clock says; what is neither does not count."""
    error = ApiError(503, headers=headers)
    assert error.retry_after == seconds
    assert error.pushed_back is (seconds is not None)


def test_a_pause_told_by_the_status_only():
    """Without the header, the Status's own seconds are waited, but prove nothing about storage (L10)."""
    error = failure(500, "slow", details={"retryAfterSeconds": 3})
    assert error.retry_after == 3.0
    assert not error.pushed_back
    for nonsense in (True, -1, 0, "3", math.inf):
        assert ApiError(500, body='{"kind": "Status"}').retry_after is None
        assert failure(500, details={"retryAfterSeconds": nonsense}).retry_after is None


def test_transport_errors_say_what_may_have_happened():
    """The fate of the request stands in the message, unless it only read."""
    assert str(TransportError("reset", sent=True, request="POST /x")) == "POST /x: reset (it may have been applied)"
    assert str(TransportError("refused", sent=False)) == "refused (it was not sent)"
    assert str(TransportError("reset", sent=True, request="GET /x")) == "GET /x: reset"


def test_a_password_in_a_url_is_not_told():
    """An error of the HTTP client may name the proxy with its user."""
    error = transport_error_of(aiohttp.InvalidURL("http://me:secret@proxy:1/x"))
    assert str(error) == "InvalidURL: of an address that is not to be told (it was not sent)"


def test_reprs():
    """They tell the class, and repeat the text."""
    assert repr(ApiError(404, "NotFound", "no")) == "<ApiError 404 NotFound: no>"
    assert repr(TransportError("reset", sent=False)) == "<TransportError reset (it was not sent)>"


class Theirs(Exception):
    """An exception with the attributes that client libraries give theirs."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def test_a_clients_exception_is_read():
    """By its status, body and headers, whatever its class; the body may be bytes."""
    body = failure(409, "taken", reason="AlreadyExists", details={"name": "p"}).body
    for given in (body, body.encode()):
        error = api_error_of(Theirs(status=409, reason="Conflict", body=given, headers={"Retry-After": "2"}))
        assert error is not None
        assert (error.status, error.reason, error.details, error.retry_after) == (
            409,
            "AlreadyExists",
            {"name": "p"},
            2,
        )
    bare = api_error_of(Theirs(status=503, reason="Unavailable", body=b"\xff", headers=None))
    assert bare is not None
    assert (bare.reason, bare.message) == ("Unavailable", "\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("status", [0, None, True, "404", 99, 600])
def test_what_is_no_http_status_is_no_answer(status):
    """Client libraries use status 0 for errors of their own."""
    assert api_error_of(Theirs(status=status, body="")) is None
