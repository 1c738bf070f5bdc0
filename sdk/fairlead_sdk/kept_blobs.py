"""Contents of changed files, kept as git objects under `<git directory>/fairlead/blobs`, so that a
large file is read and compressed once and not at each launch.

A generation is a git directory with one pack, made under another name and renamed when it is whole.
`known` says which content a file has by all that lstat says of it; a file that was written in the
tick of the clock in which it was read is not noted. A generation that no changed file needs goes an
hour after its last use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fairlead_sdk.changes_memo import file_system_time, is_settled
from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.fast_import import make_git_directory
from fairlead_sdk.git import GitFailed, start_git

_MOST_GENERATIONS = 16
_UNUSED_SECONDS = 3600.0
_PIECE = 1024 * 1024
_MOST_UPLOADED = 10_000
_KNOWN = "known"
_PART = "part-"

ReadProgress = Callable[[int, int], None]
"""Hears how many bytes of changed files were read, and of how many."""


class FileMoved(Exception):
    """A file changed while it was read."""


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

    @property
    def is_regular(self) -> bool:
        """Whether it is a file with content, no link and not gone."""
        return self.mode.startswith("100")

    @property
    def key(self) -> str:
        """The stamp as it is noted."""
        text = repr(self.stamp).encode("ascii")
        return hashlib.blake2b(text, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Blobs:
    """The object of each regular file by its path, and the object directories that hold them."""

    names: dict[bytes, str]
    objects: tuple[Path, ...]


@dataclass(slots=True)
class KeptBlobs:
    """The contents that are kept for one working directory."""

    git_directory: Path
    clock: Callable[[], float] = field(default=time.time)

    @property
    def _base(self) -> Path:
        return self.git_directory / "fairlead" / "blobs"

    def bring(
        self,
        files: Sequence[ChangedFile],
        *,
        top: Path,
        scratch: Path,
        object_format: str,
        on_read: ReadProgress | None = None,
    ) -> Blobs:
        """Give the objects of the regular files, and make those that are not kept yet; where they
        cannot be kept, below `scratch`.

        Raises `FileMoved`, `RepositoryError` (`file_unreadable`) and `GitFailed`.
        """
        now = file_system_time(self._base.parent)
        files = [file for file in files if file.is_regular]
        known = self._known()
        found = {file.key: known[file.key] for file in files if file.key in known}
        lacking = [file for file in files if file.key not in found]
        objects = {self._base / generation / "objects" for _, generation in found.values()}
        names = {file.path: found[file.key][0] for file in files if file.key in found}
        if lacking:
            made, place = self._imported(lacking, top, scratch, object_format, on_read)
            names |= made
            objects.add(place / "objects")
            if place.parent == self._base and now is not None:
                for file in lacking:
                    if is_settled(file.stamp, now):
                        found[file.key] = (made[file.path], place.name)
        if found != known:
            self._write(found)
        self._clear({generation for _, generation in found.values()})
        return Blobs(names, tuple(sorted(objects)))

    def uploaded(self, url: str) -> frozenset[str]:
        """Give the objects that hosts behind the front door at `url` were sent."""
        try:
            return frozenset(self._uploaded(url).read_text("ascii").split())
        except (OSError, UnicodeDecodeError):
            return frozenset()

    def learn_uploaded(self, url: str, names: Sequence[str]) -> None:
        """Note that these were sent."""
        before = self.uploaded(url)
        if before.issuperset(names):
            return
        kept = [*names, *before.difference(names)][:_MOST_UPLOADED]
        self._put(self._uploaded(url), "\n".join(kept))

    def forget_uploaded(self, url: str) -> None:
        """Note that a host lacks some of them."""
        with contextlib.suppress(OSError):
            self._uploaded(url).unlink()

    def _uploaded(self, url: str) -> Path:
        return self._base / f"uploaded-{hashlib.sha256(url.encode()).hexdigest()[:24]}"

    def _known(self) -> dict[str, tuple[str, str]]:
        """Give object and generation of each stamp; nothing when there are too many generations, so
        that they become one.
        """
        try:
            read = json.loads((self._base / _KNOWN).read_text("ascii"))
            known = {key: (str(value[0]), str(value[1])) for key, value in read.items()}
        except (OSError, ValueError, AttributeError, TypeError, LookupError):
            return {}
        generations = {generation for _, generation in known.values()}
        whole = {each for each in generations if (self._base / each / "objects/pack").is_dir()}
        if len(generations) > _MOST_GENERATIONS:
            return {}
        return {key: value for key, value in known.items() if value[1] in whole}

    def _imported(
        self,
        files: Sequence[ChangedFile],
        top: Path,
        scratch: Path,
        object_format: str,
        on_read: ReadProgress | None,
    ) -> tuple[dict[bytes, str], Path]:
        """Import the files and give their objects and the git directory that holds them."""
        part = self._base / f"{_PART}{secrets.token_hex(8)}"
        try:
            part.mkdir(parents=True)
            made = _import(files, part, top, object_format, on_read)
            place = self._base / secrets.token_hex(8)
            part.rename(place)
        except (OSError, GitFailed):  # nowhere to write, or the disk is full
            shutil.rmtree(part, ignore_errors=True)
            place = scratch / "blobs"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            return _import(files, place, top, object_format, on_read), place
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        return made, place

    def _write(self, known: dict[str, tuple[str, str]]) -> None:
        self._put(self._base / _KNOWN, json.dumps(known))

    def _put(self, path: Path, text: str) -> None:
        part = path.with_name(f"{_PART}{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, "ascii")
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()

    def _clear(self, used: set[str]) -> None:
        """Note what is used, and remove what was not used for an hour, also what a process has left
        that was killed.
        """
        with contextlib.suppress(OSError):
            for name in os.listdir(self._base):
                path = self._base / name
                if name in used:
                    os.utime(path)
                elif name == _KNOWN or name.startswith("uploaded-"):
                    continue
                elif self.clock() - path.stat().st_mtime > _UNUSED_SECONDS:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _import(
    files: Sequence[ChangedFile],
    directory: Path,
    top: Path,
    object_format: str,
    on_read: ReadProgress | None,
) -> dict[bytes, str]:
    """Write the contents into one pack, large ones as a stream; see git-fast-import(1)."""
    make_git_directory(directory, (), "0" * 40, object_format)
    marks = directory / "marks"
    process = start_git(
        *("-c", "fastimport.unpackLimit=0", "-c", "core.bigFileThreshold=1m"),
        *("-c", "pack.compression=1", "-c", "core.compression=1"),
        *("fast-import", "--done", "--quiet", f"--export-marks={marks}"),
        environment={"GIT_DIR": os.fspath(directory)},
        stdin=True,
    )
    complaint = b""
    try:
        assert process.stdin is not None  # noqa: S101 - it was asked for
        total, done = sum(file.size for file in files), 0
        for number, file in enumerate(files, 1):
            process.stdin.write(b"blob\nmark :%d\ndata %d\n" % (number, file.size))
            for size in _copied(os.path.join(os.fsencode(top), file.path), file, process.stdin):
                done += size
                if on_read is not None:
                    on_read(done, total)
            process.stdin.write(b"\n")
        process.stdin.write(b"done\n")
        process.stdin.flush()
        _, complaint = process.communicate()
    except BrokenPipeError:
        _, complaint = process.communicate()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode != 0:
        message = complaint.decode("utf-8", "replace")
        raise GitFailed(arguments=("fast-import",), status=process.returncode, message=message)
    found = dict(line[1:].split(" ") for line in marks.read_text("ascii").splitlines())
    return {file.path: found[str(number)] for number, file in enumerate(files, 1)}


def _copied(place: bytes, file: ChangedFile, target: IO[bytes]) -> Iterator[int]:
    """Copy a file and give the size of each piece."""
    with opened(place, file) as source:
        left = file.size
        while left:
            piece = source.read(min(left, _PIECE))
            if not piece:
                raise FileMoved(shown(file.path))
            target.write(piece)
            left -= len(piece)
            yield len(piece)


@contextlib.contextmanager
def opened(place: bytes, file: ChangedFile) -> Iterator[IO[bytes]]:
    """Open a changed file; raises `FileMoved` unless it is the one that was looked at, and still is
    at the end.
    """
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        raise unreadable(file.path) from None
    except OSError:
        raise FileMoved(shown(file.path)) from None
    with open(descriptor, "rb", buffering=0) as source:
        _require(descriptor, file)
        yield source
        _require(descriptor, file)


def _require(descriptor: int, file: ChangedFile) -> None:
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or stamp_of(facts) != file.stamp:
        raise FileMoved(shown(file.path))


def stamp_of(facts: os.stat_result) -> tuple[int, ...]:
    """Give what a change of a file would change."""
    return (
        facts.st_dev,
        facts.st_mode,
        facts.st_size,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
        facts.st_ino,
    )


def unreadable(path: bytes) -> RepositoryError:
    """Make the error for a file that may not be read."""
    return RepositoryError(
        f"{shown(path)} cannot be read.",
        reason="file_unreadable",
        remedy="chmod u+r it, add it to .gitignore, or leave changes at home with --clean.",
    )


def shown(path: bytes) -> str:
    """Give a path as a person may read it."""
    return path.decode("utf-8", "backslashreplace")
