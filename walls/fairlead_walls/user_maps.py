"""Who the users of a user namespace are outside of it (user_namespaces(7)). For the small programs
that wall others in: single-threaded, standard library only.
"""

from __future__ import annotations

import os

from fairlead_walls import kernel_calls


def write_user_map(
    process: str,
    *,
    users: tuple[int, int],
    groups: tuple[int, int],
    processes: int | None = None,
) -> None:
    """Map one user and one group of a process's namespace, as (inside, outside); `process` is a pid
    or `self`. Supplementary groups cannot be changed in it afterwards. Raises OSError.

    `processes` is a descriptor of /proc for a program that no path leads there any more.
    """
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{users[0]} {users[1]} 1"),
        ("gid_map", f"{groups[0]} {groups[1]} 1"),
    ):
        opened = _open(f"{process}/{name}", os.O_WRONLY, processes)
        try:
            os.write(opened, text.encode())
        finally:
            os.close(opened)


def _open(path: str, flags: int, processes: int | None) -> int:
    place = path if processes is not None else f"/proc/{path}"
    return os.open(place, flags | os.O_CLOEXEC, dir_fd=processes)


def open_user_map(owner: int, user: int, *, processes: int | None = None) -> int:
    """Return a user namespace by which a mount shows the files of `owner` as `user`'s, and keeps
    what `user` makes as `owner`'s (mount_setattr(2), "ID-mapped mounts"). Raises OSError.
    `processes` is as in write_user_map.
    """
    held, let_go = os.pipe2(os.O_CLOEXEC)
    try:
        pid = kernel_calls.clone_process(kernel_calls.OWN_USERS)
        if pid == 0:
            try:
                os.close(let_go)
                os.read(held, 1)
            finally:
                os._exit(0)
        try:
            both = (owner, user)
            write_user_map(str(pid), users=both, groups=both, processes=processes)
            return _open(f"{pid}/ns/user", os.O_RDONLY, processes)
        finally:
            os.close(let_go)
            let_go = -1
            os.waitpid(pid, 0)
    finally:
        os.close(held)
        if let_go >= 0:
            os.close(let_go)
