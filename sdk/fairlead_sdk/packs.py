"""Packs of this repository's objects for a host: whole, the wanted files alone, or new commits."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import threading
from collections.abc import AsyncGenerator, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from fairlead_limits.table import (
    COMMITS_BYTES,
    REF_BYTES,
    REF_PART_BYTES,
    TIPS,
    UPLOAD_HEAD_BYTES,
)
from fairlead_sdk.errors import RepositoryError
from fairlead_sdk.git import PACK, GitFailed, ask_for_pack, finish_git, run_git, start_git
from fairlead_sdk.repository import Repository, Tip

MOST_TIPS_BYTES = UPLOAD_HEAD_BYTES - 48 * 1024
"""What the tips take as JSON at most: with what is around them they fit the line of an upload."""
_CHUNK_BYTES = 256 * 1024
_HEADER_BYTES = 12
_SEARCHED = 1024
_WRITTEN = re.compile(rb"Writing objects: +(\d+)%")
_THIN = ("pack-objects", "--revs", "--thin", "--stdout", "--delta-base-offset")
_WHOLE = ("pack-objects", "--revs", "--stdout", "--delta-base-offset")
# The files of one commit, 18 MB of mux: 0.6 s like this, 1.7 s when looking for differences.
_AT_ONCE = (*_WHOLE, "--window=0", "--compression=1")


class Part(Enum):
    """How much of the repository a pack holds."""

    WHOLE = auto()
    """The wanted commit, the tips, the changes, and all that they reach."""
    FILES = auto()
    """The wanted commit without its ancestors, and the changes."""
    HISTORY = auto()
    """What WHOLE holds and FILES does not."""


class PackMaking:
    """A pack that is being made: how far it is, and a way to give it up from another thread.

    `written` is in percent, absent until git has begun to write.
    """

    def __init__(self) -> None:
        self.written: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """End it; whoever reads it meets its end."""
        self._is_stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def follow(self, process: subprocess.Popen[bytes]) -> None:
        """Note the process that makes it."""
        self._process = process
        if self._is_stopped:
            process.kill()


@dataclass(frozen=True, slots=True)
class Commits:
    """New commits that travel with the request, as a pack that is thin against `against`."""

    against: tuple[str, ...]
    pack: bytes


def tips_of(repository: Repository) -> tuple[Tip, ...]:
    """Give the local heads, the branch here first, and the tags that name a commit: as many as an
    upload may name, without those whose names no host takes.
    """
    tags = [tag for tag, kind in listed_tags(repository) if kind == "commit"]
    here = f"refs/heads/{repository.branch}"
    heads = sorted(repository.tips, key=lambda tip: tip.ref != here)
    return tuple(_carried([*heads, *tags]))


def listed_tags(repository: Repository) -> list[tuple[Tip, str]]:
    """Give every tag, the newest first, and what kind of object it leads to."""
    listed = run_git(
        "for-each-ref",
        "--sort=-creatordate",
        "--format=%(objectname) %(objecttype) %(*objecttype) %(refname)",
        "refs/tags",
        environment=_environment(repository),
    )
    found = []
    for line in os.fsdecode(listed).split("\n")[:-1]:
        name, kind, inner, ref = line.split(" ", 3)
        found.append((Tip(ref=ref, commit=name), inner or kind))
    return found


def _carried(tips: Sequence[Tip]) -> Iterator[Tip]:
    """Give the first of `tips` that an upload's line holds."""
    size = count = 0
    for tip in tips:
        if is_refused(tip.ref):
            continue
        size += len(json.dumps({"ref": tip.ref, "commit": tip.commit}))
        count += 1
        if count > TIPS.count or size > MOST_TIPS_BYTES:
            return
        yield tip


def is_refused(ref: str) -> bool:
    """Say whether a name is too long for a host, or was not UTF-8."""
    try:
        name = ref.encode()
    except UnicodeEncodeError:
        return True
    parts = name.split(b"/")
    return (
        "\N{REPLACEMENT CHARACTER}" in ref
        or len(name) > REF_BYTES
        or max(map(len, parts)) > REF_PART_BYTES
    )


def stream_pack(
    repository: Repository,
    *,
    tips: Sequence[Tip] = (),
    host_tips: Sequence[str] = (),
    part: Part = Part.WHOLE,
    is_thin: bool = True,
    making: PackMaking | None = None,
    sent: Collection[str] = (),
) -> Generator[bytes, None, None]:
    """Give a part of the repository with `tips`, without what `host_tips` reach, nor the contents
    of changed files that were `sent` before.

    Tips of the host that this repository does not have are left out of the bargain. Nothing is
    given when nothing is lacking. Raises `RepositoryError`, `client_objects_missing`, when the
    repository itself lacks objects.
    """
    environment = _environment(repository)
    wanted = [repository.commit]
    if part is not Part.FILES:
        wanted += [tip.commit for tip in tips]
    changes, left_out = repository.changes, list[str]()
    settings: tuple[str, ...] = ()
    if changes is not None and changes.make_objects is not None and part is not Part.HISTORY:
        made = changes.make_objects()
        environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = os.fspath(made.objects)
        wanted.append(made.tip)
        left_out = [f"^{name}" for name in made.blobs if name in sent]
        settings = ("-c", "core.bigFileThreshold=8m")  # looking for differences takes minutes
    lines = [*dict.fromkeys(wanted), *left_out]
    match part:
        case Part.WHOLE:
            lines += [f"^{tip}" for tip in _present(host_tips, environment)]
        case Part.FILES:
            lines.insert(0, f"--shallow {repository.commit}")
        case Part.HISTORY:
            lines.append(f"^{repository.commit}^{{tree}}")
    arguments = _AT_ONCE if part is Part.FILES else _THIN if is_thin else _WHOLE
    loud = "--all-progress" if making is not None else "-q"
    process = start_git(*settings, *arguments, loud, environment=environment, stdin=True)
    if making is not None:
        making.follow(process)
    complaints = _Complaints(process, making)
    try:
        request = "".join(f"{line}\n" for line in lines).encode("ascii")
        yield from _chunks(process, request, complaints)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        complaints.join()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


async def each_chunk(
    pack: Generator[bytes, None, None], making: PackMaking
) -> AsyncGenerator[bytes, None]:
    """Give what `stream_pack` gives, read in a thread; leaving early ends git first."""
    reading = None
    try:
        while True:
            reading = asyncio.ensure_future(asyncio.to_thread(next, pack, b""))
            chunk = await asyncio.shield(reading)
            if not chunk:
                return
            yield chunk
    finally:
        making.stop()  # else a read that is under way could last
        if reading is not None:
            await asyncio.gather(reading, return_exceptions=True)
        await asyncio.to_thread(pack.close)


def pack_commits(
    repository: Repository, known: Sequence[str], *, tags: Sequence[Tip] = ()
) -> Commits | None:
    """Pack the commits since the nearest of the `known` ones and what `tags` reach beyond it, if
    that is at most 256 KiB.

    `None` when there is nothing to send, or too much. Raises `RepositoryError`,
    `client_objects_missing`.
    """
    if not known or (repository.commit in known and not tags):
        return None
    environment = _environment(repository)
    count = f"--max-count={_SEARCHED}"
    try:
        listed = run_git("rev-list", count, repository.commit, environment=environment)
    except GitFailed as failure:
        raise _objects_missing(failure.message) from None
    there = set(known)
    near = next((name for name in listed.decode("ascii").split() if name in there), "")
    if not near:
        return None
    process = start_git(*PACK, environment=environment, stdin=True)
    try:
        wanted = dict.fromkeys([repository.commit, *(tag.commit for tag in tags)])
        request = "".join(f"{name}\n" for name in [*wanted, f"^{near}"]).encode("ascii")
        pack = ask_for_pack(process, request).read(COMMITS_BYTES.count + 1)
        if len(pack) > COMMITS_BYTES.count:
            process.kill()
            return None
    finally:
        stderr = process.communicate()[1]
    if process.returncode != 0:
        raise _objects_missing(stderr.decode("utf-8", "replace"))
    return Commits((near,), pack)


class _Complaints:
    """Reads what git says while its pack is read: how far it is, and what went wrong."""

    def __init__(self, process: subprocess.Popen[bytes], making: PackMaking | None) -> None:
        self._pipe = process.stderr
        self._making = making
        self._lines: list[bytes] = []
        self._thread = threading.Thread(target=self._read, name="git-complaints", daemon=True)
        self._thread.start()

    def join(self) -> str:
        """Wait for the end and give the last line that is not progress."""
        self._thread.join()
        return self._lines[-1].decode("utf-8", "replace") if self._lines else ""

    def _read(self) -> None:
        rest = b""
        while self._pipe is not None and (content := os.read(self._pipe.fileno(), 65536)):
            *lines, rest = (rest + content).replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                self._take(line)
        self._take(rest)

    def _take(self, line: bytes) -> None:
        found = _WRITTEN.search(line)
        if found is not None and self._making is not None:
            self._making.written = int(found.group(1))
        elif line.startswith((b"fatal:", b"error:")):
            self._lines.append(line.strip())


def _chunks(
    process: subprocess.Popen[bytes], request: bytes, complaints: _Complaints
) -> Iterator[bytes]:
    source = ask_for_pack(process, request).fileno()
    first = b""
    while len(first) < _HEADER_BYTES and (chunk := os.read(source, _CHUNK_BYTES)):
        first += chunk
    is_empty = int.from_bytes(first[8:12], "big") == 0  # gitformat-pack(5): number of objects
    if not is_empty:
        yield first
    while chunk := os.read(source, _CHUNK_BYTES):
        if not is_empty:
            yield chunk
    if process.wait() != 0:
        raise _objects_missing(complaints.join())


def _objects_missing(sentence: str) -> RepositoryError:
    lines = sentence.strip().splitlines()
    return RepositoryError(
        f"git cannot pack the repository: {lines[-1] if lines else 'no reason given'}",
        reason="client_objects_missing",
        remedy="git fsck, then fetch what is missing from the repository's remote"
        " (git fetch --refetch, where git is new enough).",
    )


def _environment(repository: Repository) -> dict[str, str]:
    return {"GIT_DIR": os.fspath(repository.git_directory)}


def _present(tips: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Give those of the host's tips that are commits in this repository."""
    if not tips:
        return []
    process = start_git("cat-file", "--batch-check", environment=environment, stdin=True)
    answer = finish_git(process, "".join(f"{tip}^{{commit}}\n" for tip in tips).encode())
    lines = (line.split() for line in answer.stdout.decode("utf-8", "replace").splitlines())
    return [words[0] for words in lines if len(words) == 3 and words[1] == "commit"]
