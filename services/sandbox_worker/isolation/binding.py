"""Brings a workspace into a walled sandbox, while that may still mount: at /workspace, and the
stores that its git borrows from where git looks for them.

Runs in the inits: single-threaded, standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os

from fairlead_walls import kernel_calls
from sandbox_worker.isolation.mount_order import Bound, mounts_of, own_layers

WORKSPACE = "/workspace"
_LAYERS = b"/.layers"
_NOTHING = b"/.layers/nothing"
_SHUT = kernel_calls.READ_ONLY | kernel_calls.NO_SETUID | kernel_calls.NO_DEVICES


def make_places(workspace: Bound) -> None:
    """Make the directories that `bind_workspace` mounts at; again is harmless. Raises OSError."""
    if "lower" in workspace:
        _make(_NOTHING)
        for number in range(len(workspace["lower"]) + 1):
            with contextlib.suppress(FileExistsError):
                os.mkdir(_layer(number))
    for path in workspace.get("store", ()):
        _make(path)


def bind_workspace(workspace: Bound, descriptors: list[int], host: int) -> None:
    """Mount a workspace once its places are made; `descriptors` are its directories in the order of
    mounts_of, or none: then they are opened below the directory `host`. Raises OSError; then
    nothing is mounted at all, as nothing must be started.
    """
    places = mounts_of(workspace)
    mounts = descriptors or _open(places, host)
    try:
        if len(mounts) != len(places):
            # The kernel drops what does not fit below this process's limit of open files.
            raise OSError(errno.EMFILE, "too few descriptors")
        count = len(places) - len(workspace.get("store", ()))
        if "lower" in workspace:
            _mount_layers(workspace, mounts[:count])
        else:
            kernel_calls.attach_mount(mounts[0], WORKSPACE)
        for (path, _), mount in zip(places[count:], mounts[count:], strict=True):
            try:
                kernel_calls.attach_mount(mount, path)
            except FileNotFoundError:
                # A host root below /workspace: its place was covered.
                _make(path)
                kernel_calls.attach_mount(mount, path)
    finally:
        if mounts is not descriptors:
            for mount in mounts:
                os.close(mount)


def _layer(number: int) -> bytes:
    return b"%b/%d" % (_LAYERS, number)


def _make(path: bytes) -> None:
    """Make a directory and those above it, as far as they are not there; no call is spared that
    would only look.
    """
    end = 0
    while end >= 0:
        end = path.find(b"/", end + 1)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path if end < 0 else path[:end])


def _open(places: list[tuple[bytes, int]], host: int) -> list[int]:
    if host < 0:
        raise OSError(errno.EMFILE, "no descriptors")
    mounts: list[int] = []
    try:
        for path, attributes in places:
            mounts.append(kernel_calls.clone_mount(path.lstrip(b"/"), directory=host))
            kernel_calls.set_mount(mounts[-1], attributes)
    except OSError:
        for mount in mounts:
            os.close(mount)
        raise
    return mounts


def _mount_layers(workspace: Bound, mounts: list[int]) -> None:
    """Mount the overlay over mounts of its directories, which no path leads to afterwards: they are
    covered. To detach each of them would wait for a grace period of the kernel (1 to 10 ms).
    """
    # Short names: an option holds no colon or comma, and all options fit into a page.
    names = [_layer(number) for number in range(len(mounts))]
    for name, mount in zip(names, mounts, strict=True):
        kernel_calls.attach_mount(mount, name)
    *lower, own = map(os.fsdecode, names)
    options = f"userxattr,lowerdir={':'.join(lower)}"
    parent = own_layers(workspace).rstrip(b"/")
    for option, path in (("upperdir", "upper"), ("workdir", "work")):
        within = os.fsdecode(workspace[path][0][len(parent) + 1 :])
        options += f",{option}={own}/{within}"
    kernel_calls.mount_overlay(WORKSPACE, options)
    kernel_calls.bind(_NOTHING, _LAYERS)
    kernel_calls.change_mount(_LAYERS, _SHUT)
