"""Paths that are resolved beneath a root, beside the kernel's own resolution (openat2(2) with
RESOLVE_BENEATH).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sandbox_worker.file_agent.beneath import open_beneath

_OPENAT2, _NO_MAGIC_LINKS, _BENEATH = 437, 0x02, 0x08
_libc = ctypes.CDLL(None, use_errno=True)
_FLAGS = (
    os.O_RDONLY,
    os.O_PATH,
    os.O_PATH | os.O_NOFOLLOW,
    os.O_PATH | os.O_DIRECTORY,
    os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW,
    os.O_WRONLY | os.O_CREAT,
)
_NAMES = (
    "a",
    "b",
    "file",
    "up",
    "down",
    "far",
    "loop",
    "gone",
    "out",
    "slash",
    "made",
    "..",
    ".",
    "",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A tree of directories, files and links to within it, to nowhere and out of it."""
    top = tmp_path_factory.mktemp("top") / "root"
    (top / "a/b/a/b").mkdir(parents=True)
    for place in (top, top / "a", top / "a/b"):
        (place / "file").write_text("")
        for name, target in (
            ("up", ".."), ("down", "a/b"), ("far", "up/a/./b/../b"), ("loop", "loop/x"),
            ("gone", "a/gone"), ("out", "/etc"), ("slash", "a/"),
        ):  # fmt: skip
            (place / name).symlink_to(target)
    descriptor = os.open(top, os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def by_the_kernel(root: int, path: bytes, flags: int, mode: int) -> int:
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, _BENEATH | _NO_MAGIC_LINKS)
    opened = int(_libc.syscall(_OPENAT2, root, path, how, len(how)))
    if opened < 0:
        raise OSError(ctypes.get_errno(), "")
    return opened


def outcome(opened: int | OSError) -> object:
    if isinstance(opened, OSError):
        return errno.errorcode[opened.errno or 0]
    found = os.fstat(opened)
    os.close(opened)
    return found.st_ino


@settings(max_examples=300, deadline=None)
@given(
    names=st.lists(st.sampled_from(_NAMES), min_size=1, max_size=7), flags=st.sampled_from(_FLAGS)
)
def test_a_path_leads_where_the_kernel_would_go(root: int, names: list[str], flags: int) -> None:
    path = "/".join(names).encode() or b"."
    # Which error names a file that is to be made as a directory is not of interest.
    assume(not (flags & os.O_CREAT and path.endswith((b"/", b"/."))))
    mode = 0o644 if flags & os.O_CREAT else 0
    found = []
    for open_ in (by_the_kernel, open_beneath):
        before = len(os.listdir("/proc/self/fd"))
        try:
            opened: int | OSError = open_(root, path, flags, mode)
        except OSError as error:
            opened = error
        found.append(outcome(opened))
        assert len(os.listdir("/proc/self/fd")) == before
    assert found[1] == found[0]
