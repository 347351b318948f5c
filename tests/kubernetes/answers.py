"""What each answer and each fault means: the rows of the default table, for the tests and for docs/errors.md.

A row is an error of a call as the client libraries give it, and the verdict that it must get. `docs/generate_errors.py`
writes the page from the same rows, with what the code says of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp

from asyncdispatch.calls import Effect, FunctionCall, ObjectRef, VerdictKind
from asyncdispatch.kubernetes import ApiError, TransportError
from asyncdispatch.kubernetes.transport import transport_error_of
from tests.kubernetes.support import failure, plain

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
TWO_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


def about(name: str = "p", kind: str = "pods", **more: str) -> dict[str, Any]:
    """The details of an answer: what it is about."""
    return {"name": name, "kind": kind, **more}


def causes(reason: str, field: str = "") -> dict[str, Any]:
    return {"causes": [{"reason": reason, "field": field, "message": "…"}]}


def lapsed(error: ApiError) -> ApiError:
    """As the adapters mark it if the server may have just started."""
    error.passing = True
    return error


def here(condition: str) -> Any:
    """What LATER waits by."""
    return (condition, "ns", "cluster")


@dataclass(frozen=True)
class Row:
    """An error of a call, what its verdict must be, and why; an empty `why` is that of the row before."""

    of: FunctionCall[None]
    error: BaseException
    kind: VerdictKind
    why: str = ""
    maybe: bool = False
    wait: float | None = None
    scope: Any = None


SECTIONS: dict[str, dict[str, Row]] = {
    "Too much, for now": {
        "the server is full (text, not a Status)": Row(
            *(PATCH, plain(429, "Too many requests, please try again later.", headers={"Retry-After": "1"}), RETRY),
            "Priority and Fairness refused it before anything was done. Cuts the seats.",
            wait=1,
        ),
        "watch cache is being filled": Row(PATCH, failure(429, "storage is (re)initializing"), RETRY),
        "budget is used up": Row(
            *(PATCH, failure(429, details=causes("DisruptionBudget")), LATER),
            "Nobody's overload: a Pod has to become ready elsewhere first (R2).",
            wait=5,
            scope=here("disruption budget"),
        ),
        "budget was not looked at yet": Row(
            *(PATCH, failure(429, details=causes("DisruptionBudget"), headers={"Retry-After": "10"}), LATER),
            wait=10,
            scope=here("disruption budget"),
        ),
        "exceeded quota": Row(
            *(CREATE, failure(403, QUOTA, reason="Forbidden"), LATER),
            "Passes when something else goes (R2).",
            wait=5,
            scope=here("quota"),
        ),
        "quota not counted yet": Row(
            CREATE,
            failure(403, 'pods "p" is forbidden: status unknown for quota: q', reason="Forbidden"),
            LATER,
            scope=here("quota"),
        ),
        "conflict about a quota": Row(
            *(CREATE, failure(409, details=about("q", "resourcequotas")), LATER),
            "Not about the target: there is nothing to read or rebase, the same request may pass (R5).",
            scope=here("resourcequotas q"),
        ),
        "failed quota: requests are missing": Row(
            *(CREATE, failure(403, "failed quota: q: must specify limits.cpu", reason="Forbidden"), PERMANENT),
            "Never passes unless the object or the quota is changed (R12).",
        ),
    },
    "The server's own faults": {
        "etcd timed out": Row(
            *(PATCH, failure(500, "etcdserver: request timed out"), RETRY),
            "It may have been stored (L10).",
            maybe=True,
        ),
        "etcd has a new leader": Row(CREATE, failure(500, "etcdserver: leader changed"), RETRY, maybe=True),
        "a read": Row(READ, failure(500, "etcdserver: request timed out"), RETRY, "Reads change nothing."),
        "with Retry-After": Row(
            *(PATCH, failure(500, headers={"Retry-After": "2"}), RETRY),
            "Refused before storage: it would not ask to come again otherwise (L10).",
            wait=2,
        ),
        "with retryAfterSeconds in the body only": Row(
            *(PATCH, failure(500, details=PAUSE), RETRY),
            "A pause to keep, and no proof: that is the header alone.",
            maybe=True,
            wait=4,
        ),
        "two budgets match": Row(
            *(PATCH, failure(500, TWO_BUDGETS), RETRY),
            "The same 500 five times over is PERMANENT, but for etcd's and webhooks' (R12).",
            maybe=True,
        ),
        "bad gateway": Row(PATCH, plain(502, "Bad Gateway"), RETRY, "Whoever answered, the write may be there.", True),
        "unavailable": Row(PATCH, plain(503, ""), RETRY, maybe=True),
        "unavailable, with Retry-After: 0": Row(
            *(PATCH, plain(503, "", headers={"Retry-After": "0"}), RETRY),
            "Refused before storage; the pause has a floor (R17).",
            wait=0,
        ),
        "timed out": Row(
            CREATE, failure(504, "Timeout", reason="Timeout"), RETRY, "Whoever answered, the write may be there.", True
        ),
        "a proxy's own code": Row(PATCH, plain(524, "A timeout occurred"), RETRY, maybe=True),
        "a proxy gave up waiting": Row(PATCH, plain(408, "Request Timeout"), RETRY, maybe=True),
        "success that is no JSON object": Row(
            PATCH, ApiError(200, "Unreadable", request="PATCH /x"), RETRY, "Something in between has answered.", True
        ),
        "a read's success that is no JSON object": Row(READ, ApiError(200, "Unreadable", request="GET /x"), RETRY),
        "not done here at all": Row(PATCH, failure(501, "not implemented"), PERMANENT, "Never passes (R12)."),
        "another protocol": Row(PATCH, plain(505, "HTTP Version Not Supported"), PERMANENT),
    },
    "Webhooks and policies": {
        **{
            f"webhook denies as {code}": Row(
                CREATE,
                failure(code, DENIED),
                PERMANENT,
                "A denial, whatever its code: the message proves it (R12)." if code == 400 else "",
            )
            for code in (400, 401, 403, 404, 409, 422, 429, 500, 503)
        },
        "policy denies": Row(PATCH, failure(422, POLICY, reason="Invalid"), PERMANENT),
        "policy denies as 401": Row(PATCH, failure(401, POLICY), PERMANENT),
        "webhook can't be called": Row(
            *(CREATE, failure(500, CALLING, reason="InternalError"), RETRY),
            "It is asked before anything is stored. Comes and goes, so five times is not enough for PERMANENT.",
        ),
    },
    "Credentials and rights": {
        "not authenticated": Row(
            *(PATCH, failure(401, "Unauthorized"), HOLD),
            "All calls of these credentials wait behind one probe while they are read anew (R4).",
            scope="cluster",
        ),
        "a proxy does not know us": Row(PATCH, plain(407, "Proxy Authentication Required"), HOLD, scope="cluster"),
        "certificate not trusted": Row(
            *(PATCH, TransportError("certificate verify failed", sent=False, credentials=True), HOLD),
            "Never sent; the authority may have been replaced, and is read anew (R4).",
            scope="cluster",
        ),
        "no right": Row(
            *(PATCH, failure(403, 'User "x" cannot patch resource "pods"', reason="Forbidden"), PERMANENT),
            "Never passes unless somebody grants it.",
        ),
        "no right yet": Row(
            *(PATCH, lapsed(failure(403, 'User "x" cannot patch resource "pods"', reason="Forbidden")), LATER),
            "It has worked, or a connection just failed: the server has yet to read its roles. For good after 30 s.",
            scope=here("roles"),
        ),
    },
    "Not there (yet), or going": {
        "the object": Row(
            *(PATCH, failure(404, details=about()), GONE),
            "The answer names the target (R11). Cancels what waits for the object.",
        ),
        "the object, by kind": Row(READ, failure(404, details=about(kind="Pod")), GONE),
        "the object of a subresource": Row(PATCH, failure(404, details=about(kind="pods/binding")), GONE),
        "the namespace itself": Row(NAMESPACE, failure(404, details=about("ns", "namespaces")), GONE),
        "our own reading found another uid, or none": Row(PATCH, ApiError(404, gone=True), GONE),
        "another uid in the body": Row(PATCH, failure(422, details=causes("FieldValueInvalid", "metadata.uid")), GONE),
        "uid in a create": Row(
            *(CREATE, failure(422, details=causes("FieldValueInvalid", "metadata.uid")), PERMANENT),
            "A create means no object in particular.",
        ),
        "namespace is being deleted, create": Row(
            *(CREATE, failure(403, details=causes("NamespaceTerminating")), GONE),
            "Nothing will be made in it any more; patches and deletes there still pass.",
        ),
        "namespace is being deleted, other writes": Row(
            *(PATCH, failure(403, details=causes("NamespaceTerminating")), PERMANENT),
            "To the server, binds and evictions are creates as well. Their Pod is still there.",
        ),
        "name held by a dying object": Row(
            *(CREATE, failure(409, DYING, reason="AlreadyExists", details=about()), LATER),
            "Free once its finalizers are done (R5).",
        ),
        "service account missing": Row(
            *(CREATE, failure(403, NO_ACCOUNT, reason="Forbidden"), LATER),
            "About to appear: it is made a moment after its namespace (R2).",
            scope=here("service account"),
        ),
        "namespace missing": Row(
            *(CREATE, failure(404, details=about("ns", "namespaces")), LATER),
            "May be about to appear; bounded by the call's own time (R11). With a uid, binds and evictions read.",
            scope=here("namespace"),
        ),
        "path not served (text, not a Status)": Row(
            PATCH, plain(404, "404 page not found\n"), LATER, scope=here("path of v1 Pod")
        ),
        "resource not served": Row(PATCH, failure(404, details={}), LATER, scope=here("path of v1 Pod")),
        "something that it refers to": Row(
            PATCH, failure(404, details=about("q", "secrets")), LATER, scope=here("secrets q")
        ),
        "another object of the kind": Row(PATCH, failure(404, details=about("q")), LATER, scope=here("pods q")),
        "one of another API group": Row(
            PATCH, failure(404, details=about(group="example.com")), LATER, scope=here("pods p")
        ),
        "the very object of a create": Row(CREATE, failure(404, details=about()), LATER, scope=here("pods p")),
    },
    "Conflicts": {
        "stale version": Row(
            *(PATCH, failure(409, "modified", reason="Conflict", details=about()), RECONCILE),
            "One fresh read decides: done already, again on the new state, or refused. It may be our own (R5).",
        ),
        "second bind": Row(
            PATCH, failure(409, "already assigned to node", details=about(kind="pods/binding")), RECONCILE
        ),
        "names nothing": Row(PATCH, plain(409, "conflict"), RECONCILE),
        "name is taken": Row(CREATE, failure(409, reason="AlreadyExists", details=about()), RECONCILE),
        "name that the server drew is taken": Row(
            *(GENERATED, failure(409, reason="AlreadyExists", details=about("job-x1")), RETRY),
            "It draws another one.",
        ),
        "about another object": Row(
            *(PATCH, failure(409, details=about("q")), LATER),
            "Not about the target: the same request may pass (R5).",
            scope=here("pods q"),
        ),
        "between appliers": Row(
            *(PATCH, failure(409, details={**about(), **causes("FieldManagerConflict")}), PERMANENT),
            "Somebody else owns the field: its caller has to decide.",
        ),
    },
    "What can never pass": {
        **{
            what: Row(PATCH, failure(code, "no"), PERMANENT, "Never passes as it is (R12)." if code == 400 else "")
            for what, code in {
                "bad request": 400,
                "payment required": 402,
                "method not allowed": 405,
                "not acceptable": 406,
                "body too large": 413,
                "patch type not known": 415,
                "invalid": 422,
                "headers too large": 431,
            }.items()
        },
        "hint for a bound Pod": Row(
            PATCH, failure(422, details=causes("FieldValueForbidden", "status.nominatedNodeName")), PERMANENT
        ),
        "field too long": Row(CREATE, failure(422, details=causes("FieldValueTooLong", "data")), PERMANENT),
        "too large for etcd": Row(
            *(CREATE, failure(500, "etcdserver: request is too large"), PERMANENT),
            "Under a code of the server's fault, and yet for ever (R12). The error states the body's size.",
        ),
        "too large for the way to etcd": Row(CREATE, failure(500, "trying to send message larger than max"), PERMANENT),
        "version or page too old": Row(
            *(READ, failure(410, "too old resource version", reason="Expired"), PERMANENT),
            "The caller has to list again.",
        ),
        "redirect": Row(
            *(PATCH, plain(302, ""), PERMANENT),
            "Not followed: it would send credentials to who knows whom.",
        ),
    },
    "No answer": {
        "connection reset or closed": Row(
            *(PATCH, TransportError("reset", sent=True, request="PATCH /x"), RETRY),
            "The write may be there (L10).",
            maybe=True,
        ),
        "closed without an answer": Row(PATCH, aiohttp.ServerDisconnectedError(), RETRY, maybe=True),
        "answer cut short": Row(PATCH, aiohttp.ClientPayloadError(), RETRY, maybe=True),
        "broken pipe": Row(PATCH, BrokenPipeError(), RETRY, maybe=True),
        "no answer in time": Row(PATCH, TimeoutError(), RETRY, maybe=True),
        "answer to a reading one lost": Row(
            PATCH, TransportError("reset", sent=True, request="GET /x"), RETRY, "A read of a write changes nothing."
        ),
        "a write's own reading failed": Row(PATCH, failure(500, request="GET /x"), RETRY),
        "never sent": Row(
            *(CREATE, TransportError("refused", sent=False, request="POST /x"), RETRY),
            "Refused, not resolved, no handshake: no server has seen it.",
        ),
        "no free connection in time": Row(
            CREATE, transport_error_of(aiohttp.ConnectionTimeoutError(), "POST /x"), RETRY
        ),
    },
}

ROWS = {f"{title}: {what}": row for title, rows in SECTIONS.items() for what, row in rows.items()}
