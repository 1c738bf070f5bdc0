"""The terminal that a person sits at: raw while another one is shown on it, and as it was
afterwards, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import termios
import tty
from collections.abc import Callable
from types import TracebackType

_STDIN = 0
_READ_BYTES = 64 * 1024
_USUAL_SIZE = (24, 80)


class LocalTerminal:
    """Standard input as a terminal; use as a context manager, which makes it raw."""

    def __init__(self) -> None:
        self._kept = termios.tcgetattr(_STDIN)

    def __enter__(self) -> LocalTerminal:
        self.make_raw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.restore()

    @property
    def size(self) -> tuple[int, int]:
        """Its rows and columns; 24 and 80 where it does not know them."""
        try:
            columns, rows = os.get_terminal_size(_STDIN)
        except OSError:
            return _USUAL_SIZE
        return (rows, columns) if rows and columns else _USUAL_SIZE

    def make_raw(self) -> None:
        """Let every key through as it is typed."""
        with contextlib.suppress(termios.error):
            tty.setraw(_STDIN, termios.TCSADRAIN)

    def restore(self) -> None:
        """Make it what it was; again is harmless. What cannot be written does not hold this up."""
        with contextlib.suppress(termios.error):
            termios.tcsetattr(_STDIN, termios.TCSANOW, self._kept)

    def stop(self) -> None:
        """Stop this process as Ctrl-Z does; returns when it goes on."""
        self.restore()
        os.kill(os.getpid(), signal.SIGTSTP)
        self.make_raw()

    async def read(self) -> bytes:
        """Wait for keys; nothing when the terminal is gone."""
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        loop.add_reader(_STDIN, _once, readable.set_result, readable.done)
        try:
            await readable
        finally:
            loop.remove_reader(_STDIN)
        try:
            return os.read(_STDIN, _READ_BYTES)
        except OSError:
            return b""


def _once(then: Callable[[None], object], done: Callable[[], bool]) -> None:
    if not done():
        then(None)
