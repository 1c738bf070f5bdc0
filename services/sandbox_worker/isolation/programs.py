"""Starts the programs of a sandbox.

Runs in the inits: single-threaded, standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
import stat

from sandbox_worker.isolation.terminal_device import Action

_ALL_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def spawn(
    arguments: list[bytes], environment: list[bytes], path: bytes, streams: list[Action]
) -> int:
    """Start a program in its own session and return its pid; `streams` make its descriptors 0 to 2.

    posix_spawn(3) runs as vfork: twice as fast here as fork and exec, and it raises the errno of
    the failed exec. ENOENT means that no such program exists; EACCES or ENOEXEC that it is there
    and cannot be executed.
    """
    program = find_program(arguments[0], path)
    variables = dict(entry.split(b"=", 1) for entry in environment)
    try:
        return os.posix_spawn(
            program,
            arguments,
            variables,
            file_actions=streams,
            setsid=True,
            setsigmask=(),
            setsigdef=_ALL_SIGNALS,
        )
    except FileNotFoundError:
        # The file is there, since it was found: its interpreter is not.
        raise OSError(errno.ENOEXEC, "no interpreter") from None


def pipe_actions(descriptors: list[int]) -> list[Action]:
    """Return the file actions that make the first three of `descriptors` a program's.

    For /dev/null it gets the sandbox's: the device of the host could be changed (fchmod(2)) where
    the sandbox's user is the device's owner.
    """
    actions: list[Action] = [(os.POSIX_SPAWN_DUP2, descriptors[at], at) for at in range(3)]
    if stat.S_ISCHR(os.fstat(descriptors[0]).st_mode):
        actions[0] = (os.POSIX_SPAWN_OPEN, 0, os.fsencode(os.devnull), os.O_RDONLY, 0)
    return actions


def find_program(name: bytes, path: bytes) -> bytes:
    """Look a program up as execvp(3) does: a name with a slash is a path, another one is searched
    for. Raises OSError, ENOENT or EACCES.
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
