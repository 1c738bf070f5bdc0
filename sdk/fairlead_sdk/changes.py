"""Uncommitted and untracked files as a synthetic tree, made beside the repository and never in it.

`git status` says which paths differ, with the user's own rules, and `verbatim` which others hold
other bytes than their objects. Their bytes then go as they are (no filter, no end-of-line
conversion) through `git fast-import` into a temporary git directory that
borrows the repository's objects, so that index, refs, objects and configuration of the user are
never touched and no hook runs.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead_limits.table import CHANGES_BYTES
from fairlead_sdk.changes_memo import ChangesMemo
from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.fast_import import Entry, ImportedTree, import_tree
from fairlead_sdk.git import PACK, GitFailed, ask_for_pack, start_git
from fairlead_sdk.kept_blobs import (
    Blobs,
    ChangedFile,
    FileMoved,
    KeptBlobs,
    ReadProgress,
    opened,
    shown,
    stamp_of,
    unreadable,
)
from fairlead_sdk.scratch import Scratch
from fairlead_sdk.verbatim import Verbatim

TOTAL_LIMIT_BYTES = 1024**3
_ATTEMPTS = 3
_LEAST_TO_KEEP_BYTES = CHANGES_BYTES.count
"""Files with less altogether are read each time that one of them has changed."""
_MOST_TO_TRY_BYTES = 8 * 1024 * 1024
"""Files with more make no pack of 256 KiB, unless they are of a kind that is not worth trying."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The tree that holds every file as it is, and a thin pack against HEAD with what is new in it.

    `pack` is empty when it would be larger than 256 KiB: then the objects go with the upload.
    `make_objects` makes these when a host lacks them.
    """

    tree: str
    pack: bytes
    files: int
    scratch: Scratch
    make_objects: Callable[[], ChangeObjects] | None = None
    kept: KeptBlobs | None = None

    def close(self) -> None:
        """Remove the temporary objects."""
        self.scratch.close()


@dataclass(frozen=True, slots=True)
class ChangeObjects:
    """The object directory in which `tip` is a commit that holds the tree of changes; `blobs` are
    the objects of its files that are kept for later launches.
    """

    objects: Path
    tip: str
    blobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What differs from HEAD, `None` when nothing does, and what a person should know about it."""

    changes: Changes | None
    warnings: tuple[str, ...]


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
    kept: KeptBlobs,
    on_read: ReadProgress | None = None,
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
    maker = _Maker(
        top=top,
        objects=objects,
        commit=commit,
        object_format=object_format,
        scratch=scratch,
        is_wanted=verbatim.host_converts,
        kept=kept,
        on_read=on_read,
    )
    for _ in range(_ATTEMPTS):
        try:
            memo.begin()
            files = _looked_at(paths, top)
            _require_moderate(files)
            further = _looked_at(verbatim.paths, top)
            more = warnings
            if _size(files) + _size(further) > TOTAL_LIMIT_BYTES:
                more += (_too_large_to_travel(further),)
            else:
                files += further
            known = memo.find(commit, files)
            if known is None or (verbatim.host_converts and not known[0]):
                changes = maker.make(files)
                found = ("", b"") if changes is None else (changes.tree, changes.pack)
                memo.keep(commit, files, *found)
            elif known[0]:
                changes = maker.known(files, *known)
            else:
                changes = None
            return Found(changes, more)
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
                    warnings.append(f"{shown(path)} is a submodule: its changes do not travel.")
                    continue
            case b"u":
                path = entry.split(b" ", 10)[10]
            case _:
                continue
        if path.endswith(b"/"):
            warnings.append(f"{shown(path)} is a repository of its own: its files do not travel.")
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
        raise unreadable(path) from None
    if facts is not None and stat.S_ISLNK(facts.st_mode):
        return ChangedFile(path, "120000", facts.st_size, stamp_of(facts))
    if facts is not None and stat.S_ISREG(facts.st_mode):
        mode = "100755" if facts.st_mode & 0o100 else "100644"
        return ChangedFile(path, mode, facts.st_size, stamp_of(facts))
    return ChangedFile(path, "", 0)


def _require_moderate(files: list[ChangedFile]) -> None:
    total = _size(files)
    if total <= TOTAL_LIMIT_BYTES:
        return
    largest = max(files, key=lambda file: file.size)
    raise RepositoryError(
        f"Uncommitted and untracked files hold {total / 1024**3:.1f} GiB, more than the limit"
        f" of 1 GiB; the largest is {shown(largest.path)} with {largest.size / 1024**2:.0f} MiB.",
        reason="changes_too_large",
        remedy=f"Add {shown(largest.path)} to .gitignore, commit it, or leave changes at home"
        " with --clean.",
    )


def _size(files: Iterable[ChangedFile]) -> int:
    return sum(file.size for file in files)


def _too_large_to_travel(files: Sequence[ChangedFile]) -> str:
    largest = max(files, key=lambda file: file.size)
    return (
        f"{len(files)} files that a filter or another conversion of git has written here arrive as"
        f" git keeps them: with them the changes hold more than 1 GiB ({shown(largest.path)} is"
        " the largest)."
    )


def _git_failed(failure: GitFailed) -> RepositoryError:
    return RepositoryError(
        f"git cannot store the changes: {failure.message.strip()}",
        reason="repository_unreadable",
        remedy="git fsck",
    )


class _Maker:
    """Makes the objects of changed files in one working directory."""

    def __init__(
        self,
        *,
        top: Path,
        objects: Path,
        commit: str,
        object_format: str,
        scratch: Scratch,
        is_wanted: bool,
        kept: KeptBlobs,
        on_read: ReadProgress | None,
    ) -> None:
        """With `is_wanted` there are changes also where they make the commit's own tree."""
        self._top = top
        self._objects = objects
        self._commit = commit
        self._object_format = object_format
        self._scratch = scratch
        self._is_wanted = is_wanted
        self._kept = kept
        self._on_read = on_read

    def make(self, files: list[ChangedFile]) -> Changes | None:
        """Make the tree of the files; None when it is the commit's own."""
        with self._removing():
            imported, made = self._imported(files)
            if imported.tree == imported.base_tree and not self._is_wanted:
                self._scratch.remove()
                return None
            pack = b""
            if _size(files) <= _MOST_TO_TRY_BYTES:
                pack = _thin_pack(made.objects.parent, imported, self._commit)
        if pack:
            self._scratch.remove()
            return Changes(imported.tree, pack, len(files), self._scratch)
        self._scratch.settle()
        return Changes(
            imported.tree,
            b"",
            len(files),
            self._scratch,
            make_objects=lambda: made,
            kept=self._kept,
        )

    def known(self, files: list[ChangedFile], tree: str, pack: bytes) -> Changes:
        """Give changes whose tree is known: their objects are made when they are asked for."""
        if pack:
            return Changes(tree, pack, len(files), self._scratch)

        made: ChangeObjects | None = None

        def make_objects() -> ChangeObjects:
            nonlocal made
            if made is not None:
                return made
            try:
                with self._removing():
                    imported, made = self._imported(files)
                    if imported.tree != tree:
                        raise FileMoved(shown(files[0].path))
            except FileMoved as moved:
                raise RepositoryError(
                    f"{moved} has changed since the launch began.",
                    reason="files_changing",
                    remedy="Launch again.",
                ) from None
            self._scratch.settle()
            return made

        return Changes(
            tree, b"", len(files), self._scratch, make_objects=make_objects, kept=self._kept
        )

    @contextlib.contextmanager
    def _removing(self) -> Iterator[None]:
        """Remove what was made when the block fails."""
        try:
            yield
        except GitFailed as failure:
            self._scratch.remove()
            raise _git_failed(failure) from None
        except BaseException:
            self._scratch.remove()
            raise

    def _imported(self, files: list[ChangedFile]) -> tuple[ImportedTree, ChangeObjects]:
        directory = self._scratch.make()
        blobs = Blobs({}, ())
        if _size(files) > _LEAST_TO_KEEP_BYTES:
            blobs = self._kept.bring(
                files,
                top=self._top,
                scratch=directory,
                object_format=self._object_format,
                on_read=self._on_read,
            )
        imported = import_tree(
            _entries(files, self._top, blobs.names),
            directory=directory,
            objects=(self._objects, *blobs.objects),
            commit=self._commit,
            object_format=self._object_format,
        )
        names = tuple(dict.fromkeys(blobs.names.values()))
        return imported, ChangeObjects(directory / "objects", imported.commit, names)


def _entries(files: list[ChangedFile], top: Path, names: Mapping[bytes, str]) -> Iterator[Entry]:
    """Give (path, mode, content or object); what is gone comes first, so that a file may take a
    directory's place.
    """
    root = os.fsencode(top)
    for file in files:
        if not file.mode:
            yield file.path, "", b""
    for file in files:
        if file.path in names:
            yield file.path, file.mode, names[file.path]
        elif file.mode:
            yield file.path, file.mode, _content(os.path.join(root, file.path), file)


def _content(place: bytes, file: ChangedFile) -> bytes:
    if file.mode == "120000":
        try:
            return os.readlink(place)
        except OSError:
            raise FileMoved(shown(file.path)) from None
    with opened(place, file) as source:
        content = source.read(file.size + 1)
        if len(content) != file.size:
            raise FileMoved(shown(file.path))
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
