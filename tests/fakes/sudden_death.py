"""Runs work in a child process that is killed before its n-th change of files."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

_CHANGES = frozenset(("os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.symlink"))
_WRITING = os.O_WRONLY | os.O_RDWR


class Deadline:
    """Counts what this process changes below `root` from `begin` on, and kills it in time."""

    def __init__(self, root: Path, changes: int) -> None:
        self._root = str(root)
        self._left = changes
        self._begun = False

    def begin(self) -> None:
        """Count from now on."""
        self._begun = True

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        """See sys.addaudithook."""
        if not self._begun or not self._is_change(event, arguments):
            return
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def _is_change(self, event: str, arguments: tuple[object, ...]) -> bool:
        if event == "open":
            path, _, flags = arguments[:3]
            if not isinstance(flags, int) or not flags & _WRITING:
                return False
        elif event in _CHANGES:
            path = arguments[0]
        else:
            return False
        # A relative name stands for one below an open directory.
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        return text.startswith(self._root) or not text.startswith("/")


def killed_at(
    changes: int, root: Path, work: Callable[[Callable[[], None]], Awaitable[None]]
) -> bool:
    """Run `work` in a child that dies before its n-th change after it has called what it is given;
    returns whether it died. An error of the child fails the test.
    """
    child = os.fork()
    if child == 0:
        status = 1
        # Objects that other tests left, with threads that are not in this process, stay unended.
        gc.disable()
        try:
            deadline = Deadline(root, changes)
            sys.addaudithook(deadline.hook)

            async def run() -> None:
                await work(deadline.begin)

            asyncio.run(run())
            status = 0
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert signal.Signals(os.WTERMSIG(status)) is signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False
