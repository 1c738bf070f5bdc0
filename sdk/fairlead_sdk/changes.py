"""Uncommitted and untracked files as a synthetic tree, made beside the repository and never in it.

`git status` says which paths differ, with the user's own rules, and `verbatim` which others hold
other bytes than their objects. Their bytes then go as they are (no filter, no end-of-line
conversion) through `git fast-import` into a temporary git directory that
borrows the repository's objects, so that index, refs, objects and configuration of the user are
never touched and no hook runs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead_limits.table import CHANGES_BYTES
from fairlead_sdk.changes_memo import ChangesMemo
from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.fast_import import ImportedTree, import_tree
from fairlead_sdk.git import PACK, GitFailed, ask_for_pack, start_git
from fairlead_sdk.scratch import Scratch
from fairlead_sdk.verbatim import Verbatim

TOTAL_LIMIT_BYTES = 1024**3
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One path that differs from HEAD: its bytes' name below the top, and its mode; no mode when it
    is gone.

    `stamp` is what a later change of the file would change: device, mode, size, mtime and ctime in
    nanoseconds, inode.
    """

    path: bytes
    mode: str
    size: int
    stamp: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Changes:
    """The tree that holds every file as it is, and a thin pack against HEAD with what is new in it.

    `pack` is empty when it would be larger than 256 KiB: then the objects go with the upload, out
    of the directory `objects`, where `tip` is a commit that holds the tree.
    """

    tree: str
    pack: bytes
    files: int
    scratch: Scratch
    tip: str = ""
    objects: Path | None = None

    def close(self) -> None:
        """Remove the temporary objects."""
        self.scratch.close()


@dataclass(frozen=True, slots=True)
class Found:
    """What differs from HEAD, `None` when nothing does, and what a person should know about it."""

    changes: Changes | None
    warnings: tuple[str, ...]


class FileMoved(Exception):
    """A file changed while it was read."""


def collect_changes(
    status: bytes,
    *,
    find_verbatim: Callable[[frozenset[bytes]], Verbatim],
    top: Path,
    objects: Path,
    commit: str,
    object_format: str,
    scratch: Scratch,
    memo: ChangesMemo,
) -> Found:
    """Make the changes from the output of `git status --porcelain=v2 -z` with all untracked files
    and what `find_verbatim` finds besides these paths.

    Raises `RepositoryError`: `changes_too_large` (more than 1 GiB), `file_unreadable`,
    `files_changing` when a file does not hold still for three attempts.
    """
    paths, warnings = _listed(status)
    try:
        verbatim = find_verbatim(frozenset(paths))
    except GitFailed as failure:
        raise _git_failed(failure) from None
    if not paths and not verbatim.paths and not verbatim.host_converts:
        return Found(None, warnings)
    for _ in range(_ATTEMPTS):
        try:
            memo.begin()
            files = _looked_at(paths, top)
            _require_moderate(files)
            further = _looked_at(verbatim.paths, top)
            if _size(files) + _size(further) <= TOTAL_LIMIT_BYTES:
                files += further
            else:
                warnings += (_too_large_to_travel(further),)
            known = memo.find(commit, files)
            if known is None or (verbatim.host_converts and not known[0]):
                changes = _made(
                    files, top, objects, commit, object_format, scratch, verbatim.host_converts
                )
                if changes is None or changes.pack:
                    kept = ("", b"") if changes is None else (changes.tree, changes.pack)
                    memo.keep(commit, files, *kept)
            elif known[0]:
                changes = Changes(*known, len(files), scratch)
            else:
                changes = None
            return Found(changes, warnings)
        except FileMoved as moved:
            name = str(moved)
    raise RepositoryError(
        f"{name} changes while it is being read.",
        reason="files_changing",
        remedy="Stop what writes it, add it to .gitignore, or leave changes at home with --clean.",
    )


def _listed(status: bytes) -> tuple[list[bytes], tuple[str, ...]]:
    """Give every listed path once, and a warning for each repository inside the repository."""
    paths: dict[bytes, None] = {}
    warnings: list[str] = []
    for entry in status.split(b"\0"):
        match entry[:1]:
            case b"?":
                path = entry[2:]
            case b"1":
                fields = entry.split(b" ", 8)
                path = fields[8]
                if fields[2][:1] == b"S" and b"160000" in fields[3:6]:
                    warnings.append(f"{_shown(path)} is a submodule: its changes do not travel.")
                    continue
            case b"u":
                path = entry.split(b" ", 10)[10]
            case _:
                continue
        if path.endswith(b"/"):
            warnings.append(f"{_shown(path)} is a repository of its own: its files do not travel.")
        else:
            paths[path] = None
    return list(paths), tuple(warnings)


def _looked_at(paths: Sequence[bytes], top: Path) -> list[ChangedFile]:
    root = os.fsencode(top)
    linked: dict[bytes, bool] = {}

    def beyond_link(path: bytes) -> bool:
        parent = path.rpartition(b"/")[0]
        if not parent:
            return False
        if parent not in linked:
            linked[parent] = beyond_link(parent) or os.path.islink(os.path.join(root, parent))
        return linked[parent]

    return [_file(root, path, gone=beyond_link(path)) for path in paths]


def _file(root: bytes, path: bytes, *, gone: bool) -> ChangedFile:
    try:
        facts = None if gone else os.lstat(os.path.join(root, path))
    except (FileNotFoundError, NotADirectoryError):
        facts = None
    except PermissionError:
        raise _unreadable(path) from None
    if facts is not None and stat.S_ISLNK(facts.st_mode):
        return ChangedFile(path, "120000", facts.st_size, _stamp(facts))
    if facts is not None and stat.S_ISREG(facts.st_mode):
        mode = "100755" if facts.st_mode & 0o100 else "100644"
        return ChangedFile(path, mode, facts.st_size, _stamp(facts))
    return ChangedFile(path, "", 0)


def _stamp(facts: os.stat_result) -> tuple[int, ...]:
    return (
        facts.st_dev,
        facts.st_mode,
        facts.st_size,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
        facts.st_ino,
    )


def _require_moderate(files: list[ChangedFile]) -> None:
    total = _size(files)
    if total <= TOTAL_LIMIT_BYTES:
        return
    largest = max(files, key=lambda file: file.size)
    raise RepositoryError(
        f"Uncommitted and untracked files hold {total / 1024**3:.1f} GiB, more than the limit"
        f" of 1 GiB; the largest is {_shown(largest.path)} with {largest.size / 1024**2:.0f} MiB.",
        reason="changes_too_large",
        remedy=f"Add {_shown(largest.path)} to .gitignore, commit it, or leave changes at home"
        " with --clean.",
    )


def _size(files: Iterable[ChangedFile]) -> int:
    return sum(file.size for file in files)


def _too_large_to_travel(files: Sequence[ChangedFile]) -> str:
    largest = max(files, key=lambda file: file.size)
    return (
        f"{len(files)} files that a filter or another conversion of git has written here arrive as"
        f" git keeps them: with them the changes hold more than 1 GiB ({_shown(largest.path)} is"
        " the largest)."
    )


def _git_failed(failure: GitFailed) -> RepositoryError:
    return RepositoryError(
        f"git cannot store the changes: {failure.message.strip()}",
        reason="repository_unreadable",
        remedy="git fsck",
    )


def _made(
    files: list[ChangedFile],
    top: Path,
    objects: Path,
    commit: str,
    object_format: str,
    scratch: Scratch,
    is_wanted: bool,
) -> Changes | None:
    """Import the files; None when they make the commit's own tree, unless this is wanted too."""
    directory = scratch.make()
    try:
        imported = import_tree(
            _entries(files, top),
            directory=directory,
            objects=objects,
            commit=commit,
            object_format=object_format,
        )
        if imported.tree == imported.base_tree and not is_wanted:
            scratch.remove()
            return None
        pack = _thin_pack(directory, imported, commit)
    except GitFailed as failure:
        scratch.remove()
        raise _git_failed(failure) from None
    except BaseException:
        scratch.remove()
        raise
    if pack:
        scratch.remove()
        return Changes(imported.tree, pack, len(files), scratch)
    scratch.settle()
    return Changes(
        imported.tree, b"", len(files), scratch, tip=imported.commit, objects=directory / "objects"
    )


def _entries(files: list[ChangedFile], top: Path) -> Iterator[tuple[bytes, str, bytes]]:
    """Give (path, mode, content); what is gone comes first, so that a file may take a directory's
    place.
    """
    root = os.fsencode(top)
    for file in files:
        if not file.mode:
            yield file.path, "", b""
    for file in files:
        if file.mode:
            yield file.path, file.mode, _content(os.path.join(root, file.path), file)


def _content(place: bytes, file: ChangedFile) -> bytes:
    try:
        if file.mode == "120000":
            return os.readlink(place)
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as source:
            before = os.fstat(descriptor)
            content = source.read(file.size + 1)
            after = os.fstat(descriptor)
    except PermissionError:
        raise _unreadable(file.path) from None
    except OSError:
        raise FileMoved(_shown(file.path)) from None
    still = (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    if not still or len(content) != file.size or not stat.S_ISREG(before.st_mode):
        raise FileMoved(_shown(file.path))
    return content


def _thin_pack(directory: Path, imported: ImportedTree, commit: str) -> bytes:
    """Give the pack, or nothing when it is larger than what may go inline."""
    process = start_git(*PACK, environment={"GIT_DIR": os.fspath(directory)}, stdin=True)
    try:
        pack = ask_for_pack(process, f"{imported.commit}\n^{commit}\n".encode()).read(
            CHANGES_BYTES.count + 1
        )
        if len(pack) > CHANGES_BYTES.count:
            process.kill()
            return b""
    finally:
        stderr = process.communicate()[1]
    if process.returncode != 0:
        raise GitFailed(
            arguments=PACK, status=process.returncode, message=stderr.decode("utf-8", "replace")
        )
    return pack


def _unreadable(path: bytes) -> RepositoryError:
    return RepositoryError(
        f"{_shown(path)} cannot be read.",
        reason="file_unreadable",
        remedy="chmod u+r it, add it to .gitignore, or leave changes at home with --clean.",
    )


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
