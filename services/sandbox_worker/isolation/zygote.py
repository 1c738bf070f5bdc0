"""The zygote: a small single-threaded program that forks the walled inits of one generation.

The worker starts it with an empty environment and one socket. It holds no secret, imports little
and freezes its heap. Its children share its address layout and hash seed: they are one tenant's.
When it ends, for whatever reason, so does every process behind its walls.
Packets in: create, map. Packets out: ready, unready, born, uncreated, mapped, unmapped.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import socket
import sys

from chassis.packets import number, pack, receive
from fairlead_walls.raising import Walls
from fairlead_walls.terms import Terms
from fairlead_walls.user_maps import open_user_map
from sandbox_worker.isolation.init import Init
from sandbox_worker.isolation.process_control import die_first, drain, signal_pipe
from sandbox_worker.isolation.rehearsal import rehearse
from sandbox_worker.isolation.walled_tier import WalledTier

_PROMPT = -10
"""Niceness until an init is sealed, where the worker may say so: a caller waits for it."""

_CALM_MILLISECONDS = 20
"""Time for who has just got an init, before the next one is prepared for."""


class Zygote:
    """Forks inits on request, and hands out a descriptor of each: it becomes readable when nothing
    behind the walls is left, since the kernel lets the first process of a namespace die last.
    """

    def __init__(self, *, link: socket.socket, walls: Walls) -> None:
        self._link = link
        self._walls = walls
        self._inits: set[int] = set()
        self._signals, self._noted = signal_pipe((signal.SIGCHLD,))

    def run(self) -> None:
        """Serve until the worker goes away."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(self._signals, select.POLLIN)
        self._send(b"ready", number(os.getpid()))
        while True:
            calm = None if self._walls.is_begun else _CALM_MILLISECONDS
            events = poll.poll(calm)
            if not events:
                self._walls.begin()
            for descriptor, _ in events:
                if descriptor == self._signals:
                    drain(self._signals)
                elif not self._serve():
                    self._leave()
                    return
            self._reap()

    def _serve(self) -> bool:
        packet = receive(self._link)
        if packet is None:
            return False
        fields, descriptors = packet
        match fields[0]:
            case b"create":
                self._create(fields, descriptors)
            case b"map":
                self._map(fields[1], int(fields[2]), int(fields[3]))
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _create(self, fields: list[bytes], descriptors: list[int]) -> None:
        """Fork an init with a host uid of its own, or the worker's for a negative one."""
        try:
            self._fork(fields, descriptors)
        except OSError as error:
            self._send(b"uncreated", fields[1], number(error.errno or errno.EIO))

    def _fork(self, fields: list[bytes], descriptors: list[int]) -> None:
        name, user, own_network, for_pool = (
            fields[1], int(fields[2]), fields[3] == b"own", fields[4] == b"later",
        )  # fmt: skip
        if not descriptors:
            # The kernel drops what does not fit below this process's limit of open files.
            raise OSError(errno.EMFILE, "no descriptors")
        held, go = os.pipe2(os.O_CLOEXEC)
        link = socket.socket(fileno=descriptors[0])
        # Made here, where it is cheap: a clone copies every page that it writes to first.
        tier = WalledTier(walls=self._walls, doors=descriptors[1:], admission=held)
        init = Init(link=link, tier=tier, rehearse=rehearse if for_pool else None)
        try:
            pid = self._walls.clone(own_network=own_network, uid=user)
            if pid == 0:
                self._become(go, init)
            self._inits.add(pid)
            try:
                if user >= 0:
                    self._walls.admit(pid, uid=user, gid=user)
                else:
                    self._walls.admit(pid)
                # Told before it goes on: one that nobody was told of ends when this process does.
                self._tell(b"born", name, os.pidfd_open(pid))
                os.write(go, b"1")
            except OSError:
                os.kill(pid, signal.SIGKILL)
                raise
        finally:
            link.detach()
            os.close(held)
            os.close(go)

    def _become(self, go: int, init: Init) -> None:
        """Be an init; never returns."""
        try:
            # A zygote that dies before the admission lets go of its end: the only one then.
            os.close(go)
            signal.set_wakeup_fd(-1)
            init.run()
        finally:
            os._exit(1)

    def _map(self, request: bytes, owner: int, user: int) -> None:
        """Answer with a user namespace by which mounts map files between the two."""
        try:
            namespace = open_user_map(owner, user, processes=self._walls.processes)
            self._tell(b"mapped", request, namespace)
        except OSError as error:
            self._send(b"unmapped", request, number(error.errno or errno.EIO))

    def _tell(self, verb: bytes, name: bytes, descriptor: int) -> None:
        """Send a descriptor away; raises OSError."""
        try:
            socket.send_fds(self._link, [pack(verb, name)], [descriptor])
        finally:
            os.close(descriptor)

    def _send(self, *fields: bytes) -> None:
        with contextlib.suppress(OSError):
            self._link.send(pack(*fields))

    def _reap(self) -> None:
        """Collect the dead."""
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._inits.discard(pid)

    def _leave(self) -> None:
        for pid in self._inits:
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def main() -> None:
    """Serve on the socket whose descriptor is the first argument; the others are the terms."""
    descriptor, *words = sys.argv[2:]
    link = socket.socket(fileno=int(descriptor))
    link.set_inheritable(False)
    die_first()
    try:
        walls = Walls(Terms.parse([os.fsencode(word) for word in words]))
    except OSError as error:
        link.send(pack(b"unready", number(error.errno or errno.EIO)))
        return
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _PROMPT)
    # Python's own handler would let what runs in a sandbox interrupt its first process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    zygote = Zygote(link=link, walls=walls)
    gc.collect()
    gc.disable()
    gc.freeze()
    zygote.run()
