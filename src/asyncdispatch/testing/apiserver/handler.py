"""Connections: reads requests, lets the faults have their say, sends answers, keeps the audit list."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from asyncdispatch.testing.apiserver.access import Access, check
from asyncdispatch.testing.apiserver.answers import Answer, status_answer
from asyncdispatch.testing.apiserver.api import API, BODY_LIMIT, Request, Result
from asyncdispatch.testing.apiserver.audit import AuditRecord
from asyncdispatch.testing.apiserver.connections import Connection, CutError, Sender
from asyncdispatch.testing.apiserver.faults import Draw, FaultList, Plan
from asyncdispatch.testing.apiserver.kinds import child
from asyncdispatch.testing.apiserver.routing import route
from asyncdispatch.testing.apiserver.status import StatusError
from asyncdispatch.testing.apiserver.watch import WatchStream

log = logging.getLogger(__name__)


class Handler:
    """What every connection's requests go through. One per server."""

    def __init__(
        self,
        api: API,
        access: Access,
        faults: FaultList,
        audit: list[AuditRecord],
        *,
        latency: Draw,
        seed: int,
        time: Callable[[], float],
    ) -> None:
        self.latency = latency
        self.watches: set[WatchStream] = set()
        """The watches that are open."""
        self._api = api
        self._access = access
        self._faults = faults
        self._audit = audit
        self._time = time
        self._random = random.Random(f"latency {seed}")

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """One request, from its arrival to its answer."""
        raw: bytes | None
        try:
            raw = await http.read()
        except (web.HTTPRequestEntityTooLarge, HttpProcessingError):
            raw = None
        request = self._decode(http, raw)
        user = self._access.user(http.headers.get("Authorization", ""), _certified(http))
        entry = _Entry(self._audit, _arrival(len(self._audit) + 1, http, request, user, self._time()))
        try:
            return await self._serve(http, request, user, entry)
        except Exception:
            # A hook, a predicate or a drawn delay of the test's, or a fault of this server: never the client's.
            log.exception("the embedded API server failed on %s %s", request.method, request.path)
            entry.ended(self._time(), 500, answered=True, fault=None)
            return _response(status_answer(StatusError(500, "the embedded server failed", reason="InternalError")))

    async def _serve(
        self, http: web.BaseRequest, request: Request, user: str | None, entry: _Entry
    ) -> web.StreamResponse:
        plan = self._faults.plan(entry.record) or Plan()
        travel = self.latency(self._random) / 2
        await _sleep(travel + plan.before)
        result = await self._carry_out(request, user, entry, plan)
        entry.landed(result, self._time())
        if result is not None and result.watch is not None and plan.ending is None:
            return await self._stream(http, result.watch, entry, plan)
        await _sleep(travel + plan.after)
        return await self._finish(http, entry, plan, result)

    def _decode(self, http: web.BaseRequest, raw: bytes | None) -> Request:
        """What was read; without `raw`, more than is ever read."""
        body, fault = parsed(raw or b"")
        size = BODY_LIMIT + 1 if raw is None else len(raw)
        content_type = http.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        target = self._api.locate(http.path)
        agent = http.headers.get("User-Agent", "")
        query = dict(http.query)
        return Request(http.method, http.path, query, content_type, body, fault, size, agent, target)

    async def _carry_out(self, request: Request, user: str | None, entry: _Entry, plan: Plan) -> Result | None:
        """What the API makes of the request; None if a fault ends it before that."""
        for hook in plan.hooks:
            waiting = hook(entry.record)
            if inspect.isawaitable(waiting):
                await waiting
        if plan.ending is not None and not plan.ending.applied:
            return None
        try:
            check(entry.record, user)
        except StatusError as error:
            return Result(status_answer(error))
        return self._api.handle(request)

    async def _finish(
        self, http: web.BaseRequest, entry: _Entry, plan: Plan, result: Result | None
    ) -> web.StreamResponse:
        """Answer, or do not; and say so in the audit list."""
        ending, connection = plan.ending, _connection(http)
        name = ending.name if ending is not None else plan.names[0] if plan.names else None
        if ending is not None and ending.answer is None:
            if ending.how == "dark":
                connection.wire.dark = True
            elif ending.how == "reset":
                connection.wire.reset()
            else:
                connection.wire.close()
            entry.ended(self._time(), None, answered=False, fault=name)
            return web.Response()  # goes nowhere: the connection is closed or dark
        answer = ending.answer if ending is not None else None
        if answer is None:
            assert result is not None
            answer = result.answer
        entry.ended(self._time(), answer.code, answered=connection.open, fault=name)
        response = _response(answer)
        if entry.record.audit_id is not None:
            response.headers["Audit-ID"] = entry.record.audit_id
        if plan.piece is None and plan.cut is None:
            return response
        return await _piecemeal(http, response, answer.body, plan)

    async def _stream(
        self, http: web.BaseRequest, stream: WatchStream, entry: _Entry, plan: Plan
    ) -> web.StreamResponse:
        """Send a watch until it ends or the client goes."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        stream.silent_after = plan.silent_after
        self.watches.add(stream)
        # A watch without events would not notice otherwise that its client has gone.
        connection = _connection(http)
        connection.lost = stream.close
        sender = Sender(response, connection, plan)
        entry.ended(self._time(), 200, answered=True, fault=plan.names[0] if plan.names else None)
        try:
            await response.prepare(http)
            async for lines in stream.lines():
                await sender.write(lines)
            await response.write_eof()
        except (ConnectionResetError, CutError):
            pass  # the client left, or the connection was closed on it
        finally:
            connection.lost = None
            self.watches.discard(stream)
            entry.record = replace(entry.record, finished=self._time())
        return response


class _Entry:
    """The place of one request in the audit list."""

    def __init__(self, audit: list[AuditRecord], record: AuditRecord) -> None:
        self._audit = audit
        self._record = record
        audit.append(record)

    @property
    def record(self) -> AuditRecord:
        return self._record

    @record.setter
    def record(self, record: AuditRecord) -> None:
        # The list may have been cleared since; its numbers are then no places any more.
        index = self._record.number - 1
        if index < len(self._audit) and self._audit[index] is self._record:
            self._audit[index] = record
        self._record = record

    def landed(self, result: Result | None, now: float) -> None:
        """Note what was written, as soon as it is."""
        written = result.written if result is not None else None
        if written is None or not written.applied or written.stored is None:
            return
        stored = written.stored
        self.record = replace(
            self._record,
            applied=True,
            applied_at=now,
            resource_version=str(stored.version),
            uid=stored.uid,
            name=stored.key[1] if self._record.verb != "deletecollection" else "",
        )

    def ended(self, now: float, status: int | None, *, answered: bool, fault: str | None) -> None:
        self.record = replace(self._record, status=status, answered=answered, fault=fault, finished=now)


def _arrival(number: int, http: web.BaseRequest, request: Request, user: str | None, now: float) -> AuditRecord:
    target = request.target
    verb = name = ""
    if target is not None:
        try:
            verb = route(request.method, target, request.query).verb
        except StatusError:
            verb = ""
        name = target.name
        if not name and isinstance(request.body, dict):
            name = str(child(request.body, "metadata", "name") or "")
    return AuditRecord(
        number=number,
        method=request.method,
        path=request.path,
        query=request.query,
        audit_id=http.headers.get("Audit-ID"),
        user_agent=request.agent,
        content_type=request.content_type,
        body=request.body,
        verb=verb,
        api_version=target.resource.api_version if target else "",
        kind=target.resource.kind if target else "",
        namespace=target.namespace if target else "",
        name=name,
        subresource=target.subresource if target else "",
        dry_run=request.query.get("dryRun") == "All",
        time=now,
        user=user or "",
        resource=target.resource.plural if target else "",
    )


def parsed(raw: bytes) -> tuple[Any, str | None]:
    """The JSON value in `raw`; or its text and what is wrong with it."""
    if not raw:
        return None, None
    try:
        return json.loads(raw), None
    except ValueError as error:
        return raw.decode(errors="replace"), str(error)


def _response(answer: Answer) -> web.Response:
    headers = {"Content-Type": answer.content_type, **answer.headers}
    return web.Response(status=answer.code, body=answer.body, headers=headers)


async def _sleep(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)


async def _piecemeal(http: web.BaseRequest, response: web.Response, body: bytes, plan: Plan) -> web.StreamResponse:
    """Send an answer in pieces, or a part of it."""
    parted = web.StreamResponse(status=response.status, headers=response.headers)
    parted.content_length = len(body)
    try:
        await parted.prepare(http)
        await Sender(parted, _connection(http), plan).write(body)
    except (ConnectionResetError, CutError):
        pass
    return parted


def _connection(http: web.BaseRequest) -> Connection:
    connection = http.protocol
    assert isinstance(connection, Connection)
    return connection


def _certified(http: web.BaseRequest) -> str:
    """The common name in the client's certificate, or ""."""
    certificate = http.get_extra_info("peercert") or {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[0]) if names else ""
