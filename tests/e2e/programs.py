"""Programs that tests run inside sandboxes: standard library alone, nothing of ours in sight."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

PYTHON = ("python3", "-I", "-S", "-c")

MANIFEST = r"""
import hashlib, os, stat, sys
for folder, folders, names in os.walk(b"."):
    if b".git" in folders:
        folders.remove(b".git")
    links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
    for name in names + links:
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            content = os.readlink(path)
        else:
            with open(path, "rb") as file:
                content = file.read()
        digest = hashlib.sha256(content).hexdigest()
        sys.stdout.write("%o %s %r\n" % (mode, digest, path))
"""
"""Prints mode, SHA-256 and name of every file below the working directory, git's own left out."""

TALKER = r"""
import os, sys, time
blocks, pause = int(sys.argv[1]), float(sys.argv[2])
for number in range(blocks):
    for stream, mark, size in ((1, b"o", 24576), (2, b"e", 8192)):
        line = b"%s %08d " % (mark, number)
        block = (line * (size // len(line) + 1))[:size - 1] + b"\n"
        while block:
            block = block[os.write(stream, block):]
    time.sleep(pause)
"""
"""Writes blocks of 24 KiB to stdout and of 8 KiB to stderr, each full of its own number."""

_SIZES = {"stdout": (b"o", 24576), "stderr": (b"e", 8192)}


def talker(blocks: int, pause: float) -> tuple[str, ...]:
    """Return the command that writes `blocks` blocks to each stream, `pause` seconds apart."""
    return (*PYTHON, TALKER, str(blocks), str(pause))


def talk(stream: str, blocks: int) -> bytes:
    """Return what the talker writes to a stream."""
    mark, size = _SIZES[stream]
    return b"".join(_block(mark, number, size) for number in range(blocks))


def _block(mark: bytes, number: int, size: int) -> bytes:
    line = b"%s %08d " % (mark, number)
    return (line * (size // len(line) + 1))[: size - 1] + b"\n"


def numbered(name: str) -> Iterator[str]:
    """Return names that no earlier caller was given, for projects that no host knows."""
    return (f"{name}-{number}" for number in count())
