"""A plugin that notes on Pods how scheduling goes, at the lowest level. Its bug: under load, they starve."""

from typing import Any

from asyncdispatch import CallHandle, ObjectRef
from asyncdispatch.kubernetes import Cluster


class Notes:
    """Asked to `note` something about a Pod, at every scheduling cycle."""

    def __init__(self, dispatcher: Any, cluster: Cluster) -> None:
        self.dispatcher = dispatcher
        self.cluster = cluster
        self.handles: dict[ObjectRef, CallHandle[Any]] = {}

    def note(self, pod: Any, text: str) -> None:
        ref = ObjectRef.of(pod)
        if ref in self.handles:
            self.make_room_for_newer(self.handles[ref])
        patch = {"metadata": {"annotations": {"example.com/note": text}}}
        self.handles[ref] = self.dispatcher.submit(self.cluster.patch(ref, patch, priority=-1_000))

    def make_room_for_newer(self, older: CallHandle[Any]) -> None:
        older.cancel()  # and with it the place that it had


class MendedNotes(Notes):
    def make_room_for_newer(self, older: CallHandle[Any]) -> None:
        pass  # the newer note merges with the one that waits, and takes over its place
