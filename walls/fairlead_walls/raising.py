"""Raises the walls of tier 1, `walled`, around a process that is cloned from the zygote, from
inside.

A sandbox's first process is *open* when it has entered: no code of a user has run, and it may still
mount. Sealed, it and all that it starts can reach nothing but the sandbox.

Runs in the zygotes and inits: single-threaded, standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import struct

from fairlead_walls import call_filter
from fairlead_walls import kernel_calls as calls
from fairlead_walls.file_rules import FileRules
from fairlead_walls.furniture import HOME, USER, USER_ID, Furniture
from fairlead_walls.user_maps import write_user_map

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from fairlead_walls.terms import Terms

WORKSPACE = "/workspace"

_PRIVATE_BYTES = 1024 * 1024 * 1024
_INODES = 1 << 18
_TERMINALS = 64
"""Most terminals of a sandbox at a time: all sandboxes of a machine share 3072 (pty(7))."""

_QUIET = calls.NO_SETUID | calls.NO_DEVICES
_MADE = ("proc", "home", "workspace", "run", "var", "mnt")
_SHARED = ("tmp", "run/shm")
_SET_INTERFACE_FLAGS, _UP = 0x8914, 0x41
_HIDDEN = "hidepid=2"
_LEFT_BY_ITSELF = calls.OWN_IPC | calls.OWN_NAMES


class Walls:
    """The walls of all sandboxes of one zygote, and of one sandbox in its clone."""

    def __init__(self, terms: Terms) -> None:
        """Leave the machine's mounts to themselves; once, in the zygote, before any clone.

        Without privileges a user namespace is left too, in which all ids are as outside. Paths lead
        nowhere afterwards when sandboxes have uids of their own: `processes` is /proc then. Raises
        OSError.
        """
        self._terms = terms
        self._machine = _way_back() if terms.privileged else -1
        self._rules: FileRules | None = None
        self.host = -1
        self.processes: int | None = None
        if terms.privileged:
            calls.unshare(calls.OWN_MOUNTS)
            with contextlib.suppress(PermissionError):
                os.setgroups([])
        else:
            user, group = os.getuid(), os.getgid()
            calls.unshare(calls.OWN_MOUNTS | calls.OWN_USERS)
            write_user_map("self", users=(user, user), groups=(group, group))
        calls.keep_mounts_private()
        self._furniture = Furniture(terms.programs)
        if terms.own_uid:
            self.processes = self._furniture.leave_host()
        calls.change_mount(".", _QUIET | calls.READ_ONLY)
        self._network = self._left = 0
        self._is_ahead = self._is_prepared = False
        self.is_begun = self._machine < 0

    def begin(self) -> None:
        """Enter the network and the other namespaces that the next clone is to have to itself,
        which takes 1 ms that `enter` need not wait for. In the zygote, which uses none of them;
        `is_begun` says that this was done since the last clone, or cannot be.
        """
        self.is_begun = True
        with contextlib.suppress(OSError):
            calls.unshare(_LEFT_BY_ITSELF | calls.OWN_NETWORK)
            _settle(own_network=True)
            self._is_ahead = True

    def clone(self, *, own_network: bool = True, uid: int = -1) -> int:
        """Clone the zygote into new user, pid and mount namespaces; returns the pid, and 0 in the
        child, which has no user, and nothing of `enter`, before it is admitted. Raises OSError.

        `uid` is who its user 1000 will be outside, by default this process's own user. The other
        namespaces are those of `begin`, or are left in `enter`: in that time the zygote can serve
        somebody else.
        """
        self._furniture.go()
        self._network = calls.OWN_NETWORK if own_network else 0
        self._left = 0 if own_network and self._is_ahead else _LEFT_BY_ITSELF | self._network
        self._is_ahead, self.is_begun = False, self._machine < 0
        if not own_network and self._machine >= 0:
            calls.enter_namespace(self._machine, calls.OWN_NETWORK)
        spaces = calls.OWN_USERS | calls.OWN_PIDS | calls.OWN_MOUNTS
        if uid < 0:
            return calls.clone_process(spaces)
        # What is counted by user, inotify for one, counts for the maker of a namespace too.
        maker, pid = os.geteuid(), -1
        calls.act_as(uid)
        try:
            pid = calls.clone_process(spaces)
        finally:
            if pid != 0:
                os.seteuid(maker)  # root, who has every capability again
        return pid

    def admit(self, pid: int, *, uid: int = -1, gid: int = -1) -> None:
        """Let the clone's user 1000 be `uid` outside, by default this process's own user; in the
        zygote. Raises OSError.
        """
        users = (USER_ID, os.getuid() if uid < 0 else uid)
        groups = (USER_ID, os.getgid() if gid < 0 else gid)
        write_user_map(str(pid), users=users, groups=groups, processes=self.processes)

    def enter(self, *, keep: Collection[int] = ()) -> None:
        """Wall this process in, but for what `seal` does; in the admitted clone.

        Closes every descriptor above 2 that is not one of `keep`. Raises OSError: then the process
        must end.
        """
        _close_all_but(keep)
        # The groups outside have no number in here; whether they were given up is the zygote's.
        os.setresgid(USER_ID, USER_ID, USER_ID)
        os.setresuid(USER_ID, USER_ID, USER_ID)
        calls.end_with_parent(signal.SIGKILL)
        calls.hide_memory()
        # With 1 not even a program of the machine that collects cores is started; with 0 it is.
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
        if self._left:
            calls.unshare(self._left)
            _settle(own_network=self._network != 0)
        os.umask(0)
        self._make_root()
        os.umask(0o022)
        if not self._terms.own_uid:
            self.host = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        calls.pivot_root(".", "mnt")
        os.chdir("/")
        if self._terms.own_uid:
            # The furniture is left there, where no path leads: to detach it would take longer.
            calls.bind("mnt/nothing", "mnt")

    def prepare(self) -> None:
        """Do what of `seal` needs no workspace; once is enough. Raises OSError as that does."""
        if self._is_prepared:
            return
        self._is_prepared = True
        calls.bound_capabilities()
        calls.gain_nothing()
        if self._terms.file_rules:
            self._rules = _file_rules()

    def _make_root(self) -> None:
        options = f"size={_PRIVATE_BYTES},nr_inodes={_INODES},mode=755"
        calls.mount("tmpfs", "root", _QUIET, options)
        os.chdir("root")
        for name in _MADE:
            os.mkdir(name, 0o755)
        for name in _SHARED:
            os.mkdir(name, 0o1777)
        os.mkdir(HOME[1:], 0o700)
        os.symlink("../tmp", "var/tmp")
        os.symlink("../run", "var/run")
        for name, target in self._furniture.links:
            os.symlink(target, name)
        for name in ("tmp", HOME[1:], WORKSPACE[1:]):
            # Of a mount of their own, they can be written when the root cannot any more.
            calls.bind(name, name)
        for source, target in self._furniture.binds:
            if "/" in target:
                os.makedirs(target, 0o755, exist_ok=True)
            else:
                os.mkdir(target, 0o755)
            calls.bind(source, target)
        if not self._network:
            calls.bind("../network/resolv.conf", "etc/resolv.conf")
        calls.bind("run/shm", "dev/shm")
        calls.mount(
            "devpts", "dev/pts", calls.NO_SETUID | calls.NO_PROGRAMS,
            f"newinstance,ptmxmode=0666,mode=0620,max={_TERMINALS}",
        )  # fmt: skip
        # Only while the machine's own can still be seen.
        calls.mount("proc", "proc", _QUIET | calls.NO_PROGRAMS | calls.READ_ONLY, _HIDDEN)
        for source, target in self._furniture.masks:
            calls.bind(source, target)

    def hold_files(self, size: int) -> None:
        """Bound what may be written outside the workspace, to /tmp, the home and /dev/shm together,
        in bytes; before `seal`.
        """
        calls.change_file_system("/", _QUIET, f"size={size}")

    def _leave_host(self) -> None:
        os.fchdir(self.host)
        os.close(self.host)
        self.host = -1
        calls.detach_mount(".")
        os.chdir("/")

    def seal(self) -> None:
        """Give up every right for good; what is mounted now is what the sandbox has. Raises
        OSError: then the process must end.
        """
        self.prepare()
        if self.host >= 0:
            self._leave_host()
        calls.change_mount("/", _QUIET | calls.READ_ONLY)
        calls.close_on_exec(3)
        calls.drop_capabilities()
        if self._rules is not None:
            self._rules.allow(WORKSPACE, FileRules.OWN)
            self._rules.enforce()
        call_filter.enforce(self._terms.call_filter)


def _file_rules() -> FileRules:
    """Return what may be reached but for the workspace, which may not be there yet."""
    rules = FileRules(refuse_tcp=False)
    rules.allow("/", FileRules.READ_AND_EXECUTE)
    rules.allow("/dev", FileRules.USE)
    for path in ("/tmp", HOME, "/dev/shm"):  # noqa: S108 - the sandbox's own
        rules.allow(path, FileRules.OWN)
    return rules


def _close_all_but(keep: Collection[int]) -> None:
    first = 3
    for kept in sorted(keep):
        if kept >= first:
            os.closerange(first, kept)
            first = kept + 1
    os.closerange(first, 0x7FFF_FFFF)


def _way_back() -> int:
    """Return a descriptor of this network; -1 where one who has left it may not come back."""
    network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        calls.enter_namespace(network, calls.OWN_NETWORK)
    except OSError:
        os.close(network)
        return -1
    return network


def _settle(*, own_network: bool) -> None:
    """Name a fresh host, and take the loopback interface of a fresh network up (netdevice(7))."""
    socket.sethostname(USER)
    if not own_network:
        return
    request = struct.pack("16sH14x", b"lo", _UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asked:
        fcntl.ioctl(asked, _SET_INTERFACE_FLAGS, request)
