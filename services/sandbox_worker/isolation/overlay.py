"""Mounts a layered workspace in the mount namespace of one sandbox (overlayfs; see the kernel's
Documentation/filesystems/overlayfs.rst).

Runs in the inits, and as a program that tries it: single-threaded, standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_NOSUID = 0x2
_MS_NODEV = 0x4
_MS_REC = 0x4000
_MS_SLAVE = 0x80000

_libc = ctypes.CDLL(None, use_errno=True)


def enter_mount_namespace() -> None:
    """Leave the mounts of the host to themselves: what is mounted from now on is seen here and
    below only.

    Without the right to do so a user namespace is made too, in which every file belongs to whom it
    did before. Raises OSError; see unshare(2) and user_namespaces(7).
    """
    if _unshare(_CLONE_NEWNS) != 0:
        user, group = os.geteuid(), os.getegid()
        if _unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _mount(b"none", b"/", b"", _MS_REC | _MS_SLAVE, b"")


def mount_overlay(target: bytes, *, upper: bytes, work: bytes, lower: list[bytes]) -> None:
    """Mount `upper` over the `lower` directories, topmost first, at `target`; raises OSError.

    `userxattr` keeps the marks of the overlay in `user.overlay.*`, so that root and others leave
    the same ones. Set-uid programs and devices in it have no effect.
    """
    layers = b":".join(_escaped(path).replace(b":", b"\\:") for path in lower)
    options = b"userxattr,lowerdir=%b,upperdir=%b,workdir=%b" % (
        layers,
        _escaped(upper),
        _escaped(work),
    )
    _mount(b"overlay", target, b"overlay", _MS_NOSUID | _MS_NODEV, options)


def _unshare(flags: int) -> int:
    return int(_libc.unshare(flags))


def _mount(source: bytes, target: bytes, kind: bytes, flags: int, options: bytes) -> None:
    if _libc.mount(source, target, kind, ctypes.c_ulong(flags), options) != 0:
        raise OSError(ctypes.get_errno(), "mount")


def _escaped(path: bytes) -> bytes:
    return path.replace(b"\\", b"\\\\").replace(b",", b"\\,")


def _try(root: bytes) -> None:
    """Mount an overlay below `root`, and change and remove a file of its lower layer."""
    with tempfile.TemporaryDirectory(prefix=b".overlay-", dir=root) as place:
        names = [b"lower", b"upper", b"work", b"tree"]
        lower, upper, work, tree = (os.path.join(place, name) for name in names)
        for path in (lower, upper, work, tree):
            os.mkdir(path)
        for name in (b"kept", b"removed"):
            with open(os.path.join(lower, name), "wb") as file:
                file.write(name)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                enter_mount_namespace()
                mount_overlay(tree, upper=upper, work=work, lower=[lower])
                with open(os.path.join(tree, b"kept"), "ab") as file:
                    file.write(b"!")
                os.unlink(os.path.join(tree, b"removed"))
                status = 0
            except OSError as error:
                status = error.errno or 1
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            raise OSError(code, os.strerror(code))


def main() -> None:
    """Try it below the directory that is the last argument; prints why it cannot be done."""
    try:
        _try(os.fsencode(sys.argv[-1]))
    except OSError as error:
        sys.exit(error.strerror or "unknown")


if __name__ == "__main__":
    main()
