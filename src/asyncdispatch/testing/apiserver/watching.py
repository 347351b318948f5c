"""The methods by which a test acts on the watches that are open, and on what they see."""

from __future__ import annotations

from asyncdispatch.testing.apiserver.answers import gone
from asyncdispatch.testing.apiserver.faults import check_seconds
from asyncdispatch.testing.apiserver.lies import LieControls
from asyncdispatch.testing.apiserver.status import StatusError
from asyncdispatch.testing.apiserver.store import Store
from asyncdispatch.testing.apiserver.watch import WatchStream


class WatchControls(LieControls):
    """What a test does to open watches."""

    def __init__(self, store: Store, open_watches: set[WatchStream]) -> None:
        super().__init__()
        self._cache = store
        self._open_watches = open_watches

    @property
    def watch_lag(self) -> float:
        """Seconds by which the watch cache is behind; may be set while the server runs.

        Events come so much after their writes, and gets and lists with resourceVersion=0 show so old a state.
        """
        return self._cache.lag

    @watch_lag.setter
    def watch_lag(self, seconds: float) -> None:
        check_seconds("watch_lag", seconds)
        self._cache.lag = seconds

    def close_watches(self) -> None:
        """End all watches now, as a server does that restarts."""
        for stream in tuple(self._open_watches):
            stream.close()

    def fail_watches(self, error: StatusError | None = None) -> None:
        """End all watches now with an ERROR event, inside of their 200: a 410 unless told otherwise."""
        for stream in tuple(self._open_watches):
            stream.fail(error or gone())

    def silence_watches(self) -> None:
        """All watches that are open send nothing more, not even bookmarks; they stay open. New ones are served."""
        for stream in tuple(self._open_watches):
            stream.hush()
