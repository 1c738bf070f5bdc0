"""A tree made by `git fast-import` from a commit and changed files, in a git directory of its own.

It costs one process and grows with the changes, where an index costs with the repository. Format:
git-fast-import(1).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from fairlead_sdk.git import GitFailed, start_git

Entry: TypeAlias = tuple[bytes, str, bytes | str]


@dataclass(frozen=True, slots=True)
class ImportedTree:
    """The new tree, a commit that holds it, and the tree of the commit that it started from."""

    tree: str
    commit: str
    base_tree: str


def import_tree(
    entries: Iterator[Entry],
    *,
    directory: Path,
    objects: Sequence[Path],
    commit: str,
    object_format: str,
) -> ImportedTree:
    """Make `directory` a git directory that borrows `objects`, and put there the tree of `commit`
    with `entries` on top.

    An entry is (path, mode, content), where a text is the id of an object in `objects`; an empty
    mode removes the path. The same entries give the same ids.
    """
    make_git_directory(directory, objects, commit, object_format)
    process = start_git(
        "-c",
        "fastimport.unpackLimit=0",  # always a pack: loose objects would need a process more
        "fast-import",
        "--done",
        "--quiet",
        environment={"GIT_DIR": os.fspath(directory)},
        stdin=True,
    )
    try:
        if process.stdin is not None:
            _tell(process.stdin, entries, commit)
        stdout, stderr = process.communicate()
    except BrokenPipeError:
        stdout, stderr = b"", process.communicate()[1]
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    lines = stdout.decode("ascii", "replace").splitlines()
    if process.returncode != 0 or len(lines) != 3:
        raise GitFailed(
            arguments=("fast-import",),
            status=process.returncode,
            message=stderr.decode("utf-8", "replace"),
        )
    base, tree, made = lines
    return ImportedTree(tree=tree.split()[2], commit=made, base_tree=base.split()[2])


def make_git_directory(
    directory: Path, objects: Sequence[Path], commit: str, object_format: str
) -> None:
    """Make a directory a git directory that borrows objects."""
    (directory / "refs").mkdir()
    (directory / "objects" / "info").mkdir(parents=True)
    (directory / "HEAD").write_text(f"{commit}\n", "ascii")
    (directory / "objects" / "info" / "alternates").write_bytes(
        b"".join(quoted(os.fsencode(each)) + b"\n" for each in objects)
    )
    if object_format != "sha1":
        (directory / "config").write_text(
            "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n"
            f"\tobjectFormat = {object_format}\n",
            "ascii",
        )


def _tell(stream: IO[bytes], entries: Iterator[Entry], commit: str) -> None:
    head = commit.encode("ascii")
    stream.write(b'ls %s ""\n' % head)
    stream.write(b"commit refs/fairlead/changes\nmark :1\n")
    stream.write(b"committer fairlead <fairlead@localhost> 0 +0000\ndata 0\nfrom %s\n" % head)
    for path, mode, content in entries:
        if mode and isinstance(content, str):
            names = mode.encode("ascii"), content.encode("ascii"), quoted(path)
            stream.write(b"M %s %s %s\n" % names)
        elif mode and isinstance(content, bytes):
            stream.write(b"M %s inline %s\n" % (mode.encode("ascii"), quoted(path)))
            stream.write(b"data %d\n" % len(content))
            stream.write(content)
            stream.write(b"\n")
        else:
            stream.write(b"D %s\n" % quoted(path))
    stream.write(b'ls ""\n\nget-mark :1\ndone\n')
    stream.flush()


def quoted(path: bytes) -> bytes:
    """Write a path in git's C style, always in double quotes."""
    out = bytearray(b'"')
    for byte in path:
        if byte in b'"\\':
            out += b"\\" + bytes([byte])
        elif byte < 0x20 or byte == 0x7F:
            out += b"\\%03o" % byte
        else:
            out.append(byte)
    return bytes(out + b'"')
