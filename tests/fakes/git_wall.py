"""Programs in the place of git, behind its wall, and a look at which of them run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.eventually import eventually
from workspace_provisioner.git.command import Git, GitLimits
from workspace_provisioner.wall.git_wall import GitWall


def instead_of_git(tmp_path: Path, script: str, mode: int = 0o755) -> str:
    """Write a shell script that is walled in as git would be."""
    program = tmp_path / "instead/bin/git"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(mode)
    return str(program)


@asynccontextmanager
async def shell(tmp_path: Path, script: str, **limits: int) -> AsyncIterator[Git]:
    """Open a wall in which the script runs whatever git is told to do."""
    async with GitWall(program=instead_of_git(tmp_path, script), directory=tmp_path) as wall:
        yield Git(wall=wall, seconds=20, limits=GitLimits(**limits))


def running(argument: str) -> list[int]:
    """Return the processes of this machine that have an argument."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                arguments = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if argument.encode() in arguments:
                found.append(int(path.name))
    return found


async def count(argument: str, wanted: int) -> None:
    """Wait until so many processes have an argument."""

    async def look() -> list[int]:
        return running(argument)

    await eventually(look, lambda found: len(found) == wanted)
