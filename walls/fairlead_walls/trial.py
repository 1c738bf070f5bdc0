"""Raises every wall once, and says which ones this machine refuses, and why.

A program of its own, since it leaves namespaces: single-threaded, standard library only. Prints one
JSON object; ids, files and mounts that it makes are gone when it ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable

from fairlead_walls import kernel_calls as calls
from fairlead_walls.call_list import compile_call_list
from fairlead_walls.file_rules import file_rules_version
from fairlead_walls.furniture import ROOT_LINKS
from fairlead_walls.raising import WORKSPACE, Walls
from fairlead_walls.terms import Terms
from fairlead_walls.user_maps import open_user_map

_SPACES = {
    "pid": calls.OWN_PIDS,
    "mount": calls.OWN_MOUNTS,
    "network": calls.OWN_NETWORK,
    "ipc": calls.OWN_IPC,
    "uts": calls.OWN_NAMES,
}
NAMES = (
    "user", *_SPACES, "own_uid", "private_root", "no_new_privs", "rlimits", "landlock", "seccomp",
)  # fmt: skip
"""Every wall, in the order in which they are told."""

_REFUSED = {
    errno.EPERM: "refused: a container's seccomp profile, an AppArmor profile, or the sysctl"
    " kernel.unprivileged_userns_clone",
    errno.EACCES: "refused by a security module",
    errno.ENOSPC: "the sysctl user.max_*_namespaces leaves none",
    errno.EUSERS: "nested too deeply",
    errno.EINVAL: "the kernel has none",
    errno.ENOSYS: "the kernel has none",
}
_MASKED = (
    "a root cannot be built: {}; in a container /proc must not be masked (systempaths=unconfined)"
)
Found = dict[str, str]


class _Refused(Exception):
    """A wall does not stand."""

    def __init__(self, wall: str, reason: str) -> None:
        super().__init__(wall, reason)
        self.wall = wall
        self.reason = reason


def _apart(attempt: Callable[[], None]) -> None:
    """Do it in a process of its own; raises what it raised."""
    told, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
        except (OSError, _Refused) as error:
            os.write(tell, pickle.dumps(error))
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as answer:
        content = answer.read()
    os.waitpid(pid, 0)
    if content:
        raise pickle.loads(content)  # noqa: S301 - written by this program


def _why(error: OSError) -> str:
    reason = _REFUSED.get(error.errno or 0)
    return reason if reason else error.strerror or "unknown"


def _cause(error: OSError | _Refused) -> str:
    return error.reason if isinstance(error, _Refused) else error.strerror or str(error)


def _leave(*flags: int) -> Callable[[], None]:
    def attempt() -> None:
        for each in flags:
            calls.unshare(each)

    return attempt


def _try_spaces(found: Found) -> bool:
    """Leave each namespace; says whether that needs no user namespace."""
    try:
        _apart(_leave(calls.OWN_USERS))
    except OSError as error:
        found["user"] = f"user namespaces: {_why(error)}"
    for name, flag in _SPACES.items():
        try:
            _apart(_leave(calls.OWN_USERS, flag))
        except OSError as error:
            found[name] = found.get("user", f"{name} namespaces: {_why(error)}")
    try:
        _apart(_leave(calls.OWN_MOUNTS))
    except OSError:
        return False
    return True


def _is_shown(directory: str, programs: list[str]) -> bool:
    """Say whether a directory lies in one that every sandbox sees."""
    shown = ["/usr", *(f"/{name}" for name in ROOT_LINKS), *programs]
    return any(f"{directory}/".startswith(f"{each}/") for each in shown)


def _has_uids(first: int, count: int) -> bool:
    """Say whether this user namespace has all these ids."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        extents = [tuple(map(int, line.split())) for line in file]
    return any(start <= first and first + count <= start + held for start, _, held in extents)


def _mapped_layers(place: str, uid: int) -> int:
    """Return a mount of `place` that shows this user's files as `uid`'s; raises OSError."""
    mount = calls.clone_mount(place)
    users = open_user_map(os.getuid(), uid)
    try:
        calls.set_mount(mount, 0, users)
    finally:
        os.close(users)
    return mount


def _raise_all(terms: Terms, uid: int, layers: str) -> None:
    """Be a zygote: wall in a clone that tries what it can do then; raises OSError and _Refused."""
    mount = _mapped_layers(layers, uid) if layers else -1
    try:
        walls = Walls(terms)
    except OSError as error:
        raise _Refused("private_root", _MASKED.format(error)) from None

    def be_walled() -> None:
        try:
            walls.enter(keep={tell, mount})
        except OSError as error:
            raise _Refused("private_root", _MASKED.format(error)) from None
        if layers:
            _write_through(mount)
        walls.seal()
        _look_around()

    told, tell = os.pipe2(os.O_CLOEXEC)
    held, go = os.pipe2(os.O_CLOEXEC)
    pid = walls.clone(uid=uid)
    if pid == 0:
        try:
            os.close(go)
            os.read(held, 1)
            be_walled()
            os.write(tell, pickle.dumps(None))
        except (OSError, _Refused) as error:
            os.write(tell, pickle.dumps(error))
        finally:
            os._exit(0)
    os.close(tell)
    walls.admit(pid, uid=uid, gid=uid)
    os.write(go, b"1")
    with os.fdopen(told, "rb") as answer:
        content = answer.read()
    os.waitpid(pid, 0)
    outcome = pickle.loads(content) if content else OSError(0, "it ended")  # noqa: S301 - as above
    if outcome is not None:
        raise outcome


def _write_through(mount: int) -> None:
    """Mount an overlay over the mapped layers, and change and remove a file of the lower one."""
    calls.attach_mount(mount, "/mnt")
    calls.mount_overlay(
        WORKSPACE, "userxattr,lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work"
    )
    calls.detach_mount("/mnt")
    with open(f"{WORKSPACE}/kept", "ab") as file:
        file.write(b"!")
    os.unlink(f"{WORKSPACE}/removed")


def _look_around() -> None:
    """Check from behind the walls that they stand; raises _Refused."""
    # Bytes: what decodes them may lie outside the walls and not be loaded yet.
    with open("/proc/self/status", "rb") as file:
        status = dict(line.split(b":", 1) for line in file)
    for wall, name, wanted in (
        ("no_new_privs", b"NoNewPrivs", b"1"),
        ("seccomp", b"Seccomp", b"2"),
    ):
        if status[name].strip() != wanted:
            raise _Refused(wall, "it was accepted and does not stand")
    if int(status[b"CapEff"], 16) or int(status[b"CapBnd"], 16):
        raise _Refused("user", "capabilities are left")
    if os.getpid() != 1 or os.getuid() != 1000:
        raise _Refused("pid", "it was accepted and does not stand")


def _try_own_uid(terms: Terms, uids: tuple[int, int], directory: str) -> str:
    """Raise all walls as the sandbox's own uid, over layers in `directory` when there is one; says
    why that cannot be. `terms` are those of own uids afterwards.
    """
    if not terms.privileged or os.getuid() != 0:
        return "only root may give each sandbox a user of its own"
    if not _has_uids(*uids):
        return f"this user namespace has no uids from {uids[0]} on to give away"
    terms.own_uid = True
    if not directory:
        try:
            _apart(lambda: _raise_all(terms, uids[0], ""))
        except (OSError, _Refused) as error:
            return f"the walls do not stand for another user: {_cause(error)}"
        return ""
    with tempfile.TemporaryDirectory(prefix=".walls-", dir=directory) as place:
        for name in ("lower", "upper", "work"):
            os.mkdir(f"{place}/{name}")
        for name in ("kept", "removed"):
            with open(f"{place}/lower/{name}", "wb") as file:
                file.write(b"?")
        try:
            _apart(lambda: _raise_all(terms, uids[0], place))
            if os.stat(f"{place}/upper/kept").st_uid != os.getuid():
                return "what a sandbox writes would be another user's"
        except (OSError, _Refused) as error:
            return f"files of the host's volume cannot be mapped: {_cause(error)}"
    return ""


def survey(
    directory: str, call_filter: bytes, uids: tuple[int, int], programs: list[str]
) -> dict[str, object]:
    """Return `reasons`, by the wall's name, why it does not stand, empty where it does, and the
    terms by which they are built. `uids` are first and count of those that sandboxes may be given.
    """
    found: Found = {}
    privileged = _try_spaces(found)
    if directory and _is_shown(os.path.realpath(directory), programs):
        found["private_root"] = "the host's volume lies in a directory that sandboxes see"
    if not call_filter:
        found["seccomp"] = "there is no list of system calls for this machine"
    try:
        if file_rules_version() < 2:
            found["landlock"] = "the kernel's Landlock lets no file move between directories"
    except OSError:
        found["landlock"] = "the kernel has none, or it is not among its active security modules"
    terms = Terms(
        privileged=privileged,
        own_uid=False,
        file_rules="landlock" not in found,
        call_filter=call_filter,
        programs=programs,
    )
    if "user" in found:
        found["private_root"] = found["user"]
    elif call_filter and "private_root" not in found:
        try:
            _apart(lambda: _raise_all(terms, -1, ""))
        except _Refused as refused:
            found[refused.wall] = refused.reason
        except OSError as error:
            found["private_root"] = str(error)
    reason = found.get("private_root") or _try_own_uid(terms, uids, directory)
    if reason:
        found["own_uid"] = reason
        terms.own_uid = False
    return {
        "reasons": {name: found.get(name, "") for name in NAMES},
        "terms": [word.decode("utf-8", "surrogateescape") for word in terms.words()],
    }


def main() -> None:
    """Survey; after `--` come the directory or nothing, first and count of the uids, and the
    directories of programs.
    """
    directory, first, count, *programs = sys.argv[sys.argv.index("--") + 1 :]
    os.closerange(3, 0x7FFF_FFFF)
    os.umask(0o022)
    call_filter = b""
    with contextlib.suppress(OSError):
        call_filter = compile_call_list()
    with contextlib.suppress(OSError):
        os.chdir("/")
    uids = (int(first), int(count))
    sys.stdout.write(json.dumps(survey(directory, call_filter, uids, programs)))
