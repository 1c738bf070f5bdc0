"""Other ways to get a process, in the same run: bubblewrap with the same walls, multiprocessing and
a bare posix_spawn.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fairlead_walls.call_list import compile_call_list

_ROOT = Path(__file__).resolve().parents[2]
_TRUE = shutil.which("true") or "/bin/true"


def bare() -> float:
    """Time posix_spawn of `true` until it is reaped."""
    return _spawned([_TRUE])


@contextmanager
def multiprocessed(method: str) -> Iterator[Callable[[], float]]:
    """Yield what times a process of `multiprocessing` that does nothing, until it is joined."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sandboxes.multiprocessed", method],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        asked, told = program.stdin, program.stdout
        assert asked is not None
        assert told is not None

        def timed() -> float:
            asked.write("\n")
            asked.flush()
            return float(told.readline())

        timed()  # a forkserver is started by the first
        yield timed
        asked.close()


def bubblewrapped(program: str, workspace: Path, calls: int) -> Callable[[], float]:
    """Return what times `bwrap` with the same namespaces, private root, bound tree and call filter,
    of which `calls` is an inherited descriptor, running `true`, until it is reaped; it has no
    Landlock, cgroups and host uid of its own, and mounts no overlay.
    """
    bound = [
        part
        for place in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
        if os.path.exists(place)
        for part in ("--ro-bind", place, place)
    ]
    words = [
        program,
        *("--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *bound,
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/home/sandbox"),  # noqa: S108
        *("--bind", str(workspace), "/workspace", "--chdir", "/workspace"),
        *("--seccomp", str(calls)),
        *("--", _TRUE),
    ]

    def timed() -> float:
        os.lseek(calls, 0, os.SEEK_SET)
        return _spawned(words)

    return timed


@contextmanager
def opened_peers(workspace: Path, notes: list[str]) -> Iterator[Mapping[str, Callable[[], float]]]:
    """Yield what can be timed here, by the name of its figure; a note says what cannot."""
    with (
        multiprocessed("spawn") as spawn,
        multiprocessed("forkserver") as forkserver,
        tempfile.TemporaryFile(buffering=0) as calls,
    ):
        peers: dict[str, Callable[[], float]] = {
            "posix_spawn_p50_ms": bare,
            "multiprocessing_spawn_p50_ms": spawn,
            "multiprocessing_forkserver_p50_ms": forkserver,
        }
        program = shutil.which("bwrap")
        if program is None:
            notes.append("bwrap is not installed here: `make bench-peers`")
        else:
            os.set_inheritable(calls.fileno(), True)
            bwrap = bubblewrapped(program, workspace, calls.fileno())
            try:
                calls.write(compile_call_list())
                bwrap()
                peers["bwrap_p50_ms"] = bwrap
            except (AssertionError, OSError):
                notes.append("bwrap raises no such walls here")
        yield peers


def _spawned(words: list[str]) -> float:
    begun = time.perf_counter()
    pid = os.posix_spawn(words[0], words, {"PATH": os.environ["PATH"]})
    _, status = os.waitpid(pid, 0)
    seconds = time.perf_counter() - begun
    assert status == 0, words
    return seconds
