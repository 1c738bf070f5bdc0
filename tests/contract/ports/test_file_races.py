"""Files of a workspace whose programs swap directories for links meanwhile: nothing leaves it."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sandbox_worker.file_agent.beneath import Beneath, open_beneath
from sandbox_worker.file_agent.contents import write_whole
from sandbox_worker.file_agent.frames import CONTENT, END, frame
from sandbox_worker.file_agent.line import Line
from sandbox_worker.file_agent.names import remove_tree

ROUNDS = 400
_HERE = -100
_EXCHANGE = 2


@contextmanager
def swapping(root: Path, outside: Path) -> Iterator[None]:
    """Swap `d` in `root` between a directory and a link that leads out, until the end."""
    (root / "d").mkdir()
    (root / "link").symlink_to(outside)
    ending = threading.Event()
    libc = ctypes.CDLL(None)
    names = [os.fsencode(root / name) for name in ("d", "link")]

    def swap() -> None:
        while not ending.is_set():
            libc.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        yield
    finally:
        ending.set()
        swapper.join()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that nobody may reach; it has a file of the names that are asked for."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "f").write_bytes(b"secret")
    (made / "kept").write_bytes(b"kept")
    return made


def raced(root: Path, act: Callable[[Beneath], object], *, until_done: bool = False) -> None:
    """Do something again and again, on request at least until it went through once: two threads may
    fall into step.
    """
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
    rounds, is_done = 0, not until_done
    try:
        while rounds < ROUNDS or not is_done:
            rounds += 1
            with suppress(OSError):
                act(Beneath(descriptor))
                is_done = True
    finally:
        os.close(descriptor)


def test_a_read_never_leaves_the_root(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    seen: set[bytes] = set()

    def read(beneath: Beneath) -> None:
        with beneath.opened(b"d/f", os.O_RDONLY) as descriptor:
            seen.add(os.read(descriptor, 100))

    with swapping(root, outside):
        raced(root, read)
    assert b"secret" not in seen


def test_a_write_never_leaves_the_root(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    near, far = socket.socketpair()
    far.sendall(frame(CONTENT, b"written") + frame(END))
    line = Line(near)

    def write(beneath: Beneath) -> None:
        write_whole(
            line, beneath, b"d/f", create=False, permissions=None, parents=False, if_match=b""
        )

    draining = threading.Thread(target=_drain, args=(far,))
    draining.start()
    with swapping(root, outside):
        raced(root, write, until_done=True)
    near.close()
    draining.join()
    assert (outside / "f").read_bytes() == b"secret"
    assert sorted(os.listdir(outside)) == ["f", "kept"]


def test_a_removal_never_leaves_the_root(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()

    def remove(beneath: Beneath) -> None:
        with beneath.place(b"d/f") as (directory, name):
            os.unlink(name, dir_fd=directory)

    with swapping(root, outside):
        raced(root, remove)
    assert (outside / "f").read_bytes() == b"secret"


def test_a_recursive_removal_follows_no_swapped_link(tmp_path: Path, outside: Path) -> None:
    for _ in range(20):
        root = tmp_path / "root"
        root.mkdir()
        top = root / "top"
        top.mkdir()
        descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
        with swapping(top, outside), suppress(OSError):
            remove_tree(descriptor, b"top")
        os.close(descriptor)
        for left in (top / "link", top / "d"):
            if left.is_symlink():
                left.unlink()
            elif left.exists():
                left.rmdir()
        if top.exists():
            top.rmdir()
        root.rmdir()
    assert sorted(os.listdir(outside)) == ["f", "kept"]


def test_parents_that_are_made_stay_beneath(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with swapping(root, outside):
        raced(
            root,
            lambda beneath: os.close(beneath.directory(b"d/x/y", parents=True)),
            until_done=True,
        )
    assert sorted(os.listdir(outside)) == ["f", "kept"]


def test_dot_dot_stays_beneath_while_directories_move(tmp_path: Path) -> None:
    root = tmp_path / "a" / "root"
    (root / "d" / "e").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    other = tmp_path / "elsewhere"
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
    ending = threading.Event()

    def move() -> None:
        while not ending.is_set():
            os.rename(root / "d" / "e", other)
            os.rename(other, root / "d" / "e")

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for _ in range(ROUNDS):
            with pytest.raises(OSError, match=r"Invalid cross-device|No such file|unavailable"):
                os.close(open_beneath(descriptor, b"d/e/../../../../secret", os.O_RDONLY))
    finally:
        ending.set()
        mover.join()
        os.close(descriptor)


def _drain(end: socket.socket) -> None:
    with end:
        while end.recv(65536):
            continue
