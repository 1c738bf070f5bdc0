"""The system calls that walled git has no use for, refused by a filter of the kernel
(seccomp(2)). Those that mount are not among them: the wall needs them to its end, and git has no
right to.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

# Audit architecture, then numbers by name (asm/unistd.h).
_X86_64 = (
    0xC000003E,
    {
        "socket": 41, "clone": 56, "ptrace": 101, "setpgid": 109, "setsid": 112,
        "pivot_root": 155, "init_module": 175, "add_key": 248, "request_key": 249,
        "keyctl": 250, "unshare": 272, "perf_event_open": 298, "setns": 308,
        "process_vm_readv": 310, "process_vm_writev": 311,
        "finit_module": 313, "bpf": 321, "userfaultfd": 323,
    },
)  # fmt: skip
_AARCH64 = (
    0xC00000B7,
    {
        "pivot_root": 41, "unshare": 97, "init_module": 105, "ptrace": 117, "setpgid": 154,
        "setsid": 157, "socket": 198,
        "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "perf_event_open": 241,
        "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273,
        "bpf": 280, "userfaultfd": 282,
    },
)  # fmt: skip
_EVERYWHERE = {"io_uring_setup": 425}
_CLONE3 = 435
_NAMESPACES = 0x7E02_0000
_OTHER_NUMBERING = 0x4000_0000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _REFUSE = 0x7FFF_0000, 0x8000_0000, 0x0005_0000

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int, error: int) -> bytes:
    return _step(_EQUAL, number, 0, 1) + _step(_RETURN, _REFUSE | error)


def program() -> bytes:
    """Return the filter for this machine; raises OSError where there is none."""
    known = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(os.uname().machine)
    if known is None:
        raise OSError(errno.ENOSYS, "seccomp: no filter for this machine")
    architecture, numbers = known
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _OTHER_NUMBERING, 0, 1),
        _step(_RETURN, _REFUSE | errno.ENOSYS),
        # The C library falls back on clone, whose flags a filter can see.
        _refuse(_CLONE3, errno.ENOSYS),
    ]
    for name, number in (numbers | _EVERYWHERE).items():
        if name != "clone":
            steps.append(_refuse(number, errno.EPERM))
    steps += [
        _step(_EQUAL, numbers["clone"], 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_ANY_BIT, _NAMESPACES, 0, 1),
        _step(_RETURN, _REFUSE | errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def enforce(steps: bytes) -> None:
    """Filter the system calls of this process and its descendants for good; needs
    no_new_privs.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    given = _Filter(len(steps) // 8, steps)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(given), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
