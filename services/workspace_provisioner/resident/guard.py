"""Keeps watch over the resident program: when it ends, however it ends, nothing that it started
goes on.

The first process stays as the guard and adopts whatever loses its parent (PR_SET_CHILD_SUBREAPER,
prctl(2)); the second one serves. Each ends when the other does.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

log = logging.getLogger(__name__)

STAYS = "FAIRLEAD_STAYS"
"""Set in the environment of what may outlive the connection."""

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_ROUNDS = 100
_ENDING_SECONDS = 1.0


def serve_guarded(serve: Callable[[], None]) -> int:
    """Run `serve` in a child process and clear up behind it; returns the child's exit status.

    Call while there is one thread. Elsewhere than on Linux only the commands' own groups are
    ended, by the program itself.
    """
    _prctl(_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _prctl(_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != guard:
            os._exit(1)
        status = 1
        try:
            serve()
            status = 0
        except Exception:
            log.exception("the resident program failed")
        finally:
            os._exit(status)
    _let_channel_go()
    status = _wait_for(child)
    end_descendants()
    return status


def _prctl(option: int, argument: int) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


def _let_channel_go() -> None:
    """Leave the channel to the child alone, so that its end is the channel's end."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    os.close(null)


def _wait_for(child: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)  # whatever was adopted is reaped in passing
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def end_descendants() -> None:
    """Kill all descendants of this process that may not stay, until there are none."""
    for _ in range(_ROUNDS):
        found = [pid for pid in _descendants(os.getpid()) if not _may_stay(pid)]
        if not found:
            return
        ending = [descriptor for pid in found if (descriptor := _killed(pid)) is not None]
        for descriptor in ending:
            select.select((descriptor,), (), (), _ENDING_SECONDS)
            os.close(descriptor)


def _killed(pid: int) -> int | None:
    """Kill a process; returns what becomes readable when it is dead (pidfd_open(2))."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    return descriptor


def _descendants(root: int) -> Iterator[int]:
    parents: dict[int, list[int]] = {}
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                stat = _read(f"/proc/{name}/stat")
                # The name of the program, which may hold anything, ends with the last bracket.
                fields = stat[stat.rfind(b")") + 1 :].split()
                if len(fields) > 1 and fields[0] != b"Z":
                    parents.setdefault(int(fields[1]), []).append(int(name))
    waiting = [root]
    while waiting:
        children = parents.get(waiting.pop(), [])
        yield from children
        waiting += children


def _may_stay(pid: int) -> bool:
    return f"{STAYS}=1".encode() in _read(f"/proc/{pid}/environ").split(b"\0")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
