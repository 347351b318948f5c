"""What is known of objects, and the contexts in which they are scheduled (laws L2, L5, L11, L18)."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.epochs import Epoch
from asyncdispatch._core.executions import nanoseconds
from asyncdispatch._core.idempotency import key_hash
from asyncdispatch._core.lanes import CONTROL_FIELDS, with_fields_of
from asyncdispatch._core.overlay import OwnWrite, integer_version
from asyncdispatch._core.states import CREATE, DELAYED, NEVER, READ, SECOND, Entry
from asyncdispatch._core.waiting import Waiting
from asyncdispatch.calls import Verdict, VerdictKind, identity_in
from asyncdispatch.contexts import ContextOwner, SchedulingContext
from asyncdispatch.errors import ConfigurationError, DispatcherClosed, StaleContext
from asyncdispatch.outcomes import Cancelled, Failed

if TYPE_CHECKING:
    from asyncdispatch.calls import APICall, ObjectRef

OTHER_OBJECT = Verdict(VerdictKind.GONE, reason="another object has its name now")

PLAIN = (NoneType, int, str, bool, float, tuple, bytes)
"""What an answer often is and an object never."""


class Knowing(Waiting):
    """Objects seen, forgotten and gone; contexts begun, extended and ended."""

    # -- objects ------------------------------------------------------------------------------------------------------

    def see(self, lane: str, uid: str | None, version: int | None, now: int) -> bool:
        """An object was seen with a uid and version: calls for another one of its name are GONE (laws L2, L8). False if
        that is outdated: it changes nothing."""
        before = self.objects.uid_of(lane)
        changed = self.objects.meet(lane, uid, version)
        if not changed:
            return changed is not None
        if before is not None:
            self.memory.forget_object(lane)
        for entry in self.lanes.entries(lane):
            ref = entry.call.target
            if ref.uid in (None, uid) or entry.call.effect is CREATE or entry.phase.flying:
                continue
            for handle in list(self.living(entry)):
                self._depart(handle, now, Failed, gone(ref), OTHER_OBJECT)
        return True

    def forget(self, ref: ObjectRef, reason: str, now: int) -> int:
        """The object is gone: cancel what waits or flies for it, and what depends on it (rules R13, R18).

        With a uid that is not the one known last, only calls for that very uid are meant. A CREATE is cancelled only
        when no uid is given: it makes the next object of that name. A deletion that was sent is left to its own answer,
        or to a read after it: most likely it is what was seen, and what it asks for is so.
        """
        known = self.objects.uid_of(ref.lane)
        current = ref.uid is None or known is None or known == ref.uid
        count = 0
        for entry in self.lanes.entries(ref.lane):
            uid = entry.call.target.uid
            if entry.call.effect is CREATE and ref.uid is not None:
                continue
            if (uid is None and current) or ref.uid is None or uid == ref.uid:
                sent = entry.phase.flying or (entry.more is not None and entry.more.doubt)
                if sent:
                    entry.rare().forgotten = True
                    if getattr(entry.call, "deletes", False):
                        continue
                count += sum(self.cancel(handle, reason, now) for handle in list(self.living(entry)))
        for handle in list(self.dependents.get(ref.lane, {}).values()):
            if any(
                dep.lane == ref.lane and (dep.uid is None or ref.uid is None or dep.uid == ref.uid)
                for dep in handle.call.depends_on
            ):
                count += self.cancel(handle, reason, now)
        if current:
            self.memory.forget_object(ref.lane)
            epoch = self.epochs.by_lane.get(ref.lane)
            if epoch is not None and (ref.uid is None or epoch.context.ref.uid in (None, ref.uid)):
                self.end(epoch.context, reason, now)
        self.objects.forget(ref.lane, ref.uid)
        self._after(now)
        return count

    def _gone(self, entry: Entry, now: int) -> None:
        """An answer has named the target as gone: what waits for that uid is cancelled, never a CREATE."""
        ref = entry.call.target
        uid = ref.uid if ref.uid is not None else self.objects.uid_of(ref.lane)
        current = self.objects.uid_of(ref.lane) in (None, uid)
        behind_create = False
        for other in self.lanes.entries(ref.lane):
            call = other.call
            behind_create = behind_create or (call.effect is CREATE and other.phase is not DELAYED)
            if call.effect is CREATE or other.phase.flying:
                continue
            # Of a fenced call it may be that another object has the name now: who asks for no uid may have that one.
            nameless = ref.uid is None and call.target.uid is None
            nameless = nameless and current and not behind_create and call.effect is not READ
            if nameless or (uid is not None and call.target.uid == uid):
                for handle in list(self.living(other)):
                    self._depart(handle, now, Cancelled, f"{ref} is gone")
        if current:
            self.memory.forget_object(ref.lane)
            self.objects.vanish(ref.lane)

    def _note_answer(self, entry: Entry, value: Any, write: bool, now: int) -> None:
        """What an answer tells of its object (law L2), and a completed write that is to be shown (law L18)."""
        version = None
        ref = entry.call.target
        lane = ref.lane
        if type(value) not in PLAIN and (met := _identity_of(value, ref)) is not None:
            lane, uid, version = met
            self.see(lane, uid, version, now)
        if write and "apply" in entry.call._hooks and not (entry.more is not None and entry.more.forgotten):
            made = entry.call.effect is CREATE and (ref.generated or type(value) is dict)
            answer = value if made else None  # what was created, with its uid and whatever the server has added
            self.objects.completed(lane, self.executable(entry), entry.ticket, version, answer, now)
            self._time_overlay()

    # -- observing (law L18) ------------------------------------------------------------------------------------------

    def observe(
        self, ref: ObjectRef, version: int | None, deleting: bool, fresh: bool, now: int
    ) -> tuple[bool, list[OwnWrite]]:
        """An object was observed. Whether it changes anything, and the ended writes that it may not show yet."""
        if not self.see(ref.lane, ref.uid, version, now):
            return False, self.objects.writes(ref.lane)
        if deleting:
            self.memory.forget_object(ref.lane)
        writes = self.objects.seen(ref.lane, ref.uid, version, fresh)
        if self._requirements:
            self._after(now)
        return True, writes

    def pending_writes(self, lane: str) -> list[Entry]:
        """Writes that wait or fly, in the order in which they will be sent."""
        return [entry for entry in self.lanes.entries(lane) if entry.call.effect is not READ]

    def replace(self, entry: Entry, call: APICall[Any]) -> None:
        """A waiting call was rebased. Its control fields stay; only `version` and its own fields may differ."""
        old = self.executable(entry)
        if not isinstance(call, type(old)) or call.target != old.target or call.call_type != old.call_type:
            raise ConfigurationError("rebase_onto", call, "must return a call of the same class, type and target")
        call = with_fields_of(call, old, (*CONTROL_FIELDS, "idempotency_key", "prerequisite", "effect"))
        hashed = key_hash(call) if entry.more is not None and entry.more.hash is not None else None
        more = entry.more
        if more is not None and more.again is not None:
            more.again = call
        elif more is not None and more.carrier is not None:
            more.carrier.call = call
        else:
            if hashed is not None:
                self.keys.remove(entry)
            entry.call = call
            if hashed is not None:
                self.keys.add(hashed, entry)

    def _time_memory(self) -> None:
        due = self.memory.due
        if due is not None and not self.memory.timer:
            self.timers.set(self.memory, due, (self._memory_due, None))

    def _memory_due(self, _: Any, now: int) -> None:
        self.memory.expire(now)
        self._time_memory()

    # -- contexts -----------------------------------------------------------------------------------------------------

    def begin(
        self,
        owner: ContextOwner,
        ref: ObjectRef,
        version: int | None,
        parent: SchedulingContext | None,
        valid_until: float | None,
        requires: tuple[str, ...],
        now: int,
    ) -> SchedulingContext:
        """A new scheduling context; the object's older one ends."""
        if self.closed is not None:
            raise DispatcherClosed(self.closed)
        above = self.epochs.living(parent, now) if parent is not None else None
        if above is not None and any(ancestor.context.ref.lane == ref.lane for ancestor in above.ancestors()):
            raise ConfigurationError("parent", parent, f"is of {ref} too, whose older contexts end now: give another")
        limit = nanoseconds(valid_until) if valid_until is not None else NEVER
        if limit <= now:
            raise StaleContext(
                f"valid_until={valid_until!r} is over already, as it is {now / SECOND}: decide nothing more"
            )
        self.see(ref.lane, ref.uid, version, now)
        if ref.uid is not None and self.objects.uid_of(ref.lane) not in (None, ref.uid):
            raise StaleContext(f"{ref} is gone: another object has its name now; read it again")
        older = self.epochs.by_lane.get(ref.lane)
        if older is not None:
            self.end(older.context, "a newer context began", now)
        context = SchedulingContext(owner, self.epochs.number(), ref, parent, valid_until, requires)
        epoch = self.epochs.open(context, above, limit)
        if limit < NEVER:
            self.timers.set(epoch, limit, (self._context_over, epoch))
        self._after(now)
        return context

    def _context_over(self, epoch: Epoch, now: int) -> None:
        self.end(epoch.context, "its validity is over", now)

    def extend(self, context: SchedulingContext, valid_until: float, now: int) -> None:
        self.tick(now)
        epoch = self.epochs.living(context, now)
        epoch.valid_until = nanoseconds(valid_until)
        context.valid_until = valid_until
        self.timers.set(epoch, epoch.valid_until, (self._context_over, epoch))

    def end(self, context: SchedulingContext, reason: str, now: int) -> None:
        """End a context and its children: what waits is cancelled, what flies is asked to stop (law L11)."""
        epoch = self.epochs.table.get(context.epoch)
        if epoch is None:
            return
        ended = list(epoch.line())
        for each in ended:
            self.timers.void(each)
            self.epochs.close(each, reason)
        for each in ended:
            for handle in list(each.handles.values()):
                self.cancel(handle, reason, now)
        self._after(now)

    def require(self, context: SchedulingContext, name: str, state: BaseException | bool, now: int) -> None:
        """A requirement was confirmed (True) or failed (the error) from outside."""
        epoch = self.epochs.living(context, now)
        if name not in context.requirements:
            epoch.set_requirement(name, state)  # raises, and names what is required
        self._requirements.append((epoch, name, state))
        self._after(now)


def gone(ref: ObjectRef) -> RuntimeError:
    """The error that goes with `OTHER_OBJECT`."""
    return RuntimeError(f"{ref} is gone: another object has its name now")


def _identity_of(value: Any, ref: ObjectRef) -> tuple[str, str, int | None] | None:
    """Lane, uid and version of an answer, if it is the object that was asked for."""
    seen = identity_in(value)
    if seen is None:
        return None
    name, uid, version = seen
    if name == ref.name:
        return ref.lane, uid, integer_version(version)
    if ref.generated and name.startswith(ref.name[:-1]):
        return ref.lane[: -len(ref.name)] + name, uid, integer_version(version)
    return None
