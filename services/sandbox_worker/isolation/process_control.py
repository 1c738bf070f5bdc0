"""The few kernel calls that the spawner and the inits need beyond the standard library."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Iterable
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SOONER, _SOONEST = 500, 1000

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def become_subreaper() -> None:
    """Adopt orphaned descendants (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """Get SIGTERM when the parent dies; at once when it is no longer `parent` (prctl(2),
    PR_SET_PDEATHSIG).
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def die_first() -> None:
    """Be killed before the worker when the machine's memory runs out, with all children
    (proc_pid_oom_score_adj(5)); where that cannot be said, the kernel chooses.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
        worker = int(file.read())
        file.write(b"%d" % min(worker + _SOONER, _SOONEST))


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wakeup descriptor carries the signal's number."""


def signal_pipe(numbers: Iterable[signal.Signals]) -> tuple[int, int]:
    """Route signals into a pipe and return its two ends, that to read first; each byte is a
    signal's number.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, _noted)
    return read_end, write_end


def drain(pipe: int) -> bytes:
    """Read what the signal pipe holds."""
    seen = b""
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(pipe, 4096):
            seen += piece
    return seen


def limit(which: int, value: int) -> None:
    """Set a soft and hard resource limit, not above the present hard one (setrlimit(2))."""
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))
