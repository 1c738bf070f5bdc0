"""Runs git for this room: our configuration only, no hooks, no terminal, a limit in time, killed
as a group.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

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
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "safe.directory": "*",
    "submodule.recurse": "false",
    "advice.detachedHead": "false",
}


class GitTimedOut(Exception):
    """A git process took longer than it was allowed to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a git process works."""

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None
    objects: Path | None = None
    alternates: Sequence[Path] = ()
    config: Mapping[str, str] = field(default_factory=dict)

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
        if self.work_tree is not None:
            found["GIT_WORK_TREE"] = str(self.work_tree)
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
        return found


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
    """The git program; `seconds` is the limit of a process where the caller sets no other."""

    def __init__(self, *, program: str, seconds: float) -> None:
        self._program = program
        self._seconds = seconds

    async def run(
        self,
        *arguments: str,
        place: Place,
        given: bytes = b"",
        seconds: float | None = None,
    ) -> Finished:
        """Run a git command to its end; raises GitTimedOut. It never outlives the caller."""
        async with self.started(*arguments, place=place) as process:
            try:
                async with asyncio.timeout(seconds or self._seconds):
                    output, complaint = await process.communicate(given)
            except TimeoutError:
                raise GitTimedOut(arguments[0]) from None
            status = process.returncode
        return Finished(-1 if status is None else status, output, _readable(complaint))

    @asynccontextmanager
    async def started(
        self, *arguments: str, place: Place, complaints: int = asyncio.subprocess.PIPE
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start a git command; when the block ends before it does, it is killed with all its
        children.
        """
        process = await asyncio.create_subprocess_exec(
            self._program,
            *arguments,
            cwd=place.work_tree or place.git_dir,
            env=place.environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,
            umask=0o022,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await _reap(process)


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Wait for a killed process and close its pipes."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        await process.communicate()


def _readable(complaint: bytes) -> str:
    return complaint[-4000:].decode("utf-8", "replace").strip()
