"""Forks the file agents of a sandbox. Runs in the inits: standard library only."""

from __future__ import annotations

import os
import signal
import socket

from sandbox_worker.file_agent import agent

_MOST_DESCRIPTORS = 4096


def fork_agent(root: bytes) -> tuple[int, socket.socket]:
    """Fork a file agent for a directory; return its pid and the worker's end of its line.

    It has nothing of the init's but its walls: no descriptor, no signal handler. Raises OSError.
    """
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        pid = os.fork()
    except OSError:
        near.close()
        far.close()
        raise
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            os.setpgid(0, 0)
            os.closerange(3, far.fileno())
            os.closerange(far.fileno() + 1, _MOST_DESCRIPTORS)
            agent.serve(far, root=root)
        finally:
            os._exit(1)
    far.close()
    # Both do it: whoever is told of the agent may signal its group at once.
    os.setpgid(pid, pid)
    return pid, near
