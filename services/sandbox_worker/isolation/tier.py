"""What differs between the inits of the isolations: how they start, bind, seal and end.

Runs in the inits: single-threaded, standard library only.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Protocol

from sandbox_worker.isolation.descendants import kill_below
from sandbox_worker.isolation.mount_order import Bound
from sandbox_worker.isolation.overlay import enter_mount_namespace, mount_overlay
from sandbox_worker.isolation.process_control import become_subreaper, end_with_parent, limit

_PAUSE = 0.0005


class Tier(Protocol):
    """One isolation as its inits live it; `signals` are those that an init notices."""

    signals: tuple[signal.Signals, ...]

    def enter(self, keep: set[int]) -> None:
        """Become the first process of the sandbox with these descriptors; raises OSError."""
        ...

    def hold_files(self, most: int) -> None:
        """Bound the sandbox's own files outside the workspace, in bytes; raises OSError."""
        ...

    def expect(self, workspace: Bound) -> None:
        """Get ready for `bind` before there are descriptors; raises OSError."""
        ...

    def bind(self, workspace: Bound, descriptors: list[int]) -> None:
        """Bring the workspace in; again is harmless, another one is EBUSY. Raises OSError."""
        ...

    def prepare(self) -> None:
        """Do what of `seal` can be done ahead, while nobody waits; raises OSError."""
        ...

    def seal(self) -> None:
        """Raise what is left of the walls before the first program; again is harmless. Raises
        OSError.
        """
        ...

    def end(self, reap: Callable[[], bool]) -> None:
        """Kill everything below; `reap` collects the dead and says whether a child is left."""
        ...


class ProcessTier:
    """Plain processes; layers are mounted over the workspace's empty directory."""

    signals: tuple[signal.Signals, ...] = (signal.SIGCHLD, signal.SIGTERM)

    def __init__(self, *, spawner: int) -> None:
        self._spawner = spawner
        self._mounted = b""

    def enter(self, keep: set[int]) -> None:
        os.setsid()
        become_subreaper()
        end_with_parent(self._spawner)
        limit(resource.RLIMIT_CORE, 0)

    def hold_files(self, most: int) -> None:
        """Its files are on the host's disk, which knows no sandbox."""

    def expect(self, workspace: Bound) -> None:
        """It mounts over a directory that is there."""

    def bind(self, workspace: Bound, descriptors: list[int]) -> None:
        (target,) = workspace["target"]
        if "lower" not in workspace:
            return
        if not self._mounted:
            enter_mount_namespace()
            mount_overlay(
                target,
                upper=workspace["upper"][0],
                work=workspace["work"][0],
                lower=list(workspace["lower"]),
            )
            self._mounted = target
        elif self._mounted != target:
            raise OSError(errno.EBUSY, "another workspace is mounted")

    def prepare(self) -> None:
        """There is nothing to raise."""

    def seal(self) -> None:
        """There is nothing to raise."""

    def end(self, reap: Callable[[], bool]) -> None:
        kill_below()
        while reap():
            time.sleep(_PAUSE)
            kill_below()
