"""Read your own writes (law L18): the part of the dispatcher that runs `apply` and `rebase_onto`.

The core says which calls to apply, in which order, and keeps what is not seen yet; user code runs here, between its
steps, and an error in it ends that call (law L14).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from asyncdispatch._core.overlay import OwnWrite, integer_version
from asyncdispatch._core.states import CREATE
from asyncdispatch.calls import ObjectRef, metadata_of, version_of
from asyncdispatch.errors import ConfigurationError

if TYPE_CHECKING:
    from asyncdispatch._core.short import DispatchCore
    from asyncdispatch._core.states import Entry

log = logging.getLogger("asyncdispatch")


class Observing:
    """`observe` and `overlay`."""

    if TYPE_CHECKING:

        def _step(self) -> tuple[DispatchCore, int]: ...
        def _flush(self) -> None: ...

    def observe(self, obj: Any, *, fresh: bool = False) -> Any:
        """An object was seen: rebase waiting calls onto it, and return it as it is with our own writes.

        Returns None if one of our writes deletes it. A client model comes back as it is, or as JSON where a write of a
        `Cluster` is to be shown in it. An older version than the one known changes nothing. `fresh` is
        the caller's word that it was read after every own write that has ended: those are settled by it. Raises
        `ConfigurationError` for what is no object.
        """
        core, now = self._step()
        ref = ObjectRef.of(obj)
        newest, writes = core.observe(ref, integer_version(version_of(obj)), _deleting(obj), fresh, now)
        if newest:
            self._rebase(core, ref, obj, now)
        # What we have made anew is not shown on what was there before.
        anew = not newest and self._replaced(core, ref) and any(write.call.effect is CREATE for write in writes)
        shown = self._show(core, None if anew else ref, None if anew else obj, writes, now, ref.lane, newest=newest)
        self._flush()
        return shown

    def overlay(self, objs: Iterable[Any], *, api_version: str, kind: str, namespace: str | None = None) -> list[Any]:
        """A list of objects as they are with our own writes: creates are added, deletes are gone."""
        core, now = self._step()
        probe = ObjectRef(api_version, kind, namespace, "x")
        prefix = probe.lane[:-1] if namespace else probe.lane[:-2]
        found: list[Any] = []
        seen: dict[str, None] = {}
        for obj in objs:
            ref = ObjectRef.of(obj) if not isinstance(obj, dict) or obj.get("kind") else _typed(obj, api_version, kind)
            newest, writes = core.observe(ref, integer_version(version_of(obj)), _deleting(obj), False, now)
            if newest:
                self._rebase(core, ref, obj, now)
            elif self._replaced(core, ref):
                continue
            seen[ref.lane] = None
            shown = self._show(core, ref, obj, writes, now, newest=newest)
            if shown is not None:
                found.append(shown)
        own = dict.fromkeys(core.objects.lanes_with_writes(prefix))
        own.update(dict.fromkeys(key for key in core.lanes.table if key.startswith(prefix)))
        for lane in own:
            if lane in seen:
                continue
            shown = self._show(core, None, None, core.objects.writes(lane), now, lane)
            if shown is not None:
                found.append(shown)
        self._flush()
        return found

    @staticmethod
    def _replaced(core: DispatchCore, ref: ObjectRef) -> bool:
        """True if what was seen, outdated, is an object whose name another one has now."""
        return ref.uid is not None and core.objects.uid_of(ref.lane) not in (None, ref.uid)

    def _rebase(self, core: DispatchCore, ref: ObjectRef, obj: Any, now: int) -> None:
        for entry in core.pending_writes(ref.lane):
            call = core.executable(entry)
            if entry.phase.flying or "rebase_onto" not in call._hooks or call.target.uid not in (None, ref.uid):
                continue
            try:
                rebased = call.rebase_onto(obj)
                if rebased is not call:
                    core.replace(entry, rebased)
            except Exception as error:
                self._end_calls(core, entry, error, now)

    def _show(
        self,
        core: DispatchCore,
        ref: ObjectRef | None,
        obj: Any,
        writes: list[OwnWrite],
        now: int,
        lane: str = "",
        *,
        newest: bool = True,
    ) -> Any:
        """`obj` with the ended writes that are not seen yet, then with those that wait or fly.

        What is not the newest may look by chance as if a write was seen in it.
        """
        lane = lane or (ref.lane if ref is not None else "")
        uid = ref.uid if ref is not None else None
        seen: list[OwnWrite] = []
        for write in writes:
            if not _fits(write.call.target.uid, uid):
                continue
            try:
                after = write.answer if obj is None and write.answer is not None else write.call.apply(obj)
            except Exception:
                if obj is None:  # it changes what is not there
                    continue
                log.exception("apply of call %d raised; it is shown no more", write.ticket)
                seen.append(write)
                continue
            # Where an object is missing, a deletion is seen, but no change of it: the list may not show all there is.
            if newest and after == obj and (obj is not None or getattr(write.call, "deletes", False)):
                seen.append(write)
            obj = after
        if seen:
            core.objects.drop(lane, seen)
        for entry in core.pending_writes(lane):
            call = core.executable(entry)
            if "apply" not in call._hooks or not _fits(call.target.uid, uid):
                continue
            try:
                obj = call.apply(obj)
            except Exception as error:
                if obj is not None or call.effect is CREATE:
                    self._end_calls(core, entry, error, now)
        return obj

    def _end_calls(self, core: DispatchCore, entry: Entry, error: Exception, now: int) -> None:
        for handle in list(core.living(entry)):
            core.fail_call(handle, error, now)


def _fits(fence: str | None, uid: str | None) -> bool:
    return fence is None or uid is None or fence == uid


def _deleting(obj: Any) -> bool:
    meta = metadata_of(obj)
    if isinstance(meta, dict):
        return bool(meta.get("deletionTimestamp"))
    return getattr(meta, "deletion_timestamp", None) is not None


def _typed(obj: dict[str, Any], api_version: str, kind: str) -> ObjectRef:
    """Items of a list leave out their kind."""
    if not isinstance(obj.get("metadata"), dict):
        raise ConfigurationError("objs", obj, "each must be an object with metadata")
    return ObjectRef.of({**obj, "apiVersion": api_version, "kind": kind})
