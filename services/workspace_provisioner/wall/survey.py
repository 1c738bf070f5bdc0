"""Which walls this machine allows: found out by building them, once before the first git process,
and by walking into them as one.
"""

from __future__ import annotations

import contextlib
import os
import socket

from fairlead_walls import kernel_calls as calls
from fairlead_walls.call_filter import enforce
from fairlead_walls.file_rules import FileRules
from fairlead_walls.user_maps import open_user_map, write_user_map
from workspace_provisioner.wall import call_filter
from workspace_provisioner.wall.cell import Ground
from workspace_provisioner.wall.view import furnish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    _Found = TypeVar("_Found")

GIT_USER = 65_521
"""Whom git runs as; 65520 to 65533 are nobody's (systemd's list of users)."""

_SPACES = {
    "file_view": calls.OWN_MOUNTS,
    "network": calls.OWN_NETWORK,
    "process_tree": calls.OWN_PIDS,
    "messages": calls.OWN_IPC,
}
_ALL_SPACES = calls.OWN_MOUNTS | calls.OWN_NETWORK | calls.OWN_PIDS | calls.OWN_IPC


class Survey:
    """Builds what all git processes share; `missing` says which walls this machine refuses, and
    why.
    """

    def __init__(self, programs: Sequence[str]) -> None:
        self.missing: dict[str, str] = {}
        self._programs = programs
        self._has_mounts = False
        self._own_users = False
        self._users = -1

    def leave_spaces(self) -> None:
        """Leave the provisioner's namespaces; the next child is the first process of its own."""
        user, group = os.getuid(), os.getgid()
        if user != 0:
            self.missing["own_user"] = "the service does not run as root"
        else:
            self._users = self._attempt("own_user", lambda: open_user_map(0, GIT_USER), -1)
        refused = _refusal(lambda: calls.unshare(_ALL_SPACES))
        if not refused:
            self._has_mounts = True
            return
        self.missing["own_user"] = self.missing.get("own_user", refused)
        self._users = -1
        if not _refusal(lambda: calls.unshare(_ALL_SPACES | calls.OWN_USERS)):
            write_user_map("self", users=(user, user), groups=(group, group))
            self._has_mounts = self._own_users = True
            return
        for name in _SPACES:
            self.missing[name] = refused

    def ground(self) -> Ground:
        """Prepare what every job needs; in the process that will fork them."""
        furniture = -1
        if self._has_mounts:
            furniture = self._attempt("file_view", _furnish_privately, -1)
        if furniture < 0 and self._users >= 0:
            self._users = -1
            self.missing["own_user"] = self.missing["file_view"]
        calls.bound_capabilities()
        return Ground(
            view=furniture >= 0,
            users=self._users,
            user=GIT_USER,
            furniture=furniture,
            programs=self._programs,
            file_rules=self._attempt("file_rules", _probe_file_rules, otherwise=False),
            call_filter=self._attempt("call_filter", _probe_call_filter, b""),
            counts_processes=self._own_users,
        )

    def _attempt(self, name: str, build: Callable[[], _Found], otherwise: _Found) -> _Found:
        try:
            return build()
        except OSError as error:
            self.missing[name] = error.strerror or str(error)
            return otherwise


def _refusal(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _furnish_privately() -> int:
    calls.keep_mounts_private()
    return furnish()


def _probe_file_rules() -> bool:
    FileRules(refuse_tcp=True).close()
    return True


def _probe_call_filter() -> bytes:
    """Try the filter on a child."""
    steps = call_filter.program()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            calls.gain_nothing()
            enforce(steps)
            os._exit(0)
        os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError(0, "seccomp filters are refused")
    return steps


def try_walls(directory: str) -> dict[str, bool]:
    """Say, from behind the walls, which of them hold: `directory` has `inside/`, which may be
    written, `lent/`, which may be read, and `outside/`, which may not be reached.
    """
    return {
        "own_user": os.getuid() == GIT_USER,
        "files": (
            _is_open(f"{directory}/inside/made", os.O_CREAT | os.O_WRONLY)
            and _is_open(f"{directory}/lent/file", os.O_RDONLY)
            and not _is_open(f"{directory}/lent/file", os.O_WRONLY)
            and not _is_open(f"{directory}/outside/file", os.O_RDONLY)
            and not _is_open(f"{directory}/outside/made", os.O_CREAT | os.O_WRONLY)
        ),
        "network": not _reaches_network(),
        # Without a filter anybody may leave no namespace at all.
        "call_filter": not _is_let(lambda: calls.unshare(0)),
    }


def _is_open(path: str, flags: int) -> bool:
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC, 0o644))
    except OSError:
        return False
    return True


def _reaches_network() -> bool:
    """Ask for a route only: nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
            tried.connect(("192.0.2.1", 9))
    except OSError:
        return False
    return True


def _is_let(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True
