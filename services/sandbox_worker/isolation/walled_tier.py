"""The inits of isolation `walled`: behind walls, each the first process of its own namespace.

Runs in the inits: single-threaded, standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Sequence

from fairlead_walls.raising import Walls
from sandbox_worker.isolation.binding import bind_workspace, make_places
from sandbox_worker.isolation.cgroup_join import join
from sandbox_worker.isolation.mount_order import Bound


class WalledTier:
    """Open until it is sealed, which it is before it serves anything that follows a workspace: it
    may mount.

    `doors` are the descriptors by which it joins its cgroups; a byte comes through `admission` once
    its ids are mapped and its worker knows of it.
    """

    # SIGCHLD is noted as in the zygote. What is inside could send any other that is handled.
    signals: tuple[signal.Signals, ...] = ()

    def __init__(self, *, walls: Walls, doors: Sequence[int], admission: int) -> None:
        self._walls = walls
        self._doors = doors
        self._admission = admission
        self._expected: Bound | None = None
        self._bound = b""
        self._sealed = False

    def enter(self, keep: set[int]) -> None:
        # While the zygote, on another processor, is still at the admission.
        join(self._doors)
        if not os.read(self._admission, 1):
            raise OSError(errno.ECANCELED, "its zygote is dead")
        self._walls.enter(keep=keep)
        os.setsid()

    def hold_files(self, most: int) -> None:
        self._walls.hold_files(most)

    def expect(self, workspace: Bound) -> None:
        make_places(workspace)
        self._expected = workspace

    def bind(self, workspace: Bound, descriptors: list[int]) -> None:
        (target,) = workspace["target"]
        if self._bound == target:
            return
        if self._bound or self._sealed:
            raise OSError(errno.EBUSY, "sealed")
        if workspace is not self._expected:
            make_places(workspace)
        bind_workspace(workspace, descriptors, self._walls.host)
        self._bound = target

    def prepare(self) -> None:
        self._walls.prepare()

    def seal(self) -> None:
        if not self._sealed:
            if os.getpriority(os.PRIO_PROCESS, 0) < 0:
                os.setpriority(os.PRIO_PROCESS, 0, 0)
            self._walls.seal()
            self._sealed = True

    def end(self, reap: Callable[[], bool]) -> None:
        """The kernel kills all others with the first process of their namespace."""
