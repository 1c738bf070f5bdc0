"""Child processes of the supervisor: none outlives it; ended politely, then surely."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOG_BYTES = 1024 * 1024


def _load_prctl() -> Callable[[int, int], int] | None:
    if sys.platform != "linux":
        return None
    prctl: Callable[[int, int], int] = ctypes.CDLL(None, use_errno=True).prctl
    return prctl


def adopt_orphans() -> None:
    """Make this process the parent of descendants that lose theirs (Linux), so that it can end
    them.
    """
    prctl = _load_prctl()
    if prctl:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def dies_with_parent() -> Callable[[], None]:
    """Return a `preexec_fn` after which the kernel kills the child when this process dies, however
    it dies (Linux).

    Everything it calls is loaded beforehand: nothing is imported between fork and exec.
    """
    prctl, parent, kill_signal = _load_prctl(), os.getpid(), int(signal.SIGKILL)

    def tie() -> None:
        if prctl:
            prctl(_PR_SET_PDEATHSIG, kill_signal)
            if os.getppid() != parent:
                os._exit(1)

    return tie


class Child:
    """One started program in a session of its own; its output goes to a log file."""

    def __init__(
        self, *, name: str, process: subprocess.Popen[bytes], log: Path, leads_group: bool = True
    ) -> None:
        self.name = name
        self.log = log
        self._process = process
        self._leads_group = leads_group
        self.ended = asyncio.Event()

    @property
    def pid(self) -> int:
        """Return its process id, also after it has ended."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Return its exit status (negative: the signal), or None while it runs."""
        return self._process.returncode

    def poll(self) -> None:
        """Notice its end, if it has ended; the supervisor calls this on SIGCHLD."""
        if self._process.poll() is not None:
            self.ended.set()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program and everything in its session's first group."""
        if self._process.poll() is None:
            (os.killpg if self._leads_group else os.kill)(self._process.pid, number)

    async def end(self, *, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Ask it to end, and kill it when it has not after `grace_seconds`, or at once when `hurry`
        is set.
        """
        self.signal(signal.SIGTERM)
        hurried = asyncio.ensure_future(hurry.wait())
        ended = asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait(
                {hurried, ended}, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            hurried.cancel()
            ended.cancel()
            if not self.ended.is_set():
                self.signal(signal.SIGKILL)
        self._process.wait()
        self.ended.set()

    def last_lines(self, count: int = 15) -> tuple[str, ...]:
        """Return the end of its log."""
        return last_lines(self.log, count)

    def exit_text(self) -> str:
        """Say how it ended."""
        status = self.status
        if status is None:
            return "still runs"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"exited with status {status}"


def start_child(
    *, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, directory: Path
) -> Child:
    """Start `command`; its log is rotated first when it has grown past 1 MiB. OSError when it
    cannot be run.
    """
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(  # noqa: S603 - the commands are the stack's own
            list(command),
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            preexec_fn=dies_with_parent(),
        )
    finally:
        os.close(descriptor)
    return Child(name=name, process=process, log=log)


def start_guest(*, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start a program on this terminal, in this process's group, so that Ctrl-C reaches it too."""
    process = subprocess.Popen(  # noqa: S603 - the command is the stack's own
        list(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        preexec_fn=dies_with_parent(),
    )
    return Child(name=name, process=process, log=Path(os.devnull), leads_group=False)


def reap_strangers(known: frozenset[int]) -> None:
    """Collect ended descendants that were adopted, without touching the children in `known`."""
    for pid in adopted(known):
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def kill_strangers(known: frozenset[int]) -> bool:
    """Kill every adopted descendant; True when there was one."""
    pids = adopted(known)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue
    return bool(pids)


def adopted(known: frozenset[int]) -> list[int]:
    """List this process's children that are not in `known`; empty if the kernel does not tell."""
    own = os.getpid()
    try:
        listed = Path(f"/proc/{own}/task/{own}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in listed.split() if int(pid) not in known]


def last_lines(log: Path, count: int) -> tuple[str, ...]:
    """Return up to `count` lines from the end of a file, without reading all of it."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 16 * 1024))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(line for line in lines if line.strip())[-count:]
