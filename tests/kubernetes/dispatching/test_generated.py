"""Every generated method of the installed clients is a well-formed call, or passes straight through on purpose."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_asyncio.client

from asyncdispatch import Dispatcher, Effect, RetryPolicy, Verdict, VerdictKind
from asyncdispatch.kubernetes import DispatchingApiClient
from asyncdispatch.kubernetes._requests import place_of, snake
from asyncdispatch.testing import EmbeddedAPIServer
from tests.kubernetes.dispatching.world import Seen

VERBS = {"create", "read", "list", "replace", "patch", "delete", "get", "connect"}
STREAMED = re.compile(r"connect_.*_(attach|exec|portforward|proxy)(_with_path)?|log_file_\w*handler")
PATH_VALUES = {"group": "example.com", "version": "v1", "plural": "widgets", "resource_plural": "widgets"}
EFFECTS = {
    "read": Effect.READ,
    "list": Effect.READ,
    "get": Effect.READ,
    "replace": Effect.IDEMPOTENT_WRITE,
    "patch": Effect.IDEMPOTENT_WRITE,
    "delete": Effect.IDEMPOTENT_WRITE,
}
NOT_STORED = re.compile(
    r"create_(namespaced_(pod_)?binding|namespaced_pod_eviction|namespaced_service_account_token|\w*_review)"
)


def methods(module: Any) -> Iterator[tuple[str, str]]:
    """API class and method, without the variants that return more or less of the same.

    Each API of the official client takes long to load, so what the other one has too is walked there only, but for
    Pods and custom resources.
    """
    first = module is kubernetes_asyncio.client
    for name in sorted(dir(module)):
        main = name in ("CoreV1Api", "CustomObjectsApi")
        again = not first and hasattr(kubernetes_asyncio.client, name)
        if not name.endswith("Api") or (again and not main):
            continue
        for method in sorted(vars(getattr(module, name))):
            if method.startswith("_") or method.endswith(("_with_http_info", "_without_preload_content")):
                continue
            if again and name == "CoreV1Api" and not re.search(r"_namespaced_pod(_|$)", method):
                continue
            if method.partition("_")[0] in VERBS or STREAMED.fullmatch(method):
                yield name, method
            else:
                assert method == "close", f"{name}.{method} is of an unknown kind"


def arguments(method: Any, module: Any) -> dict[str, Any]:
    """A value for each required parameter."""
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.default is not inspect.Parameter.empty or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        given[name] = (
            body(parameter, method.__name__, module) if name == "body" else PATH_VALUES.get(name, f"the-{name}")
        )
    return given


def body(parameter: inspect.Parameter, method: str, module: Any) -> Any:
    """Something that the client takes for a body."""
    meta = {"metadata": {"name": "the-name"}}
    found = re.search(r"\b(V\d\w*|CoreV1Event|EventsV1Event|\w+TokenRequest)\b", str(parameter.annotation))
    if found is None or method.startswith("patch"):
        return meta
    model = getattr(module, found.group(1))  # made without what it would insist on
    return model.model_construct(
        **dict.fromkeys(model.model_fields) | {"metadata": module.V1ObjectMeta(name="the-name")}
    )


def at_once(call: Any, attempt: Any, error: BaseException) -> Verdict:
    return Verdict(VerdictKind.PERMANENT)


ASKED = {"widgets", "compositepodgroups", "evictionrequests", "evictions"}
"""Plurals that no table knows, so that the server is asked: custom resources, and kinds that are alpha."""

AT_ONCE = RetryPolicy(classify=at_once)


async def test_every_method(server: EmbeddedAPIServer, api_client: Any, library: Any) -> None:
    """Called over HTTP with its path filled in; what the server says to it does not matter."""
    seen, streamed, checked, module = Seen(), 0, 0, library
    async with Dispatcher(observers=[seen]) as dispatcher:
        client = DispatchingApiClient(dispatcher, api_client)
        for api_name, method in methods(module):
            where = f"{api_name}.{method}"
            bound = getattr(getattr(module, api_name)(client), method)
            seen.calls.clear()
            before = len(server.audit)
            with contextlib.suppress(module.ApiException, ValueError, TypeError), client.options(retry=AT_ONCE):
                await bound(**arguments(bound, module))
            asked = server.audit[before:]
            assert asked, where
            if STREAMED.fullmatch(method):
                assert not seen.calls, where
                streamed += 1
            else:
                check(where, method, seen.last, asked[-1])
                checked += 1
    assert streamed > 10
    assert checked > (700 if library is kubernetes_asyncio.client else 40)


def check(where: str, method: str, call: Any, asked: Any) -> None:
    """Type, target and effect against the method's name and what reached the server."""
    verb = method.partition("_")[0]
    place = place_of(asked.path)
    if place is None:
        assert method.startswith("get_"), where
        assert call.call_type == "server_read", where
        return
    target = call.target
    assert target.api_version == place.api_version, where
    assert target.namespace == place.namespace, where
    assert target.name == (place.name or ("the-name" if verb == "create" else "*")), where
    assert call.plural == place.plural, where
    if place.plural not in ASKED:
        assert target.kind != place.plural, f"{where}: the kind of {place} is not known"
        assert re.fullmatch(r"[A-Z][A-Za-z]+", target.kind), where
        assert call.call_type.startswith(snake(target.kind)), where
    expected = EFFECTS.get(verb, Effect.CREATE)
    if NOT_STORED.fullmatch(method):
        expected = Effect.IDEMPOTENT_WRITE
    assert call.effect is expected, where
    assert re.fullmatch(r"[a-z][a-z0-9_]+", call.call_type), where
