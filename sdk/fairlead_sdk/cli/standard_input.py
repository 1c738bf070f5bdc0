"""Standard input of a command, as it is sent to the program on the host.

Whether there is any is decided before a launch is begun, so what is imported here at the top costs
every launch its time: `os` only.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_STDIN = 0
_PIECE_BYTES = 128 * 1024
_KIND = 0o170000
_PASSED_ON = (0o010000, 0o100000, 0o140000)
"""Kinds of file (S_IFMT of stat(2)) that are passed on: a pipe, a regular file, a socket."""


def has_standard_input() -> bool:
    """Whether something is piped or redirected in; a terminal or /dev/null is not passed on."""
    try:
        return os.fstat(_STDIN).st_mode & _KIND in _PASSED_ON
    except OSError:
        return False


async def read_standard_input() -> AsyncIterator[bytes]:
    """Yield standard input in pieces of at most 128 KiB.

    A daemon thread reads one piece ahead, so that nothing waits for it when the command ends.
    """
    import asyncio
    import threading

    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(1)
    wanted = threading.Semaphore(1)

    def read() -> None:
        while wanted.acquire():
            try:
                piece = os.read(_STDIN, _PIECE_BYTES)
            except OSError:
                piece = b""
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(pieces.put_nowait, piece)
            if not piece:
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while piece := await pieces.get():
        wanted.release()
        yield piece
