"""Traces: record what a dispatcher's core is told, replay it to the same outcomes, and ask what another configuration
would have done."""

from asyncdispatch.traces.comparing import Change, Comparison, Waits
from asyncdispatch.traces.format import TraceError
from asyncdispatch.traces.reading import Trace, read_trace
from asyncdispatch.traces.recording import TraceRecorder
from asyncdispatch.traces.replaying import Replay, ReplayedCall, Start, replay
from asyncdispatch.traces.whatif import what_if

__all__ = [
    "Change",
    "Comparison",
    "Replay",
    "ReplayedCall",
    "Start",
    "Trace",
    "TraceError",
    "TraceRecorder",
    "Waits",
    "read_trace",
    "replay",
    "what_if",
]
