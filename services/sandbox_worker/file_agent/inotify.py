"""inotify(7) by descriptors: what the standard library lacks."""

from __future__ import annotations

import ctypes
import os
import struct

MODIFY = 0x002
ATTRIB = 0x004
MOVED_FROM = 0x040
MOVED_TO = 0x080
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
OVERFLOW = 0x4000
IGNORED = 0x8000
IS_DIRECTORY = 0x4000_0000
_ONLY_DIRECTORY = 0x0100_0000
_NO_LINK = 0x0200_0000
_WANTED = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF
_HEAD = struct.Struct("iIII")
_BUFFER = 64 * 1024
_libc = ctypes.CDLL(None, use_errno=True)


class Notice:
    """One event of the kernel's."""

    __slots__ = ("cookie", "mask", "name", "watch")

    def __init__(self, *, watch: int, mask: int, cookie: int, name: bytes) -> None:
        self.watch = watch
        self.mask = mask
        self.cookie = cookie
        self.name = name


class Inotify:
    """One instance; it ends with its process."""

    def __init__(self) -> None:
        self.descriptor = _checked(_libc.inotify_init1(ctypes.c_int(os.O_CLOEXEC | os.O_NONBLOCK)))

    def add(self, directory: int) -> int:
        """Watch an open directory; the same one gives the same number. Changes the working
        directory, as only so no path is resolved.
        """
        os.fchdir(directory)
        mask = _WANTED | _ONLY_DIRECTORY | _NO_LINK
        return _checked(
            _libc.inotify_add_watch(
                ctypes.c_int(self.descriptor), ctypes.c_char_p(b"."), ctypes.c_uint32(mask)
            )
        )

    def remove(self, watch: int) -> None:
        """Watch no longer; one that has ended is ignored."""
        _libc.inotify_rm_watch(ctypes.c_int(self.descriptor), ctypes.c_int(watch))

    def read(self) -> list[Notice]:
        """Return what has happened since; nothing when nothing has."""
        try:
            content = os.read(self.descriptor, _BUFFER)
        except BlockingIOError:
            return []
        found, position = [], 0
        while position < len(content):
            watch, mask, cookie, length = _HEAD.unpack_from(content, position)
            position += _HEAD.size
            name = content[position : position + length].rstrip(b"\0")
            position += length
            found.append(Notice(watch=watch, mask=mask, cookie=cookie, name=name))
        return found


def _checked(answer: int) -> int:
    if answer < 0:
        cause = ctypes.get_errno()
        raise OSError(cause, os.strerror(cause))
    return int(answer)
