"""Where the reading of a repository writes: a temporary directory that is gone whoever gives up
and when.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path


class Scratch:
    """Holds at most one temporary directory at a time; `close` also ends what is still to be made.

    The reading runs in a thread that cannot be stopped, so that whoever stops waiting for it closes
    the scratch, and the thread removes what it makes afterwards.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._directory: Path | None = None
        self._closed = False

    def make(self) -> Path:
        """Make the directory, in place of the one before."""
        with self._turn:
            self._remove()
            self._directory = Path(tempfile.mkdtemp(prefix="fairlead-changes-"))
            return self._directory

    def remove(self) -> None:
        """Remove the directory, if there is one."""
        with self._turn:
            self._remove()

    def settle(self) -> None:
        """Remove what was written after `close`; the last thing that a writer does."""
        with self._turn:
            if self._closed:
                self._remove()

    def close(self) -> None:
        """Remove the directory, also one that is being written."""
        with self._turn:
            self._closed = True
            self._remove(forget=False)

    def _remove(self, *, forget: bool = True) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if forget:
            self._directory = None
