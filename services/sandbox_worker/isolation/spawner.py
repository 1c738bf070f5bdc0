"""The spawner: a small single-threaded program that forks the init of every sandbox and buries what
falls to it.

The worker starts it with an empty environment and one socket. It holds no secret, imports little
and freezes its heap, so that a fork costs well under a millisecond. When the worker goes away, so
does everything below it. Packets in: create, kill. Packets out: uncreated, gone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time

from chassis.packets import number, pack, receive
from sandbox_worker.isolation.cgroup_join import join
from sandbox_worker.isolation.descendants import below, kill_below
from sandbox_worker.isolation.init import serve
from sandbox_worker.isolation.process_control import (
    become_subreaper,
    die_first,
    drain,
    signal_pipe,
)
from sandbox_worker.isolation.tier import ProcessTier
from sandbox_worker.isolation.unprivileged import UnprivilegedTier

_PATIENCE = 1.0
"""Seconds that the inits get to end by themselves once the worker is gone."""

_PAUSE = 0.005
"""Seconds between two looks at processes that are being killed."""


class Spawner:
    """Forks inits on request, and reports each one that has ended once nothing of it is left."""

    def __init__(self, *, link: socket.socket) -> None:
        self._link = link
        self._inits: dict[int, bytes] = {}
        self._ended: list[tuple[bytes, int]] = []
        self._signals, self._noted = signal_pipe((signal.SIGCHLD, signal.SIGTERM))

    def run(self) -> None:
        """Serve until the worker goes away, then bury everything and return."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(self._signals, select.POLLIN)
        serving = True
        while serving:
            for descriptor, _ in poll.poll(_PAUSE * 1000 if self._ended else None):
                if descriptor == self._signals:
                    serving &= signal.SIGTERM not in drain(self._signals)
                else:
                    serving &= self._serve()
            self._bury()
        self._leave()

    def _serve(self) -> bool:
        packet = receive(self._link)
        if packet is None:
            return False
        fields, descriptors = packet
        match fields[0]:
            case b"create":
                self._create(fields[1], fields[2:], descriptors)
            case b"kill":
                for pid, sandbox in self._inits.items():
                    if sandbox == fields[1]:
                        os.kill(pid, signal.SIGKILL)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _create(self, sandbox: bytes, unprivileged: list[bytes], descriptors: list[int]) -> None:
        """Fork an init; `unprivileged` are the user, cover and private directory of one that gives
        up root.
        """
        spawner = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._send(b"uncreated", sandbox, number(error.errno or 0))
            return
        if pid == 0:
            try:
                self._link.close()
                signal.set_wakeup_fd(-1)
                os.close(self._signals)
                os.close(self._noted)
                join(descriptors[1:])
                tier = ProcessTier(spawner=spawner)
                if unprivileged:
                    user, cover, private = unprivileged
                    tier = UnprivilegedTier(
                        spawner=spawner, user=int(user), cover=cover, private=private
                    )
                serve(socket.socket(fileno=descriptors[0]), tier=tier)
            finally:
                os._exit(1)
        self._inits[pid] = sandbox

    def _send(self, *fields: bytes) -> None:
        with contextlib.suppress(OSError):
            self._link.send(pack(*fields))

    def _bury(self) -> None:
        """Reap; kill the orphans that an init left when it was itself killed; report inits once
        none is left.
        """
        orphans = self._reap()
        if orphans:
            kill_below(self._inits)
            orphans = self._reap()
        if not orphans:
            for sandbox, status in self._ended:
                self._send(b"gone", sandbox, number(status))
            self._ended.clear()

    def _reap(self) -> bool:
        """Collect the dead; return whether a child is left that is no init."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                # Without an init that has ended no orphan can have come here.
                return bool(self._ended) and bool(below(os.getpid(), self._inits))
            if pid in self._inits:
                self._ended.append((self._inits.pop(pid), status))

    def _leave(self) -> None:
        """Let the inits, which have seen the same end-of-file, end; then kill what is left."""
        for pid in self._inits:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        while self._inits and time.monotonic() < deadline:
            self._bury()
            time.sleep(_PAUSE)
        while True:
            kill_below()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(_PAUSE)
                continue
            return


def main() -> None:
    """Serve on the socket whose descriptor is the last argument."""
    link = socket.socket(fileno=int(sys.argv[-1]))
    link.set_inheritable(False)
    become_subreaper()
    die_first()
    spawner = Spawner(link=link)
    gc.disable()
    gc.freeze()
    spawner.run()
