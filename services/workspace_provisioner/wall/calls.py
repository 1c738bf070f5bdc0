"""The kernel calls of the wall around git that the standard library does not have: namespaces,
mounts, capabilities, Landlock. Single-threaded programs only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

OWN_MOUNTS = 0x00020000
OWN_IPC = 0x08000000
OWN_USERS = 0x10000000
OWN_PIDS = 0x20000000
OWN_NETWORK = 0x40000000

READ_ONLY = 0x00000001
NO_SETUID = 0x00000002
NO_DEVICES = 0x00000004
NO_PROGRAMS = 0x00000008
_ID_MAPPED = 0x00100000

_MACHINES = {"x86_64": (251, 126), "aarch64": (30, 91)}
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_AT_SYMLINK_NOFOLLOW = 0x100
_MS_REC_SLAVE = 0x4000 | 0x80000
_MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_CAPABILITIES = 64

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _call(call: str, number: int, *arguments: int | bytes | None) -> int:
    """Make a system call; numbers above 400 are the same on all machines."""
    given = [
        ctypes.c_long(each) if isinstance(each, int) else ctypes.c_char_p(each)
        for each in arguments
    ]
    return _check(_libc.syscall(ctypes.c_long(number), *given), call)


def unshare(flags: int) -> None:
    """Leave the parent's namespaces (unshare(2))."""
    _check(_libc.unshare(flags), "unshare")


def keep_mounts_private() -> None:
    """Let no mount of this namespace be seen in the parent's, whose later mounts are seen here
    (mount_namespaces(7)).
    """
    _check(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC_SLAVE), None), "mount slave")


def mount_overlay(target: str, options: str) -> None:
    """Mount an overlay without set-uid programs and devices."""
    flags = ctypes.c_ulong(NO_SETUID | NO_DEVICES)
    mounted = _libc.mount(b"overlay", os.fsencode(target), b"overlay", flags, os.fsencode(options))
    _check(mounted, "mount overlay")


def detach_mount(target: str) -> None:
    """Take a mount out of the tree; what is in use of it stays in use (umount2(2))."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), "umount")


def empty_tmpfs() -> int:
    """Make an empty file system in memory that is mounted nowhere (fsopen(2), fsmount(2))."""
    opened = _call("fsopen", _FSOPEN, b"tmpfs", 1)
    try:
        _call("fsconfig", _FSCONFIG, opened, 1, b"mode", b"755", 0)
        _call("fsconfig", _FSCONFIG, opened, 6, None, None, 0)
        return _call("fsmount", _FSMOUNT, opened, 1, NO_SETUID | NO_DEVICES)
    finally:
        os.close(opened)


def clone_mount(path: str, *, directory: int = _AT_FDCWD) -> int:
    """Return a second view of a file or tree, mounted nowhere; the last part of `path` may be no
    symlink (open_tree(2)).
    """
    flags = 1 | os.O_CLOEXEC | _AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW
    return _call("open_tree", _OPEN_TREE, directory, os.fsencode(path), flags)


def set_mount(mount: int, attributes: int, users: int = -1) -> None:
    """Set attributes of a mounted tree and, when `users` is a user namespace, map ids by it
    (mount_setattr(2)).
    """
    if users >= 0:
        attributes |= _ID_MAPPED
    given = struct.pack("=QQQQ", attributes, 0, 0, max(users, 0))
    flags = _AT_EMPTY_PATH | _AT_RECURSIVE
    _call("mount_setattr", _MOUNT_SETATTR, mount, b"", flags, given, len(given))


def attach_mount(mount: int, path: str) -> None:
    """Mount what empty_tmpfs or clone_mount returned (move_mount(2))."""
    _call("move_mount", _MOVE_MOUNT, mount, b"", _AT_FDCWD, os.fsencode(path), 4)


def _prctl(call: str, option: int, *arguments: int) -> int:
    given = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(option, *given), call)


def end_with_parent(number: int) -> None:
    """Get a signal when the parent dies; a change of the user takes this back (prctl(2))."""
    _prctl("prctl", _PR_SET_PDEATHSIG, number)


def become_subreaper() -> None:
    """Adopt orphaned descendants (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _prctl("prctl", _PR_SET_CHILD_SUBREAPER, 1)


def gain_nothing() -> None:
    """Let no program that is executed from here on add rights (prctl(2), PR_SET_NO_NEW_PRIVS)."""
    _prctl("no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)


def bound_capabilities() -> None:
    """Let no program that is executed from here on gain a capability (capabilities(7))."""
    with contextlib.suppress(OSError):
        for number in range(_CAPABILITIES):
            _prctl("capbset", _PR_CAPBSET_DROP, number)


def drop_capabilities() -> None:
    """Give up every capability (capset(2))."""
    with contextlib.suppress(OSError):
        _prctl("ambient", _PR_CAP_AMBIENT, 4)
    header = struct.pack("=Ii", 0x20080522, 0)
    _call("capset", _MACHINES[os.uname().machine][1], header, bytes(24))


def idle_disk() -> None:
    """Let everybody else's disk accesses go first (ioprio_set(2), class idle)."""
    _call("ioprio_set", _MACHINES[os.uname().machine][0], 1, 0, 3 << 13)


def set_file_owner(user: int, group: int) -> None:
    """Access files as another user, but keep every capability: setfsuid(2) takes those away that
    are about files, without which an overlay cannot use its work directory, of mode 0.
    """
    header = struct.pack("=Ii", 0x20080522, 0)
    held = ctypes.create_string_buffer(24)
    capset = _MACHINES[os.uname().machine][1]
    _check(_libc.syscall(ctypes.c_long(capset - 1), header, held), "capget")
    _libc.setfsgid(group)
    _libc.setfsuid(user)
    _call("capset", capset, header, held.raw)


class FileRules:
    """What a process and its descendants may reach of the file system (landlock(7))."""

    _READ_FILE, _READ_DIRECTORY, _EXECUTE = 1 << 2, 1 << 3, 1 << 0
    _OF_FILES = sum(1 << bit for bit in (0, 1, 2, 14, 15))
    READ = _READ_FILE | _READ_DIRECTORY
    READ_AND_EXECUTE = READ | _EXECUTE
    # All but executing, and making devices, sockets and pipes.
    WRITE = sum(1 << bit for bit in (1, 2, 3, 4, 5, 7, 8, 12, 13, 14))
    USE = sum(1 << bit for bit in (1, 2, 14, 15))

    def __init__(self) -> None:
        """Raises OSError where the kernel has no Landlock."""
        version = _call("landlock", _LANDLOCK_CREATE, None, 0, 1)
        bits = 13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16
        self._handled = (1 << bits) - 1
        attributes = struct.pack("=Q", self._handled)
        if version >= 4:
            # No TCP; and from version 6 on no abstract sockets of, and no signals to, others.
            attributes += struct.pack("=Q", 3)
        if version >= 6:
            attributes += struct.pack("=Q", 3)
        self._rules = _call("landlock", _LANDLOCK_CREATE, attributes, len(attributes), 0)

    def allow(self, path: str, access: int) -> None:
        """Allow access to a file or to everything below a directory; a path that is absent is
        passed over.
        """
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            if not os.path.isdir(path):
                access &= self._OF_FILES
            rule = struct.pack("=Qi", access & self._handled, opened)
            _call("landlock", _LANDLOCK_ADD, self._rules, 1, rule, 0)
        finally:
            os.close(opened)

    def enforce(self) -> None:
        """Restrict this process for good; gain_nothing comes first."""
        _call("landlock", _LANDLOCK_RESTRICT, self._rules, 0)
        self.close()

    def close(self) -> None:
        """Forget the rules."""
        os.close(self._rules)
