"""Processes behind git's wall: what is left of them, and what the loss of one does to others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chassis.packets import LARGEST, PacketTooLong
from tests.fakes.git_wall import count, instead_of_git, running, shell
from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.wall.git_wall import GitWall

pytestmark = pytest.mark.asyncio

_SERVICES = Path(__file__).resolve().parents[3] / "services"
_AS_SERVICE = """
import asyncio, sys
from pathlib import Path
from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.wall.git_wall import GitWall

async def main():
    async with GitWall(program=sys.argv[1], directory=Path(sys.argv[2])) as wall:
        git = Git(wall=wall, seconds=1000)
        async with git.started("gc", place=Place(Path(sys.argv[2]))) as process:
            print((await process.stdout.readline()).decode(), flush=True)
            await process.wait()

asyncio.run(main())
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "place").mkdir()
    return Place(tmp_path / "place")


@pytest.fixture
def mark() -> str:
    """An argument of sleep(1) by which this test's processes are known."""
    return f"71717.{int.from_bytes(os.urandom(6), 'big')}"


async def test_nothing_is_left_of_a_process_that_has_ended(
    tmp_path: Path, place: Place, mark: str
) -> None:
    # Its child holds the pipes open and has left for a session of its own, if it could.
    script = f"sleep {mark} & setsid sleep {mark} & echo begun"
    async with shell(tmp_path, script) as git:
        assert (await git.run("gc", place=place)).output == b"begun\n"
        assert running(mark) == []


async def test_nothing_is_left_of_a_process_whose_caller_left(
    tmp_path: Path, place: Place, mark: str
) -> None:
    async with shell(tmp_path, f"sleep {mark} & echo begun; sleep {mark}") as git:
        async with git.started("gc", place=place) as process:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"begun\n"
            await count(mark, 2)
        assert running(mark) == []


async def test_nothing_is_left_when_the_service_is_killed(
    tmp_path: Path, place: Place, mark: str
) -> None:
    program = instead_of_git(tmp_path, f"sleep {mark} & echo begun; sleep {mark}")
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _AS_SERVICE, program, str(place.git_dir)),
        env={"PYTHONPATH": str(_SERVICES)},
        stdout=subprocess.PIPE,
    )
    assert service.stdout is not None
    try:
        assert await service.stdout.readline() == b"begun\n"
        await count(mark, 2)
    finally:
        service.kill()
        await service.wait()
    await count(mark, 0)
    await count(program, 0)


async def test_a_killed_spawner_takes_its_processes_along_and_is_started_again(
    tmp_path: Path, place: Place, mark: str
) -> None:
    async with GitWall(
        program=instead_of_git(tmp_path, f"echo begun; sleep {mark}"), directory=tmp_path
    ) as wall:
        git = Git(wall=wall, seconds=20)
        for _ in range(2):
            async with git.started("gc", place=place) as process:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"begun\n"
                os.kill(wall.pid, signal.SIGKILL)
                with pytest.raises(OSError, match="lost"):
                    await process.outcome()
            await count(mark, 0)


async def test_a_command_line_that_is_too_long_is_refused_and_nobody_else_is_hit(
    tmp_path: Path, place: Place, mark: str
) -> None:
    script = f'test "$1" = rev-parse && exit; echo begun; read -r _; exit 7 {mark}'
    async with (
        GitWall(program=instead_of_git(tmp_path, script), directory=tmp_path) as wall,
    ):
        git = Git(wall=wall, seconds=20)
        before = wall.pid
        async with git.started("gc", place=place) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert await process.stdout.readline() == b"begun\n"
            for size in (LARGEST, 8 * 1024**2):
                with pytest.raises(PacketTooLong):
                    await git.run("rev-parse", *["x" * 1000] * (size // 1000), place=place)
            assert (await git.run("rev-parse", *["x" * 1000] * 100, place=place)).succeeded
            process.stdin.write(b"\n")
            assert await process.outcome() == 7
        assert wall.pid == before


async def test_a_program_that_cannot_be_executed_is_an_error(tmp_path: Path, place: Place) -> None:
    program = instead_of_git(tmp_path, "", 0o644)
    async with GitWall(program=program, directory=tmp_path) as wall:
        git = Git(wall=wall, seconds=20)
        with pytest.raises(OSError, match="Permission denied"):
            await git.run("gc", place=place)
