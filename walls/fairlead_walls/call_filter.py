"""Filters of system calls as the kernel takes them: programs of classic BPF over the number, the
architecture and the arguments of a call (seccomp(2)).

For the small programs that wall others in: single-threaded, standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct

LOAD, EQUAL, ABOVE, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
"""Codes of a step: load a word, compare what was loaded, mask it, end."""

NUMBER, ARCHITECTURE = 0, 4
"""Where the number of the call and the architecture lie."""

ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
_REFUSE = 0x0005_0000

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""What the kernel calls the machines that there are filters for (linux/audit.h)."""

X32 = 0x4000_0000
"""Numbers from here on are of x86_64's other calling convention."""

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2

_libc = ctypes.CDLL(None, use_errno=True)


def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one step; a comparison passes over `if_true` or `if_false` steps, at most 255."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def argument(place: int) -> bytes:
    """Return the step that loads the lower half of an argument, counted from 0."""
    return step(LOAD, 16 + 8 * place)


def refuse(error: int) -> bytes:
    """Return the step that fails the call with an error number."""
    return step(RETURN, _REFUSE | error)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def enforce(steps: bytes) -> None:
    """Filter the system calls of this process and its descendants for good; needs
    no_new_privs.
    """
    given = _Filter(len(steps) // 8, steps)
    if _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(given), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
