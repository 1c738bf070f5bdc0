"""What every isolation does, the fake included; a new one joins by one line."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from sandbox_worker.errors import IsolationFailed
from sandbox_worker.execution import ProgramEnd
from sandbox_worker.isolation import process as process_module
from sandbox_worker.isolation.process import ProcessIsolation
from sandbox_worker.ports import Enclosure, Isolation, Program, ProgramOrder, Tree
from sandbox_worker.sandbox import Limits
from tests.fakes.isolation import ScriptedIsolation

pytestmark = pytest.mark.asyncio

_SCRIPTS = {
    "print": 'for text; do printf "%s" "$text"; done',
    "fail": 'exit "$1"',
    "wait": "exec sleep 60",
    "cat": "exec cat",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """An isolation under test, and the words of the fake as its own commands."""

    isolation: Isolation
    real: bool
    root: Path

    def arguments(self, words: tuple[str, ...]) -> tuple[str, ...]:
        if not self.real or words[0] not in _SCRIPTS:
            return words
        return ("sh", "-c", _SCRIPTS[words[0]], *words)

    async def enclosure(self) -> Enclosure:
        return await self.isolation.enclose(random_id("sbx"), Limits(open_files=1024))

    async def start(
        self, enclosure: Enclosure, *words: str, stdin: bool = False, directory: str = ""
    ) -> Program:
        return await enclosure.start(
            ProgramOrder(
                execution_id=random_id("exe"),
                arguments=self.arguments(words),
                environment={},
                directory=directory,
                stdin=stdin,
            )
        )


@pytest_asyncio.fixture(params=["process", "fake"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param == "fake":
        yield Subject(isolation=ScriptedIsolation(home=tmp_path), real=False, root=tmp_path)
        return
    with ThreadPoolExecutor(2) as executor:
        async with ProcessIsolation(
            private_root=tmp_path / "private", path="/usr/bin:/bin", executor=executor
        ) as process:
            yield Subject(isolation=process, real=True, root=tmp_path)


async def everything(program: Program) -> bytes:
    content = b""
    while pieces := await program.read():
        content += b"".join(piece.content for piece in pieces)
    program.close()
    return content


async def test_a_spawner_that_cannot_be_started_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_CREATE_SECONDS", 1.0)
    with ThreadPoolExecutor(2) as executor:
        async with ProcessIsolation(
            private_root=tmp_path / "private", path="/usr/bin:/bin", executor=executor
        ) as isolation:
            start = subprocess.Popen

            def refuse(*arguments: object, **options: object) -> NoReturn:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

            monkeypatch.setattr(subprocess, "Popen", refuse)
            os.kill(isolation.spawner_pid, signal.SIGKILL)
            await asyncio.sleep(0.5)
            async with asyncio.timeout(5):
                with pytest.raises(IsolationFailed):
                    await isolation.enclose(random_id("sbx"), Limits())
            monkeypatch.setattr(subprocess, "Popen", start)
            await asyncio.sleep(0.5)
            enclosure = await isolation.enclose(random_id("sbx"), Limits())
            await enclosure.destroy()


async def test_it_runs_a_program(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    program = await subject.start(enclosure, "print", "a", "bc")
    assert await everything(program) == b"abc"
    assert program.end == ProgramEnd(code=0)
    failing = await subject.start(enclosure, "fail", "7")
    assert await everything(failing) == b""
    assert failing.end == ProgramEnd(code=7)
    await enclosure.destroy()


async def test_it_feeds_a_program(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    program = await subject.start(enclosure, "cat", stdin=True)
    content = b"some bytes \x00\xff"
    while content:
        content = content[await program.write(content) :]
    program.close_stdin()
    program.close_stdin()
    assert await everything(program) == b"some bytes \x00\xff"
    with pytest.raises(FairleadError) as caught:
        await program.write(b"x")
    assert caught.value.reason == "stdin_closed"
    await enclosure.destroy()


async def test_it_signals_a_program(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    for send in ("signal", "expire"):
        program = await subject.start(enclosure, "wait")
        assert program.end is None
        await getattr(program, send)(signal.SIGTERM)
        assert await everything(program) == b""
        assert program.end == ProgramEnd(signal=signal.SIGTERM)
        await program.signal(signal.SIGTERM)
    await enclosure.destroy()


@pytest.mark.parametrize(
    ("words", "directory", "reason"),
    [
        (("missing",), "", "command_not_found"),
        (("plain",), "", "command_not_executable"),
        (("print", "x"), "../..", "directory_outside"),
        (("print", "x"), "nowhere", "directory_not_found"),
    ],
)
async def test_it_says_why_a_program_does_not_start(
    subject: Subject, words: tuple[str, ...], directory: str, reason: str
) -> None:
    enclosure = await subject.enclosure()
    workspace = subject.root / "workspace"
    workspace.mkdir()
    (workspace / "plain").write_text("no program")
    await enclosure.bind(Tree(workspace))
    command = ("./plain",) if subject.real and words == ("plain",) else words
    with pytest.raises(FairleadError) as caught:
        await subject.start(enclosure, *command, directory=directory)
    assert caught.value.reason == reason
    await enclosure.destroy()


async def test_destroying_ends_everything(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    programs = [await subject.start(enclosure, "wait") for _ in range(3)]
    await enclosure.destroy()
    await enclosure.gone()
    for program in programs:
        assert await everything(program) == b""
        assert program.end == ProgramEnd()
    await enclosure.destroy()
    for late in (subject.start(enclosure, "wait"), enclosure.connect(80)):
        with pytest.raises(FairleadError) as caught:
            await late
        assert caught.value.reason == "sandbox_lost"


async def test_files_that_the_disk_kept_go_later(tmp_path: Path) -> None:
    root = tmp_path / "private"
    with ThreadPoolExecutor(2) as executor:
        async with ProcessIsolation(
            private_root=root, path="/usr/bin:/bin", executor=executor
        ) as isolation:
            sandbox_id, other_id = random_id("sbx"), random_id("sbx")
            enclosure = await isolation.enclose(sandbox_id, Limits())
            away = root.rename(tmp_path / "away")
            root.write_bytes(b"")
            await enclosure.destroy()
            with pytest.raises(IsolationFailed):
                await isolation.enclose(other_id, Limits())
            await isolation.tidy()
            root.unlink()
            away.rename(root)
            with pytest.raises(IsolationFailed):
                await isolation.enclose(sandbox_id, Limits())
            await isolation.tidy()
            assert list(root.iterdir()) == []
            await (await isolation.enclose(sandbox_id, Limits())).destroy()


async def test_directories_that_are_half_made_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "private"
    make = Path.mkdir

    def mkdir(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path.name == "tmp":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(path, mode, parents, exist_ok)

    with ThreadPoolExecutor(2) as executor:
        async with ProcessIsolation(
            private_root=root, path="/usr/bin:/bin", executor=executor
        ) as isolation:
            sandbox_id = random_id("sbx")
            with monkeypatch.context() as full:
                full.setattr(Path, "mkdir", mkdir)
                with pytest.raises(IsolationFailed):
                    await isolation.enclose(sandbox_id, Limits())
            assert list(root.iterdir()) == []
            await (await isolation.enclose(sandbox_id, Limits())).destroy()


async def test_it_says_when_nothing_listens(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    assert await enclosure.connect(9) is None
    await enclosure.destroy()


async def test_it_reports_the_limits_that_it_holds(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    assert enclosure.limits == Limits(open_files=1024)
    await enclosure.destroy()
