"""The init of one sandbox: starts its executions, reaps its orphans, and kills them all when it
ends.

Runs in a process forked from the spawner: single-threaded, standard library only, no secrets in its
memory. Packets in: mount, start, signal, expire, connect, release. Packets out: ready, mounted,
unmounted, started, unstarted, exit, connected, refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import socket
import time
from typing import NoReturn

from chassis.packets import DESCRIPTORS, number, pack, receive, unpack, widen
from sandbox_worker.isolation.descendants import kill_below
from sandbox_worker.isolation.overlay import enter_mount_namespace, mount_overlay
from sandbox_worker.isolation.process_control import (
    become_subreaper,
    drain,
    end_with_parent,
    limit,
    signal_pipe,
)
from sandbox_worker.isolation.working_directory import working_directory

_RESOURCES = {
    b"memory": resource.RLIMIT_AS,
    b"processes": resource.RLIMIT_NPROC,
    b"files": resource.RLIMIT_NOFILE,
    b"file_size": resource.RLIMIT_FSIZE,
    b"core": resource.RLIMIT_CORE,
}
_ALL_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_PAUSE = 0.0005
_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Init:
    """One sandbox's root process."""

    def __init__(self, *, link: socket.socket, spawner: int, limits: list[bytes]) -> None:
        self._link = link
        self._spawner = spawner
        self._limits = limits
        self._running: dict[int, bytes] = {}
        self._sweep: set[int] = set()
        self._connecting: dict[int, tuple[bytes, socket.socket, bytes, int]] = {}
        self._poll = select.poll()
        self._mounted = b""
        self._leaving = False

    def run(self) -> NoReturn:
        """Serve packets until released, cut off or told to end, then kill everything below and
        exit.
        """
        os.setsid()
        signals = signal_pipe()
        become_subreaper()
        end_with_parent(self._spawner)
        os.umask(0o022)
        os.chdir("/")
        widen(self._link)
        for entry in self._limits:
            name, _, value = entry.partition(b"=")
            limit(_RESOURCES[name], int(value))
        self._poll.register(self._link, select.POLLIN)
        self._poll.register(signals, select.POLLIN)
        self._send(b"ready", number(os.getpid()))
        while not self._leaving:
            for descriptor, _ in self._poll.poll():
                if descriptor == signals:
                    self._leaving |= signal.SIGTERM in drain(signals)
                    self._reap()
                elif descriptor == self._link.fileno():
                    self._serve()
                else:
                    self._connected(descriptor)
        kill_below()
        while self._reap():
            time.sleep(_PAUSE)
            kill_below()
        os._exit(0)

    def _send(self, *fields: bytes, descriptors: tuple[int, ...] = ()) -> None:
        # A worker that is gone is noticed as end-of-file by the loop.
        with contextlib.suppress(OSError):
            socket.send_fds(self._link, [pack(*fields)], descriptors)

    def _serve(self) -> None:
        packet = receive(self._link)
        if packet is None:
            self._leaving = True
            return
        fields, descriptors = packet
        match fields[0]:
            case b"mount":
                self._mount(*fields[1:5], lower=fields[5:])
            case b"start":
                self._start(fields[1:], descriptors)
            case b"signal" | b"expire":
                self._signal(fields[1], int(fields[2]), last=fields[0] == b"expire")
            case b"connect":
                self._connect(fields[1], int(fields[2]), 0)
            case b"release":
                self._leaving = True
        for descriptor in descriptors:
            os.close(descriptor)

    def _mount(
        self, request: bytes, target: bytes, upper: bytes, work: bytes, *, lower: list[bytes]
    ) -> None:
        """Mount the workspace, once: a call that is repeated finds it."""
        try:
            if not self._mounted:
                enter_mount_namespace()
                mount_overlay(target, upper=upper, work=work, lower=lower)
                self._mounted = target
            elif self._mounted != target:
                raise OSError(errno.EBUSY, "another workspace is mounted")
        except OSError as error:
            self._send(b"unmounted", request, number(error.errno or errno.EIO))
        else:
            self._send(b"mounted", request)

    def _start(self, fields: list[bytes], descriptors: list[int]) -> None:
        execution, root, directory, path, count = *fields[:4], int(fields[4])
        arguments, environment = fields[5 : 5 + count], fields[5 + count :]
        if len(descriptors) < DESCRIPTORS:
            # The kernel drops what does not fit below this process's limit of open files.
            self._send(b"unstarted", execution, b"command", number(errno.EMFILE))
            return
        try:
            os.chdir(working_directory(root, directory))
        except OSError as error:
            self._send(b"unstarted", execution, b"directory", number(error.errno or errno.ENOENT))
            return
        try:
            pid = spawn(arguments, environment, path, descriptors)
        except OSError as error:
            self._send(b"unstarted", execution, b"command", number(error.errno or errno.ENOENT))
        else:
            self._running[pid] = execution
            self._send(b"started", execution, number(pid))
        finally:
            os.chdir("/")

    def _signal(self, execution: bytes, which: int, *, last: bool) -> None:
        """Signal a group whose leader is not reaped yet, so that its number cannot belong to
        anybody else.
        """
        for pid, running in self._running.items():
            if running == execution:
                with contextlib.suppress(OSError):
                    os.killpg(pid, which)
                if last:
                    self._sweep.add(pid)

    def _reap(self) -> bool:
        """Collect the dead; return whether a child is left."""
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if dead is None:
                return True
            if dead.si_pid in self._sweep:
                # Before the leader is reaped: afterwards the group's number may be somebody else's.
                self._sweep.discard(dead.si_pid)
                with contextlib.suppress(OSError):
                    os.killpg(dead.si_pid, signal.SIGKILL)
            _, status = os.waitpid(dead.si_pid, 0)
            execution = self._running.pop(dead.si_pid, None)
            # What this init kills itself did not end by a signal of its own.
            if execution is not None and not (self._leaving and os.WIFSIGNALED(status)):
                self._send(b"exit", execution, number(status))

    def _connect(self, request: bytes, port: int, attempt: int) -> None:
        family, address = _LOOPBACKS[attempt]
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._refuse(request, port, attempt, error.errno or errno.ECONNREFUSED)
            return
        connection.setblocking(False)
        outcome = connection.connect_ex((address, port))
        if outcome not in (0, errno.EINPROGRESS):
            connection.close()
            self._refuse(request, port, attempt, outcome)
            return
        self._connecting[connection.fileno()] = (request, connection, number(port), attempt)
        self._poll.register(connection, select.POLLOUT)

    def _connected(self, descriptor: int) -> None:
        request, connection, port, attempt = self._connecting.pop(descriptor)
        self._poll.unregister(descriptor)
        outcome = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if outcome == 0:
            self._send(b"connected", request, descriptors=(descriptor,))
        connection.close()
        if outcome != 0:
            self._refuse(request, int(port), attempt, outcome)

    def _refuse(self, request: bytes, port: int, attempt: int, outcome: int) -> None:
        """Try the next loopback address: many development servers listen on ::1 only."""
        if attempt + 1 < len(_LOOPBACKS):
            self._connect(request, port, attempt + 1)
        else:
            self._send(b"refused", request, number(outcome))


def spawn(
    arguments: list[bytes], environment: list[bytes], path: bytes, descriptors: list[int]
) -> int:
    """Start a program in its own session on three descriptors and return its pid.

    posix_spawn(3) runs as vfork: twice as fast here as fork and exec, and it raises the errno of
    the failed exec. ENOENT means that no such program exists; EACCES or ENOEXEC that it is there
    and cannot be executed.
    """
    program = _find(arguments[0], path)
    variables = dict(entry.split(b"=", 1) for entry in environment)
    actions = [(os.POSIX_SPAWN_DUP2, descriptors[index], index) for index in range(3)]
    try:
        return os.posix_spawn(
            program,
            arguments,
            variables,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_ALL_SIGNALS,
        )
    except FileNotFoundError:
        # The file is there, since it was found: its interpreter is not.
        raise OSError(errno.ENOEXEC, "no interpreter") from None


def _find(name: bytes, path: bytes) -> bytes:
    """Look a program up as execvp(3) does: a name with a slash is a path, another one is searched
    for.
    """
    if b"/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(folder or b".", name) for folder in path.split(b":")]
    found = False
    for candidate in candidates:
        if not os.path.exists(candidate):
            continue
        found = True
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise OSError(errno.EACCES if found else errno.ENOENT, "not found")


def serve(link: socket.socket, *, spawner: int, limits: bytes) -> NoReturn:
    """Be the init of a sandbox; never returns, and never lets an error unwind into the spawner's
    code.
    """
    try:
        Init(link=link, spawner=spawner, limits=unpack(limits) if limits else []).run()
    finally:
        os._exit(1)
