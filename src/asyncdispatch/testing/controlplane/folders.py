"""A folder for one control plane, and none left of those whose process was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

__all__ = ["make_folder"]

_PREFIX = "asyncdispatch-controlplane-"
_LOCK = "in-use"


def make_folder() -> tuple[Path, IO[str]]:
    """A new folder for this user alone, and its lock: close that when the folder is done with.

    Folders of the same kind that nobody holds any more are removed, but for those of which only logs were kept.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        _remove_if_abandoned(old)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = (folder / "new").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.replace(folder / "new", folder / _LOCK)  # held before anybody can see it
    return folder, lock


def _remove_if_abandoned(folder: Path) -> None:
    try:
        with (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # in use, somebody else's, or logs that were kept
        pass
