"""Faults planted in the simulated server and in the core, to see that the rules find them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from asyncdispatch._core.lanes import Lane
from asyncdispatch._core.parking import Failure
from asyncdispatch._core.short import DispatchCore
from asyncdispatch._core.states import LINE, Entry
from asyncdispatch.outcomes import Overwritten, Skipped, Succeeded
from asyncdispatch.simulation import Server
from asyncdispatch.simulation.calls import SimulatedCall
from asyncdispatch.simulation.history import RequestRecord, State

# -- servers ----------------------------------------------------------------------------------------------------------


class ForgetsVersions(Server):
    """A write that was decided on another version is carried out all the same."""

    def refusal(self, call: SimulatedCall, before: State | None) -> Any:
        found = super().refusal(call, before)
        stale = found is not None and call.version is not None and before is not None
        fine = stale and before is not None and call.target.uid == before[0] and "node" not in before[2]
        return None if fine else found


class BindsAgain(Server):
    """A Pod that has a node gets another."""

    def refusal(self, call: SimulatedCall, before: State | None) -> Any:
        found = super().refusal(call, before)
        return None if call.verb == "bind" and before is not None and call.target.uid == before[0] else found


class CreatesAgain(Server):
    """What exists is created a second time."""

    def refusal(self, call: SimulatedCall, before: State | None) -> Any:
        return None if call.verb == "create" else super().refusal(call, before)

    def change(self, call: SimulatedCall, before: State | None) -> State | None:
        return super().change(call, None if call.verb == "create" else before)


class ReadsFromTheCache(Server):
    """Reads show an object as it was a write ago."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.older: dict[str, State] = {}

    def land(self, request: RequestRecord, now: int) -> Any:
        lane = request.call.target.lane
        if request.call.verb == "get" and lane in self.older and lane in self.objects:
            newest, self.objects[lane] = self.objects[lane], self.older[lane]
            answer = super().land(request, now)
            self.objects[lane] = newest
            return answer
        if lane in self.objects:
            self.older[lane] = self.objects[lane]
        return super().land(request, now)


class LosesWrites(Server):
    """One write of two hundred is answered well, and not carried out."""

    writes = 0

    def land(self, request: RequestRecord, now: int) -> Any:
        if request.call.verb == "apply":
            self.writes += 1
            if self.writes % 200 == 0:
                return 1
        return super().land(request, now)


class GoesBackInTime(Server):
    """Now and then an old version is given out again."""

    def land(self, request: RequestRecord, now: int) -> Any:
        if self.revision % 500 == 499:
            self.revision -= 20
        return super().land(request, now)


# -- cores ------------------------------------------------------------------------------------------------------------


class TellsTwice(DispatchCore):
    """One outcome of a hundred is told a second time."""

    def _tell(self, handle: Entry, *args: Any, **more: Any) -> None:
        super()._tell(handle, *args, **more)
        if handle.ticket % 100 == 0:
            self.settled.append(handle)


class TellsNobody(DispatchCore):
    """One outcome of a hundred is not told."""

    def _tell(self, handle: Entry, *args: Any, **more: Any) -> None:
        super()._tell(handle, *args, **more)
        if handle.ticket % 100 == 0:
            self.settled.remove(handle)


class NeverDoubts(DispatchCore):
    """What may have been applied is taken for what was not."""

    def fail(self, entry: Entry, failure: Failure, now: int) -> bool:
        return super().fail(entry, replace(failure, verdict=replace(failure.verdict, maybe_applied=False)), now)


class KeepsNoLanes(DispatchCore):
    """Every call has a lane of its own, so that writes of one object fly together."""

    @staticmethod
    def lane_key(entry: Entry) -> str:
        return f"{entry.call.target.lane}#{entry.ticket}"

    def submit_common(self, call: Any, now: int) -> Entry | None:
        return None


class ForgetsContexts(DispatchCore):
    """A context's end cancels nothing, and a success of one reaches its caller."""

    def end(self, context: Any, reason: str, now: int) -> None:
        epoch = self.epochs.table.get(context.epoch)
        if epoch is not None:
            handles, epoch.handles = dict(epoch.handles), {}
            super().end(context, reason, now)
            epoch.handles.update(handles)


class PassesInLine(DispatchCore):
    """When its object is free again, the second in line goes first."""

    def _advance(self, lane: Lane) -> None:
        line = lane.line
        if lane.flying is None and len(line) > 1 and line[0].phase is LINE and line[1].phase is LINE:
            line[0], line[1] = line[1], line[0]
        super()._advance(lane)


class TellsEachItsOwn(DispatchCore):
    """Who joined gets a copy of the value, as if it had asked for itself."""

    def _tell(self, handle: Entry, now: int, kind: type, args: tuple[Any, ...], **more: Any) -> None:
        if kind is Succeeded and handle.lead is not handle and isinstance(args[0], dict):
            args = (dict(args[0]),)
        super()._tell(handle, now, kind, args, **more)


class NamesNobody(DispatchCore):
    """Overwritten and Skipped name the call after the right one."""

    def _tell(self, handle: Entry, now: int, kind: type, args: tuple[Any, ...], **more: Any) -> None:
        if kind in (Overwritten, Skipped):
            args = (args[0] + 1,)
        super()._tell(handle, now, kind, args, **more)


class ForgetsOwnWrites(DispatchCore):
    """A success is not shown until the watch shows it."""

    def _note_answer(self, entry: Entry, value: Any, write: bool, now: int) -> None:
        super()._note_answer(entry, value, False, now)
