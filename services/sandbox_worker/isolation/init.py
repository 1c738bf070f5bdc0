"""The init of one sandbox: starts its executions, reaps its orphans, and kills them all when it
ends.

Runs in a process forked from the spawner: single-threaded, standard library only, no secrets in its
memory. Packets in: expect, take, hold, bind, start, signal, expire, connect, listen, files,
release. Packets out: ready, taken, untaken, held, stale, bound, unbound, started, unstarted, exit,
connected, refused, listening, unheard, agent, agentless.
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

from chassis.packets import DESCRIPTORS, number, pack, receive, widen
from sandbox_worker.isolation.file_agents import fork_agent
from sandbox_worker.isolation.loopback import Loopback, listen
from sandbox_worker.isolation.process_control import drain, limit, signal_pipe
from sandbox_worker.isolation.programs import pipe_actions, spawn
from sandbox_worker.isolation.terminal_device import open_terminal, terminal_actions
from sandbox_worker.isolation.working_directory import working_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from sandbox_worker.isolation.tier import Tier

_RESOURCES = {
    b"memory": resource.RLIMIT_AS,
    b"processes": resource.RLIMIT_NPROC,
    b"files": resource.RLIMIT_NOFILE,
    b"file_size": resource.RLIMIT_FSIZE,
}
_LONGEST_NAP = 15.0
"""Seconds between looks at the lease: poll(2) does not count the time that a machine sleeps."""
_MICROSECONDS = 1_000_000
_KIB = 1024
_MOST_REAPED = 64


class Init:
    """One sandbox's root process."""

    def __init__(
        self, *, link: socket.socket, tier: Tier, rehearse: Callable[[], None] | None = None
    ) -> None:
        """`rehearse` is done before it says that it is ready, where nobody waits for that."""
        self._link = link
        self._tier = tier
        self._rehearse = rehearse
        self._running: dict[int, bytes] = {}
        self._sweep: set[int] = set()
        self._poll = select.poll()
        self._loopback = Loopback(poll=self._poll, connected=self._connected, refused=self._refused)
        self._fence = (0, 0)
        self._ends_at: float | None = None
        self._expected: dict[str, list[bytes]] = {}
        self._unready: OSError | None = OSError(errno.EINVAL, "nothing is expected")
        self._leaving = False

    def run(self) -> NoReturn:
        """Serve packets until released, cut off or told to end, then kill everything below and
        exit.
        """
        signals, noted = signal_pipe(self._tier.signals)
        self._tier.enter({self._link.fileno(), signals, noted})
        os.umask(0o022)
        os.chdir("/")
        widen(self._link)
        self._poll.register(self._link, select.POLLIN)
        self._poll.register(signals, select.POLLIN)
        if self._rehearse is not None:
            self._close_up(self._tier.prepare)
            with contextlib.suppress(OSError):
                self._rehearse()
        self._send(b"ready", number(os.getpid()))
        if not self._poll.poll(0):
            self._close_up(self._tier.prepare)
        while not self._leaving:
            for descriptor, _ in self._poll.poll(self._nap()):
                if descriptor == signals:
                    self._leaving |= signal.SIGTERM in drain(signals)
                    self._reap()
                elif descriptor == self._link.fileno():
                    self.serve()
                else:
                    self._loopback.proceed(descriptor)
        self._tier.end(self._reap)
        os._exit(0)

    def _nap(self) -> int | None:
        """Return how long to wait for packets, in milliseconds; leave when the lease is over."""
        if self._ends_at is None:
            return None
        left = self._ends_at - time.clock_gettime(time.CLOCK_BOOTTIME)
        if left <= 0:
            self._leaving = True
            return 0
        return int(min(left, _LONGEST_NAP) * 1000) + 1

    def _send(self, *fields: bytes, descriptors: tuple[int, ...] = ()) -> None:
        # A worker that is gone is noticed as end-of-file by the loop.
        with contextlib.suppress(OSError):
            try:
                socket.send_fds(self._link, [pack(*fields)], descriptors)
            except OSError:
                # The kernel may take no descriptors (ETOOMANYREFS): the worker notices.
                self._link.send(pack(*fields))

    def serve(self) -> None:
        """Do what the next packet says."""
        packet = receive(self._link)
        if packet is None:
            self._leaving = True
            return
        fields, descriptors = packet
        match fields[0]:
            case b"expect":
                self._expect(fields[1:])
            case b"take":
                self._take(fields[1], descriptors)
            case b"hold":
                self._hold(fields[1], int(fields[2]), int(fields[3]), float(fields[4]))
            case b"bind":
                self._bind(fields[1], fields[2:], descriptors)
            case b"start":
                self._start(fields[1:], descriptors)
            case b"signal" | b"expire":
                self._signal(fields[1], int(fields[2]), last=fields[0] == b"expire")
            case b"connect":
                self._connect(fields[1], int(fields[2]))
            case b"listen":
                self._listen(fields[1])
            case b"files":
                self._files(fields[1], fields[2])
            case b"release":
                self._leaving = True
        for descriptor in descriptors:
            os.close(descriptor)

    def _expect(self, fields: list[bytes]) -> None:
        """Hear what the next take is about, and do what of it needs no descriptors."""
        self._expected, self._unready = _named(fields), None
        try:
            for most in self._expected.get("files", ()):
                self._tier.hold_files(int(most))
            if "target" in self._expected:
                self._tier.expect(self._expected)
        except OSError as error:
            self._unready = error

    def _take(self, request: bytes, descriptors: list[int]) -> None:
        """Become a sandbox: bring in the workspace that may be expected, then keep to the limits
        and to the lease of who holds it.
        """
        named = self._expected
        step = b"limits"
        try:
            if self._unready is not None:
                raise self._unready
            step = b"workspace"
            if "target" in named:
                self._tier.bind(named, descriptors)
            step = b"limits"
            for entry in named["limit"]:
                name, _, value = entry.partition(b"=")
                limit(_RESOURCES[name], int(value))
            for entry in named.get("hold", ()):
                epoch, counter, ends_at = entry.split()
                self._fence, self._ends_at = (int(epoch), int(counter)), float(ends_at)
        except OSError as error:
            self._send(b"untaken", request, step, number(error.errno or errno.EIO))
        else:
            self._send(b"taken", request)
            if "target" in named:
                # While the answer is on its way: nothing is served before.
                self._close_up(self._tier.seal)

    def _hold(self, request: bytes, epoch: int, counter: int, ends_at: float) -> None:
        """Take a new end of the lease from whoever holds it now, never from who held it before."""
        if (epoch, counter) < self._fence:
            self._send(b"stale", request)
            return
        self._fence, self._ends_at = (epoch, counter), ends_at
        self._send(b"held", request)

    def _bind(self, request: bytes, fields: list[bytes], descriptors: list[int]) -> None:
        try:
            self._tier.bind(_named(fields), descriptors)
        except OSError as error:
            self._send(b"unbound", request, number(error.errno or errno.EIO))
        else:
            self._send(b"bound", request)
            self._close_up(self._tier.seal)

    def _close_up(self, raise_walls: Callable[[], None]) -> None:
        """Raise walls ahead of what needs them; an init that cannot do that ends."""
        try:
            raise_walls()
        except OSError:
            self._leaving = True

    def _start(self, fields: list[bytes], descriptors: list[int]) -> None:
        execution, root, directory, path, terminal, count = *fields[:5], int(fields[5])
        arguments, environment = fields[6 : 6 + count], fields[6 + count :]
        if not terminal and len(descriptors) < DESCRIPTORS:
            # The kernel drops what does not fit below this process's limit of open files.
            self._send(b"unstarted", execution, b"command", number(errno.EMFILE))
            return
        sides: tuple[int, ...] = ()
        step = b"seal"
        try:
            self._tier.seal()
            step = b"directory"
            os.chdir(working_directory(root, directory))
            if terminal:
                step = b"terminal"
                sides = open_terminal(terminal)
                streams = terminal_actions(sides[1])
            else:
                streams = pipe_actions(descriptors)
            step = b"command"
            pid = spawn(arguments, environment, path, streams)
        except OSError as error:
            self._send(b"unstarted", execution, step, number(error.errno or errno.ENOENT))
        else:
            self._running[pid] = execution
            self._send(b"started", execution, number(pid), descriptors=sides)
        finally:
            os.chdir("/")
            for side in sides:
                os.close(side)

    def _files(self, request: bytes, root: bytes) -> None:
        """Start a file agent, which a signal reaches by the request's name."""
        try:
            self._tier.seal()
            pid, line = fork_agent(root)
        except OSError as error:
            self._send(b"agentless", request, number(error.errno or errno.EIO))
            return
        self._running[pid] = request
        with line:
            self._send(b"agent", request, descriptors=(line.fileno(),))

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
        """Collect dead, not all at once when there are many; return whether a child is left."""
        found = 0
        while found < _MOST_REAPED or self._leaving:
            found += 1
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
            _, status, used = os.wait4(dead.si_pid, 0)
            execution = self._running.pop(dead.si_pid, None)
            # What this init kills itself did not end by a signal of its own.
            if execution is not None and not (self._leaving and os.WIFSIGNALED(status)):
                cpu = round((used.ru_utime + used.ru_stime) * _MICROSECONDS)
                peak = used.ru_maxrss * _KIB
                self._send(b"exit", execution, number(status), number(cpu), number(peak))
        # Programs can make orphans as fast as they are collected: packets come in between.
        signal.raise_signal(signal.SIGCHLD)
        return True

    def _connect(self, request: bytes, port: int) -> None:
        try:
            self._tier.seal()
        except OSError as error:
            self._refused(request, error.errno or errno.EIO)
        else:
            self._loopback.connect(request, port)

    def _listen(self, request: bytes) -> None:
        """Hand out a listener; without a seal, after which no workspace could come any more."""
        try:
            with listen() as listener:
                self._send(b"listening", request, descriptors=(listener.fileno(),))
        except OSError as error:
            self._send(b"unheard", request, number(error.errno or errno.EIO))

    def _connected(self, request: bytes, descriptor: int) -> None:
        self._send(b"connected", request, descriptors=(descriptor,))

    def _refused(self, request: bytes, cause: int) -> None:
        self._send(b"refused", request, number(cause))


def _named(fields: list[bytes]) -> dict[str, list[bytes]]:
    """Sort fields of the form name=value by their names; `limit` is always there."""
    found: dict[str, list[bytes]] = {"limit": []}
    for field in fields:
        name, _, value = field.partition(b"=")
        found.setdefault(name.decode("ascii"), []).append(value)
    return found


def serve(link: socket.socket, *, tier: Tier) -> NoReturn:
    """Be the init of a sandbox; never returns, and never lets an error unwind into the spawner's
    code.
    """
    try:
        Init(link=link, tier=tier).run()
    finally:
        os._exit(1)
