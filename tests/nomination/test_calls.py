"""The call by itself: what its outcome means to the machine, and what a fresh read says became of it."""

import json
from typing import Any

import pytest

from asyncdispatch.apierrors import ApiError, TransportError
from asyncdispatch.calls import Again, Applied, ObjectRef, Refused, Verdict, VerdictKind
from asyncdispatch.nomination.actions import Fate
from asyncdispatch.nomination.calls import PodNomination, answer_of
from asyncdispatch.outcomes import Cancelled, Expired, Failed, Overwritten, Shed, Skipped, Succeeded

PERMANENT, GONE, RETRY = (Verdict(kind) for kind in (VerdictKind.PERMANENT, VerdictKind.GONE, VerdictKind.RETRY))
BOUND = (
    '{"kind": "Status", "reason": "Invalid", "details": '
    '{"causes": [{"field": "status.nominatedNodeName", "reason": "FieldValueForbidden"}]}}'
)


def refused(message: str) -> Failed[Any]:
    """By a Status that has a message alone."""
    return Failed(
        ApiError(422, body=json.dumps({"kind": "Status", "reason": "Invalid", "message": message})), PERMANENT
    )


@pytest.mark.parametrize(
    ("outcome", "fate"),
    [
        (Succeeded({"a": 1}), Fate.APPLIED),
        (Expired("in_flight", late_success={"a": 1}), Fate.APPLIED),
        (Expired("in_flight", ambiguous=True), Fate.UNKNOWN),
        (Cancelled("x", ambiguous=True), Fate.UNKNOWN),
        (Failed(ApiError(500), RETRY, ambiguous=True), Fate.UNKNOWN),
        (Expired("queued"), Fate.NOT_SENT),
        (Cancelled("x"), Fate.NOT_SENT),
        (Skipped(1), Fate.NOT_SENT),
        (Overwritten(1), Fate.NOT_SENT),
        (Shed("x"), Fate.NOT_SENT),
        (Failed(TransportError("refused", sent=False), RETRY), Fate.NOT_SENT),
        (Failed(ApiError(429), RETRY), Fate.NOT_SENT),
        (Failed(ApiError(503), RETRY), Fate.NOT_SENT),
        (Failed(ApiError(401), PERMANENT), Fate.NOT_SENT),
        (Failed(ApiError(404), GONE), Fate.GONE),
        (Failed(ApiError(409), PERMANENT), Fate.CONFLICT),
        (Failed(ApiError(403), PERMANENT), Fate.FORBIDDEN),
        (Failed(ApiError(422), PERMANENT), Fate.REFUSED),
        (Failed(ApiError(422, body=BOUND), PERMANENT), Fate.BOUND),
        (refused('Pod "p" is invalid: status.nominatedNodeName: Forbidden: x'), Fate.BOUND),
        (refused('Pod "p" is invalid: spec.x: Invalid value: "status.nominatedNodeName: "'), Fate.REFUSED),
        (refused("denied request: status.nominatedNodeName: no"), Fate.REFUSED),
        (Failed(ApiError(400), PERMANENT), Fate.REFUSED),
    ],
)
def test_outcomes(outcome: Any, fate: Fate) -> None:
    """Doubt comes first: what may have been applied is never taken for not sent."""
    assert answer_of(outcome).fate is fate


def seen(version: str = "5", uid: str = "u", value: str | None = None, mark: str | None = None) -> dict[str, Any]:
    notes = {"a.b/decision-id": mark, "a.b/node": "n1"} if mark else {}
    meta = {"name": "p", "namespace": "ns", "uid": uid, "resourceVersion": version, "annotations": notes}
    return {"metadata": meta, "spec": {}, "status": {"nominatedNodeName": value} if value else {}}


@pytest.mark.parametrize(
    ("node", "found", "kind"),
    [
        ("n1", seen("6", value="n1", mark="d"), Applied),
        ("n1", seen("7", value="n2", mark="d"), Applied),  # applied, and overwritten since: the machine sees to it
        ("n1", seen("5"), Again),
        ("n1", seen("6"), Refused),
        ("n1", seen("6", value="n1", mark="e"), Refused),
        ("n1", seen("6", uid="v"), Refused),
        ("n1", None, Refused),
        (None, seen("6"), Applied),
        (None, seen("5", value="n1", mark="d"), Again),
        (None, seen("6", value="n1", mark="d"), Refused),
    ],
)
def test_settled_by_a_read(node: str | None, found: Any, kind: type) -> None:
    call: Any = PodNomination(
        target=ObjectRef("v1", "Pod", "ns", "p", "u"),
        version="5",
        node=node,
        was="n1",
        decision_id="d",
        prefix="a.b",
        annotations={"a.b/node": node},
        transport=None,  # type: ignore[arg-type]
    )
    assert isinstance(call.settled_by(found), kind)
    assert call.apply(seen("6")) == seen("6")
    assert call.apply(seen("5"))["status"].get("nominatedNodeName") == node
