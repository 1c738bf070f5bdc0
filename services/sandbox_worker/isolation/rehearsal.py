"""What an init that is kept ready does before it says so: a take and a start that come to nothing.

A clone shares the memory of the zygote until it writes to it, and Python writes to most of what it
looks at: in its first take and start an init copied 140 pages, 5 us each, while a caller waited.

Runs in the inits: single-threaded, standard library only.
"""

from __future__ import annotations

import contextlib
import os
import socket

from chassis.packets import DESCRIPTORS, pack
from fairlead_walls import kernel_calls
from sandbox_worker.isolation.binding import bind_workspace, make_places
from sandbox_worker.isolation.init import Init

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from sandbox_worker.isolation.mount_order import Bound

_PLACE = "/tmp/.rehearsal"  # noqa: S108 - the sandbox's own
_EXPECT = (b"expect", b"target=/w", b"upper=/l/u", b"work=/l/w", b"lower=/0", b"store=/s")
_START = (b"start", b"e", b"/", b"", b"/tmp", b"", b"1", os.path.basename(_PLACE).encode())
_TAKE = (b"take", b"r")
_LAYERS = 3
"""Of the workspace in _EXPECT."""


class _Stage:
    """Raises no wall, and is bound to nothing."""

    signals: tuple[signal.Signals, ...] = ()

    def enter(self, keep: set[int]) -> None: ...

    def hold_files(self, most: int) -> None: ...

    def expect(self, workspace: Bound) -> None:
        make_places(workspace)

    def bind(self, workspace: Bound, descriptors: list[int]) -> None:
        with contextlib.suppress(OSError):
            kernel_calls.mount_overlay(_PLACE, "userxattr,lowerdir=")
        bind_workspace(workspace, descriptors, -1)

    def prepare(self) -> None: ...

    def seal(self) -> None: ...

    def end(self, reap: Callable[[], bool]) -> None: ...


def rehearse() -> None:
    """Serve packets of its own: a workspace of directories that cannot be mounted, and a program
    that is empty and so cannot be executed. In an init that is open. Raises OSError.
    """
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opened = os.open(_PLACE, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o700)
    try:
        with near, far:
            init = Init(link=near, tier=_Stage())
            for packet, count in ((_EXPECT, 0), (_TAKE, _LAYERS), (_START, DESCRIPTORS)):
                socket.send_fds(far, [pack(*packet)], [opened] * count)
                init.serve()
    finally:
        os.close(opened)
        os.unlink(_PLACE)
        for left in ("/.layers/nothing", "/.layers/0", "/.layers/1", "/.layers", "/s"):
            os.rmdir(left)
