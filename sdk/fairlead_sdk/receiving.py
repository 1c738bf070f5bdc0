"""What comes from a sandbox, written to this machine: whole or not at all.

Every call that writes files of a sandbox here goes through `receive_file` or `receive_tree`. What
comes is hostile, and git runs programs that a repository's own directory names. So:

- no name and no link leads out of the directory that a tree is written to;
- nothing named `.git` is written, in any spelling, and no directory that git takes for a git
  directory comes to be, with what was there before counted in;
- nothing is written into a git directory that is there, by whatever path it is reached.

A tree is unpacked into a staging directory, judged there, and then moved to its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import IO, Self
from urllib.parse import unquote

from fairlead_sdk.errors import AlreadyExists, Internal, InvalidArgument
from fairlead_sdk.file_records import TreeCopied
from fairlead_sdk.git_names import folded, git_prefix, is_git_name, is_repository, marks_of
from fairlead_sdk.packing import PIECE, stays_inside

_LEFT_OUT = "FAIRLEAD.left_out"
"""Names in an extended header of the top, percent-encoded, that the sandbox did not pack."""
_DEEPEST = 250
_BRANCH = re.compile(r"refs/heads/(.+)")


class TreeRefused(InvalidArgument):
    """A tree from a sandbox holds what is not unpacked here."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"The tree from the sandbox holds {name!r}, which is not unpacked.",
            reason="tree_refused",
            remedy="Look at it inside the sandbox; nothing of it was kept here.",
            fields={"name": name},
        )


class GitDirectoryRefused(InvalidArgument):
    """What should be written would be part of a git directory here."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is or would become part of a git directory: nothing of a sandbox is written"
            " there, as git runs programs that such a directory names.",
            reason="git_directory_refused",
            remedy="Choose another place. A single file can be copied to another name, and"
            " --with-git (with_git=True) copies a tree with its history into a new directory.",
            fields={"path": path},
        )


class NotNew(AlreadyExists):
    """A copy with history goes into a new directory only."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is there already: a copy with its history makes a new directory.",
            reason="not_new",
            remedy="Give the name of a directory that is not there.",
            fields={"path": path},
        )


class HistoryBroken(InvalidArgument):
    """The repository of a sandbox cannot be copied."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The history cannot be copied: {cause}.",
            reason="history_broken",
            remedy="Copy the files without --with-git, and look at the repository inside the"
            " sandbox: git fsck",
        )


class TreeBroken(Internal):
    """The tree ended in the middle, or is no tar stream."""

    def __init__(self) -> None:
        super().__init__(
            "The tree that came from the sandbox is broken.",
            reason="tree_broken",
            remedy="Try again; if it stays so, look at the front door's log.",
        )


async def receive_file(pieces: AsyncIterator[bytes], local: str, *, permissions: int) -> TreeCopied:
    """Write a file here under another name, and put it in its place when it is whole.

    Raises `GitDirectoryRefused`.
    """
    await asyncio.to_thread(_require_no_git_file, local)
    size = 0
    with _replaced(local) as target:
        async for piece in pieces:
            await asyncio.to_thread(target.write, piece)
            size += len(piece)
        target.flush()
        os.fchmod(target.fileno(), permissions & 0o777)
    return TreeCopied(1, size)


async def receive_tree(
    pieces: AsyncIterator[bytes], local: str, *, history: History | None = None
) -> TreeCopied:
    """Unpack a tree here: into a directory that is there, else under another name until it is
    whole.

    With `history` the tree gets a repository of its own; then `local` must not be there. Raises
    `TreeRefused`, `TreeBroken`, `GitDirectoryRefused`, `NotNew`, `HistoryBroken`.
    """
    local = local.rstrip("/") or local
    if history is not None:
        require_new(local)
    await asyncio.to_thread(_require_no_git_directory, local)
    is_there = await asyncio.to_thread(os.path.isdir, local)
    staging = _temporary_beside(os.path.join(local, "x") if is_there else local)
    os.mkdir(staging)
    try:
        tree = await _unpacked(pieces, staging)
        copied = await asyncio.to_thread(tree.place, local if is_there else staging, local)
        if history is not None:
            await asyncio.to_thread(history.give_to, staging)
            left_out = tuple(name for name in copied.left_out if name != ".git")
            copied = replace(copied, left_out=left_out)
        if not is_there:
            os.rename(staging, local)
    finally:
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
    return copied


class History:
    """The history of a sandbox's repository: what HEAD names there, and the bundle that git wrote,
    which is missing when there are no commits.

    The repository is made anew here and takes nothing from the sandbox but objects, branches and
    tags: no configuration, hooks, attributes, alternates or modules, so nothing that names a
    program.
    """

    def __init__(self, *, bundle: str, head: str) -> None:
        self._bundle = bundle
        self._head = head

    def give_to(self, top: str) -> None:
        """Make the repository in a directory that has none; raises `HistoryBroken`."""
        from fairlead_sdk.git import GitFailed, run_git

        directory = os.path.join(top, ".git")
        branch = _BRANCH.fullmatch(self._head)
        try:
            if branch:
                run_git("check-ref-format", self._head)
            environment = {"GIT_DIR": directory, "GIT_WORK_TREE": top}
            is_empty = not os.path.exists(self._bundle)
            object_format = "sha1" if is_empty else self._format()
            run_git("init", "--quiet", "--template=", f"--object-format={object_format}", top)
            commit = "" if is_empty else self._fetched(environment)
            if branch:
                run_git("symbolic-ref", "HEAD", self._head, environment=environment)
            elif commit:
                run_git("update-ref", "--no-deref", "HEAD", commit, environment=environment)
            if commit:
                run_git("read-tree", "HEAD", environment=environment)
        except GitFailed as failure:
            lines = failure.message.strip().splitlines() or ["git does not say why"]
            raise HistoryBroken(lines[-1].rstrip(".")) from None

    def _fetched(self, environment: dict[str, str]) -> str:
        """Fetch all that the bundle holds, and give the commit of HEAD if there is one."""
        from fairlead_sdk.git import run_git

        listed = run_git("bundle", "list-heads", self._bundle, "HEAD", environment=environment)
        commit = listed.decode("ascii", "replace").partition(" ")[0]
        refs = [f"+refs/{kind}/*:refs/{kind}/*" for kind in ("heads", "remotes", "tags")]
        run_git(
            *("-c", "fetch.fsckObjects=true", "-c", "maintenance.auto=false"),
            *("-c", "protocol.allow=never", "-c", "protocol.file.allow=always"),
            *("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"),
            *("--update-head-ok", self._bundle, *(["HEAD"] if commit else []), *refs),
            environment=environment,
        )
        return commit

    def _format(self) -> str:
        """Give the object format that the bundle names at its beginning (gitformat-bundle(5))."""
        with open(self._bundle, "rb") as bundle:
            return "sha256" if b"\n@object-format=sha256\n" in bundle.read(200) else "sha1"


def require_new(local: str) -> None:
    """Raise `NotNew` if something is at a path."""
    if os.path.lexists(local):
        raise NotNew(local)


def _require_no_git_file(local: str) -> None:
    above, name = os.path.split(local)
    _require_no_git_directory(above or ".")
    marks = marks_of([name])
    if is_git_name(name) or (
        marks and is_repository(lambda mark: mark in marks or _has(above or ".", mark))
    ):
        raise GitDirectoryRefused(local)


def _require_no_git_directory(local: str) -> None:
    """Raise `GitDirectoryRefused` if a directory, which need not be there, is a git directory or
    below one, by its real path. One with a `.git` of its own holds the files of a repository.
    """
    place = os.path.realpath(local)
    if git_prefix(place) is not None:
        raise GitDirectoryRefused(local)
    while not os.path.lexists(os.path.join(place, ".git")):
        if _is_repository_here(place):
            raise GitDirectoryRefused(local)
        if place == (place := os.path.dirname(place)):
            return


def _is_repository_here(place: str) -> bool:
    return is_repository(lambda mark: _has(place, mark))


def _has(place: str, mark: str) -> bool:
    """Say whether a mark is in a directory here, as its file system finds it."""
    return os.path.lexists(os.path.join(place, "HEAD" if mark == "head" else mark))


async def _unpacked(pieces: AsyncIterator[bytes], staging: str) -> _Tree:
    """Unpack in a thread that reads a pipe: when either end fails, the other one notices."""
    reading, writing = os.pipe()

    def unpack() -> _Tree:
        with os.fdopen(reading, "rb", buffering=0) as stream:
            tree = _Tree(staging)
            tree.unpack(stream)
            return tree

    def write(piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(writing, rest) :]

    unpacking = asyncio.ensure_future(asyncio.to_thread(unpack))
    try:
        try:
            async for piece in pieces:
                await asyncio.shield(asyncio.to_thread(write, piece))
        except BrokenPipeError:
            pass  # its reader says why
        finally:
            os.close(writing)
            await asyncio.wait({unpacking})
            if not unpacking.cancelled():
                unpacking.exception()  # when the pieces broke off, that is the cause, and is told
        return unpacking.result()
    except tarfile.TarError:
        raise TreeBroken from None


class _Header(tarfile.TarInfo):
    """A header whose extensions are read into memory only when they are small."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header block."""
        member = super().frombuf(buf, encoding, errors)
        if not (member.isreg() or member.isdir() or member.issym()) and member.size > PIECE:
            raise TreeRefused(member.name)
        return member


class _Tree:
    """One tree: `unpack` it into the staging directory, then `place` it.

    Links are made at the very end: so nothing is ever written through one of the tree's.
    """

    def __init__(self, staging: str) -> None:
        self._staging = staging
        self._kinds: dict[str, int] = {}
        """The size of each file, and -1 for a directory."""
        self._links: dict[str, str] = {}
        self._directories: dict[str, tuple[int, float]] = {}
        self._left_out: dict[str, None] = {}

    def unpack(self, stream: IO[bytes]) -> None:
        """Unpack to the end; raises TreeRefused, `tarfile.TarError` and OSError."""
        with tarfile.open(
            fileobj=stream,
            mode="r|",
            bufsize=PIECE,
            tarinfo=_Header,
            encoding="utf-8",
            errors="surrogateescape",
        ) as archive:
            while (member := archive.next()) is not None:
                vars(archive)["members"] = []  # it would keep every one of them
                self._unpack_one(archive, member)
        while stream.read(PIECE):
            continue

    def place(self, target: str, shown: str) -> TreeCopied:
        """Move the tree to a directory, which may be the staging directory itself, and is `shown`
        to a person; raises TreeRefused and GitDirectoryRefused before anything is moved.
        """
        self._leave_out_repositories(target, shown)
        if target != self._staging:
            self._require_place(target)
            self._move(self._staging, target)
        for name, link in self._links.items():
            self._link(os.path.join(target, name), link)
        self._leave_out_leading_links(target)
        for name, (mode, modified) in reversed(self._directories.items()):
            path = os.path.join(target, name)
            os.utime(path, (modified, modified))
            os.chmod(path, mode)
        sizes = [size for size in self._kinds.values() if size >= 0]
        entries = len(sizes) + len(self._directories) + len(self._links)
        return TreeCopied(entries, sum(sizes), tuple(self._left_out))

    def _unpack_one(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = _inside(member.name)
        if not name:
            named = member.pax_headers.get(_LEFT_OUT, "").split()
            for each in named:
                self._leave_out(unquote(each, errors="surrogateescape"))
            return
        if not (member.isdir() or member.issym() or member.isreg()):
            raise TreeRefused(member.name)
        if (git := git_prefix(name)) is not None:
            self._leave_out(git)
            return
        mode = member.mode & 0o777
        self._links.pop(name, None)
        if member.isdir():
            self._directory(name)
            self._directories[name] = (mode | 0o700, float(member.mtime))
            return
        self._directory(os.path.dirname(name))
        if member.isreg():
            self._file(archive, member, name, mode)
        elif stays_inside(name, member.linkname) and git_prefix(member.linkname) is None:
            if os.path.lexists(os.path.join(self._staging, name)):
                raise TreeRefused(name)
            self._links[name] = member.linkname
        else:
            self._leave_out(name)

    def _leave_out(self, name: str) -> None:
        """Note a name, or that of its directory when git makes that one unwelcome."""
        self._left_out[git_prefix(name) or name] = None

    def _directory(self, name: str) -> None:
        """Make a directory and those above it, of which none may be a link."""
        path = ""
        for part in filter(None, name.split("/")):
            path = f"{path}/{part}" if path else part
            if path in self._links or self._kinds.get(path, -1) >= 0:
                raise TreeRefused(name)
            if path not in self._kinds:
                with contextlib.suppress(FileExistsError):  # where the file system folds names
                    os.mkdir(os.path.join(self._staging, path))
                self._kinds[path] = -1

    def _file(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, mode: int
    ) -> None:
        content = archive.extractfile(member)
        if content is None or self._kinds.get(name) == -1:
            raise TreeRefused(member.name)
        with _replaced(os.path.join(self._staging, name)) as target:
            shutil.copyfileobj(content, target, PIECE)
            target.flush()
            self._kinds[name] = target.tell()
            os.fchmod(target.fileno(), mode)
            os.utime(target.fileno(), (member.mtime, member.mtime))

    def _leave_out_repositories(self, target: str, shown: str) -> None:
        """Take out of the staging directory each directory that git would take for a git directory
        where it is going, with what is there.
        """
        marks: dict[str, set[str]] = {}
        for name in (*self._kinds, *self._links):
            above, _, own = name.rpartition("/")
            if found := marks_of([own]):
                marks.setdefault(_folded_path(above), set()).update(found)
        gone: set[str] = set()
        for name in ("", *(each for each, size in self._kinds.items() if size < 0)):
            found, place = marks.get(_folded_path(name), set()), os.path.join(target, name)
            if is_repository(lambda mark: mark in found or _has(place, mark)):  # noqa: B023
                gone.add(name)
        if "" in gone:
            raise GitDirectoryRefused(shown)
        for name in sorted(gone):
            if not gone.isdisjoint(_above(name)):
                continue
            self._left_out[name] = None
            shutil.rmtree(os.path.join(self._staging, name))
        if not gone:
            return
        for table in (self._kinds, self._links, self._directories, self._left_out):
            for name in list(table):
                if not gone.isdisjoint(_above(name)) or (
                    name in gone and table is not self._left_out
                ):
                    del table[name]

    def _require_place(self, target: str) -> None:
        """Raise TreeRefused for a directory where something else is, a link among others, and for a
        file where a directory is.
        """
        for name, size in self._kinds.items():
            try:
                kind = stat.S_IFMT(os.lstat(os.path.join(target, name)).st_mode)
            except FileNotFoundError:
                continue
            if (kind == stat.S_IFDIR) != (size < 0):
                raise TreeRefused(name)
        for name in self._links:
            if stat.S_ISDIR(_mode(os.path.join(target, name))):
                raise TreeRefused(name)

    def _move(self, source: str, target: str) -> None:
        with os.scandir(source) as entries:
            found = list(entries)
        for entry in found:
            place = os.path.join(target, entry.name)
            if not entry.is_dir(follow_symlinks=False):
                _move_file(entry.path, place)
            elif stat.S_ISDIR(_mode(place)):
                self._move(entry.path, place)
            else:
                try:
                    os.rename(entry.path, place)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    os.mkdir(place)
                    self._move(entry.path, place)

    def _link(self, path: str, target: str) -> None:
        temporary = _temporary_beside(path)
        os.symlink(target, temporary)
        try:
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise

    def _leave_out_leading_links(self, target: str) -> None:
        """Remove links that lead out, or into `.git`, by way of others, which their text alone does
        not show.
        """
        top = os.path.join(os.path.realpath(target), "")
        for name in list(self._links):
            path = os.path.join(target, name)
            real = os.path.join(os.path.realpath(path), "")
            if not real.startswith(top) or git_prefix(real[len(top) :]) is not None:
                os.unlink(path)
                del self._links[name]
                self._left_out[name] = None


def _above(name: str) -> Iterator[str]:
    """Give the directories that a name of a tree is below, without the top."""
    while name := name.rpartition("/")[0]:
        yield name


def _folded_path(name: str) -> str:
    return "/".join(folded(part) for part in name.split("/"))


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


def _move_file(source: str, target: str) -> None:
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # Another file system is mounted below the target.
        temporary = _temporary_beside(target)
        shutil.copy2(source, temporary)
        os.replace(temporary, target)


@contextlib.contextmanager
def _replaced(path: str) -> Iterator[IO[bytes]]:
    """Give a fresh file that takes the place of `path` at the end, unless it was not reached."""
    temporary = _temporary_beside(path)
    try:
        with open(temporary, "xb") as target:
            yield target
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _temporary_beside(path: str) -> str:
    """Make up a name in the same directory that nothing has."""
    return os.path.join(os.path.dirname(path), f".fairlead-{secrets.token_hex(8)}.part")


def _inside(name: str) -> str:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name or len(parts) > _DEEPEST:
        raise TreeRefused(name)
    return "/".join(part for part in parts if part not in ("", "."))
