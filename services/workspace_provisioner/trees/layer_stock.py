"""Blanks: the empty directories of layered workspaces, made ahead.

Making and removing directories takes longer than all else in a warm take, above all beside other
work on the disk (rmdir(2) 2 ms, measured on ext4): so nothing of it is done there, and what is left
of a blank becomes the next one.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path

from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.trees.layer_files import make_blank

MOST_BLANKS = 64


class LayerStock:
    """The blanks of this process; safe in any thread."""

    def __init__(self, *, layout: Layout, owners: Owners) -> None:
        self._layout = layout
        self._owners = owners
        self._blanks: deque[Path] = deque()
        self._used: deque[Path] = deque()

    @property
    def is_low(self) -> bool:
        """Say whether it should be filled soon."""
        return len(self._blanks) < MOST_BLANKS // 2

    def take(self) -> Path:
        """Return a blank, made or still to be made; it is the caller's from now on."""
        try:
            return self._blanks.popleft()
        except IndexError:
            return self._layout.blanks / self._owners.own_name()

    def put_back(self, emptied: Path) -> None:
        """Take an empty directory, of which a blank can be made."""
        if emptied.parent != self._layout.blanks:
            place = self._layout.blanks / self._owners.own_name()
            emptied.rename(place)
            emptied = place
        self._used.append(emptied)

    def fill(self) -> None:
        """Make blanks until there are as many as can be needed at once; blocking."""
        while self._used or len(self._blanks) < MOST_BLANKS:
            try:
                path = self._used.popleft()
            except IndexError:
                path = self._layout.blanks / self._owners.own_name()
            if len(self._blanks) < MOST_BLANKS:
                make_blank(path)
                self._blanks.append(path)
            else:
                with suppress(FileNotFoundError):
                    path.rmdir()
