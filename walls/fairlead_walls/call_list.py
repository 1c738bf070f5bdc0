"""Compiles the list of system calls that walled programs may make into a filter (seccomp(2)).

Done once in the worker, so that the zygotes hold the bytes only.
"""

from __future__ import annotations

import errno
import os

from fairlead_walls import call_filter as bpf
from fairlead_walls.call_numbers import NEWEST, allowed, judged

_ALLOW = bpf.step(bpf.RETURN, bpf.ALLOW)
_REFUSE = bpf.refuse(errno.EPERM)
_NAMESPACES = 0x7E02_0000
_DEVICES = 0x2000
"""Set in the modes of character and block devices, not in those of files, pipes and sockets."""

_SET_IDS = 0o6000
"""S_ISUID and S_ISGID. A program with one of them runs as its owner or group, which on the host's
disk are the worker's. A directory cannot be told from a file by its mode: set-group-id directories
are refused too, which mean nothing where there is one group.
"""

_MAKES = 0x40_0040
"""O_CREAT and __O_TMPFILE, with which open(2) takes a mode."""

_TERMINAL_TRICKS = (0x5412, 0x541C)
"""ioctl(2): TIOCSTI types for others, TIOCLINUX pastes for others."""

_LOADERS = (0x5423, 0x8940, 0x8941, 0x8982, 0x8983, 0x89A0, 0x89A1)
"""ioctl(2): TIOCSETD, SIOC*BR* and SIOC*VLAN load modules of the kernel, whoever asks."""

_PLAIN_PERSONALITIES = (0, 0xFFFF_FFFF)
_CORE = 4
"""RLIMIT_CORE is 1, with which nothing is dumped; with 0 the machine's collector of cores would
run (core(5)), as root. So programs that set it are told that they did.
"""

_UNIX, _INET, _INET6 = 1, 2, 10
_STREAM, _DATAGRAM = 1, 2
_STREAMS, _DATAGRAMS = (0, 6, 262), (0, 17)
_ICMP, _ICMP6 = 1, 58
"""Default, TCP, MPTCP; default, UDP, ICMP of the family. For anything else, also for one of these
with a type that it does not have, the kernel would look for a module.
"""

_SOCKET_FILTERS = (26, 50, 51, 52)
"""setsockopt(2), SO_ATTACH_*: programs of all users share the memory for compiled filters
(net.core.bpf_jit_limit). One process can use it up, and no sandbox could be sealed any more.
"""

_SOCKET_LEVEL = 1


def _unless(code: int, values: tuple[int, ...], otherwise: bytes) -> bytes:
    """Go on past `otherwise` when the loaded word fits one of the values."""
    steps = b""
    for left, value in zip(range(len(values) - 1, -1, -1), values, strict=True):
        steps += bpf.step(code, value, left + len(otherwise) // 8, 0)
    return steps + otherwise


def _refused_if(code: int, values: tuple[int, ...], error: int) -> bytes:
    """Refuse when the loaded word fits one of the values, allow it otherwise."""
    return _unless(code, values, _ALLOW) + bpf.refuse(error)


def _among(values: tuple[int, ...]) -> bytes:
    """Allow it when the third argument is one of the values."""
    return bpf.argument(2) + _unless(bpf.EQUAL, values, _REFUSE) + _ALLOW


def _if_equal(value: int, then: bytes) -> bytes:
    """End with `then` when the loaded word is the value, go on past it otherwise."""
    return bpf.step(bpf.EQUAL, value, 0, len(then) // 8) + then


def _internet_socket(icmp: int) -> bytes:
    return (
        bpf.argument(1)
        + bpf.step(bpf.AND, 0xF)
        + _if_equal(_STREAM, _among(_STREAMS))
        + _if_equal(_DATAGRAM, _among((*_DATAGRAMS, icmp)))
        + _REFUSE
    )


def _socket() -> bytes:
    return (
        bpf.argument(0)
        + _if_equal(_UNIX, _ALLOW)
        + _if_equal(_INET, _internet_socket(_ICMP))
        + _if_equal(_INET6, _internet_socket(_ICMP6))
        + bpf.refuse(errno.EAFNOSUPPORT)
    )


def _socket_option() -> bytes:
    filters = bpf.argument(2) + _refused_if(bpf.EQUAL, _SOCKET_FILTERS, errno.EPERM)
    return bpf.argument(1) + _if_equal(_SOCKET_LEVEL, filters) + _ALLOW


def _unless_null(place: int, otherwise: bytes) -> bytes:
    """Go on past `otherwise` when an argument is 0 in both of its halves."""
    load = bpf.step(bpf.LOAD, 16 + 8 * place + 4)
    return (
        bpf.argument(place)
        + bpf.step(bpf.EQUAL, 0, 0, 2)
        + load
        + bpf.step(bpf.EQUAL, 0, len(otherwise) // 8, 0)
        + otherwise
    )


def _limit_of_any() -> bytes:
    """Judge prlimit64(2): its new limit is its third argument, what it tells of the old one goes
    where its fourth points. A process may limit itself, as 0: a limit on processor time would end
    the sandbox's first process, which belongs to the same user.
    """
    changes = (
        bpf.argument(0)
        + _unless(bpf.EQUAL, (0,), _REFUSE)
        + bpf.argument(1)
        + _unless(bpf.EQUAL, (_CORE,), _ALLOW)
        + _unless_null(3, _REFUSE)
        + bpf.refuse(0)
    )
    return _unless_null(2, changes) + _ALLOW


def _mode(place: int, forbidden: int = _SET_IDS) -> bytes:
    """Judge a call by the mode that it gives to a file."""
    return bpf.argument(place) + _refused_if(bpf.ANY_BIT, (forbidden,), errno.EPERM)


def _opening(flags: int) -> bytes:
    """Judge open(2) and openat(2): the mode, behind the flags, counts for a file that is made."""
    return bpf.argument(flags) + _unless(bpf.ANY_BIT, (_MAKES,), _ALLOW) + _mode(flags + 1)


_JUDGEMENTS = {
    "chmod": _mode(1),
    "clone": bpf.argument(0) + _refused_if(bpf.ANY_BIT, (_NAMESPACES,), errno.EPERM),
    "clone3": bpf.refuse(errno.ENOSYS),  # the C library falls back on clone, whose flags are seen
    "creat": _mode(1),
    "fchmod": _mode(1),
    "fchmodat": _mode(2),
    "fchmodat2": _mode(2),
    "io_setup": bpf.refuse(errno.ENOSYS),
    "ioctl": (
        bpf.argument(1) + _refused_if(bpf.EQUAL, (*_TERMINAL_TRICKS, *_LOADERS), errno.EPERM)
    ),
    # Not mkdir(2): the kernel takes these bits from its mode.
    "mknod": _mode(1, _DEVICES | _SET_IDS),
    "mknodat": _mode(2, _DEVICES | _SET_IDS),
    "open": _opening(1),
    "openat": _opening(2),
    "openat2": bpf.refuse(errno.ENOSYS),  # its flags and mode lie in memory; programs use openat
    "personality": (bpf.argument(0) + _unless(bpf.EQUAL, _PLAIN_PERSONALITIES, _REFUSE) + _ALLOW),
    "prlimit64": _limit_of_any(),
    "setrlimit": bpf.argument(0) + _unless(bpf.EQUAL, (_CORE,), _ALLOW) + bpf.refuse(0),
    "setsockopt": _socket_option(),
    "socket": _socket(),
    "socketpair": (
        bpf.argument(0) + _unless(bpf.EQUAL, (_UNIX,), bpf.refuse(errno.EAFNOSUPPORT)) + _ALLOW
    ),
}


def _runs(machine: str) -> list[tuple[int, bytes]]:
    """Return the first number of each run of numbers that end alike, and how they end."""
    ends = dict.fromkeys(allowed(machine).values(), _ALLOW)
    ends |= {number: _JUDGEMENTS[name] for name, number in judged(machine).items()}
    found: list[tuple[int, bytes]] = []
    for number in range(NEWEST + 1):
        end = ends.get(number, _REFUSE)
        if not found or found[-1][1] != end:
            found.append((number, end))
    return [*found, (NEWEST + 1, bpf.refuse(errno.ENOSYS))]


def _search(runs: list[tuple[int, bytes]]) -> bytes:
    """Return a binary search for the run that the loaded number is in.

    The kernel tries the filter on every number when it takes it, so that the way has to be short.
    """
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    below, above = _search(runs[:middle]), _search(runs[middle:])
    return bpf.step(bpf.AT_LEAST, runs[middle][0], len(below) // 8, 0) + below + above


def compile_call_list(machine: str = "") -> bytes:
    """Return the filter for a machine, by default this one.

    Foreign calling conventions (i386, x32, 32-bit ARM) kill the process. Raises OSError where there
    is no list for the machine.
    """
    machine = machine or os.uname().machine
    if machine not in bpf.ARCHITECTURES:
        raise OSError(errno.ENOSYS, "seccomp: no filter for this machine")
    kill = bpf.step(bpf.RETURN, bpf.KILL)
    return (
        bpf.step(bpf.LOAD, bpf.ARCHITECTURE)
        + _unless(bpf.EQUAL, (bpf.ARCHITECTURES[machine],), kill)
        + bpf.step(bpf.LOAD, bpf.NUMBER)
        + bpf.step(bpf.AT_LEAST, bpf.X32, 0, 1)
        + kill
        + _search(_runs(machine))
    )
