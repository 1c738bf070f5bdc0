"""Plain processes of a worker that is root, without its rights: isolation `process` as a user of
its own.

The workspace and its private directories are shown to that user where they are, as id-mapped
mounts: it writes there, and on disk the files stay the worker's. The rest of the host's volume is
covered. Runs in the inits, and as a program that tries it: single-threaded, standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import tempfile
from collections.abc import Callable

from fairlead_walls import kernel_calls as calls
from fairlead_walls.user_maps import open_user_map
from sandbox_worker.isolation.mount_order import Bound, mounts_of, own_layers
from sandbox_worker.isolation.process_control import end_with_parent
from sandbox_worker.isolation.tier import ProcessTier

_LAYERS = b".mounted-layers"
_PRIVATE_MOUNT = calls.NO_SETUID | calls.NO_DEVICES


class UnprivilegedTier(ProcessTier):
    """Root until it is sealed, and `user` from then on; it is sealed before the first program.

    `cover` is a directory that holds the host's volume, or the first one on the way to it that
    `user` may not enter. An empty file system takes its place, in which the sandbox's directories
    have the paths that they have on the host. `private` is the one that holds home and tmp.
    """

    def __init__(self, *, spawner: int, user: int, cover: bytes, private: bytes) -> None:
        super().__init__(spawner=spawner)
        self._user = user
        self._cover = cover
        self._private = private
        self._under = -1
        self._bound = b""
        self._sealed = False

    def enter(self, keep: set[int]) -> None:
        super().enter(keep)
        calls.unshare(calls.OWN_MOUNTS)
        calls.keep_mounts_private()
        # What is reached from here stays in sight when it is covered.
        self._under = os.open(self._cover, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        private = self._open(self._private, _PRIVATE_MOUNT)
        calls.mount("tmpfs", os.fsdecode(self._cover), _PRIVATE_MOUNT, "mode=755,size=1m")
        self._attach(private, self._private)

    def bind(self, workspace: Bound, descriptors: list[int]) -> None:
        (target,) = workspace["target"]
        if self._bound == target:
            return
        if self._bound or self._sealed:
            raise OSError(errno.EBUSY, "sealed")
        mounts: list[tuple[bytes, int]] = []
        users = open_user_map(os.geteuid(), self._user)
        try:
            for path, attributes in mounts_of(workspace):
                mounts.append((path, self._open(path, attributes, users)))
        except OSError:
            for _, mount in mounts:
                os.close(mount)
            raise
        finally:
            os.close(users)
        count = len(mounts) - len(workspace.get("store", ()))
        if "lower" in workspace:
            self._mount_layers(workspace, [mount for _, mount in mounts[:count]])
        else:
            self._attach(mounts[0][1], target)
        for path, mount in mounts[count:]:
            self._attach(mount, path)
        self._bound = target

    def seal(self) -> None:
        if self._sealed:
            return
        os.close(self._under)
        os.setgroups([])
        os.setresgid(self._user, self._user, self._user)
        os.setresuid(self._user, self._user, self._user)
        calls.gain_nothing()
        end_with_parent(self._spawner)  # A change of the user takes it back.
        self._sealed = True

    def _open(self, path: bytes, attributes: int, users: int = -1) -> int:
        """Open a directory below the cover as a mount; raises OSError."""
        mount = calls.clone_mount(os.path.relpath(path, self._cover), directory=self._under)
        try:
            calls.set_mount(mount, attributes, users)
        except OSError:
            os.close(mount)
            raise
        return mount

    @staticmethod
    def _attach(mount: int, path: bytes) -> None:
        os.makedirs(path, mode=0o755, exist_ok=True)
        calls.attach_mount(mount, path)
        os.close(mount)

    def _mount_layers(self, workspace: Bound, mounts: list[int]) -> None:
        """Mount the overlay over its layers, which lie in a directory that only root may enter."""
        layers = os.path.join(self._cover, _LAYERS)
        os.makedirs(layers, mode=0o700, exist_ok=True)
        for number, mount in enumerate(mounts):
            self._attach(mount, b"%b/%d" % (layers, number))
        *lower, own = (str(number) for number in range(len(mounts)))
        parent = own_layers(workspace).rstrip(b"/")
        upper, work = (
            os.path.join(own, os.fsdecode(workspace[name][0][len(parent) + 1 :]))
            for name in ("upper", "work")
        )
        (target,) = workspace["target"]
        os.makedirs(target, mode=0o755, exist_ok=True)
        # Short names: all options have to fit into a page.
        os.chdir(layers)
        try:
            # What the overlay does by itself is then done by a user that the mounts know.
            calls.set_file_owner(self._user, self._user)
            calls.mount_overlay(
                os.fsdecode(target),
                f"userxattr,lowerdir={':'.join(lower)},upperdir={upper},workdir={work}",
            )
        finally:
            calls.set_file_owner(0, 0)
            os.chdir("/")


def cover_of(volume: bytes) -> bytes:
    """Return the first directory on the way to the host's volume that others may not enter, or the
    volume itself.
    """
    end = volume.find(b"/", 1)
    while end > 0:
        if not os.stat(volume[:end]).st_mode & stat.S_IXOTH:
            return volume[:end]
        end = volume.find(b"/", end + 1)
    return volume


def _try(root: bytes, user: int, *, with_layers: bool) -> None:
    """Write a file as `user` in a workspace below `root`, and look whose it is; raises OSError."""
    if os.path.realpath(root) != root:
        raise OSError(errno.ELOOP, "a symbolic link leads to the host's volume")
    with tempfile.TemporaryDirectory(prefix=b".unprivileged-", dir=root) as place:
        names = (b"lower", b"own/upper", b"own/work", b"tree", b"private")
        lower, upper, work, tree, private = (os.path.join(place, name) for name in names)
        for path in (lower, upper, work, tree, private):
            os.makedirs(path)
        workspace = {"target": [tree]}
        if with_layers:
            workspace |= {"lower": [lower], "upper": [upper], "work": [work]}
        tier = UnprivilegedTier(
            spawner=os.getpid(), user=user, cover=cover_of(place), private=private
        )

        def attempt() -> None:
            tier.enter(set())
            tier.bind(workspace, [])
            tier.seal()
            with open(os.path.join(tree, b"made"), "wb") as file:
                file.write(b"!")

        _apart(attempt)
        made = os.stat(os.path.join(upper if with_layers else tree, b"made"))
        if made.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "what it writes would be another user's")


def _apart(attempt: Callable[[], None]) -> None:
    """Do it in a process of its own; raises its OSError."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            attempt()
            status = 0
        except OSError as error:
            status = error.errno or 1
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise OSError(abs(code), os.strerror(code) if code > 0 else signal.strsignal(-code))


def main() -> None:
    """Try it; the last arguments are a directory, a uid, and `layers` or `plain`. Prints why it
    cannot be done.
    """
    directory, user, kind = sys.argv[-3:]
    try:
        _try(os.fsencode(directory), int(user), with_layers=kind == "layers")
    except OSError as error:
        sys.exit(error.strerror or "unknown")
