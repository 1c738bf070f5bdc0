"""The system calls that walled git has no use for, refused by a filter of the kernel
(seccomp(2)). Those that mount are not among them: the wall needs them to its end, and git has no
right to.
"""

from __future__ import annotations

import errno
import os

from fairlead_walls import call_filter as bpf

# Numbers by name (asm/unistd.h).
_X86_64 = {
    "socket": 41, "clone": 56, "ptrace": 101, "setpgid": 109, "setsid": 112,
    "pivot_root": 155, "init_module": 175, "add_key": 248, "request_key": 249,
    "keyctl": 250, "unshare": 272, "perf_event_open": 298, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311,
    "finit_module": 313, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "pivot_root": 41, "unshare": 97, "init_module": 105, "ptrace": 117, "setpgid": 154,
    "setsid": 157, "socket": 198,
    "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "perf_event_open": 241,
    "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273,
    "bpf": 280, "userfaultfd": 282,
}  # fmt: skip
_EVERYWHERE = {"io_uring_setup": 425}
_CLONE3 = 435
_NAMESPACES = 0x7E02_0000


def _refuse(number: int, error: int) -> bytes:
    return bpf.step(bpf.EQUAL, number, 0, 1) + bpf.refuse(error)


def program() -> bytes:
    """Return the filter for this machine; raises OSError where there is none."""
    machine = os.uname().machine
    numbers = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(machine)
    if numbers is None:
        raise OSError(errno.ENOSYS, "seccomp: no filter for this machine")
    steps = [
        bpf.step(bpf.LOAD, bpf.ARCHITECTURE),
        bpf.step(bpf.EQUAL, bpf.ARCHITECTURES[machine], 1, 0),
        bpf.step(bpf.RETURN, bpf.KILL),
        bpf.step(bpf.LOAD, bpf.NUMBER),
        bpf.step(bpf.AT_LEAST, bpf.X32, 0, 1),
        bpf.refuse(errno.ENOSYS),
        # The C library falls back on clone, whose flags a filter can see.
        _refuse(_CLONE3, errno.ENOSYS),
    ]
    for name, number in (numbers | _EVERYWHERE).items():
        if name != "clone":
            steps.append(_refuse(number, errno.EPERM))
    steps += [
        bpf.step(bpf.EQUAL, numbers["clone"], 0, 3),
        bpf.argument(0),
        bpf.step(bpf.ANY_BIT, _NAMESPACES, 0, 1),
        bpf.refuse(errno.EPERM),
        bpf.step(bpf.RETURN, bpf.ALLOW),
    ]
    return b"".join(steps)
