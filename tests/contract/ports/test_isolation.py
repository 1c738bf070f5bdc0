"""What every isolation does, the fake included; a new one joins by one line."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from fairlead_walls.survey import Survey
from sandbox_worker.errors import IsolationFailed, SandboxLost
from sandbox_worker.execution import TerminalSize
from sandbox_worker.file import FileKind
from sandbox_worker.file_line import FileLine, read_stat
from sandbox_worker.isolation import process as process_module
from sandbox_worker.isolation.descendants import below
from sandbox_worker.isolation.process import ProcessIsolation
from sandbox_worker.ports import Enclosure, Isolation, Program, ProgramOrder, Tree
from sandbox_worker.sandbox import HOST_NETWORK, Fence, Hold, Limits, NetworkMode, NetworkPolicy
from tests.fakes.isolation import EveryTenant, ScriptedIsolation, no_cgroups
from tests.fakes.walled import open_walled

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
    network: NetworkPolicy = HOST_NETWORK

    def arguments(self, words: tuple[str, ...]) -> tuple[str, ...]:
        if not self.real or words[0] not in _SCRIPTS:
            return words
        return ("sh", "-c", _SCRIPTS[words[0]], *words)

    async def enclosure(self) -> Enclosure:
        return await self.isolation.enclose(
            random_id("sbx"), Limits(open_files=1024), self.network, tenant="t"
        )

    async def start(
        self,
        enclosure: Enclosure,
        *words: str,
        stdin: bool = False,
        directory: str = "",
        terminal: TerminalSize | None = None,
    ) -> Program:
        return await enclosure.start(
            ProgramOrder(
                execution_id=random_id("exe"),
                arguments=self.arguments(words),
                environment={},
                directory=directory,
                stdin=stdin,
                terminal=terminal,
            )
        )


@pytest_asyncio.fixture(params=["process", "walled", "pooled", "fake"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    if request.param == "fake":
        yield Subject(isolation=ScriptedIsolation(home=tmp_path), real=False, root=tmp_path)
        return
    if request.param != "process":
        found: Survey = request.getfixturevalue("walls")
        none = NetworkPolicy(NetworkMode.NONE)
        async with open_walled(found, pool_size=2 * (request.param == "pooled")) as walled:
            yield Subject(isolation=walled, real=True, root=tmp_path, network=none)
        return
    with ThreadPoolExecutor(2) as executor:
        async with ProcessIsolation(
            private_root=tmp_path / "private",
            path="/usr/bin:/bin",
            cgroups=no_cgroups(executor),
            executor=executor,
            sole_tenant=EveryTenant(),
        ) as process:
            yield Subject(isolation=process, real=True, root=tmp_path)


async def everything(program: Program) -> bytes:
    content = b""
    while pieces := await program.read():
        content += b"".join(piece.content for piece in pieces)
    program.close()
    return content


def ended(program: Program) -> tuple[int | None, int | None]:
    assert program.end is not None
    return program.end.code, program.end.signal


async def test_who_held_it_before_cannot_hold_it_any_more(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    for fence in (Fence(2, 5), Fence(2, 5), Fence(3, 1)):
        await enclosure.hold(fence, 60)
    for fence in (Fence(3, 0), Fence(2, 9)):
        with pytest.raises(FairleadError) as caught:
            await enclosure.hold(fence, 0)
        assert caught.value.reason == "fence_stale"
    program = await subject.start(enclosure, "print", "still held")
    assert await everything(program) == b"still held"
    if subject.real:
        await enclosure.hold(Fence(3, 2), 0)
        await enclosure.gone()
        with pytest.raises(SandboxLost):
            await enclosure.hold(Fence(3, 3), 60)
    await enclosure.destroy()


async def test_it_is_held_before_anybody_has_it(subject: Subject) -> None:
    def made(hold: Hold) -> Coroutine[None, None, Enclosure]:
        return subject.isolation.enclose(
            random_id("sbx"), Limits(), subject.network, tenant="t", hold=hold
        )

    enclosure = await made(Hold(Fence(3, 1), 60))
    with pytest.raises(FairleadError) as caught:
        await enclosure.hold(Fence(2, 9), 60)
    assert caught.value.reason == "fence_stale"
    program = await subject.start(enclosure, "print", "held")
    assert await everything(program) == b"held"
    await enclosure.destroy()
    if subject.real:
        over = await made(Hold(Fence(3, 2), 0))
        await over.gone()
        await over.destroy()


async def test_a_spawner_that_cannot_be_started_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_CREATE_SECONDS", 1.0)
    with ThreadPoolExecutor(2) as executor:
        async with ProcessIsolation(
            private_root=tmp_path / "private",
            path="/usr/bin:/bin",
            cgroups=no_cgroups(executor),
            executor=executor,
            sole_tenant=EveryTenant(),
        ) as isolation:
            start = subprocess.Popen

            def refuse(*arguments: object, **options: object) -> NoReturn:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

            monkeypatch.setattr(subprocess, "Popen", refuse)
            os.kill(isolation.spawner_pid, signal.SIGKILL)
            await asyncio.sleep(0.5)
            async with asyncio.timeout(60):
                with pytest.raises(IsolationFailed):
                    await isolation.enclose(random_id("sbx"), Limits(), HOST_NETWORK, tenant="t")
            monkeypatch.setattr(subprocess, "Popen", start)
            monkeypatch.setattr(process_module, "_CREATE_SECONDS", 60.0)
            await asyncio.sleep(0.5)
            enclosure = await isolation.enclose(
                random_id("sbx"), Limits(), HOST_NETWORK, tenant="t"
            )
            await enclosure.destroy()


async def test_it_runs_a_program(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    program = await subject.start(enclosure, "print", "a", "bc")
    assert await everything(program) == b"abc"
    assert ended(program) == (0, None)
    failing = await subject.start(enclosure, "fail", "7")
    assert await everything(failing) == b""
    assert ended(failing) == (7, None)
    if subject.real:
        usage = program.end.usage if program.end else None
        assert usage is not None
        assert 0 < usage.cpu_seconds < 5
        assert 1 << 20 < usage.peak_memory_bytes < 1 << 30
        assert enclosure.first_process in below(os.getpid())
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
        assert ended(program) == (None, signal.SIGTERM)
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
        assert ended(program) == (None, None)
    await enclosure.destroy()
    for late in (subject.start(enclosure, "wait"), enclosure.connect(80)):
        with pytest.raises(FairleadError) as caught:
            await late
        assert caught.value.reason == "sandbox_lost"


async def test_files_that_the_disk_kept_go_later(tmp_path: Path) -> None:
    root = tmp_path / "private"
    with ThreadPoolExecutor(2) as executor:
        async with ProcessIsolation(
            private_root=root,
            path="/usr/bin:/bin",
            cgroups=no_cgroups(executor),
            executor=executor,
            sole_tenant=EveryTenant(),
        ) as isolation:
            sandbox_id, other_id = random_id("sbx"), random_id("sbx")
            enclosure = await isolation.enclose(sandbox_id, Limits(), HOST_NETWORK, tenant="t")
            away = root.rename(tmp_path / "away")
            root.write_bytes(b"")
            await enclosure.destroy()
            with pytest.raises(IsolationFailed):
                await isolation.enclose(other_id, Limits(), HOST_NETWORK, tenant="t")
            await isolation.tidy()
            root.unlink()
            away.rename(root)
            with pytest.raises(IsolationFailed):
                await isolation.enclose(sandbox_id, Limits(), HOST_NETWORK, tenant="t")
            await isolation.tidy()
            assert list(root.iterdir()) == []
            await (
                await isolation.enclose(sandbox_id, Limits(), HOST_NETWORK, tenant="t")
            ).destroy()


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
            private_root=root,
            path="/usr/bin:/bin",
            cgroups=no_cgroups(executor),
            executor=executor,
            sole_tenant=EveryTenant(),
        ) as isolation:
            sandbox_id = random_id("sbx")
            with monkeypatch.context() as full:
                full.setattr(Path, "mkdir", mkdir)
                with pytest.raises(IsolationFailed):
                    await isolation.enclose(sandbox_id, Limits(), HOST_NETWORK, tenant="t")
            assert list(root.iterdir()) == []
            await (
                await isolation.enclose(sandbox_id, Limits(), HOST_NETWORK, tenant="t")
            ).destroy()


async def test_it_says_when_nothing_listens(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    assert await enclosure.connect(9) is None
    await enclosure.destroy()


async def test_it_reports_the_limits_that_it_holds(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    assert enclosure.limits == Limits(open_files=1024)
    await enclosure.destroy()


async def test_a_program_on_a_terminal(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    size = TerminalSize(24, 80)
    program = await subject.start(enclosure, "cat", stdin=True, terminal=size)
    program.resize(TerminalSize(25, 81))
    content = b"typed\n"
    while content:
        content = content[await program.write(content) :]
    program.close_stdin()
    assert b"typed" in await everything(program)
    assert ended(program) == (0, None)
    plain = await subject.start(enclosure, "wait")
    with pytest.raises(FairleadError) as caught:
        plain.resize(size)
    assert caught.value.reason == "not_a_terminal"
    await enclosure.destroy()
    assert await everything(plain) == b""


async def test_the_terminal_is_the_controlling_one(subject: Subject) -> None:
    if not subject.real:
        pytest.skip("the fake has no kernel")
    enclosure = await subject.enclosure()
    for number in range(2):
        program = await subject.start(
            enclosure,
            *("sh", "-c", 'tty; stty size; echo "$TERM" >/dev/tty; test -t 0 -a -t 1 -a -t 2'),
            stdin=True,
            terminal=TerminalSize(30 + number, 90),
        )
        shown = await everything(program)
        assert re.fullmatch(rb"/dev/pts/\d+\r\n%d 90\r\nxterm-256color\r\n" % (30 + number), shown)
        assert ended(program) == (0, None)
    sleeping = await subject.start(
        enclosure, "sh", "-c", "echo ready; exec sleep 60", stdin=True, terminal=TerminalSize(9, 9)
    )
    await sleeping.read()
    await sleeping.write(b"\x03")
    assert b"^C" in await everything(sleeping)
    assert ended(sleeping) == (None, signal.SIGINT)
    await enclosure.destroy()


async def test_it_starts_file_agents_and_kills_them(subject: Subject) -> None:
    enclosure = await subject.enclosure()
    first, second = await enclosure.files(), await enclosure.files()
    with first.link, second.link:
        await first.kill()
        assert await asyncio.to_thread(first.link.recv, 1) == b""
        line = FileLine(link=second.link, kill=second.kill, silence=30)
        await line.ask(b"stat", b"", 1)
        assert read_stat(await line.answer()).kind is FileKind.DIRECTORY
    third = await enclosure.files()
    with third.link:
        await enclosure.destroy()
        assert await asyncio.to_thread(third.link.recv, 1) == b""
    with pytest.raises(SandboxLost):
        await enclosure.files()
