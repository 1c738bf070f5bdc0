"""Kernel calls that the standard library does not have: namespaces, mounts, capabilities. For the
small programs that wall others in: single-threaded, standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct

OWN_MOUNTS = 0x00020000
OWN_NAMES = 0x04000000
OWN_IPC = 0x08000000
OWN_USERS = 0x10000000
OWN_PIDS = 0x20000000
OWN_NETWORK = 0x40000000

READ_ONLY = 0x00000001
NO_SETUID = 0x00000002
NO_DEVICES = 0x00000004
NO_PROGRAMS = 0x00000008
_ID_MAPPED = 0x00100000

# ioprio_set, capset, clone, pivot_root; capget comes before capset.
_MACHINES = {"x86_64": (251, 126, 56, 155), "aarch64": (30, 91, 220, 41)}
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_MOUNT_SETATTR = 442
_CLOSE_RANGE = 436

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_AT_SYMLINK_NOFOLLOW = 0x100
_MS_REMOUNT = 0x20
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_REC_SLAVE = 0x4000 | 0x80000
_MNT_DETACH = 2
_CLOSE_ON_EXEC = 4

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
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


def system_call(call: str, number: int, *arguments: int | bytes | None) -> int:
    """Make a system call by its number; raises OSError, which names `call`. Numbers above 400 are
    the same on all machines.
    """
    given = [
        ctypes.c_long(each) if isinstance(each, int) else ctypes.c_char_p(each)
        for each in arguments
    ]
    return _check(_libc.syscall(ctypes.c_long(number), *given), call)


def unshare(flags: int) -> None:
    """Leave the parent's namespaces (unshare(2))."""
    _check(_libc.unshare(flags), "unshare")


def enter_namespace(namespace: int, kind: int) -> None:
    """Enter a namespace that a descriptor stands for, of one of the OWN_ kinds (setns(2))."""
    _check(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(kind)), "setns")


def clone_process(flags: int) -> int:
    """Fork into new namespaces (clone(2)); returns the child's pid, and 0 in the child.

    Nothing that os.fork() does for threads and locks is done.
    """
    number = _MACHINES[os.uname().machine][2]
    return system_call("clone", number, flags | signal.SIGCHLD, 0, 0, 0, 0)


def keep_mounts_private() -> None:
    """Let no mount of this namespace be seen in the parent's, whose later mounts are seen here
    (mount_namespaces(7)).
    """
    _check(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC_SLAVE), None), "mount slave")


def mount(kind: str, target: str, attributes: int, options: str = "") -> None:
    """Mount a file system of the kernel's own, such as proc or tmpfs (mount(2))."""
    name = os.fsencode(kind)
    flags = ctypes.c_ulong(attributes)
    mounted = _libc.mount(name, os.fsencode(target), name, flags, os.fsencode(options))
    _check(mounted, f"mount {kind}")


def bind(source: str | bytes, target: str | bytes) -> None:
    """Show a file or tree at a second place too, with the attributes of its mounts (mount(2),
    MS_BIND).
    """
    flags = ctypes.c_ulong(_MS_BIND | _MS_REC)
    bound = _libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None)
    _check(bound, "mount bind")


def change_mount(target: str | bytes, attributes: int) -> None:
    """Set the attributes of one mount (mount(2), MS_REMOUNT with MS_BIND)."""
    flags = ctypes.c_ulong(_MS_REMOUNT | _MS_BIND | attributes)
    _check(_libc.mount(None, os.fsencode(target), None, flags, None), "remount")


def change_file_system(target: str, attributes: int, options: str) -> None:
    """Set the options of a mounted file system (mount(2), MS_REMOUNT)."""
    flags = ctypes.c_ulong(_MS_REMOUNT | attributes)
    given = os.fsencode(options)
    _check(_libc.mount(None, os.fsencode(target), None, flags, given), "remount")


def pivot_root(root: str, before: str) -> None:
    """Make the mount `root` the root of all, and attach the one before it at `before`
    (pivot_root(2)).
    """
    number = _MACHINES[os.uname().machine][3]
    system_call("pivot_root", number, os.fsencode(root), os.fsencode(before))


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
    opened = system_call("fsopen", _FSOPEN, b"tmpfs", 1)
    try:
        system_call("fsconfig", _FSCONFIG, opened, 1, b"mode", b"755", 0)
        system_call("fsconfig", _FSCONFIG, opened, 6, None, None, 0)
        return system_call("fsmount", _FSMOUNT, opened, 1, NO_SETUID | NO_DEVICES)
    finally:
        os.close(opened)


def clone_mount(path: str | bytes, *, directory: int = _AT_FDCWD) -> int:
    """Return a second view of a file or tree, mounted nowhere; the last part of `path` may be no
    symlink (open_tree(2)).
    """
    flags = 1 | os.O_CLOEXEC | _AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW
    return system_call("open_tree", _OPEN_TREE, directory, os.fsencode(path), flags)


def set_mount(mount: int, attributes: int, users: int = -1) -> None:
    """Set attributes of a mounted tree and, when `users` is a user namespace, map ids by it
    (mount_setattr(2)).
    """
    if users >= 0:
        attributes |= _ID_MAPPED
    given = struct.pack("=QQQQ", attributes, 0, 0, max(users, 0))
    flags = _AT_EMPTY_PATH | _AT_RECURSIVE
    system_call("mount_setattr", _MOUNT_SETATTR, mount, b"", flags, given, len(given))


def attach_mount(mount: int, path: str | bytes) -> None:
    """Mount what empty_tmpfs or clone_mount returned (move_mount(2))."""
    system_call("move_mount", _MOVE_MOUNT, mount, b"", _AT_FDCWD, os.fsencode(path), 4)


def _prctl(call: str, option: int, *arguments: int) -> int:
    given = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(option, *given), call)


def end_with_parent(number: int) -> None:
    """Get a signal when the parent dies; a change of the user takes this back (prctl(2))."""
    _prctl("prctl", _PR_SET_PDEATHSIG, number)


def become_subreaper() -> None:
    """Adopt orphaned descendants (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _prctl("prctl", _PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Let nobody read this process's memory, environment and descriptors (prctl(2),
    PR_SET_DUMPABLE).
    """
    _prctl("dumpable", _PR_SET_DUMPABLE, 0)


def close_on_exec(first: int) -> None:
    """Let no descriptor from `first` on reach a program (close_range(2); Linux 5.11)."""
    system_call("close_range", _CLOSE_RANGE, first, 0x7FFF_FFFF, _CLOSE_ON_EXEC)


def gain_nothing() -> None:
    """Let no program that is executed from here on add rights (prctl(2), PR_SET_NO_NEW_PRIVS)."""
    _prctl("no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)


def bound_capabilities() -> None:
    """Let no program that is executed from here on gain a capability (capabilities(7))."""
    # 41 calls: with the arguments converted once they take a third of the time.
    zero = ctypes.c_ulong(0)
    drop = ctypes.c_int(_PR_CAPBSET_DROP)
    for number in range(_CAPABILITIES):
        if _libc.prctl(drop, ctypes.c_ulong(number), zero, zero, zero) != 0:
            return


def drop_capabilities() -> None:
    """Give up every capability (capset(2))."""
    with contextlib.suppress(OSError):
        _prctl("ambient", _PR_CAP_AMBIENT, 4)
    header = struct.pack("=Ii", 0x20080522, 0)
    system_call("capset", _MACHINES[os.uname().machine][1], header, bytes(24))


def yield_disk() -> None:
    """Let everybody else's disk accesses go first, where the disk's scheduler tells their levels
    apart (ioprio_set(2), best effort, level 7).

    Not the idle class, which a process of SCHED_IDLE has unless it says so: on a busy disk
    mq-deadline lets each of its reads wait for 10 s (measured, kernel 6.18; prio_aging_expire), and
    on ext4 a read may be waited for by all that is to be flushed.
    """
    system_call("ioprio_set", _MACHINES[os.uname().machine][0], 1, 0, 2 << 13 | 7)


def set_file_owner(user: int, group: int) -> None:
    """Access files as another user, but keep every capability: setfsuid(2) takes those away that
    are about files, without which an overlay cannot use its work directory, of mode 0.
    """
    header, held = _held_capabilities()
    _libc.setfsgid(group)
    _libc.setfsuid(user)
    system_call("capset", _MACHINES[os.uname().machine][1], header, held)


def act_as(user: int) -> None:
    """Let what this process makes be another user's, but keep every capability (seteuid(2)); its
    real user stays. Raises OSError.
    """
    header, held = _held_capabilities()
    os.seteuid(user)
    system_call("capset", _MACHINES[os.uname().machine][1], header, held)


def _held_capabilities() -> tuple[bytes, bytes]:
    """Return what capset(2) takes to have what is held now."""
    header = struct.pack("=Ii", 0x20080522, 0)
    held = ctypes.create_string_buffer(24)
    capget = _MACHINES[os.uname().machine][1] - 1
    _check(_libc.syscall(ctypes.c_long(capget), header, held), "capget")
    return header, held.raw
