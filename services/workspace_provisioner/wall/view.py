"""The files that a walled process sees: mounts of its own paths, of an overlay, and of the few that
every program needs.

Runs in the spawner and in what it forks: single-threaded, standard library only, and little of it.
"""

from __future__ import annotations

import contextlib
import os

from fairlead_walls import kernel_calls as calls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspace_provisioner.wall.jobs import Job, Layers

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
"""The devices that git may use."""

_LAYERS = "/.layers"


class NotMappable(Exception):
    """The file system of a path does not take an id map."""


class View:
    """The job's own paths, as mounts that are attached nowhere yet."""

    def __init__(self, job: Job, users: int) -> None:
        self._users = users
        self._layers = job.get("overlay")
        self._lower: list[int] = []
        self._upper = -1
        self._parent = ""
        inside = ""
        if self._layers is not None:
            inside = self._layers["target"]
            self._lower = [self._clone(path, calls.READ_ONLY) for path in self._layers["lower"]]
            if self._layers["upper"]:
                # Both have to lie in one mount.
                self._parent = os.path.commonpath([self._layers["upper"], self._layers["work"]])
                self._upper = self._clone(self._parent, 0)
        self._mounts: list[tuple[str, int, bool]] = []
        for path, is_writable in _outermost(job["writable"], job["readable"], inside):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                mount = self._clone(path, 0 if is_writable else calls.READ_ONLY)
                self._mounts.append((path, mount, os.path.isdir(path)))

    def _clone(self, path: str, attributes: int) -> int:
        mount = calls.clone_mount(path)
        attributes |= calls.NO_SETUID | calls.NO_DEVICES | calls.NO_PROGRAMS
        try:
            calls.set_mount(mount, attributes, self._users)
        except OSError as error:
            if self._users < 0:
                raise
            raise NotMappable from error
        return mount

    def attach(self, owner: int) -> None:
        """Mount everything below the present root; files of an overlay are made as `owner`'s."""
        if self._layers is not None:
            self._mount_layers(self._layers, owner)
        for path, mount, is_directory in self._mounts:
            if is_directory:
                os.makedirs(path, exist_ok=True)
            elif not os.path.exists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
            calls.attach_mount(mount, path)

    def _mount_layers(self, layers: Layers, owner: int) -> None:
        target = layers["target"]
        os.makedirs(target, exist_ok=True)
        if self._upper < 0 and len(self._lower) == 1:
            calls.attach_mount(self._lower[0], target)
            return
        # Short names: an option holds no colon or comma, and all options fit into a page.
        names = [f"{_LAYERS}/{number}" for number in range(len(self._lower))]
        options = f"lowerdir={':'.join(names)},userxattr"
        places = list(zip(names, self._lower, strict=True))
        if self._upper >= 0:
            shared = f"{_LAYERS}/upper"
            places.append((shared, self._upper))
            for option, path in (("upperdir", layers["upper"]), ("workdir", layers["work"])):
                options += f",{option}={shared}/{os.path.relpath(path, self._parent)}"
        for name, mount in places:
            os.makedirs(name)
            calls.attach_mount(mount, name)
        if owner >= 0:
            # The overlay does its own work as who mounts it, and only `owner` has a name there.
            calls.set_file_owner(owner, owner)
        try:
            calls.mount_overlay(target, options)
        finally:
            if owner >= 0:
                calls.set_file_owner(0, 0)
        for name, _ in places:
            calls.detach_mount(name)


def _outermost(
    writable: Sequence[str], readable: Sequence[str], inside: str
) -> list[tuple[str, bool]]:
    """Return the paths to mount, outer ones first, without those that lie in one of their kind or
    in `inside`.
    """
    kinds = {**dict.fromkeys(readable, False), **dict.fromkeys(writable, True)}
    found: list[tuple[str, bool]] = []
    for path in sorted(kinds, key=len):
        if inside and _lies_in(path, inside):
            continue
        around = [kind for outer, kind in found if _lies_in(path, outer)]
        if not around or around[-1] != kinds[path]:
            found.append((path, kinds[path]))
    return found


def _lies_in(path: str, outer: str) -> bool:
    return path == outer or path.startswith(outer.rstrip("/") + "/")


def furnish() -> int:
    """Mount the files that every view has, `etc` and `dev`, over this namespace's root, where no
    path leads, and return their directory.
    """
    root = calls.empty_tmpfs()
    devices = [(path, calls.clone_mount(path)) for path in DEVICES if os.path.exists(path)]
    cache = b""
    with contextlib.suppress(OSError), open("/etc/ld.so.cache", "rb") as file:
        cache = file.read()
    before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    calls.attach_mount(root, "/")
    os.fchdir(root)
    try:
        os.mkdir("etc")
        os.mkdir("dev")
        with open("etc/ld.so.cache", "wb") as file:
            file.write(cache)
        for path, mount in devices:
            os.close(os.open(path[1:], os.O_CREAT | os.O_WRONLY, 0o644))
            calls.attach_mount(mount, path[1:])
            os.close(mount)
    finally:
        os.fchdir(before)
        os.close(before)
    return root
