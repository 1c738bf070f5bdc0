"""The pseudo-terminal of one program, as its sandbox sees it; see pty(7).

Runs in the inits: standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios

_IUTF8 = 0o40000
"""Erasing takes a whole UTF-8 character (asm-generic/termbits.h); not in the module termios."""

EXHAUSTED = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC})
"""What opening a terminal fails with when there are too many, also of the whole machine."""

Action = tuple[int, int, bytes, int, int] | tuple[int, int, int]
"""A file action of posix_spawn(3)."""


def open_terminal(size: bytes) -> tuple[int, int]:
    """Open a terminal of `ROWS COLUMNS` and return its two sides: the worker's, the program's.

    Raises OSError.
    """
    rows, columns = (int(part) for part in size.split(b" "))
    near, far = os.openpty()
    try:
        attributes = termios.tcgetattr(far)
        attributes[0] |= _IUTF8
        termios.tcsetattr(far, termios.TCSANOW, attributes)
        resize_terminal(near, rows, columns)
    except BaseException:
        os.close(near)
        os.close(far)
        raise
    return near, far


def resize_terminal(descriptor: int, rows: int, columns: int) -> None:
    """Set the size; the kernel sends SIGWINCH to the foreground group where it differs."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def terminal_actions(far: int) -> list[Action]:
    """Return the file actions that make a program's descriptors 0 to 2 the terminal.

    glibc makes the session before the file actions (sysdeps/unix/sysv/linux/spawni.c), and the
    first terminal that the leader of a session opens becomes its controlling one (tty_ioctl(4)).
    """
    path = os.fsencode(os.ttyname(far))
    return [
        (os.POSIX_SPAWN_OPEN, 0, path, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
    ]
