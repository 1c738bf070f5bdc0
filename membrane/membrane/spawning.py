"""The parent's side of a zygote and of the children that it forked."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from membrane.children import FREE_SECONDS
from membrane.errors import ChildLost, MembraneError, UnsupportedUse
from membrane.packets import BORN, FORK, READY, UNBORN, UNREADY, pack, receive

if TYPE_CHECKING:
    from collections.abc import Callable

    from membrane.service import Service

_PROGRAM = (
    "import json, sys; spec = json.loads(sys.argv[3]); sys.path[:] = spec['path']; "
    "from membrane.zygote import main; main(int(sys.argv[1]), int(sys.argv[2]), spec)"
)
_KEPT_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_GRACE_SECONDS = 1.0
_BIRTH_SECONDS = 30.0
MOST_FORKS = 1000
"""After so many a zygote forks no more: its children share its address layout and hash seed."""


@dataclass(frozen=True, slots=True)
class ZygoteSpec:
    """What a zygote is started with. Sessions with equal ones may have children of one zygote.

    `path` is the module search path; `terms` are the words of the walls, and empty without.
    """

    tenant: str
    path: tuple[str, ...]
    preload: tuple[str, ...]
    guest: str
    terms: tuple[bytes, ...] = ()
    uids: int = 0

    @property
    def isolation(self) -> str:
        """How its children are kept apart."""
        return "walled" if self.terms else "process"


class Child:
    """A child process, from the moment that it was asked for; `ended` is called when it is gone."""

    shares_memory = True
    free_seconds = FREE_SECONDS
    has_numpy = True

    def __init__(
        self, *, number: int, control: socket.socket, lane: socket.socket, service: Service
    ) -> None:
        self.number = number
        self.control = control
        self.lane = lane
        self.uid = -1
        self.pidfd = -1
        self.fault = ""
        self.unprepared = ""
        self.ended: Callable[[], None] | None = None
        self.is_over = False
        self._is_doomed = False
        self._pid = 0
        self._service = service
        self._born = threading.Event()

    @property
    def refusal(self) -> MembraneError | None:
        """What to raise instead of trying again: no zygote could be made for it."""
        if not self.unprepared:
            return None
        return UnsupportedUse(
            f"no child can be prepared: {self.unprepared}; see to preload and paths"
        )

    def wait_born(self) -> None:
        """Wait until it is born, or will never be."""
        self._service.wait(self._born, _BIRTH_SECONDS)

    @property
    def pid(self) -> int:
        """Its process id here; waits for its birth. Raises ChildLost."""
        self.wait_born()
        if not self._pid:
            raise ChildLost(f"the child was never born: {self.fault or 'its zygote is silent'}")
        return self._pid

    def is_gone(self) -> bool:
        """Look whether its process has ended, or will never be: its ends are closed then."""
        try:
            poll = select.poll()
            poll.register(self.control, 0)
            return self.is_over or bool(poll.poll(0))
        except (OSError, ValueError):
            return True

    def on_born(self, pidfd: int) -> None:
        """Take the descriptor of the process."""
        self.pidfd = pidfd
        self._pid = _pid_of(pidfd)
        self._born.set()
        if self._is_doomed:
            self.kill()

    def kill(self, *, group: bool = False) -> None:
        """Kill it, at birth if need be; with `group` the programs that it started as well, which
        is otherwise seen to by its zygote.
        """
        self._is_doomed = True
        if group and self._pid:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        if self.pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the sockets, at which it ends by itself."""
        self.control.close()
        self.lane.close()

    def on_over(self) -> None:
        """Take notice that it is gone."""
        if self.is_over:
            return
        self.is_over = True
        self._born.set()
        if self.ended is not None:
            self.ended()


class Zygote:
    """A running zygote; `changed` is called when a child or the zygote itself is gone."""

    def __init__(
        self, *, spec: ZygoteSpec, uids: Uids, service: Service, changed: Callable[[], None]
    ) -> None:
        """Start it; raises OSError, and UnsupportedUse where there is no program to start."""
        self.spec = spec
        self.fault = ""
        self.is_over = self.is_buried = False
        self.children: dict[int, Child] = {}
        self._forks = 0
        self._is_deaf = False
        self._numbers = itertools.count(1)
        self._uids = uids
        self._service = service
        self._changed = changed
        # One behind whose walls all children are has one user for all of them.
        self._own_uids = bool(spec.uids) and not spec.preload
        self._uid = uids.take() if spec.uids and spec.preload else -1
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(True)
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        try:
            self._pid = self._spawn(theirs.fileno(), lifeline)
        except BaseException:
            self._link.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self._pidfd = os.pidfd_open(self._pid)
        service.watch(self._link.fileno(), self._on_packet)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid

    @property
    def can_fork(self) -> bool:
        """Whether it may have more children."""
        is_well = not self.is_over and not self._is_deaf and not self.fault
        return is_well and self._forks < MOST_FORKS

    def fork(self) -> Child:
        """Ask for a child, which can be spoken to at once; raises ChildLost."""
        # Threads may ask at one time: each gets a number of its own.
        self._forks = number = next(self._numbers)
        near_control, far_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near_lane, far_lane = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        child = Child(number=number, control=near_control, lane=near_lane, service=self._service)
        with far_control, far_lane:
            if self._own_uids:
                child.uid = self._uids.take()
            self.children[child.number] = child
            try:
                socket.send_fds(
                    self._link,
                    [pack(FORK, child.number, child.uid)],
                    [far_control.fileno(), far_lane.fileno()],
                    socket.MSG_NOSIGNAL,
                )
            except OSError as error:
                self._is_deaf = True
                self._drop(child)
                child.close()
                raise ChildLost(f"the zygote is gone: {self.fault or error}") from None
        return child

    def close(self) -> None:
        """Let it end, with its children and what these started; killed when that takes long."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)
        self._service.after(_GRACE_SECONDS, self._kill)

    def _kill(self) -> None:
        if not self.is_over:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def abandon(self) -> None:
        """Let go of its descriptors in a fork of the parent."""
        self._link.close()
        os.close(self._lifeline)
        os.close(self._pidfd)
        for child in self.children.values():
            child.close()
            if child.pidfd >= 0:
                os.close(child.pidfd)

    def _spawn(self, link: int, lifeline: int) -> int:
        if not sys.executable:
            raise UnsupportedUse("this program does not say where its Python is (sys.executable)")
        spec = self.spec
        walled = bool(spec.terms)
        words = {
            "path": list(spec.path),
            "preload": list(spec.preload),
            "guest": spec.guest,
            "terms": [os.fsdecode(word) for word in spec.terms],
            "uid": self._uid,
        }
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_DUP2, end, end) for end in (link, lifeline)
        ]
        for stream in (0, 1, 2) if walled else (0,):
            actions.append((os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0))
        program = ["-I", "-S", "-c", _PROGRAM, str(link), str(lifeline), json.dumps(words)]
        return os.posix_spawn(
            sys.executable,
            [sys.executable, *program],
            _walled_variables() if walled else dict(os.environ),
            file_actions=actions,
            setpgroup=0,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD),
        )

    def _on_packet(self) -> None:
        try:
            packet = receive(self._link, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if packet is None:
            self._on_lost()
            return
        fields, descriptors = packet
        match fields:
            case [int(kind), int(number)] if kind == BORN and descriptors:
                self._on_born(number, descriptors.pop(0))
            case [int(kind), int(number), str(fault)] if kind == UNBORN:
                child = self.children.get(number)
                if child is not None:
                    child.fault = fault
                    self._drop(child)
            case [int(kind), str(fault)] if kind == UNREADY:
                self.fault = fault
            case [int(kind)] if kind == READY:
                pass
        for descriptor in descriptors:
            os.close(descriptor)

    def _on_born(self, number: int, pidfd: int) -> None:
        child = self.children.get(number)
        if child is None:
            os.close(pidfd)
            return
        self._service.watch(pidfd, lambda: self._on_child_gone(child))
        child.on_born(pidfd)

    def _on_child_gone(self, child: Child) -> None:
        # What is watched may have had its number for a moment only.
        if child.pidfd < 0 or not _is_readable(child.pidfd):
            return
        self._service.forget(child.pidfd)
        os.close(child.pidfd)
        child.pidfd = -1
        self._drop(child)

    def _drop(self, child: Child) -> None:
        if self.children.pop(child.number, None) is None:
            return
        if child.uid >= 0:
            self._uids.give_back(child.uid)
        child.on_over()
        self._changed()

    def _on_lost(self) -> None:
        self._service.forget(self._link.fileno())
        self.is_over = True
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._link.close()
        os.close(self._lifeline)
        # One that was forked in its last moment may not have asked yet to die with it.
        for child in list(self.children.values()):
            child.fault = child.fault or "its zygote ended"
            child.unprepared = self.fault
            child.kill(group=self.spec.isolation == "process")
            if child.pidfd < 0:
                self._drop(child)
        self._service.watch(self._pidfd, self._bury)

    def _bury(self) -> None:
        if not _is_readable(self._pidfd):
            return
        self._service.forget(self._pidfd)
        os.close(self._pidfd)
        # Somebody who waits for all children of this process may have been faster.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self.is_buried = True
        if self._uid >= 0:
            self._uids.give_back(self._uid)
        self._changed()


class Uids:
    """Host uids for walled children: each has its own while it lives."""

    def __init__(self, *, first: int, count: int) -> None:
        self._first = first
        self._count = count
        # Several parents share the range: they seldom start at one place.
        self._next = int.from_bytes(os.urandom(4), "little")
        self._used: set[int] = set()
        self._lock = threading.RLock()

    def take(self) -> int:
        """Return one that no child of this process has; raises ChildLost where none is left."""
        with self._lock:
            for _ in range(self._count):
                self._next += 1
                uid = self._first + self._next % self._count
                if uid not in self._used:
                    self._used.add(uid)
                    return uid
        raise ChildLost("every host uid for children is in use; close sessions")

    def give_back(self, uid: int) -> None:
        """Take one back, once nothing of its child is left."""
        with self._lock:
            self._used.discard(uid)


def _walled_variables() -> dict[str, str]:
    """Return the environment behind walls: nothing of the parent's that could be a secret."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/home/sandbox",
        "USER": "sandbox",
        **kept,
    }


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _pid_of(pidfd: int) -> int:
    """Return the number of a process in this namespace (pidfd_open(2), fdinfo); 0 once it ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "Pid":
                return max(0, int(value))
    return 0
