"""One request to one answer, without connections: decodes, calls the verb, encodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from asyncdispatch.testing.apiserver import discovery, patches
from asyncdispatch.testing.apiserver.answers import TEXT, Answer, not_served, status_answer
from asyncdispatch.testing.apiserver.eviction import evict
from asyncdispatch.testing.apiserver.reading import Reader
from asyncdispatch.testing.apiserver.resources import Registry
from asyncdispatch.testing.apiserver.routing import Route, locate, route
from asyncdispatch.testing.apiserver.status import (
    Cause,
    Json,
    StatusError,
    bad_request,
    bare,
    body_too_large,
    invalid,
    method_not_allowed,
    unknown_patch,
    unsupported_media,
)
from asyncdispatch.testing.apiserver.store import Stored, dumps
from asyncdispatch.testing.apiserver.watch import WatchSettings, WatchStream
from asyncdispatch.testing.apiserver.writing import Target, Writer, Written

BODY_LIMIT = 3 * 1024 * 1024
STORAGE_LIMIT = 1536 * 1024
"""etcd's limit for one request."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it was read from the connection."""

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str
    """Without parameters, in lower case."""
    body: Any
    """Decoded JSON, or text."""
    fault: str | None
    """Why the body is not JSON."""
    size: int
    """Bytes of the body. One above BODY_LIMIT may be unread: the body is then None."""
    agent: str
    target: Target | None


@dataclass(frozen=True, slots=True)
class Result:
    """An answer or a watch, and what was written."""

    answer: Answer
    watch: WatchStream | None = None
    written: Written | None = None


class API:
    """The verbs behind their paths."""

    def __init__(
        self,
        registry: Registry,
        reader: Reader,
        writer: Writer,
        watches: WatchSettings,
        time: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._reader = reader
        self._writer = writer
        self._watches = watches
        self._time = time

    def locate(self, path: str) -> Target | None:
        return locate(self._registry, path)

    def handle(self, request: Request) -> Result:
        """Carry out a request. Never raises for what a client may do wrong: that is an answer."""
        try:
            if request.target is None:
                return self._elsewhere(request)
            return self._verb(request, route(request.method, request.target, request.query))
        except StatusError as error:
            return Result(status_answer(error))

    def _elsewhere(self, request: Request) -> Result:
        found = discovery.describe(self._registry, request.path)
        if found is None:
            return Result(not_served())
        if request.method != "GET":
            raise method_not_allowed()
        if isinstance(found, str):
            return Result(Answer(200, found.encode(), TEXT))
        return Result(Answer(200, dumps(found)))

    def _verb(self, request: Request, asked: Route) -> Result:
        target, query = asked.target, request.query
        if asked.verb == "get":
            return Result(Answer(200, self._reader.get(target, query).json()))
        if asked.verb == "list":
            page = self._reader.page(target.resource, target.namespace, query)
            return Result(Answer(200, self._reader.body(target.resource, page)))
        if asked.verb == "watch":
            stream = WatchStream(self._reader, target.resource, target.namespace, query, self._watches, self._time)
            return Result(Answer(200, b""), watch=stream)
        if asked.verb == "deletecollection":
            return self._delete_collection(request, target)
        written = self._write(request, asked)
        answer = written.answer
        body = answer.json() if isinstance(answer, Stored) else dumps(answer)
        return Result(Answer(written.code, body), written=written)

    def _write(self, request: Request, asked: Route) -> Written:
        target, writer = asked.target, self._writer
        dry_run = _dry_run(request.query)
        if asked.verb == "delete":
            return writer.delete(target, _delete_options(request), dry_run=dry_run, agent=request.agent)
        if asked.verb == "patch":
            _check_apply(request)
            if request.content_type not in patches.accepted(target.resource.custom):
                raise unknown_patch(target.resource.custom)
            body = _json(request)
            _check_size(request, _named(target, body))
            return writer.patch(target, request.content_type, body, dry_run=dry_run, agent=request.agent)
        if request.content_type not in ("", "application/json"):
            raise unsupported_media(("application/json",))
        body = _json(request)
        _check_size(request, _named(target, body))
        if asked.verb == "bind":
            return writer.bind(_named(target, body), body, dry_run=dry_run, agent=request.agent)
        if asked.verb == "evict":
            return evict(writer, target, body, dry_run=dry_run, agent=request.agent)
        verb = writer.create if asked.verb == "create" else writer.replace
        return verb(target, body, dry_run=dry_run, agent=request.agent)

    def _delete_collection(self, request: Request, target: Target) -> Result:
        dry_run, options = _dry_run(request.query), _delete_options(request)
        page = self._reader.page(target.resource, target.namespace, request.query)
        last: Written | None = None
        for stored in page.items:
            one = Target(target.resource, *stored.key)
            written = self._writer.delete(one, options, dry_run=dry_run, agent=request.agent)
            last = written if written.applied or last is None else last
        return Result(Answer(200, self._reader.body(target.resource, page)), written=last)


def _named(target: Target, body: Any) -> Target:
    """What is posted to a collection is for the object that its body names."""
    if target.name or not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        return target
    return replace(target, name=str(body["metadata"].get("name", "")))


def _json(request: Request) -> Any:
    if request.size > BODY_LIMIT:
        raise body_too_large(BODY_LIMIT)
    if request.fault is not None:
        raise bad_request(f"couldn't get version/kind; json parse error: {request.fault}")
    if request.body is None:
        raise bad_request("couldn't get version/kind; json parse error: unexpected end of JSON input")
    return request.body


def _dry_run(query: Mapping[str, str]) -> bool:
    value = query.get("dryRun", "")
    if value not in ("", "All"):
        cause = Cause("FieldValueNotSupported", f'Unsupported value: "{value}": supported values: "All"', "dryRun")
        raise invalid("meta.k8s.io", "Options", "", [cause])
    return value == "All"


def _delete_options(request: Request) -> Json:
    if request.body is not None or request.size > BODY_LIMIT:
        body = _json(request)
        if not isinstance(body, dict):
            raise bad_request("the object provided is unrecognized (must be of type DeleteOptions)")
        options = body
    else:
        options = {}
        grace = request.query.get("gracePeriodSeconds", "")
        if grace:
            options["gracePeriodSeconds"] = grace
    grace_seconds = options.get("gracePeriodSeconds")
    try:
        return options if grace_seconds is None else {**options, "gracePeriodSeconds": int(grace_seconds)}
    except (TypeError, ValueError):
        raise bad_request(f"gracePeriodSeconds: Invalid value: {grace_seconds!r}: must be an integer") from None


def _check_apply(request: Request) -> None:
    """Server-side apply is not served, but its first check is."""
    if request.content_type in patches.APPLY_TYPES and not request.query.get("fieldManager"):
        cause = Cause.required("fieldManager", "is required for apply patch")
        raise invalid("meta.k8s.io", "PatchOptions", "", [cause])


def _check_size(request: Request, target: Target) -> None:
    """What a body of this size runs into: the kind's limit, or that of storage."""
    limited = target.resource.kind in ("ConfigMap", "Secret") and not target.resource.group
    if limited and request.size > 1024 * 1024:
        cause = Cause("FieldValueTooLong", f"Too long: may not be more than {1024 * 1024} bytes", "[]")
        raise invalid("", target.resource.kind, target.name, [cause])
    if request.size > STORAGE_LIMIT:
        raise bare("etcdserver: request is too large")
