"""The program that starts git for the provisioner: it finds out once which walls this machine
allows, then forks a walled process for each job.

The provisioner starts it with an empty environment and one socket. It holds no secret; when the
provisioner goes away, however that happens, so does every git process.
Packets in: start, kill. Packets out: ready, exit.
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
import time

from chassis.packets import DESCRIPTORS, number, pack, receive, widen
from fairlead_walls import kernel_calls as calls
from workspace_provisioner.wall.cell import Cell, Ground, job_of
from workspace_provisioner.wall.survey import Survey, try_walls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

# As jobs has it, which loads typing.
_REFUSED = 126

_PAUSE = 0.05
"""Seconds before the next try where the machine has no process to spare."""

_CALM = 4
"""Milliseconds without an event after which it forks ahead: at once it would keep the job that has
just been given away from its processor.
"""

_PROMPT = -10
"""Niceness up to the moment when a process becomes git, where the service may say so."""

_SPARES = 2
"""Processes that wait for a job: forking and half of the walls take 4 ms (measured)."""


class Spawner:
    """Starts jobs on request and reports each that has ended once nothing of it is left."""

    def __init__(self, *, link: socket.socket, ground: Ground) -> None:
        self._link = link
        self._ground = ground
        self._spares: list[tuple[int, socket.socket]] = []
        self._running: dict[int, bytes] = {}
        self._ending: list[tuple[int, bytes, int]] = []
        self._signals = _signal_pipe()

    def run(self) -> None:
        """Serve until the provisioner goes away."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(self._signals, select.POLLIN)
        while True:
            events = poll.poll(_CALM if len(self._spares) < _SPARES else None)
            for descriptor, _ in events:
                if descriptor == self._signals:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._signals, 4096)
                elif not self._serve():
                    self._leave()
                    return
            self._reap()
            if not events:
                self._stand_by()

    def _serve(self) -> bool:
        packet = receive(self._link)
        if packet is None:
            return False
        fields, descriptors = packet
        match fields[0]:
            case b"start":
                self._start(fields[1], pack(*fields[2:]), descriptors)
            case b"kill":
                for pid, running in self._running.items():
                    if running == fields[1]:
                        _kill(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _start(self, name: bytes, job: bytes, descriptors: list[int]) -> None:
        try:
            if len(descriptors) < DESCRIPTORS:
                raise OSError(errno.EMFILE, "too few descriptors")
            pid, spare = self._spares.pop() if self._spares else self._fork()
        except OSError as error:
            log = os.fsencode(f"fairlead: git cannot be started: {error}\n")
            for descriptor in descriptors[2:]:
                os.write(descriptor, log)
            self._send(b"exit", name, number(_REFUSED << 8))
            return
        with spare:
            self._running[pid] = name
            # A spare that has died has an end like any other.
            with contextlib.suppress(OSError):
                socket.send_fds(spare, [job], descriptors)

    def _fork(self) -> tuple[int, socket.socket]:
        """Fork a process that walls itself in as far as it can, and waits for a job."""
        parent = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        widen(ours)
        with theirs:
            pid = os.fork()
            if pid == 0:
                # With a copy of the spawner's end it would never read the end of the file.
                ours.close()
                for _, spare in self._spares:
                    spare.close()
                self._link.close()
                os.close(self._signals)
                become(theirs, self._ground, parent=parent)
        return pid, ours

    def _stand_by(self) -> None:
        """Fork ahead, while nobody waits."""
        try:
            self._spares.append(self._fork())
        except OSError:
            time.sleep(_PAUSE)

    def _send(self, *fields: bytes) -> None:
        with contextlib.suppress(OSError):
            self._link.send(pack(*fields))

    def _reap(self) -> None:
        """Collect the dead; the group of a job that has ended is killed before its number can be
        another's, and its end is told when the group is empty.
        """
        with contextlib.suppress(ChildProcessError):
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                name = self._running.pop(dead.si_pid, None)
                if name is not None:
                    _kill(dead.si_pid)
                else:
                    self._forget(dead.si_pid)
                _, status = os.waitpid(dead.si_pid, 0)
                if name is not None:
                    self._ending.append((dead.si_pid, name, status))
        for ended in list(self._ending):
            pid, name, status = ended
            if not _is_group(pid):
                self._ending.remove(ended)
                self._send(b"exit", name, number(status))

    def _forget(self, pid: int) -> None:
        for spare in self._spares:
            if spare[0] == pid:
                spare[1].close()
                self._spares.remove(spare)
                return

    def _leave(self) -> None:
        for _, spare in self._spares:
            spare.close()
        for pid in self._running:
            _kill(pid)
        while self._running or self._ending:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            self._reap()


def _kill(pid: int) -> None:
    """Kill a process that is not reaped yet, and its group, which it may not have made yet."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def _is_group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def become(link: socket.socket, ground: Ground, *, parent: int) -> NoReturn:
    """Turn this process into walled git once a job comes; never returns, also when that cannot be
    done.
    """
    error: BaseException | None = None
    try:
        cell = Cell(ground, parent=parent)
    except BaseException as failed:
        # Told to the first job: nothing here may unwind into the spawner's code.
        error = failed
    try:
        packet = receive(link)
        if packet is None:
            os._exit(0)
        fields, descriptors = packet
        kept = [_above(each) for each in descriptors]
        for wanted, descriptor in enumerate(kept):
            os.dup2(descriptor, wanted)
        if error is not None:
            raise error
        job = job_of(fields)
        cell.enter(job)
        arguments = job["arguments"]
        if not arguments:
            held = try_walls(job["directory"])
            os.write(1, "".join(f"{name}={int(held[name])}\n" for name in held).encode())
            os._exit(0)
        os.closerange(3, 65_536)
        os.execve(arguments[0], arguments, job["environment"])  # noqa: S606 - the point of it
    except BaseException as failed:
        with contextlib.suppress(OSError):
            os.write(2, os.fsencode(f"fairlead: git cannot be walled in: {failed}\n"))
    finally:
        os._exit(_REFUSED)


def _above(descriptor: int) -> int:
    """Return a descriptor above 2: one below may be where another one is to go."""
    return descriptor if descriptor > 2 else _above(os.dup(descriptor))


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wakeup descriptor tells of the signal."""


def _signal_pipe() -> int:
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _noted)
    return read_end


def main() -> None:
    """Serve on the socket whose descriptor is the first argument; programs lie below /usr and in
    the directories that follow.
    """
    descriptor, *programs = sys.argv[2:]
    link = socket.socket(fileno=int(descriptor))
    link.set_inheritable(False)
    os.umask(0o022)
    os.chdir("/")
    survey = Survey(programs)
    survey.leave_spaces()
    outer = os.getpid()
    inner = os.fork()
    if inner:
        # Only the child is in the namespace of processes; this one ends with it.
        link.close()
        os.waitpid(inner, 0)
        return
    try:
        calls.end_with_parent(signal.SIGKILL)
        if survey.missing.get("process_tree"):
            if os.getppid() != outer:
                return
            calls.become_subreaper()
        with contextlib.suppress(OSError):
            # Every git process waits for this one, which works for a millisecond at a time.
            os.setpriority(os.PRIO_PROCESS, 0, _PROMPT)
        ground = survey.ground()
        link.send(pack(b"ready", *(os.fsencode(f"{k}={v}") for k, v in survey.missing.items())))
        spawner = Spawner(link=link, ground=ground)
        gc.disable()
        gc.freeze()
        spawner.run()
    finally:
        os._exit(0)
