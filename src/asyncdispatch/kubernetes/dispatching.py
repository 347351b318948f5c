"""`DispatchingApiClient`: an existing typed client whose calls go through a dispatcher.

A generated API class makes a request out of its method's arguments, hands it to its ApiClient's REST layer, and makes a
model out of the answer. The client here is the one that was given, but for that REST layer: between request and answer
stands the dispatcher. So results, exceptions and settings are the client's own, for kubernetes_asyncio and for the
official kubernetes.aio alike.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from asyncdispatch.calls import APICall, Effect, FunctionCall, ObjectRef, validate_call
from asyncdispatch.dispatcher import Dispatcher
from asyncdispatch.errors import AmbiguousOutcome, CallFailed, ConfigurationError, PrerequisiteFailed
from asyncdispatch.kubernetes._requests import (
    Operation,
    Place,
    is_stream,
    kind_known,
    operation_of,
    place_of,
    server_operation,
)
from asyncdispatch.kubernetes._typed import Answer, Credentials, Request, SettledRequest, TypedRequest, surface
from asyncdispatch.kubernetes.marks import checked_key, marked
from asyncdispatch.kubernetes.objects import priority_of
from asyncdispatch.kubernetes.resources import group_path
from asyncdispatch.kubernetes.transport import Transport

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient as _Base
else:
    _Base = object

__all__ = ["DispatchingApiClient"]

Options = Mapping[str, Any]

CALL_OPTIONS = frozenset(field.name for field in dataclasses.fields(APICall)) - {
    "call_type",
    "effect",
    "target",
    "version",
}
"""The fields of a call that the request itself does not say."""

_CREDENTIALS = "asyncdispatch-credentials"  # under which a request's headers say how to get them

_options: ContextVar[Mapping[Any, Options]] = ContextVar("asyncdispatch_options", default=MappingProxyType({}))


class DispatchingApiClient(_Base):
    """An ApiClient whose requests are calls of `dispatcher`: `CoreV1Api(DispatchingApiClient(dispatcher, api_client))`.

    It is an instance of `api_client`'s class and shares all that it has: configuration, headers, connections. Closing
    either closes both; keep it open until the dispatcher has ended. `options` maps call types to fields of their calls
    (`{"pod_binding": {"priority": 1000}}`); `client.options(…)` gives fields for a block of code.

    Each request waits for room, as `Dispatcher.run` does, and ends as the client itself would have ended it: with the
    same result, or the same exception. What only a dispatcher can say is raised as its own: `AmbiguousOutcome`,
    `DeadlineExpired`, `CallCancelled`, `CallSkipped`, `CallOverwritten`, `CallShed`, `PrerequisiteFailed`,
    `StaleContext`, `DispatcherClosed`. Cancelling the task that waits cancels the call. Watches, followed logs, exec,
    attach, port-forward and proxies pass straight through.

    Raises `ConfigurationError` for what is no dispatcher, no ApiClient, or no option.
    """

    def __new__(cls, dispatcher: Dispatcher, api_client: Any, *, options: Mapping[str, Options] | None = None) -> Any:
        _check_parts(dispatcher, api_client)
        pair: tuple[Any, Any] = (cls, type(api_client))
        return object.__new__(_class_over(*pair))

    def __init__(
        self, dispatcher: Dispatcher, api_client: Any, *, options: Mapping[str, Options] | None = None
    ) -> None:
        object.__setattr__(self, "_client", api_client)
        object.__setattr__(self, "rest_client", _DispatchingRest(dispatcher, api_client, _checked_defaults(options)))

    @contextmanager
    def options(self, **fields: Any) -> Iterator[None]:
        """Within the block, requests of this client that are awaited here have these fields of `APICall`.

        `with client.options(priority=pod.spec.priority, context=context): await v1.patch_namespaced_pod(…)`. Blocks may
        be nested; the inner one wins. Tasks that are started in a block keep its fields. `ordered` counts for reads
        only. Raises `ConfigurationError` for a field that is not known, or a value that can't be meant.
        """
        table = _options.get()
        both = {**table.get(self.rest_client, {}), **_checked_options("options", fields)}
        token = _options.set({**table, self.rest_client: both})
        try:
            yield
        finally:
            _options.reset(token)

    if TYPE_CHECKING:
        _client: Any
        rest_client: Any
    else:

        def __repr__(self) -> str:
            return f"<DispatchingApiClient over {type(self._client).__name__} {self.rest_client.transport.server}>"

        async def update_params_for_auth(self, headers, queries, auth_settings, *args, **kwargs) -> None:
            """Put off the credentials to when the request starts: a token may be replaced while it waits."""
            ask = functools.partial(_ask, self._client, auth_settings, args, kwargs)
            if self.rest_client.bypassed or kwargs.get("request_auth"):
                await self._client.update_params_for_auth(headers, queries, auth_settings, *args, **kwargs)
            elif auth_settings:
                headers[_CREDENTIALS] = ask

        def __getattr__(self, name: str) -> Any:
            if name == "_client":  # not made by us: a copy, or half unpickled
                raise AttributeError(name)
            return getattr(self._client, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self._client, name, value)


async def _ask(
    client: Any, auth_settings: Any, args: tuple[Any, ...], kwargs: Options, headers: dict[str, Any]
) -> None:
    await client.update_params_for_auth(headers, [], auth_settings, *args, **kwargs)


@functools.cache
def _class_over(cls: Any, kind: Any) -> type:
    """Both in one: what the client's class does, with our REST layer below it."""
    return type(cls.__name__, (cls, kind), {"__module__": cls.__module__, "__doc__": cls.__doc__})


class _DispatchingRest:
    """The client's REST layer, with a dispatcher in between. What it does not define is the client's."""

    def __init__(self, dispatcher: Dispatcher, client: Any, defaults: Mapping[str, Options]) -> None:
        self.__dict__.update(
            dispatcher=dispatcher,
            transport=Transport(client),
            # A client for WebSockets never asks its REST layer.
            bypassed=any(base.__name__ == "WsApiClient" for base in type(client).__mro__),
            _client=client,
            _rest=client.rest_client,
            _defaults=defaults,
            _kinds={},
        )

    if TYPE_CHECKING:
        dispatcher: Dispatcher
        transport: Transport
        bypassed: bool
        _client: Any
        _rest: Any
        _defaults: Mapping[str, Options]
        _kinds: dict[tuple[str, str], str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_rest"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._rest, name, value)

    async def request(self, method: str, url: str, *, headers: Mapping[str, Any] | None = None, **given: Any) -> Any:
        """Send one request as a call, or straight through if it is a stream. Returns what the client's own returns."""
        left = dict(headers or {})
        credentials: Credentials | None = left.pop(_CREDENTIALS, None)
        path, query = self._read(url, given.get("query_params"))
        place = place_of(path)
        if is_stream(path, place, query):
            if credentials is not None:
                await credentials(left)
            return await self._rest.request(method, url, headers=left, **given)
        request = Request(self._rest, method, url, path, left, credentials, given, self.transport.rights)
        operation = await self._operation(request, place, query)
        try:
            answer = await self.dispatcher.run(self._call(request, operation))
        except (AmbiguousOutcome, PrerequisiteFailed):
            raise
        except CallFailed as failed:
            error = failed.__cause__
        else:
            return answer.own()
        return surface(self._rest, error or AssertionError("a failure has a cause"))

    # kubernetes_asyncio asks by verb
    GET = functools.partialmethod(request, "GET")
    HEAD = functools.partialmethod(request, "HEAD")
    OPTIONS = functools.partialmethod(request, "OPTIONS")
    POST = functools.partialmethod(request, "POST")
    PUT = functools.partialmethod(request, "PUT")
    PATCH = functools.partialmethod(request, "PATCH")
    DELETE = functools.partialmethod(request, "DELETE")

    def _read(self, url: str, params: Any) -> tuple[str, dict[str, str]]:
        """Path below the server's address, and query. The one client gives its query apart, the other in the URL."""
        found, _, query = url.partition("?")
        path = found.removeprefix(self._client.configuration.host.rstrip("/"))
        if not path.startswith("/"):
            path = urlsplit(found).path
        pairs = parse_qsl(query) if query else []
        return path, {str(key): str(value) for key, value in (*pairs, *(params or ()))}

    # -- from request to call -------------------------------------------------------------------------------------

    async def _operation(self, request: Request, place: Place | None, query: Mapping[str, str]) -> Operation:
        if place is None:
            return server_operation(request.method, request.path)
        body = request.arguments.get("body")
        kind = kind_known(place, body) or self._kinds.get((place.api_version, place.plural))
        if kind is None:
            kind = await self._discover(request, place)
        return operation_of(request.method, place, kind, query, body)

    async def _discover(self, request: Request, place: Place) -> str:
        """The kind behind a plural that is not built in, by what the server says: once per group and version.

        Lanes are by kind, so that a request here meets those of `Cluster` for the same object. If the server does not
        know, or will not tell, the plural has to do.
        """
        path = group_path(place.api_version)
        operation = server_operation("GET", path)
        call = self._call(request.beside(path), operation, key=("discovery", path))
        try:
            answer: Answer = await self.dispatcher.run(call)
        except CallFailed:
            return place.plural
        entries = answer.json().get("resources")
        for entry in entries if isinstance(entries, list) else ():
            plural, kind = entry.get("name"), entry.get("kind")
            if isinstance(plural, str) and isinstance(kind, str) and kind and "/" not in plural:
                self._kinds[place.api_version, plural] = kind
        return self._kinds.get((place.api_version, place.plural), place.plural)

    def _call(self, request: Request, operation: Operation, *, key: Any = None) -> APICall[Answer]:
        body = request.arguments.get("body")
        fields: dict[str, Any] = {"scope": self._client, "priority": priority_of(body)}
        if operation.node is not None:
            fields["awaits_prerequisites"] = True
        if key is None:
            fields |= self._defaults.get(operation.call_type, {})
            fields |= _options.get().get(self, {})
        else:  # a question of our own, on behalf of the request that follows it
            given = _options.get().get(self, {})
            fields |= {name: given[name] for name in ("flow", "priority", "retry", "scope", "timeout") if name in given}
            fields["idempotency_key"] = key
        fields |= {
            "call_type": operation.call_type,
            "target": operation.target,
            "effect": operation.effect,
            "version": operation.version,
            "plural": operation.plural,
            "repeatable": operation.repeatable,
            "request": request,
        }
        if operation.effect is Effect.READ:
            fields["idempotency_key"] = _key_of_read(request, fields.get("idempotency_key"))
            return TypedRequest(**fields)
        fields.pop("ordered", None)
        if operation.node is not None:
            node = ObjectRef("v1", "Node", None, operation.node)
            fields["depends_on"] = (*fields.get("depends_on", ()), node)
            return SettledRequest(**fields, transport=self.transport, node=operation.node)
        fields["removes"] = operation.removes
        if operation.removes and operation.repeatable:
            return SettledRequest(**fields, transport=self.transport)
        if operation.effect is Effect.CREATE and isinstance(body, dict) and not operation.target.generated:
            if (mark := checked_key(fields.get("idempotency_key"))) is not None:
                body = marked(body, mark, label=False)
                fields["request"] = dataclasses.replace(request, arguments={**request.arguments, "body": body})
            return SettledRequest(**fields, transport=self.transport, body=body)
        return TypedRequest(**fields)


def _key_of_read(request: Request, given: Any) -> Any:
    """What an equal read must share to join this one; without a key of the caller's, nothing does.

    A read that was sent earlier may be answered with an older state than this one's caller has seen already.
    """
    if given is None:
        return object()
    arguments = request.arguments
    accept = tuple(sorted((key.lower(), str(value)) for key, value in request.headers.items()))
    params = tuple(map(str, arguments.get("query_params") or ()))
    return (given, request.method, request.url, params, accept, arguments.get("_preload_content", True))


# -- checking ---------------------------------------------------------------------------------------------------------


def _check_parts(dispatcher: Any, api_client: Any) -> None:
    if not isinstance(dispatcher, Dispatcher):
        raise ConfigurationError("dispatcher", dispatcher, "must be a Dispatcher")
    if isinstance(api_client, DispatchingApiClient):
        raise ConfigurationError("api_client", api_client, "is dispatched already: pass the client that it was made of")
    Transport(api_client)  # checks what it needs
    for name in ("call_api", "update_params_for_auth", "rest_client.request"):
        found: Any = functools.reduce(lambda part, step: getattr(part, step, None), name.split("."), api_client)
        if not callable(found):
            kind = type(api_client).__name__
            remedy = f"must be kubernetes_asyncio's or kubernetes.aio's ApiClient: a {kind} has no {name}"
            raise ConfigurationError("api_client", kind, remedy)


def _checked_defaults(options: Any) -> Mapping[str, Options]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigurationError("options", options, "must be a mapping from call types to mappings of fields")
    for call_type, fields in options.items():
        if not isinstance(call_type, str) or not call_type:
            raise ConfigurationError("options", call_type, "must have call types for keys, such as 'pod_binding'")
        if not isinstance(fields, Mapping):
            raise ConfigurationError(f"options[{call_type!r}]", fields, "must be a mapping of fields")
    return {
        call_type: dict(_checked_options(f"options[{call_type!r}]", fields)) for call_type, fields in options.items()
    }


def _checked_options(label: str, fields: Options) -> Options:
    """`fields` if each is an option with a value that can be meant."""
    for name in fields:
        if name not in CALL_OPTIONS:
            known = ", ".join(sorted(CALL_OPTIONS))
            raise ConfigurationError(f"{label}.{name}", fields[name], f"is no option of a call; there are {known}")
    # What goes together with what is checked with each call: one block may give the context, another the rest.
    single = {name: value for name, value in fields.items() if name not in ("prerequisite", "ordered")}
    probe: Callable[[Any], Awaitable[None]] = _nothing
    validate_call(FunctionCall(probe, call_type="options", target=_ANY, effect=Effect.READ, **single))
    return fields


async def _nothing(attempt: Any) -> None: ...


_ANY = ObjectRef("v1", "Any", None, "any")
