"""The worker's side of one walled init, before it is a sandbox and while it is one."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from chassis.packet_link import close_all
from chassis.packets import LARGEST
from sandbox_worker.isolation.cgroups import Cgroup
from sandbox_worker.isolation.host_users import HostUser
from sandbox_worker.isolation.init_link import InitEnclosure
from sandbox_worker.isolation.lending import open_mapped
from sandbox_worker.isolation.mount_order import Bound


class WalledInit:
    """An init: `opened` is set once it waits behind its walls, `gone` when nothing of it is left.

    `user` is the host uid that it has to itself; None where it shares the worker's. `fault` says
    why it could not be made; empty when it was.
    """

    def __init__(
        self,
        *,
        name: bytes,
        near: socket.socket,
        user: HostUser | None,
        group: Cgroup,
        on_gone: Callable[[WalledInit], None],
    ) -> None:
        self.name = name
        self.user = user
        self.group = group
        self.fault = ""
        self.opened = asyncio.Event()
        self.gone = asyncio.Event()
        self._mapped = asyncio.Event()
        self._near = near
        self._on_gone = on_gone
        self._pidfd = -1
        self._is_ours = True
        self._enclosure: InitEnclosure | None = None
        self._loop = asyncio.get_running_loop()
        near.setblocking(False)
        self._loop.add_reader(near.fileno(), self._on_near)

    @property
    def is_sandbox(self) -> bool:
        """Whether it was given away."""
        return not self._is_ours

    @property
    def is_ready(self) -> bool:
        """Whether it waits to be given away, as far as is known."""
        return self._is_ours and self.opened.is_set() and not self.gone.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether it ended before it was given away."""
        return self._is_ours and self._near.fileno() < 0

    def pid(self) -> int:
        """Return its number on this host, of which its descriptor tells (proc(5)); 0 when it is
        gone.
        """
        try:
            with open(f"/proc/self/fdinfo/{self._pidfd}", encoding="ascii") as facts:
                numbers = [line.split()[1] for line in facts if line.startswith("Pid:")]
        except OSError:
            return 0
        return max([0, *map(int, numbers)])

    def give(self) -> socket.socket:
        """Give the near end of its link away, for good."""
        self._loop.remove_reader(self._near.fileno())
        self._is_ours = False
        return self._near

    def become(self, enclosure: InitEnclosure) -> None:
        """Let an enclosure hear when it is gone."""
        self._enclosure = enclosure
        if self.gone.is_set():
            enclosure.on_gone()

    def on_born(self, descriptors: Sequence[int]) -> None:
        """Take the descriptor of its process: readable when nothing behind its walls is left."""
        if self.gone.is_set() or len(descriptors) != 1:
            close_all(descriptors)
            return
        self._pidfd = descriptors[0]
        self._loop.add_reader(self._pidfd, self.on_gone)

    def on_forker_lost(self) -> None:
        """Take note that its zygote is dead; without a process yet it will never have one. One
        that asked too late to end with its parent (prctl(2), PR_SET_PDEATHSIG) is killed.
        """
        if self._pidfd < 0:
            self.on_gone()
        else:
            self._kill()

    def on_gone(self) -> None:
        """Take note that it has ended, or was never made."""
        if self.gone.is_set():
            return
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self.end()
        self.gone.set()
        self._mapped.set()
        if self._enclosure is not None:
            self._enclosure.on_gone()
        self._on_gone(self)

    async def lend(self, workspace: Bound) -> Sequence[int]:
        """Open what a workspace is made of, its files as `user`'s; nothing without such a user,
        whose init opens them itself. Raises OSError.
        """
        if self.user is None:
            return ()
        if self.user.namespace < 0:
            await self._mapped.wait()
        if self.user.namespace < 0 or self.gone.is_set():
            raise OSError(errno.ECANCELED, "its files cannot be mapped")
        return open_mapped(workspace, self.user.namespace)

    def on_mapped(self, descriptors: Sequence[int]) -> None:
        """Take the descriptor of such a namespace, or none when it could not be made."""
        if self.user is not None and len(descriptors) == 1 and not self.gone.is_set():
            self.user.keep(descriptors[0])
        else:
            close_all(descriptors)
        self._mapped.set()

    async def kill(self) -> None:
        """Kill it, when it does not answer."""
        if self._pidfd >= 0:
            self._kill()

    def end(self) -> None:
        """End one that was not given away: it sees the end of its link."""
        if self._is_ours and self._near.fileno() >= 0:
            self._loop.remove_reader(self._near.fileno())
            self._near.close()
            self.opened.set()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _on_near(self) -> None:
        try:
            packet = self._near.recv(LARGEST)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            packet = b""
        if packet:
            self.opened.set()
        else:
            self.end()
