"""OpenTelemetry spans of a dispatcher's calls: `Dispatcher(observers=(TracingObserver(),))`. Needs opentelemetry-api.

One span for each accepted call, from acceptance to its outcome, and below it one for each attempt; retries and
reconciles are events of it. A call outlives the
code that submits it and may end minutes later, so its span is the root of a trace of its own, linked to the span in
which it was submitted. The span of an attempt is current while the attempt runs: what an instrumented HTTP client
records stands below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from asyncdispatch.errors import ConfigurationError
from asyncdispatch.outcomes import Expired, Failed, Overwritten, Skipped

if TYPE_CHECKING:
    from contextvars import Token

    from asyncdispatch.calls import Verdict
    from asyncdispatch.handles import CallHandle
    from asyncdispatch.outcomes import AnyOutcome

__all__ = ["TracingObserver"]

MAX_TEXT = 256
"""Characters of an attribute; a call's object, type and flow are its submitter's words."""

MAX_ATTEMPTS = 32
"""Attempts of one call that get a span, and retries that get an event; later ones are only counted."""


class _Traced:
    """A call that has no outcome yet."""

    __slots__ = ("attempt", "retries", "span", "token")

    def __init__(self, span: trace.Span) -> None:
        self.span = span
        self.attempt: trace.Span | None = None
        self.token: Token[otel.Context] | None = None
        self.retries = 0


class TracingObserver:
    """Records spans with a tracer of `tracer_provider` (None: the global one, as it is when a span begins).

    Status ERROR is for calls that have failed or expired, and for attempts that have raised; whatever else ends a call
    was decided by somebody. Names are recorded, and no body, message or key. Its own errors end up in the dispatcher's
    log, and never harm a call. It belongs to one dispatcher.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        if tracer_provider is not None and not isinstance(tracer_provider, trace.TracerProvider):
            raise ConfigurationError("tracer_provider", tracer_provider, "must be a TracerProvider or None")
        self._tracer = trace.get_tracer("asyncdispatch", tracer_provider=tracer_provider)
        self._calls: dict[int, _Traced] = {}

    # -- what the dispatcher tells ------------------------------------------------------------------------------

    def accepted(self, handle: CallHandle[Any]) -> None:
        """Called in the submitter's own context."""
        submitter = trace.get_current_span().get_span_context()
        call, lead = handle.call, handle.lead
        attributes: dict[str, Any] = {
            "asyncdispatch.ticket": handle.ticket,
            "asyncdispatch.call_type": _cut(call.call_type),
            "asyncdispatch.flow": _cut(call.flow),
            "asyncdispatch.priority": call.priority,
            "asyncdispatch.effect": call.effect.value,
            "asyncdispatch.object": _cut(str(call.target)),
        }
        if call.target.namespace is not None:
            attributes["k8s.namespace.name"] = _cut(call.target.namespace)
        if call.context is not None:
            attributes["asyncdispatch.epoch"] = call.context.epoch
        links = [Link(submitter, {"asyncdispatch.link": "submitter"})] if submitter.is_valid else []
        if lead is not handle:
            attributes["asyncdispatch.joined"] = lead.ticket
            if (leading := self._calls.get(lead.ticket)) is not None:
                links.append(Link(leading.span.get_span_context(), {"asyncdispatch.link": "joined"}))
        span = self._tracer.start_span(
            _cut(call.call_type), context=otel.Context(), kind=SpanKind.PRODUCER, attributes=attributes, links=links
        )
        self._calls[handle.ticket] = _Traced(span)

    def started(self, handle: CallHandle[Any], number: int) -> None:
        """Called in the worker's context, right before the attempt: what is made current here is current there."""
        traced = self._calls.get(handle.ticket)
        if traced is None:
            return
        self._end_attempt(traced)
        above = trace.set_span_in_context(traced.span, otel.Context())
        if handle.more is not None and handle.more.reconciling:
            # Whoever asks what became of a request does so below the call; nobody tells when that has ended.
            traced.span.add_event("reconcile", {"asyncdispatch.attempt": number})
            otel.attach(above)
            return
        if number > MAX_ATTEMPTS:
            otel.attach(above)  # until the worker's next attempt
            return
        traced.attempt = self._tracer.start_span("attempt", context=above, attributes={"asyncdispatch.attempt": number})
        traced.token = otel.attach(trace.set_span_in_context(traced.attempt, above))

    def attempted(self, handle: CallHandle[Any], number: int, error: BaseException | None) -> None:
        traced = self._calls.get(handle.ticket)
        if traced is None:
            return
        if traced.attempt is not None and error is not None:
            _fail(traced.attempt, error)
        self._end_attempt(traced)

    def retried(self, handle: CallHandle[Any], verdict: Verdict, delay: float) -> None:
        traced = self._calls.get(handle.ticket)
        if traced is None:
            return
        traced.retries += 1
        if traced.retries <= MAX_ATTEMPTS:
            attributes = {"asyncdispatch.verdict": verdict.kind.value, "asyncdispatch.delay": delay}
            traced.span.add_event("retry", attributes)

    def settled(self, handle: CallHandle[Any], outcome: AnyOutcome) -> None:
        traced = self._calls.pop(handle.ticket, None)
        if traced is None:
            return
        self._end_attempt(traced)
        span = traced.span
        span.set_attributes(
            {
                "asyncdispatch.outcome": type(outcome).__name__.lower(),
                "asyncdispatch.attempts": outcome.attempts,
                "asyncdispatch.queued_seconds": outcome.queued_seconds,
                "asyncdispatch.ambiguous": outcome.ambiguous,
            }
        )
        match outcome:
            case Failed(error=error, verdict=verdict):
                span.set_attribute("asyncdispatch.verdict", verdict.kind.value)
                _fail(span, error)
            case Expired(where=where):
                span.set_attribute("asyncdispatch.where", where)
                span.set_status(Status(StatusCode.ERROR, f"out of time ({where})"))
            case Skipped(by=by) | Overwritten(by=by):
                span.set_attribute("asyncdispatch.by", by)
            case _:
                pass
        span.end()

    # -- inside -------------------------------------------------------------------------------------------------

    @staticmethod
    def _end_attempt(traced: _Traced) -> None:
        """End the span of the attempt, if one is open, and make current again what was so before, if it is ours to."""
        attempt, traced.attempt = traced.attempt, None
        token, traced.token = traced.token, None
        if attempt is not None:
            if token is not None and trace.get_current_span() is attempt:
                otel.detach(token)
            attempt.end()


def _fail(span: trace.Span, error: BaseException) -> None:
    """By class and status: a message may quote what was sent."""
    status = getattr(error, "status", None)
    name = _cut(type(error).__qualname__)
    span.set_attribute("error.type", name)
    if type(status) is int:
        span.set_attribute("http.response.status_code", status)
    span.set_status(Status(StatusCode.ERROR, name))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
