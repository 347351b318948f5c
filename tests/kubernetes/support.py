"""What the tests of this package share: errors as servers give them, and calls driven without a dispatcher."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from asyncdispatch.calls import APICall, Attempt, VerdictKind
from asyncdispatch.kubernetes import ApiError

Json = dict[str, Any]


def attempt_at(call: APICall[Any], *, number: int = 1, seconds: float = 5.0, ticket: int = 7) -> Attempt:
    """An attempt as the dispatcher would make it, by the clock of the running loop."""
    clock = asyncio.get_running_loop().time
    return Attempt(clock, call, ticket, number, clock() + seconds, None)


def still_attempt(call: APICall[Any]) -> Attempt:
    """An attempt whose clock stands still, for what needs no loop."""
    return Attempt(lambda: 0.0, call, 7, 1, 5.0, None)


def failure(
    code: int,
    message: str = "",
    *,
    reason: str = "",
    details: Json | None = None,
    headers: dict[str, str] | None = None,
    request: str = "PATCH /api/v1/namespaces/ns/pods/p",
) -> ApiError:
    """An answer with a Status in it."""
    status: Json = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    if reason:
        status["reason"] = reason
    if details is not None:
        status["details"] = details
    return ApiError(code, body=json.dumps(status), headers=headers, request=request, request_size=321)


def plain(code: int, text: str, *, headers: dict[str, str] | None = None, request: str = "PATCH /x") -> ApiError:
    """An answer in plain text, as of a proxy or of the server's own filters."""
    return ApiError(code, body=text, headers=headers, request=request)


def pod_dict(name: str = "p", *, uid: str | None = "u1", version: str | None = "5", **spec: Any) -> Json:
    """A Pod as a server might send it."""
    meta = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": version}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: value for key, value in meta.items() if value is not None},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
        "status": {"phase": "Pending"},
    }


class FakeClient:
    """What `Cluster` needs of a client in order to make calls that are never sent."""

    class Configuration:
        host = "https://user:secret@api.example:6443/"
        proxy = proxy_headers = tls_server_name = refresh_api_key_hook = None

        async def auth_settings(self) -> Json:
            return {}

    class Rest:
        pool_manager = None

    def __init__(self) -> None:
        self.configuration = self.Configuration()
        self.rest_client = self.Rest()
        self.default_headers: dict[str, str] = {}
        self.cookie = None


async def tried(call: APICall[Any], *, number: int = 1) -> Any:
    """One attempt as the dispatcher makes it: the value, or what became of it by `classify` and, if asked, `reconcile`.

    Errors that no reconcile settles are returned as (error, verdict).
    """
    attempt = attempt_at(call, number=number)
    try:
        return await call.execute(attempt)
    except Exception as error:
        verdict = call.classify(attempt, error)  # type: ignore[attr-defined]
        if verdict is not None and verdict.kind is VerdictKind.RECONCILE:
            return await call.reconcile(attempt_at(call, number=number), error)
        return error, verdict
