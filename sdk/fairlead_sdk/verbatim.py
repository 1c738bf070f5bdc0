"""Files that git takes for unchanged although they hold other bytes than their objects.

Git converts contents on the way into a repository and out of it: ends of lines, `$Id$`, encodings,
filters (Git LFS among them), by gitattributes(5) and `core.autocrlf`. What a launch brings is what
lies in the working directory, so these files travel as if they were changed.

They are found by hashing the files to which a conversion may apply. What was hashed is remembered
under `<git directory>/fairlead` by all that lstat says; a file that was written in the same tick of
the clock in which it was hashed is hashed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead_sdk.changes_memo import file_system_time
from fairlead_sdk.git import GitFailed, run_git

_HOST_CONVERTS = re.compile(rb"\b(eol|crlf|ident|working-tree-encoding)\b")
"""What a host applies when it checks a commit out; it knows neither filters nor `autocrlf`."""
_CONVERTS = re.compile(rb"\b(text|eol|crlf|ident|filter|working-tree-encoding)\b")
_CONFIGURES = re.compile(rb"autocrlf|attributesfile|include", re.IGNORECASE)
# The end of the name in an index, also where version 4 shares its beginning with the name before.
_INDEXED = b"tributes\0"
_ALL_UNSET = "attr:!text !crlf !eol !ident !filter !working-tree-encoding"
_MOST_ATTRIBUTES_BYTES = 1024 * 1024
_PIECE = 1024 * 1024
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Verbatim:
    """`paths` are the files that hold other bytes than their objects; `host_converts` says that a
    host which only knew the commit would change files on the way out.
    """

    paths: tuple[bytes, ...] = ()
    host_converts: bool = False


def find_verbatim(
    *,
    top: Path,
    git_directory: Path,
    common_directory: Path,
    object_format: str,
    listed: frozenset[bytes],
) -> Verbatim:
    """Find them among the tracked files that are not `listed` as changed.

    Raises `GitFailed`.
    """
    tracked = _tracked_attributes(git_directory, top)
    changed = {path for path in listed if _is_attributes(path)}
    own = {path: _text(os.path.join(os.fsencode(top), path)) for path in tracked | changed}
    host_converts = bool(tracked & listed) or any(
        _HOST_CONVERTS.search(own[path]) for path in tracked
    )
    convert_all, further = _configured(top, git_directory, common_directory)
    texts = [*own.values(), _text(os.path.join(os.fsencode(top), b".gitattributes"))]
    texts += [_text(path) for path in further]
    if not convert_all and not any(_CONVERTS.search(text) for text in texts):
        return Verbatim(host_converts=host_converts)
    pathspec = () if convert_all else ("--", ".", f":(exclude,{_ALL_UNSET})")
    found = run_git("ls-files", "-s", "-v", "-z", *pathspec, directory=top)
    entries = [(path, oid) for path, oid in _entries(found) if path not in listed]
    memo = _Memo(git_directory)
    return Verbatim(tuple(_differing(entries, top, object_format, memo)), host_converts)


def _differing(
    entries: Iterable[tuple[bytes, bytes]], top: Path, object_format: str, memo: _Memo
) -> Iterator[bytes]:
    root = os.fsencode(top)
    for path, oid in entries:
        place = os.path.join(root, path)
        try:
            facts = os.lstat(place)
            if not stat.S_ISREG(facts.st_mode):
                continue
            differs = memo.find(path, oid, facts)
            if differs is None:
                differs = _oid_of(place, object_format).encode("ascii") != oid
                memo.keep(path, oid, facts, differs=differs)
        except OSError:
            continue  # git listed it as unchanged: it is going just now
        if differs:
            yield path
    memo.write()


def _entries(listing: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Give path and object of the regular files that git looks at (git-ls-files(1), -s -v)."""
    for line in listing.split(b"\0"):
        fields, _, path = line.partition(b"\t")
        tag, mode, oid, stage = fields.split(b" ") if path else (b"", b"", b"", b"")
        if tag == b"H" and mode[:3] == b"100" and stage == b"0":
            yield path, oid


def _oid_of(place: bytes, object_format: str) -> str:
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        hashed = hashlib.new(object_format, b"blob %d\0" % size, usedforsecurity=False)
        while piece := file.read(_PIECE):
            hashed.update(piece)
    return hashed.hexdigest()


def _is_attributes(path: bytes) -> bool:
    return path.rpartition(b"/")[2] == b".gitattributes"


def _tracked_attributes(git_directory: Path, top: Path) -> frozenset[bytes]:
    """Give the paths of tracked attributes; git is asked only where the index may name one."""
    try:
        index = (git_directory / "index").read_bytes()
        is_split = any(name.startswith("sharedindex.") for name in os.listdir(git_directory))
    except OSError:
        return frozenset()
    if _INDEXED not in index and not is_split:
        return frozenset()
    found = run_git("ls-files", "-z", "--", ":(glob)**/.gitattributes", directory=top)
    return frozenset(found.split(b"\0")[:-1])


def _configured(
    top: Path, git_directory: Path, common_directory: Path
) -> tuple[bool, list[str | Path]]:
    """Say whether `core.autocrlf` is on, and which files beyond the repository's have attributes.

    Git is asked only where a configuration may say something about it.
    """
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    system = ("/etc", "/usr/local/etc", "/opt/homebrew/etc")
    files: list[str | Path] = [common_directory / "config", git_directory / "config.worktree"]
    files += [os.path.expanduser("~/.gitconfig"), f"{home}/git/config"]
    files += [f"{place}/gitconfig" for place in system]
    files += filter(None, map(os.environ.get, ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")))
    attributes: list[str | Path] = [common_directory / "info/attributes", f"{home}/git/attributes"]
    attributes += [f"{place}/gitattributes" for place in system]
    if not any(_CONFIGURES.search(_text(path)) for path in files):
        return False, attributes
    answer = _config(top, "core.autocrlf").lower()
    named = _config(top, "--type=path", "core.attributesFile")
    return answer not in ("", "false", "no", "off", "0"), [*attributes, *([named] if named else [])]


def _config(top: Path, *arguments: str) -> str:
    try:
        return os.fsdecode(run_git("config", *arguments, directory=top)).rstrip("\n")
    except GitFailed:
        return ""


def _text(path: bytes | str | Path) -> bytes:
    """Give the content of a file of configuration; nothing when there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_ATTRIBUTES_BYTES)
    except OSError:
        return b""


class _Memo:
    """Digests of path, object and lstat, each with what was found; one file for a repository."""

    def __init__(self, git_directory: Path) -> None:
        self._path = git_directory / "fairlead" / "verbatim"
        self._known: dict[bytes, bool] = {}
        self._seen: dict[bytes, bool] = {}
        now = file_system_time(self._path.parent)
        self._now = now.st_mtime_ns if now is not None else 0
        with contextlib.suppress(OSError):
            content = self._path.read_bytes()
            step = _DIGEST_BYTES + 1
            for start in range(0, len(content) - step + 1, step):
                digest = content[start : start + _DIGEST_BYTES]
                self._known[digest] = content[start + _DIGEST_BYTES] == 1

    def find(self, path: bytes, oid: bytes, facts: os.stat_result) -> bool | None:
        """Say what was found of a file as it is; None when it was not looked at."""
        digest = _digest(path, oid, facts)
        found = self._known.get(digest)
        if found is not None:
            self._seen[digest] = found
        return found

    def keep(self, path: bytes, oid: bytes, facts: os.stat_result, *, differs: bool) -> None:
        """Note what was found, if a later change of the file would show."""
        if max(facts.st_mtime_ns, facts.st_ctime_ns) < self._now:
            self._seen[_digest(path, oid, facts)] = differs

    def write(self) -> None:
        """Put on the disk what was seen this time, unless it is there."""
        if self._seen == self._known:
            return
        part = self._path.with_name(f"part-{secrets.token_hex(4)}")
        content = b"".join(digest + bytes([found]) for digest, found in self._seen.items())
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
            part.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()


def _digest(path: bytes, oid: bytes, facts: os.stat_result) -> bytes:
    stamp = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    text = b"%s\0%s\0%s" % (repr(stamp).encode("ascii"), oid, path)
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
