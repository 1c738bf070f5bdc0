"""The zygote: a small single-threaded program that forks children, which start as copies of it.

One zygote serves one tenant, one search path and one list of preloaded modules. Its children share
its address layout and hash seed. When it ends, for whatever reason, so do they.

Walled children get walls each, unless modules are preloaded: what is in them may not run outside
either, so the zygote goes behind the walls itself, and all its children are behind the same ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from membrane import child
from membrane.packets import BORN, FORK, READY, UNBORN, UNREADY, pack, receive

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead_walls.raising import Walls

_PR_SET_PDEATHSIG = 1
_TIOCNOTTY = 0x5422
_CALM_MILLISECONDS = 20
"""Time for who has just got a child, before walls of the next one are begun."""

_FILE_BYTES = 256 << 20
"""What a walled child may write to its /tmp, home and /dev/shm together."""

_USUAL = (
    "dataclasses",
    "datetime",
    "enum",
    "hashlib",
    "json",
    "logging",
    "random",
    "re",
    "typing",
)
"""What most code imports and is slow to import, hashlib for libcrypto above all (35 ms here): of
the standard library only, since it runs outside of the walls."""

_MOST_FILES = 1024
_MOST_TASKS = 1024
"""Processes and threads of a walled child; each call under way takes one."""

_libc = ctypes.CDLL(None, use_errno=True)


class Guest(NamedTuple):
    """What plugs into each child, and what that does before a session has it."""

    fit: child.Fit
    prepare: child.Prepare | None


class Zygote:
    """Forks on request, and hands out a descriptor of each child that is readable at its end."""

    def __init__(
        self, *, link: socket.socket, guest: Guest, walls: Walls | None, walled: bool
    ) -> None:
        """`walls` are raised around each child; `walled` says that there are some, here or around
        this zygote.
        """
        self._link = link
        self._guest = guest
        self._walls = walls
        self._walled = walled
        self._children: dict[int, int] = {}
        self._own = os.getpid()
        self._signals, self._noted = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._noted, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until the parent goes away."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        poll.register(self._signals, select.POLLIN)
        self._send(READY)
        while True:
            is_begun = self._walls is None or self._walls.is_begun
            events = poll.poll(None if is_begun else _CALM_MILLISECONDS)
            if not events and self._walls is not None:
                self._walls.begin()
            for descriptor, _ in events:
                if descriptor == self._signals:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._signals, 4096)
                elif not self._serve():
                    self._leave()
                    return
            self._reap()

    def _serve(self) -> bool:
        packet = receive(self._link)
        if packet is None:
            return False
        fields, descriptors = packet
        match fields:
            case [int(kind), int(number), int(uid)] if kind == FORK:
                self._create(number, uid, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _create(self, number: int, uid: int, descriptors: list[int]) -> None:
        try:
            # The kernel drops what does not fit below this process's limit of open files.
            control, lane = descriptors
            if self._walls is None:
                pid = self._fork(control, lane)
            else:
                pid = self._clone(uid, descriptors)
            self._children[pid] = number
            pidfd = os.pidfd_open(pid)
        except (OSError, ValueError) as error:
            self._send(UNBORN, number, str(error))
            return
        try:
            with contextlib.suppress(OSError):
                socket.send_fds(self._link, [pack(BORN, number)], [pidfd], socket.MSG_NOSIGNAL)
        finally:
            os.close(pidfd)

    def _fork(self, control: int, lane: int) -> int:
        pid = os.fork()
        if pid == 0:
            self._become(control, lane)
        return pid

    def _become(self, control: int, lane: int) -> NoReturn:
        """Be a child; never returns."""
        try:
            end_with(self._own)
            self._forget()
            os.setpgid(0, 0)
            serve(control, lane, self._guest, walled=self._walled)
        finally:
            os._exit(1)

    def _clone(self, uid: int, descriptors: list[int]) -> int:
        """Clone the first process of a child's own namespaces, which forks the child."""
        walls = self._walls
        if walls is None:
            raise ValueError("there are no walls")
        held, go = os.pipe2(os.O_CLOEXEC)
        try:
            pid = walls.clone(uid=uid)
            if pid == 0:
                self._become_first(walls, uid, held, go, descriptors)
            try:
                admit(walls, pid, uid)
                os.write(go, b"1")
            except OSError:
                os.kill(pid, signal.SIGKILL)
                raise
            return pid
        finally:
            os.close(held)
            os.close(go)

    def _become_first(
        self, walls: Walls, uid: int, held: int, go: int, descriptors: list[int]
    ) -> NoReturn:
        try:
            os.close(go)
            signal.set_wakeup_fd(-1)
            # A zygote that died meanwhile has let go of its end.
            if os.read(held, 1):
                go_behind(walls, {*descriptors}, own_user=uid >= 0)
                control, lane = descriptors
                guard_first(lambda: serve(control, lane, self._guest, walled=True), descriptors)
        finally:
            os._exit(1)

    def _forget(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self._signals, self._noted):
            os.close(descriptor)
        self._link.close()

    def _send(self, *fields: int | str) -> None:
        with contextlib.suppress(OSError):
            self._link.send(pack(*fields), socket.MSG_NOSIGNAL)

    def _reap(self) -> None:
        """Collect the dead, and kill what they left in their groups while these are theirs."""
        with contextlib.suppress(ChildProcessError):
            while True:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if dead is None:
                    return
                number = self._children.pop(dead.si_pid, None)
                if number is not None and self._walls is None:
                    with contextlib.suppress(OSError):
                        os.killpg(dead.si_pid, signal.SIGKILL)
                os.waitpid(dead.si_pid, 0)

    def _leave(self) -> None:
        for pid in self._children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            if self._walls is None:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def end_with(parent: int) -> None:
    """Be killed when the parent dies, or now if it has (prctl(2), PR_SET_PDEATHSIG)."""
    _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def leave_terminal() -> None:
    """Have no controlling terminal (ioctl_tty(2), TIOCNOTTY).

    Not by a session of its own: the scheduler groups processes by session (sched(7), autogroup),
    and a caller and a child of two groups wait for each other twice as long on a busy machine (30
    and 59 us a call here, at a load of 7).
    """
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(terminal, _TIOCNOTTY)
        finally:
            os.close(terminal)


def serve(control: int, lane: int, guest: Guest, *, walled: bool) -> NoReturn:
    """Be a child and serve on its sockets; never returns."""
    gc.enable()
    reseed()
    child.run(
        control=socket.socket(fileno=control),
        lane=socket.socket(fileno=lane),
        fit=guest.fit,
        prepare=guest.prepare,
        isolation="walled" if walled else "process",
    )


def reseed() -> None:
    """Let no two children draw the same numbers."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(int.from_bytes(os.urandom(4), "little"))


def admit(walls: Walls, pid: int, uid: int) -> None:
    """Give a clone its user."""
    if uid >= 0:
        walls.admit(pid, uid=uid, gid=uid)
    else:
        walls.admit(pid)


def go_behind(walls: Walls, keep: set[int], *, own_user: bool) -> None:
    """Raise all walls around this process, an admitted clone, with limits; raises OSError."""
    walls.enter(keep=keep)
    os.setpgid(0, 0)
    walls.hold_files(_FILE_BYTES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_FILES, _MOST_FILES))
    if own_user:
        # Counted by user: one who is the caller as well has other processes.
        resource.setrlimit(resource.RLIMIT_NPROC, (_MOST_TASKS, _MOST_TASKS))
    walls.seal()


def guard_first(work: Callable[[], NoReturn], descriptors: list[int]) -> NoReturn:
    """Do the work in a fork, and be the first process of its namespace: collect the orphans, and
    end with it.

    The first one itself could not be ended by its own signals, and fork(2) does for Python what
    clone(2) does not: `random` gets a fresh state.
    """
    pid = os.fork()
    if pid == 0:
        work()
    for descriptor in descriptors:
        os.close(descriptor)
    while True:
        ended, status = os.wait()
        if ended == pid:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def wall_in(walls: Walls, uid: int, link: int) -> None:
    """Go on behind walls, in a clone: the zygote that was started only waits for it from now on."""
    held, go = os.pipe2(os.O_CLOEXEC)
    pid = walls.clone(uid=uid)
    if pid == 0:
        os.close(go)
        if not os.read(held, 1):
            os._exit(1)
        go_behind(walls, {link}, own_user=uid >= 0)
        return
    try:
        admit(walls, pid, uid)
        os.write(go, b"1")
        os.close(link)
        os.waitpid(pid, 0)
    finally:
        os._exit(0)


def main(link_number: int, lifeline: int, spec: dict[str, object]) -> None:
    """Serve on the socket `link_number`. `lifeline` is a pipe that ends with the parent."""
    # Until it serves it may be anywhere, in an import for one: the kernel ends it then.
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_inheritable(link_number, False)
    os.set_inheritable(lifeline, False)
    if select.select([lifeline], [], [], 0)[0]:
        return
    leave_terminal()
    link = socket.socket(fileno=link_number)
    started_as = os.getpid()
    try:
        zygote = prepare(link, spec)
    except Exception as error:
        link.send(pack(UNREADY, f"{type(error).__name__}: {error}"), socket.MSG_NOSIGNAL)
        return
    gc.collect()
    gc.disable()
    gc.freeze()
    if os.getpid() == started_as:
        # It notices the end by itself from here on, and takes the children's programs along. Behind
        # walls it ends with who waits for it outside, and they with it.
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) & ~os.O_ASYNC)
    zygote.run()


def prepare(link: socket.socket, spec: dict[str, object]) -> Zygote:
    """Import what is to be there in the children, and go behind walls if that is said."""
    terms, preload, uid = spec["terms"], spec["preload"], spec["uid"]
    if not isinstance(terms, list) or not isinstance(preload, list) or not isinstance(uid, int):
        raise TypeError("terms and preload are lists, uid is a number")
    module, _, name = str(spec["guest"]).partition(":")
    plugged = importlib.import_module(module)
    guest = Guest(fit=getattr(plugged, name), prepare=getattr(plugged, "prepare", None))
    # One search that finds nothing lists every directory, once for all children.
    for usual in (*_USUAL, "fairlead_no_such_module"):
        with contextlib.suppress(ImportError):
            importlib.import_module(usual)
    walls = None
    if terms:
        from fairlead_walls.raising import Walls
        from fairlead_walls.terms import Terms

        walls = Walls(Terms.parse([os.fsencode(word) for word in terms]))
        if preload:
            wall_in(walls, uid, link.fileno())
            walls = None
    for each in preload:
        importlib.import_module(each)
    return Zygote(link=link, guest=guest, walls=walls, walled=bool(terms))
