"""Terminals of real programs: the kernel's side of them, without an isolation around it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox_worker.execution import TerminalSize
from sandbox_worker.execution_errors import StdinClosed
from sandbox_worker.isolation.programs import spawn
from sandbox_worker.isolation.terminal_device import open_terminal, terminal_actions
from sandbox_worker.isolation.terminal_pipes import TerminalPipes

pytestmark = pytest.mark.asyncio


@dataclass(frozen=True, slots=True)
class Started:
    """A program on a terminal of its own, whose end is heard of as a worker hears of it."""

    pipes: TerminalPipes
    pid: int
    watching: asyncio.Task[int]

    async def type(self, content: bytes) -> None:
        while content:
            content = content[await self.pipes.write(content) :]

    async def until(self, wanted: bytes, seen: bytes = b"") -> bytes:
        """Read until `wanted` was shown; returns everything since."""
        while wanted not in seen:
            pieces = await self.pipes.read()
            assert pieces, f"it ended after {seen!r}"
            seen += b"".join(piece.content for piece in pieces)
        return seen

    async def rest(self) -> bytes:
        seen = b""
        while pieces := await self.pipes.read():
            seen += b"".join(piece.content for piece in pieces)
        return seen


Start = Callable[[str], Awaitable[Started]]


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    every: list[Started] = []

    async def begin(script: str) -> Started:
        near, far = open_terminal(b"24 80")
        variables = [b"PATH=/usr/bin:/bin", b"TERM=xterm", b"LC_ALL=C.UTF-8"]
        pid = spawn(
            [b"sh", b"-c", script.encode()], variables, b"/usr/bin:/bin", terminal_actions(far)
        )
        pipes = TerminalPipes()
        assert pipes.open((near, far))
        started = Started(pipes, pid, asyncio.create_task(_status(pid, pipes)))
        every.append(started)
        return started

    try:
        yield begin
    finally:
        for started in every:
            started.pipes.close()
            if not started.watching.done():
                with suppress(ProcessLookupError):
                    os.kill(started.pid, 9)
            await started.watching


async def _status(pid: int, pipes: TerminalPipes) -> int:
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    pipes.end()
    return os.waitstatus_to_exitcode(status)


async def test_it_is_the_controlling_terminal(start: Start) -> None:
    started = await start("tty; stty size; echo through >/dev/tty; test -t 0 -a -t 1 -a -t 2")
    shown = await started.rest()
    assert shown.startswith(b"/dev/pts/")
    assert shown.endswith(b"24 80\r\nthrough\r\n")
    assert await started.watching == 0


async def test_ctrl_c_interrupts_what_is_in_front(start: Start) -> None:
    started = await start("echo ready; exec sleep 60")
    await started.until(b"ready")
    await started.type(b"\x03")
    assert b"^C" in await started.rest()
    assert await started.watching == -signal.SIGINT


async def test_a_new_size_is_told(start: Start) -> None:
    started = await start("trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.1; done")
    await started.until(b"ready")
    started.pipes.resize(TerminalSize(50, 132))
    await started.until(b"50 132\r\n")
    assert await started.watching == 0


async def test_end_of_file_is_typed_also_on_an_open_line(start: Start) -> None:
    for typed in (b"abc", b"abc\n", b""):
        started = await start("stty -echo; echo ready; wc -c")
        await started.until(b"ready\r\n")
        await started.type(typed)
        started.pipes.close_stdin()
        started.pipes.close_stdin()
        assert (await started.rest()).strip() == b"%d" % len(typed)
        assert await started.watching == 0
        with pytest.raises(StdinClosed):
            await started.pipes.write(b"x")


async def test_nothing_is_lost_of_what_was_written_before_the_end(start: Start) -> None:
    started = await start("seq 1 200000; exit 3")
    expected = b"".join(b"%d\r\n" % number for number in range(1, 200_001))
    assert await started.rest() == expected
    assert await started.watching == 3


async def test_the_end_does_not_wait_for_what_stays_behind(start: Start, tmp_path: Path) -> None:
    # What stays behind ends when its terminal is closed.
    on = tmp_path / "on"
    started = await start(
        f"(trap '' HUP; echo more; : >{on}; while echo more; do :; done) &"
        f" until [ -e {on} ]; do :; done; exit 4"
    )
    assert b"more" in await started.rest()
    assert await started.watching == 4


async def test_a_program_that_closes_its_terminal_can_open_it_again(start: Start) -> None:
    started = await start("exec <&- >&- 2>&-; sleep 0.2; echo again >/dev/tty; sleep 0.2")
    assert await started.rest() == b"again\r\n"


async def test_much_input_waits_for_who_reads_it(start: Start) -> None:
    content = os.urandom(300_000)
    started = await start("stty raw -echo; echo ready; head -c 300000 | sha256sum")
    await started.until(b"ready")
    typing = asyncio.create_task(started.type(content))
    await started.until(hashlib.sha256(content).hexdigest().encode())
    await typing


async def test_typing_that_waits_ends_with_the_program(start: Start) -> None:
    started = await start("stty raw -echo; echo ready; sleep 0.3")
    await started.until(b"ready")
    with pytest.raises(StdinClosed):
        await started.type(b"x" * 1_000_000)


async def test_sides_that_were_lost_on_the_way() -> None:
    near, far = open_terminal(b"24 80")
    os.close(far)
    assert not TerminalPipes().open((near,))
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(near)
