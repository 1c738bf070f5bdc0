"""Commands of an SSH host end when they must, whatever they have left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from workspace_provisioner.resident import commands
from workspace_provisioner.resident.calls import Call
from workspace_provisioner.resident.commands import CommandRequest, run_command

pytestmark = pytest.mark.asyncio

# The daemon leaves the command's group and keeps its output open until somebody writes to `end`.
DAEMON = (
    "mkfifo end; setsid sh -c 'exec 3<>end; echo started; read -r line <&3' & read -r line < go"
)
REQUEST = CommandRequest(
    arguments=("sh", "-c", DAEMON),
    environment={},
    directory="",
    takes_input=False,
    seconds=None,
    stays=False,
)


class Client:
    """A client that hears when the daemon has started."""

    def __init__(self) -> None:
        self.started = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        if b"started" in frame:
            self.started.set()


def let_time_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command's thousand seconds be over."""
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 2000.0)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(commands, "_SHUTTING_SECONDS", 0.0)
    os.mkfifo(tmp_path / "go")


def end_daemon(tree: Path) -> None:
    """Let the daemon, which must be there, end."""
    end = os.open(tree / "end", os.O_WRONLY | os.O_NONBLOCK)
    os.write(end, b"\n")
    os.close(end)


def started(request: CommandRequest, tree: Path) -> tuple[Call, Client, asyncio.Task[object]]:
    client = Client()
    call = Call(number=1, fields={}, payload=b"", sink=client)
    running: asyncio.Task[object] = asyncio.ensure_future(run_command(call, request, tree=tree))
    return call, client, running


async def test_a_command_out_of_time_answers_though_its_daemon_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client, running = started(replace(REQUEST, seconds=1000.0), tmp_path)
    await client.started.wait()
    let_time_pass(monkeypatch)
    assert await asyncio.wait_for(running, 30) == {"reason": "timed_out"}
    end_daemon(tmp_path)


async def test_a_command_that_is_killed_answers_though_its_daemon_goes_on(tmp_path: Path) -> None:
    call, client, running = started(REQUEST, tmp_path)
    await client.started.wait()
    assert call.signals is not None
    call.signals(signal.SIGTERM)
    assert await asyncio.wait_for(running, 30) == {"reason": "signalled", "signal": signal.SIGTERM}
    end_daemon(tmp_path)


async def test_a_command_that_left_a_daemon_answers_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_output = commands._last_output
    exited, passed = asyncio.Event(), asyncio.Event()

    async def at_its_exit(reading: asyncio.Future[None], end: float | None) -> None:
        exited.set()
        await passed.wait()
        await wait_for_output(reading, end)

    monkeypatch.setattr(commands, "_last_output", at_its_exit)
    _, client, running = started(replace(REQUEST, seconds=1000.0), tmp_path)
    await client.started.wait()
    go = os.open(tmp_path / "go", os.O_WRONLY)
    os.write(go, b"\n")
    os.close(go)
    await exited.wait()
    let_time_pass(monkeypatch)
    passed.set()
    assert await asyncio.wait_for(running, 30) == {"reason": "exited", "code": 0}
    end_daemon(tmp_path)
