"""Runs git for this room: walled in, with our configuration only, no hooks, no terminal, and
limits.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from workspace_provisioner.git.process import GitProcess
from workspace_provisioner.wall.git_wall import GitWall
from workspace_provisioner.wall.jobs import REFUSED, Job, Layers

# Content of a client or of a sandbox must never make the host run or reach anything: no hooks, no
# file system monitor, no filters (they need configuration that only we write), no protocol.
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.symlinks": "true",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.quotePath": "false",
    "core.packedGitWindowSize": "32m",
    "core.packedGitLimit": "512m",
    "core.bigFileThreshold": "32m",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "safe.directory": "*",
    "submodule.recurse": "false",
    "advice.detachedHead": "false",
}

LITERAL_PATHS = {"GIT_LITERAL_PATHSPECS": "1"}
"""Variables of a place where arguments are paths as they are, without patterns."""

# What only reads: nothing at all is writable for it.
_READING = frozenset(
    (
        "cat-file", "diff-files", "diff-index", "diff-tree", "for-each-ref", "ls-files", "ls-tree",
        "merge-base", "rev-list", "rev-parse", "show-ref", "status", "verify-pack",
    )
)  # fmt: skip


class GitTimedOut(Exception):
    """A git process took longer than it was allowed to, on the clock or on the processor."""


@dataclass(frozen=True, slots=True)
class GitLimits:
    """What a git process may use at most; the processes are those of all git processes together."""

    memory_bytes: int = 6 * 1024**3
    file_bytes: int = 8 * 1024**3
    files: int = 4096
    processes: int = 2048


@dataclass(frozen=True, slots=True)
class OverlayMount:
    """An overlay that a git process sees, and nobody else: mounted before it starts, gone with it.

    `lower` holds the topmost directory first; without `upper` (and `work`) it can only be read.
    """

    lower: tuple[Path, ...]
    target: Path
    upper: Path | None = None
    work: Path | None = None

    def layers(self) -> Layers:
        """Return what the wall has to mount."""
        return {
            "lower": [str(path) for path in self.lower],
            "upper": str(self.upper or ""),
            "work": str(self.work or ""),
            "target": str(self.target),
        }


@dataclass(frozen=True, slots=True)
class Place:
    """Where a git process works, and all that it may reach: it reads and writes the git directory,
    the work tree, the index's directory and the objects; it reads the alternates and `readable`.
    """

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None
    objects: Path | None = None
    alternates: Sequence[Path] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    readable: Sequence[Path] = ()
    overlay: OverlayMount | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    idle: bool = False

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the process."""
        found = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": "/nonexistent",
            "XDG_CONFIG_HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_DIR": str(self.git_dir),
        }
        work_tree = self.overlay.target if self.overlay is not None else self.work_tree
        if work_tree is not None:
            found["GIT_WORK_TREE"] = str(work_tree)
        if self.index is not None:
            found["GIT_INDEX_FILE"] = str(self.index)
        if self.objects is not None:
            found["GIT_OBJECT_DIRECTORY"] = str(self.objects)
        if self.alternates:
            found["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = ":".join(str(p) for p in self.alternates)
        config = {**_CONFIG, **self.config}
        found["GIT_CONFIG_COUNT"] = str(len(config))
        for number, (key, value) in enumerate(config.items()):
            found[f"GIT_CONFIG_KEY_{number}"] = key
            found[f"GIT_CONFIG_VALUE_{number}"] = value
        return found | dict(self.variables)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a git process ended."""

    status: int
    output: bytes
    complaint: str

    @property
    def succeeded(self) -> bool:
        """Say whether the exit status is 0."""
        return self.status == 0


class Git:
    """The git program behind its wall; `seconds` is the limit of a process where the caller sets no
    other.
    """

    def __init__(self, *, wall: GitWall, seconds: float, limits: GitLimits | None = None) -> None:
        self._wall = wall
        self._seconds = seconds
        self._limits = limits or GitLimits()

    @property
    def limits(self) -> GitLimits:
        """What each process may use."""
        return self._limits

    async def run(
        self,
        *arguments: str,
        place: Place,
        given: bytes = b"",
        seconds: float | None = None,
    ) -> Finished:
        """Run a git command to its end; raises GitTimedOut, and OSError when it could not be
        started or was lost. It never outlives the caller.
        """
        seconds = seconds or self._seconds
        job = self._job(arguments, place, seconds)
        async with self._running(job, given=PIPE if given else DEVNULL) as process:
            try:
                async with asyncio.timeout(seconds):
                    output, complaint = await process.communicate(given)
            except TimeoutError:
                raise GitTimedOut(arguments[0]) from None
            status = await process.wait()
        if status == -signal.SIGXCPU:
            raise GitTimedOut(arguments[0])
        readable = complaint[-4000:].decode("utf-8", "replace").strip()
        if status == REFUSED:
            raise OSError(errno.ECHILD, readable or "git was lost with what starts it")
        return Finished(status, output, readable)

    @asynccontextmanager
    async def started(
        self,
        *arguments: str,
        place: Place,
        complaints: int = PIPE,
        lasting: bool = False,
    ) -> AsyncIterator[GitProcess]:
        """Start a git command; when the block ends before it does, it is killed with everything
        below it. A `lasting` one has no limit of processor time.
        """
        job = self._job(arguments, place, None if lasting else self._seconds)
        async with self._running(job, given=PIPE, complaints=complaints) as process:
            yield process

    @asynccontextmanager
    async def _running(
        self, job: Job, *, given: int, complaints: int = PIPE
    ) -> AsyncIterator[GitProcess]:
        process = GitProcess(wall=self._wall)
        await process.open(job, given=given, complaints=complaints)
        try:
            yield process
        finally:
            try:
                await process.kill()
            finally:
                process.close()

    def _job(self, arguments: Sequence[str], place: Place, seconds: float | None) -> Job:
        overlay = place.overlay
        own = [place.git_dir, place.work_tree, place.objects]
        if place.index is not None:
            own.append(place.index.parent)
        if overlay is not None:
            own.append(overlay.target)
        paths = list(dict.fromkeys(str(path) for path in own if path is not None))
        lent = [str(path) for path in (*place.alternates, *place.readable)]
        only_reads = arguments[0] in _READING
        limits = {
            "memory_bytes": self._limits.memory_bytes,
            "file_bytes": self._limits.file_bytes,
            "files": self._limits.files,
            "processes": self._limits.processes,
        }
        if seconds is not None:
            limits["cpu_seconds"] = math.ceil(seconds)
        work_tree = overlay.target if overlay is not None else place.work_tree
        return {
            "arguments": [self._wall.program, *arguments],
            "environment": place.environment(),
            "directory": str(work_tree or place.git_dir),
            "writable": [] if only_reads else paths,
            "readable": [*paths, *lent] if only_reads else lent,
            "overlay": overlay.layers() if overlay is not None else None,
            "limits": limits,
            "idle": place.idle,
        }
